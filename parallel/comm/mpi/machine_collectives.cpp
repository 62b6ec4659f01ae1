// The collectives of one machine in pieces: each rank writes into its slot, folds, and reads from the slots of the others.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <terrace/core/device/host_copy.h>
#include <terrace/parallel/comm/mpi/machine_window.h>

namespace terrace::comm {

void MachineWindow::run(const Call& call) {
  switch (call.operation) {
    case Operation::all_gather: return gather(call);
    case Operation::reduce_scatter: return reduce_scatter(call);
    case Operation::all_reduce: return all_reduce(call);
    case Operation::reduce: return reduce(call);
    case Operation::broadcast: return broadcast(call);
    default: return match(call);
  }
}

namespace {

// A stretch of elements or bytes in pieces of equal length.
struct Cut {
  std::int64_t total, each;
  [[nodiscard]] std::int64_t pieces() const { return std::max<std::int64_t>(1, (total + each - 1) / each); }
  [[nodiscard]] std::int64_t begin(std::int64_t k) const { return k * each; }
  [[nodiscard]] std::int64_t count(std::int64_t k) const { return std::min(each, total - begin(k)); }
};
std::size_t bytes_of(std::int64_t elements, std::size_t element) { return static_cast<std::size_t>(elements) * element; }

// Results that are not in a core's cache are written past it: a store that does not first read its line moves two thirds of the
// bytes. Not if the line has just been read: in place, or for a sum onto old values.
constexpr std::size_t kLargeBytes = 4 * kMiB;
bool goes_past_cache(const Call& call) {
  return call.to.front().size() >= kLargeBytes && !call.reduction.onto && call.to.front().data() != call.from.front().data();
}

void copy_to(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes != 0) std::memcpy(to, from, bytes);
}

// Fills slots from memory, in the way that is faster for the present cores of the ranks. Cores that share a cache exchange
// slots through it. For other cores, a line that the other rank has read is slow to get back for writing, so slots go past the
// cache. A hypervisor may move cores during a run, so each call of many pieces times both ways on its first pieces. All ranks
// switch at the same pieces, and wait for each other at each, so they see the same times.
class SlotWriter {
 public:
  // Called for each piece k, in ascending order.
  void begin(std::int64_t k) {
    const auto turn = k < kWarm ? -1 : (k - kWarm) / kTrial;
    if (turn == turn_ || turn > 2) return;
    turn_ = turn;
    const auto now = Clock::now();
    const auto took = now - std::exchange(since_, now);
    if (turn == 1) in_cache_ = took;
    past_cache_ = turn == 1 || (turn == 2 && took < in_cache_);
  }
  void write(std::byte* to, const std::byte* from, std::size_t bytes) const {
    past_cache_ ? device::copy_past_cache(to, from, bytes) : device::copy_from_memory(to, from, bytes);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::int64_t kWarm = 8, kTrial = 24;  // pieces

  std::int64_t turn_ = -1;  // 0: timed in the cache, 1: past it, 2: decided
  Clock::time_point since_ = {};
  Clock::duration in_cache_ = {};
  bool past_cache_ = false;
};

}  // namespace

void MachineWindow::gather(const Call& call) {
  const auto& mine = call.from.front();
  std::byte* const all = call.to.front().data();
  const Cut cut{static_cast<std::int64_t>(mine.size()), kSlotBytes};
  run_pieces(
      call, cut.pieces(),
      [&](std::int64_t k) {
        copy_to(slot(rank_, piece_ + static_cast<std::uint64_t>(k)), mine.data() + cut.begin(k), bytes_of(cut.count(k), 1));
      },
      {},
      [&](std::int64_t k) {
        for (std::size_t i = 0; i < controls_.size(); ++i) {
          const auto r = (rank_ + i) % controls_.size();
          const auto* const from = r == rank_ ? mine.data() + cut.begin(k) : slot(r, piece_ + static_cast<std::uint64_t>(k));
          copy_to(all + r * mine.size() + cut.begin(k), from, bytes_of(cut.count(k), 1));
        }
      });
}

void MachineWindow::reduce_scatter(const Call& call) {
  const auto ranks = controls_.size();
  const auto e = call.reduction.from_bytes(), e_to = call.reduction.to_bytes();
  const auto part = kSlotBytes / ranks / kLine * kLine;  // bytes of a slot for each rank
  const std::byte* const from = call.from.front().data();
  const auto block = call.from.front().size() / ranks;
  const Cut cut{static_cast<std::int64_t>(block / e), static_cast<std::int64_t>(part / e)};
  // In place, the result is the rank's own block of `from`.
  const bool past_cache = goes_past_cache(call) && call.to.front().data() != from + rank_ * block;
  SlotWriter slots;
  run_pieces(
      call, cut.pieces(),
      [&](std::int64_t k) {
        slots.begin(k);
        for (std::size_t r = 0; r < ranks; ++r) {
          if (r == rank_) continue;
          slots.write(slot(rank_, piece_ + static_cast<std::uint64_t>(k)) + r * part,
                      from + r * block + bytes_of(cut.begin(k), e), bytes_of(cut.count(k), e));
        }
      },
      {},
      [&](std::int64_t k) {
        std::vector<const std::byte*> sources(ranks);
        for (std::size_t r = 0; r < ranks; ++r) {
          sources[r] = r == rank_ ? from + rank_ * block + bytes_of(cut.begin(k), e)
                                  : slot(r, piece_ + static_cast<std::uint64_t>(k)) + rank_ * part;
        }
        std::byte* const to = call.to.front().data() + bytes_of(cut.begin(k), e_to);
        past_cache ? fold_past_cache(call.reduction, to, sources, cut.count(k))
                   : fold(call.reduction, to, sources, cut.count(k));
      });
}

// With two ranks, each folds everything. It reads as many bytes from the other as if they divided the work, and they wait for
// each other once for each piece instead of twice.
void MachineWindow::all_reduce_of_two(const Call& call) {
  const auto e = call.reduction.from_bytes(), e_to = call.reduction.to_bytes();
  const std::byte* const from = call.from.front().data();
  const Cut cut{static_cast<std::int64_t>(call.from.front().size() / e), static_cast<std::int64_t>(kSlotBytes / 2 / e)};
  const bool past_cache = goes_past_cache(call);
  SlotWriter slots;
  run_pieces(
      call, cut.pieces(),
      [&](std::int64_t k) {
        slots.begin(k);
        slots.write(slot(rank_, piece_ + static_cast<std::uint64_t>(k)), from + bytes_of(cut.begin(k), e),
                    bytes_of(cut.count(k), e));
      },
      {},
      [&](std::int64_t k) {
        const auto number = piece_ + static_cast<std::uint64_t>(k);
        std::vector<const std::byte*> sources{slot(0, number), slot(1, number)};
        // Reads its own input and not its slot: the lines of the slot are also in the other rank's cache.
        sources[rank_] = from + bytes_of(cut.begin(k), e);
        std::byte* const to = call.to.front().data() + bytes_of(cut.begin(k), e_to);
        past_cache ? fold_past_cache(call.reduction, to, sources, cut.count(k))
                   : fold(call.reduction, to, sources, cut.count(k));
      });
}

void MachineWindow::all_reduce(const Call& call) {
  const auto ranks = controls_.size();
  if (ranks == 2) return all_reduce_of_two(call);
  const auto e = call.reduction.from_bytes(), e_to = call.reduction.to_bytes();
  const auto part = kSlotBytes / ranks / kLine * kLine;
  const std::byte* const from = call.from.front().data();
  std::byte* const to = call.to.front().data();
  const auto total = static_cast<std::int64_t>(call.from.front().size() / e);
  const Cut cut{total, static_cast<std::int64_t>(part / std::max(e, e_to) * ranks)};
  const bool past_cache = goes_past_cache(call);
  const auto hand_out = [&](std::byte* place, const std::byte* sum, std::size_t bytes) {
    past_cache ? device::copy_past_cache(place, sum, bytes) : copy_to(place, sum, bytes);
  };
  SlotWriter slots;
  // Rank r's share of piece k.
  const auto share = [&](std::int64_t k, std::size_t r) {
    auto block = block_of(cut.count(k), static_cast<int>(r), static_cast<int>(ranks));
    block.begin += cut.begin(k);
    return block;
  };
  run_pieces(
      call, cut.pieces(),
      [&](std::int64_t k) {
        slots.begin(k);
        for (std::size_t r = 0; r < ranks; ++r) {
          if (r == rank_) continue;
          const auto block = share(k, r);
          slots.write(slot(rank_, piece_ + static_cast<std::uint64_t>(k)) + r * part, from + bytes_of(block.begin, e),
                      bytes_of(block.count, e));
        }
      },
      [&](std::int64_t k) {
        const auto block = share(k, rank_);
        std::vector<const std::byte*> sources(ranks);
        for (std::size_t r = 0; r < ranks; ++r) {
          sources[r] =
              r == rank_ ? from + bytes_of(block.begin, e) : slot(r, piece_ + static_cast<std::uint64_t>(k)) + rank_ * part;
        }
        // The sum goes into this rank's own part of the slot, which no rank has written.
        std::byte* const sum = slot(rank_, piece_ + static_cast<std::uint64_t>(k)) + rank_ * part;
        fold(call.reduction, sum, sources, block.count);
        hand_out(to + bytes_of(block.begin, e_to), sum, bytes_of(block.count, e_to));
      },
      [&](std::int64_t k) {
        for (std::size_t i = 1; i < ranks; ++i) {
          const auto r = (rank_ + i) % ranks;
          const auto block = share(k, r);
          hand_out(to + bytes_of(block.begin, e_to), slot(r, piece_ + static_cast<std::uint64_t>(k)) + r * part,
                   bytes_of(block.count, e_to));
        }
      });
}

void MachineWindow::reduce(const Call& call) {
  const auto ranks = controls_.size();
  const auto e = call.reduction.from_bytes(), e_to = call.reduction.to_bytes();
  const auto root = static_cast<std::size_t>(call.peer);
  const std::byte* const from = call.from.front().data();
  const Cut cut{static_cast<std::int64_t>(call.from.front().size() / e), static_cast<std::int64_t>(kSlotBytes / e)};
  run_pieces(
      call, cut.pieces(),
      [&](std::int64_t k) {
        if (rank_ == root) return;
        device::copy_from_memory(slot(rank_, piece_ + static_cast<std::uint64_t>(k)), from + bytes_of(cut.begin(k), e),
                                 bytes_of(cut.count(k), e));
      },
      {},
      [&](std::int64_t k) {
        if (rank_ != root) return;
        std::vector<const std::byte*> sources(ranks);
        for (std::size_t r = 0; r < ranks; ++r) {
          sources[r] = r == root ? from + bytes_of(cut.begin(k), e) : slot(r, piece_ + static_cast<std::uint64_t>(k));
        }
        fold(call.reduction, call.to.front().data() + bytes_of(cut.begin(k), e_to), sources, cut.count(k));
      });
}

void MachineWindow::broadcast(const Call& call) {
  const auto root = static_cast<std::size_t>(call.peer);
  const auto& bytes = call.to.front();
  const Cut cut{static_cast<std::int64_t>(bytes.size()), kSlotBytes};
  run_pieces(
      call, cut.pieces(),
      [&](std::int64_t k) {
        if (rank_ != root) return;
        copy_to(slot(root, piece_ + static_cast<std::uint64_t>(k)), bytes.data() + cut.begin(k), bytes_of(cut.count(k), 1));
      },
      {},
      [&](std::int64_t k) {
        if (rank_ == root) return;
        copy_to(bytes.data() + cut.begin(k), slot(root, piece_ + static_cast<std::uint64_t>(k)), bytes_of(cut.count(k), 1));
      });
}

}  // namespace terrace::comm
