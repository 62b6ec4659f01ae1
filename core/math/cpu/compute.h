// What every CPU operation needs: the pool, the kernels, the storage types of dtypes, and scratch that a thread keeps.
//
// Owner:   CpuMath. Scratch belongs to its thread and is never freed (the first touch of memory is slow).
// Threads: any. Scratch of a slot is valid until the same thread asks for that slot again; a task of the pool must not
//          run another parallel_for while it uses its scratch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include <terrace/core/device/thread_pool.h>
#include <terrace/core/math/cpu/kernels.h>
#include <terrace/core/math/tensor.h>

namespace terrace::cpu {

struct Compute {
  ThreadPool& pool;
  const Kernels& kernels;
};

template <class T>
struct arithmetic {
  using type = float;
};
template <>
struct arithmetic<double> {
  using type = double;
};
template <class T>
using Acc = typename arithmetic<T>::type;

template <class T>
const KernelsOf<T, Acc<T>>& kernels_for(const Kernels& kernels) {
  if constexpr (std::is_same_v<T, float>) {
    return kernels.fp32;
  } else if constexpr (std::is_same_v<T, double>) {
    return kernels.fp64;
  } else if constexpr (std::is_same_v<T, Fp16>) {
    return kernels.fp16;
  } else {
    return kernels.bf16;
  }
}
template <class A>
const SoftmaxOf<A>& softmax_for(const Kernels& kernels) {
  if constexpr (std::is_same_v<A, float>) {
    return kernels.softmax_fp32;
  } else {
    return kernels.softmax_fp64;
  }
}

template <class T>
inline constexpr DType dtype_of_storage = std::is_same_v<T, float>    ? DType::fp32
                                          : std::is_same_v<T, double> ? DType::fp64
                                          : std::is_same_v<T, Fp16>   ? DType::fp16
                                                                      : DType::bf16;

// Storage pointer: bf16 and fp16 are seen as their bits.
template <class T>
T* raw(const TensorView& view) {
  return reinterpret_cast<T*>(view.data);
}
// Calls f.template operator()<T>() with the storage type of a compute dtype.
template <class F>
void for_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::fp32: return f.template operator()<float>();
    case DType::bf16: return f.template operator()<std::uint16_t>();
    case DType::fp64: return f.template operator()<double>();
    case DType::fp16: return f.template operator()<Fp16>();
    case DType::i32:
    case DType::e4m3:
    case DType::e5m2: break;
  }
  throw std::logic_error("math: this is not a compute dtype");
}

inline ConvertKernel convert_kernel(const Kernels& kernels, DType to, DType from, bool accumulate) {
  return kernels.convert[static_cast<int>(to)][static_cast<int>(from)][accumulate ? 1 : 0];
}

// Runs f as tasks of the pool over [0, count), in blocks of `block`; a single block stays on the calling thread.
template <class F>
void blocks(ThreadPool& pool, std::int64_t count, std::int64_t block, F&& f) {
  const std::int64_t tasks = (count + block - 1) / block;
  if (tasks <= 1) {
    if (count > 0) f(std::int64_t{0}, count);
    return;
  }
  pool.parallel_for(tasks, [&](std::int64_t i) { f(i * block, std::min(count, (i + 1) * block)); });
}
// How many rows a task takes: it should move about 64 KiB, whatever the row length.
inline std::int64_t rows_a_task(std::int64_t row_elements) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, row_elements));
}

enum class Scratch : int {
  tile,
  panel,
  scores,
  probabilities,
  operand_a,
  operand_b,
  operand_c,
  operand_d,
  gradients,
  capped,
  operation,
  count
};
std::byte* scratch_bytes(Scratch slot, std::size_t bytes);
template <class T>
T* scratch(Scratch slot, std::int64_t elements) {
  return reinterpret_cast<T*>(scratch_bytes(slot, static_cast<std::size_t>(elements) * sizeof(T)));
}

}  // namespace terrace::cpu
