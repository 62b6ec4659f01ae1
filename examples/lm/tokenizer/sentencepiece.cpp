// A tokenizer.model: finds added tokens; Google's library encodes the text between them.
#include <algorithm>
#include <charconv>
#include <mutex>
#include <unordered_set>

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/tokenizer/sentencepiece_file.h>
#include <terrace/examples/lm/tokenizer/tokenizer_model.h>
#include <terrace/examples/lm/tokenizer/tokenizer_parts.h>
#include <terrace/examples/lm/tokenizer/words/pattern.h>
#include <terrace/examples/lm/tokenizer/words/unicode.h>

namespace terrace::lm {
namespace {

using Processor = sentencepiece::SentencePieceProcessor;

const std::string kSpace = "\u2581";  // represents a space in pieces

void load(Processor& processor, const std::string& bytes) {
  if (const auto status = processor.LoadFromSerializedProto(bytes); !status.ok())
    throw Error(fmt::format("it is no model of sentencepiece: {}", base::printable(status.ToString())), ErrorKind::corrupt);
}

// True if a piece has a space after a letter, so that it may cross a place where a text is cut.
bool reaches_over_a_space(std::string_view piece) {
  while (piece.starts_with(kSpace)) piece.remove_prefix(kSpace.size());
  return piece.find(kSpace) != std::string_view::npos || piece.find(' ') != std::string_view::npos;
}

class SentencePieceModel final : public TokenizerModel {
 public:
  SentencePieceModel(std::string bytes, SentencePieceSettings settings)
      : file_(read_sentencepiece_file(bytes)), settings_(std::move(settings)), bytes_(std::move(bytes)) {
    if (file_.spaces_behind) throw base::Refused("spaces behind words (treat_whitespace_as_suffix) are not supported");
    if (file_.maps_decoded) throw base::Refused("a table for decoded texts (denormalizer_spec) is not supported");
    load(beginning_, bytes_);
    load(continuing_, without_prefix(bytes_));
    pieces_ = static_cast<std::size_t>(std::max(0, beginning_.GetPieceSize()));
    prefixed_ = settings_.prefixed.value_or(file_.prefixes) && file_.prefixes;
    stripped_ = {" ", prefixed_ || file_.removes_spaces ? std::size_t{1} : 0, 0};
    take_added();
    may_cut_ = file_.bpe && file_.escapes_spaces && !file_.removes_spaces && !file_.maps_characters;
    for (std::size_t id = 0; may_cut_ && id < pieces_; ++id)
      may_cut_ = !reaches_over_a_space(beginning_.IdToPiece(static_cast<int>(id)));
    added_join_cuts_ = std::ranges::any_of(added_, joins_a_cut);
    added_strip_left_ = std::ranges::any_of(added_, &AddedToken::strips_left);
  }

  [[nodiscard]] std::unique_ptr<State> new_state() const override { return std::make_unique<Ids>(); }

  void encode(std::string_view text, EncodeOptions options, State& state, TokenBuffer& out) const override {
    auto& ids = static_cast<Ids&>(state);
    if (options.with_template && settings_.sets_begin && begin_) out.push(*begin_);
    const auto encode_part = [&](std::string_view part) {
      const bool begins = part.data() == text.data() ? !options.goes_on : settings_.always_prefixed;
      encode(prefixed_ && begins ? beginning_ : continuing_, part, ids, out);
    };
    if (!options.finds_added || finder_.empty())
      encode_part(text);
    else
      finder_.cut(text, encode_part, [&](TokenId id) { out.push(id); });
    if (options.with_template && settings_.sets_end && end_) out.push(*end_);
  }

  [[nodiscard]] std::string piece(TokenId id, DecodeOptions options) const override {
    if (const auto at = std::ranges::lower_bound(added_, id, {}, &AddedToken::id); at != added_.end() && at->id == id)
      return at->special && options.skips_special ? std::string() : at->content;
    if (id >= pieces_) throw base::Refused(fmt::format("{} is the id of no token", id));
    const auto number = static_cast<int>(id);
    auto text = beginning_.IdToPiece(number);
    if (beginning_.IsControl(number) || beginning_.IsUnknown(number)) return options.skips_special ? std::string() : text;
    if (beginning_.IsByte(number)) {  // <0x0A>
      unsigned byte = 0;
      std::from_chars(text.data() + 3, text.data() + text.size(), byte, 16);
      return std::string(1, static_cast<char>(byte));
    }
    replace_all(text, kSpace, " ", text.size());
    return text;
  }

  [[nodiscard]] const Stripped& stripped() const override { return stripped_; }
  [[nodiscard]] std::size_t ids() const override {
    return std::max(pieces_, added_.empty() ? 0 : std::size_t{added_.back().id} + 1);
  }
  [[nodiscard]] bool has(TokenId id) const override {
    return id < pieces_ || std::ranges::binary_search(added_, id, {}, &AddedToken::id);
  }
  [[nodiscard]] std::optional<TokenId> id_of(std::string_view content) const override {
    const auto id = beginning_.PieceToId({content.data(), content.size()});  // any unknown content gives the unknown token
    return id >= 0 && beginning_.IdToPiece(id) == content ? std::optional(static_cast<TokenId>(id)) : std::nullopt;
  }
  [[nodiscard]] const std::vector<AddedToken>& added() const override { return added_; }
  [[nodiscard]] std::optional<std::size_t> cut_before(std::string_view text, std::size_t most,
                                                      bool finds_added) const override {
    if (!may_cut_ || (finds_added && added_join_cuts_)) return {};
    if (const auto at = cut_at_space(text, most)) return at;
    if (finds_added && added_strip_left_) return {};  // a cut between pieces may follow white space that these tokens include
    std::call_once(neighbours_known_, [&] { find_neighbours(); });
    return cut_between_pieces(text, most, finds_added);
  }
  [[nodiscard]] std::string text() const override { return bytes_ + settings_.text(); }

 private:
  struct Ids final : State {
    std::vector<int> all;
  };

  static void encode(const Processor& processor, std::string_view part, Ids& ids, TokenBuffer& out) {
    if (const auto status = processor.Encode({part.data(), part.size()}, &ids.all); !status.ok())
      throw Error(fmt::format("a text of {} bytes cannot be encoded: {}", part.size(), base::printable(status.ToString())));
    std::ranges::transform(ids.all, out.reserve(ids.all.size()), [](int id) { return static_cast<TokenId>(id); });
    out.written(ids.all.size());
  }

  // Only characters that are adjacent in some piece can merge. If there are no byte pieces, unknown characters also join.
  void find_neighbours() const {
    bool has_bytes = false;
    for (std::size_t id = 0; id < pieces_; ++id) {
      has_bytes = has_bytes || beginning_.IsByte(static_cast<int>(id));
      const auto piece = beginning_.IdToPiece(static_cast<int>(id));
      const char* const end = piece.data() + piece.size();
      auto before = kNoCodePoint;
      for (const char* at = piece.data(); at < end;) {
        const auto [code, bytes] = character_at(at, end);
        if (before != kNoCodePoint) neighbours_.insert(pair_of(before, code));
        if (bytes == piece.size()) known_.insert(code);
        before = code;
        at += bytes;
      }
    }
    needs_known_ = !has_bytes;
  }
  static std::uint64_t pair_of(std::uint32_t first, std::uint32_t second) { return std::uint64_t{first} << 32U | second; }

  [[nodiscard]] std::optional<std::size_t> cut_between_pieces(std::string_view text, std::size_t most, bool finds_added) const {
    constexpr std::size_t kMostBytes = 4;  // of a character
    const auto as_in_pieces = [](std::uint32_t code) { return code == ' ' ? std::uint32_t{0x2581} : code; };
    const auto is_known = [&](std::uint32_t code) { return !needs_known_ || known_.contains(code); };
    if (text.size() <= kMostBytes) return {};
    for (auto at = std::min(most, text.size() - kMostBytes); at > 0; --at) {
      const auto next = as_in_pieces(character_at(text.data() + at, text.data() + text.size()).code);
      if (next == kNoCodePoint) continue;
      const auto before = as_in_pieces(last_character(text.substr(0, at)));
      if (before == kNoCodePoint || neighbours_.contains(pair_of(before, next)) || !is_known(before) || !is_known(next))
        continue;
      if (!finds_added || !finder_.stands_over(text, at)) return at;
    }
    return {};
  }

  // Special tokens that the settings name are also found in a text; if they name none, the model's own are used.
  void take_added() {
    const auto named = [&](const std::string& content, int own) {
      return !content.empty() ? content : own >= 0 ? beginning_.IdToPiece(own) : std::string();
    };
    const auto begin = named(settings_.begin, beginning_.bos_id()), end = named(settings_.end, beginning_.eos_id());
    auto special = settings_.special;
    for (const auto& content : {begin, end, named(settings_.unknown, beginning_.unk_id())})
      if (!content.empty() && std::ranges::find(special, content) == special.end()) special.push_back(content);
    added_ = settings_.added;
    for (auto& content : special) {
      const auto same = std::ranges::find(added_, content, &AddedToken::content);
      if (same != added_.end())
        same->special = true;
      else if (const auto id = id_of(content); id && std::ranges::find(added_, *id, &AddedToken::id) == added_.end())
        added_.push_back({.id = *id, .content = content, .normalized = false, .special = true});
    }
    for (const auto& token : added_)
      if (token.id >= 8 * pieces_ + 65536)  // the same limit as for a tokenizer.json
        throw Error(fmt::format("token \"{}\" has the id {}, but there are only {} tokens", base::printable(token.content),
                                token.id, pieces_),
                    ErrorKind::corrupt);
    std::ranges::sort(added_, {}, &AddedToken::id);
    finder_ = AddedTokens(added_);
    const auto id_in_all = [&](const std::string& content) {
      const auto at = std::ranges::find(added_, content, &AddedToken::content);
      return at == added_.end() ? id_of(content) : std::optional(at->id);
    };
    if (!begin.empty()) begin_ = id_in_all(begin);
    if (!end.empty()) end_ = id_in_all(end);
  }

  SentencePieceFile file_;
  SentencePieceSettings settings_;
  std::string bytes_;
  Processor beginning_, continuing_;  // for the beginning of a text, and for its continuation
  std::size_t pieces_ = 0;
  bool prefixed_ = false, may_cut_ = false, added_join_cuts_ = false, added_strip_left_ = false;
  mutable std::once_flag neighbours_known_;  // guards the next three, for texts without spaces
  mutable std::unordered_set<std::uint64_t> neighbours_;
  mutable std::unordered_set<std::uint32_t> known_;
  mutable bool needs_known_ = false;
  Stripped stripped_;
  std::vector<AddedToken> added_;  // sorted by id
  AddedTokens finder_;
  std::optional<TokenId> begin_, end_;
};

}  // namespace

bool sentencepiece_available() { return true; }

std::unique_ptr<const TokenizerModel> sentencepiece_model(std::string bytes, SentencePieceSettings settings) {
  return std::make_unique<SentencePieceModel>(std::move(bytes), std::move(settings));
}

}  // namespace terrace::lm
