#include <terrace/parallel/comm/communicator.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace {
namespace {

template <class... A>
void demand(bool holds, const Communicator& comm, comm::Operation operation, fmt::format_string<A...> why, A&&... args) {
  if (holds) return;
  throw Error(fmt::format("{} on {}, rank {} of {}: {}", name_of(operation), comm.name(), comm.rank(), comm.size(),
                          fmt::format(why, std::forward<A>(args)...)));
}

void demand_peer(const Communicator& comm, comm::Operation operation, int peer) {
  demand(peer >= 0 && peer < comm.size(), comm, operation, "there is no rank {}", peer);
}

// Input and output may not overlap, except that the output may be exactly `same`, where the call may work in place.
void demand_apart(const Communicator& comm, comm::Operation operation, comm::ConstBytes read, comm::ConstBytes written,
                  comm::ConstBytes same) {
  const auto overlap = [](comm::ConstBytes a, comm::ConstBytes b) {
    return !a.empty() && !b.empty() && std::less<>()(a.data(), b.data() + b.size()) &&
           std::less<>()(b.data(), a.data() + a.size());
  };
  const bool in_place = written.data() == same.data() && written.size() == same.size();
  demand(in_place || !overlap(read, written), comm, operation, "its input and output overlap in a way that it does not allow");
}

std::int64_t elements(const Communicator& comm, comm::Operation operation, const comm::Reduction& reduction,
                      comm::ConstBytes from) {
  demand(comm::is_supported(reduction), comm, operation, "the reduction {} is not supported", comm::to_string(reduction));
  const auto element = reduction.from_bytes();
  demand(from.size() % element == 0, comm, operation, "{} bytes are not whole elements of {}", from.size(),
         comm::to_string(reduction));
  return static_cast<std::int64_t>(from.size() / element);
}

}  // namespace

void Communicator::all_gather(Stream& stream, comm::ConstBytes mine, comm::Bytes all) {
  const auto op = comm::Operation::all_gather;
  const auto ranks = static_cast<std::size_t>(size());
  demand(all.size() == mine.size() * ranks, *this, op, "{} bytes from each rank do not make {} bytes", mine.size(), all.size());
  const auto own = all.subspan(mine.size() * static_cast<std::size_t>(rank()), mine.size());
  if (mine.data() != own.data()) demand_apart(*this, op, mine, all, {});
  issue(stream, {.operation = op, .from = {mine}, .to = {all}});
}

void Communicator::reduce_scatter(Stream& stream, const comm::Reduction& reduction, comm::ConstBytes all, comm::Bytes mine) {
  const auto op = comm::Operation::reduce_scatter;
  const auto count = elements(*this, op, reduction, all);
  demand(count % size() == 0, *this, op, "{} elements do not divide among {} ranks; pad them", count, size());
  const auto block = all.size() / static_cast<std::size_t>(size());
  const auto mine_bytes = static_cast<std::size_t>(count / size()) * reduction.to_bytes();
  demand(mine.size() == mine_bytes, *this, op, "a block has {} bytes, but the result {}", mine_bytes, mine.size());
  const bool can_be_in_place = reduction.from_bytes() == reduction.to_bytes() && !reduction.onto;
  const auto own = all.subspan(block * static_cast<std::size_t>(rank()), block);
  demand_apart(*this, op, all, mine, can_be_in_place ? own : comm::ConstBytes{});
  issue(stream, {.operation = op, .reduction = reduction, .from = {all}, .to = {mine}});
}

void Communicator::all_reduce(Stream& stream, const comm::Reduction& reduction, comm::ConstBytes from, comm::Bytes to) {
  const auto op = comm::Operation::all_reduce;
  const auto count = elements(*this, op, reduction, from);
  demand(!reduction.onto, *this, op, "a sum onto the values of {} ranks would be {} different sums", size(), size());
  demand(to.size() == static_cast<std::size_t>(count) * reduction.to_bytes(), *this, op,
         "{} elements do not make {} bytes of {}", count, to.size(), name_of(reduction.to));
  demand_apart(*this, op, from, to, reduction.from_bytes() == reduction.to_bytes() ? from : comm::ConstBytes{});
  issue(stream, {.operation = op, .reduction = reduction, .from = {from}, .to = {to}});
}

void Communicator::reduce(Stream& stream, const comm::Reduction& reduction, comm::ConstBytes from, comm::Bytes to, int root) {
  const auto op = comm::Operation::reduce;
  const auto count = elements(*this, op, reduction, from);
  demand_peer(*this, op, root);
  if (rank() == root) {
    demand(to.size() == static_cast<std::size_t>(count) * reduction.to_bytes(), *this, op,
           "{} elements do not make {} bytes of {}", count, to.size(), name_of(reduction.to));
    demand_apart(*this, op, from, to,
                 reduction.from_bytes() == reduction.to_bytes() && !reduction.onto ? from : comm::ConstBytes{});
  }
  issue(stream, {.operation = op, .reduction = reduction, .from = {from}, .to = {to}, .peer = root});
}

void Communicator::broadcast(Stream& stream, comm::Bytes bytes, int root) {
  demand_peer(*this, comm::Operation::broadcast, root);
  issue(stream, {.operation = comm::Operation::broadcast, .from = {bytes}, .to = {bytes}, .peer = root});
}

void Communicator::all_to_all(Stream& stream, std::vector<comm::ConstBytes> from, std::vector<comm::Bytes> to) {
  const auto op = comm::Operation::all_to_all;
  const auto ranks = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(rank());
  demand(from.size() == ranks && to.size() == ranks, *this, op,
         "{} spans to send and {} to receive, where {} ranks need as many", from.size(), to.size(), ranks);
  demand(from[me].size() == to[me].size(), *this, op, "it sends {} bytes to itself, but receives {} from itself",
         from[me].size(), to[me].size());
  for (const auto& read : from) {
    for (const auto& written : to) demand_apart(*this, op, read, written, {});
  }
  issue(stream, {.operation = op, .from = std::move(from), .to = std::move(to)});
}

void Communicator::send(Stream& stream, comm::ConstBytes bytes, int destination, int lane) {
  demand_peer(*this, comm::Operation::send, destination);
  demand(lane >= 0 && lane < kMessageLanes, *this, comm::Operation::send, "lane {} is not below {}", lane, kMessageLanes);
  issue(stream, {.operation = comm::Operation::send, .from = {bytes}, .peer = destination, .lane = lane});
}

void Communicator::receive(Stream& stream, comm::Bytes bytes, int source, int lane) {
  demand_peer(*this, comm::Operation::receive, source);
  demand(lane >= 0 && lane < kMessageLanes, *this, comm::Operation::receive, "lane {} is not below {}", lane, kMessageLanes);
  issue(stream, {.operation = comm::Operation::receive, .to = {bytes}, .peer = source, .lane = lane});
}

void Communicator::barrier(Stream& stream) { issue(stream, {.operation = comm::Operation::barrier}); }

}  // namespace terrace
