#include <terrace/examples/terrace/found_data.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/examples/lm/corpus.h>
#include <terrace/examples/lm/data_form.h>
#include <terrace/examples/terrace/data_sources.h>
#include <terrace/examples/terrace/run_tokenizer.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
using lm::DataForm;

const char* name_of(DataForm form) {
  switch (form) {
    case DataForm::bytes: return "bytes";
    case DataForm::conversations: return "jsonl";
    case DataForm::u16: return "u16";
    case DataForm::u32: return "u32";
    case DataForm::llm_c: return "llm.c";
  }
  return "";
}

std::string described(const std::string& format) {
  if (format == "bytes") return "its bytes are the tokens";
  if (format == "jsonl") return "conversations, of which the answers are learned";
  return fmt::format("token ids ({})", format);
}

void demand_bytes_are_meant(const RunConfig& config, const fs::path& file) {
  auto of_ids = config;
  of_ids.data_format = name_of(DataForm::u16);
  if (const auto tokenizer = tokenizer_of(of_ids); !tokenizer.empty())
    throw Error(
        fmt::format("--data {0} is text, and the model has a tokenizer\n  make its token ids: terrace tokenize {0} --tokenizer "
                    "{1} --out {0}.ids, and give --data {0}.ids; --data-format bytes trains on the bytes of the text",
                    file.string(), tokenizer.string()),
        Exit::usage);
  if (config.vocab > lm::kByteVocabulary)  // smaller ones are refused anyway
    throw Error(
        fmt::format("--data {} is text, whose bytes are {} ids, and the model has --vocab {}\n  give --data-format bytes if "
                    "they are meant; or token ids, which terrace tokenize makes",
                    file.string(), lm::kByteVocabulary, config.vocab),
        Exit::usage);
}

}  // namespace

std::string found_format(const RunConfig& config) {
  std::optional<DataForm> first;
  fs::path of_first;
  auto files = data_files(config);
  if (!config.eval_data.empty()) std::ranges::move(data_files(of_evaluation(config)), std::back_inserter(files));
  for (const auto& file : files) {
    std::error_code error;
    if (!fs::is_regular_file(file, error)) continue;
    const auto form = lm::form_of_data(file, config.vocab);
    if (!first) first = form, of_first = file;
    if (form != *first)
      throw Error(fmt::format("the data: {} is {}, and {} is {}, as --data-format names them\n  give files of one form",
                              of_first.string(), name_of(*first), file.string(), name_of(form)),
                  Exit::usage);
  }
  if (first == DataForm::bytes) demand_bytes_are_meant(config, of_first);
  return name_of(first.value_or(DataForm::bytes));
}

std::string describe_data(const RunConfig& config) {
  const auto files = data_files(config);
  if (files.empty()) return "";
  return fmt::format("data: {}{}: {}", files.front().string(),
                     files.size() > 1 ? fmt::format(" and {} more", files.size() - 1) : "", described(config.data_format));
}

}  // namespace terrace::cli
