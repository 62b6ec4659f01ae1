#include <terrace/examples/terrace/data/run_tokenizer.h>

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include <terrace/core/base/folders.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/terrace/data/token_cache.h>
#include <terrace/offload/store/chunk_store.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
constexpr const char *kTokenizerFile = "tokenizer.json", *kSentencePieceFile = "tokenizer.model";

std::string checksum_of_file(std::string_view bytes) {
  return fmt::format("{:016x}", checksum_of(std::as_bytes(std::span(bytes))));
}

}  // namespace

fs::path tokenizer_of(const RunConfig& config) {
  if (config.data.format == DataFormat::bytes) return {};
  if (!config.data.tokenizer.empty()) return config.data.tokenizer;
  const auto beside = config.run.init_from.empty() ? fs::path() : lm::tokenizer_in(config.run.init_from);
  // A run of ids needs no tokenizer, so one that this build cannot read is left out.
  const bool readable = !lm::Tokenizer::is_sentencepiece(beside) || lm::Tokenizer::reads_sentencepiece();
  const bool needs = config.data.format == DataFormat::conversations || config.data.format == DataFormat::text;
  if (!needs) return readable ? beside : fs::path();
  if (!beside.empty()) return beside;
  throw base::Refused(fmt::format(
      "--data-format {} needs a tokenizer\n  give --tokenizer FILE, a tokenizer.json (terrace train-tokenizer makes "
      "one) or a tokenizer.model",
      word_of(config.data.format)));
}

fs::path tokenizer_kept_by(const fs::path& run) { return lm::tokenizer_in(tokenizer_folder(run)); }

fs::path tokenizer_of_run(const fs::path& run, const RunConfig& config) {
  if (auto kept = tokenizer_kept_by(run); !kept.empty()) return kept;
  return tokenizer_of(config);
}

lm::Tokenizer read_tokenizer(const fs::path& file, const RunConfig& config) {
  auto tokenizer = lm::Tokenizer::read(file);
  if (static_cast<std::int64_t>(tokenizer.ids()) > config.model.vocab)
    throw base::Refused(
        fmt::format("the tokenizer {} has {} ids, but the model has --vocab {}\n  give --vocab {} or more, or the "
                    "tokenizer of the model",
                    file.string(), tokenizer.ids(), config.model.vocab, tokenizer.ids()));
  return tokenizer;
}

fs::path tokenizer_folder(const fs::path& run) { return run / "tokenizer"; }

lm::TokenizerFiles given_tokenizer(const fs::path& run, const RunConfig& config) {
  const auto from = tokenizer_of(config);
  std::error_code error;
  if (from.empty() || fs::equivalent(fs::absolute(from).parent_path(), tokenizer_folder(run), error)) return {};
  auto files = lm::read_tokenizer_files(from.parent_path());
  // --tokenizer may have another name, and be beside a tokenizer.json that is not meant.
  const bool sentencepiece = lm::Tokenizer::is_sentencepiece(from);
  if (sentencepiece) files.erase(kTokenizerFile);
  files[sentencepiece ? kSentencePieceFile : kTokenizerFile] = lm::read_tokenizer_file(from);
  return files;
}

TokenizerChecksums checksums_of(const lm::TokenizerFiles& files) {
  TokenizerChecksums checksums;
  for (const auto& [name, bytes] : files) checksums[name] = checksum_of_file(bytes);
  return checksums;
}

std::string damage_of_tokenizer(const fs::path& folder, const TokenizerChecksums& written) {
  std::string damage;
  const auto note = [&](const fs::path& file, const std::string& what) {
    damage += fmt::format("{}{}: {}", damage.empty() ? "" : "\n  ", file.string(), what);
  };
  for (const auto* const name : lm::kTokenizerFiles) {
    const auto file = folder / name;
    const auto expected = written.find(name);
    std::error_code error;
    const bool there = fs::exists(fs::symlink_status(file, error));
    if (expected == written.end()) {
      if (there) note(file, "the run did not keep this file");
      continue;
    }
    if (!there) {
      note(file, "the file is missing");
      continue;
    }
    try {
      const auto found = checksum_of_file(read_text_file(file));
      if (found != expected->second)
        note(file, fmt::format("the file is damaged: checksum {}, expected {}", found, base::printable(expected->second)));
    } catch (const Error& problem) {
      note(file, fmt::format("it cannot be read: {}", problem.what()));
    }
  }
  return damage;
}

std::string foreign_to_tokenizer(const fs::path& folder) {
  for (const auto& entry : files::entries_of(folder)) {
    const auto name = entry.path().filename().string();
    if (!fs::is_regular_file(entry.symlink_status()) ||
        std::ranges::count(lm::kTokenizerFiles, files::finished_name(name)) == 0)
      return name;
  }
  return "";
}

void remove_tokenizer(const fs::path& folder) {
  for (const auto& entry : files::entries_of(folder)) files::remove_path(entry.path());
  files::remove_path(folder);
}

}  // namespace terrace::cli
