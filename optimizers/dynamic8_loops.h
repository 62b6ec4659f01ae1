// The loops of 8-bit states that look up sixteen codes at once.
//
// Internal to optimizers/. Threads: any.
#pragma once

#include <cstdint>

#include <terrace/optimizers/dynamic8.h>

namespace terrace::dynamic8 {

using DecodeBlocks = void(float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks);
using EncodeBlocks = void(std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks);

void decode_avx512(Sign sign, float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks);
void encode_avx512(Sign sign, std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks);

}  // namespace terrace::dynamic8
