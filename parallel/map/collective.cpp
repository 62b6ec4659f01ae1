#include <terrace/parallel/map/collective.h>

#include <algorithm>
#include <array>
#include <numeric>

#include <terrace/core/math/block8.h>
#include <terrace/parallel/map/gradient_squares.h>
#include <terrace/parallel/map/step_map.h>

namespace terrace::mapping {
namespace {

ChunkBytes whole(const StepMap& map, ChunkId chunk) { return {chunk, 1, 0, map.chunks()[chunk].bytes}; }

// Gathers a group of weights: this rank's chunk goes to its place in the group.
std::vector<Collective> gather_of(const StepMap& map, const Action& a) {
  const auto& data = map.data();
  const auto mine = whole(map, map.gathered_from(a));
  // If weights are not sharded, the group is a run of chunks, and this rank's chunk is one of them.
  const auto chunks = data.shards(ChunkKind::parameter) ? 1 : data.group();
  return {{.operation = comm::Operation::all_gather,
           .members = {data.shared_by},
           .from = mine,
           .to = {map.gathered(a.layer, a.chunk), chunks, 0, mine.bytes * data.group()},
           .wire = data.weights,
           .dtype = map.options().recipe.compute}};
}

comm::Reduction sum_of_gradients(const StepMap& map) {
  auto sum = comm::Reduction::sum(map.options().recipe.gradient);
  sum.order = map.data().sum_order();
  return sum;
}

Collective all_reduce_of(const mesh::Members& members, const ChunkBytes& what, const comm::Reduction& sum) {
  return {.operation = comm::Operation::all_reduce,
          .members = members,
          .from = what,
          .to = what,
          .reduction = sum,
          .dtype = sum.from};
}

Collective all_gather_of(const mesh::Members& members, const ChunkBytes& from, const ChunkBytes& to) {
  return {.operation = comm::Operation::all_gather, .members = members, .from = from, .to = to};
}

// A group of gradients as the backward wrote it, and the places of its sum on this rank.
struct Group {
  ChunkBytes all;      // written by the backward
  ChunkBytes sums;     // of the whole group: a run of chunks; only if gradients are not sharded
  ChunkBytes own_sum;  // of this rank's chunk
};
Group group_of(const StepMap& map, const Action& reduce) {
  const auto& data = map.data();
  const auto reduced = map.reduced(reduce.layer, reduce.chunk);
  const auto own = whole(map, reduced.into);
  const auto bytes = own.bytes * data.group();
  return {.all = {reduced.first, data.folds_each() ? 1 : data.group(), 0, bytes},
          .sums = {ChunkId(index(reduced.into) - data.place()), data.group(), 0, bytes},
          .own_sum = own};
}

// Each rank of both directions folds one part (not always whole chunks); after the last round, the ranks gather the parts.
std::vector<Collective> between_directions(const StepMap& map, const Action& a) {
  const auto& data = map.data();
  const auto& pipeline = map.pipeline();
  const auto group = group_of(map, a);
  auto sum = sum_of_gradients(map);
  const mesh::Members both{data.axes(), true, std::array{pipeline.holder(a.layer, 0), pipeline.holder(a.layer, 1)}};
  if (!data.folds_each()) return {all_reduce_of(both, group.all, sum)};
  auto part = group.sums;
  part.bytes /= pipeline.replicas() * data.ranks;
  part.offset = part.bytes * (pipeline.replica(a.layer) * data.ranks + data.turn);
  sum.onto = !map.rounds().begins_gradient(a.micro_batch);
  std::vector<Collective> all{{.operation = comm::Operation::reduce_scatter,
                               .members = both,
                               .from = group.all,
                               .to = part,
                               .reduction = sum,
                               .dtype = sum.to}};
  if (map.rounds().ends_gradient(a.micro_batch)) all.push_back(all_gather_of(both, part, group.sums));
  return all;
}

std::vector<Collective> reduction_of(const StepMap& map, const Action& a) {
  if (map.pipeline().replicas() > 1) return between_directions(map, a);
  const auto& data = map.data();
  const auto group = group_of(map, a);
  const auto sum = sum_of_gradients(map);
  if (!data.folds_each() && data.stage() == 0) return {all_reduce_of({data.axes()}, group.all, sum)};
  const bool last = map.rounds().ends_gradient(a.micro_batch);
  Collective scatter{.operation = comm::Operation::reduce_scatter,
                     .members = {data.shared_by},
                     .from = group.all,
                     .to = group.own_sum,
                     .reduction = sum,
                     .wire = data.gradients,
                     .dtype = sum.from};
  scatter.reduction.onto = data.folds_each() && !map.rounds().begins_gradient(a.micro_batch);
  if (data.gradients == Travel::bf16) scatter.reduction.from = DType::bf16;
  scatter.reduction.blocks = data.gradients == Travel::int8;
  // With canonical sums, each replica of the state folds its part of every shard over all ranks.
  if (data.canonical && data.copies() > 1) {
    scatter.members = {data.axes(), true};
    scatter.to.bytes /= data.copies();
    scatter.to.offset = scatter.to.bytes * data.copy;
    if (!last) return {scatter};
    return {scatter, all_gather_of({data.copied_over}, scatter.to, group.own_sum)};
  }
  std::vector<Collective> all{scatter};
  if (last && data.copies() > 1) all.push_back(all_reduce_of({data.copied_over}, group.own_sum, sum));
  if (last && data.folds_each() && !data.shards(ChunkKind::gradient))
    all.push_back(all_gather_of({data.axes()}, group.own_sum, group.sums));
  return all;
}

// The exchanges of an optimizer of whole layers, in its scratch memory.
std::vector<Collective> scratch_exchanges_of(const StepMap& map, const Action& a) {
  std::vector<Collective> all;
  const mesh::Members sharers{map.data().shared_by};
  for (const auto& e : map.layer_needs(a.layer).exchanges) {
    const ChunkBytes sum{map.update_scratch(), 1, e.offset, e.bytes};
    const auto part = e.bytes / map.data().group();
    if (e.way == ScratchExchange::Way::sum)
      all.push_back(all_reduce_of(sharers, sum, comm::Reduction::sum(DType::fp64)));
    else
      all.push_back(all_gather_of(sharers, {sum.first, 1, e.offset + part * map.data().place(), part}, sum));
  }
  return all;
}

std::vector<Collective> message_of(const StepMap& map, const Action& a) {
  std::vector<Collective> all;
  for (const auto chunk : map.carried_by(a)) {
    auto& message = all.emplace_back();
    message.members = {Axis::pp};
    message.peer = a.peer;
    message.lane = static_cast<std::uint32_t>(a.payload);
    message.operation = a.op == Op::send ? comm::Operation::send : comm::Operation::receive;
    (a.op == Op::send ? message.from : message.to) = whole(map, chunk);
  }
  return all;
}

// Every rank visits all weights. The ranks that hold a layer gather its shards, and its first holder broadcasts them to the
// other pipeline ranks; then the ranks with other parts of the model gather theirs.
std::vector<Collective> visit_of(const StepMap& map, const Action& a) {
  const auto& data = map.data();
  const auto& recipe = map.options().recipe;
  const auto parts = map.parts();
  std::vector<Collective> all;
  const auto show = [&](ChunkKind kind) {
    const auto bytes = recipe.chunk_bytes(kind, map.layout().chunk_elements());
    const ChunkBytes mine{map.visited(kind), 1, parts.rank() * bytes * data.group(), bytes * data.group()};
    if (data.shards(kind) && map.pipeline().holds(a.layer))
      all.push_back(all_gather_of({data.shared_by}, whole(map, map.state(kind, a.layer, data.own(a.chunk))), mine));
    for (std::uint32_t i = 0; map.pipeline().ranks > 1 && i < data.group(); ++i) {
      const auto shown = map.shown(kind, a.layer) ? ChunkBytes{map.visited(kind), 1, mine.offset + i * bytes, bytes}
                                                  : whole(map, map.state(kind, a.layer, map.data().chunks_of(a.chunk)[i]));
      Collective broadcast{
          .operation = comm::Operation::broadcast, .members = {Axis::pp}, .peer = map.pipeline().holder(a.layer)};
      (map.pipeline().speaks_for(a.layer) ? broadcast.from : broadcast.to) = shown;
      all.push_back(broadcast);
    }
    const auto ranks = parts.ranks();
    if (ranks == 1) return;
    if (map.shown(kind, a.layer)) {
      all.push_back(all_gather_of({kPartAxes}, mine, {map.visited(kind), 1, 0, mine.bytes * ranks}));
      return;
    }
    for (std::uint32_t i = 0; i < data.group(); ++i)
      all.push_back(all_gather_of({kPartAxes}, whole(map, map.state(kind, a.layer, data.chunks_of(a.chunk)[i])),
                                  {map.visited(kind), 1, i * bytes * ranks, bytes * ranks}));
  };
  for (const auto kind : {ChunkKind::parameter, ChunkKind::master})
    if (map.visits(kind, a)) show(kind);
  return all;
}

// The ranks that hold the same part of a parameter as this one.
mesh::Members holders_of(const StepMap& map, const ParamSpec& param) {
  mesh::Members members{.axes = kPartAxes, .lane = Lane::tensor};
  for (const auto axis : kAllAxes) {
    if (!kPartAxes.has(axis) || map.mesh().degree(axis) == 1) continue;
    const auto neighbour = (map.mesh().coordinate(map.rank(), axis) + 1) % map.mesh().degree(axis);
    const auto other = map.mesh().index(map.mesh().at(map.rank(), axis, neighbour), kPartAxes);
    if (!model::hold_the_same(param, map.parts(), map.parts().of(other))) members.axes = members.axes - axis;
  }
  return members;
}

// Sums the gradients of parameters that several ranks hold, as far as they lie in chunks of this rank. A tied parameter has two
// gradients; the norm adds them later.
std::vector<Collective> unification_of(const StepMap& map, const Action& a) {
  const auto& layout = map.layout();
  const auto sum = sum_of_gradients(map);
  std::vector<Collective> all;
  for (const auto chunk : map.final_gradients(a.layer))
    for (const auto& s : layout.segments(a.layer, chunk)) {
      const auto& param = layout.param_at(a.layer, s.tensor);
      if (model::holders(param, map.parts()) == 1) continue;
      const auto size = size_of(sum.from);
      const auto unite = [&](ChunkId gradient) {
        all.push_back(all_reduce_of(holders_of(map, param), {gradient, 1, s.chunk_element * size, s.elements * size}, sum));
      };
      unite(map.state(ChunkKind::gradient, a.layer, chunk));
      if (layout.is_tied(a.layer, s.tensor)) unite(map.tied_gradient(chunk));
    }
  return all;
}

// A tensor that a phase exchanges.
struct Exchanged {
  TensorSpec spec;
  ChunkBytes bytes;
};
Exchanged exchanged_in(const StepMap& map, const Action& a, const PhaseTensor& tensor) {
  const auto& buffers = map.buffers();
  const auto in_pack = [&](const Pack& pack, ChunkId chunk) {
    const auto& spec = pack.tensors.at(tensor.number);
    return Exchanged{spec, {chunk, 1, pack.offsets.at(tensor.number), spec.bytes()}};
  };
  const auto in_chunk = [](const TensorSpec& spec, ChunkId chunk) { return Exchanged{spec, {chunk, 1, 0, spec.bytes()}}; };
  const auto rows = [&](ChunkId chunk) {
    return in_chunk({"", map.model().dtype, {buffers.rows(), map.model().width}}, chunk);
  };
  switch (tensor.of) {
    case PhaseTensor::Of::saved: return in_pack(buffers.saved_pack(a.layer), buffers.saved(a.layer, a.micro_batch));
    case PhaseTensor::Of::carried: return in_pack(buffers.carried_pack(a.layer), buffers.carried(a.layer, a.micro_batch));
    case PhaseTensor::Of::x: return rows(buffers.x(a.layer, a.micro_batch));
    case PhaseTensor::Of::y: return rows(buffers.x(a.layer + 1, a.micro_batch));
    case PhaseTensor::Of::dx: return rows(buffers.d(a.layer, a.micro_batch));
    case PhaseTensor::Of::dy: return rows(buffers.d(a.layer + 1, a.micro_batch));
    case PhaseTensor::Of::work: break;
  }
  return in_chunk(buffers.work_tensors(a.layer, call_of(a.op)).at(tensor.number),
                  buffers.work(a.layer, call_of(a.op), tensor.number));
}

// The exchange that a phase of a layer's call makes.
std::vector<Collective> phase_exchange_of(const StepMap& map, const Action& a) {
  const auto& exchange = map.phases().phase(a).exchange;
  if (!exchange) return {};
  const auto from = exchanged_in(map, a, exchange->from), to = exchanged_in(map, a, exchange->to);
  const auto dtype = from.spec.dtype;
  const auto bytes = [&](const std::vector<std::int64_t>& elements) {
    std::vector<std::uint64_t> all;
    for (const auto count : elements) all.push_back(static_cast<std::uint64_t>(count) * size_of(dtype));
    return all;
  };
  Collective c{.operation = exchange->operation, .members = exchange->members, .from = from.bytes, .to = to.bytes};
  if (c.operation == comm::Operation::all_to_all) {
    c.sent = bytes(exchange->sent);
    c.received = bytes(exchange->received);
    c.neighbours = exchange->neighbours;
    c.told = exchange->told.has_value();
    c.dtype = dtype;
    return {c};
  }
  c.from.bytes = bytes(exchange->sent).at(0);
  c.to.bytes = bytes(exchange->received).at(0);
  c.peer = exchange->root;
  const bool is_root = map.mesh().index(map.rank(), c.members.axes) == c.peer;
  if (c.operation == comm::Operation::broadcast) (is_root ? c.to : c.from) = {};
  if (c.operation == comm::Operation::reduce && !is_root) c.to = {};
  if (c.operation == comm::Operation::reduce || c.operation == comm::Operation::reduce_scatter ||
      c.operation == comm::Operation::all_reduce) {
    c.reduction = comm::Reduction::sum(dtype);
    c.dtype = dtype;
  }
  return {c};
}

}  // namespace

std::vector<Collective> collectives_of(const StepMap& map, const Action& a) {
  switch (a.op) {
    case Op::gather: return gather_of(map, a);
    case Op::reduce: return reduction_of(map, a);
    case Op::exchange: return scratch_exchanges_of(map, a);
    case Op::visit: return visit_of(map, a);
    case Op::send:
    case Op::receive: return message_of(map, a);
    case Op::unify: return unification_of(map, a);
    case Op::verdict:
      if (const auto squares = squares_of(map)) return {*squares};
      return {};
    case Op::forward:
    case Op::recompute:
    case Op::evaluate:
    case Op::backward:
    case Op::backward_input:
    case Op::backward_weight: return phase_exchange_of(map, a);
    default: return {};
  }
}

Collective losses_of(const StepMap& map) {
  const auto losses = std::uint64_t{map.micro_batches()} * map.data().with_sequences() + router_sums_of(map.model());
  return all_reduce_of({kAllRanks}, {.bytes = losses * sizeof(double)}, comm::Reduction::sum(DType::fp64));
}

std::optional<Collective> squares_of(const StepMap& map) {
  auto holders = kModelAxes;
  if (map.data().stage() >= 1) holders = holders | map.data().shared_by;
  if (map.mesh().size(holders) == 1) return std::nullopt;
  return all_reduce_of({holders}, {.bytes = GradientSquares::blocks_of(map.layout()) * sizeof(double)},
                       comm::Reduction::sum(DType::fp64));
}

std::set<mesh::Members> members_of(const StepMap& map, std::span<const Program* const> programs) {
  std::set<mesh::Members> all{losses_of(map).members, {kAllRanks - kBatchAxes}};  // the second: an evaluation's losses
  if (const auto squares = squares_of(map)) all.insert(squares->members);
  for (const auto* const program : programs)
    for (const auto& action : program->actions)
      for (const auto& collective : collectives_of(map, action)) all.insert(collective.members);
  return all;
}

std::uint64_t wire_bytes(const Collective& c) {
  if (c.told) return std::accumulate(c.sent.begin(), c.sent.end(), std::uint64_t{0});
  const auto bytes = c.operation == comm::Operation::all_gather || c.operation == comm::Operation::receive ? c.to.bytes
                     : c.from.bytes != 0                                                                   ? c.from.bytes
                                                                                                           : c.to.bytes;
  if (c.wire == Travel::bf16) return bytes / 2;
  return c.wire == Travel::int8 ? bytes / size_of(c.dtype) / math::kBlock8Elements * math::kBlock8Bytes : bytes;
}

std::vector<Use> uses_of(const StepMap& map, std::span<const Collective> collectives) {
  std::vector<Use> uses;
  const auto is_in = [](const ChunkBytes& run, std::uint32_t chunk) {
    return chunk >= index(run.first) && chunk - index(run.first) < run.chunks;
  };
  for (std::size_t n = 0; n < collectives.size(); ++n) {
    const auto& c = collectives[n];
    const auto add = [&](std::uint32_t chunk, Access access) {
      const auto knows = [&](const Collective& earlier) { return is_in(earlier.from, chunk) || is_in(earlier.to, chunk); };
      if (std::ranges::none_of(collectives.first(n), knows) && map.chunks()[ChunkId(chunk)].bytes != 0)
        uses.push_back({ChunkId(chunk), access});
    };
    // A gather in place leaves the rank's own block as it is.
    const bool keeps_own = c.operation == comm::Operation::all_gather && c.from.chunks == 1 && c.from.offset == 0 &&
                           c.from.bytes == map.chunks()[c.from.first].bytes;
    for (auto i = index(c.from.first); is_in(c.from, i); ++i)
      add(i, is_in(c.to, i) && !keeps_own ? Access::update : Access::read);
    for (auto i = index(c.to.first); is_in(c.to, i); ++i)
      if (!is_in(c.from, i)) add(i, c.reduction.onto ? Access::update : Access::overwrite);
  }
  return uses;
}

}  // namespace terrace::mapping
