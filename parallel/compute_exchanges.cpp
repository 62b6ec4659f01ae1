// Compute's actions that communicate with other ranks, and the sharing of a step's results.
#include <terrace/core/block8.h>
#include <terrace/parallel/compute_views.h>

namespace terrace {
namespace {

TensorView packed_blocks(std::byte* at, std::int64_t elements) {
  return {at, DType::i32, {elements / kBlock8Elements, kBlock8Words}};
}

}  // namespace

// Every number is computed on one rank and zero on all others, so that the sum is that number.
void Compute::share_results(Share what) {
  auto* const among = what == Share::step ? parts_.ranks.all : what == Share::evaluation ? parts_.ranks.pipeline : nullptr;
  if (!among) return;
  auto& stream = *parts_.communication_stream;
  const auto share = [&](Communicator& ranks, std::span<double> numbers) {
    const Bytes bytes{reinterpret_cast<std::byte*>(numbers.data()), numbers.size_bytes()};
    ranks.all_reduce(stream, Reduction::sum(DType::fp64), bytes, bytes);
  };
  stream.wait(parts_.stream->record());
  share(*among, losses_);
  // If data ranks hold all of a gradient, each already has the squares of its layers. A rank without layers takes part too. The
  // squares are the same in every replica.
  if (what != Share::step || !shares_squares()) return;
  for (std::size_t u = 0; u < squares_.size(); ++u)
    if (!verdicts_[u].given) share(sharers_of_squares(), squares_[u].all());
}

// The ranks that together hold one replica of the state.
Communicator& Compute::sharers_of_squares() const {
  if (!parts_.ranks.pipeline) return ranks_->sharers();
  return parts_.map->data().stage() >= 1 ? *parts_.ranks.copy : *parts_.ranks.pipeline;
}

// Runs on the communication lane after all norms (Walk sees to that); readers of the global norm wait for it.
void Compute::verdict(const Action& a) {
  auto& stream = *parts_.communication_stream;
  const auto numbers = squares_.at(a.update).all();
  const Bytes bytes{reinterpret_cast<std::byte*>(numbers.data()), numbers.size_bytes()};
  if (shares_squares()) sharers_of_squares().all_reduce(stream, Reduction::sum(DType::fp64), bytes, bytes);
  verdicts_[a.update].given = stream.record();
}

bool Compute::shares_squares() const { return parts_.map->data().stage() >= 1 || parts_.ranks.pipeline; }

// The payload is the number of the communicator's lane; source and destination are ranks of the communicator.
void Compute::message(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  auto& stream = *parts_.message_streams.at(index(map.lane_of(a)) - index(Lane::message));
  const auto peer = static_cast<int>(a.peer), lane = static_cast<int>(a.payload);
  for (const auto chunk : map.carried_by(a)) {
    const Bytes bytes{views.of(chunk), map.chunk_bytes(chunk)};
    if (a.op == Op::send)
      parts_.ranks.pipeline->send(stream, bytes, peer, lane);
    else
      parts_.ranks.pipeline->receive(stream, bytes, peer, lane);
  }
}

void Compute::gather(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  const auto mine = map.gathered_from(a);
  const auto group = map.gathered(a.layer, a.chunk);
  const auto bytes = map.chunk_bytes(mine);
  auto& stream = *parts_.communication_stream;
  // If weights are not sharded, this rank's chunk is its own block of the group, so the gather works in place.
  if (map.data().weights == Travel::whole)
    return ranks_->sharers().all_gather(stream, {views.of(mine), bytes}, {views.of(group), bytes * map.data().group()});
  // Packed blocks are gathered at the end of the destination of unpacking. A rank packs its own blocks too, so that all ranks
  // compute with the same bits.
  auto& math = parts_.device->math();
  const auto dtype = map.options().recipe.compute;
  const auto elements = static_cast<std::int64_t>(bytes / size_of(dtype)), ranks = std::int64_t{map.data().group()};
  const auto packed_bytes = static_cast<std::size_t>(elements / kBlock8Elements) * kBlock8Bytes;
  std::byte* const all = views.of(group) + static_cast<std::size_t>(ranks) * (bytes - packed_bytes);
  const auto own = packed_blocks(all + packed_bytes * map.data().place(), elements);
  math.pack_block8(stream, own, {views.of(mine), dtype, {elements}});
  const auto gathered = packed_blocks(all, elements * ranks);
  ranks_->sharers().all_gather(stream, {own.data, own.bytes()}, {gathered.data, gathered.bytes()});
  math.unpack_block8(stream, {views.of(group), dtype, {elements * ranks}}, gathered);
}

// Packs a gradient for a reduction, in place: its buffer is freed after the reduction anyway.
Bytes Compute::pack(const Action& a, Bytes group, bool tied) {
  const auto& map = *parts_.map;
  auto& stream = *parts_.communication_stream;
  auto& math = parts_.device->math();
  const auto elements = static_cast<std::int64_t>(group.size() / sizeof(float));
  const auto range = [&](std::int64_t first, std::int64_t end) -> TensorView {
    return {group.data() + first * std::int64_t{sizeof(float)}, DType::fp32, {end - first}};
  };
  if (map.data().gradients == Travel::bf16) {
    math.narrow_in_place(stream, range(0, elements));
    return group.first(group.size() / 2);
  }
  // Elements of no tensor were never written and must not decide a block's scale.
  const auto layer = tied ? map.tied_home() : a.layer;
  const auto first_group = tied ? a.chunk - map.groups_of(a.layer) : a.chunk;
  std::int64_t written = 0;
  const auto skip_to = [&](std::int64_t element) {
    if (element > written) math.zero(stream, range(written, element));
  };
  for (const auto chunk : map.chunks_of(first_group))
    for (const auto& s : map.layout().segments(layer, chunk)) {
      if (tied && !is_tied(s.tensor)) continue;
      const auto at = static_cast<std::int64_t>((chunk % map.data().group()) * map.layout().chunk_elements() + s.chunk_element);
      skip_to(at);
      written = at + static_cast<std::int64_t>(s.elements);
    }
  skip_to(elements);
  const auto packed = packed_blocks(group.data(), elements);
  math.pack_block8(stream, packed, range(0, elements));
  return group.first(packed.bytes());
}

// Whether another layer also reads the tensor of the layer that declares it.
bool Compute::is_tied(std::uint32_t tensor) const {
  const auto& map = *parts_.map;
  const auto& params = map.params(map.tied_layer());
  for (std::uint32_t q = 0; q < params.size(); ++q)
    if (params[q].tied && map.home(map.tied_layer(), q).tensor == tensor) return true;
  return false;
}

// Each rank folds a part of a group, round after round, and shares it with the others after the last round.
void Compute::reduce_directions(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  const auto& data = map.data();
  auto& stream = *parts_.communication_stream;
  auto& ranks = *parts_.ranks.directions.at(map.pipeline().stage(a.layer));
  const auto [first, into, tied] = map.reduced(a.layer, a.chunk);
  const auto bytes = map.chunk_bytes(into);
  const Bytes group{views.of(first), bytes * data.group()};
  auto sum = Reduction::sum(map.options().recipe.gradient);
  sum.order = data.sum_order();
  if (!data.folds_each()) return ranks.all_reduce(stream, sum, group, group);
  const Bytes all{views.of(into) - bytes * data.place(), group.size()};
  const auto part = all.size() / static_cast<std::size_t>(ranks.size());
  const auto mine = all.subspan(part * static_cast<std::size_t>(ranks.rank()), part);
  sum.onto = !map.begins_gradient(a.micro_batch);
  ranks.reduce_scatter(stream, sum, group, mine);
  if (map.ends_gradient(a.micro_batch)) ranks.all_gather(stream, mine, all);
}

void Compute::reduce(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  if (map.reduces_between_replicas()) return reduce_directions(a, views);
  const auto& data = map.data();
  auto& stream = *parts_.communication_stream;
  const auto [first, into, tied] = map.reduced(a.layer, a.chunk);
  const auto bytes = map.chunk_bytes(into);
  const Bytes group{views.of(first), bytes * data.group()}, mine{views.of(into), bytes};
  auto sum = Reduction::sum(map.options().recipe.gradient);
  sum.order = data.sum_order();
  if (!data.folds_each() && data.stage() == 0) return ranks_->all().all_reduce(stream, sum, group, group);
  const bool last = map.ends_gradient(a.micro_batch);
  auto each = sum;
  each.onto = data.folds_each() && !map.begins_gradient(a.micro_batch);
  auto from = group;
  if (data.gradients != Travel::whole) {
    from = pack(a, group, tied);
    if (data.gradients == Travel::bf16) each.from = DType::bf16;
    each.blocks = data.gradients == Travel::int8;
  }
  if (data.canonical && data.copies() > 1) {
    const auto part = mine.subspan(bytes / data.copies() * (data.rank / data.sharers()), bytes / data.copies());
    ranks_->turns().reduce_scatter(stream, each, from, part);
    if (last) ranks_->copies().all_gather(stream, part, mine);
    return;
  }
  ranks_->sharers().reduce_scatter(stream, each, from, mine);
  if (last && data.copies() > 1) ranks_->copies().all_reduce(stream, sum, mine, mine);
  if (last && data.folds_each() && !data.shards(Kind::gradient))
    ranks_->all().all_gather(stream, mine, {mine.data() - bytes * data.place(), bytes * data.group()});
}

void Compute::exchange(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  const auto& share = map.data();
  auto& stream = map.lane_of(a) == Lane::communication ? *parts_.communication_stream : stream_for(a);
  for (const auto& e : map.layer_needs(a.layer).exchanges) {
    const Bytes all{views.of(map.update_scratch()) + e.offset, e.bytes};
    const auto part = e.bytes / share.group();
    if (e.way == ScratchExchange::Way::sum)
      ranks_->sharers().all_reduce(stream, Reduction::sum(DType::fp64), all, all);
    else
      ranks_->sharers().all_gather(stream, all.subspan(part * share.place(), part), all);
  }
}

// Every rank visits all weights: sharded ones are gathered here for the visit.
void Compute::visit(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  const auto& recipe = map.options().recipe;
  const auto group = map.data().group();
  const auto chunk_bytes = [&](Kind kind) { return recipe.chunk_bytes(kind, map.layout().chunk_elements()); };
  const auto chunk_of = [&](Kind kind, std::uint32_t i) {
    if (!map.shown(kind, a.layer)) return views.of(map.state(kind, a.layer, map.chunks_of(a.chunk)[i]));
    return views.of(map.visited(kind)) + i * chunk_bytes(kind);
  };
  const auto gathered = [&](Kind kind) {
    if (map.data().shards(kind) && map.holds(a.layer)) {
      const auto own = map.state(kind, a.layer, map.own(a.chunk));
      const auto bytes = map.chunk_bytes(own);
      ranks_->sharers().all_gather(stream_for(a), {views.of(own), bytes}, {views.of(map.visited(kind)), bytes * group});
    }
    if (!parts_.ranks.pipeline) return;
    const auto holder = static_cast<int>(map.pipeline().holder(a.layer));
    for (std::uint32_t i = 0; i < group; ++i)
      parts_.ranks.pipeline->broadcast(stream_for(a), {chunk_of(kind, i), chunk_bytes(kind)}, holder);
  };
  if (!recipe.copies_master()) gathered(Kind::parameter);
  if (recipe.has_master()) gathered(Kind::master);
  for (std::uint32_t i = 0; i < group; ++i) {
    const auto at = [&](Kind kind) { return stored(kind, chunk_of(kind, i)); };
    StoredWeights weights;
    if (!recipe.copies_master()) weights.parameter = at(Kind::parameter);
    if (recipe.has_master()) weights.master = at(Kind::master);
    for (const auto& s : map.layout().segments(a.layer, map.chunks_of(a.chunk)[i]))
      stream_for(a).submit([this, &param = own_param(a.layer, s.tensor), s, weights] {
        read_weights(weights, static_cast<std::int64_t>(s.chunk_element), static_cast<std::int64_t>(s.elements),
                     [&](std::int64_t first, TensorView range) {
                       input_->weights(param, s.tensor_element + static_cast<std::uint64_t>(first), range);
                     });
      });
  }
}

}  // namespace terrace
