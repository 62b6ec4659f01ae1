// Collectives between machines. Every rank sends each owner its block and the owner folds what came in rank order: as many
// bytes as the best algorithm sends, and sums with the same bits as everywhere.
#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/core/units.h>
#include <terrace/parallel/comm/mpi_transport.h>

namespace terrace {
namespace {

constexpr std::size_t kStagingBytes = 4 * kMiB;  // of contributions, for each other rank
std::size_t bytes_of(std::int64_t elements, std::size_t element) { return static_cast<std::size_t>(elements) * element; }

}  // namespace

void MpiTransport::far(const Call& call, std::uint64_t number) {
  far_match(call, number);
  switch (call.operation) {
    case Operation::all_gather: return far_gather(call, number);
    case Operation::reduce_scatter: return far_reduce_scatter(call, number);
    case Operation::all_reduce: return far_all_reduce(call, number);
    case Operation::reduce: return far_reduce(call, number);
    case Operation::broadcast: return far_broadcast(call, number);
    default: return;
  }
}

// Every rank tells every other rank which call it issued; afterwards all ranks have arrived and their calls match.
void MpiTransport::far_match(const Call& call, std::uint64_t number) {
  struct Purpose {
    std::uint64_t signature = 0;
    std::array<char, 120> text = {};
  };
  Purpose mine{signature_of(call), {}};
  to_string(call).copy(mine.text.data(), mine.text.size() - 1);
  std::vector<Purpose> all(static_cast<std::size_t>(size_));
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    out.push_back({r, std::as_bytes(std::span(&mine, 1))});
    in.push_back({r, std::as_writable_bytes(std::span(&all[static_cast<std::size_t>(r)], 1))});
  }
  exchange(inner_, kMatchTag, out, in, number);
  for (int r = 0; r < size_; ++r) {
    const auto& other = all[static_cast<std::size_t>(r)];
    if (r == rank_ || other.signature == mine.signature) continue;
    throw Error(
        fmt::format("ranks {} and {} issued collectives that do not match; all ranks must issue them in the same order "
                    "with equal sizes\n  rank {}: {}\n  rank {}: {}",
                    std::min(r, rank_), std::max(r, rank_), rank_, mine.text.data(), r, other.text.data()));
  }
}

void MpiTransport::far_gather(const Call& call, std::uint64_t number) {
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

// Folds this rank's block, `blocks[rank_]`, of every rank's `from` into `to`, in pieces that bound the staging memory.
void MpiTransport::far_fold(const Reduction& reduction, const std::byte* from, const std::vector<Block>& blocks, std::byte* to,
                            std::uint64_t number) {
  const auto e = reduction.from_bytes(), e_to = reduction.to_bytes();
  const auto each = static_cast<std::int64_t>(kStagingBytes / e);
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

void MpiTransport::far_reduce_scatter(const Call& call, std::uint64_t number) {
  const auto count = static_cast<std::int64_t>(call.from.front().size() / call.reduction.from_bytes());
  std::vector<Block> blocks;
  for (int r = 0; r < size_; ++r) blocks.push_back(block_of(count, r, size_));
  far_fold(call.reduction, call.from.front().data(), blocks, call.to.front().data(), number);
}

void MpiTransport::far_all_reduce(const Call& call, std::uint64_t number) {
  const auto e_to = call.reduction.to_bytes();
  const auto count = static_cast<std::int64_t>(call.from.front().size() / call.reduction.from_bytes());
  std::vector<Block> blocks;
  for (int r = 0; r < size_; ++r) blocks.push_back(block_of(count, r, size_));
  const auto place = [&](int r) {
    const auto& block = blocks[static_cast<std::size_t>(r)];
    return call.to.front().subspan(bytes_of(block.begin, e_to), bytes_of(block.count, e_to));
  };
  far_fold(call.reduction, call.from.front().data(), blocks, place(rank_).data(), number);
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    if (!place(rank_).empty()) out.push_back({r, place(rank_)});
    if (!place(r).empty()) in.push_back({r, place(r)});
  }
  exchange(inner_, kDataTag, out, in, number);
}

// The root owns the only block.
void MpiTransport::far_reduce(const Call& call, std::uint64_t number) {
  std::vector<Block> blocks(static_cast<std::size_t>(size_));
  const auto count = static_cast<std::int64_t>(call.from.front().size() / call.reduction.from_bytes());
  blocks[static_cast<std::size_t>(call.peer)] = {0, count};
  far_fold(call.reduction, call.from.front().data(), blocks, call.to.front().data(), number);
}

void MpiTransport::far_broadcast(const Call& call, std::uint64_t number) {
  std::vector<Outgoing> out;
  for (int r = 0; rank_ == call.peer && r < size_; ++r) {
    if (r != rank_) out.push_back({r, call.from.front()});
  }
  std::vector<Incoming> in;
  if (rank_ != call.peer) in.push_back({call.peer, call.to.front()});
  exchange(inner_, kDataTag, out, in, number);
}

}  // namespace terrace
