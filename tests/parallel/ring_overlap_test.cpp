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
    const auto to = map.phases().phase(*a).exchange->to.number;
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

class RingOverlap : public FolderTest {};

TEST_F(RingOverlap, HopsRunBesideTheAttendingInARun) {
  constexpr std::uint32_t kRanks = 4;
  auto config = llama();
  config.seq_len = 32;
  config.context.ring = kRanks;
  TensorRun o{.config = config, .context = kRanks};
  o.batch = {1, 32};
  std::vector<Beside> beside(kRanks);
  std::size_t expected = 0;
  const auto outcome = on_threads(kRanks, {90s}, [&](Rank& rank) {
    const auto r = static_cast<std::uint32_t>(rank.comm->rank());
    auto here = config;
    here.context = {.ranks = kRanks, .rank = r, .ring = kRanks};
    auto model = lm::make_model(here);
    for (auto& layer : model.layers)
      if (layer->name().ends_with("attention")) layer = std::make_unique<Watched>(std::move(layer), beside[r]);
    const auto optimizer = make_optimizer("adamw", {});
    const auto request = request_of(o, *optimizer, r);
    const auto planned = for_rank(plan(model, request, {}), model, request, {});
    const StepMap map(model, planned.map);
    GatedCommunicator ranks(std::move(rank.comm), beside[r]);
    Engine engine(model, planned,
                  {.device = &rank.device,
                   .store = {.paths = {folder_}, .name = fmt::format("rank{}", r), .temporary = true},
                   .optimizer = optimizer.get(),
                   .communicator = &ranks});
    engine.fill(random_weights(7));
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(map.options().shape.batch.tokens()) * o.micro_batches, 1);
    const auto partners = partners_of(map, planned.programs.first);
    if (r == 0) expected = partners.size();
    beside[r].begin(partners);
    engine.step({.tokens = ids, .targets = ids});
  });
  for (const auto& error : outcome) ASSERT_EQ(error, "");
  // Of both blocks and micro-batches: all but the way home of gradients.
  EXPECT_EQ(2 * 2 * 3 * (kRanks - 1), expected);
  for (const auto& of_rank : beside) EXPECT_EQ(expected, of_rank.met());
}

}  // namespace
}  // namespace terrace::test
