// Replaces regex_pcre2.cpp if PCRE2 is not installed.
#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/tokenizer/words/regex.h>

namespace terrace::lm {

struct Regex::Compiled {};

bool Regex::available() { return false; }

Regex::Regex(std::string_view expression) {
  throw base::Refused(
      fmt::format("the tokenizer cuts words with the regular expression {}, which needs PCRE2\n  install libpcre2-dev "
                  "and build terrace again",
                  base::printable(expression)));
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::each_part(std::string_view, const std::function<void(std::string_view)>&) const {}

}  // namespace terrace::lm
