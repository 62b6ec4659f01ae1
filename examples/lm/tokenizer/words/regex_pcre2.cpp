#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <new>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/tokenizer/words/regex.h>

namespace terrace::lm {
namespace {

constexpr std::string_view kWhiteSpace =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// How often a match may re-enter groups and repeated parts at one place of the text. Usual expressions do so less than once per
// letter. If this is not enough, matching starts again with a low limit that grows, and all of these tries are counted.
constexpr std::uint32_t kUsualTries = 2'000, kFirstTries = 16, kMostTries = 1U << 25;
constexpr std::uint64_t kMostTriesOfAByte = 100;
// The stack of compiled code, for groups that are repeated once per letter: enough for words of a million letters.
constexpr std::size_t kFirstStackBytes = std::size_t{64} << 10, kMostStackBytes = std::size_t{64} << 20;
constexpr std::uint32_t kMostHeapKiB = 64 << 10;  // if there is no compiled code

std::string message_of(int error) {
  std::array<unsigned char, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// PCRE2's \s includes U+180E, which is no longer white space in Unicode.
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

// A stack for compiled code. A thread allocates it when a word needs more than the small stack that PCRE2 uses by default.
class ThreadStack {
 public:
  ~ThreadStack() { pcre2_jit_stack_free(stack_); }
  pcre2_jit_stack* get() const { return stack_; }
  bool make() {
    if (stack_ == nullptr) stack_ = pcre2_jit_stack_create(kFirstStackBytes, kMostStackBytes, nullptr);
    return stack_ != nullptr;
  }

 private:
  pcre2_jit_stack* stack_ = nullptr;
};
thread_local ThreadStack thread_stack;

using Code = std::unique_ptr<pcre2_code, void (*)(pcre2_code*)>;
using Context = std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)>;
using Found = std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)>;

Code code_of(std::string_view expression, const std::string& own, std::uint32_t more_options) {
  constexpr std::uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(own.data()), own.size(), kOptions | more_options, &error, &offset, nullptr),
      pcre2_code_free);
  if (!code)
    throw base::Refused(
        fmt::format("the tokenizer's regular expression {} is not valid: {}", base::printable(expression), message_of(error)));
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // if this fails, matching is only slower
  return code;
}

Context context_of_tries(std::uint32_t tries) {
  Context context(pcre2_match_context_create(nullptr), pcre2_match_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_jit_stack_assign(
      context.get(), [](void*) { return thread_stack.get(); }, nullptr);
  pcre2_set_heap_limit(context.get(), kMostHeapKiB);
  pcre2_set_match_limit(context.get(), tries);
  return context;
}

int match(const Code& code, std::string_view text, std::size_t from, const Found& found, const Context& context) {
  const auto once = [&] {
    return pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, 0, found.get(), context.get());
  };
  const int result = once();
  return result == PCRE2_ERROR_JIT_STACKLIMIT && thread_stack.get() == nullptr && thread_stack.make() ? once() : result;
}

std::size_t next_character(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0U) == 0x80U;) ++at;
  return at;
}

// Searches for a match place by place, raising the limit as far as needed.
int match_with_more_tries(const Code& here, std::string_view text, std::size_t from, const Found& found, std::uint64_t& left) {
  const auto more = context_of_tries(kFirstTries);
  for (auto at = from; at < text.size(); at = next_character(text, at)) {
    int result = PCRE2_ERROR_MATCHLIMIT;
    for (auto tries = kFirstTries; result == PCRE2_ERROR_MATCHLIMIT; tries *= 2) {
      if (tries > std::min<std::uint64_t>(left, kMostTries)) return result;
      left -= tries;
      pcre2_set_match_limit(more.get(), tries);
      result = match(here, text, at, found, more);
    }
    if (result != PCRE2_ERROR_NOMATCH) return result;
  }
  return PCRE2_ERROR_NOMATCH;
}

}  // namespace

struct Regex::Compiled {
  std::string expression;
  Code anywhere, here;  // `anywhere` matches at or after the given place, `here` only at it
  Context usual;

  [[noreturn]] void refuse(std::string_view text, const std::string& why) const {
    throw Error(
        fmt::format("the tokenizer's regular expression {} failed on a text of {} bytes: {}\n  give a tokenizer whose "
                    "expression has fewer ways to match the same letters, or shorter texts",
                    base::printable(expression), text.size(), why));
  }
};

bool Regex::available() { return true; }

Regex::Regex(std::string_view expression) {
  const auto own = with_white_space(expression);
  compiled_ = std::make_unique<Compiled>(Compiled{.expression = std::string(expression),
                                                  .anywhere = code_of(expression, own, 0),
                                                  .here = code_of(expression, own, PCRE2_ANCHORED),
                                                  .usual = context_of_tries(kUsualTries)});
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::each_part(std::string_view text, const std::function<void(std::string_view)>& take) const {
  const Found found(pcre2_match_data_create_from_pattern(compiled_->anywhere.get(), nullptr), pcre2_match_data_free);
  if (!found) throw std::bad_alloc();
  std::uint64_t tries_left = kMostTries + kMostTriesOfAByte * text.size();
  std::size_t done = 0, from = 0;
  while (from < text.size()) {
    int result = match(compiled_->anywhere, text, from, found, compiled_->usual);
    if (result == PCRE2_ERROR_MATCHLIMIT) result = match_with_more_tries(compiled_->here, text, from, found, tries_left);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result == PCRE2_ERROR_MATCHLIMIT) compiled_->refuse(text, "it tries too many ways to match");
    if (result < 0) compiled_->refuse(text, message_of(result));
    const auto* const ends = pcre2_get_ovector_pointer(found.get());
    if (ends[1] <= ends[0]) {  // an empty match does not cut the text
      from = next_character(text, ends[0]);
      continue;
    }
    if (ends[0] > done) take(text.substr(done, ends[0] - done));
    take(text.substr(ends[0], ends[1] - ends[0]));
    done = from = ends[1];
  }
  if (done < text.size()) take(text.substr(done));
}

}  // namespace terrace::lm
