#include <terrace/parallel/map/parameter_layout.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include <terrace/memory/chunk.h>
#include <terrace/parallel/model/freeze.h>
#include <terrace/parallel/model/param_tiles.h>

namespace terrace::mapping {
namespace {

// Limits for chunks: several must fit into a small host budget, and a disk must reach its bandwidth with them.
constexpr std::uint64_t kMinChunkElements = 32 * memory::Layout::kPageElements;   // 64 Ki
constexpr std::uint64_t kMaxChunkElements = 512 * memory::Layout::kPageElements;  // 1 Mi
// A plan decides on every chunk, so a large model has larger chunks; then planning takes only seconds, and a layer still has a
// dozen. Chunks never exceed the size below, because a chunk is one transfer and one update.
constexpr std::uint64_t kMostChunks = 2048;                               // of each kind of state
constexpr std::uint64_t kLargestChunkElements = 128 * kMaxChunkElements;  // 128 Mi

constexpr std::uint64_t kMostRuns = 512;  // in the model: a run has at least a few of the largest chunks

std::uint64_t elements_of(const std::vector<std::vector<memory::LayoutTensor>>& layers) {
  std::uint64_t total = 0;
  for (const auto& layer : layers)
    for (const auto& tensor : layer) total += tensor.elements;
  return total;
}

std::uint64_t least_run(const std::vector<std::vector<memory::LayoutTensor>>& layers) {
  return std::max(memory::Layout::kUnitElements, elements_of(layers) / kMostRuns);
}

std::uint64_t search_chunk(const std::vector<std::vector<memory::LayoutTensor>>& layers, std::uint32_t group) {
  const auto total = elements_of(layers);
  // Even a tiny model must have many chunks, so that some can move.
  const auto limit = std::clamp(total / kMostChunks, kMaxChunkElements, kLargestChunkElements);
  const auto most = std::clamp(total / 64 / group, memory::Layout::kPageElements, limit);
  return memory::Layout::search(layers, std::min(kMinChunkElements, most), most, group, least_run(layers));
}

// How many parameters from `first` on lie together, tile by tile.
std::size_t tiled_together(const std::vector<ParamSpec>& params, std::size_t first) {
  std::size_t end = first + 1;
  while (params[first].tiles > 1 && end < params.size() && params[end].tiles == params[first].tiles &&
         params[end].unit == params[first].unit && params[end].frozen == params[first].frozen && !params[end].tied)
    ++end;
  return end - first;
}

// The parameters (and tiles) that a layer declares, in the order of their places. Frozen ones are last.
std::vector<PhaseParam> order_of(const std::vector<ParamSpec>& params) {
  std::vector<PhaseParam> order;
  for (const bool frozen : {false, true})
    for (std::size_t first = 0; first < params.size();) {
      const bool here = !params[first].tied && params[first].frozen == frozen;
      const auto together = params[first].tied ? 1 : tiled_together(params, first);
      for (std::uint32_t tile = 0; here && tile < params[first].tiles; ++tile)
        for (std::size_t p = first; p < first + together; ++p) order.push_back({static_cast<std::uint32_t>(p), tile});
      first += together;
    }
  return order;
}

std::vector<std::vector<memory::LayoutTensor>> own_tensors(const std::vector<std::vector<ParamSpec>>& params) {
  std::vector<std::vector<memory::LayoutTensor>> layers;
  for (const auto& layer : params) {
    auto& tensors = layers.emplace_back();
    std::uint32_t unit = 0, last_tile = 0;
    bool frozen = false;  // whether the previous tensor was
    for (const auto& [number, tile] : order_of(layer)) {
      const auto& p = layer[number];
      const auto each = static_cast<std::uint64_t>(p.shape.elements() / std::max<std::int64_t>(1, p.shape[p.tile_dim]));
      const auto [first, count] = model::tile_of(p, tile);
      tensors.push_back({.name = p.name,
                         .elements = static_cast<std::uint64_t>(count) * each,
                         .origin = static_cast<std::uint64_t>(first) * each,
                         .begins_unit = p.unit != unit || tile != last_tile,
                         .apart = p.tiles > 1 || p.apart,
                         .begins_run = p.frozen && !frozen});
      unit = p.unit;
      frozen = p.frozen;
      last_tile = tile;
    }
  }
  return layers;
}

std::vector<std::vector<ParamSpec>> all_params(const Model& model, std::span<const ParamGroup> groups,
                                               std::span<const std::string> freeze) {
  std::vector<std::vector<ParamSpec>> params;
  for (const auto& layer : model.layers) params.push_back(layer->params());
  apply_groups(groups, params);
  model::apply_freeze(freeze, model, params);
  return params;
}

}  // namespace

ParameterLayout::ParameterLayout(const Model& model, std::span<const ParamGroup> param_groups, std::uint64_t chunk_elements,
                                 std::uint32_t group, std::span<const std::string> freeze)
    : ParameterLayout(all_params(model, param_groups, freeze), chunk_elements, group) {}

ParameterLayout::ParameterLayout(Params params, std::uint64_t chunk_elements, std::uint32_t group)
    : Layout(own_tensors(params), chunk_elements != 0 ? chunk_elements : search_chunk(own_tensors(params), group), group,
             least_run(own_tensors(params))),
      params_(std::move(params)),
      group_(group) {
  find_homes();
  find_trained();
}

void ParameterLayout::find_trained() {
  for (std::uint32_t l = 0; l < layers(); ++l) {
    trained_chunks_.push_back(chunks_of(l));
    for (auto t = tensors_of(l); t-- > 0 && param_at(l, t).frozen;) trained_chunks_.back() = run_of(place(l, t)).first;
  }
  while (first_trained_ < layers() && !trains(first_trained_)) ++first_trained_;
}

bool ParameterLayout::has_frozen() const {
  for (const auto& layer : params_)
    for (const auto& param : layer)
      if (param.frozen) return true;
  return false;
}

std::uint32_t ParameterLayout::trained_runs(std::uint32_t layer) const {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(runs_of(layer), [&](const memory::LayoutRun& run) { return run.first < trained_chunks_[layer]; }));
}

void ParameterLayout::find_homes() {
  std::map<std::string, Home> homes_by_name;
  for (std::uint32_t l = 0; l < params_.size(); ++l) {
    auto& homes = homes_.emplace_back();
    auto& param_at = param_at_.emplace_back();
    for (const auto& of_param : order_of(params_[l])) param_at.push_back(of_param.param);
    for (std::uint32_t number = 0; number < params_[l].size(); ++number) {
      const auto& p = params_[l][number];
      if (!p.tied) {
        const auto first = std::ranges::find(param_at, number);
        const auto next = std::find(first + 1, param_at.end(), number);
        homes.push_back({l, static_cast<std::uint32_t>(first - param_at.begin()),
                         p.tiles > 1 ? static_cast<std::uint32_t>(next - first) : 1});
        homes_by_name[p.name] = homes.back();
        continue;
      }
      const auto at = homes_by_name.find(p.name);
      if (at == homes_by_name.end() || has_tied())
        throw std::logic_error("ParameterLayout: tied parameter " + p.name +
                               " has no earlier declaration, or the model has two");
      homes.push_back(at->second);
      tied_layer_ = l;
      tied_home_ = at->second.layer;
      if (p.frozen) continue;  // it has no gradient
      const auto& weight = place_of(home(l, number, p.tiles - 1));
      tied_chunks_ =
          static_cast<std::uint32_t>(ceil_div(weight.first_element + weight.elements, this->chunk_elements() * group_)) *
          group_;
    }
  }
}

bool ParameterLayout::is_tied(std::uint32_t layer, std::uint32_t tensor) const {
  if (layer != tied_home_) return false;
  for (std::uint32_t q = 0; q < params_[tied_layer_].size(); ++q) {
    const auto& param = params_[tied_layer_][q];
    for (std::uint32_t tile = 0; param.tied && tile < param.tiles; ++tile)
      if (home(tied_layer_, q, tile).tensor == tensor) return true;
  }
  return false;
}

}  // namespace terrace::mapping
