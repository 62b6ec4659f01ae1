#include <terrace/examples/terrace/data/found_data.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/data/corpus.h>
#include <terrace/examples/lm/data/data_form.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>
#include <terrace/examples/terrace/data/token_cache.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
using lm::DataForm;

DataFormat format_of(DataForm form) {
  switch (form) {
    case DataForm::bytes: return DataFormat::bytes;
    case DataForm::conversations: return DataFormat::conversations;
    case DataForm::u16: return DataFormat::u16;
    case DataForm::u32: return DataFormat::u32;
    case DataForm::llm_c: return DataFormat::llm_c;
  }
  return DataFormat::bytes;
}

std::string described(const RunConfig& config) {
  if (config.data.format == DataFormat::bytes) return "its bytes are the tokens";
  if (config.data.format == DataFormat::conversations) return "conversations, of which the answers are learned";
  if (config.data.format == DataFormat::text) return fmt::format("text, in the tokens of {}", tokenizer_of(config).string());
  return fmt::format("token ids ({})", word_of(config.data.format));
}

// Text is read with the model's tokenizer; without one, its bytes are the tokens.
DataFormat format_of_text(const RunConfig& config, const fs::path& file) {
  auto of_ids = config;
  of_ids.data.format = DataFormat::u16;
  if (!tokenizer_of(of_ids).empty()) return DataFormat::text;
  if (config.model.vocab > lm::kByteVocabulary)  // a smaller --vocab is refused anyway
    throw base::Refused(fmt::format(
        "--data {} is text, whose bytes are {} ids, and the model has --vocab {}\n  give the model's --tokenizer; or "
        "--data-format bytes, if they are meant",
        file.string(), lm::kByteVocabulary, config.model.vocab));
  return DataFormat::bytes;
}

}  // namespace

DataFormat found_format(const RunConfig& config) {
  std::optional<DataForm> first;
  fs::path of_first;
  auto files = data_files(config);
  if (!config.data.eval_files.empty()) std::ranges::move(data_files(of_evaluation(config)), std::back_inserter(files));
  for (const auto& file : files) {
    std::error_code error;
    if (!fs::is_regular_file(file, error)) continue;
    const auto form = lm::form_of_data(file, config.model.vocab);
    if (!first) first = form, of_first = file;
    if (form != *first)
      throw base::Refused(fmt::format("the data: {} is {}, and {} is {}, as --data-format names them\n  give files of one form",
                                      of_first.string(), word_of(format_of(*first)), file.string(), word_of(format_of(form))));
  }
  if (first == DataForm::bytes) return format_of_text(config, of_first);
  return format_of(first.value_or(DataForm::bytes));
}

std::string describe_data(const RunConfig& config) {
  auto as_given = config;
  as_given.found.token_files.clear();
  const auto files = data_files(as_given);
  if (files.empty()) return "";
  return fmt::format("data: {}{}: {}", files.front().string(),
                     files.size() > 1 ? fmt::format(" and {} more", files.size() - 1) : "", described(config));
}

}  // namespace terrace::cli
