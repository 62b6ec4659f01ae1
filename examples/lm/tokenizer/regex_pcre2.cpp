#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <new>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/core/printable.h>
#include <terrace/examples/lm/tokenizer/regex.h>

namespace terrace::lm {
namespace {

constexpr std::string_view kWhiteSpace =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

std::string message_of(int error) {
  std::array<unsigned char, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// PCRE2's \s has U+180E in it, which is no white space in Unicode any more.
std::string with_white_space(std::string_view expression) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\' && i + 1 < expression.size()) {
      const char next = expression[++i];
      if (next == 's') {
        out += in_class ? std::string(kWhiteSpace) : fmt::format("[{}]", kWhiteSpace);
      } else if (next == 'S' && !in_class) {
        out += fmt::format("[^{}]", kWhiteSpace);
      } else {
        out += c;
        out += next;
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

}  // namespace

struct Regex::Compiled {
  std::string expression;
  pcre2_code* code = nullptr;
  ~Compiled() { pcre2_code_free(code); }
};

bool Regex::available() { return true; }

Regex::Regex(std::string_view expression) : compiled_(std::make_unique<Compiled>()) {
  compiled_->expression = expression;
  const auto own = with_white_space(expression);
  int error = 0;
  PCRE2_SIZE offset = 0;
  compiled_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(own.data()), own.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (compiled_->code == nullptr)
    throw Error(fmt::format("the tokenizer's regular expression {} is not valid: {}", printable(expression), message_of(error)),
                Exit::usage);
  pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE);  // if it cannot, matching is slower
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::each_part(std::string_view text, const std::function<void(std::string_view)>& take) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(compiled_->code, nullptr), pcre2_match_data_free);
  if (!match) throw std::bad_alloc();
  std::size_t done = 0, from = 0;
  while (from < text.size()) {
    const int found =
        pcre2_match(compiled_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, 0, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      throw Error(fmt::format("the tokenizer's regular expression {} failed on a text of {} bytes: {}",
                              printable(compiled_->expression), text.size(), message_of(found)));
    const auto* const ends = pcre2_get_ovector_pointer(match.get());
    if (ends[1] <= ends[0]) {  // an empty match cuts nothing
      for (from = ends[0] + 1; from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0U) == 0x80U;) ++from;
      continue;
    }
    if (ends[0] > done) take(text.substr(done, ends[0] - done));
    take(text.substr(ends[0], ends[1] - ends[0]));
    done = from = ends[1];
  }
  if (done < text.size()) take(text.substr(done));
}

}  // namespace terrace::lm
