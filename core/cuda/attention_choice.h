// Chooses the kernels for attention in bf16: those of warps, which every GPU supports, or those of warpgroups, which need
// compute capability 9.0 and are used only after they have passed their check on this GPU (attention_check.h). The two sum in
// different orders, so the choice affects the bits. It is therefore made once per head dim, separately for forward and
// backward, kept for the life of the device, and recorded among the algorithms of a run and of the machine profile, like those
// of matrix products.
//
// Owner:   the math.
// Threads: of() on streams' issuing threads; algorithms() from any.
// Errors:  Error if the forced kernel, or the one with which a run began, cannot be used here. Otherwise a failed check gives
//          one warning, and the kernel of warps is used.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include <terrace/core/base/log.h>
#include <terrace/core/cuda/recorded_algorithms.h>
#include <terrace/core/math/dtype.h>
#include <terrace/core/math/math.h>

namespace terrace::cuda {

enum class AttentionKernel { warps, warpgroups };

// The calls that the warpgroup kernel supports, if it is available. Other calls always use the kernel of warps.
inline bool warpgroups_serve(DType dtype, const AttentionShape& s) {
  return dtype == DType::bf16 && s.scores.cap == 0 && (s.head_dim == 64 || s.head_dim == 96 || s.head_dim == 128);
}

class AttentionChoice {
 public:
  struct Given {
    std::string no_warpgroups = {};  // why this build or this GPU cannot use them; empty: it can
    std::string forced = {};         // CudaOptions::attention_kernel
    std::function<std::string()> library = [] { return std::string(); };  // the machine profile counts if from it
    Log log = {};
  };
  AttentionChoice(Given given, KnownAlgorithms known);

  // `check` returns the error of the warpgroup kernel on this GPU, or an empty text. Called at most once for each subject.
  AttentionKernel of(const AttentionSubject& subject, const std::function<std::string()>& check);
  [[nodiscard]] std::string algorithms() const;  // one line each: "attention bf16 forward, head dim 64: warpgroups"

 private:
  [[nodiscard]] AttentionKernel choose(const AttentionSubject& subject, const std::function<std::string()>& check) const;

  const Given given_;
  const KnownAlgorithms known_;
  mutable std::mutex mutex_;
  std::map<AttentionSubject, AttentionKernel> chosen_;
};

}  // namespace terrace::cuda
