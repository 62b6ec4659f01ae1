#include <terrace/examples/lm/tokenizer/tokenizer.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/fetched_file.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/lm/tokenizer/tokenizer_model.h>
#include <terrace/examples/lm/tokenizer/tokens_beside.h>

namespace terrace::lm {
namespace {

constexpr std::uint64_t kMostFileBytes = std::uint64_t{256} << 20;

std::unique_ptr<const TokenizerModel> model_of(const std::filesystem::path& file, std::string text) {
  if (Tokenizer::is_sentencepiece(file))
    return sentencepiece_model(std::move(text), read_sentencepiece_settings(file.parent_path()));
  auto parsed = TokenizerFile::parse(text);
  add_tokens_beside(file.parent_path(), parsed);
  return json_model(std::move(parsed));
}

}  // namespace

std::filesystem::path tokenizer_in(const std::filesystem::path& folder) {
  std::error_code error;
  for (const auto* const name : {"tokenizer.json", "tokenizer.model"})
    if (auto file = folder / name; std::filesystem::is_regular_file(file, error)) return file;
  return {};
}

Encoding::Encoding() = default;
Encoding::~Encoding() = default;
Encoding::Encoding(Encoding&&) noexcept = default;
Encoding& Encoding::operator=(Encoding&&) noexcept = default;

Tokenizer::Tokenizer(TokenizerFile file) : Tokenizer(json_model(std::move(file))) {}
Tokenizer::Tokenizer(std::unique_ptr<const TokenizerModel> model) : model_(std::move(model)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

bool Tokenizer::is_sentencepiece(const std::filesystem::path& file) { return file.extension() == ".model"; }

bool Tokenizer::reads_sentencepiece() { return sentencepiece_available(); }

Tokenizer Tokenizer::read(const std::filesystem::path& file) {
  files::demand_fetched(file);
  std::string text;
  try {
    text = read_text_file(file, kMostFileBytes);
  } catch (const Error& error) {
    throw Error(fmt::format("the tokenizer {} cannot be read: {}\n  give the path of a tokenizer.json or a tokenizer.model",
                            file.string(), error.what()),
                ErrorKind::refused, error.facts());
  }
  try {
    return Tokenizer(model_of(file, std::move(text)));
  } catch (const Error& error) {
    throw Error(
        fmt::format("the tokenizer {} cannot be used: {}\n  give a tokenizer.json with the model BPE, or a tokenizer.model "
                    "of sentencepiece; docs/reference/tokenizers.md lists what they may have",
                    file.string(), error.what()),
        error, file.string());
  }
}

void Tokenizer::encode(std::string_view text, EncodeOptions options, Encoding& with, TokenBuffer& out) const {
  if (!with.state_) with.state_ = model_->new_state();
  model_->encode(text, options, *with.state_, out);
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  Encoding with;
  TokenBuffer out;
  encode(text, options, with, out);
  return {out.view().begin(), out.view().end()};
}

std::string Tokenizer::piece(TokenId id, DecodeOptions options) const { return model_->piece(id, options); }

std::string Tokenizer::decode(std::span<const TokenId> ids, DecodeOptions options) const {
  std::string text;
  for (const auto id : ids) text += piece(id, options);
  const auto& [stripped, at_front, at_end] = model_->stripped();
  std::string_view rest = text;
  for (auto i = at_front; i > 0 && !stripped.empty() && rest.starts_with(stripped); --i) rest.remove_prefix(stripped.size());
  for (auto i = at_end; i > 0 && !stripped.empty() && rest.ends_with(stripped); --i) rest.remove_suffix(stripped.size());
  return std::string(rest);
}

const Stripped& Tokenizer::stripped() const { return model_->stripped(); }

bool Tokenizer::has(TokenId id) const { return model_->has(id); }

std::size_t Tokenizer::ids() const { return model_->ids(); }

std::optional<TokenId> Tokenizer::id_of(std::string_view content) const {
  const auto found = std::ranges::find(model_->added(), content, &AddedToken::content);
  return found != model_->added().end() ? std::optional(found->id) : model_->id_of(content);
}

bool Tokenizer::is_added(TokenId id) const {
  const auto found = std::ranges::lower_bound(model_->added(), id, {}, &AddedToken::id);
  return found != model_->added().end() && found->id == id;
}

std::vector<std::string> Tokenizer::special() const {
  std::vector<std::string> out;
  for (const auto& token : model_->added())
    if (token.special) out.push_back(token.content);
  return out;
}

std::optional<std::size_t> Tokenizer::cut_before(std::string_view text, std::size_t most, bool finds_added) const {
  return model_->cut_before(text, most, finds_added);
}

std::string Tokenizer::text() const { return model_->text(); }

}  // namespace terrace::lm
