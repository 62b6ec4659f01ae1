// The checks that a fuzzer, and the test of its earlier findings, make with chat templates: for any bytes, a template ends with
// a text or with a Fault that says what to do. A fuzzer allows fewer steps than usual.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include <terrace/examples/lm/chat/jinja/evaluator.h>
#include <terrace/examples/lm/chat/jinja/lexer.h>
#include <terrace/examples/lm/chat/jinja/parser.h>

namespace terrace::test {

inline constexpr std::uint64_t kFewSteps = 100'000;

// Returns true if it wrote a text.
inline bool check_template_text(std::span<const std::uint8_t> bytes, std::uint64_t steps = kFewSteps) {
  using namespace lm::jinja;
  const std::string_view source(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto message = [](const char* role, const char* content) {
    return dict_value({{text_value("role"), text_value(role)}, {text_value("content"), text_value(content)}});
  };
  Runtime runtime;
  runtime.work.take(kMostSteps - steps);
  runtime.now = 0;
  try {
    const auto parsed = parse(source);
    Evaluator evaluator(runtime, {{"messages", list_value({message("user", "é <b>"), message("assistant", " a\n")})},
                                  {"bos_token", text_value("<s>")},
                                  {"n", Value(std::int64_t{7})},
                                  {"real", Value(2.5)},
                                  {"nothing", Value(None())}});
    const auto text = evaluator.write(parsed.body);
    std::size_t done = 0;
    for (const auto& [begin, end] : evaluator.generated()) {
      if (begin < done || end < begin || end > text.size()) throw std::logic_error("a marked block is no part of the text");
      done = end;
    }
    return true;
  } catch (const Fault& fault) {
    if (fault.what.empty() || fault.mend.empty()) throw std::logic_error("a fault that does not say what to do");
    return false;
  }
}

}  // namespace terrace::test
