#include <terrace/examples/terrace/plan/choose_batch.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/terrace/plan/choose_tiles.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/parallel/plan/plan.h>

namespace terrace::cli {
namespace {

constexpr std::int64_t kMostSequences = 64;      // in a step: more are rarely used to fine-tune
constexpr std::int64_t kLeastStepsOfEpoch = 32;  // fewer updates learn less from the same data
constexpr double kWorthSplitting = 0.95;         // a split must take less than this share of the time for a sequence
constexpr double kWorthDoubling = 0.9;           // the same, for each doubling: larger batches learn more slowly

std::int64_t sequences_of_step(const RunConfig& c) {
  return c.train.batch_size * c.train.grad_accumulation * c.parallel.ep * std::max<std::int64_t>(1, c.parallel.dp);
}

struct Batch {
  RunConfig config;
  bool fits = false;
  bool is_cramped = false;  // it fits only in tiles or with recomputation
  bool computes = false;    // a step is bound by computing, not by moving bytes
  double step_s = 0, compute_s = 0;
  [[nodiscard]] double seconds_a_sequence() const { return step_s / static_cast<double>(sequences_of_step(config)); }
};

Batch planned(RunConfig c, const MachineProfile& profile) {
  auto tiled = with_chosen_tiles(c);
  tiled.train.steps = RunConfig().train.steps;  // so that a short trial has the batch of the long run
  auto request = plan_request(tiled);
  request.advises = false;
  auto pool = make_pool(c);
  const auto p = plan(lm::make_model(model_config(tiled)), request, profile, &pool);
  return {.config = std::move(c),
          .fits = p.fits,
          .is_cramped = (p.binding == "compute" && p.choice.recompute > 0) || !tiles_in_words(tiled).empty(),
          .computes = p.fits && p.binding == "compute",
          .step_s = p.times.seconds,
          .compute_s = p.floor_s};
}

// Whether `other` takes less than `share` of the time that `than` takes for a sequence.
bool is_faster(const Batch& other, const Batch& than, double share) {
  return other.fits && (!than.fits || other.seconds_a_sequence() < share * than.seconds_a_sequence());
}

// Tries the same sequences in smaller micro-batches, which hold fewer activations at once.
Batch fastest_split(Batch best, const MachineProfile& profile) {
  for (auto smaller = best.config; smaller.train.batch_size % 2 == 0;) {
    smaller.train.batch_size /= 2;
    smaller.train.grad_accumulation *= 2;
    if (auto other = planned(smaller, profile); is_faster(other, best, kWorthSplitting)) best = std::move(other);
  }
  return best;
}

// Weights and states move once a step for all of its micro-batches. So there are more micro-batches, in powers of two, until
// computing should take as long as the step takes now.
Batch with_more_micro_batches(Batch best, const MachineProfile& profile, std::int64_t most_sequences) {
  while (!best.computes) {
    auto more = best.config;
    do more.train.grad_accumulation *= 2;
    while (static_cast<double>(more.train.grad_accumulation) * best.compute_s <
           static_cast<double>(best.config.train.grad_accumulation) * best.step_s);
    while (sequences_of_step(more) > most_sequences && more.train.grad_accumulation > best.config.train.grad_accumulation)
      more.train.grad_accumulation /= 2;
    if (more.train.grad_accumulation == best.config.train.grad_accumulation) break;
    auto other = planned(more, profile);
    const auto doublings = std::log2(static_cast<double>(more.train.grad_accumulation / best.config.train.grad_accumulation));
    if (!is_faster(other, best, std::pow(kWorthDoubling, doublings))) break;
    best = std::move(other);
  }
  return best;
}

// Schedules, grids and groups demand their own numbers of micro-batches.
bool can_choose(const RunConfig& c) {
  return c.found.chooses_batch && c.parallel.pp == 1 && c.parallel.tp_mode == TensorMode::line && c.plan.group == 0 &&
         c.parallel.sync_interval == 1;
}

}  // namespace

RunConfig with_chosen_batch(RunConfig c, const MachineProfile& profile,
                            const std::function<std::uint64_t()>& sequences_of_an_epoch) {
  if (!can_choose(c)) return c;
  if (!run_resumed(c).empty()) {
    if (const auto then = settings_of_resumed(c)) {
      c.train.batch_size = then->train.batch_size;
      c.train.grad_accumulation = then->train.grad_accumulation;
    }
    return c;
  }
  auto best = planned(c, profile);
  if (!best.fits || best.is_cramped) best = fastest_split(std::move(best), profile);
  if (best.fits && !best.computes) {
    const auto sequences = static_cast<std::int64_t>(sequences_of_an_epoch());
    best = with_more_micro_batches(std::move(best), profile,
                                   sequences == 0 ? kMostSequences : std::min(kMostSequences, sequences / kLeastStepsOfEpoch));
  }
  if (best.config.train.batch_size == c.train.batch_size && best.config.train.grad_accumulation == c.train.grad_accumulation)
    return c;
  const bool more = sequences_of_step(best.config) > sequences_of_step(c);
  const auto why = !more           ? "in the micro-batches that are fastest within the budgets"
                   : best.computes ? "so that a step computes for longer than it moves bytes"
                                   : "because a step moves bytes for longer than it computes";
  c = std::move(best.config);
  c.found.chosen.push_back(fmt::format("--batch-size {} --grad-accumulation {} ({} sequences a step, {})", c.train.batch_size,
                                       c.train.grad_accumulation, sequences_of_step(c), why));
  return c;
}

}  // namespace terrace::cli
