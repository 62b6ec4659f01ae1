#include <terrace/examples/terrace/commands/text_options.h>

#include <system_error>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <terrace/core/base/error.h>
#include <terrace/examples/terrace/config/parse_words.h>
#include <terrace/examples/terrace/config/setting_flags.h>

namespace terrace::cli {

namespace fs = std::filesystem;

void add_sampling(CLI::App& sub, GenerateOptions& out) {
  auto& sampling = out.sampling;
  add_number(sub, "--temperature", sampling.temperature, "temperature of sampling; 0: always take the most probable token");
  sub.add_option("--top-k", sampling.top_k, "sample from so many most probable tokens; 0: from all")->capture_default_str();
  add_number(sub, "--top-p", sampling.top_p, "the fewest of these with so much probability together; 1: all");
  add_number(sub, "--repetition-penalty", sampling.repetition_penalty,
             "makes tokens that the text has less probable: their logits are divided by it, negative ones "
             "multiplied; 1: no penalty");
  sub.add_option("--seed", sampling.seed, "seed of sampling")->capture_default_str();
  sub.add_option(
         "--stop-token", out.stop_token,
         "the token that ends the text; none: only the length does; auto: --document-separator of the run, and what the "
         "files beside the tokenizer name (eos_token, eos_token_id), or else <|endoftext|>")
      ->capture_default_str()
      ->type_name("TOKEN");
}

void add_tokenizer(CLI::App& sub, GenerateOptions& out) {
  sub.add_option("--tokenizer", out.tokenizer, "tokenizer of a run that was trained on token ids")->type_name("FILE");
}

void check_sampling(const GenerateOptions& g, std::int64_t max_tokens, const std::string& command) {
  const auto refuse_value = [&](const char* flag, double value, const char* accepted) {
    refuse(fmt::format("{}: {} is not accepted: {}", flag, value, accepted), command);
  };
  const auto& s = g.sampling;
  if (max_tokens < 1) refuse(fmt::format("--max-tokens: {} is not accepted: an integer of at least 1", max_tokens), command);
  if (!(s.temperature >= 0 && s.temperature <= 1000)) refuse_value("--temperature", s.temperature, "a number from 0 to 1000");
  if (s.top_k < 0) refuse(fmt::format("--top-k: {} is not accepted: an integer of at least 0", s.top_k), command);
  if (!(s.top_p > 0 && s.top_p <= 1)) refuse_value("--top-p", s.top_p, "a number above 0 and at most 1");
  if (!(s.repetition_penalty > 0 && s.repetition_penalty <= 1000))
    refuse_value("--repetition-penalty", s.repetition_penalty, "a number above 0 and at most 1000; 1 is no penalty");
  if (g.stop_token.empty()) refuse("--stop-token is empty: give a token, auto or none", command);
}

void check_directories(const CommandLine& line, const char* of, std::size_t most) {
  const auto& words = line.positional;
  if (words.empty()) refuse(fmt::format("{} needs {}", line.command, of), line.command);
  if (most != 0 && words.size() > most) refuse(fmt::format("unexpected argument \"{}\"", words[most]), line.command);
  std::error_code error;
  for (const auto& word : words)
    if (!fs::is_directory(word, error)) refuse(fmt::format("{}: \"{}\" is not a directory", line.command, word), line.command);
}

void demand_files(const char* flag, const std::vector<fs::path>& files, const std::string& command) {
  for (const auto& file : files) {
    std::error_code error;
    const bool there = fs::exists(file, error);
    if (error)
      refuse(fmt::format("{}: \"{}\" cannot be reached: {}", flag, file.string(), describe_errno(error.value())), command);
    if (!there) refuse(fmt::format("{}: \"{}\" does not exist", flag, file.string()), command);
    if (fs::is_directory(file, error))
      refuse(fmt::format("{0}: \"{1}\" is a directory; give {0} the files in it", flag, file.string()), command);
  }
}

}  // namespace terrace::cli
