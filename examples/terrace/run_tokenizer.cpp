#include <terrace/examples/terrace/run_tokenizer.h>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/core/text_file.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
constexpr const char *kTokenizerFile = "tokenizer.json", *kSentencePieceFile = "tokenizer.model";

bool is_file(const fs::path& file) {
  std::error_code error;
  return fs::is_regular_file(file, error);
}

// The tokenizer of a directory; empty: it has none. Where both are, they are the same one in two forms.
fs::path tokenizer_in(const fs::path& folder) {
  for (const auto* const name : {kTokenizerFile, kSentencePieceFile})
    if (auto file = folder / name; is_file(file)) return file;
  return {};
}

void copy_whole(const fs::path& from, const fs::path& to) try {
  replace_text_file(to, read_text_file(from), Durable::yes);
} catch (const Error& error) {
  throw Error(fmt::format("{} cannot be copied to {}: {}\n  check both, then repeat the command", from.string(), to.string(),
                          error.what()),
              error.exit());
}

}  // namespace

fs::path tokenizer_of(const RunConfig& config) {
  if (config.data_format == "bytes") return {};
  if (!config.tokenizer.empty()) return config.tokenizer;
  const auto beside = config.init_from.empty() ? fs::path() : tokenizer_in(config.init_from);
  // Runs of ids need none, so one that this build cannot read is left where it is.
  const bool readable = !lm::Tokenizer::is_sentencepiece(beside) || lm::Tokenizer::reads_sentencepiece();
  if (config.data_format != kConversations) return readable ? beside : fs::path();
  if (!beside.empty()) return beside;
  throw Error(
      "--data-format jsonl needs a tokenizer\n  give --tokenizer FILE, a tokenizer.json (terrace train-tokenizer makes one) or "
      "a tokenizer.model",
      Exit::usage);
}

fs::path tokenizer_of_run(const fs::path& run, const RunConfig& config) {
  if (auto kept = tokenizer_in(tokenizer_folder(run)); !kept.empty()) return kept;
  return tokenizer_of(config);
}

lm::Tokenizer read_tokenizer(const fs::path& file, const RunConfig& config) {
  auto tokenizer = lm::Tokenizer::read(file);
  if (static_cast<std::int64_t>(tokenizer.ids()) > config.vocab)
    throw Error(fmt::format("the tokenizer {} has {} ids, but the model has --vocab {}\n  give --vocab {} or more, or the "
                            "tokenizer of the model",
                            file.string(), tokenizer.ids(), config.vocab, tokenizer.ids()),
                Exit::usage);
  return tokenizer;
}

fs::path tokenizer_folder(const fs::path& run) { return run / "tokenizer"; }

void keep_tokenizer(const fs::path& run, const RunConfig& config) {
  const auto from = tokenizer_of(config), to = tokenizer_folder(run);
  std::error_code error;
  if (from.empty() || fs::equivalent(from.parent_path(), to, error)) return;
  fs::create_directories(to);
  copy_tokenizer_files(from.parent_path(), to);
  // --tokenizer may have another name, and stand beside a tokenizer.json that is not meant.
  const bool sentencepiece = lm::Tokenizer::is_sentencepiece(from);
  if (sentencepiece) fs::remove(to / kTokenizerFile);
  copy_whole(from, to / (sentencepiece ? kSentencePieceFile : kTokenizerFile));
}

void copy_tokenizer_files(const fs::path& from, const fs::path& to) {
  for (const auto* const name : kTokenizerFiles) {
    std::error_code error;
    if (is_file(from / name))
      copy_whole(from / name, to / name);
    else
      fs::remove(to / name, error);
  }
}

}  // namespace terrace::cli
