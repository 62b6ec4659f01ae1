#include <terrace/examples/terrace/run/trainer_settings.h>

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include <terrace/examples/terrace/base/stop_signal.h>
#include <terrace/examples/terrace/plan/setup.h>

namespace terrace::cli {
namespace {

std::string commits_of(const RunDir& dir) {
  return ChunkStore::has_commit(dir.store) ? "the last commit is intact, and --resume auto continues from it"
                                           : "nothing was committed";
}

std::string gentler(const RunConfig& config) {
  return fmt::format("lower --lr{}, or raise --warmup",
                     config.train.grad_clip > 0 ? " or --grad-clip" : ", give --grad-clip 1");
}

}  // namespace

Trainer::Options trainer_options(const RunConfig& config, RunData& data, Agreement* ranks) {
  return {.read =
              [&data](Split split, auto sequences, auto tokens, auto targets) {
                if (split == Split::held_out && stop_signal() != 0) return false;  // because an evaluation may take hours
                return data.read(split, sequences, tokens, targets);
              },
          .rate = [rate = schedule(config)](std::uint64_t step) { return rate.at(step); },
          .greatest_norm = config.train.grad_clip,
          .non_finite = config.train.on_non_finite,
          .loss_scale = loss_scale(config),
          .seed = config.train.seed,
          .ranks = ranks,
          .documents = data.documents()};
}

Trainer trainer_of(Engine& engine, Trainer::Options options, const RunDir& dir) try {
  return Trainer(engine, std::move(options));
} catch (const Error& error) {
  if (error.kind() != ErrorKind::corrupt) throw;
  throw Error(fmt::format("the run in {}: {}", dir.path.string(), error.what()), ErrorKind::corrupt);
}

std::vector<Trainer::Step> step_of(Trainer& trainer, const RunConfig& config, const RunDir& dir) try {
  return trainer.step();
} catch (const Diverged& at) {
  const bool maybe_scale = std::isfinite(at.loss) && at.loss_scale > 1;
  throw Error(fmt::format(
      "training diverged at step {}: loss {}, gradient norm {}\n  {}; {}{}; --on-non-finite skip skips such steps", at.step,
      at.loss, at.norm, commits_of(dir),
      maybe_scale
          ? fmt::format("the loss is finite, and --loss-scale is {:.0f}: give --loss-scale dynamic or a smaller one; or ",
                        at.loss_scale)
          : "",
      gentler(config)));
}

void demand_finite(double held_out, std::uint64_t step, const RunConfig& config, const RunDir& dir) {
  if (std::isfinite(held_out) || config.train.on_non_finite == NonFinite::skip) return;
  throw Error(fmt::format("training diverged: the held-out loss after step {} is {}\n  {}; {}; --on-non-finite skip continues",
                          step, std::isnan(held_out) ? NAN : held_out, commits_of(dir), gentler(config)));
}

}  // namespace terrace::cli
