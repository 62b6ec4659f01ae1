// Conversions to and from blocks of 8 bits, and to bf16, which may be in place.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <vector>

#include <terrace/core/cuda/kernels/packing.h>
#include <terrace/core/cuda/math/geometry.h>

namespace terrace::cuda {

struct Wave {
  std::int64_t begin, end;
};
// `count` pieces become narrower in place, from the first on. The pieces of one wave write only to places that this wave or
// earlier ones have read, so a wave may run all at once when the one before has ended. Waves grow by the factor wide ÷ narrow.
inline std::vector<Wave> narrowing_waves(std::int64_t count, std::int64_t wide_bytes, std::int64_t narrow_bytes) {
  std::vector<Wave> waves;
  for (std::int64_t begin = 0; begin < count; begin = waves.back().end)
    waves.push_back({begin, std::min(count, std::max(begin + 1, begin * wide_bytes / narrow_bytes))});
  return waves;
}
// For packed pieces at the end of the buffer in which they become wider: the same waves in reverse order, counted from the last
// piece.
inline std::vector<Wave> widening_waves(std::int64_t count, std::int64_t wide_bytes, std::int64_t narrow_bytes) {
  auto waves = narrowing_waves(count, wide_bytes, narrow_bytes);
  std::ranges::reverse(waves);
  for (auto& wave : waves) wave = {count - wave.end, count - wave.begin};
  return waves;
}

template <class F>
void with_block_type(DType dtype, F&& f) {
  if (dtype == DType::bf16) return f.template operator()<bf16>();
  if (dtype == DType::fp32) return f.template operator()<float>();
  throw std::logic_error("blocks of 8 bits support fp32 and bf16 only");
}

namespace ops {

template <class Launcher>
struct Packing {
  static void pack_block8(const Launcher&, TensorView packed, TensorView x);
  static void unpack_block8(const Launcher&, TensorView y, TensorView packed);
  static void narrow_in_place(const Launcher&, TensorView x);
};

template <template <class> class Kernel, class Launcher>
void run_blocks(const Launcher& launcher, const std::vector<Wave>& waves, TensorView numbers, TensorView packed) {
  with_block_type(numbers.dtype, [&]<class T>() {
    for (const auto& wave : waves)
      launcher.template run<Kernel<T>>(
          {.blocks = {wave.end - wave.begin, 1, 1}, .threads = Kernel<T>::kThreads, .shared_bytes = kRoomBytes<float>},
          Block8Args<T>{data<T>(numbers), data<std::int32_t>(packed), wave.begin});
  });
}

template <class Launcher>
void Packing<Launcher>::pack_block8(const Launcher& launcher, TensorView packed, TensorView x) {
  const std::int64_t blocks = x.elements() / math::kBlock8Elements;
  if (blocks == 0) return;
  const auto wide = static_cast<std::int64_t>(size_of(x.dtype)) * math::kBlock8Elements;
  const bool in_place = packed.data == x.data;
  run_blocks<PackBlock8>(
      launcher, in_place ? narrowing_waves(blocks, wide, math::kBlock8Bytes) : std::vector<Wave>{{0, blocks}}, x, packed);
}

template <class Launcher>
void Packing<Launcher>::unpack_block8(const Launcher& launcher, TensorView y, TensorView packed) {
  const std::int64_t blocks = y.elements() / math::kBlock8Elements;
  if (blocks == 0) return;
  const auto wide = static_cast<std::int64_t>(size_of(y.dtype)) * math::kBlock8Elements;
  const bool in_place = packed.data + packed.bytes() == y.data + y.bytes();
  run_blocks<UnpackBlock8>(
      launcher, in_place ? widening_waves(blocks, wide, math::kBlock8Bytes) : std::vector<Wave>{{0, blocks}}, y, packed);
}

template <class Launcher>
void Packing<Launcher>::narrow_in_place(const Launcher& launcher, TensorView x) {
  using Kernel = NarrowInPlace;
  for (const auto& wave :
       narrowing_waves(ceil_div(x.elements(), std::int64_t{Kernel::kTile}), Kernel::kTile * std::int64_t{sizeof(float)},
                       Kernel::kTile * std::int64_t{sizeof(bf16)}))
    launcher.template run<Kernel>({.blocks = {wave.end - wave.begin, 1, 1}, .threads = Kernel::kThreads},
                                  NarrowArgs{x.data, x.elements(), wave.begin});
}

}  // namespace ops
}  // namespace terrace::cuda
