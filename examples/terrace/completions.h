// Scripts with which shells complete the command line: the commands, their flags, the values of a flag, and files.
//
// Threads: any. Errors: none.
#pragma once

#include <string>

#include <terrace/examples/terrace/command_text.h>

namespace terrace::cli {

std::string bash_completions(const CommandText& program);
std::string zsh_completions(const CommandText& program);
std::string fish_completions(const CommandText& program);

// What the scripts have in common.

std::string last_word(const CommandText& command);  // "nvme" of "bench nvme"
// What a word without a flag may be: names of commands, actions of ckpt, shells; empty: anything.
std::vector<std::string> word_choices(const FlagText& word, const CommandText& program);
// A short help in one line.
std::string hint_of(const FlagText& flag);
std::string hint_of(const CommandText& command);

}  // namespace terrace::cli
