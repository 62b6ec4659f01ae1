#include <terrace/parallel/train/trainer.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <terrace/optimizers/schedule.h>

namespace terrace {
namespace {

double unsigned_nan(double value) { return std::isnan(value) ? std::abs(value) : value; }

bool finite(const running::StepResult& r) {
  return std::isfinite(r.loss_sum) && std::isfinite(r.gradient_norm) &&
         std::ranges::all_of(r.gradient_norms, [](double norm) { return std::isfinite(norm); });
}

// The result of step u of those that were computed together.
running::StepResult part_of(const running::StepResult& r, std::size_t u) {
  auto part = r;
  const auto parts = r.loss_sums.size();
  if (parts <= 1) return part;
  part.loss_sum = r.loss_sums[u];
  part.gradient_norm = r.gradient_norms[u];
  part.seconds /= static_cast<double>(parts);
  for (auto& [cause, seconds] : part.stall_s) seconds /= static_cast<double>(parts);
  for (auto* const seconds : {&part.communicated.seconds, &part.communicated.hidden_s}) *seconds /= static_cast<double>(parts);
  auto& m = part.moved;
  for (auto* const all : {&m.upload, &m.download, &m.read, &m.write, &m.uploads, &m.downloads, &m.reads, &m.writes})
    *all = *all * (u + 1) / parts - *all * u / parts;
  return part;
}

}  // namespace

Diverged::Diverged(std::uint64_t at, double its_loss, double its_norm, double scale)
    : Error(
          fmt::format("training diverged at step {}: loss {}, gradient norm {}\n  lower the learning rate, raise the warm-up, "
                      "or clip the gradients",
                      at, unsigned_nan(its_loss), unsigned_nan(its_norm))),
      step(at),
      loss(unsigned_nan(its_loss)),
      norm(unsigned_nan(its_norm)),
      loss_scale(scale) {}

bool Trainer::needs_norm(double greatest_norm, NonFinite non_finite, const LossScale& scale,
                         std::span<const ParamGroup> groups) {
  return greatest_norm > 0 || non_finite == NonFinite::skip || scale.dynamic() || any_clips(groups);
}

Trainer::Trainer(Engine& engine, Options options)
    : engine_(engine),
      options_(std::move(options)),
      deal_(training::Deal::of(engine.map())),
      reader_(options_.read, options_.documents, engine.map().model().place.context(),
              static_cast<std::size_t>(engine.map().options().shape.batch.seq), deal_.rows) {
  const auto& map = engine.map();
  if (needs_norm(options_.greatest_norm, options_.non_finite, options_.loss_scale, map.options().param_groups) &&
      !engine.knows_norms())
    throw Error(
        "the plan updates weights in the backward, before the gradient's norm is known, and clipping, skipping steps and a "
        "dynamic loss scale need it\n  plan with PlanRequest::updates_before_use",
        ErrorKind::refused);
  const auto resumed = engine.resumed();
  if (!resumed) return;
  const auto progress = training::parse_progress(resumed->payload);
  done_ = resumed->step;
  skipped_ = progress.skipped_steps;
  committed_peak_ = progress.peak_bytes;
  if (progress.loss_scale) options_.loss_scale.restore(*progress.loss_scale);
}

std::uint64_t Trainer::tokens_a_step() const {
  const auto seq = static_cast<std::uint64_t>(engine_.map().options().shape.batch.seq);
  return deal_.rows * deal_.micro_batches * deal_.ranks * deal_.context * seq;
}

bool Trainer::read() { return reader_(Split::training, deal_.of_steps(done_ + 1), batch_); }

// The values of all ranks with different sequences. Without documents they are equal, because all have equally many targets.
std::vector<double> Trainer::of_data_ranks(double mine) const {
  std::vector<double> each(deal_.ranks, mine);
  if (!options_.ranks || !reader_.has_documents()) return each;
  const auto all = options_.ranks->each(mine);
  for (std::uint32_t r = 0; r < each.size(); ++r) each[r] = all[engine_.map().mesh().at(0, kBatchAxes, r)];
  return each;
}

std::vector<Trainer::Counted> Trainer::count(const std::vector<double>& of_micro_batches) const {
  std::vector<Counted> updates(together());
  for (std::size_t i = 0; i < of_micro_batches.size(); ++i) updates[i / deal_.micro_batches].own += of_micro_batches[i];
  for (auto& update : updates) {
    const auto each = of_data_ranks(update.own);
    update.all = std::accumulate(each.begin(), each.end(), 0.0);
  }
  return updates;
}

// Skipped steps have no update, so the optimizer's step count leaves them out.
UpdateStep Trainer::update_of(std::uint64_t step) const {
  return {.step = step - skipped_,
          .learning_rate = options_.rate(step),
          .gradient_scale = 1.0 / options_.loss_scale.value(),
          .seed = options_.seed};
}

// Gradients are computed with the loss scale; the returned norms are without it.
std::vector<Trainer::Step> Trainer::step() {
  const auto scale = options_.loss_scale.value();
  const auto mean_over = [&](const Counted& c) { return engine_.map().data().local ? c.own : c.all; };
  const auto counted = count(batch_.counted);
  std::vector<UpdateStep> updates;
  std::vector<double> loss_scales, token_scales;
  for (const auto& targets : counted) {
    updates.push_back(update_of(done_ + updates.size() + 1));
    if (mean_over(targets) == 0) {  // nothing is updated
      updates.back().step = UpdateStep::kNone;
      ++skipped_;
    }
    loss_scales.push_back(scale / std::max(1.0, mean_over(targets)));
  }
  if (routers_in(engine_.map().model()) > 0)
    for (const auto& real : count(batch_.real)) token_scales.push_back(scale / std::max(1.0, mean_over(real)));
  auto result = engine_.step({.tokens = batch_.tokens,
                              .targets = batch_.targets,
                              .document_begins = batch_.document_begins,
                              .loss_scale = loss_scales.back(),
                              .loss_scales = loss_scales,
                              .token_scales = token_scales,
                              .update = updates.back(),
                              .updates = together() == 1 ? std::span<const UpdateStep>() : updates,
                              .greatest_norm = options_.greatest_norm});
  const auto computed = now_ns();
  engine_.finish_commit();  // before a loss that is not finite ends the run
  const auto commit_s = static_cast<double>(now_ns() - computed) * 1e-9;
  result.gradient_norm /= scale;
  for (auto* const norms : {&result.gradient_norms, &result.group_norms})
    for (auto& norm : *norms) norm /= scale;
  if (options_.non_finite == NonFinite::stop && !overflows(result)) demand_finite(result);

  std::vector<Step> steps;
  for (std::size_t u = 0; u < updates.size(); ++u)
    steps.push_back({.number = done_ + u + 1,
                     .learning_rate = updates[u].learning_rate,
                     .result = part_of(result, u),
                     .applied = updates[u].step != UpdateStep::kNone,
                     .targets = static_cast<std::uint64_t>(counted[u].all)});
  steps.back().commit_s = commit_s;
  if (steps.back().applied)
    steps.back().applied = settle(updates.back(), result);
  else
    engine_.set_pending(updates.back());
  done_ += together();
  if (const auto every = engine_.average_every(); every != 0 && done_ % every == 0) {
    const auto begin = now_ns();
    engine_.average();
    steps.back().result.seconds += static_cast<double>(now_ns() - begin) * 1e-9;
  }
  return steps;
}

// True if the gradients overflowed although the loss is finite, so that a smaller loss scale may help.
bool Trainer::overflows(const running::StepResult& r) const {
  return options_.loss_scale.can_back_off() && std::isfinite(r.loss_sum) && !std::isfinite(r.gradient_norm);
}

void Trainer::demand_finite(const running::StepResult& r) const {
  if (!finite(r)) throw Diverged(done_ + together(), r.loss_sum, r.gradient_norm, options_.loss_scale.value());
}

// Decides whether the update of a step is applied, and with which clip factors.
bool Trainer::settle(UpdateStep update, const running::StepResult& r) {
  auto& loss_scale = options_.loss_scale;
  const bool overflow = overflows(r);
  if (overflow || !finite(r)) {
    if (overflow) loss_scale.overflowed();
    engine_.skip();
    ++skipped_;
    return false;
  }
  const auto scale = [&](double norm, double greatest) { return clip_factor(norm, greatest) / loss_scale.value(); };
  const auto& groups = engine_.map().options().param_groups;
  std::vector<double> group_scales;
  if (!r.group_norms.empty())
    for (std::size_t g = 0; g < groups.size(); ++g) group_scales.push_back(scale(r.group_norms[g], groups[g].clip.value_or(0)));
  update.gradient_scale = scale(group_scales.empty() ? r.gradient_norm : r.group_norms.back(), options_.greatest_norm);
  engine_.set_pending(update, std::move(group_scales));
  loss_scale.succeeded();
  return true;
}

// All ranks evaluate in every round, because they gather weights together; losses of micro-batches beyond the last requested
// one are dropped.
std::optional<std::vector<Trainer::HeldOut>> Trainer::evaluate_each(std::uint64_t micro_batches) {
  const std::uint64_t at_once = engine_.evaluated_at_once();
  const auto& mesh = engine_.map().mesh();
  auto* const ranks = options_.ranks;
  Batch batch;
  std::vector<HeldOut> found;
  for (std::uint64_t first = 0; first < micro_batches; first += deal_.ranks * at_once) {
    const bool has_read = reader_(Split::held_out, deal_.of_evaluation(first, at_once), batch);
    if (ranks ? ranks->any(!has_read) : !has_read) return std::nullopt;
    const auto mine =
        engine_.evaluate({.tokens = batch.tokens, .targets = batch.targets, .document_begins = batch.document_begins});
    for (std::size_t i = 0; i < mine.size(); ++i) {
      // All ranks with the same micro-batches have the same losses, so the first one's are taken.
      const auto losses = ranks ? ranks->each(mine[i]) : std::vector{mine[i]};
      const auto counted = of_data_ranks(batch.counted[i]);
      for (std::size_t data_rank = 0; data_rank < deal_.ranks; ++data_rank) {
        if (found.size() == micro_batches) continue;
        found.push_back({losses[mesh.at(0, kBatchAxes, static_cast<std::uint32_t>(data_rank))], counted[data_rank]});
      }
    }
  }
  return found;
}

std::optional<double> Trainer::evaluate(std::uint64_t micro_batches) {
  const auto each = evaluate_each(micro_batches);
  if (!each) return std::nullopt;
  HeldOut all;
  for (const auto& one : *each) {
    all.loss_sum += one.loss_sum;
    all.targets += one.targets;
  }
  return all.mean();
}

void Trainer::begin_commit() {
  engine_.flush();  // before the peaks are read, because flushing may raise them
  training::Progress progress{.skipped_steps = skipped_, .peak_bytes = engine_.peak_bytes()};
  if (options_.loss_scale.dynamic()) progress.loss_scale = options_.loss_scale.state();
  engine_.begin_commit(done_, to_text(progress));
}

void Trainer::commit() {
  begin_commit();
  finish_commit();
}

}  // namespace terrace
