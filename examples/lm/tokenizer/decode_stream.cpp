#include <terrace/examples/lm/tokenizer/decode_stream.h>

#include <algorithm>
#include <utility>

namespace terrace::lm {
namespace {

// The length of the character that begins with `lead`; 0 if none does.
std::size_t length_of_character(unsigned char lead) {
  return lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
}

// After some first bytes, only a part of the continuation bytes is valid (Unicode 16, table 3-7).
bool may_follow(unsigned char lead, unsigned char second) {
  const unsigned char low = lead == 0xE0   ? 0xA0
                            : lead == 0xF0 ? 0x90
                                           : 0x80,
                      high = lead == 0xED   ? 0x9F
                             : lead == 0xF4 ? 0x8F
                                            : 0xBF;
  return second >= low && second <= high;
}

}  // namespace

std::size_t unfinished_character(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[text.size() - back + i]); };
    const auto lead = at(0);
    if ((lead & 0xC0U) == 0x80U) continue;  // a continuation byte
    if (length_of_character(lead) <= back) return 0;
    return back == 1 || may_follow(lead, at(1)) ? back : 0;
  }
  return 0;
}

std::string WholeCharacters::add(std::string_view bytes) {
  held_ += bytes;
  const auto whole = held_.size() - unfinished_character(held_);
  auto out = held_.substr(0, whole);
  held_.erase(0, whole);
  return out;
}

std::string WholeCharacters::finish() { return std::exchange(held_, {}); }

DecodeStream::DecodeStream(const Tokenizer& tokenizer, DecodeOptions options)
    : tokenizer_(&tokenizer), options_(options), front_left_(tokenizer.stripped().at_front) {}

void DecodeStream::strip_front(bool at_end) {
  const auto& stripped = tokenizer_->stripped().text;
  if (stripped.empty()) front_left_ = 0;
  while (front_left_ > 0) {
    if (text_.starts_with(stripped)) {
      text_.erase(0, stripped.size());
      --front_left_;
    } else if (!at_end && stripped.starts_with(text_)) {
      return;  // later tokens decide
    } else {
      front_left_ = 0;
    }
  }
}

std::string DecodeStream::add(TokenId id) {
  text_ += tokenizer_->piece(id, options_);
  strip_front(false);
  if (front_left_ > 0) return {};
  const auto& stripped = tokenizer_->stripped();
  const auto size = stripped.text.size();
  const auto kept = size == 0 ? 0 : stripped.at_end > text_.size() / size ? text_.size() : stripped.at_end * size;
  const auto out = text_.substr(0, text_.size() - kept);
  text_.erase(0, out.size());
  return whole_.add(out);
}

std::string DecodeStream::finish() {
  strip_front(true);
  const auto& stripped = tokenizer_->stripped();
  for (auto i = stripped.at_end; i > 0 && !stripped.text.empty() && text_.ends_with(stripped.text); --i)
    text_.resize(text_.size() - stripped.text.size());
  auto out = whole_.add(std::exchange(text_, {}));
  out += whole_.finish();
  front_left_ = stripped.at_front;
  return out;
}

}  // namespace terrace::lm
