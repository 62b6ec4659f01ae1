// Text that resembles English: sentences of a small grammar, with words by Zipf's law. A seed gives the same bytes everywhere.
#pragma once

#include <array>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <terrace/core/math/philox.h>

namespace terrace::test {

class EnglishText {
 public:
  explicit EnglishText(std::uint64_t seed) : seed_(seed) {}

  // Whole sentences with at least `bytes` bytes in total.
  std::string of(std::size_t bytes) {
    std::string text;
    while (text.size() < bytes) text += sentence();
    return text;
  }

 private:
  std::uint64_t below(std::uint64_t n) { return math::random_below(seed_, 0, draws_++, n); }

  // Rank r has the weight 1/r; computed with integers.
  template <std::size_t N>
  std::string word(const std::array<std::string_view, N>& words) {
    constexpr std::uint64_t kScale = 840;
    std::uint64_t all = 0;
    for (std::uint64_t r = 1; r <= N; ++r) all += kScale / r;
    auto at = below(all);
    for (std::uint64_t r = 1; r <= N; ++r) {
      if (at < kScale / r) return std::string(words[r - 1]);
      at -= kScale / r;
    }
    return {};
  }

  std::string noun_phrase() {
    static constexpr std::array<std::string_view, 5> kArticles{"the", "a", "every", "this", "another"};
    static constexpr std::array<std::string_view, 12> kAdjectives{"old",  "small", "quiet", "green", "long",  "bright",
                                                                  "warm", "north", "heavy", "deep",  "plain", "early"};
    static constexpr std::array<std::string_view, 16> kNouns{"river", "terrace", "field", "house",  "road",   "garden",
                                                             "hill",  "harvest", "stone", "window", "farmer", "bridge",
                                                             "cloud", "letter",  "north", "valley"};
    auto text = word(kArticles) + ' ';
    if (below(3) == 0) text += word(kAdjectives) + ' ';
    return text + word(kNouns);
  }

  std::string sentence() {
    static constexpr std::array<std::string_view, 10> kVerbs{"holds", "follows", "crosses", "keeps",     "carries",
                                                             "sees",  "reaches", "shades",  "remembers", "feeds"};
    static constexpr std::array<std::string_view, 6> kLinks{"and", "while", "because", "but", "until", "where"};
    auto text = noun_phrase() + ' ' + word(kVerbs) + ' ' + noun_phrase();
    while (below(3) == 0) text += ' ' + word(kLinks) + ' ' + noun_phrase() + ' ' + word(kVerbs) + ' ' + noun_phrase();
    text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
    return text + (below(6) == 0 ? ".\n" : ". ");
  }

  std::uint64_t seed_, draws_ = 0;
};

}  // namespace terrace::test
