#include <terrace/parallel/map/exchange.h>

#include <algorithm>
#include <cmath>

#include <terrace/core/base/units.h>
#include <terrace/parallel/comm/between_machines.h>

namespace terrace::mapping {
namespace {

// How the ranks of a collective are distributed over nodes.
struct Spread {
  double on_node = 1, nodes = 1;  // ranks of the collective on a node; nodes
  double at_once = 1;             // collectives of that kind that share a node's link
};

Spread spread_of(const machine::Links& links, const Exchange& e) {
  const auto node = links.ranks_per_node == 0 ? e.ranks * e.stride : links.ranks_per_node;
  const auto on_node = std::clamp(node / e.stride, 1U, e.ranks);
  const auto nodes = (e.ranks + on_node - 1) / on_node;
  return {static_cast<double>(on_node), static_cast<double>(nodes), static_cast<double>(std::max(1U, node / on_node))};
}

// An all-reduce is a reduce-scatter and an all-gather. On average, a broadcast costs as much as a gather (every rank but one
// receives the whole), and a reduction to one rank as much as a reduce-scatter (every other rank sends the whole).
bool reduces(const Exchange& e) {
  return e.operation == comm::Operation::reduce_scatter || e.operation == comm::Operation::all_reduce ||
         e.operation == comm::Operation::reduce;
}
bool gathers(const Exchange& e) {
  return e.operation != comm::Operation::reduce_scatter && e.operation != comm::Operation::reduce;
}
double sum_bytes(const Exchange& e) { return static_cast<double>(std::max(e.bytes, e.sum_bytes)); }

// The bytes that one rank sends in the reduction and in the gather. Between nodes, a gather sends each block once to each node;
// a reduction sends a node's sum of each block once, or with sums in rank order each rank's contribution.
struct Sent {
  LinkBytes reduction, gather;
};
Sent sent_by(const Spread& s, const Exchange& e) {
  // With several nodes, some neighbours are on different nodes; the cost counts as if all were.
  const auto all = static_cast<double>(e.bytes);
  if (e.hop) return {.reduction = {}, .gather = {s.nodes > 1 ? 0 : all, s.nodes > 1 ? all : 0}};
  if (e.operation == comm::Operation::all_to_all) {  // a block to each rank
    const double each = static_cast<double>(e.bytes) / e.ranks;
    return {.reduction = {}, .gather = {each * (s.on_node - 1), each * (e.ranks - s.on_node)}};
  }
  Sent sent;
  const auto bytes = static_cast<double>(e.bytes);
  const double near = (s.on_node - 1) / s.on_node, far = (s.nodes - 1) / s.nodes;
  if (gathers(e)) sent.gather = {bytes * near, bytes * far / s.on_node};
  if (!reduces(e)) return sent;
  sent.reduction = e.order == comm::SumOrder::machines ? LinkBytes{bytes * near, sum_bytes(e) * far / s.on_node}
                                                       : LinkBytes{bytes * near / s.nodes, bytes * far};
  return sent;
}

// How many pieces of kStagingBytes a rank stages in a reduction.
double pieces_of(const Spread& s, const Exchange& e) {
  const auto bytes = static_cast<double>(e.bytes);
  const bool by_machine = s.nodes > 1 && e.order == comm::SumOrder::machines;
  const double staged = by_machine ? (s.on_node > 1 ? bytes : 0) + 2 * sum_bytes(e) / s.on_node : bytes;
  return std::max(1.0, std::ceil(staged / static_cast<double>(comm::kStagingBytes)));
}

double latency_of(const machine::Links& links, const Spread& s, const Exchange& e) {
  const double near = s.on_node > 1 ? links.within_latency_s : 0;
  if (e.hop) return s.nodes > 1 ? links.between_latency_s : near;
  double rounds = 0;
  while (std::exp2(rounds) < s.nodes) ++rounds;
  const double through = near + rounds * links.between_latency_s, pieces = pieces_of(s, e);
  double seconds = through;  // the ranks meet
  if (reduces(e)) seconds += pieces * (e.order == comm::SumOrder::machines || s.nodes == 1 ? through : links.between_latency_s);
  // On one node NCCL's all-gather is assumed to be a ring; an all-reduce hands out each piece.
  if (gathers(e)) seconds += s.nodes > 1 ? through : reduces(e) ? pieces * near : (s.on_node - 1) * near;
  return seconds;
}

// A message crosses only one link.
LinkBytes message_bytes(const machine::Links& links, const StepMap& map, const Action& send) {
  const auto node_of = [&](std::uint32_t rank) { return links.ranks_per_node == 0 ? 0 : rank / links.ranks_per_node; };
  std::uint64_t bytes = 0;
  for (const auto& message : collectives_of(map, send)) bytes += wire_bytes(message);
  const bool within = node_of(map.rank()) == node_of(map.mesh().at(map.rank(), Axis::pp, send.peer));
  return {.within = within ? static_cast<double>(bytes) : 0, .between = within ? 0 : static_cast<double>(bytes)};
}

}  // namespace

LinkBytes& LinkBytes::operator+=(const LinkBytes& more) {
  within += more.within;
  between += more.between;
  return *this;
}

namespace {

bool is_hop(const StepMap& map, const Collective& c) {
  if (c.operation != comm::Operation::all_to_all) return false;
  const auto me = map.mesh().index(map.rank(), c.members.axes);
  const auto one_other = [&](const std::vector<std::uint64_t>& bytes) {
    return bytes[me] == 0 && std::ranges::count(bytes, std::uint64_t{0}) + 1 == std::ssize(bytes);
  };
  return one_other(c.sent) && one_other(c.received);
}

}  // namespace

Exchange exchange_of(const StepMap& map, const Collective& c) {
  const auto [ranks, stride] = mesh::span_of(c.members, map.mesh());
  Exchange e{.operation = c.operation,
             .bytes = wire_bytes(c),
             .ranks = ranks,
             .stride = stride,
             .order = c.reduction.order,
             .hop = is_hop(map, c)};
  if (c.neighbours != 0) e.ranks = c.neighbours;
  // If the wire dtype has fewer bits, machines still exchange their sums in fp32.
  const bool wide = c.reduction.from == DType::bf16 || c.reduction.blocks;
  if (reduces(e) && wide) e.sum_bytes = c.from.bytes / size_of(c.dtype) * sizeof(float);
  return e;
}

std::vector<Exchange> exchanges_of(const StepMap& map, const Action& a) {
  std::vector<Exchange> all;
  for (const auto& c : collectives_of(map, a))
    if (is_collective(c.operation)) all.push_back(exchange_of(map, c));
  return all;
}

std::vector<Exchange> results_of(const StepMap& map, const Program& step) {
  std::vector<Exchange> all{exchange_of(map, losses_of(map))};
  const auto given = std::ranges::count(step.actions, Op::verdict, &Action::op);
  const auto squares = squares_of(map);
  for (auto u = given; squares && u < map.rounds().updates(); ++u) all.push_back(exchange_of(map, *squares));
  return all;
}

std::vector<Exchange> average_of(const StepMap& map) {
  std::vector<Exchange> all;
  const auto number = map.options().recipe.weight_dtype() == DType::fp64 ? sizeof(double) : sizeof(float);
  for (std::uint32_t l = 0; l < map.layers(); ++l)
    for (std::uint32_t chunk = 0; chunk < map.layout().trained_chunks(l); ++chunk) {
      std::uint64_t numbers = 0;
      for (const auto& segment : map.layout().segments(l, chunk)) numbers += segment.elements;
      all.push_back({comm::Operation::all_reduce, numbers * number, map.mesh().size(), 1, map.data().sum_order()});
    }
  return all;
}

LinkBytes link_bytes(const machine::Links& links, const Exchange& e) {
  auto [all, gather] = sent_by(spread_of(links, e), e);
  return all += gather;
}

LinkBytes link_bytes(const machine::Links& links, const StepMap& map, const Program& program) {
  LinkBytes all;
  for (const auto& action : program.actions) {
    if (action.op == Op::send) all += message_bytes(links, map, action);
    for (const auto& exchange : exchanges_of(map, action)) all += link_bytes(links, exchange);
  }
  for (const auto& exchange : results_of(map, program)) all += link_bytes(links, exchange);
  return all;
}

double seconds_of(const machine::Links& links, const Exchange& e) {
  const auto s = spread_of(links, e);
  const auto [reduction, gather] = sent_by(s, e);
  const auto on = [](double amount, double rate) { return amount == 0 ? 0 : amount / rate; };
  // The ranks of a node share its link. If the number of nodes is not a power of two, the busiest node sends more in the rounds
  // than the others.
  const double busiest = s.nodes > 1 ? static_cast<double>(comm::busiest_blocks(static_cast<int>(s.nodes))) / (s.nodes - 1) : 1;
  const auto between = [&](double bytes, bool in_rounds) {
    return on(bytes * s.on_node * s.at_once * (in_rounds ? busiest : 1), links.between);
  };
  return on(reduction.within + gather.within, links.within) + between(reduction.between, e.order == comm::SumOrder::machines) +
         between(gather.between, true) + latency_of(links, s, e);
}

double seconds_of_message(const machine::Links& links, std::uint32_t at_once, std::uint32_t one, std::uint32_t other,
                          std::uint64_t bytes) {
  const auto node_of = [&](std::uint32_t rank) { return links.ranks_per_node == 0 ? 0 : rank / links.ranks_per_node; };
  const auto [low, high] = std::minmax(one, other);
  const auto amount = static_cast<double>(bytes);
  if (node_of(low * at_once) == node_of((high + 1) * at_once - 1)) return amount / links.within + links.within_latency_s;
  return amount * std::min(links.ranks_per_node, at_once) / links.between + links.between_latency_s;
}

}  // namespace terrace::mapping
