// Compute's actions that communicate with other ranks, and the sharing of a step's results.
#include <stdexcept>
#include <string>

#include <terrace/core/math/block8.h>
#include <terrace/parallel/run/compute_views.h>

namespace terrace {
namespace {

TensorView packed_blocks(std::byte* at, std::int64_t elements) {
  return {at, DType::i32, {elements / math::kBlock8Elements, math::kBlock8Words}};
}

// For an all-to-all: the bytes that go to, or come from, each member.
template <class Span>
std::vector<Span> blocks_of(comm::Bytes whole, const std::vector<std::uint64_t>& sizes) {
  std::vector<Span> blocks;
  for (const auto size : sizes) {
    blocks.push_back(whole.first(size));
    whole = whole.subspan(size);
  }
  return blocks;
}

void issue(Communicator& ranks, Stream& stream, const mapping::Collective& c, comm::Bytes from, comm::Bytes to) {
  const auto peer = static_cast<int>(c.peer), lane = static_cast<int>(c.lane);
  switch (c.operation) {
    case comm::Operation::all_gather: return ranks.all_gather(stream, from, to);
    case comm::Operation::reduce_scatter: return ranks.reduce_scatter(stream, c.reduction, from, to);
    case comm::Operation::all_reduce: return ranks.all_reduce(stream, c.reduction, from, to);
    case comm::Operation::all_to_all:
      return ranks.all_to_all(stream, blocks_of<comm::ConstBytes>(from, c.sent), blocks_of<comm::Bytes>(to, c.received));
    case comm::Operation::reduce: return ranks.reduce(stream, c.reduction, from, to, peer);
    case comm::Operation::broadcast: return ranks.broadcast(stream, from.empty() ? to : from, peer);
    case comm::Operation::send: return ranks.send(stream, from, peer, lane);
    case comm::Operation::receive: return ranks.receive(stream, to, peer, lane);
    default: throw std::logic_error("Compute: no action of a program is a " + std::string(name_of(c.operation)));
  }
}

// Replaces the plan's sizes by those that the layer has reported.
void take_told_sizes(mapping::Collective& c, const PhaseExchange::Told& told, const double* report) {
  const auto take = [&](std::vector<std::uint64_t>& sizes, std::uint32_t at) {
    for (std::size_t member = 0; member < sizes.size(); ++member)
      sizes[member] = static_cast<std::uint64_t>(report[at + member]) * size_of(c.dtype);
  };
  take(c.sent, told.sent);
  take(c.received, told.received);
}

comm::Bytes bytes_of(std::span<double> numbers) { return {reinterpret_cast<std::byte*>(numbers.data()), numbers.size_bytes()}; }

}  // namespace

void Compute::communicate(const Action& a, const Views& views) {
  auto& stream = stream_for(a);
  for (auto& c : mapping::collectives_of(*parts_.map, a)) {
    if (c.told)
      take_told_sizes(c, *parts_.map->phases().phase(a).exchange->told, report_of(a.layer, a.micro_batch).as<double>());
    auto& ranks = parts_.groups->of(c.members);
    const auto at = [&](const mapping::ChunkBytes& where) {
      return where.chunks == 0 ? comm::Bytes() : comm::Bytes(views.of(where.first) + where.offset, where.bytes);
    };
    const auto from = at(c.from), to = at(c.to);
    if (c.wire == Travel::whole)
      issue(ranks, stream, c, from, to);
    else if (c.operation == comm::Operation::all_gather)
      gather_packed(ranks, stream, c, from, to);
    else
      issue(ranks, stream, c, pack(a, c, from), to);
  }
}

// Packed blocks are gathered at the end of the buffer into which they are then unpacked. A rank packs its own blocks too, so
// that all ranks compute with the same bits.
void Compute::gather_packed(Communicator& ranks, Stream& stream, const mapping::Collective& c, comm::Bytes mine,
                            comm::Bytes all) {
  auto& math = parts_.device->math();
  const auto elements = static_cast<std::int64_t>(mine.size() / size_of(c.dtype)), count = std::int64_t{ranks.size()};
  const auto packed_bytes = static_cast<std::size_t>(elements / math::kBlock8Elements) * math::kBlock8Bytes;
  std::byte* const blocks = all.data() + static_cast<std::size_t>(count) * (mine.size() - packed_bytes);
  const auto own = packed_blocks(blocks + packed_bytes * static_cast<std::size_t>(ranks.rank()), elements);
  math.pack_block8(stream, own, {mine.data(), c.dtype, {elements}});
  const auto gathered = packed_blocks(blocks, elements * count);
  ranks.all_gather(stream, {own.data, own.bytes()}, {gathered.data, gathered.bytes()});
  math.unpack_block8(stream, {all.data(), c.dtype, {elements * count}}, gathered);
}

// Packs a gradient for a reduction, in place: its buffer is freed after the reduction anyway.
comm::Bytes Compute::pack(const Action& a, const mapping::Collective& c, comm::Bytes group) {
  const auto& map = *parts_.map;
  auto& stream = stream_on(Lane::communication);
  auto& math = parts_.device->math();
  const bool tied = map.reduced(a.layer, a.chunk).tied;
  const auto elements = static_cast<std::int64_t>(group.size() / sizeof(float));
  const auto range = [&](std::int64_t first, std::int64_t end) -> TensorView {
    return {group.data() + first * std::int64_t{sizeof(float)}, DType::fp32, {end - first}};
  };
  if (c.wire == Travel::bf16) {
    math.narrow_in_place(stream, range(0, elements));
    return group.first(group.size() / 2);
  }
  // Elements outside all tensors were never written; they are zeroed so that they do not affect a block's scale.
  const auto layer = tied ? map.layout().tied_home() : a.layer;
  const auto first_group = tied ? a.chunk - map.layout().trained_groups(a.layer) : a.chunk;
  std::int64_t written = 0;
  const auto skip_to = [&](std::int64_t element) {
    if (element > written) math.zero(stream, range(written, element));
  };
  for (const auto chunk : map.data().chunks_of(first_group))
    for (const auto& s : map.layout().segments(layer, chunk)) {
      if (tied && !map.layout().is_tied(layer, s.tensor)) continue;
      const auto at = static_cast<std::int64_t>((chunk % map.data().group()) * map.layout().chunk_elements() + s.chunk_element);
      skip_to(at);
      written = at + static_cast<std::int64_t>(s.elements);
    }
  skip_to(elements);
  const auto packed = packed_blocks(group.data(), elements);
  math.pack_block8(stream, packed, range(0, elements));
  return group.first(packed.bytes());
}

// Each number is computed on one rank and zero on the others, so the sum is that number; or tensor ranks computed parts of it.
void Compute::share_results(Share what) {
  if (what == Share::step && !router_.empty()) stream_on(Lane::compute).submit([this] { add_up_routers(); });
  const auto& map = *parts_.map;
  for (std::uint32_t u = 0; what == Share::step && u < squares_.size(); ++u)
    if (!verdicts_[u].given && (has_norms_ || mapping::squares_of(map))) squares_[u].fetch(stream_on(Lane::compute));
  const auto among = what == Share::step ? kAllRanks : kAllRanks - kBatchAxes;
  if (what == Share::none || !parts_.groups || map.mesh().size(among) == 1) return;
  const auto computed = stream_on(Lane::compute).record();
  for (const auto lane : kCollectiveLanes)
    if (auto* const stream = parts_.streams[index(lane)]) stream->wait(computed);
  auto losses = mapping::losses_of(map);
  losses.members = {among};
  share(losses, {losses_.data(), losses.from.bytes / sizeof(double)});
  // Only ranks that together hold one replica share squares (squares_of()), since these are the same in every replica. A rank
  // without layers takes part too.
  if (what != Share::step) return;
  for (std::uint32_t u = 0; u < squares_.size(); ++u)
    if (!verdicts_[u].given) share_squares(u);
}

// Adds up the reports of this rank's layers. Tensor ranks route alike, so only the first of them adds.
void Compute::add_up_routers() {
  const auto& map = *parts_.map;
  if (!map.tensor().leads()) return;
  auto* sums = router_.data();
  for (std::uint32_t l = 0; l < map.layers(); ++l) {
    const auto routing = map.phases().facts(l).routing;
    if (!routing) continue;
    const auto size = RoutingReport{*routing}.size();
    for (std::uint32_t m = 0; m < map.micro_batches(); ++m) {
      if (!map.pipeline().computes(l, m)) continue;
      const auto* const numbers = report_of(l, m).as<double>();
      for (std::int64_t i = 0; i < size; ++i) sums[i] += numbers[i];
    }
    sums += size;
  }
}

void Compute::share_squares(std::uint32_t update) {
  if (const auto squares = mapping::squares_of(*parts_.map)) share(*squares, squares_.at(update).all());
}

void Compute::share(const mapping::Collective& sum, std::span<double> numbers) {
  auto& stream = stream_on(sum.members.lane);
  issue(parts_.groups->of(sum.members), stream, sum, bytes_of(numbers), bytes_of(numbers));
}

// Runs on the communication lane after all norms (Walk sees to that); readers of the global norm wait for it.
void Compute::verdict(const Action& a) {
  squares_.at(a.update).fetch(stream_for(a));
  share_squares(a.update);
  verdicts_[a.update].given = stream_for(a).record();
}

// Every rank visits all weights. Those that it lacks are exchanged first.
void Compute::visit(const Action& a, const Views& views) {
  communicate(a, views);
  const auto& map = *parts_.map;
  const auto& recipe = map.options().recipe;
  const auto group = map.data().group();
  const auto chunk_of = [&](ChunkKind kind, std::uint32_t part, std::uint32_t i) {
    if (map.visited_in_place(kind, a.layer)) return views.of(map.state(kind, a.layer, map.data().chunks_of(a.chunk)[i]));
    // If this rank's part was assembled first (shown()), each part of the model lies in one piece; else the parts of each chunk
    // lie together.
    const auto at = map.shown(kind, a.layer) ? part * group + i : i * map.parts().ranks() + part;
    return views.of(map.visited(kind)) + at * recipe.chunk_bytes(kind, map.layout().chunk_elements());
  };
  for (std::uint32_t part = 0; part < map.parts().ranks(); ++part)
    for (std::uint32_t i = 0; i < group; ++i) {
      const auto parts = map.parts().of(part);
      const auto at = [&](ChunkKind kind) { return stored(kind, chunk_of(kind, part, i)); };
      rules::StoredWeights weights;
      if (map.visits(ChunkKind::parameter, a)) weights.parameter = at(ChunkKind::parameter);
      if (map.visits(ChunkKind::master, a)) weights.master = at(ChunkKind::master);
      weights.widened = recipe.has_master() && map.is_frozen(a.layer, a.chunk);
      for (const auto& s : map.layout().segments(a.layer, map.data().chunks_of(a.chunk)[i])) {
        const auto& here = map.layout().param_at(a.layer, s.tensor);
        if (!model::acts_for(here, parts)) continue;
        stream_for(a).submit([this, param = model::param_on(here, parts), s, weights, parts] {
          rules::read_weights(weights, static_cast<std::int64_t>(s.chunk_element), static_cast<std::int64_t>(s.elements),
                              [&](std::int64_t first, TensorView range) {
                                each_range(param, parts.tensor, s.tensor_element + static_cast<std::uint64_t>(first), range,
                                           input_->weights);
                              });
        });
      }
    }
}

}  // namespace terrace
