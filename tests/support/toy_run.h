// Trains the toy model through the real engine (real files, real I/O) and tells what came out of it.
#pragma once

#include <xxhash.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <terrace/optimizers/schedule.h>
#include <terrace/parallel/engine.h>
#include <terrace/tests/support/toy_model.h>

namespace terrace::toy {

struct RunOptions {
  Sizes sizes;
  StepShape shape{{2, 16}, 3};
  Budget budget{kUnlimited, kUnlimited, 0};
  bool disk_tier = false;
  Order order = Order::horizontal;
  std::uint32_t group = 0;
  bool recompute = false;
  bool before_use = true;
  std::uint32_t depth = kAutoDepth;
  int threads = 1;
  std::uint64_t steps = 6;
  std::uint64_t commit_after = 0;  // 0: never
  bool resume = false;
  bool evaluate_between = false;
  std::filesystem::path store = "toy-store";
};

struct RunResult {
  Plan planned;
  std::vector<double> losses, norms;
  std::vector<Traffic> traffic;
  std::uint64_t hash = 0;
  PerTier<std::uint64_t> peak{};
  Traffic moved, issued;
  std::uint64_t steps_run = 0;
};

inline PlanRequest request_of(const RunOptions& o) {
  return {.shape = o.shape,
          .budget = o.budget,
          .disk_tier = o.disk_tier,
          .order = o.order,
          .group = o.group,
          .recompute = o.recompute,
          .updates_before_use = o.before_use,
          .prefetch_depth = o.depth,
          .steps = o.steps};
}

inline RunResult run(const RunOptions& o) {
  ThreadPool pool(o.threads);
  const auto device = make_cpu_device(pool);
  const auto model = make_model(o.sizes);
  RunResult out;
  out.planned = plan(model, request_of(o), MachineProfile{});
  if (!out.planned.fits) return out;
  const auto optimizer = make_adamw({});
  Engine engine(model, out.planned,
                {.device = device.get(),
                 .store = {.paths = {o.store}, .durable = false},
                 .resume = o.resume,
                 .optimizer = optimizer.get()});
  std::uint64_t first = 0;
  if (o.resume)
    first = engine.resumed()->step;
  else
    engine.fill(initialise);

  const auto n = static_cast<std::size_t>(o.shape.batch.tokens()) * o.shape.micro_batches;
  const auto batch = [&](std::uint64_t step) {
    std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>> b;
    for (std::size_t i = 0; i < n; ++i) {
      const auto draw = [&](std::uint64_t k) {
        return static_cast<std::int32_t>(random_below(3, step, k, static_cast<std::uint64_t>(o.sizes.vocab)));
      };
      b.first.push_back(draw(i));
      b.second.push_back(i % 7 == 0 ? -1 : draw(i + 1));
    }
    return b;
  };
  for (std::uint64_t s = first + 1; s <= o.steps; ++s) {
    const auto [tokens, targets] = batch(s);
    UpdateStep update{.step = s, .learning_rate = 1e-2, .gradient_scale = 1};
    const auto r =
        engine.step({.tokens = tokens, .targets = targets, .loss_scale = 1.0 / static_cast<double>(n), .update = update});
    if (o.before_use) update.gradient_scale = clip_factor(r.gradient_norm, 0.5);
    engine.set_pending(update);
    out.losses.push_back(r.loss_sum);
    out.norms.push_back(r.gradient_norm);
    out.traffic.push_back(r.moved);
    ++out.steps_run;
    if (o.evaluate_between && s == 2) {
      const auto per = static_cast<std::size_t>(o.shape.batch.tokens());
      out.losses.push_back(engine.evaluate({.tokens = std::span(tokens).first(per), .targets = std::span(targets).first(per)}));
    }
    if (o.commit_after == s) {
      engine.commit(s, "{}");
      break;
    }
  }
  if (o.commit_after == 0) engine.commit(o.steps, "{}");
  XXH64_state_t* state = XXH64_createState();
  XXH64_reset(state, 0);
  engine.visit([&](const ParamSpec&, std::uint64_t, TensorView range) { XXH64_update(state, range.data, range.bytes()); });
  out.hash = XXH64_digest(state);
  XXH64_freeState(state);
  out.peak = engine.peak_bytes();
  return out;
}

}  // namespace terrace::toy
