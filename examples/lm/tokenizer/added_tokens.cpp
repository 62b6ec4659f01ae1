#include <terrace/examples/lm/tokenizer/added_tokens.h>

#include <algorithm>
#include <cstring>

#include <terrace/examples/lm/tokenizer/words/words.h>

namespace terrace::lm {
namespace {

constexpr std::size_t kAnySecond = 256;

unsigned byte_at(std::string_view text, std::size_t at) { return static_cast<unsigned char>(text[at]); }

CharClass class_at(std::string_view text, std::size_t at) {
  return UnicodeTable::get().class_of(character_at(text.data() + at, text.data() + text.size()).code);
}
std::size_t begin_of_character_before(std::string_view text, std::size_t at) {
  const auto first = at > 4 ? at - 4 : 0;
  for (auto begin = at - 1;; --begin) {
    if ((byte_at(text, begin) & 0xc0U) != 0x80U) return begin;
    if (begin == first) return at - 1;
  }
}

// Like \w, but includes all numbers and, of the connector punctuation, only the underscore.
bool is_word(std::string_view text, std::size_t at) {
  const auto kind = class_at(text, at);
  return is_letter(kind) || kind == CharClass::mark || kind == CharClass::number || text[at] == '_';
}
bool is_single_word(std::string_view text, std::size_t begin, std::size_t end) {
  return (begin == 0 || !is_word(text, begin_of_character_before(text, begin))) && (end == text.size() || !is_word(text, end));
}

std::size_t before_white_space(std::string_view text, std::size_t begin, std::size_t least) {
  while (begin > least) {
    const auto character = begin_of_character_before(text, begin);
    if (!is_white(class_at(text, character))) break;
    begin = character;
  }
  return std::max(begin, least);
}
std::size_t after_white_space(std::string_view text, std::size_t end) {
  while (end < text.size() && is_white(class_at(text, end)))
    end += character_at(text.data() + end, text.data() + text.size()).bytes;
  return end;
}

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

}  // namespace

bool joins_a_cut(const AddedToken& token) {
  for (std::size_t i = 1; i < token.content.size(); ++i)
    if (token.content[i] == ' ' && is_ascii_letter(token.content[i - 1])) return true;
  return token.strips_right || token.single_word;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  for (std::uint32_t i = 0; i < tokens_.size(); ++i) {
    const auto& content = tokens_[i].content;
    const auto first = byte_at(content, 0);
    by_first_[first].push_back(i);
    second_[first].set(content.size() > 1 ? byte_at(content, 1) : kAnySecond);
  }
  int firsts = 0;
  for (int first = 0; first < 256; ++first) {
    auto& list = by_first_[static_cast<std::size_t>(first)];
    std::ranges::stable_sort(list, std::greater(), [&](std::uint32_t i) { return tokens_[i].content.size(); });
    if (!list.empty()) only_first_ = firsts++ == 0 ? first : -1;
  }
}

AddedTokens::Found AddedTokens::find(std::string_view text, std::size_t from) const {
  for (auto at = from; at < text.size(); ++at) {
    if (only_first_ >= 0) {
      at = text.find(static_cast<char>(only_first_), at);
      if (at == std::string_view::npos) break;
    }
    const auto& list = by_first_[byte_at(text, at)];
    if (list.empty()) continue;
    const auto& second = second_[byte_at(text, at)];
    if (!second[kAnySecond] && (at + 1 == text.size() || !second[byte_at(text, at + 1)])) continue;
    for (const auto i : list)
      if (text.substr(at).starts_with(tokens_[i].content)) return {&tokens_[i], at};
  }
  return {};
}

// A token that ends at `at` counts, too. In the whole text, the part after it may get a space before it; encoded separately as
// a continuation, that part gets none.
bool AddedTokens::stands_over(std::string_view text, std::size_t at) const {
  return std::ranges::any_of(tokens_, [&](const AddedToken& token) {
    const std::string_view content = token.content;
    for (std::size_t before = 1; before <= content.size() && before <= at; ++before) {
      const auto there = text.substr(at - before, content.size());
      if (content.starts_with(there)) return true;
    }
    return false;
  });
}

void AddedTokens::cut(std::string_view text, const std::function<void(std::string_view)>& take_text,
                      const std::function<void(TokenId)>& take_token) const {
  std::size_t done = 0, from = 0;
  while (!tokens_.empty() && from < text.size()) {
    const auto found = find(text, from);
    if (found.token == nullptr) break;
    auto begin = found.begin, end = begin + found.token->content.size();
    from = end;
    if (found.token->single_word && !is_single_word(text, begin, end)) continue;
    if (found.token->strips_left) begin = before_white_space(text, begin, done);
    if (found.token->strips_right) end = after_white_space(text, end);
    if (begin > done) take_text(text.substr(done, begin - done));
    take_token(found.token->id);
    done = end;
  }
  if (done < text.size()) take_text(text.substr(done));
}

}  // namespace terrace::lm
