// The families of the program: a file in this folder and two lines here for each.
#include <terrace/examples/lm/family.h>

namespace terrace::lm {

extern const Family kGpt2;
extern const Family kLlama;

std::span<const Family* const> families() {
  static constexpr std::array kAll{&kGpt2, &kLlama};
  return kAll;
}

}  // namespace terrace::lm
