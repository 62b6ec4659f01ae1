// The loops over 8-bit states that look up several codes at once: 16 by gathers, or 64 in registers.
//
// Internal to optimizers/. Threads: any.
#pragma once

#include <cstdint>

#include <terrace/optimizers/formats/dynamic8.h>

namespace terrace::rules::dynamic8 {

using DecodeBlocks = void(Sign sign, float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks);
using EncodeBlocks = void(Sign sign, std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks);

DecodeBlocks decode_avx512, decode_avx512vbmi;
EncodeBlocks encode_avx512, encode_avx512vbmi;

}  // namespace terrace::rules::dynamic8
