#include <terrace/parallel/step_map.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>

namespace terrace {
namespace {

constexpr std::uint64_t kTensorAlignBytes = 64;
// A chunk small enough that a handful fit into a small host budget, large enough that a disk reaches its bandwidth.
constexpr std::uint64_t kMinChunkElements = 32 * Layout::kPageElements;   // 64 Ki
constexpr std::uint64_t kMaxChunkElements = 512 * Layout::kPageElements;  // 1 Mi

std::uint64_t search_chunk(const std::vector<std::vector<LayoutTensor>>& layers) {
  std::uint64_t total = 0;
  for (const auto& layer : layers)
    for (const auto& tensor : layer) total += tensor.elements;
  // A tiny model must still be many chunks, or there is nothing to move.
  const auto most = std::clamp(total / 64, Layout::kPageElements, kMaxChunkElements);
  return Layout::search(layers, std::min(kMinChunkElements, most), most);
}

std::vector<std::vector<LayoutTensor>> own_tensors(const std::vector<std::vector<ParamSpec>>& params) {
  std::vector<std::vector<LayoutTensor>> layers;
  for (const auto& layer : params) {
    auto& tensors = layers.emplace_back();
    for (const auto& p : layer)
      if (!p.tied) tensors.push_back({p.name, static_cast<std::uint64_t>(p.shape.elements())});
  }
  return layers;
}

std::vector<std::vector<ParamSpec>> all_params(const Model& model) {
  std::vector<std::vector<ParamSpec>> params;
  for (const auto& layer : model.layers) params.push_back(layer->params());
  return params;
}

}  // namespace

Pack::Pack(std::vector<TensorSpec> specs) : tensors(std::move(specs)) {
  for (const auto& t : tensors) {
    offsets.push_back(bytes);
    bytes = round_up(bytes + t.bytes(), kTensorAlignBytes);
  }
  bytes = round_up(bytes, kPageBytes);
}

std::vector<TensorView> Pack::views(std::byte* base) const {
  std::vector<TensorView> v;
  for (std::size_t i = 0; i < tensors.size(); ++i) v.push_back({base + offsets[i], tensors[i].dtype, tensors[i].shape});
  return v;
}

StepMap::StepMap(const Model& model, const Options& options)
    : model_(model),
      options_(options),
      params_(all_params(model)),
      layout_(own_tensors(params_), options.chunk_elements != 0 ? options.chunk_elements : search_chunk(own_tensors(params_))),
      kinds_(options.recipe.kinds()) {
  // Where every declared parameter lies.
  std::map<std::string, Home> homes_by_name;
  for (std::uint32_t l = 0; l < params_.size(); ++l) {
    auto& homes = homes_.emplace_back();
    std::uint32_t own = 0;
    for (const auto& p : params_[l]) {
      if (p.tied) {
        const auto at = homes_by_name.find(p.name);
        if (at == homes_by_name.end() || tied_layer_ != kNone)
          throw std::logic_error("StepMap: tied parameter " + p.name + " has no earlier declaration, or is a second one");
        homes.push_back(at->second);
        tied_layer_ = l;
        tied_home_ = at->second.layer;
      } else {
        homes.push_back({l, own++});
        homes_by_name[p.name] = homes.back();
      }
    }
  }

  // State: one run a layer and kind, so that a layer's weights are one span; chunk i of every kind covers the same elements.
  const auto chunk_elements = layout_.chunk_elements();
  for (std::uint32_t l = 0; l < layers(); ++l)
    for (const auto kind : kinds_)
      add_run(layout_.chunks_of(l), {.bytes = options_.recipe.chunk_bytes(kind, chunk_elements), .kind = kind, .layer = l});
  if (tied_layer_ != kNone) {
    for (std::uint32_t p = 0; p < params_[tied_layer_].size(); ++p)
      if (params_[tied_layer_][p].tied) {
        const auto elements = static_cast<std::uint64_t>(params_[tied_layer_][p].shape.elements());
        tied_gradient_ = ChunkId(add_run(static_cast<std::uint32_t>(ceil_div(elements, chunk_elements)),
                                         {.bytes = options_.recipe.chunk_bytes(Kind::gradient, chunk_elements),
                                          .kind = Kind::gradient,
                                          .layer = tied_layer_,
                                          .role = 't'}));
      }
  }

  // Activations.
  const auto& batch = options_.shape.batch;
  const auto m_count = micro_batches();
  const auto row_bytes = static_cast<std::uint64_t>(batch.tokens() * model.width) * size_of(model.dtype);
  const auto activation_bytes = round_up(row_bytes, kPageBytes);
  for (const auto& layer : model.layers) {
    if (options_.decode_positions == 0) {
      saved_packs_.emplace_back(layer->saved(batch));
    } else {
      const auto* generative = dynamic_cast<const GenerativeLayer*>(layer.get());
      if (!generative) throw Error("layer " + layer->name() + " cannot generate", Exit::usage);
      saved_packs_.emplace_back(generative->cache(options_.decode_positions));
    }
    carried_packs_.emplace_back(layer->carried(batch));
  }
  const auto add_each = [&](char role, auto bytes_of) {
    const auto first = static_cast<std::uint32_t>(chunks_.size());
    const std::uint32_t copies = role == 'c' || role == 'w' ? 1 : m_count;
    for (std::uint32_t l = 0; l < layers(); ++l)
      for (std::uint32_t m = 0; m < copies; ++m)
        add_run(1, {.bytes = bytes_of(l), .kind = Kind::activation, .end = End::high, .layer = l, .position = m, .role = role});
    return first;
  };
  x_ = add_each('x', [&](std::uint32_t l) { return l == 0 ? 0 : activation_bytes; });
  d_ = add_each('d', [&](std::uint32_t l) { return l == 0 ? 0 : activation_bytes; });
  saved_ = add_each('v', [&](std::uint32_t l) { return saved_packs_[l].bytes; });
  carried_ = add_each('c', [&](std::uint32_t l) { return carried_packs_[l].bytes; });
  scratch_ = add_each('w', [&](std::uint32_t l) { return round_up(model.layers[l]->scratch_bytes(batch), kPageBytes); });
  spare_ = add_run(1, {.bytes = activation_bytes, .kind = Kind::activation, .end = End::high, .role = 'y'});
}

std::uint32_t StepMap::add_run(std::uint32_t count, ChunkInfo info) {
  info.run_first = static_cast<std::uint32_t>(chunks_.size());
  info.run_count = count;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (info.role == 's' || info.role == 't') info.position = i;
    chunks_.push_back(info);
  }
  return info.run_first;
}

void StepMap::add_to(Residency& residency) const {
  if (residency.chunks() != 0) throw std::logic_error("StepMap: its chunks must be the residency's first");
  for (std::uint32_t i = 0; i < chunks_.size(); i += std::max(1U, chunks_[i].run_count))
    residency.add_run(chunks_[i].run_count, std::max(chunks_[i].bytes, kPageBytes), chunks_[i].kind, chunks_[i].end);
}

ChunkId StepMap::state(Kind kind, std::uint32_t layer, std::uint32_t chunk_in_layer) const {
  const auto at = std::ranges::find(kinds_, kind);
  if (at == kinds_.end()) throw std::logic_error(fmt::format("StepMap: the recipe has no {}", name_of(kind)));
  const auto before = layout_.first_chunk(layer) * static_cast<std::uint32_t>(kinds_.size());
  return ChunkId(before + static_cast<std::uint32_t>(at - kinds_.begin()) * layout_.chunks_of(layer) + chunk_in_layer);
}

void StepMap::use_run(std::vector<Use>& uses, ChunkId first, std::uint32_t count, Access access) const {
  for (std::uint32_t i = 0; i < count; ++i) uses.push_back({ChunkId(index(first) + i), access});
}

void StepMap::use_weights(std::vector<Use>& uses, std::uint32_t layer) const {
  use_run(uses, state(Kind::parameter, layer, 0), layout_.chunks_of(layer), Access::read);
  if (layer == tied_layer_) use_run(uses, state(Kind::parameter, tied_home_, 0), layout_.chunks_of(tied_home_), Access::read);
}

void StepMap::use_gradients(std::vector<Use>& uses, std::uint32_t layer, Access access) const {
  use_run(uses, state(Kind::gradient, layer, 0), layout_.chunks_of(layer), access);
  if (layer == tied_layer_) use_run(uses, tied_gradient_, chunks_[index(tied_gradient_)].run_count, access);
}

void StepMap::use_some(std::vector<Use>& uses, ChunkId chunk, Access access) const {
  if (chunk_bytes(chunk) != 0) uses.push_back({chunk, access});
}

std::vector<Use> StepMap::uses(const Action& a) const {
  std::vector<Use> uses;
  const bool last = a.layer + 1 == layers();
  const auto into_gradients = a.micro_batch == 0 ? Access::overwrite : Access::update;
  switch (a.op) {
    case Op::forward:
    case Op::recompute:
    case Op::evaluate:
      use_weights(uses, a.layer);
      use_some(uses, x(a.layer, a.micro_batch), Access::read);
      if (!last) {
        use_some(uses, a.op == Op::recompute ? spare() : x(a.layer + 1, a.micro_batch), Access::overwrite);
      }
      use_some(uses, saved(a.layer, a.micro_batch), Access::overwrite);
      use_some(uses, scratch(a.layer), Access::overwrite);
      break;
    case Op::backward:
    case Op::backward_input:
    case Op::backward_weight:
      use_weights(uses, a.layer);
      use_some(uses, x(a.layer, a.micro_batch), Access::read);
      use_some(uses, saved(a.layer, a.micro_batch), Access::read);
      if (!last) use_some(uses, d(a.layer + 1, a.micro_batch), Access::read);
      if (a.op != Op::backward_weight) use_some(uses, d(a.layer, a.micro_batch), Access::overwrite);
      if (a.op != Op::backward_input) use_gradients(uses, a.layer, into_gradients);
      use_some(uses, carried(a.layer), a.op == Op::backward_weight ? Access::read : Access::overwrite);
      use_some(uses, scratch(a.layer), Access::overwrite);
      break;
    case Op::norm:
      use_run(uses, state(Kind::gradient, a.layer, 0), layout_.chunks_of(a.layer),
              a.layer == tied_home_ ? Access::update : Access::read);
      if (a.layer == tied_home_) use_run(uses, tied_gradient_, chunks_[index(tied_gradient_)].run_count, Access::read);
      break;
    case Op::update:
      for (const auto kind : kinds_) {
        auto access = kind == Kind::gradient ? Access::read : Access::update;
        if (kind == Kind::parameter && options_.recipe.copies_master()) access = Access::overwrite;
        uses.push_back({state(kind, a.layer, a.chunk), access});
      }
      break;
    case Op::fill:
      for (const auto kind : kinds_)
        if (kind == Kind::parameter || kind == Kind::master) uses.push_back({state(kind, a.layer, a.chunk), Access::overwrite});
      break;
    case Op::visit:  // a copy of the master says nothing that the master does not
      for (const auto kind : kinds_)
        if (kind == Kind::master || (kind == Kind::parameter && !options_.recipe.copies_master()))
          uses.push_back({state(kind, a.layer, a.chunk), Access::read});
      break;
    case Op::decode:
      use_weights(uses, a.layer);
      use_some(uses, x(a.layer, 0), Access::read);
      if (!last) use_some(uses, x(a.layer + 1, 0), Access::overwrite);
      use_some(uses, saved(a.layer, 0), Access::update);
      use_some(uses, scratch(a.layer), Access::overwrite);
      break;
    case Op::prefetch: break;
  }
  return uses;
}

std::vector<ChunkId> StepMap::dead_after(const Action& a) const {
  std::vector<ChunkId> dead;
  const auto add = [&](ChunkId c) {
    if (chunk_bytes(c) != 0) dead.push_back(c);
  };
  const bool last = a.layer + 1 == layers();
  switch (a.op) {
    case Op::forward:
    case Op::recompute:
      add(scratch(a.layer));
      if (a.op == Op::recompute && !last) add(spare());
      if (a.op == Op::forward && options_.recompute) add(saved(a.layer, a.micro_batch));
      break;
    case Op::evaluate:
      add(scratch(a.layer));
      add(saved(a.layer, a.micro_batch));
      add(x(a.layer, a.micro_batch));
      break;
    case Op::backward:
    case Op::backward_weight:
      add(x(a.layer, a.micro_batch));
      add(saved(a.layer, a.micro_batch));
      if (!last) add(d(a.layer + 1, a.micro_batch));
      add(carried(a.layer));
      add(scratch(a.layer));
      break;
    case Op::backward_input: add(scratch(a.layer)); break;
    case Op::norm:
      if (a.layer == tied_home_)
        for (std::uint32_t i = 0; i < chunks_[index(tied_gradient_)].run_count; ++i) add(ChunkId(index(tied_gradient_) + i));
      break;
    case Op::update: add(state(Kind::gradient, a.layer, a.chunk)); break;
    case Op::decode:
      add(x(a.layer, 0));
      add(scratch(a.layer));
      break;
    case Op::fill:
    case Op::visit:
    case Op::prefetch: break;
  }
  return dead;
}

Tier StepMap::tier_of(const Action& a) const {
  switch (a.op) {
    case Op::update: return options_.update_tier;
    case Op::fill:  // by functions on the host
    case Op::visit: return options_.separate_device ? Tier::host : options_.update_tier;
    default: return Tier::device;
  }
}

Lane StepMap::lane_of(const Action& a) const {
  return options_.separate_device && tier_of(a) == Tier::host ? Lane::update : Lane::compute;
}

std::string StepMap::describe(ChunkId chunk) const {
  const auto& c = chunks_[index(chunk)];
  const auto& layer = model_.layers[c.layer]->name();
  switch (c.role) {
    case 's': {
      const auto first = c.position * layout_.chunk_elements();
      return fmt::format("{} of {}, elements {}..{}", name_of(c.kind), layer, first, first + layout_.chunk_elements() - 1);
    }
    case 't': return fmt::format("tied gradient of {}, part {}", layer, c.position);
    case 'x': return fmt::format("input of {}, micro-batch {}", layer, c.position);
    case 'd': return fmt::format("input gradient of {}, micro-batch {}", layer, c.position);
    case 'v': return fmt::format("saved activations of {}, micro-batch {}", layer, c.position);
    case 'c': return fmt::format("carried tensors of {}", layer);
    case 'w': return fmt::format("scratch of {}", layer);
    default: return "discarded output";
  }
}

std::uint64_t StepMap::state_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& c : chunks_)
    if (c.role == 's' || c.role == 't') bytes += c.bytes;
  return bytes;
}

std::uint64_t StepMap::largest_use(const Program& program, Tier tier, Action* which) const {
  std::uint64_t largest = 0;
  for (const auto& action : program.actions) {
    if (action.op == Op::prefetch || tier_of(action) != tier) continue;
    std::uint64_t bytes = 0;
    for (const auto& use : uses(action)) bytes += chunk_bytes(use.chunk);
    if (bytes > largest) {
      largest = bytes;
      if (which) *which = action;
    }
  }
  return largest;
}

}  // namespace terrace
