#include <terrace/examples/lm/tokenizer/tokenizer.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/core/printable.h>
#include <terrace/core/text_file.h>
#include <terrace/examples/lm/tokenizer/bpe.h>
#include <terrace/examples/lm/tokenizer/normalize.h>
#include <terrace/examples/lm/tokenizer/tokenizer_parts.h>
#include <terrace/examples/lm/tokenizer/word_cache.h>
#include <terrace/examples/lm/tokenizer/words.h>

namespace terrace::lm {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMostFileBytes = std::uint64_t{256} << 20;

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

const Json& part_of(const Json& rest, const char* key) {
  static const Json none;
  return rest.contains(key) ? rest[key] : none;
}

BpeParts bpe_parts(const TokenizerFile& file, bool byte_level) {
  const auto& model = file.rest["model"];
  const auto type = is_absent(model, "type") ? std::string("BPE") : text_member(model, "type");
  if (type != "BPE") throw Error(fmt::format("the model \"{}\" is not supported; BPE is", printable(type)), Exit::usage);
  for (const char* const key : {"vocab", "merges"})  // what was read apart is null
    if (!is_absent(model, key))
      throw Error(fmt::format("\"{}\" of the model has another form than that of BPE", key), Exit::corrupt);
  for (const char* const key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!is_absent(model, key) && !text_member(model, key).empty())
      throw Error(fmt::format("the model's \"{}\" is not supported, and it would change the tokens", key), Exit::usage);
  if (!is_absent(model, "dropout") && model["dropout"] != 0)
    throw Error("the model's \"dropout\" is not supported, and it would change the tokens", Exit::usage);
  BpeParts parts{.vocabulary = file.vocabulary,
                 .merges = file.merges,
                 .byte_level = byte_level,
                 .byte_fallback = flag_member(model, "byte_fallback", false),
                 .ignore_merges = flag_member(model, "ignore_merges", false),
                 .fuse_unknown = flag_member(model, "fuse_unk", false),
                 .unknown = {}};
  if (!is_absent(model, "unk_token")) parts.unknown = text_member(model, "unk_token");
  return parts;
}

}  // namespace

struct Tokenizer::Parts {
  explicit Parts(TokenizerFile of)
      : file(std::move(of)),
        normalizer(read_normalizer(part_of(file.rest, "normalizer"))),
        pre_tokenizer(read_pre_tokenizer(part_of(file.rest, "pre_tokenizer"))),
        decoder(read_decoder(part_of(file.rest, "decoder"))),
        around(read_template(part_of(file.rest, "post_processor"))),
        bpe(bpe_parts(file, pre_tokenizer.byte_level)) {
    for (const char* const key : {"truncation", "padding"})
      if (!is_absent(file.rest, key))
        throw Error(fmt::format("\"{}\" is not supported, and it would change the tokens\n  set it to null", key), Exit::usage);
    take_added(read_added_tokens(part_of(file.rest, "added_tokens")));
    may_cut = pre_tokenizer.steps.size() == 1 && std::holds_alternative<Pattern>(pre_tokenizer.steps[0]) &&
              std::ranges::all_of(normalizer.steps, [](const auto& step) { return std::holds_alternative<NfcStep>(step); }) &&
              std::ranges::none_of(added_by_id, [](const auto& entry) { return joins_a_cut(entry.second); });
  }

  // Whether it may be found over a place where a text is cut, or takes what stands there.
  static bool joins_a_cut(const AddedToken& token) {
    for (std::size_t i = 1; i < token.content.size(); ++i)
      if (token.content[i] == ' ' && is_ascii_letter(token.content[i - 1])) return true;
    return token.strips_right || token.single_word;
  }

  void take_added(std::vector<AddedToken> tokens) {
    std::vector<AddedToken> raw, normalized;
    for (auto& token : tokens) {
      const auto known = bpe.id_of(token.content);
      if (known ? *known != token.id : token.id < bpe.ids() && bpe.bytes_of(token.id))
        throw Error(fmt::format("the added token \"{}\" has the id {}, which the vocabulary has for another token",
                                printable(token.content), token.id),
                    Exit::corrupt);
      if (!added_by_id.emplace(token.id, token).second)
        throw Error(fmt::format("two added tokens have the id {}", token.id), Exit::corrupt);
      id_limit = std::max<std::size_t>(id_limit, std::size_t{token.id} + 1);
      if (token.normalized) token.content = normalizer.apply(token.content);
      (token.normalized ? normalized : raw).push_back(std::move(token));
    }
    id_limit = std::max(id_limit, bpe.ids());
    raw_added = AddedTokens(std::move(raw));
    normalized_added = AddedTokens(std::move(normalized));
  }

  TokenizerFile file;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Decoder decoder;
  Template around;
  Bpe bpe;
  AddedTokens raw_added, normalized_added;
  std::unordered_map<TokenId, AddedToken> added_by_id;
  std::size_t id_limit = 0;
  bool may_cut = false;

  void encode(std::string_view text, EncodeOptions options, Encoding::State& state, TokenBuffer& out) const;
  void encode_part(std::string_view part, EncodeOptions options, Encoding::State& state, TokenBuffer& out) const;
  void encode_words(std::string_view part, bool goes_on, Encoding::State& state, TokenBuffer& out) const;
  void cut_words(std::string_view part, std::size_t step, Encoding::State& state, TokenBuffer& out) const;
  template <Pattern kPattern>
  void encode_known(std::string_view part, Encoding::State& state, TokenBuffer& out) const;
};

struct Encoding::State {
  WordCache cache;
  MergeScratch scratch;

  // The tokens of one word of a text that ends at `end`.
  void encode_word(const Bpe& bpe, std::string_view word, const char* end, TokenBuffer& out) {
    if (word.size() <= WordCache::kShortBytes) {
      const auto key = WordCache::key_of(word.data(), word.size(), end);
      const auto& place = cache.place(key);
      if (place.key == key) {
        std::memcpy(out.reserve(place.ids.size()), place.ids.data(), sizeof place.ids);
        out.written(place.count);
        return;
      }
    }
    encode_rare_word(bpe, word, end, out);
  }

 private:
  [[gnu::noinline]] void encode_rare_word(const Bpe& bpe, std::string_view word, const char* end, TokenBuffer& out) {
    if (const auto known = cache.find_long(word); !known.empty()) return out.append(known);
    bpe.encode_word(word, scratch);
    out.append(scratch.ids);
    if (word.size() > WordCache::kShortBytes || scratch.ids.size() > WordCache::kShortTokens)
      return cache.insert_long(word, scratch.ids);
    const auto key = WordCache::key_of(word.data(), word.size(), end);
    auto& place = cache.place(key);
    place = {.key = key, .ids = {}, .count = static_cast<std::uint32_t>(scratch.ids.size())};
    std::ranges::copy(scratch.ids, place.ids.begin());
  }
};

template <Pattern kPattern>
void Tokenizer::Parts::encode_known(std::string_view part, Encoding::State& state, TokenBuffer& out) const {
  const char* const end = part.data() + part.size();
  const Words words(end);
  for (const char* at = part.data(); at < end;) {
    const char* const stop = words.next<kPattern>(at);
    state.encode_word(bpe, {at, static_cast<std::size_t>(stop - at)}, end, out);
    at = stop;
  }
}

void Tokenizer::Parts::cut_words(std::string_view part, std::size_t step, Encoding::State& state, TokenBuffer& out) const {
  if (step == pre_tokenizer.steps.size()) {
    if (!part.empty()) state.encode_word(bpe, part, part.data() + part.size(), out);
    return;
  }
  const auto next = [&](std::string_view word) { cut_words(word, step + 1, state, out); };
  if (const auto* const known = std::get_if<Pattern>(&pre_tokenizer.steps[step])) return each_word(*known, part, next);
  std::get<Regex>(pre_tokenizer.steps[step]).each_part(part, next);
}

void Tokenizer::Parts::encode_words(std::string_view part, bool goes_on, Encoding::State& state, TokenBuffer& out) const {
  std::string with_space;
  if (pre_tokenizer.prefix_space && !goes_on && !part.empty() && part.front() != ' ') {
    with_space = " " + std::string(part);
    part = with_space;
  }
  const auto& steps = pre_tokenizer.steps;
  if (steps.size() != 1 || !std::holds_alternative<Pattern>(steps[0])) return cut_words(part, 0, state, out);
  with_pattern(std::get<Pattern>(steps[0]), [&]<Pattern kPattern>() { encode_known<kPattern>(part, state, out); });
}

void Tokenizer::Parts::encode_part(std::string_view part, EncodeOptions options, Encoding::State& state,
                                   TokenBuffer& out) const {
  std::string changed;
  const bool stays = std::ranges::all_of(normalizer.steps, [](const auto& s) { return std::holds_alternative<NfcStep>(s); }) &&
                     (normalizer.steps.empty() || is_surely_nfc(part));
  if (!stays) {
    changed = normalizer.apply(part, options.goes_on);
    part = changed;
  }
  if (!options.finds_added || normalized_added.empty()) return encode_words(part, options.goes_on, state, out);
  normalized_added.cut(
      part, [&](std::string_view text) { encode_words(text, options.goes_on && text.data() == part.data(), state, out); },
      [&](TokenId id) { out.push(id); });
}

void Tokenizer::Parts::encode(std::string_view text, EncodeOptions options, Encoding::State& state, TokenBuffer& out) const {
  if (!options.finds_added || raw_added.empty()) return encode_part(text, options, state, out);
  raw_added.cut(
      text,
      [&](std::string_view part) { encode_part(part, {.goes_on = options.goes_on && part.data() == text.data()}, state, out); },
      [&](TokenId id) { out.push(id); });
}

Encoding::Encoding() : state_(std::make_unique<State>()) {}
Encoding::~Encoding() = default;
Encoding::Encoding(Encoding&&) noexcept = default;
Encoding& Encoding::operator=(Encoding&&) noexcept = default;

Tokenizer::Tokenizer(TokenizerFile file) : parts_(std::make_unique<const Parts>(std::move(file))) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::read(const std::filesystem::path& file) {
  std::string text;
  try {
    text = read_text_file(file, kMostFileBytes);
  } catch (const Error& error) {
    throw Error(
        fmt::format("the tokenizer {} cannot be read: {}\n  give the path of a tokenizer.json", file.string(), error.what()),
        Exit::usage);
  }
  try {
    return Tokenizer(TokenizerFile::parse(text));
  } catch (const Error& error) {
    throw Error(fmt::format("the tokenizer {} cannot be used: {}\n  give a tokenizer.json with the model BPE; "
                            "docs/tokenizers.md lists what it may have",
                            file.string(), error.what()),
                error.exit());
  }
}

void Tokenizer::encode(std::string_view text, EncodeOptions options, Encoding& with, TokenBuffer& out) const {
  if (options.with_template) out.append(parts_->around.before);
  parts_->encode(text, options, *with.state_, out);
  if (options.with_template) out.append(parts_->around.after);
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  Encoding with;
  TokenBuffer out;
  encode(text, options, with, out);
  return {out.view().begin(), out.view().end()};
}

std::string Tokenizer::piece(TokenId id, DecodeOptions options) const {
  const auto& decoder = parts_->decoder;
  if (!decoder.unknown.empty())
    throw Error(fmt::format("the decoder \"{}\" is not supported", printable(decoder.unknown)), Exit::usage);
  if (const auto added = parts_->added_by_id.find(id); added != parts_->added_by_id.end())
    return added->second.special && options.skips_special ? std::string() : added->second.content;
  if (id >= parts_->bpe.ids() || !parts_->bpe.bytes_of(id))
    throw Error(fmt::format("{} is the id of no token", id), Exit::usage);
  auto part = parts_->bpe.decoded(id);
  const auto most = longest_replaced(part.size());
  if (!parts_->bpe.byte_level())
    for (const auto& [from, to] : decoder.replacements) replace_all(part, from, to, most);
  return part;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, DecodeOptions options) const {
  std::string text;
  for (const auto id : ids) text += piece(id, options);
  const auto& [stripped, at_front, at_end] = parts_->decoder.stripped;
  std::string_view rest = text;
  for (auto i = at_front; i > 0 && !stripped.empty() && rest.starts_with(stripped); --i) rest.remove_prefix(stripped.size());
  for (auto i = at_end; i > 0 && !stripped.empty() && rest.ends_with(stripped); --i) rest.remove_suffix(stripped.size());
  return std::string(rest);
}

const Stripped& Tokenizer::stripped() const { return parts_->decoder.stripped; }

bool Tokenizer::has(TokenId id) const {
  return parts_->added_by_id.contains(id) || (id < parts_->bpe.ids() && parts_->bpe.bytes_of(id));
}

std::size_t Tokenizer::ids() const { return parts_->id_limit; }

std::optional<TokenId> Tokenizer::id_of(std::string_view content) const {
  for (const auto& [id, token] : parts_->added_by_id)
    if (token.content == content) return id;
  return parts_->bpe.id_of(content);
}

bool Tokenizer::is_added(TokenId id) const { return parts_->added_by_id.contains(id); }

std::vector<std::string> Tokenizer::special() const {
  std::map<TokenId, std::string> all;
  for (const auto& [id, token] : parts_->added_by_id)
    if (token.special) all.emplace(id, token.content);
  std::vector<std::string> out;
  for (auto& [id, content] : all) out.push_back(std::move(content));
  return out;
}

std::optional<std::size_t> Tokenizer::cut_before(std::string_view text, std::size_t most) const {
  return parts_->may_cut ? cut_between_words(text, most) : std::nullopt;
}

const TokenizerFile& Tokenizer::file() const { return parts_->file; }

}  // namespace terrace::lm
