// fold() (parallel/comm/fold.h) on a GPU: one kernel, which gives the same bits.
//
// Contributions are where a group of messages has put them: rank r's at slots + r · stride, and this rank's own elsewhere. So a
// thread adds all contributions to its elements in rank order; with `onto` it first reads the destination.
#pragma once

#include <bit>
#include <stdexcept>
#include <type_traits>

#include <terrace/core/cuda/kernels/vectors.h>
#include <terrace/core/cuda/math/geometry.h>
#include <terrace/core/cuda/with_type.h>
#include <terrace/core/math/block8.h>
#include <terrace/parallel/comm/fold.h>

namespace terrace::cuda {

// The memory that one fold reads and writes, without types.
struct FoldWork {
  comm::Reduction reduction = {};
  std::byte* to = nullptr;           // may be `own`
  const std::byte* own = nullptr;    // rank `rank`'s contribution
  const std::byte* slots = nullptr;  // the other ranks' contributions
  std::size_t stride_bytes = 0;
  int ranks = 1, rank = 0;
  std::int64_t count = 0;
};

template <class To, class From>
struct FoldArgs {
  To* to;
  const From *own, *slots;
  std::int64_t stride, count;
  int ranks, rank;
  bool onto, whole;
};

template <class To, class From, bool max>
struct FoldRanks {
  static constexpr int kThreads = 256, kVectors = 1;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const FoldArgs<To, From>& a) const {
    constexpr int W = kCommonWidth<To, From>;
    for_block_vectors<W, kVectors>(lane, a.count, [&](std::int64_t i, std::int64_t left) {
      Acc<To> sum[W] = {};
      if (a.onto) load(sum, static_cast<const To*>(a.to) + i, left, a.whole);
      for (int r = 0; r < a.ranks; ++r) {
        Acc<From> x[W];
        load(x, (r == a.rank ? a.own : a.slots + r * a.stride) + i, left, a.whole);
        const bool first = r == 0 && !a.onto;
        TERRACE_UNROLL
        for (int k = 0; k < W; ++k) sum[k] = first ? x[k] : folded(sum[k], x[k]);
      }
      store(a.to + i, sum, left, a.whole);
    });
  }

 private:
  template <class A>
  TERRACE_HD static A folded(A a, A b) {
    if constexpr (!max) {
      return a + b;
    } else {
      return a != a || a > b ? a : b;  // a NaN stays
    }
  }
};

// The sum of packed blocks (core/math/block8.h): a thread block unpacks the packed blocks of all ranks, one after the other.
struct FoldBlocksArgs {
  float* to;
  const std::byte *own, *slots;
  std::int64_t stride_bytes;
  int ranks, rank;
  bool onto;
};
struct FoldBlocks {
  static constexpr int kEach = 4, kThreads = math::kBlock8Elements / kEach;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const FoldBlocksArgs& a) const {
    const std::int64_t block = lane.block_x();
    float* const to = a.to + block * math::kBlock8Elements + lane.thread() * kEach;
    float sum[kEach] = {};
    if (a.onto) {
      TERRACE_UNROLL
      for (int k = 0; k < kEach; ++k) sum[k] = to[k];
    }
    for (int r = 0; r < a.ranks; ++r) {
      const std::byte* const from =
          (r == a.rank ? a.own : a.slots + r * a.stride_bytes) + block * std::int64_t{math::kBlock8Bytes};
      const auto* const words = reinterpret_cast<const std::uint32_t*>(from);
      const auto scale = std::bit_cast<float>(words[0]);
      const std::uint32_t codes = words[1 + lane.thread()];
      const bool first = r == 0 && !a.onto;
      TERRACE_UNROLL
      for (int k = 0; k < kEach; ++k) {
        const float x = static_cast<float>(static_cast<std::int8_t>(codes >> 8 * k)) * scale;
        sum[k] = first ? x : sum[k] + x;
      }
    }
    TERRACE_UNROLL
    for (int k = 0; k < kEach; ++k) to[k] = sum[k];
  }
};

template <class Launcher>
void fold_blocks(const Launcher& launcher, const FoldWork& w) {
  launcher.template run<FoldBlocks>({.blocks = {w.count, 1, 1}, .threads = FoldBlocks::kThreads},
                                    FoldBlocksArgs{.to = reinterpret_cast<float*>(w.to),
                                                   .own = w.own,
                                                   .slots = w.slots,
                                                   .stride_bytes = static_cast<std::int64_t>(w.stride_bytes),
                                                   .ranks = w.ranks,
                                                   .rank = w.rank,
                                                   .onto = w.reduction.onto});
}

template <class Launcher>
void fold_ranks(const Launcher& launcher, const FoldWork& w) {
  if (w.reduction.blocks) return fold_blocks(launcher, w);
  const auto run = [&]<class To, class From>() {
    const auto whole = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % kWordBytes == 0; };
    const FoldArgs<To, From> args{.to = reinterpret_cast<To*>(w.to),
                                  .own = reinterpret_cast<const From*>(w.own),
                                  .slots = reinterpret_cast<const From*>(w.slots),
                                  .stride = static_cast<std::int64_t>(w.stride_bytes / sizeof(From)),
                                  .count = w.count,
                                  .ranks = w.ranks,
                                  .rank = w.rank,
                                  .onto = w.reduction.onto,
                                  .whole = whole(w.to) && whole(w.own) && whole(w.slots) && w.stride_bytes % kWordBytes == 0};
    const auto launch = [&]<class Kernel>() {
      launcher.template run<Kernel>(flat_shape<Kernel>(w.count, kCommonWidth<To, From>), args);
    };
    if (w.reduction.fold == comm::Fold::max) {
      launch.template operator()<FoldRanks<To, From, true>>();
    } else {
      launch.template operator()<FoldRanks<To, From, false>>();
    }
  };
  with_type(w.reduction.from, [&]<class From>() {
    if (w.reduction.to == w.reduction.from) return run.template operator()<From, From>();
    if constexpr (sizeof(From) == 2) {
      if (w.reduction.to == DType::fp32) return run.template operator()<float, From>();
    }
    if constexpr (std::is_same_v<From, float>) {
      if (w.reduction.to == DType::bf16) return run.template operator()<bf16, From>();
    }
    throw std::logic_error("no reduction " + to_string(w.reduction));
  });
}

}  // namespace terrace::cuda
