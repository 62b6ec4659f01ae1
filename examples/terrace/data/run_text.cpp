#include <terrace/examples/terrace/data/run_text.h>

#include <unistd.h>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/examples/terrace/run/weights_reader.h>

namespace terrace::cli {
namespace {

lm::ModelText model_text_of(const RunConfig& config, const std::string& run, const std::filesystem::path& given) {
  const bool of_run = is_run(run);
  if (given.empty() && of_run) demand_intact_tokenizer(run);
  const auto tokenizer = !given.empty() ? given : of_run ? tokenizer_of_run(run, config) : tokenizer_of(config);
  const bool of_bytes = config.data.format == DataFormat::bytes && (of_run || given.empty());
  if (of_bytes && !tokenizer.empty())
    throw base::Refused(fmt::format("the run in {} was trained on bytes, which need no --tokenizer\n  leave it out", run));
  if (of_bytes) return {};
  if (tokenizer.empty() && !of_run)
    throw base::Refused(
        fmt::format("the model in {} has no tokenizer.json and no tokenizer.model\n  give its --tokenizer", run));
  if (tokenizer.empty())
    throw base::Refused(
        fmt::format("the run in {} was trained on token ids (--data-format {}) without a --tokenizer\n  give the "
                    "--tokenizer that made the ids",
                    run, word_of(config.data.format)));
  return {read_tokenizer(tokenizer, config), lm::read_tokenizer_config(tokenizer.parent_path())};
}

}  // namespace

RunText::RunText(const RunConfig& config, const std::string& run, const std::filesystem::path& tokenizer,
                 const std::string& end)
    : ModelText(model_text_of(config, run, tokenizer)) {
  find_ends(config, end);
}

lm::ChatFormat RunText::chat_format(std::int64_t now) const {
  if (!tokenizer())
    throw base::Refused(
        "the model was trained on bytes, which have no marks between messages\n  train with --data-format jsonl and a "
        "--tokenizer; "
        "`terrace generate` continues a text");
  return {*tokenizer(), named(), now};
}

void RunText::find_ends(const RunConfig& config, const std::string& end) {
  if (end == "none") return;
  if (end != "auto") {
    const auto ids = tokens_of(end);
    if (ids.size() != 1)
      throw base::Refused(fmt::format("--stop-token {} is {} {} and not one\n  give the spelling of one token, auto or none",
                                      base::printable(end), ids.size(), unit()));
    return end_at(ids.front());
  }
  if (config.data.document_separator >= 0) end_at(static_cast<std::int32_t>(config.data.document_separator));
  end_as_named();
  if (config.data.format == DataFormat::conversations) end_at("<|im_end|>");
}

std::string shown_on(int descriptor, const std::string& text) {
  return ::isatty(descriptor) ? base::printable_lines(text) : text;
}

}  // namespace terrace::cli
