#include <terrace/examples/terrace/data/conversation_cache.h>

#include <optional>
#include <string>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/notice.h>
#include <terrace/examples/terrace/base/user_cache.h>
#include <terrace/examples/terrace/data/run_data.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

// Everything except the data that decides the tokens and what the reading reports. kVersion is raised when the same inputs give
// other results.
std::string decides_tokens(const RunConfig& config, const lm::Tokenizer& tokenizer) {
  constexpr int kVersion = 1;
  const auto named = lm::read_tokenizer_config(tokenizer_of(config).parent_path());
  const auto day = template_time(config);
  auto all = fmt::format("conversations {}\n{}\n{}\n", kVersion, word_of(config.data.on_bad_line), day ? *day : -1);
  const auto add = [&](const std::string& text) { all += fmt::format("{} {}\n", text.size(), text); };
  add(tokenizer.text());
  add(named.eos);
  add(named.chat_template ? "by template " + *named.chat_template : "");
  for (const auto& [key, token] : named.tokens) add(key + " " + token);
  for (const auto& token : tokenizer.special()) add(token);
  return all;
}

// Returns nothing if there is no file, or if it cannot be used.
std::optional<lm::EncodedConversations> found(const fs::path& file, const fs::path& data, std::uint64_t room, bool warns) try {
  if (std::error_code error; !fs::exists(file, error)) return {};
  return lm::EncodedConversations(file, data, room);
} catch (const Error& error) {
  if (warns)
    base::warn(fmt::format("the tokens of {} that are kept in {} cannot be used: {}; they are made anew", data.string(),
                           file.string(), error.what()));
  return {};
}

}  // namespace

lm::EncodedConversations encoded_conversations(const fs::path& data, const RunConfig& config, const lm::Tokenizer& tokenizer,
                                               const lm::ChatFormat& format) {
  const auto room = static_cast<std::uint64_t>(config.model.seq_len);
  const CachedFile file(data, decides_tokens(config, tokenizer), ".talk");
  if (auto kept = found(file.path(), data, room, false)) return *std::move(kept);
  const auto lock = file.lock();
  if (auto made = found(file.path(), data, room, true)) return *std::move(made);  // another process has made it meanwhile
  MakingNote note("encoding", data);
  lm::encode_conversations(data, file.path(), format, config.data.on_bad_line,
                           [&](std::uint64_t read, std::uint64_t of) { note(read, of); });
  file.demand_same_data();
  return {file.path(), data, room};
}

}  // namespace terrace::cli
