// Flags and checks that several commands share: of sampling, tokenizers, and the directories and files that a command reads.
//
// Threads: any. Errors: Error(ErrorKind::refused), which names the flag.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <terrace/examples/terrace/cli/command_line.h>

namespace terrace::cli {

void add_sampling(CLI::App& sub, GenerateOptions& out);
void add_tokenizer(CLI::App& sub, GenerateOptions& out);
void check_sampling(const GenerateOptions& options, std::int64_t max_tokens, const std::string& command);

inline constexpr const char* kOfWeights = "the directory of a run, or of a model";
// The words must be directories, of runs or of models, and there must be one at least. `most`: 0 for any number.
void check_directories(const CommandLine& line, const char* of, std::size_t most);
void demand_files(const char* flag, const std::vector<std::filesystem::path>& files, const std::string& command);

}  // namespace terrace::cli
