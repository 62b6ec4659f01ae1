// Launches the attention kernels of warpgroups (attention_warpgroup.h). Launcher: as in attention_launch.h.
#pragma once

#include <terrace/core/cuda/kernels/attention_launch.h>
#include <terrace/core/cuda/kernels/attention_warpgroup.h>
#include <terrace/core/cuda/kernels/attention_warpgroup_key_grad.h>
#include <terrace/core/cuda/kernels/attention_warpgroup_query_grad.h>

namespace terrace::cuda {

// Calls f.template operator()<D>() for the head dims of warpgroups_serve().
template <class F>
void for_warpgroups(const AttentionShape& s, F&& f) {
  switch (s.head_dim) {
    case 64: return f.template operator()<64>();
    case 96: return f.template operator()<96>();
    case 128: return f.template operator()<128>();
    default: throw std::logic_error("attention: no warpgroup's kernel serves a head dim of " + std::to_string(s.head_dim));
  }
}

// One block for every `rows` positions of every head (or group) of every sequence; blocks of the same positions run side by
// side.
template <class Kernel, class Launcher>
void launch_warpgroups(const Launcher& launcher, const AttentionShape& s, std::int64_t heads, std::int64_t rows,
                       const AttentionArgs<bf16>& args) {
  launcher.template run<Kernel>(
      {.blocks = {heads, ceil_div(s.seq, rows), s.batch}, .threads = Kernel::kThreads, .shared_bytes = Kernel::kSharedBytes},
      args);
}

// Forward, for the calls of warpgroups_serve().
template <class Launcher>
void attention_of_warpgroups(const Launcher& launcher, const AttentionShape& s, TensorView out, TensorView lse,
                             TensorView qkv) {
  demand_alignment(qkv), demand_alignment(out);
  for_warpgroups(s, [&]<int kDim>() {
    using Kernel = WarpgroupAttention<kDim>;
    launch_warpgroups<Kernel>(launcher, s, s.heads, Kernel::kQueries, attention_args<bf16>(s, out, lse, qkv));
  });
}

// The same for the backward.
template <class Launcher>
void attention_grad_of_warpgroups(const Launcher& launcher, const AttentionShape& s, TensorView dqkv, TensorView dout,
                                  TensorView out, TensorView lse, TensorView qkv) {
  for (const auto& view : {dqkv, dout, qkv}) demand_alignment(view);
  const auto args = attention_grad_args<bf16>(s, dqkv, dout, out, lse, qkv);
  for_warpgroups(s, [&]<int kDim>() {
    using Keys = WarpgroupKeyGrad<kDim>;
    using Queries = WarpgroupQueryGrad<kDim>;
    launch_rows<AttentionInner>(launcher, s, AttentionInner::kWarps, s.heads, 0, args);
    launch_warpgroups<Keys>(launcher, s, s.kv_heads, Keys::kKeys, args);
    launch_warpgroups<Queries>(launcher, s, s.heads, Queries::kQueries, args);
  });
}

}  // namespace terrace::cuda
