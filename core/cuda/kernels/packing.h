// Numbers in fewer bytes, to be sent: blocks of 8 bits (core/math/block8.h), and bf16 in place of fp32. The same bits as on the
// CPU.
//
// A block of threads reads all its input before it writes, so its own input and output may overlap. That the input and output
// of other blocks do not overlap is ensured by separate launches (core/cuda/math/packing.h).
#pragma once

#include <terrace/core/cuda/arithmetic.h>
#include <terrace/core/cuda/kernels/block_sums.h>
#include <terrace/core/math/block8.h>

namespace terrace::cuda {

template <class T>
struct Block8Args {
  T* numbers;
  std::int32_t* packed;
  std::int64_t first;  // first block of the launch
};

template <class T>
struct PackBlock8 {
  static constexpr int kThreads = math::kBlock8Elements;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const Block8Args<T>& a) const {
    const std::int64_t block = a.first + lane.block_x();
    const float x = widen(a.numbers[block * math::kBlock8Elements + lane.thread()]);
    const auto magnitude = std::bit_cast<std::uint32_t>(x) & 0x7fffffffU;
    const auto s = math::block8_scale(block_max(lane, magnitude, shared_as<std::uint32_t>(lane)));
    std::int32_t* const to = a.packed + block * math::kBlock8Words;
    if (lane.thread() == 0) *to = std::bit_cast<std::int32_t>(s.scale);
    reinterpret_cast<std::int8_t*>(to + 1)[lane.thread()] = s.factor == 0 ? std::int8_t{0} : math::block8_code(x, s.factor);
  }
};

template <class T>
struct UnpackBlock8 {
  static constexpr int kThreads = math::kBlock8Elements;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const Block8Args<T>& a) const {
    const std::int64_t block = a.first + lane.block_x();
    const std::int32_t* const from = a.packed + block * math::kBlock8Words;
    const auto scale = std::bit_cast<float>(*from);
    const auto code = reinterpret_cast<const std::int8_t*>(from + 1)[lane.thread()];
    lane.sync();
    a.numbers[block * math::kBlock8Elements + lane.thread()] = narrow<T>(math::block8_value(code, scale));
  }
};

struct NarrowArgs {
  std::byte* numbers;
  std::int64_t elements, first;  // first: first tile of the launch
};
struct NarrowInPlace {
  static constexpr int kThreads = 256, kEach = 4, kTile = kThreads * kEach;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const NarrowArgs& a) const {
    const std::int64_t tile = (a.first + lane.block_x()) * kTile + lane.thread();
    float x[kEach] = {};
    TERRACE_UNROLL
    for (int k = 0; k < kEach; ++k) {
      if (tile + k * kThreads < a.elements) x[k] = reinterpret_cast<const float*>(a.numbers)[tile + k * kThreads];
    }
    lane.sync();
    TERRACE_UNROLL
    for (int k = 0; k < kEach; ++k) {
      if (tile + k * kThreads < a.elements) reinterpret_cast<bf16*>(a.numbers)[tile + k * kThreads] = narrow<bf16>(x[k]);
    }
  }
};

}  // namespace terrace::cuda
