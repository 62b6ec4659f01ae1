#include <terrace/bench/ranks/pipeline_ranks.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <terrace/bench/io_of_environment.h>
#include <terrace/bench/statistics.h>
#include <terrace/core/base/error.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/parallel/comm/threads/run_ranks.h>
#include <terrace/parallel/train/trainer.h>

namespace terrace::bench {
namespace {

void run_rank(const Model& model, const RanksRun& run, Communicator& ranks, RankSteps& out) {
  auto request = run.request;
  request.rank = static_cast<std::uint32_t>(ranks.rank());
  out.plan = plan(model, request, run.profile);
  if (!out.plan.fits) throw Error(fmt::format("rank {}: {}", ranks.rank(), out.plan.refusal.why), ErrorKind::does_not_fit);
  out.plan = for_rank(out.plan, model, request, run.profile);
  ThreadPool pool(1);
  const auto device = make_cpu_device(pool);
  const auto optimizer = make_optimizer("adamw", {});
  const auto name = fmt::format("terrace-bench-rank-{}", ranks.rank());
  Engine engine(model, out.plan,
                {.device = device.get(),
                 .store = {.paths = {run.directory}, .name = name, .temporary = true, .io = io_of_environment()},
                 .optimizer = optimizer.get(),
                 .communicator = &ranks,
                 .trace = run.traces ? &run.traces->at(static_cast<std::size_t>(ranks.rank())) : nullptr,
                 .make_io = run.make_io});
  engine.fill([](const ParamSpec&, std::uint64_t, TensorView range) { std::memset(range.data, 0, range.bytes()); });
  Trainer trainer(engine, {.read = [](Split, auto, auto, auto) { return true; },  // all tokens are 0
                           .rate = [](std::uint64_t) { return 1e-3; },
                           .greatest_norm = 0});
  while (trainer.done() < run.steps) {
    trainer.read();
    out.results.push_back(trainer.step().back().result);
    if (run.drain_at_end) engine.drain();
    out.ended_ns.push_back(now_ns());
  }
}

}  // namespace

std::vector<RankSteps> run_ranks(const Model& model, const RanksRun& run) {
  return run_ranks([&](std::uint32_t) -> const Model& { return model; }, run);
}

std::vector<RankSteps> run_ranks(const ModelOfRank& model, const RanksRun& run) {
  const auto ranks = run.request.mesh.size();
  std::vector<RankSteps> out(ranks);
  auto communicators = make_thread_communicators(static_cast<int>(ranks));
  if (run.faults.longest_delay.count() > 0)
    for (auto& rank : communicators) rank = with_faults(std::move(rank), run.faults);
  terrace::run_ranks(std::move(communicators), [&](std::unique_ptr<Communicator> own) {
    const auto rank = static_cast<std::uint32_t>(own->rank());
    run_rank(model(rank), run, *own, out[rank]);
  });
  return out;
}

std::vector<double> step_seconds(const std::vector<RankSteps>& ranks) {
  std::vector<double> seconds;
  const auto ended = [&](std::size_t s) {
    std::int64_t last = 0;
    for (const auto& rank : ranks) last = std::max(last, rank.ended_ns[s]);
    return last;
  };
  for (std::size_t s = 1; s < ranks.front().ended_ns.size(); ++s)
    seconds.push_back(static_cast<double>(ended(s) - ended(s - 1)) * 1e-9);
  return seconds;
}

Result communication_beside(const std::vector<RankSteps>& ranks, const Plan& simulated) {
  const auto seconds = step_seconds(ranks);
  std::vector<double> communicated, hidden;
  for (const auto& step : std::span(ranks.front().results).subspan(1)) {
    communicated.push_back(step.communicated.seconds);
    hidden.push_back(step.communicated.hidden());
  }
  return {{"step_s", median(seconds)},
          {"simulated_step_s", simulated.times.seconds},
          {"communication_s", median(communicated)},
          {"simulated_communication_s", simulated.times.communicated.seconds},
          {"hidden", median(hidden)},
          {"simulated_hidden", simulated.times.communicated.hidden()},
          {"runs", seconds.size()},
          {"spread", spread(seconds)}};
}

}  // namespace terrace::bench
