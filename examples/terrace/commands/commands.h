// The commands of `terrace` except train.
//
// Threads: one. Errors: see core/base/error.h.
#pragma once

#include <terrace/core/base/error.h>
#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/cli/command_text.h>
#include <terrace/examples/terrace/config/exit_codes.h>

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

// The command lines of these four commands.
CommandText describe_bench();
CommandText describe_tokenize();
CommandText describe_train_tokenizer();
CommandText describe_launch();

// Rewrites the words `terrace help train` to `terrace train --help`. Other command lines stay as they are.
std::vector<const char*> without_help_command(int argc, const char* const* argv);
// The text that the command version, completions or man prints; empty for another command.
std::string answer_of(const CommandLine& line);

}  // namespace terrace::cli
