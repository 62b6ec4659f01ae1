// Regular expressions of tokenizers that are not among the known patterns, run by PCRE2. Its Unicode tables are its own: PCRE2
// 10.42 has Unicode 14. \s is always the White_Space of Unicode, as in other libraries.
//
// Without PCRE2 at build time, regex_absent.cpp takes the place of regex_pcre2.cpp and every expression is refused.
//
// An expression may try ever more ways to match the same letters. What it tries at a place of the text is limited; where that
// is not enough, it is tried again with more, and that is charged to a budget of the whole text.
//
// Owner:   the caller. Threads: any; each call has its own state.
// Errors:  Error(Exit::usage) for an expression that PCRE2 does not accept, or if there is no PCRE2; Error(Exit::runtime) that
//          names the expression, if a text is beyond its budget or its memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace terrace::lm {

class Regex {
 public:
  static bool available();

  explicit Regex(std::string_view expression);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Calls take(part) for each match and for each text between matches, in order. Together they are the text. An invalid byte
  // of UTF-8 is never part of a match.
  void each_part(std::string_view text, const std::function<void(std::string_view)>& take) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace terrace::lm
