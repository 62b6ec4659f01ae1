// The families of the program: a file in this folder and two lines here for each.
#include <terrace/examples/lm/models/family.h>

namespace terrace::lm {

extern const Family kGemma;
extern const Family kGemma2;
extern const Family kGemma3;
extern const Family kGpt2;
extern const Family kLlama;
extern const Family kMistral;
extern const Family kMixtral;
extern const Family kOlmo2;
extern const Family kPhi3;
extern const Family kQwen2;
extern const Family kQwen3;
extern const Family kQwen3Moe;
extern const Family kSmollm3;

std::span<const Family* const> families() {
  static constexpr std::array kAll{&kGemma, &kGemma2, &kGemma3, &kGpt2,  &kLlama,    &kMistral, &kMixtral,
                                   &kOlmo2, &kPhi3,   &kQwen2,  &kQwen3, &kQwen3Moe, &kSmollm3};
  return kAll;
}

}  // namespace terrace::lm
