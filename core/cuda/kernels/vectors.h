// Moves elements between memory and registers, 16 bytes per load where the address allows it. A thread takes the same elements
// either way, so alignment changes no bit of any result.
//
// Threads: any.
#pragma once

#include <cstring>
#include <type_traits>

#include <terrace/core/cuda/kernels/functions.h>
#include <terrace/core/cuda/lane.h>

namespace terrace::cuda {

inline constexpr int kWordBytes = 16;  // the widest load
// Elements per load; for two types, those of the narrower one.
template <class T>
inline constexpr int kWidth = kWordBytes / static_cast<int>(sizeof(T));
template <class T, class U>
inline constexpr int kCommonWidth = kWidth<T> > kWidth<U> ? kWidth<T> : kWidth<U>;

struct alignas(kWordBytes) Word {
  std::uint32_t part[4];
};

// Loads from an address aligned to 16 bytes, whatever type of content.
TERRACE_KERNEL Word load_word(const void* p) {
#if defined(__CUDA_ARCH__)
  return *static_cast<const Word*>(p);
#else
  Word w;
  std::memcpy(&w, __builtin_assume_aligned(p, kWordBytes), sizeof w);
  return w;
#endif
}
TERRACE_KERNEL void store_word(void* p, const Word& w) {
#if defined(__CUDA_ARCH__)
  *static_cast<Word*>(p) = w;
#else
  std::memcpy(__builtin_assume_aligned(p, kWordBytes), &w, sizeof w);
#endif
}

template <class T>
TERRACE_KERNEL Acc<T> unpack(const Word& w, int i) {
  if constexpr (std::is_same_v<T, fp16>) {
    fp16 x;
    x.bits = static_cast<std::uint16_t>(i % 2 == 0 ? w.part[i / 2] & 0xffffU : w.part[i / 2] >> 16);
    return widen(x);
  } else if constexpr (sizeof(T) == 2) {
    return std::bit_cast<float>(i % 2 == 0 ? w.part[i / 2] << 16 : w.part[i / 2] & 0xffff0000U);
  } else if constexpr (sizeof(T) == 4) {
    return std::bit_cast<float>(w.part[i]);
  } else {
    return std::bit_cast<double>(static_cast<std::uint64_t>(w.part[2 * i + 1]) << 32 | w.part[2 * i]);
  }
}
template <class T>
TERRACE_KERNEL void pack(Word& w, int i, const Acc<T>* v) {  // part i of the word from v
  if constexpr (std::is_same_v<T, fp16>) {
    w.part[i] = fp16_pair(v[2 * i], v[2 * i + 1]);
  } else if constexpr (sizeof(T) == 2) {
    w.part[i] = bf16_pair(v[2 * i], v[2 * i + 1]);
  } else if constexpr (sizeof(T) == 4) {
    w.part[i] = std::bit_cast<std::uint32_t>(v[i]);
  } else {
    w.part[i] = static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(v[i / 2]) >> (i % 2 * 32));
  }
}

// v = the W elements at p; only `left` of them exist, the others become zero. `whole`: p is aligned to 16 bytes.
template <int W, class T>
TERRACE_KERNEL void load(Acc<T> (&v)[W], const T* p, std::int64_t left, bool whole) {
  static_assert(W % kWidth<T> == 0);
  if (whole && left >= W) {
    TERRACE_UNROLL
    for (int k = 0; k < W / kWidth<T>; ++k) {
      const Word w = load_word(p + k * kWidth<T>);
      TERRACE_UNROLL
      for (int i = 0; i < kWidth<T>; ++i) v[k * kWidth<T> + i] = unpack<T>(w, i);
    }
  } else {
    TERRACE_UNROLL
    for (int i = 0; i < W; ++i) v[i] = i < left ? widen(p[i]) : Acc<T>(0);
  }
}
template <int W, class T>
TERRACE_KERNEL void store(T* p, const Acc<T> (&v)[W], std::int64_t left, bool whole) {
  static_assert(W % kWidth<T> == 0);
  if (whole && left >= W) {
    TERRACE_UNROLL
    for (int k = 0; k < W / kWidth<T>; ++k) {
      Word w;
      TERRACE_UNROLL
      for (int i = 0; i < 4; ++i) pack<T>(w, i, v + k * kWidth<T>);
      store_word(p + k * kWidth<T>, w);
    }
  } else {
    TERRACE_UNROLL
    for (int i = 0; i < W; ++i) {
      if (i < left) p[i] = narrow<T>(v[i]);
    }
  }
}

// p = v, or p += v in the sum type of p: writes a finished result to a tensor of any dtype.
template <int W, class T>
TERRACE_KERNEL void deliver(T* p, const Acc<T> (&v)[W], std::int64_t left, bool whole, bool accumulate) {
  if (!accumulate) return store(p, v, left, whole);
  Acc<T> sum[W];
  load(sum, static_cast<const T*>(p), left, whole);
  TERRACE_UNROLL
  for (int i = 0; i < W; ++i) sum[i] += v[i];
  store(p, sum, left, whole);
}

// Calls f(i, left) for this thread's vectors of W elements in a row of n: every threads()-th vector.
template <int W, class Lane, class F>
TERRACE_KERNEL void for_vectors(Lane& lane, std::int64_t n, F&& f) {
  const std::int64_t stride = static_cast<std::int64_t>(lane.threads()) * W;
  for (std::int64_t i = static_cast<std::int64_t>(lane.thread()) * W; i < n; i += stride) f(i, n - i);
}

// The same for a flat range that is divided into blocks, with `vectors` vectors per thread.
template <int W, int vectors, class Lane, class F>
TERRACE_KERNEL void for_block_vectors(Lane& lane, std::int64_t n, F&& f) {
  const std::int64_t stride = static_cast<std::int64_t>(lane.threads()) * W;
  const std::int64_t begin = lane.block_x() * stride * vectors + static_cast<std::int64_t>(lane.thread()) * W;
  TERRACE_UNROLL
  for (int k = 0; k < vectors; ++k) {
    if (begin + k * stride < n) f(begin + k * stride, n - begin - k * stride);
  }
}

}  // namespace terrace::cuda
