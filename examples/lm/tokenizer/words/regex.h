// Regular expressions of tokenizers that are not known patterns, run by PCRE2. PCRE2 has its own Unicode tables (10.42: Unicode
// 14). \s always means Unicode's White_Space, as in other libraries.
//
// If PCRE2 is missing at build time, regex_absent.cpp replaces regex_pcre2.cpp and refuses every expression.
//
// An expression may try very many ways to match the same letters, so the number of tries at one place of the text is limited.
// If the limit is too low there, matching is repeated with higher limits, and these tries are charged to a budget of the whole
// text.
//
// Owner:   the caller. Threads: any; each call has its own state.
// Errors:  Error(ErrorKind::refused) if PCRE2 does not accept the expression, or is missing; Error(ErrorKind::failed) with the
//          expression if a text exceeds the budget or the memory limit.
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

  // Calls take(part) for each match and for each text between matches, in order. Together the parts are the text. An invalid
  // UTF-8 byte is never part of a match.
  void each_part(std::string_view text, const std::function<void(std::string_view)>& take) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace terrace::lm
