// Which kernel makes attention forward in bf16: that of warps, which every GPU has, or that of warpgroups, which compute
// capability 9.0 has and which counts only after it has proven itself on the very GPU (attention_check.h). They sum in another
// order, so the choice is part of the bits: made once for a head dim, kept for the life of the device, and recorded among the
// algorithms of a run and of the machine's profile, as those of matrix products are.
//
// Owner:   the math.
// Threads: of() on streams' issuing threads; algorithms() from any.
// Errors:  Error for what is forced, or what a run has begun with, and is not possible here. A check that fails is else one
//          warning, and warps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include <terrace/core/cuda/recorded_algorithms.h>
#include <terrace/core/dtype.h>

namespace terrace::cuda {

enum class AttentionKernel { warps, warpgroups };

// Which calls the warpgroups' kernel serves, where it is there. Others are no choice.
inline bool warpgroups_serve(DType dtype, std::int64_t head_dim) {
  return dtype == DType::bf16 && (head_dim == 64 || head_dim == 96 || head_dim == 128);
}

class AttentionChoice {
 public:
  struct Given {
    std::string no_warpgroups = {};  // why this build or this GPU has none; empty: there are
    std::string forced = {};         // warps | warpgroups | empty: chosen. The value of TERRACE_ATTENTION_KERNEL
    std::function<std::string()> library = [] { return std::string(); };  // whose choices in the machine's profile count
  };
  AttentionChoice(Given given, KnownAlgorithms known);

  // `check`: what is wrong with the warpgroups' kernel on this GPU; empty: nothing. Called at most once for a head dim.
  AttentionKernel of(std::int64_t head_dim, const std::function<std::string()>& check);
  [[nodiscard]] std::string algorithms() const;  // a line each: "attention bf16 forward, head dim 64: warpgroups"

 private:
  [[nodiscard]] AttentionKernel choose(std::int64_t head_dim, const std::function<std::string()>& check) const;

  const Given given_;
  const KnownAlgorithms known_;
  mutable std::mutex mutex_;
  std::map<std::int64_t, AttentionKernel> chosen_;
};

}  // namespace terrace::cuda
