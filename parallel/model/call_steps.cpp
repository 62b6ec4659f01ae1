#include <terrace/parallel/model/call_steps.h>

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

TensorView CallSteps::view(const LayerTensors& t, std::uint32_t room, Shape shape) {
  const auto& all = t.work[room];
  return all.empty() ? TensorView{} : TensorView{all.data, all.dtype, shape};
}

std::vector<PhaseWork> CallSteps::uses(const std::vector<std::uint32_t>& read, const std::vector<std::uint32_t>& written) {
  std::vector<PhaseWork> all;
  for (const auto room : read) all.push_back({room, Access::read});
  for (const auto room : written) all.push_back({room, Access::overwrite});
  return all;
}

void CallSteps::compute(Run run) { steps_.push_back({{}, std::move(run)}); }

void CallSteps::compute(Phase phase, Run run) {
  divided_ = true;
  steps_.push_back({std::move(phase), std::move(run)});
}

void CallSteps::exchange(Half half, PhaseExchange exchange) {
  divided_ = true;
  Phase phase{.half = half, .scratch_bytes = 0};
  const auto use = [&](const PhaseTensor& tensor, Access access, const std::vector<std::int64_t>& elements) {
    using Of = PhaseTensor::Of;
    if (tensor.of == Of::work && !exchange.told)
      reserve(tensor.number, std::accumulate(elements.begin(), elements.end(), std::int64_t{0}));
    if (tensor.of == Of::saved) phase.saved = access;
    if (tensor.of == Of::carried) phase.carried = access;
  };
  use(exchange.from, Access::read, exchange.sent);
  use(exchange.to, Access::update, exchange.received);
  phase.exchange = std::move(exchange);
  steps_.push_back({std::move(phase), {}});
}

std::vector<Phase> CallSteps::phases() const {
  std::vector<Phase> all;
  if (!divided_) return all;
  for (const auto& step : steps_) all.push_back(step.phase);
  return all;
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
