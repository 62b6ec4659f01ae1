// Checks that the warpgroup kernels of attention are correct on this GPU: computes fixed inputs twice by them and once by the
// kernels of warps. Tests prove the products of these kernels on a host that emulates them according to the manual; this check
// runs on the real GPU.
//
// Owner:   borrows everything in CheckPlace. The workspace is that of the stream; the check uses at most 4 MB of it, in stream
//          order.
// Threads: the stream's issuing thread. It waits for the stream.
// Errors:  CudaError for copies and for earlier work. A kernel that cannot be launched is a result of the check, not an error.
#pragma once

#include <functional>
#include <string>

#include <terrace/core/cuda/attention_choice.h>
#include <terrace/core/cuda/runtime.h>
#include <terrace/core/cuda/workspace.h>
#include <terrace/core/device/memory_resource.h>
#include <terrace/core/math/math.h>

namespace terrace::cuda {

struct CheckPlace {
  CudaRuntime& runtime;
  MemoryResource& host;  // memory that copies may come from
  CudaStreamHandle stream;
  Workspace workspace;
};
// Functions that issue attention by one kind of kernel.
struct AttentionIssuers {
  std::function<void(const AttentionShape&, TensorView out, TensorView lse, TensorView qkv)> forward;
  std::function<void(const AttentionShape&, TensorView dqkv, TensorView dout, TensorView out, TensorView lse, TensorView qkv)>
      backward;
};

// The error found; empty if both kernels agree within the bound and the second run gives the same bits.
std::string check_warpgroup_attention(const CheckPlace& place, const AttentionSubject& subject, const AttentionIssuers& warps,
                                      const AttentionIssuers& warpgroups);

// Issues attention by the kernel that the choice returns; the choice may first run the check.
void issue_chosen(AttentionChoice& choice, const CheckPlace& place, const AttentionShape& shape, TensorView out, TensorView lse,
                  TensorView qkv, const AttentionIssuers& warps, const AttentionIssuers& warpgroups);
void issue_chosen_grad(AttentionChoice& choice, const CheckPlace& place, const AttentionShape& shape, TensorView dqkv,
                       TensorView dout, TensorView out, TensorView lse, TensorView qkv, const AttentionIssuers& warps,
                       const AttentionIssuers& warpgroups);

}  // namespace terrace::cuda
