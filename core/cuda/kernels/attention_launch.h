// Chooses the attention kernel for a call and launches it. A Launcher has
//   template <class Kernel, class Args> void run(const LaunchShape&, const Args&) const;
//   std::size_t shared_bytes() const;  // what a block of this GPU may have
// so that tests also run the choice, the grids and the sizes of shared memory.
//
// Errors: std::logic_error for a call that no kernel supports; the caller checks the shapes themselves.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include <terrace/core/cuda/kernels/attention_args.h>
#include <terrace/core/cuda/kernels/attention_backward.h>
#include <terrace/core/cuda/kernels/attention_decode.h>
#include <terrace/core/cuda/kernels/attention_forward.h>
#include <terrace/core/cuda/kernels/attention_plain.h>
#include <terrace/core/cuda/with_type.h>
#include <terrace/core/math/math.h>

namespace terrace::cuda {

// Copies take 16 bytes. The choice of the kernel must depend only on the shape, so another alignment is refused: no other
// kernel is used for it.
inline void demand_alignment(const TensorView& view) {
  if (reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0) {
    throw std::logic_error("attention: a tensor " + to_string(view.shape) + " is not aligned to 16 bytes");
  }
}

template <class T>
AttentionArgs<T> attention_args(const AttentionShape& s, TensorView out, TensorView lse, TensorView qkv) {
  return {.out = out.as<T>(),
          .lse = lse.as<Acc<T>>(),
          .qkv = qkv.as<T>(),
          .seq = static_cast<int>(s.seq),
          .heads = static_cast<int>(s.heads),
          .kv_heads = static_cast<int>(s.kv_heads),
          .head_dim = static_cast<int>(s.head_dim),
          .scores = scores_of<Acc<T>>(s.scores, s.head_dim)};
}

template <class T>
AttentionArgs<T> attention_grad_args(const AttentionShape& s, TensorView dqkv, TensorView dout, TensorView out, TensorView lse,
                                     TensorView qkv) {
  auto args = attention_args<T>(s, out, lse, qkv);
  args.dqkv = dqkv.as<T>();
  args.dout = dout.as<T>();
  return args;
}

// One block for every `rows` positions of every head (or group) of every sequence.
template <class Kernel, class Launcher, class Args>
void launch_rows(const Launcher& launcher, const AttentionShape& s, std::int64_t rows, std::int64_t heads,
                 std::size_t shared_bytes, const Args& args) {
  launcher.template run<Kernel>(
      {.blocks = {ceil_div(s.seq, rows), heads, s.batch}, .threads = Kernel::kThreads, .shared_bytes = shared_bytes}, args);
}

// Calls f.template operator()<D>() if tensor cores support the shape: some head dims, and scores without a cap. Otherwise
// returns false.
template <class F>
bool for_tensor_cores(const AttentionShape& s, F&& f) {
  if (s.scores.cap != 0) return false;
  switch (s.head_dim) {
    case 32: f.template operator()<32>(); return true;
    case 64: f.template operator()<64>(); return true;
    case 96: f.template operator()<96>(); return true;
    case 128: f.template operator()<128>(); return true;
    default: return false;
  }
}

// The kernels of a head dim, for multiprocessors with at least 164 KiB of shared memory: the largest tiles with two blocks
// each.
template <int kDim>
struct LargeTiles {
  using Forward = AttentionForward<kDim>;
  using Keys = AttentionKeyGrad<kDim>;
  using Queries = AttentionQueryGrad<kDim>;
};
// The same for multiprocessors of 100 KiB (compute capability 8.6, 8.9, 12.0), where a block takes 1 KiB more than it asks for.
// The bits are the same: each row or column adds the same terms in the same order.
template <int kDim>
struct SmallTiles {
  using Forward = AttentionForward<kDim, kDim == 32 ? 2 : 1>;
  using Keys = AttentionKeyGrad<kDim, kDim == 32 ? 64 : 32>;
  using Queries = AttentionQueryGrad<kDim, kDim <= 64 ? 64 : 32>;
  static constexpr std::size_t kHalf = (100 / 2 - 1) * 1024;
  static_assert(Forward::kSharedBytes <= kHalf && Keys::kSharedBytes <= kHalf && Queries::kSharedBytes <= kHalf);
};
// Calls f.template operator()<Tiles>() for the launcher's GPU.
template <int kDim, class Launcher, class F>
void with_tiles(const Launcher& launcher, F&& f) {
  constexpr std::size_t kBlockOfALargeOne = 163 * 1024;
  if (launcher.shared_bytes() < kBlockOfALargeOne) return f.template operator()<SmallTiles<kDim>>();
  f.template operator()<LargeTiles<kDim>>();
}

template <class Launcher>
void attention(const Launcher& launcher, const AttentionShape& s, TensorView out, TensorView lse, TensorView qkv) {
  with_type(qkv.dtype, [&]<class T>() {
    const auto args = attention_args<T>(s, out, lse, qkv);
    if constexpr (std::is_same_v<T, bf16>) {
      const bool served = for_tensor_cores(s, [&]<int kDim>() {
        demand_alignment(qkv), demand_alignment(out);
        with_tiles<kDim>(launcher, [&]<class Tiles>() {
          using Kernel = typename Tiles::Forward;
          launch_rows<Kernel>(launcher, s, Kernel::kQueries, s.heads, Kernel::kSharedBytes, args);
        });
      });
      if (served) return;
    }
    using Kernel = PlainAttention<T>;
    launch_rows<Kernel>(launcher, s, kPlainWarps, s.heads, Kernel::Rows::bytes_for(args.head_dim), args);
  });
}

template <class Launcher>
void attention_grad(const Launcher& launcher, const AttentionShape& s, TensorView dqkv, TensorView dout, TensorView out,
                    TensorView lse, TensorView qkv) {
  with_type(qkv.dtype, [&]<class T>() {
    const auto args = attention_grad_args<T>(s, dqkv, dout, out, lse, qkv);
    if constexpr (std::is_same_v<T, bf16>) {
      const bool served = for_tensor_cores(s, [&]<int kDim>() {
        for (const auto& view : {dqkv, dout, qkv}) demand_alignment(view);
        launch_rows<AttentionInner>(launcher, s, AttentionInner::kWarps, s.heads, 0, args);
        with_tiles<kDim>(launcher, [&]<class Tiles>() {
          using Keys = typename Tiles::Keys;
          using Queries = typename Tiles::Queries;
          launch_rows<Keys>(launcher, s, Keys::kKeys, s.kv_heads, Keys::kSharedBytes, args);
          launch_rows<Queries>(launcher, s, Queries::kQueries, s.heads, Queries::kSharedBytes, args);
        });
      });
      if (served) return;
    }
    using Keys = PlainKeyGrad<T>;
    using Queries = PlainQueryGrad<T>;
    launch_rows<Keys>(launcher, s, kPlainWarps, s.kv_heads, Keys::Rows::bytes_for(args.head_dim), args);
    launch_rows<Queries>(launcher, s, kPlainWarps, s.heads, Queries::Rows::bytes_for(args.head_dim), args);
  });
}

template <class Launcher>
void attention_decode(const Launcher& launcher, const AttentionShape& s, TensorView out, TensorView q, TensorView k_cache,
                      TensorView v_cache, std::int64_t length) {
  with_type(out.dtype, [&]<class T>() {
    using Kernel = AttentionDecode<T>;
    launcher.template run<Kernel>({.blocks = {s.heads, 1, 1},
                                   .threads = Kernel::kThreads,
                                   .shared_bytes = Kernel::bytes_for(static_cast<int>(s.head_dim))},
                                  DecodeArgs<T>{.out = out.as<T>(),
                                                .q = q.as<T>() + (q.elements() - columns_of(q)),
                                                .k_cache = k_cache.as<T>(),
                                                .v_cache = v_cache.as<T>(),
                                                .capacity = k_cache.shape[1],
                                                .length = static_cast<int>(length),
                                                .heads = static_cast<int>(s.heads),
                                                .kv_heads = static_cast<int>(s.kv_heads),
                                                .head_dim = static_cast<int>(s.head_dim),
                                                .scores = scores_of<Acc<T>>(s.scores, s.head_dim)});
  });
}

}  // namespace terrace::cuda
