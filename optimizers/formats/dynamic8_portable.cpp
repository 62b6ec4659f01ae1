#include <stdexcept>

#include <terrace/optimizers/formats/dynamic8_loops.h>

namespace terrace::rules::dynamic8 {

// No processor that this file is compiled for runs AVX-512: runs() returns false.
void decode_avx512(Sign, float*, const std::uint8_t*, const float*, std::int64_t) {
  throw std::logic_error("AVX-512 on another processor");
}
void encode_avx512(Sign, std::uint8_t*, float*, const float*, std::int64_t) {
  throw std::logic_error("AVX-512 on another processor");
}
void decode_avx512vbmi(Sign, float*, const std::uint8_t*, const float*, std::int64_t) {
  throw std::logic_error("AVX-512 on another processor");
}
void encode_avx512vbmi(Sign, std::uint8_t*, float*, const float*, std::int64_t) {
  throw std::logic_error("AVX-512 on another processor");
}

}  // namespace terrace::rules::dynamic8
