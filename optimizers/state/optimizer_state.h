// An optimizer for tensors that stay where they are: weights and gradients are the caller's, and the optimizer's states (and
// master weights) live in three tiers of memory, so that they need not fit into any of them but the lowest.
//
//   OptimizerState adamw({.tiers = {.host_bytes = kGiB, .nvme_bytes = 64 * kGiB, .store = "/nvme/mine"}});
//   adamw.add("layer.0.weight", weight, gradient);               // a resumed tensor gets the weights of the last commit
//   for (auto n = adamw.committed_step(); n < steps; ++n) {
//     compute_gradients();
//     adamw.step({.rate = 3e-4, .clip = 1.0});
//     if (n % 100 == 99) adamw.commit(n + 1);
//   }
//
// A step goes through the states chunk by chunk: later chunks are read and earlier ones written while one is updated. Every
// second step goes backwards, so that it begins with the chunks that are still in memory. The bits are those of the optimizer
// in memory, for every budget and after every resume.
//
// A commit has the states, the masters and a copy of the weights, and is all or nothing. Without OptimizerStateOptions::
// tiers.store the states last as long as the process.
//
// Owner:   the caller owns weights, gradients and the device; they outlive this.
// Threads: one at a time.
// Errors:  Error(ErrorKind::refused) for unknown names, settings out of range, tensors that the store has in another form;
//          memory::DoesNotFit if a tier is too small; those of the store (chunk_store.h) and of moves. After a failed step or
//          commit, open the store again. std::logic_error for a name that is added twice.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include <terrace/core/device/device.h>
#include <terrace/core/math/tensor.h>
#include <terrace/offload/manager/chunk_manager.h>
#include <terrace/optimizers/optimizer.h>

namespace terrace {

struct OptimizerStateOptions {
  // Budgets, disk, store; `device`: where weights and gradients are. On a GPU the device tier takes part; on the CPU
  // (also without a device) it is not used. An optimizer of whole tensors (Muon, LAMB, Adafactor) needs scratch beside them.
  OffloadOptions tiers = {};
  std::string optimizer = "adamw";  // optimizers()
  OptimizerSettings settings = {};
  std::string recipe = "fp32";  // rules::recipes(): the formats of states and masters
  // Elements of a chunk, whole blocks of 4,096. 0: from the host's budget. A resumed state keeps those of its store, and its
  // seed.
  std::uint64_t chunk_elements = 0;
  std::uint64_t seed = 0;  // of stochastic rounding
};

// How one tensor differs from the others.
struct OptimizerTensor {
  bool hidden = true;          // for Muon: false for embeddings and heads
  double rate = 1, decay = 1;  // multiply the learning rate and the weight decay; 0: exempt
};

class OptimizerState {
 public:
  explicit OptimizerState(const OptimizerStateOptions& options);
  ~OptimizerState();

  // Both have the same shape. Weights: fp32, bf16, fp16 or fp64, as the recipe allows; gradients: fp32 or bf16 (fp64 for fp64).
  // If the last commit has the tensor, its weights are overwritten with those of the commit. The masters of narrow weights
  // begin as these weights, at the first step.
  void add(const std::string& name, TensorView weight, TensorView gradient, const OptimizerTensor& tensor = {});
  template <class W, class G>
  void add(const std::string& name, std::span<W> weight, std::span<G> gradient, const OptimizerTensor& tensor = {}) {
    add(name, view_of(weight), view_of(gradient), tensor);
  }

  struct Step {
    double rate = 0;            // the learning rate
    double clip = 0;            // greatest norm of all gradients together; 0: none, and the norm is not computed
    double gradient_scale = 1;  // multiplies every gradient, before the norm: unscaling, averaging
  };
  struct Result {
    std::optional<double> norm;  // of the scaled gradients, with clip
    bool applied = true;         // false: the norm is not finite, and nothing has changed
  };
  // Returns when weights and states are updated; writes to the disk may continue.
  Result step(const Step& step);
  // In the order of a stream of the device: waits only for the norm. Gradients must stay until the stream has passed.
  Result step(const Step& step, Stream& stream);
  [[nodiscard]] std::uint64_t updates() const;  // steps that were applied, also by earlier processes up to the commit

  // Makes weights, masters and states durable as of the last step, all or nothing. `n` and `payload` are the caller's.
  void commit(std::uint64_t n, const std::string& payload = {});
  [[nodiscard]] std::uint64_t committed_step() const;  // `n` of the last commit; 0: none
  [[nodiscard]] std::string payload() const;           // of the last commit

  [[nodiscard]] memory::Traffic traffic() const;  // bytes moved, counted at completion
  void finish_writes();                           // until all moves have ended, for measurements
  [[nodiscard]] PerTier<std::uint64_t> peak_bytes() const;

 private:
  template <class T>
  static TensorView view_of(std::span<T> numbers) {
    using Number = std::remove_const_t<T>;
    auto* const data = reinterpret_cast<std::byte*>(const_cast<Number*>(numbers.data()));
    return {data, dtype_of<Number>::value, {static_cast<std::int64_t>(numbers.size())}};
  }
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
