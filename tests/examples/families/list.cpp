// The families of the program and those of the tests. A program that is linked with this file knows all of them, as if they
// were in the product's own families/list.cpp.
#include <terrace/tests/examples/families/mixed.h>

namespace terrace::lm {

extern const Family kGpt2;
extern const Family kLlama;

std::span<const Family* const> families() {
  static constexpr std::array kAll{&kGpt2, &kLlama, &test::kMixed, &test::kFused};
  return kAll;
}

}  // namespace terrace::lm
