// Checks that the warpgroup kernels of attention are correct on this GPU: fixed inputs, computed by them twice and by the
// warps' kernels once. Tests prove their products on a host that emulates them as the manual describes; this check runs on the
// real GPU.
//
// Owner:   borrows all of its place; the workspace is the stream's own at that point of its order, at most 4 MB of it are used.
// Threads: the stream's issuing thread. It waits for the stream.
// Errors:  CudaError for copies and for earlier work. A kernel that cannot be launched is a result of the check, not an error.
#pragma once

#include <functional>
#include <string>

#include <terrace/core/cuda/attention_choice.h>
#include <terrace/core/cuda/runtime.h>
#include <terrace/core/cuda/workspace.h>
#include <terrace/core/math.h>
#include <terrace/core/memory_resource.h>

namespace terrace::cuda {

struct CheckPlace {
  CudaRuntime& runtime;
  MemoryResource& host;  // that copies may come from
  CudaStreamHandle stream;
  Workspace workspace;
};
// Issue attention by the kernels of one kind.
struct AttentionIssuers {
  std::function<void(const AttentionShape&, TensorView out, TensorView lse, TensorView qkv)> forward;
  std::function<void(const AttentionShape&, TensorView dqkv, TensorView dout, TensorView out, TensorView lse, TensorView qkv)>
      backward;
};

// The error found; empty if both kernels agree within the bound and the second run gives the same bits.
std::string check_warpgroup_attention(const CheckPlace& place, const AttentionSubject& subject, const AttentionIssuers& warps,
                                      const AttentionIssuers& warpgroups);

// Issue it by the kernel that the choice says, which may ask for the check.
void issue_chosen(AttentionChoice& choice, const CheckPlace& place, const AttentionShape& shape, TensorView out, TensorView lse,
                  TensorView qkv, const AttentionIssuers& warps, const AttentionIssuers& warpgroups);
void issue_chosen_grad(AttentionChoice& choice, const CheckPlace& place, const AttentionShape& shape, TensorView dqkv,
                       TensorView dout, TensorView out, TensorView lse, TensorView qkv, const AttentionIssuers& warps,
                       const AttentionIssuers& warpgroups);

}  // namespace terrace::cuda
