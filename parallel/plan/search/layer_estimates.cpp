#include <terrace/parallel/plan/search/layer_estimates.h>

#include <algorithm>
#include <memory>
#include <set>

#include <terrace/core/base/units.h>
#include <terrace/parallel/plan/programs.h>
#include <terrace/parallel/walk/simulator.h>

namespace terrace::planning {
namespace {

constexpr std::uint32_t kMicroBatches = 2;   // the first and the last one of a step differ from those between them
constexpr std::uint64_t kMostChunks = 2048;  // chunks of a kind in a large model, of at most kLargestChunk elements
constexpr std::uint64_t kLargestChunk = 128 * kMiB;

// The layers of which only one period is looked at. `all`: how many layers the model has.
class Repeated {
 public:
  Repeated(std::size_t all, std::size_t period) : all_(all), period_(period == 0 || period + 2 > all ? all - 2 : period) {}
  // The layers that stand for all: the first one, a period, and the last one.
  void keep(std::vector<std::unique_ptr<Layer>>& layers) const {
    layers.erase(layers.begin() + 1 + static_cast<std::ptrdiff_t>(period_), layers.end() - 1);
  }
  // For how many layers a kept one stands.
  [[nodiscard]] std::uint64_t times(std::size_t kept) const {
    if (kept == 0 || kept == period_ + 1) return 1;
    return (all_ - 2 - (kept - 1) + period_ - 1) / period_;
  }
  [[nodiscard]] std::vector<LayerEstimate> repeated(const std::vector<LayerEstimate>& kept) const {
    std::vector<LayerEstimate> layers{kept.front()};
    for (std::size_t i = 0; i + 2 < all_; ++i) layers.push_back(kept[1 + i % period_]);
    layers.push_back(kept.back());
    return layers;
  }

 private:
  std::size_t all_, period_;
};

PlanRequest of_one_rank(PlanRequest request) {
  request.mesh.pp = 1;
  request.shape.micro_batches = kMicroBatches;
  request.order = Order::horizontal;
  request.recompute = request.offload = 0;
  return request;
}

// A large model has larger chunks than the kept layers alone would have, and each collective has a latency.
std::uint64_t chunk_elements_of(const Model& kept, const Repeated& repeated) {
  std::uint64_t all = 0;
  for (std::size_t l = 0; l < kept.layers.size(); ++l)
    for (const auto& param : kept.layers[l]->params())
      if (!param.tied) all += static_cast<std::uint64_t>(param.shape.elements()) * repeated.times(l);
  const auto elements = all / kMostChunks;
  return elements <= kMiB ? 0 : std::min(elements, kLargestChunk);
}

// Adds an action of the step to its layer.
class Adder {
 public:
  Adder(const StepMap& map, const MachineProfile& profile) : map_(map), costs_(map, profile) {}

  void add(std::vector<LayerEstimate>& layers, const Action& a) const {
    if (is_placement(a.op) || a.op == Op::verdict) return;
    auto& layer = layers[a.layer];
    const double seconds = costs_.seconds(a);
    const bool last = a.micro_batch + 1 == kMicroBatches;
    switch (a.op) {
      case Op::gather:
        (map_.data().gathers_before_use() ? layer.gather : layer.updated_gather) +=
            map_.data().gathers_before_use() ? seconds / kMicroBatches : seconds;
        return;
      case Op::reduce: (last ? layer.last_reduction : layer.reduction) += seconds; return;
      case Op::norm:
      case Op::unify: layer.norm += seconds; return;
      case Op::update:
      case Op::prepare:
      case Op::exchange: layer.update += seconds; return;
      default: break;
    }
    if (!is_layer_action(a.op) || !last) return;
    const bool exchanges = is_collective(map_.places().lane_of(a));
    if (is_forward(a.op))
      (exchanges ? layer.forward_exchange : layer.forward) += seconds;
    else
      (exchanges ? layer.backward_exchange : layer.backward) += seconds;
  }

 private:
  const StepMap& map_;
  walk::ProfileCosts costs_;
};

void add_bytes(LayerEstimates& all, const StepMap& map) {
  std::vector<double> windows(map.layers());
  for (std::uint32_t c = 0; c < map.chunks().size(); ++c) {
    const auto& chunk = map.chunks()[ChunkId(c)];
    const auto bytes = static_cast<double>(chunk.bytes);
    auto& layer = all.layers[chunk.layer];
    if (mapping::is_state(chunk.role))
      (chunk.kind == ChunkKind::parameter  ? layer.weights
       : chunk.kind == ChunkKind::gradient ? layer.gradients
                                           : layer.states) += bytes;
    else if (chunk.role == mapping::Role::gathered || chunk.role == mapping::Role::bucket)
      windows[chunk.layer] += bytes;
    else if (chunk.position == 0 && (chunk.role == mapping::Role::input || chunk.role == mapping::Role::saved))
      (chunk.role == mapping::Role::input ? layer.input : layer.saved) += bytes;
  }
  all.window = *std::ranges::max_element(windows);
  const auto& recipe = map.options().recipe;
  constexpr std::uint64_t kMany = 64 * kMiB;
  double of_element =
      static_cast<double>(recipe.chunk_bytes(recipe.has_master() ? ChunkKind::master : ChunkKind::parameter, kMany)) / kMany;
  if (!map.options().layer_unit)
    for (const auto moment : recipe.states) of_element += static_cast<double>(recipe.chunk_bytes(moment, kMany)) / kMany;
  const bool shared = map.data().stage() >= 1 && (recipe.has_master() || map.data().shards(ChunkKind::parameter));
  for (std::uint32_t l = 0; l < map.layers(); ++l)
    for (const auto& param : map.layout().params(l))
      if (!param.tied)
        all.layers[l].content += static_cast<double>(param.shape.elements()) * of_element / (shared ? map.data().sharers() : 1);
}

// A lower bound of the bytes without padding: less than one chunk of each run is padding, so one chunk is subtracted.
double without_padding(const StepMap& map, const Action& action) {
  double bytes = 0;
  std::set<std::uint32_t> runs;
  for (const auto& use : map.uses(action)) {
    const auto& chunk = map.chunks()[use.chunk];
    bytes += static_cast<double>(chunk.bytes);
    const bool packed = mapping::is_state(chunk.role) || chunk.role == mapping::Role::gathered ||
                        chunk.role == mapping::Role::bucket || chunk.role == mapping::Role::tied_bucket;
    if (packed && runs.insert(chunk.run_first).second) bytes -= static_cast<double>(chunk.bytes);
  }
  return bytes;
}

}  // namespace

LayerEstimate& LayerEstimate::operator+=(const LayerEstimate& more) {
  for (const auto member :
       {&LayerEstimate::forward, &LayerEstimate::backward, &LayerEstimate::forward_exchange, &LayerEstimate::backward_exchange,
        &LayerEstimate::gather, &LayerEstimate::reduction, &LayerEstimate::last_reduction, &LayerEstimate::updated_gather,
        &LayerEstimate::norm, &LayerEstimate::update, &LayerEstimate::weights, &LayerEstimate::gradients,
        &LayerEstimate::states, &LayerEstimate::input, &LayerEstimate::saved, &LayerEstimate::content})
    this->*member += more.*member;
  return *this;
}

LayerEstimates estimate_layers(const SearchedRun& run, const Candidate& candidate, const MachineProfile& profile) {
  auto place = candidate.place;
  place.mesh.pp = 1;
  const auto of_candidate = request_of(run, candidate), request = of_one_rank(of_candidate);
  auto model = run.model(place, of_candidate);
  const Repeated repeated(model.layers.size(), run.period);
  repeated.keep(model.layers);
  auto options = map_options(model, request, profile, Tier::device);
  if (options.chunk_elements == 0) options.chunk_elements = chunk_elements_of(model, repeated);
  const StepMap map(model, options);
  const auto steady = write_programs(map, request, 0).steady;
  LayerEstimates all{.layers = std::vector<LayerEstimate>(map.layers())};
  const Adder adder(map, profile);
  for (const auto& action : steady.actions) {
    adder.add(all.layers, action);
    if (map.places().tier_of(action) == Tier::device && has_phases(action.op))
      all.largest_action = std::max(all.largest_action, without_padding(map, action));
  }
  add_bytes(all, map);
  all.layers = repeated.repeated(all.layers);
  return all;
}

}  // namespace terrace::planning
