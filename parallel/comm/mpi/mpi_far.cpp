// Collectives between machines: exchanges the messages of BetweenMachines through MPI. Sums in rank order (canonical reduction
// needs them) are direct: every rank sends each owner its block, and the owner folds the received blocks.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/parallel/comm/mpi/mpi_transport.h>

namespace terrace::comm {
namespace {

// How much longer than a call's time limit a rank waits for other machines: once in the first round of far_match(), and once
// more in each later round. So the rank that waits directly for a missing rank is the first to report it.
std::chrono::milliseconds grace_of(std::chrono::milliseconds time_limit) {
  return std::min<std::chrono::milliseconds>(time_limit / 4, std::chrono::seconds(2));
}
std::size_t bytes_of(std::int64_t elements, std::size_t element) { return static_cast<std::size_t>(elements) * element; }

}  // namespace

void MpiTransport::far(const Call& call, std::uint64_t number) {
  far_match(call, number);
  const auto elements = [&] { return call.from.front().size() / call.reduction.from_bytes(); };
  const auto only_of = [&](int owner, std::size_t length) {
    std::vector<Block> blocks(static_cast<std::size_t>(size_));
    blocks[static_cast<std::size_t>(owner)] = {0, static_cast<std::int64_t>(length)};
    return blocks;
  };
  switch (call.operation) {
    case Operation::all_gather: {
      const auto& mine = call.from.front();
      const auto place = call.to.front().subspan(static_cast<std::size_t>(rank_) * mine.size(), mine.size());
      if (place.data() != mine.data()) std::ranges::copy(mine, place.begin());
      return far_gather(call.to.front(), blocks_of(call.to.front().size(), std::max<std::size_t>(1, mine.size())), number);
    }
    case Operation::reduce_scatter:
      return far_fold(call.reduction, call.from.front().data(), blocks_of(elements(), 1), call.to.front().data(), number);
    case Operation::all_reduce: {
      const auto places = blocks_of(call.to.front().size(), call.reduction.to_bytes());
      std::byte* const own = call.to.front().data() + places[static_cast<std::size_t>(rank_)].begin;
      far_fold(call.reduction, call.from.front().data(), blocks_of(elements(), 1), own, number);
      return far_gather(call.to.front(), places, number);
    }
    case Operation::reduce:
      return far_fold(call.reduction, call.from.front().data(), only_of(call.peer, elements()), call.to.front().data(), number);
    case Operation::broadcast: return far_gather(call.to.front(), only_of(call.peer, call.to.front().size()), number);
    default: return;
  }
}

// After this, all ranks have arrived and their calls match. First the ranks of a machine meet. Then, in round s, each machine
// gets a message from the machine 2^s before it, which has by then messages of 2^s machines. Every machine compares its call
// with theirs.
void MpiTransport::far_match(const Call& call, std::uint64_t number) {
  window_->match(call);
  struct Purpose {
    std::uint64_t signature = 0;
    int rank = 0;
    std::array<char, 116> text = {};
  };
  Purpose mine{signature_of(call), rank_, {}}, other;
  to_string(call).copy(mine.text.data(), mine.text.size() - 1);
  const int machines = machines_.count(), machine = machines_.of_rank(rank_), place = rank_ - machines_.first(machine);
  const auto grace = grace_of(options_.time_limit);
  for (int round = 0; round < machines_.rounds(); ++round) {
    const int before = (machine + machines - (1 << round)) % machines, after = (machine + (1 << round)) % machines;
    const int sender = machines_.first(before) + place % machines_.size(before);
    std::vector<Outgoing> out;
    for (int p = place; p < machines_.size(after); p += machines_.size(machine))
      out.push_back({machines_.first(after) + p, std::as_bytes(std::span(&mine, 1))});
    exchange(inner_, kMatchTag, out, {{sender, std::as_writable_bytes(std::span(&other, 1))}}, number, (round + 1) * grace);
    if (other.signature == mine.signature) continue;
    throw Error(fmt::format(
        "ranks {} and {} issued collectives that do not match; all ranks must issue them in the same order "
        "with equal sizes\n  rank {}: {}\n  rank {}: {}",
        std::min(other.rank, rank_), std::max(other.rank, rank_), rank_, mine.text.data(), other.rank, other.text.data()));
  }
}

// Divides the bytes, in units of `each`, into one block per rank; the blocks are in bytes.
std::vector<Block> MpiTransport::blocks_of(std::size_t bytes, std::size_t each) const {
  const auto unit = static_cast<std::int64_t>(each), count = static_cast<std::int64_t>(bytes) / unit;
  std::vector<Block> blocks;
  for (int r = 0; r < size_; ++r) {
    const auto block = block_of(count, r, size_);
    blocks.push_back({block.begin * unit, block.count * unit});
  }
  return blocks;
}

BetweenMachines::Means MpiTransport::means(std::vector<std::byte>& staging, std::uint64_t number) {
  return {.exchange = [this, number](const std::vector<Outgoing>& out,
                                     const std::vector<Incoming>& in) { exchange(inner_, kDataTag, out, in, number); },
          .fold =
              [](const Reduction& reduction, std::byte* to, const Terms& t, std::int64_t count) {
                std::vector<const std::byte*> terms;
                for (int i = 0; i < t.terms; ++i)
                  terms.push_back(i == t.own_place ? t.own : t.others + static_cast<std::size_t>(i) * t.stride);
                fold(reduction, to, terms, count);
              },
          .staging =
              [&staging](std::size_t bytes) {
                staging.resize(bytes);
                return staging.data();
              }};
}

void MpiTransport::far_gather(Bytes all, const std::vector<Block>& blocks, std::uint64_t number) {
  std::vector<std::byte> unused;
  const auto through_mpi = means(unused, number);
  BetweenMachines(machines_, rank_, through_mpi).gather(all, blocks);
}

void MpiTransport::far_fold(const Reduction& reduction, const std::byte* from, const std::vector<Block>& blocks, std::byte* to,
                            std::uint64_t number) {
  if (!adds_by_machine(machines_, reduction)) return fold_in_rank_order(reduction, from, blocks, to, number);
  std::vector<std::byte> staging;
  const auto through_mpi = means(staging, number);
  BetweenMachines(machines_, rank_, through_mpi).fold(reduction, from, blocks, to);
}

// Folds this rank's block, `blocks[rank_]`, of every rank's `from` into `to`, in pieces that bound the staging memory.
void MpiTransport::fold_in_rank_order(const Reduction& reduction, const std::byte* from, const std::vector<Block>& blocks,
                                      std::byte* to, std::uint64_t number) {
  const auto e = reduction.from_bytes(), e_to = reduction.to_bytes();
  const auto each = std::max<std::int64_t>(1, static_cast<std::int64_t>(kStagingBytes / (blocks.size() * e)));
  std::int64_t longest = 0;
  for (const auto& block : blocks) longest = std::max(longest, block.count);
  const auto& own = blocks[static_cast<std::size_t>(rank_)];
  std::vector<std::vector<std::byte>> staging(blocks.size());
  for (std::int64_t at = 0; at < longest; at += each) {
    const auto count_of = [&](const Block& block) { return std::clamp<std::int64_t>(block.count - at, 0, each); };
    const auto count = count_of(own);
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    std::vector<const std::byte*> sources;
    for (int r = 0; r < size_; ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (r == rank_) {
        sources.push_back(from + bytes_of(own.begin + at, e));
        continue;
      }
      staging[i].resize(bytes_of(count, e));
      sources.push_back(staging[i].data());
      if (count > 0) in.push_back({r, staging[i]});
      if (const auto theirs = count_of(blocks[i]); theirs > 0) {
        out.push_back({r, {from + bytes_of(blocks[i].begin + at, e), bytes_of(theirs, e)}});
      }
    }
    exchange(inner_, kDataTag, out, in, number);
    if (count > 0) fold(reduction, to + bytes_of(at, e_to), sources, count);
  }
}

// Only on one machine.
void MpiTransport::gather_directly(const Call& call, std::uint64_t number) {
  const auto& mine = call.from.front();
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (int r = 0; r < size_; ++r) {
    const auto place = call.to.front().subspan(static_cast<std::size_t>(r) * mine.size(), mine.size());
    if (r == rank_) {
      if (place.data() != mine.data()) std::ranges::copy(mine, place.begin());
    } else {
      out.push_back({r, mine});
      in.push_back({r, place});
    }
  }
  exchange(inner_, kDataTag, out, in, number);
}

}  // namespace terrace::comm
