// The families of the program and those of the tests. What this file is linked into knows all of them, as if the product's own
// families/list.cpp had their lines.
#include "mixed.h"

namespace terrace::lm {

extern const Family kGpt2;
extern const Family kLlama;

std::span<const Family* const> families() {
  static constexpr std::array kAll{&kGpt2, &kLlama, &test::kMixed, &test::kFused};
  return kAll;
}

}  // namespace terrace::lm
