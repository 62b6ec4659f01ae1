// Proves without a clock that exchanges of a layer's call run beside its products: an exchange does not begin before its
// product has begun, so if one lane waited for the other, the run would end with an error.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/parallel/comm/communicator.h>
#include <terrace/parallel/map/collective.h>
#include <terrace/parallel/map/step_map.h>

namespace terrace::test {

// The exchanges of one rank, by their number in the step, each with the phase of a layer whose begin it waits for.
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
  void exchanges(std::size_t number) {
    std::unique_lock lock(mutex_);
    const auto partner = partners_.find(number);
    if (partner == partners_.end()) return;
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return begun_.contains(partner->second); }))
      throw Error(fmt::format("{} waits for exchange {}", partner->second, number));
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

inline std::string name_of_phase(const std::string& layer, bool backward, std::uint32_t micro_batch, std::uint32_t phase) {
  return fmt::format("{} {} m{} p{}", backward ? "backward" : "forward", layer, micro_batch, phase);
}

// A layer that reports when its phases begin. Each call runs one phase, and calls come in program order.
class Watched final : public Layer {
 public:
  Watched(std::unique_ptr<Layer> inner, Beside& beside) : inner_(std::move(inner)), beside_(beside) {}
  std::string name() const override { return inner_->name(); }
  std::vector<ParamSpec> params() const override { return inner_->params(); }
  LayerFacts facts(BatchShape shape) const override { return inner_->facts(shape); }
  void describe(CallSteps& steps, LayerCall call, BatchShape shape) const override {
    inner_->describe(steps, call, shape);
    if (call != LayerCall::forward && call != LayerCall::backward) return;
    for (auto& step : steps.steps())
      if (step.run)
        step.run = [this, call, run = step.run](LayerContext& ctx, const LayerTensors& t) {
          say(ctx, call == LayerCall::backward);
          run(ctx, t);
        };
  }

 private:
  void say(LayerContext& ctx, bool backward) const {
    const auto call = calls_[{backward, ctx.phase}]++;
    ctx.stream.submit([this, text = name_of_phase(name(), backward, call, ctx.phase)] { beside_.computes(text); });
  }
  std::unique_ptr<Layer> inner_;
  Beside& beside_;
  mutable std::map<std::pair<bool, std::uint32_t>, std::uint32_t> calls_;  // calls so far: the number of the micro-batch
};

class GatedCommunicator final : public Communicator {
 public:
  using Counts = std::function<bool(comm::Operation)>;
  GatedCommunicator(std::unique_ptr<Communicator> inner, Beside& beside, Counts counts)
      : inner_(std::move(inner)), name_(inner_->name()), beside_(beside), counts_(std::move(counts)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return name_; }
  const comm::Machines& machines() const override { return inner_->machines(); }
  void issue(Stream& stream, comm::Call what) override {
    if (counts_(what.operation)) stream.submit([this, call = beside_.issue()] { beside_.exchanges(call); });
    inner_->issue(stream, std::move(what));
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    auto part = inner_->split(color, key, name);
    return part ? std::make_unique<GatedCommunicator>(std::move(part), beside_, counts_) : nullptr;
  }

 private:
  std::unique_ptr<Communicator> inner_;
  const std::string name_;
  Beside& beside_;
  const Counts counts_;
};

// Maps each exchange of a layer's call (its number among the counted ones) to the next computing phase behind it, if that phase
// multiplies and does not use what the exchange brings.
inline std::map<std::size_t, std::string> partners_of(const StepMap& map, const Program& program,
                                                      const GatedCommunicator::Counts& counts) {
  std::map<std::size_t, std::string> partners;
  std::size_t number = 0;
  for (auto a = program.actions.begin(); a != program.actions.end(); ++a) {
    const auto here = number;
    for (const auto& c : mapping::collectives_of(map, *a)) number += counts(c.operation) ? 1 : 0;
    if (!is_layer_action(a->op) || !map.phases().exchanges(*a)) continue;
    const auto to = map.phases().phase(*a).exchange->to.number;
    for (auto next = a + 1; next != program.actions.end(); ++next) {
      if (!is_layer_action(next->op)) continue;  // a prefetch
      if (next->layer != a->layer || next->op != a->op || next->micro_batch != a->micro_batch) break;
      const auto& phase = map.phases().phase(*next);
      if (phase.exchange) continue;
      if (std::ranges::count(phase.work, to, &PhaseWork::tensor) == 0 && phase.flops > 0)
        partners[here] = name_of_phase(map.model().layers[a->layer]->name(), is_backward(a->op), a->micro_batch, next->phase);
      break;
    }
  }
  return partners;
}

}  // namespace terrace::test
