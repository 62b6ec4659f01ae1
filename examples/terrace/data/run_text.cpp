#include <terrace/examples/terrace/data/run_text.h>

#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/printable.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/examples/terrace/run/weights_reader.h>

namespace terrace::cli {

RunText::RunText(const RunConfig& config, const std::string& run, const std::filesystem::path& given, const std::string& end) {
  const bool of_run = is_run(run);
  if (given.empty() && of_run) demand_intact_tokenizer(run);
  const auto tokenizer = !given.empty() ? given : of_run ? tokenizer_of_run(run, config) : tokenizer_of(config);
  const bool of_bytes = config.data_format == "bytes" && (of_run || given.empty());
  if (of_bytes && !tokenizer.empty())
    throw Error(fmt::format("the run in {} was trained on bytes, which need no --tokenizer\n  leave it out", run), Exit::usage);
  if (!of_bytes && tokenizer.empty() && !of_run)
    throw Error(fmt::format("the model in {} has no tokenizer.json and no tokenizer.model\n  give its --tokenizer", run),
                Exit::usage);
  if (!of_bytes && tokenizer.empty())
    throw Error(fmt::format("the run in {} was trained on token ids (--data-format {}) without a --tokenizer\n  give the "
                            "--tokenizer that made the ids",
                            run, config.data_format),
                Exit::usage);
  if (!of_bytes) tokenizer_ = read_tokenizer(tokenizer, config);
  if (tokenizer_) named_ = lm::read_tokenizer_config(tokenizer.parent_path());
  find_ends(config, end);
}

lm::ChatFormat RunText::chat_format(std::int64_t now) const {
  if (!tokenizer_)
    throw Error(
        "the model was trained on bytes, which have no marks between messages\n  train with --data-format jsonl and a "
        "--tokenizer; "
        "`terrace generate` continues a text",
        Exit::usage);
  return {*tokenizer_, named_, now};
}

void RunText::find_ends(const RunConfig& config, const std::string& end) {
  if (end == "none") return;
  if (end != "auto") {
    const auto ids = tokens_of(end);
    if (ids.size() != 1)
      throw Error(fmt::format("--stop-token {} is {} {} and not one\n  give the spelling of one token, auto or none",
                              printable(end), ids.size(), unit()),
                  Exit::usage);
    ends_ = ids;
    return;
  }
  if (config.document_separator >= 0) ends_.push_back(static_cast<std::int32_t>(config.document_separator));
  if (!tokenizer_) return;
  for (const auto id : named_.ends) ends_.push_back(static_cast<std::int32_t>(id));
  if (!named_.eos.empty()) end_at(named_.eos);
  for (const auto* const usual : {"<|endoftext|>", "</s>"})
    if (ends_.empty()) end_at(usual);
  if (config.data_format == kConversations) end_at("<|im_end|>");
}

void RunText::end_at(std::string_view spelling) {
  if (!tokenizer_) return;
  if (const auto id = tokenizer_->id_of(spelling)) ends_.push_back(static_cast<std::int32_t>(*id));
}

std::vector<std::int32_t> RunText::tokens_of(std::string_view text, bool special) const {
  std::vector<std::int32_t> tokens;
  if (!tokenizer_)
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  else
    for (const auto id : tokenizer_->encode(text, {.finds_added = special})) tokens.push_back(static_cast<std::int32_t>(id));
  return tokens;
}

bool RunText::ends(std::int32_t token) const { return std::ranges::find(ends_, token) != ends_.end(); }

RunText::Stream::Stream(const lm::Tokenizer* tokenizer) : tokenizer_(tokenizer) {
  if (tokenizer) ids_.emplace(*tokenizer);
}

std::string RunText::Stream::add(std::int32_t token) {
  if (!ids_) return bytes_.add(std::string(1, static_cast<char>(token)));
  const auto id = static_cast<lm::TokenId>(token);
  return tokenizer_->has(id) ? ids_->add(id) : std::string();
}

std::string RunText::Stream::finish() { return ids_ ? ids_->finish() : bytes_.finish(); }

std::string shown_on(int descriptor, const std::string& text) { return ::isatty(descriptor) ? printable_lines(text) : text; }

}  // namespace terrace::cli
