// The chunks that every action uses.
#include <algorithm>
#include <optional>

#include <terrace/parallel/map/collective.h>
#include <terrace/parallel/map/step_map.h>

namespace terrace {

void StepMap::use_run(std::vector<Use>& uses, ChunkId first, std::uint32_t count, Access access) const {
  for (std::uint32_t i = 0; i < count; ++i) uses.push_back({ChunkId(index(first) + i), access});
}

void StepMap::use_weights(std::vector<Use>& uses, const Action& a) const {
  for (const auto& [home, run, first] : phases_.weights(a))
    use_run(uses, weights_at(home, run, a.copy), run.count / weights_each(), Access::read);
}

void StepMap::use_gradients(std::vector<Use>& uses, const Action& a) const {
  const bool begins = rounds_.begins_gradient(a.micro_batch) || data().folds_each();
  for (const auto& [home, run, first] : phases_.gradients(a)) {
    const auto chunks = home == a.layer ? run.count : std::min(run.count, layout_.tied_chunks() - run.first);
    use_run(uses, gradients_at(a.layer, home, run), chunks / gradients_each(),
            begins && first ? Access::overwrite : Access::update);
  }
}

// The chunks of one phase of a layer action.
void StepMap::use_phase(std::vector<Use>& uses, const Action& a) const {
  const auto& phase = phases_.phase(a);
  const bool last = a.layer + 1 == layers(), backward = is_backward(a.op);
  const bool has_input_half = a.op != Op::backward_weight && has(phase.half, Half::input);
  const auto skip = skips_.into(a.layer);
  use_weights(uses, a);
  if (phase.x) use_some(uses, buffers_.x(a.layer, a.micro_batch), Access::read);
  if (!backward) {
    if (skip != kNone && phase.x) use_some(uses, buffers_.x(skip, a.micro_batch), Access::read);
    if (phase.y && !last)
      use_some(uses, a.op == Op::recompute ? buffers_.spare() : buffers_.x(a.layer + 1, a.micro_batch), *phase.y);
  }
  if (phase.saved) use_some(uses, buffers_.saved(a.layer, a.micro_batch), backward ? Access::read : *phase.saved);
  if (backward && phase.dy && !last) {
    const bool adds = has_input_half && phases_.is_first(a) && adds_skip_before(a.layer, a.micro_batch);
    use_some(uses, buffers_.d(a.layer + 1, a.micro_batch), adds ? Access::update : Access::read);
    if (adds) use_some(uses, buffers_.e(a.layer + 1, a.micro_batch), Access::read);
  }
  if (backward && has_input_half && phase.dx) {
    use_some(uses, buffers_.d(a.layer, a.micro_batch), *phase.dx);
    if (adds_skip_behind(a.layer, a.micro_batch)) use_some(uses, buffers_.e(a.layer, a.micro_batch), Access::read);
    if (skip != kNone) use_some(uses, buffers_.x(skip, a.micro_batch), Access::read);
    if (skip != kNone) use_some(uses, buffers_.e(skip, a.micro_batch), Access::overwrite);
  }
  if (backward && a.op != Op::backward_input) use_gradients(uses, a);
  if (phase.carried)
    use_some(uses, buffers_.carried(a.layer, a.micro_batch), a.op == Op::backward_weight ? Access::read : *phase.carried);
  for (const auto& [tensor, access] : phase.work)
    use_some(uses, buffers_.work(a.layer, mapping::call_of(a.op), tensor), access);
  use_some(uses, buffers_.scratch(a), Access::overwrite);
}

void StepMap::use_some(std::vector<Use>& uses, ChunkId chunk, Access access) const {
  if (chunks_[chunk].bytes != 0) uses.push_back({chunk, access});
}

// The chunks that the visit exchanges, and the group's own weights if nothing is exchanged.
void StepMap::use_visited(std::vector<Use>& uses, const Action& a) const {
  uses = mapping::uses_of(*this, mapping::collectives_of(*this, a));
  const auto read_here = [&](ChunkKind kind) {
    if (pipeline().ranks == 1 && visited_in_place(kind, a.layer))
      use_run(uses, state(kind, a.layer, data().chunks_of(a.chunk).front()), data().group(), Access::read);
  };
  for (const auto kind : {ChunkKind::parameter, ChunkKind::master})
    if (visits(kind, a)) read_here(kind);
}

// An update is whole or in halves. The first half reads weights and gradients, the second writes weights; each state belongs to
// one half.
void StepMap::use_updated(std::vector<Use>& uses, const Action& a) const {
  const bool halves = halves_updates(), prepares = a.op == Op::prepare, finishes = !prepares, keeps = a.op == Op::early;
  const auto access = [&](ChunkKind kind) -> std::optional<Access> {
    if (kind == ChunkKind::gradient) return finishes && halves ? std::nullopt : std::optional{Access::read};
    if (kind == ChunkKind::parameter && options_.recipe.copies_master() && !keeps)
      return prepares ? std::nullopt : std::optional{Access::overwrite};
    if (kind == ChunkKind::parameter || kind == ChunkKind::master) return prepares ? Access::read : Access::update;
    const bool whole = rules::is_packed(options_.recipe.format_of(kind)) && options_.layer_unit->second_moment == Packed::whole;
    return halves && prepares == whole ? std::nullopt : std::optional{Access::update};
  };
  for (const auto kind : kinds_)
    if (const auto how = access(kind))
      for (const auto i : updated_by(a)) uses.push_back({state(kind, a.layer, i), *how});
  for (const auto kind : kinds_)
    if (keeps && kind != ChunkKind::gradient)
      for (const auto i : updated_by(a)) uses.push_back({previous(kind, a.layer, i), Access::overwrite});
  if (options_.layer_unit) use_some(uses, update_scratch(), finishes && halves ? Access::update : Access::overwrite);
}

std::vector<std::uint32_t> StepMap::owned(ChunkKind kind, std::uint32_t layer) const {
  std::vector<std::uint32_t> chunks;
  for (std::uint32_t g = 0; g < chunks_with(kind, layer) / data().group(); ++g)
    for (const auto i : data().updated_in(g)) chunks.push_back(i);
  return chunks;
}

std::vector<std::uint32_t> StepMap::final_gradients(std::uint32_t layer) const { return owned(ChunkKind::gradient, layer); }

std::vector<std::uint32_t> StepMap::final_gradients(const Action& norm) const {
  auto chunks = final_gradients(norm.layer);
  const auto& runs = layout_.runs_of(norm.layer);
  if (runs.size() > 1)
    std::erase_if(chunks, [&](std::uint32_t c) {
      return c < runs[norm.phase].first || c - runs[norm.phase].first >= runs[norm.phase].count;
    });
  return chunks;
}

std::vector<Use> StepMap::uses(const Action& a) const {
  std::vector<Use> uses;
  switch (a.op) {
    case Op::forward:
    case Op::recompute:
    case Op::evaluate:
    case Op::backward:
    case Op::backward_input:
    case Op::backward_weight:
    case Op::decode: use_phase(uses, a); break;
    case Op::norm:
      for (const auto i : final_gradients(a))
        uses.push_back({state(ChunkKind::gradient, a.layer, i), layout_.adds_tied(a.layer, i) ? Access::update : Access::read});
      for (const auto i : final_gradients(a))
        if (layout_.adds_tied(a.layer, i)) uses.push_back({tied_gradient(i), Access::read});
      break;
    case Op::update:
    case Op::early:
    case Op::prepare: use_updated(uses, a); break;
    case Op::restore:
      for (const auto kind : kinds_)
        for (const auto i : updated_by(a)) {
          if (kind == ChunkKind::gradient) continue;
          uses.push_back({previous(kind, a.layer, i), Access::read});
          uses.push_back({state(kind, a.layer, i), Access::overwrite});
        }
      break;
    case Op::fill:
      for (const auto kind : kinds_)
        if (kind == ChunkKind::parameter || (kind == ChunkKind::master && !is_frozen(a.layer, a.chunk)))
          for (const auto i : data().updated_in(a.chunk)) uses.push_back({state(kind, a.layer, i), Access::overwrite});
      break;
    case Op::visit: use_visited(uses, a); break;
    case Op::gather:
    case Op::reduce:
    case Op::exchange:
    case Op::send:
    case Op::receive:
    case Op::verdict:
    case Op::unify: return mapping::uses_of(*this, mapping::collectives_of(*this, a));
    case Op::offload:
    case Op::release: break;
    case Op::keep:
      for (const auto& [from, to] : kept_by(a)) {
        uses.push_back({from, Access::read});
        uses.push_back({to, Access::overwrite});
      }
      break;
    case Op::prefetch: break;
  }
  return uses;
}

}  // namespace terrace
