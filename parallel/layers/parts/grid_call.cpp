#include <terrace/parallel/layers/parts/grid_call.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace terrace::layers {

std::uint32_t GridCall::room(std::string name, DType dtype) {
  rooms_.push_back({std::move(name), dtype});
  return static_cast<std::uint32_t>(rooms_.size() - 1);
}

void GridCall::reserve(std::uint32_t room, std::int64_t elements) {
  rooms_[room].elements = std::max(rooms_[room].elements, elements);
}

std::vector<PhaseWork> GridCall::uses(const std::vector<std::uint32_t>& read, const std::vector<std::uint32_t>& written) {
  std::vector<PhaseWork> all;
  for (const auto room : read) all.push_back({room, Access::read});
  for (const auto room : written) all.push_back({room, Access::overwrite});
  return all;
}

void GridCall::compute(Phase phase, Run run) { steps_.push_back({std::move(phase), std::move(run)}); }

void GridCall::exchange(Half half, PhaseExchange exchange) {
  const auto elements = [](const std::vector<std::int64_t>& all) {
    return std::accumulate(all.begin(), all.end(), std::int64_t{0});
  };
  reserve(exchange.from.number, elements(exchange.sent));
  reserve(exchange.to.number, elements(exchange.received));
  steps_.push_back({{.half = half, .scratch_bytes = 0, .exchange = std::move(exchange)}, {}});
}

std::vector<TensorSpec> GridCall::work() const {
  std::vector<TensorSpec> all;
  for (const auto& room : rooms_) all.push_back({room.name, room.dtype, {room.elements}});
  return all;
}

std::vector<Phase> GridCall::phases() const {
  std::vector<Phase> all;
  for (const auto& step : steps_) all.push_back(step.phase);
  return all;
}

void GridCall::run(LayerContext& ctx, const LayerTensors& t, Half half) const {
  for (std::uint32_t number = 0; number < steps_.size(); ++number)
    if (ctx.runs(number) && has(half, steps_[number].phase.half) && steps_[number].run) steps_[number].run(ctx, t);
}

}  // namespace terrace::layers
