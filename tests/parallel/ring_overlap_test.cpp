// In a run, the hops of a ring run beside the attending to what came before. No test looks at a clock: a hop does not begin
// before that attending has begun, so lanes that waited for each other would stand still, and say so.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include <terrace/core/error.h>

#include "tensor_run.h"

namespace terrace::test {
namespace {

using namespace std::chrono_literals;

// Of one rank: hops, by their number in the step, that wait for a phase of a layer to begin.
class Beside {
 public:
  void begin(std::map<std::size_t, std::string> partners) {
    const std::lock_guard lock(mutex_);
    partners_ = std::move(partners);
    begun_.clear();
    issued_ = 0;
  }
  std::size_t issue() {
    const std::lock_guard lock(mutex_);
    return issued_++;
  }
  void computes(const std::string& phase) {
    const std::lock_guard lock(mutex_);
    begun_.insert(phase);
    changed_.notify_all();
  }
  void hops(std::size_t number) {
    std::unique_lock lock(mutex_);
    const auto partner = partners_.find(number);
    if (partner == partners_.end()) return;
    if (!changed_.wait_for(lock, 60s, [&] { return begun_.contains(partner->second); }))
      throw Error(fmt::format("{} waits for hop {}", partner->second, number));
    ++met_;
  }
  [[nodiscard]] std::size_t met() const { return met_; }
  [[nodiscard]] std::size_t issued() const { return issued_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::size_t, std::string> partners_;
  std::set<std::string> begun_;
  std::size_t issued_ = 0, met_ = 0;
};

std::string name_of(const std::string& layer, bool backward, std::uint32_t phase) {
  return fmt::format("{} {} p{}", backward ? "backward" : "forward", layer, phase);
}

// A layer that says when its phases begin.
class Watched final : public Layer {
 public:
  Watched(std::unique_ptr<Layer> inner, Beside& beside) : inner_(std::move(inner)), beside_(beside) {}
  std::string name() const override { return inner_->name(); }
  std::vector<ParamSpec> params() const override { return inner_->params(); }
  bool keeps_input() const override { return inner_->keeps_input(); }
  std::vector<TensorSpec> saved(BatchShape shape) const override { return inner_->saved(shape); }
  std::vector<TensorSpec> carried(BatchShape shape) const override { return inner_->carried(shape); }
  std::vector<TensorSpec> work(LayerCall call, BatchShape shape) const override { return inner_->work(call, shape); }
  std::uint64_t scratch_bytes(BatchShape shape) const override { return inner_->scratch_bytes(shape); }
  double forward_flops(BatchShape shape) const override { return inner_->forward_flops(shape); }
  std::vector<Phase> phases(LayerCall call, BatchShape shape) const override { return inner_->phases(call, shape); }
  void forward(LayerContext& ctx, const LayerTensors& t) const override {
    say(ctx, false);
    inner_->forward(ctx, t);
  }
  void backward(LayerContext& ctx, const LayerTensors& t, Half half) const override {
    say(ctx, true);
    inner_->backward(ctx, t, half);
  }

 private:
  void say(LayerContext& ctx, bool backward) const {
    ctx.stream.submit([this, text = name_of(name(), backward, ctx.phase)] { beside_.computes(text); });
  }
  std::unique_ptr<Layer> inner_;
  Beside& beside_;
};

class GatedCommunicator final : public Communicator {
 public:
  GatedCommunicator(std::unique_ptr<Communicator> inner, Beside& beside)
      : inner_(std::move(inner)), name_(inner_->name()), beside_(beside) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return name_; }
  const Machines& machines() const override { return inner_->machines(); }
  void issue(Stream& stream, Call what) override {
    if (what.operation == Operation::all_to_all) stream.submit([this, call = beside_.issue()] { beside_.hops(call); });
    inner_->issue(stream, std::move(what));
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    auto part = inner_->split(color, key, name);
    return part ? std::make_unique<GatedCommunicator>(std::move(part), beside_) : nullptr;
  }

 private:
  std::unique_ptr<Communicator> inner_;
  const std::string name_;
  Beside& beside_;
};

// Each hop, with the next phase behind it that multiplies and does not use what it brings.
std::map<std::size_t, std::string> partners_of(const StepMap& map, const Program& program) {
  std::map<std::size_t, std::string> partners;
  std::size_t number = 0;
  for (auto a = program.actions.begin(); a != program.actions.end(); ++a) {
    if (!is_layer_action(a->op) || !map.phases().exchanges(*a)) continue;
    if (map.phases().phase(*a).exchange->operation != Operation::all_to_all)
      continue;  // gradients of two rings, to their ranks
    const auto to = map.phases().phase(*a).exchange->to;
    const auto here = number++;
    for (auto next = a + 1; next != program.actions.end(); ++next) {
      if (!is_layer_action(next->op)) continue;  // a prefetch
      if (next->layer != a->layer || next->op != a->op) break;
      const auto& phase = map.phases().phase(*next);
      if (phase.exchange) continue;
      if (std::ranges::count(phase.work, to, &PhaseWork::tensor) == 0 && phase.flops > 0)
        partners[here] = name_of(map.model().layers[a->layer]->name(), is_backward(a->op), next->phase);
      break;
    }
  }
  return partners;
}

class RingOverlap : public FolderTest {
 protected:
  // Of a step on so many ranks: how many hops each rank made, and how many of them began only after their partner.
  struct Hops {
    std::size_t made = 0, hidden = 0;
    friend bool operator==(const Hops&, const Hops&) = default;
  };
  Hops hops_of(std::uint32_t ranks, bool two_rings);
};

RingOverlap::Hops RingOverlap::hops_of(std::uint32_t ranks, bool two_rings) {
  auto config = llama();
  config.seq_len = 32;
  TensorRun o{.config = config, .context = ranks};
  o.batch = {1, 32};
  std::vector<Beside> beside(ranks);
  const auto outcome = on_threads(static_cast<int>(ranks), {90s}, [&](Rank& rank) {
    const auto r = static_cast<std::uint32_t>(rank.comm->rank());
    auto here = config;
    here.context = {.ranks = ranks, .rank = r, .ring = ranks, .two_rings = two_rings};
    auto model = lm::make_model(here);
    for (auto& layer : model.layers)
      if (layer->name().ends_with("attention")) layer = std::make_unique<Watched>(std::move(layer), beside[r]);
    const auto optimizer = make_optimizer("adamw", {});
    const auto request = request_of(o, *optimizer, r);
    const auto planned = for_rank(plan(model, request, {}), model, request, {});
    const StepMap map(model, planned.map);
    GatedCommunicator gated(std::move(rank.comm), beside[r]);
    Engine engine(model, planned,
                  {.device = &rank.device,
                   .store = {.paths = {folder_}, .name = fmt::format("rank{}", r), .temporary = true},
                   .optimizer = optimizer.get(),
                   .communicator = &gated});
    engine.fill(random_weights(7));
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(map.options().shape.batch.tokens()) * o.micro_batches, 1);
    beside[r].begin(partners_of(map, planned.programs.first));
    engine.step({.tokens = ids, .targets = ids});
  });
  for (const auto& error : outcome) EXPECT_EQ(error, "");
  const auto of = [](const Beside& rank) { return Hops{rank.issued(), rank.met()}; };
  for (const auto& rank : beside) EXPECT_EQ(of(beside.front()), of(rank));
  return of(beside.front());
}

// Of both blocks and micro-batches: all but the way home of gradients, as many as in the simulation.
TEST_F(RingOverlap, HopsRunBesideTheAttendingInARun) {
  for (const std::uint32_t ranks : {2U, 4U}) {
    const auto hops = hops_of(ranks, false);
    EXPECT_EQ(2 * 2 * (3 * (ranks - 1) + 1), hops.made);
    EXPECT_EQ(2 * 2 * 3 * (ranks - 1), hops.hidden);
  }
}

TEST_F(RingOverlap, HopsOfTwoRingsRunBesideTheProductsInARun) {
  for (const std::uint32_t ranks : {2U, 4U}) {
    const auto hops = hops_of(ranks, true);
    EXPECT_EQ(2 * 2 * 4 * (ranks - 1), hops.made);
    EXPECT_EQ(hops.made, hops.hidden);
  }
}

}  // namespace
}  // namespace terrace::test
