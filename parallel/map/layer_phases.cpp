#include <terrace/parallel/map/layer_phases.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

#include <terrace/core/base/units.h>

namespace terrace::mapping {
namespace {

// The single phase of an undivided call: it uses everything that the call may use.
Phase whole_call(const LayerFacts& layer, const std::vector<ParamSpec>& params, LayerCall call, bool last,
                 std::uint64_t scratch_bytes) {
  Phase phase{.x = call != LayerCall::backward || last || layer.keeps_input, .dy = true, .scratch_bytes = scratch_bytes};
  for (std::uint32_t p = 0; p < params.size(); ++p) phase.weights.push_back({p});
  if (call == LayerCall::backward) {
    phase.gradients = phase.weights;
    phase.dx = phase.carried = Access::overwrite;
    phase.saved = Access::read;
  } else {
    phase.y = Access::overwrite;
    phase.saved = call == LayerCall::decode ? Access::update : Access::overwrite;
  }
  // The last layer's backward computes its forward, too.
  phase.flops = (call != LayerCall::backward ? 1 : last ? 3 : 2) * layer.forward_flops;
  return phase;
}

// Removes the gradients of frozen parameters from a phase. Its FLOPs for gradients shrink to the other parameters' share of the
// elements; in a phase of both halves, half of the FLOPs are for gradients.
void drop_frozen(Phase& phase, const std::vector<ParamSpec>& params) {
  double all = 0, trained = 0;
  for (const auto& p : phase.gradients) {
    const auto elements = static_cast<double>(params[p.param].shape.elements());
    all += elements;
    if (!params[p.param].frozen) trained += elements;
  }
  if (all == trained) return;
  const double share = trained / all, of_weights = phase.half == Half::both ? 0.5 : 1;
  for (auto* const work : {&phase.flops, &phase.float8_flops, &phase.float8_bytes}) *work -= of_weights * *work * (1 - share);
  std::erase_if(phase.gradients, [&](const PhaseParam& p) { return params[p.param].frozen; });
}

// The phases that compute use the rooms of x, y, dx and dy instead of these tensors.
void use_rooms(Phase& phase, const CallSteps& steps) {
  using Of = PhaseTensor::Of;
  if (phase.exchange) return;
  const auto use = [&](Of tensor, std::optional<Access> access) {
    const auto room = steps.room_of(tensor);
    if (!room || !access) return false;
    phase.work.push_back({*room, *access});
    return true;
  };
  const auto reads = [](bool used) { return used ? std::optional(Access::read) : std::nullopt; };
  if (use(Of::x, reads(phase.x))) phase.x = false;
  if (use(Of::dy, reads(phase.dy))) phase.dy = false;
  if (use(Of::y, phase.y)) phase.y = {};
  if (use(Of::dx, phase.dx)) phase.dx = {};
}

// Such a phase must run even if its own gradients are frozen: a later phase may need its work tensors.
bool writes_work(const Phase& phase) {
  return std::ranges::any_of(phase.work, [](const PhaseWork& used) { return writes(used.access); });
}

void demand(const Layer& layer, const std::vector<ParamSpec>& params, const std::vector<PhaseParam>& used) {
  for (const auto& [param, tile] : used)
    if (param >= params.size() || tile >= params[param].tiles)
      throw std::logic_error(layer.name() + ": a phase uses a parameter or a tile that does not exist");
}

}  // namespace

LayerCall call_of(Op op) {
  if (is_forward(op)) return LayerCall::forward;
  return is_backward(op) ? LayerCall::backward : LayerCall::decode;
}

Half halves_of(Op op) { return op == Op::backward_input ? Half::input : op == Op::backward_weight ? Half::weight : Half::both; }

LayerPhases::LayerPhases(const Model& model, const BatchShape& shape, const ParameterLayout& layout) {
  for (std::uint32_t l = 0; l < model.layers.size(); ++l) {
    facts_.push_back(model.layers[l]->facts(shape));
    calls_.emplace_back();
    steps_.emplace_back();
    scratch_bytes_.emplace_back();
    for (const auto call : {LayerCall::forward, LayerCall::backward, LayerCall::decode})
      add_call(model, shape, layout, l, call);
    auto& numbers = numbers_.emplace_back();
    for (const auto op :
         {Op::forward, Op::recompute, Op::evaluate, Op::backward, Op::backward_input, Op::backward_weight, Op::decode})
      numbers[static_cast<std::size_t>(op)] = numbers_of(op, *model.layers[l], calls_[l]);
    const auto runs = layout.runs_of(l).empty() ? 1 : layout.trained_runs(l);
    for (std::uint32_t r = 0; r < runs; ++r) numbers[static_cast<std::size_t>(Op::norm)].push_back(r);
  }
}

// The phases of one call, with the runs that each uses.
void LayerPhases::add_call(const Model& model, const BatchShape& shape, const ParameterLayout& layout, std::uint32_t l,
                           LayerCall call) {
  const auto& layer = *model.layers[l];
  const auto& params = layout.params(l);
  auto& steps = steps_[l][static_cast<std::size_t>(call)];
  layer.describe(steps, call, shape);
  auto phases = steps.phases();
  if (phases.empty()) phases.push_back({.undivided = true});  // a call that the layer does not have
  const bool has_frozen = std::ranges::any_of(params, &ParamSpec::frozen);
  std::vector<Runs> read, written;
  for (auto& phase : phases) {
    if (phase.undivided) phase = whole_call(facts_[l], params, call, l + 1 == model.layers.size(), phase.scratch_bytes);
    demand(layer, params, phase.weights);
    demand(layer, params, phase.gradients);
    drop_frozen(phase, params);
    OfPhase all{.phase = {}, .weights = runs_of(layout, l, phase.weights, read), .gradients = {}};
    all.idle = has_frozen && call == LayerCall::backward && phase.half == Half::weight && phase.gradients.empty() &&
               !phase.exchange && !writes_work(phase);
    // Nothing reads the gradient of this input.
    if (phase.exchange && phase.exchange->to.of == PhaseTensor::Of::dx && l <= layout.first_trained()) all.idle = true;
    use_rooms(phase, steps);
    all.gradients = runs_of(layout, l, phase.gradients, written);
    all.scratch = scratch_of(l, round_up(phase.scratch_bytes, kPageBytes));
    if (const auto& exchange = phase.exchange) {
      any_exchange_ = true;
      // A rank that is the root of one reduction keeps its sum through those that follow.
      const bool keeps = exchange->operation == comm::Operation::reduce && exchange->root != 0;
      const auto use = [&](const PhaseTensor& tensor, Access access) {
        if (tensor.of == PhaseTensor::Of::work) phase.work.push_back({tensor.number, access});
      };
      use(exchange->from, Access::read);
      use(exchange->to, keeps ? Access::update : Access::overwrite);
    }
    all.phase = std::move(phase);
    calls_[l][static_cast<std::size_t>(call)].push_back(std::move(all));
  }
}

// Index of this scratch size in the layer's list of distinct sizes.
std::uint32_t LayerPhases::scratch_of(std::uint32_t layer, std::uint64_t bytes) {
  auto& sizes = scratch_bytes_[layer];
  const auto at = std::ranges::find(sizes, bytes) - sizes.begin();
  if (at == std::ssize(sizes)) sizes.push_back(bytes);
  return static_cast<std::uint32_t>(at);
}

// The numbers of the call's phases that compute a half of the action; for a recomputation, only up to the last one that saves.
std::vector<std::uint32_t> LayerPhases::numbers_of(Op op, const Layer& layer, const std::array<OfCall, kLayerCalls>& calls) {
  const auto& phases = calls[static_cast<std::size_t>(call_of(op))];
  std::vector<std::uint32_t> numbers;
  std::size_t saved = 1;  // how many phases run until everything is saved
  bool any = false;
  for (std::uint32_t p = 0; p < phases.size(); ++p) {
    if (!has(phases[p].phase.half, halves_of(op))) continue;
    any = true;
    if (phases[p].idle) continue;
    numbers.push_back(p);
    if (const auto& access = phases[p].phase.saved; access && writes(*access)) saved = numbers.size();
  }
  if (!any) throw std::logic_error(layer.name() + ": a half of its backward has no phase");
  if (op == Op::recompute) numbers.resize(saved);
  return numbers;
}

std::vector<LayerPhases::Runs> LayerPhases::runs_of(const ParameterLayout& layout, std::uint32_t layer,
                                                    const std::vector<PhaseParam>& params, std::vector<Runs>& used) {
  std::vector<Runs> runs;
  const auto is_in = [](const std::vector<Runs>& all, const Runs& r) {
    return std::ranges::any_of(all, [&](const Runs& o) { return o.home == r.home && o.run.first == r.run.first; });
  };
  for (const auto& [param, tile] : params) {
    const auto home = layout.home(layer, param, tile);
    Runs r{home.layer, layout.run_of(layout.place_of(home))};
    if (is_in(runs, r)) continue;
    r.first = !is_in(used, r);
    runs.push_back(r);
  }
  used.insert(used.end(), runs.begin(), runs.end());
  return runs;
}

const LayerPhases::OfPhase& LayerPhases::at(const Action& a) const {
  const auto& phases = calls_.at(a.layer)[static_cast<std::size_t>(call_of(a.op))];
  if (a.phase >= phases.size()) throw std::logic_error("there is no phase " + std::to_string(a.phase) + " of " + to_text(a));
  return phases[a.phase];
}

std::vector<std::uint32_t> LayerPhases::ended_work(const Action& a) const {
  std::vector<std::uint32_t> ended;
  const auto& call = calls_[a.layer][static_cast<std::size_t>(call_of(a.op))];
  for (const auto& used : at(a).phase.work)
    if (std::ranges::none_of(numbers(a.op, a.layer), [&](std::uint32_t number) {
          return number > a.phase && std::ranges::count(call[number].phase.work, used.tensor, &PhaseWork::tensor) != 0;
        }))
      ended.push_back(used.tensor);
  return ended;
}

std::uint32_t LayerPhases::number_for_layer(const Action& a) const {
  return calls_[a.layer][static_cast<std::size_t>(call_of(a.op))].size() == 1 ? kAllPhases : a.phase;
}

double LayerPhases::flops(const Action& a) const { return part_of_half(a) * at(a).phase.flops; }

double LayerPhases::float8_flops(const Action& a) const { return part_of_half(a) * at(a).phase.float8_flops; }

double LayerPhases::float8_bytes(const Action& a) const { return part_of_half(a) * at(a).phase.float8_bytes; }

double LayerPhases::part_of_half(const Action& a) const {
  return at(a).phase.half == Half::both && halves_of(a.op) != Half::both ? 0.5 : 1;
}

}  // namespace terrace::mapping
