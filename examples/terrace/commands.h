// The commands of `terrace` except train.
//
// Threads: one. Errors: see core/error.h.
#pragma once

#include <terrace/core/error.h>
#include <terrace/examples/terrace/command_line.h>
#include <terrace/examples/terrace/command_text.h>

namespace terrace::cli {

Exit plan_command(const CommandLine& line);
Exit generate_command(const CommandLine& line);
Exit chat_command(const CommandLine& line);
Exit eval_command(const CommandLine& line);
Exit ckpt_command(const CommandLine& line);
Exit report_command(const CommandLine& line);
Exit top_command(const CommandLine& line);
Exit bench_command(int argc, const char* const* argv);     // from the word "bench" on, because each bench has its own flags
Exit tokenize_command(int argc, const char* const* argv);  // from the word "tokenize" on
Exit train_tokenizer_command(int argc, const char* const* argv);  // from the word "train-tokenizer" on
Exit launch_command(int argc, const char* const* argv);  // from the word "launch" on; returns the exit code of the ranks

// The command lines of these four.
CommandText describe_bench();
CommandText describe_tokenize();
CommandText describe_train_tokenizer();
CommandText describe_launch();

// `terrace help train` is `terrace train --help`: the words of a command line, with these instead of those.
std::vector<const char*> without_help_command(int argc, const char* const* argv);
// What the commands version, completions and man print; empty: another command.
std::string answer_of(const CommandLine& line);

}  // namespace terrace::cli
