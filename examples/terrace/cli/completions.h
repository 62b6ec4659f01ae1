// Scripts with which shells complete the command line: commands, their flags, the values of a flag, and files.
//
// Threads: any. Errors: none.
#pragma once

#include <string>

#include <terrace/examples/terrace/cli/command_text.h>

namespace terrace::cli {

std::string bash_completions(const CommandText& program);
std::string zsh_completions(const CommandText& program);
std::string fish_completions(const CommandText& program);

// Helpers of all three.

std::string last_word(const CommandText& command);  // "nvme" of "bench nvme"
// The values of a positional word: names of commands, actions of ckpt, shells; empty: any value.
std::vector<std::string> word_choices(const FlagText& word, const CommandText& program);
// A short help in one line.
std::string hint_of(const FlagText& flag);
std::string hint_of(const CommandText& command);

}  // namespace terrace::cli
