// Collectives between machines: which messages a rank sends and receives, in which order, and what it adds in between. The
// transports supply the means: one sends through MPI and adds on the CPU, another through NCCL and with a kernel, and the
// ledger only counts.
//
//   fold    each rank gives every deputy of its machine (machines.h) its contributions; the deputies add them. Then, in
//           ceil(log2 k) rounds, deputies of neighbouring machines add their sums. In pieces that bound the staging memory.
//   gather  the same way back: from a block's owner to one deputy on every machine in ceil(log2 k) rounds, and from these to
//           the other ranks of the machine. So a block crosses to each machine once.
//
// Owner:   the transport; made for one call. Threads: the call's. Errors: those of the means.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/parallel/comm/call.h>
#include <terrace/parallel/comm/machines.h>

namespace terrace::comm {

// Staging memory of a rank for one call; more is used only if single elements need more.
inline constexpr std::size_t kStagingBytes = 32 * kMiB;
// The same on a GPU, where each of eight ranks has a piece of 16 MiB: smaller ones reach half of NVLink's rate only.
inline constexpr std::size_t kGpuStagingBytes = 256 * kMiB;

struct Outgoing {
  int to = 0;
  ConstBytes bytes;
};
struct Incoming {
  int from = 0;
  Bytes bytes;
};
// The terms of one fold: term i is at others + i · stride, except that term own_place is `own`.
struct Terms {
  const std::byte *own = nullptr, *others = nullptr;
  std::size_t stride = 0;
  int terms = 1, own_place = 0;
};

class BetweenMachines {
 public:
  struct Means {
    // Sends and receives all messages at once. Messages between two ranks arrive in the order of these lists.
    std::function<void(const std::vector<Outgoing>&, const std::vector<Incoming>&)> exchange;
    std::function<void(const Reduction&, std::byte* to, const Terms&, std::int64_t count)> fold;
    std::function<std::byte*(std::size_t bytes)> staging;
    std::size_t staging_bytes = kStagingBytes;  // the same on all ranks
  };
  BetweenMachines(const Machines& machines, int rank, const Means& means) : machines_(machines), rank_(rank), means_(means) {}

  // Rank r owns the elements blocks[r] of the sum; this rank's go to `to`.
  void fold(const Reduction& reduction, const std::byte* from, const std::vector<Block>& blocks, std::byte* to) const;
  // Rank r has the bytes blocks[r] of `all`; afterwards all ranks have all.
  void gather(Bytes all, const std::vector<Block>& blocks) const;

 private:
  struct Piece;
  void add_within(const Piece& piece) const;
  void add_across(const Piece& piece) const;

  const Machines& machines_;
  const int rank_;
  const Means& means_;
};

// The bytes that a rank sends for a call, to ranks of its own machine and to other machines.
struct SentByLink {
  std::uint64_t within = 0, between = 0;
  SentByLink& operator+=(const SentByLink& more);
  friend bool operator==(const SentByLink&, const SentByLink&) = default;
};
SentByLink sent_by_link(const Call& call, int rank, const Machines& machines);

}  // namespace terrace::comm
