#include <terrace/parallel/model/call_steps.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace terrace {

std::uint32_t CallSteps::room(TensorSpec tensor) {
  rooms_.push_back(std::move(tensor));
  return static_cast<std::uint32_t>(rooms_.size() - 1);
}

void CallSteps::reserve(std::uint32_t room, std::int64_t elements) {
  auto& shape = rooms_.at(room).shape;
  if (elements > shape.elements()) shape = {elements};
}

TensorView CallSteps::view(const LayerTensors& t, PhaseTensor tensor, Shape shape) {
  using Of = PhaseTensor::Of;
  const auto& all = (tensor.of == Of::saved ? t.saved : tensor.of == Of::carried ? t.carried : t.work)[tensor.number];
  return all.empty() ? TensorView{} : TensorView{all.data, all.dtype, shape};
}

std::vector<PhaseWork> CallSteps::uses(const std::vector<std::uint32_t>& read, const std::vector<std::uint32_t>& written) {
  std::vector<PhaseWork> all;
  for (const auto room : read) all.push_back({room, Access::read});
  for (const auto room : written) all.push_back({room, Access::overwrite});
  return all;
}

void CallSteps::compute(Run run, std::uint64_t scratch_bytes) {
  steps_.push_back({{.undivided = true, .scratch_bytes = scratch_bytes}, std::move(run)});
}

void CallSteps::compute(Phase phase, Run run) { steps_.push_back({std::move(phase), std::move(run)}); }

void CallSteps::exchange(Half half, PhaseExchange exchange) { steps_.push_back(exchange_step(half, std::move(exchange))); }

void CallSteps::exchange_first(Half half, PhaseExchange exchange) {
  steps_.insert(steps_.begin(), exchange_step(half, std::move(exchange)));
}

CallSteps::Step CallSteps::exchange_step(Half half, PhaseExchange exchange) {
  Phase phase{.half = half};
  const auto use = [&](const PhaseTensor& tensor, Access access, const std::vector<std::int64_t>& elements) {
    if (tensor.of != PhaseTensor::Of::work) return phase.use(tensor, access);
    if (!exchange.told) reserve(tensor.number, std::accumulate(elements.begin(), elements.end(), std::int64_t{0}));
  };
  const auto of = exchange.to.of;
  const bool in_place = of == exchange.from.of, part = of == PhaseTensor::Of::saved || of == PhaseTensor::Of::carried;
  use(exchange.from, Access::read, exchange.sent);
  use(exchange.to, in_place || part ? Access::update : Access::overwrite, exchange.received);
  phase.exchange = std::move(exchange);
  return {std::move(phase), {}};
}

std::vector<Phase> CallSteps::phases() const {
  std::vector<Phase> all;
  for (const auto& step : steps_) all.push_back(step.phase);
  return all;
}

std::uint64_t CallSteps::scratch_bytes() const {
  std::uint64_t most = 0;
  for (const auto& step : steps_) most = std::max(most, step.phase.scratch_bytes);
  return most;
}

void CallSteps::run(LayerContext& ctx, const LayerTensors& t) const {
  if (check_) check_(ctx, t);
  for (std::uint32_t number = 0; number < steps_.size(); ++number) {
    const auto& [phase, run] = steps_[number];
    const bool chosen = ctx.phase == kAllPhases || ctx.phase == number;
    if (chosen && run && has(ctx.half, phase.half)) run(ctx, t);
  }
}

}  // namespace terrace
