// Trains with an engine, step by step: assigns the sequences to the ranks, scales the loss, clips the gradients, decides
// whether a step's update is applied, evaluates over all ranks, and commits what a resumed run needs. The loop is in the
// caller.
//
//   Trainer trainer(engine, {.read = …, .rate = …, .greatest_norm = 1.0});
//   while (trainer.done() < steps) {
//     trainer.read();
//     for (const auto& step : trainer.step()) …
//   }
//   trainer.commit();
//
// Owner:   the caller; borrows engine and ranks. If the engine resumed, the trainer continues after its commit.
// Threads: the rank thread. All ranks make the same calls.
// Errors:  those of the engine; Diverged; Error(ErrorKind::refused) if the plan updates in the backward and the options need a
//          norm before the update (PlanRequest::updates_before_use); Error(ErrorKind::corrupt) for a commit of another program.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/optimizers/loss_scale.h>
#include <terrace/parallel/comm/agree.h>
#include <terrace/parallel/run/engine.h>
#include <terrace/parallel/train/batch.h>
#include <terrace/parallel/train/deal.h>
#include <terrace/parallel/train/non_finite.h>
#include <terrace/parallel/train/progress.h>

namespace terrace {

// The loss or the gradient norm is not finite. The step is not committed, and not applied unless the plan updates in the
// backward.
struct Diverged : Error {
  Diverged(std::uint64_t step, double loss, double norm, double scale);
  std::uint64_t step;
  double loss, norm;  // the sign of a NaN is removed: it means nothing
  double loss_scale;
};

class Trainer {
 public:
  // Gradients are clipped to this global norm; 0: they are not. It has no default, so Options without it do not compile: a
  // forgotten setting would switch clipping off in silence.
  struct GreatestNorm {
    GreatestNorm(double norm) : value(norm) {}  // NOLINT: written as a number
    operator double() const { return value; }   // NOLINT
    double value;
  };
  struct Options {
    // Writes tokens and targets of these sequences (numbered as in deal.h), row by row; a target of −1 does not count. Returns
    // false if they cannot be read; then the caller stops, on all ranks.
    BatchReader::Read read;
    std::function<double(std::uint64_t step)> rate;  // learning rate of a step, which counts from 1
    GreatestNorm greatest_norm;
    NonFinite non_finite = NonFinite::stop;
    LossScale loss_scale = {};
    std::uint64_t seed = 0;      // of stochastic rounding
    Agreement* ranks = nullptr;  // of all ranks; null: one rank
    // Writes a number for each position of the sequences that `read` read: adjacent positions of a sequence with the same
    // number form a document (documents.h). A document's last position gets no target. Padding is a document without targets.
    // Losses are then means over the targets of all ranks. Null: each sequence is one document, and losses are means over all
    // positions.
    BatchReader::Number documents = {};
  };
  Trainer(Engine& engine, Options options);
  // True if the options need a step's norm before its update; if so, PlanRequest::updates_before_use must be true.
  static bool needs_norm(double greatest_norm, NonFinite non_finite, const LossScale& scale,
                         std::span<const ParamGroup> groups);

  // Reads this rank's sequences of the next step. False: they cannot be read.
  bool read();
  // Runs the step that was read, and then the average of local SGD if one is due. An asynchronous pipeline computes several
  // steps together.
  struct Step {
    std::uint64_t number = 0;
    double learning_rate = 0;
    running::StepResult result;  // norms without the loss scale; of several steps each has its own loss and norm, and an even
                                 // share of times and bytes
    bool applied = true;         // false: it was skipped, or had no targets (local SGD: on this rank); nothing has changed
    [[nodiscard]] double mean_loss() const {
      return result.loss_sum / static_cast<double>(std::max(std::uint64_t{1}, targets));
    }
    std::uint64_t targets = 0;  // of all ranks; the loss is their mean; without documents: all positions; 0: no loss
    double commit_s = 0;        // how long step() waited, after computing, for a commit that was under way
  };
  std::vector<Step> step();
  // The losses of the first `micro_batches` held-out micro-batches, the same ones on any number of ranks. Empty if a rank
  // cannot read its part.
  struct HeldOut {
    double loss_sum = 0, targets = 0;
    [[nodiscard]] double mean() const { return loss_sum / std::max(1.0, targets); }
  };
  std::optional<std::vector<HeldOut>> evaluate_each(std::uint64_t micro_batches);
  std::optional<double> evaluate(std::uint64_t micro_batches);  // the mean loss of a target over all of them
  // Begins a commit of the steps done. It is written while the next step() computes; that step() finishes it (engine.h).
  void begin_commit();
  void finish_commit() { engine_.finish_commit(); }
  void commit();  // both

  [[nodiscard]] std::uint64_t done() const { return done_; }               // steps
  [[nodiscard]] std::uint64_t together() const { return deal_.together; }  // steps that step() computes
  [[nodiscard]] std::uint64_t tokens_a_step() const;                       // of all ranks
  [[nodiscard]] std::uint64_t skipped() const { return skipped_; }         // steps without an update, since the run began
  [[nodiscard]] const LossScale& loss_scale() const { return options_.loss_scale; }
  // The peak of the run up to the commit from which it resumed.
  [[nodiscard]] const PerTier<std::uint64_t>& committed_peak() const { return committed_peak_; }

 private:
  // Counts for one update: over this data rank's micro-batches, and over those of all ranks.
  struct Counted {
    double own = 0, all = 0;
  };
  [[nodiscard]] std::vector<Counted> count(const std::vector<double>& of_micro_batches) const;
  [[nodiscard]] std::vector<double> of_data_ranks(double mine) const;
  [[nodiscard]] UpdateStep update_of(std::uint64_t step) const;
  [[nodiscard]] bool overflows(const running::StepResult& result) const;
  void demand_finite(const running::StepResult& result) const;
  bool settle(UpdateStep update, const running::StepResult& result);

  Engine& engine_;
  Options options_;
  const training::Deal deal_;
  const BatchReader reader_;
  Batch batch_;
  std::uint64_t done_ = 0, skipped_ = 0;
  PerTier<std::uint64_t> committed_peak_ = {};
};

}  // namespace terrace
