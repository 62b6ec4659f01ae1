// A tokenizer.json: finds added tokens, normalises the rest, cuts it into words, and encodes each word (bpe.h). "truncation"
// and "padding" are ignored: they are settings for batches, and Hugging Face's library turns both off for a plain text.
#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/tokenizer/tokenizer_model.h>
#include <terrace/examples/lm/tokenizer/tokenizer_parts.h>
#include <terrace/examples/lm/tokenizer/words/bpe.h>
#include <terrace/examples/lm/tokenizer/words/normalize.h>
#include <terrace/examples/lm/tokenizer/words/word_encoder.h>

namespace terrace::lm {
namespace {

using Json = nlohmann::ordered_json;

const Json& part_of(const Json& rest, const char* key) {
  static const Json none;
  return rest.contains(key) ? rest[key] : none;
}

BpeParts bpe_parts(const TokenizerFile& file, bool byte_level) {
  const auto& model = file.rest["model"];
  const auto type = is_absent(model, "type") ? std::string("BPE") : text_member(model, "type");
  if (type != "BPE") throw base::Refused(fmt::format("the model \"{}\" is not supported; BPE is", base::printable(type)));
  for (const char* const key : {"vocab", "merges"})  // null if they were read separately
    if (!is_absent(model, key))
      throw Error(fmt::format("\"{}\" of the model has another form than that of BPE", key), ErrorKind::corrupt);
  for (const char* const key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!is_absent(model, key) && !text_member(model, key).empty())
      throw base::Refused(fmt::format("the model's \"{}\" is not supported, and it would change the tokens", key));
  if (!is_absent(model, "dropout") && model["dropout"] != 0)
    throw base::Refused("the model's \"dropout\" is not supported, and it would change the tokens");
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

struct JsonState final : TokenizerModel::State {
  WordEncoder words;
};

class JsonModel final : public TokenizerModel {
 public:
  explicit JsonModel(TokenizerFile of)
      : file(std::move(of)),
        normalizer(read_normalizer(part_of(file.rest, "normalizer"))),
        pre_tokenizer(read_pre_tokenizer(part_of(file.rest, "pre_tokenizer"))),
        decoder(read_decoder(part_of(file.rest, "decoder"))),
        around(read_template(part_of(file.rest, "post_processor"))),
        bpe(bpe_parts(file, pre_tokenizer.byte_level)) {
    take_added(read_added_tokens(part_of(file.rest, "added_tokens")));
    may_cut_ = !pre_tokenizer.metaspace && pre_tokenizer.steps.size() == 1 &&
               std::holds_alternative<Pattern>(pre_tokenizer.steps[0]) &&
               std::ranges::all_of(normalizer.steps, [](const auto& step) { return std::holds_alternative<NfcStep>(step); });
    added_join_cuts_ = std::ranges::any_of(added_, joins_a_cut);
  }

  [[nodiscard]] std::unique_ptr<State> new_state() const override { return std::make_unique<JsonState>(); }
  void encode(std::string_view text, EncodeOptions options, State& state, TokenBuffer& out) const override;
  [[nodiscard]] std::string piece(TokenId id, DecodeOptions options) const override;
  [[nodiscard]] const Stripped& stripped() const override { return decoder.stripped; }
  [[nodiscard]] std::size_t ids() const override { return id_limit; }
  [[nodiscard]] bool has(TokenId id) const override { return added_by_id.contains(id) || (id < bpe.ids() && bpe.bytes_of(id)); }
  [[nodiscard]] std::optional<TokenId> id_of(std::string_view content) const override { return bpe.id_of(content); }
  [[nodiscard]] const std::vector<AddedToken>& added() const override { return added_; }
  [[nodiscard]] std::optional<std::size_t> cut_before(std::string_view text, std::size_t most, bool finds_added) const override;
  [[nodiscard]] std::string text() const override { return file.text(); }

 private:
  void take_added(std::vector<AddedToken> tokens) {
    added_ = tokens;
    std::ranges::sort(added_, {}, &AddedToken::id);
    std::vector<AddedToken> raw, normalized;
    for (auto& token : tokens) {
      const auto known = bpe.id_of(token.content);
      if (known ? *known != token.id : token.id < bpe.ids() && bpe.bytes_of(token.id))
        throw Error(fmt::format("the added token \"{}\" has the id {}, which the vocabulary has for another token",
                                base::printable(token.content), token.id),
                    ErrorKind::corrupt);
      if (!added_by_id.emplace(token.id, token).second)
        throw Error(fmt::format("two added tokens have the id {}", token.id), ErrorKind::corrupt);
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
  std::vector<AddedToken> added_;  // sorted by id
  bool may_cut_ = false, added_join_cuts_ = false;

  void encode_text(std::string_view text, EncodeOptions options, JsonState& state, TokenBuffer& out) const;
  // The position of a part in the text; it decides whether a space is added before the part.
  struct Place {
    bool begins = true;    // the part begins the text
    bool goes_on = false;  // and this text continues another one
    [[nodiscard]] Place of(std::string_view part, std::string_view in) const {
      const bool first = part.data() == in.data();
      return {begins && first, goes_on && first};
    }
  };
  void encode_part(std::string_view part, bool finds_added, Place place, JsonState& state, TokenBuffer& out) const;
  void encode_words(std::string_view part, Place place, JsonState& state, TokenBuffer& out) const;
  void cut_words(std::string_view part, std::size_t step, JsonState& state, TokenBuffer& out) const;
};

void JsonModel::cut_words(std::string_view part, std::size_t step, JsonState& state, TokenBuffer& out) const {
  if (step == pre_tokenizer.steps.size()) {
    if (!part.empty()) state.words.encode_word(bpe, part, part.data() + part.size(), out);
    return;
  }
  const auto next = [&](std::string_view word) { cut_words(word, step + 1, state, out); };
  const auto& cutter = pre_tokenizer.steps[step];
  if (const auto* const known = std::get_if<Pattern>(&cutter)) return each_word(*known, part, next);
  if (const auto* const separator = std::get_if<Separator>(&cutter)) return each_word(*separator, part, next);
  std::get<Regex>(cutter).each_part(part, next);
}

void JsonModel::encode_words(std::string_view part, Place place, JsonState& state, TokenBuffer& out) const {
  std::string changed;
  if (pre_tokenizer.prefix_space && !place.goes_on && !part.empty() && part.front() != ' ') {
    changed = " " + std::string(part);
    part = changed;
  }
  if (const auto& metaspace = pre_tokenizer.metaspace; metaspace && !part.empty()) {
    changed = part;
    replace_all(changed, " ", metaspace->replacement, longest_replaced(part.size()));
    const bool prefixed = !place.goes_on && (metaspace->prefix == Metaspace::Prefix::always ||
                                             (metaspace->prefix == Metaspace::Prefix::first && place.begins));
    if (prefixed && !changed.starts_with(metaspace->replacement)) changed.insert(0, metaspace->replacement);
    part = changed;
  }
  const auto& steps = pre_tokenizer.steps;
  if (steps.size() != 1 || !std::holds_alternative<Pattern>(steps[0])) return cut_words(part, 0, state, out);
  with_pattern(std::get<Pattern>(steps[0]), [&]<Pattern kPattern>() { state.words.encode<kPattern>(bpe, part, out); });
}

void JsonModel::encode_part(std::string_view part, bool finds_added, Place place, JsonState& state, TokenBuffer& out) const {
  std::string changed;
  const bool stays = std::ranges::all_of(normalizer.steps, [](const auto& s) { return std::holds_alternative<NfcStep>(s); }) &&
                     (normalizer.steps.empty() || is_surely_nfc(part));
  if (!stays) {
    changed = normalizer.apply(part, place.goes_on);
    part = changed;
  }
  if (!finds_added || normalized_added.empty()) return encode_words(part, place, state, out);
  normalized_added.cut(
      part, [&](std::string_view text) { encode_words(text, place.of(text, part), state, out); },
      [&](TokenId id) { out.push(id); });
}

void JsonModel::encode_text(std::string_view text, EncodeOptions options, JsonState& state, TokenBuffer& out) const {
  const Place place{.goes_on = options.goes_on};
  if (!options.finds_added || raw_added.empty()) return encode_part(text, options.finds_added, place, state, out);
  raw_added.cut(
      text, [&](std::string_view part) { encode_part(part, true, place.of(part, text), state, out); },
      [&](TokenId id) { out.push(id); });
}

void JsonModel::encode(std::string_view text, EncodeOptions options, State& state, TokenBuffer& out) const {
  if (options.with_template) out.append(around.before);
  encode_text(text, options, static_cast<JsonState&>(state), out);
  if (options.with_template) out.append(around.after);
}

std::optional<std::size_t> JsonModel::cut_before(std::string_view text, std::size_t most, bool finds_added) const {
  if (!may_cut_ || (finds_added && added_join_cuts_)) return {};
  if (const auto at = cut_at_space(text, most)) return at;
  // A token that is searched after NFC may be spelled with other bytes in the text.
  if (finds_added && !normalizer.steps.empty() && !normalized_added.empty()) return {};
  return cut_behind_word(text, most, [&](std::size_t at) {
    return !finds_added || (!raw_added.stands_over(text, at) && !normalized_added.stands_over(text, at));
  });
}

std::string JsonModel::piece(TokenId id, DecodeOptions options) const {
  if (!decoder.unknown.empty())
    throw base::Refused(fmt::format("the decoder \"{}\" is not supported", base::printable(decoder.unknown)));
  if (const auto added = added_by_id.find(id); added != added_by_id.end())
    return added->second.special && options.skips_special ? std::string() : added->second.content;
  if (id >= bpe.ids() || !bpe.bytes_of(id)) throw base::Refused(fmt::format("{} is the id of no token", id));
  auto part = bpe.decoded(id);
  const auto most = longest_replaced(part.size());
  if (!bpe.byte_level())
    for (const auto& [from, to] : decoder.replacements) replace_all(part, from, to, most);
  return part;
}

}  // namespace

std::unique_ptr<const TokenizerModel> json_model(TokenizerFile file) { return std::make_unique<JsonModel>(std::move(file)); }

}  // namespace terrace::lm
