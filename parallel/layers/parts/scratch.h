// The scratch memory of one call, cut into tensors.
//
// Owner:   ScratchArena borrows the call's scratch. Threads: values. Errors: std::logic_error when scratch is exceeded.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>

#include <terrace/core/base/units.h>
#include <terrace/core/math/views.h>

namespace terrace::layers {

using math::part, math::reshaped, math::row_slice;

// The stride with which rows begin at multiples of 128 bytes, whatever their length: a library's fast kernels load 16 aligned
// bytes at a time, and the second-level cache of a GPU has lines of 128.
inline std::int64_t aligned_stride(DType dtype, std::int64_t columns) {
  constexpr std::int64_t kLineBytes = 128;
  return static_cast<std::int64_t>(round_up(static_cast<std::uint64_t>(columns), kLineBytes / size_of(dtype)));
}

// Gives out 64-byte aligned tensors, one after the other. Without memory it only measures: a layer places its tensors with the
// same function when it computes and when it reports how much scratch it needs.
class ScratchArena {
 public:
  static constexpr std::uint64_t kAlignBytes = 64;

  ScratchArena() = default;  // only measures
  explicit ScratchArena(const TensorView& scratch)
      : base_(scratch.data), capacity_bytes_(scratch.empty() ? 0 : scratch.bytes()), measures_(false) {}

  TensorView take(DType dtype, Shape shape) {
    const std::uint64_t bytes = round_up(static_cast<std::uint64_t>(shape.elements()) * size_of(dtype), kAlignBytes);
    if (!measures_ && used_bytes_ + bytes > capacity_bytes_)
      throw std::logic_error("scratch of " + std::to_string(capacity_bytes_) + " bytes is too small for " +
                             std::to_string(used_bytes_ + bytes));
    const TensorView view{measures_ ? nullptr : base_ + used_bytes_, dtype, shape};
    used_bytes_ += bytes;
    return view;
  }
  TensorView take(const TensorSpec& tensor) { return take(tensor.dtype, tensor.shape); }
  [[nodiscard]] std::uint64_t peak_bytes() const { return used_bytes_; }

 private:
  std::byte* base_ = nullptr;
  std::uint64_t capacity_bytes_ = 0, used_bytes_ = 0;
  bool measures_ = true;
};

// The scratch that `place` takes from an arena.
template <class Place>
std::uint64_t measured(Place&& place) {
  ScratchArena arena;
  static_cast<void>(place(arena));
  return arena.peak_bytes();
}

// The scratch of tensors that are taken one after the other.
inline std::uint64_t scratch_of(std::initializer_list<TensorSpec> tensors) {
  ScratchArena arena;
  for (const auto& tensor : tensors) arena.take(tensor);
  return arena.peak_bytes();
}

}  // namespace terrace::layers
