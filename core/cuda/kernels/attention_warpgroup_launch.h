// The launch of warpgroups' attention (attention_warpgroup.h). Launcher: as attention_launch.h has it.
#pragma once

#include <terrace/core/cuda/kernels/attention_launch.h>
#include <terrace/core/cuda/kernels/attention_warpgroup.h>

namespace terrace::cuda {

// What warpgroups_serve(), forward.
template <class Launcher>
void attention_of_warpgroups(const Launcher& launcher, const AttentionShape& s, TensorView out, TensorView lse,
                             TensorView qkv) {
  demand_alignment(qkv), demand_alignment(out);
  const auto run = [&]<int kDim>() {
    using Kernel = WarpgroupAttention<kDim>;
    launcher.template run<Kernel>({.blocks = {s.heads, ceil_div(s.seq, Kernel::kQueries), s.batch},
                                   .threads = Kernel::kThreads,
                                   .shared_bytes = Kernel::kSharedBytes},
                                  attention_args<bf16>(s, out, lse, qkv));
  };
  switch (s.head_dim) {
    case 64: return run.template operator()<64>();
    case 96: return run.template operator()<96>();
    case 128: return run.template operator()<128>();
    default: throw std::logic_error("attention: no warpgroup's kernel serves a head dim of " + std::to_string(s.head_dim));
  }
}

}  // namespace terrace::cuda
