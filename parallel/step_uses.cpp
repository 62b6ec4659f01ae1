// The chunks that every action uses, their tier, and the chunks that are dead afterwards.
#include <algorithm>
#include <optional>
#include <set>

#include <terrace/parallel/collective.h>
#include <terrace/parallel/step_map.h>

namespace terrace {

void StepMap::use_run(std::vector<Use>& uses, ChunkId first, std::uint32_t count, Access access) const {
  for (std::uint32_t i = 0; i < count; ++i) uses.push_back({ChunkId(index(first) + i), access});
}

void StepMap::use_weights(std::vector<Use>& uses, std::uint32_t layer, std::uint32_t copy) const {
  if (copy != 0 && !data().shards(Kind::parameter)) return use_run(uses, kept(layer, copy), kept_chunks(layer), Access::read);
  const auto chunks = [&](std::uint32_t l) { return data().shards(Kind::parameter) ? groups_of(l) : layout_.chunks_of(l); };
  use_run(uses, weights(layer), chunks(layer), Access::read);
  if (layer == tied_layer_) use_run(uses, weights(tied_home_), chunks(tied_home_), Access::read);
}

void StepMap::use_gradients(std::vector<Use>& uses, std::uint32_t layer, Access access) const {
  const auto group = data().folds_each() ? data().group() : 1;  // chunks of the layout in one chunk
  use_run(uses, gradients(layer), layout_.chunks_of(layer) / group, access);
  if (layer == tied_layer_) use_run(uses, tied_gradients(), tied_chunks_ / group, access);
}

void StepMap::use_some(std::vector<Use>& uses, ChunkId chunk, Access access) const {
  if (chunk_bytes(chunk) != 0) uses.push_back({chunk, access});
}

// What is exchanged for the visit, and of the weights that this rank shows to others, or has alone, all of the group.
void StepMap::use_visited(std::vector<Use>& uses, const Action& a) const {
  uses = uses_of(*this, collectives_of(*this, a));
  const auto read_here = [&](Kind kind) {
    if (pipeline().ranks == 1 && !shown(kind, a.layer))
      use_run(uses, state(kind, a.layer, chunks_of(a.chunk).front()), data().group(), Access::read);
  };
  // Parameters that are copies of the masters need not be visited.
  if (!options_.recipe.copies_master()) read_here(Kind::parameter);
  if (options_.recipe.has_master()) read_here(Kind::master);
}

// An update at once, or in halves: the first reads weights and gradients, the second writes weights; each state belongs to one
// half.
void StepMap::use_updated(std::vector<Use>& uses, const Action& a) const {
  const bool halves = halves_updates(), prepares = a.op == Op::prepare, finishes = a.op == Op::update;
  const auto access = [&](Kind kind) -> std::optional<Access> {
    if (kind == Kind::gradient) return finishes && halves ? std::nullopt : std::optional{Access::read};
    if (kind == Kind::parameter && options_.recipe.copies_master())
      return prepares ? std::nullopt : std::optional{Access::overwrite};
    if (kind == Kind::parameter || kind == Kind::master) return prepares ? Access::read : Access::update;
    const bool whole = is_packed(options_.recipe.format_of(kind)) && options_.layer_unit->second_moment == Packed::whole;
    return halves && prepares == whole ? std::nullopt : std::optional{Access::update};
  };
  for (const auto kind : kinds_)
    if (const auto how = access(kind))
      for (const auto i : updated_by(a)) uses.push_back({state(kind, a.layer, i), *how});
  if (options_.layer_unit) use_some(uses, update_scratch(), finishes && halves ? Access::update : Access::overwrite);
}

std::vector<std::uint32_t> StepMap::final_gradients(std::uint32_t layer) const {
  std::vector<std::uint32_t> chunks;
  for (std::uint32_t g = 0; g < groups_of(layer); ++g)
    for (const auto i : updated_in(g)) chunks.push_back(i);
  return chunks;
}

std::vector<Use> StepMap::uses(const Action& a) const {
  std::vector<Use> uses;
  const bool last = a.layer + 1 == layers();
  const auto skip = a.layer < layers() ? skips_.into(a.layer) : kNone;
  const bool first = begins_gradient(a.micro_batch) || data().folds_each();
  const auto into_gradients = first ? Access::overwrite : Access::update;
  switch (a.op) {
    case Op::forward:
    case Op::recompute:
    case Op::evaluate:
      use_weights(uses, a.layer, a.copy);
      use_some(uses, x(a.layer, a.micro_batch), Access::read);
      if (skip != kNone) use_some(uses, x(skip, a.micro_batch), Access::read);
      if (!last) {
        use_some(uses, a.op == Op::recompute ? spare() : x(a.layer + 1, a.micro_batch), Access::overwrite);
      }
      use_some(uses, saved(a.layer, a.micro_batch), Access::overwrite);
      use_some(uses, scratch(a.layer), Access::overwrite);
      break;
    case Op::backward:
    case Op::backward_input:
    case Op::backward_weight:
      use_weights(uses, a.layer, a.copy);
      if (keeps_input(a.layer)) use_some(uses, x(a.layer, a.micro_batch), Access::read);
      use_some(uses, saved(a.layer, a.micro_batch), Access::read);
      if (!last) {
        const bool adds = a.op != Op::backward_weight && adds_skip_before(a.layer, a.micro_batch);
        use_some(uses, d(a.layer + 1, a.micro_batch), adds ? Access::update : Access::read);
        if (adds) use_some(uses, e(a.layer + 1, a.micro_batch), Access::read);
      }
      if (a.op != Op::backward_weight) {
        use_some(uses, d(a.layer, a.micro_batch), Access::overwrite);
        if (adds_skip_behind(a.layer, a.micro_batch)) use_some(uses, e(a.layer, a.micro_batch), Access::read);
        if (skip != kNone) use_some(uses, x(skip, a.micro_batch), Access::read);
        if (skip != kNone) use_some(uses, e(skip, a.micro_batch), Access::overwrite);
      }
      if (a.op != Op::backward_input) use_gradients(uses, a.layer, into_gradients);
      use_some(uses, carried(a.layer, a.micro_batch), a.op == Op::backward_weight ? Access::read : Access::overwrite);
      use_some(uses, scratch(a.layer), Access::overwrite);
      break;
    case Op::norm:
      for (const auto i : final_gradients(a.layer))
        uses.push_back({state(Kind::gradient, a.layer, i), adds_tied(a.layer, i) ? Access::update : Access::read});
      for (const auto i : final_gradients(a.layer))
        if (adds_tied(a.layer, i)) uses.push_back({tied_gradient(i), Access::read});
      break;
    case Op::update:
    case Op::prepare: use_updated(uses, a); break;
    case Op::fill:
      for (const auto kind : kinds_)
        if (kind == Kind::parameter || kind == Kind::master)
          for (const auto i : updated_in(a.chunk)) uses.push_back({state(kind, a.layer, i), Access::overwrite});
      break;
    case Op::visit: use_visited(uses, a); break;
    case Op::gather:
    case Op::reduce:
    case Op::exchange:
    case Op::send:
    case Op::receive:
    case Op::verdict: return uses_of(*this, collectives_of(*this, a));
    case Op::offload:
    case Op::release: break;
    case Op::keep:
      for (const auto& [from, to] : kept_by(a)) {
        uses.push_back({from, Access::read});
        uses.push_back({to, Access::overwrite});
      }
      break;
    case Op::decode:
      use_weights(uses, a.layer, 0);
      use_some(uses, x(a.layer, 0), Access::read);
      if (skip != kNone) use_some(uses, x(skip, 0), Access::read);
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
  const auto skip = a.layer < layers() ? skips_.into(a.layer) : kNone;
  // After a forward without a backward: its input, unless a later layer reads it too; and the tensor of its skip.
  const auto add_inputs = [&] {
    if (!reads_skip_here(a.layer, a.micro_batch)) add(x(a.layer, a.micro_batch));
    if (skip != kNone) add(x(skip, a.micro_batch));
  };
  // After an input half: a skip's tensor from another rank, and the skip's part of a gradient once it has been added.
  const auto add_skips = [&] {
    if (skip != kNone && !pipeline().computes(skip, a.micro_batch)) add(x(skip, a.micro_batch));
    if (adds_skip_behind(a.layer, a.micro_batch)) add(e(a.layer, a.micro_batch));
    if (adds_skip_before(a.layer, a.micro_batch)) add(e(a.layer + 1, a.micro_batch));
  };
  switch (a.op) {
    case Op::forward:
    case Op::recompute:
      add(scratch(a.layer));
      if (a.op == Op::recompute && !last) add(spare());
      if (a.op == Op::forward && recomputes(a.layer)) add(saved(a.layer, a.micro_batch));
      if (a.op == Op::forward && !keeps_input(a.layer)) add(x(a.layer, a.micro_batch));
      break;
    case Op::evaluate:
      add(scratch(a.layer));
      add(saved(a.layer, a.micro_batch));
      add_inputs();
      break;
    case Op::backward:
    case Op::backward_weight:
      if (a.op == Op::backward) add_skips();
      if (keeps_input(a.layer)) add(x(a.layer, a.micro_batch));
      add(saved(a.layer, a.micro_batch));
      if (!last) add(d(a.layer + 1, a.micro_batch));
      add(carried(a.layer, a.micro_batch));
      add(scratch(a.layer));
      break;
    case Op::backward_input:
      add_skips();
      add(scratch(a.layer));
      break;
    case Op::norm:
      for (const auto i : final_gradients(a.layer))
        if (adds_tied(a.layer, i)) add(tied_gradient(i));
      break;
    case Op::update:
    case Op::prepare:
      if (a.op == Op::prepare || !halves_updates())
        for (const auto i : updated_by(a)) add(state(Kind::gradient, a.layer, i));
      if (a.op == Op::update && options_.layer_unit) add(update_scratch());
      break;
    case Op::reduce: {
      const auto [first, into, tied] = reduced(a.layer, a.chunk);
      if (data().folds_each()) add(first);
      // Of a sum that is whole on this rank, only the chunks that this rank updates are kept.
      const bool has_whole = !data().shards(Kind::gradient) && ends_gradient(a.micro_batch);
      for (std::uint32_t i = 0; data().stage() >= 1 && has_whole && i < data().group(); ++i)
        if (i != data().place()) add(ChunkId(index(into) - data().place() + i));
      break;
    }
    case Op::release:
      for (std::uint32_t c = 0; a.copy != 0 && c < kept_chunks(a.layer); ++c) add(ChunkId(index(kept(a.layer, a.copy)) + c));
      for (std::uint32_t g = 0; a.copy == 0 && g < groups_of(a.layer); ++g) add(gathered(a.layer, g));
      break;
    case Op::visit:
      for (const auto kind : {Kind::master, Kind::parameter}) {
        const bool used = shown(kind, a.layer) && (kind == Kind::master || !options_.recipe.copies_master());
        if (used && index(visited(kind)) != kNone) add(visited(kind));
      }
      break;
    case Op::decode:
      add_inputs();
      add(scratch(a.layer));
      break;
    case Op::send: {
      // A result may go to two ranks, and be read here as well.
      const bool computes = pipeline().computes(a.layer, a.micro_batch) || reads_skip_here(a.layer, a.micro_batch);
      if (a.payload == Payload::activation && (computes || !is_last_sent(a))) break;
      for (const auto chunk : carried_by(a))
        if (a.payload != Payload::weights) add(chunk);
      break;
    }
    case Op::fill:
    case Op::gather:
    case Op::exchange:
    case Op::offload:
    case Op::receive:
    case Op::keep:
    case Op::verdict:
    case Op::prefetch: break;
  }
  return dead;
}

Traffic StepMap::offloaded_by(const Program& step) const {
  Traffic moved;
  std::set<ChunkId> away, copied;  // off the device; with the same content on the host
  for (const auto& a : step.actions) {
    if (a.op == Op::offload)
      for (const auto chunk : offloaded_behind(a.layer, a.micro_batch)) {
        away.insert(chunk);
        if (copied.insert(chunk).second) moved.download += chunk_bytes(chunk);
      }
    if (a.op == Op::prefetch || tier_of(a) != Tier::device || copied.empty()) continue;
    for (const auto& use : uses(a)) {
      if (away.erase(use.chunk) != 0) moved.upload += chunk_bytes(use.chunk);
      if (writes(use.access)) copied.erase(use.chunk);
    }
    for (const auto chunk : dead_after(a)) away.erase(chunk), copied.erase(chunk);
  }
  return moved;
}

bool StepMap::moves_state(const Program& step, const Traffic& moved) const {
  const auto offloaded = offloaded_by(step);
  return moved.upload > offloaded.upload || moved.download > offloaded.download || moved.read + moved.write != 0;
}

std::vector<ChunkId> StepMap::left_by_forward(std::uint32_t layer, std::uint32_t micro_batch) const {
  std::vector<ChunkId> left;
  const auto add = [&](ChunkId c) {
    if (chunk_bytes(c) != 0) left.push_back(c);
  };
  if (keeps_input(layer)) add(x(layer, micro_batch));
  if (!recomputes(layer)) add(saved(layer, micro_batch));
  const auto skip = skips_.into(layer);
  if (skip != kNone && pipeline().computes(layer, micro_batch) && !pipeline().computes(skip, micro_batch))
    left.push_back(x(skip, micro_batch));
  return left;
}

std::vector<ChunkId> StepMap::offloaded_behind(std::uint32_t layer, std::uint32_t micro_batch) const {
  auto all = left_by_forward(layer, micro_batch);
  const auto skip = skips_.into(layer);
  if (skip != kNone && pipeline().computes(layer, micro_batch) && pipeline().computes(skip, micro_batch))
    all.push_back(x(skip, micro_batch));
  return all;
}

Tier StepMap::tier_of(const Action& a) const {
  switch (a.op) {
    case Op::update:
    case Op::prepare:
    case Op::exchange: return options_.update.of(first_update_[a.layer] + (options_.layer_unit ? 0 : a.chunk));
    case Op::fill:  // done by functions on the host
    case Op::visit: return options_.separate_device ? Tier::host : options_.update.most();
    case Op::send:  // from the tier where most chunks were updated
    case Op::receive: return a.payload == Payload::weights ? options_.update.most() : Tier::device;
    default: return Tier::device;
  }
}

Lane StepMap::lane_of(const Action& a) const {
  // With a separate device, work in host memory does not use the device's streams.
  if (communicates(a.op) && (a.op != Op::exchange || lane_of(tier_of(a)) != Lane::update)) return Lane::communication;
  if (is_message(a.op)) {
    const auto at = std::ranges::find(peer_lanes_, PeerLane{a.op, a.payload, a.peer});
    if (at == peer_lanes_.end()) throw Error(to_text(a) + ": this rank of the pipeline has no such lane", Exit::usage);
    return static_cast<Lane>(index(Lane::message) + static_cast<std::size_t>(at - peer_lanes_.begin()));
  }
  return lane_of(tier_of(a));
}

Lane StepMap::lane_of(Tier tier) const { return options_.separate_device && tier == Tier::host ? Lane::update : Lane::compute; }

}  // namespace terrace
