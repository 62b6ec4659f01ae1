// Checks that the warpgroup kernel of attention is correct on this GPU: fixed inputs, computed by it twice and by the warps'
// kernel once. Tests prove its products on a host that emulates them as the manual describes; this check runs on the real GPU.
//
// Owner:   borrows all of its place; the workspace is the stream's own at that point of its order, at most 2 MB of it are used.
// Threads: the stream's issuing thread. It waits for the stream.
// Errors:  CudaError for copies and for earlier work. A kernel that cannot be launched is a result of the check, not an error.
#pragma once

#include <cstdint>
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
// Issues the forward of attention by one of the kernels.
using IssueAttention = std::function<void(const AttentionShape&, TensorView out, TensorView lse, TensorView qkv)>;

// The error found; empty if both kernels agree within the bound and the second run gives the same bits.
std::string check_warpgroup_attention(const CheckPlace& place, std::int64_t head_dim, const IssueAttention& warps,
                                      const IssueAttention& warpgroups);

// Issues it by the kernel that the choice says, which may ask for the check.
void issue_chosen(AttentionChoice& choice, const CheckPlace& place, const AttentionShape& shape, TensorView out, TensorView lse,
                  TensorView qkv, const IssueAttention& warps, const IssueAttention& warpgroups);

}  // namespace terrace::cuda
