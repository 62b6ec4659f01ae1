#include <terrace/parallel/comm/between_machines.h>

#include <algorithm>

namespace terrace::comm {
namespace {

std::size_t bytes_of(std::int64_t elements, std::size_t each) { return static_cast<std::size_t>(elements) * each; }
constexpr std::int64_t kAligned = 256;  // elements: sums of long pieces are aligned for vectors
std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

// How many elements of each block are in transfer at a time, the same on all ranks: the rank that stages most decides. For
// every owner, staging has the contributions of the rank's machine, their sum, and one sum that comes in.
std::int64_t piece_elements(const Machines& machines, const Reduction& r, std::size_t staging_bytes) {
  int smallest = machines.ranks(), largest = 0;
  for (int m = 0; m < machines.count(); ++m) {
    smallest = std::min(smallest, machines.size(m));
    largest = std::max(largest, machines.size(m));
  }
  std::int64_t owners = 0;
  for (int m = 0; m < machines.count(); ++m) owners += (machines.size(m) + smallest - 1) / smallest;
  const auto each = bytes_of(owners, bytes_of(largest == 1 ? 0 : largest, r.from_bytes()) + 2 * sum_bytes(r));
  const auto most = std::max<std::int64_t>(1, static_cast<std::int64_t>(staging_bytes / each));
  return most < kAligned ? most : most / kAligned * kAligned;
}

}  // namespace

// One piece of every block: the block's elements [at, at + most), or fewer at its end. Staging has three areas for each owner.
struct BetweenMachines::Piece {
  const Reduction& reduction;
  const std::byte* from;
  const std::vector<Block>& blocks;
  const std::vector<int>& owners;  // for which this rank is the deputy
  std::int64_t at, most;
  std::byte* staging;
  int members;  // ranks of the machine

  [[nodiscard]] Block of(int owner) const {
    const auto& block = blocks[index(owner)];
    return {block.begin + at, std::clamp<std::int64_t>(block.count - at, 0, most)};
  }
  [[nodiscard]] ConstBytes contribution(int owner) const {
    const auto e = reduction.from_bytes();
    return {from + bytes_of(of(owner).begin, e), bytes_of(of(owner).count, e)};
  }
  [[nodiscard]] std::size_t contribution_bytes() const { return bytes_of(most, reduction.from_bytes()); }
  [[nodiscard]] std::size_t sum_area() const { return bytes_of(most, sum_bytes(reduction)); }
  // Sums first: they are aligned for every dtype.
  [[nodiscard]] std::byte* sum(std::size_t i) const { return staging + 2 * i * sum_area(); }
  [[nodiscard]] std::byte* coming(std::size_t i) const { return sum(i) + sum_area(); }
  [[nodiscard]] std::byte* contributions(std::size_t i) const {
    return staging + owners.size() * 2 * sum_area() + i * index(members) * contribution_bytes();
  }
  [[nodiscard]] std::size_t staged() const {
    return owners.size() * (2 * sum_area() + (members == 1 ? 0 : index(members) * contribution_bytes()));
  }
};

void BetweenMachines::fold(const Reduction& r, const std::byte* from, const std::vector<Block>& blocks, std::byte* to) const {
  const auto owners = machines_.owners_of(rank_);
  std::int64_t longest = 0;
  for (const auto& block : blocks) longest = std::max(longest, block.count);
  const auto most = std::min(longest, piece_elements(machines_, r, means_.staging_bytes));
  Piece piece{.reduction = r,
              .from = from,
              .blocks = blocks,
              .owners = owners,
              .at = 0,
              .most = most,
              .staging = nullptr,
              .members = machines_.size(machines_.of_rank(rank_))};
  if (longest > 0) piece.staging = means_.staging(piece.staged());
  const auto own = index(static_cast<int>(std::ranges::find(owners, rank_) - owners.begin()));
  for (; piece.at < longest; piece.at += most) {
    add_within(piece);
    add_across(piece);
    if (const auto count = piece.of(rank_).count; count > 0)
      means_.fold(onto_result(r), to + bytes_of(piece.at, r.to_bytes()), {.own = piece.sum(own)}, sum_elements(r, count));
  }
}

void BetweenMachines::add_within(const Piece& p) const {
  const int machine = machines_.of_rank(rank_), first = machines_.first(machine), place = rank_ - first;
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (int peer = first; peer < first + machines_.size(machine); ++peer) {
    if (peer == rank_) continue;
    for (const int owner : machines_.owners_of(peer))
      if (const auto bytes = p.contribution(owner); !bytes.empty()) out.push_back({peer, bytes});
    for (std::size_t i = 0; i < p.owners.size(); ++i)
      if (const auto bytes = p.contribution(p.owners[i]).size(); bytes > 0)
        in.push_back({peer, {p.contributions(i) + index(peer - first) * p.contribution_bytes(), bytes}});
  }
  if (!out.empty() || !in.empty()) means_.exchange(out, in);
  for (std::size_t i = 0; i < p.owners.size(); ++i) {
    const auto own = p.contribution(p.owners[i]);
    if (own.empty()) continue;
    means_.fold(within_machine(p.reduction), p.sum(i),
                {.own = own.data(),
                 .others = p.contributions(i),
                 .stride = p.contribution_bytes(),
                 .terms = p.members,
                 .own_place = place},
                p.of(p.owners[i]).count);
  }
}

void BetweenMachines::add_across(const Piece& p) const {
  const int machine = machines_.of_rank(rank_);
  for (int round = 0; round < machines_.rounds(); ++round) {
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    for (std::size_t i = 0; i < p.owners.size(); ++i) {
      const int owner = p.owners[i];
      const auto bytes = bytes_of(p.of(owner).count, sum_bytes(p.reduction));
      const auto meeting = machines_.meeting(round, machine, machines_.of_rank(owner));
      if (!meeting || bytes == 0) continue;
      if (meeting->giver == machine)
        out.push_back({machines_.deputy(meeting->keeper, owner), {p.sum(i), bytes}});
      else
        in.push_back({machines_.deputy(meeting->giver, owner), {p.coming(i), bytes}});
    }
    if (!out.empty() || !in.empty()) means_.exchange(out, in);
    for (std::size_t i = 0; i < p.owners.size(); ++i) {
      const int owner = p.owners[i];
      const auto count = sum_elements(p.reduction, p.of(owner).count);
      const auto meeting = machines_.meeting(round, machine, machines_.of_rank(owner));
      if (!meeting || count == 0 || meeting->keeper != machine) continue;
      means_.fold(across_machines(p.reduction), p.sum(i),
                  {.own = p.sum(i), .others = p.coming(i), .terms = 2, .own_place = meeting->keeper_is_left ? 0 : 1}, count);
    }
  }
}

void BetweenMachines::gather(Bytes all, const std::vector<Block>& blocks) const {
  const int machine = machines_.of_rank(rank_), first = machines_.first(machine);
  const auto owners = machines_.owners_of(rank_);
  const auto place = [&](int owner) {
    const auto& block = blocks[index(owner)];
    return all.subspan(static_cast<std::size_t>(block.begin), static_cast<std::size_t>(block.count));
  };
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  const auto exchange = [&] {
    if (!out.empty() || !in.empty()) means_.exchange(out, in);
    out.clear();
    in.clear();
  };
  for (int round = machines_.rounds() - 1; round >= 0; --round) {
    for (const int owner : owners) {
      const auto meeting = machines_.meeting(round, machine, machines_.of_rank(owner));
      if (!meeting || place(owner).empty()) continue;
      if (meeting->keeper == machine)
        out.push_back({machines_.deputy(meeting->giver, owner), place(owner)});
      else
        in.push_back({machines_.deputy(meeting->keeper, owner), place(owner)});
    }
    exchange();
  }
  for (int peer = first; peer < first + machines_.size(machine); ++peer) {
    if (peer == rank_) continue;
    for (const int owner : owners)
      if (!place(owner).empty()) out.push_back({peer, place(owner)});
    for (const int owner : machines_.owners_of(peer))
      if (!place(owner).empty()) in.push_back({peer, place(owner)});
  }
  exchange();
}

// ---- counting ----------------------------------------------------------------------------------------------------------

SentByLink& SentByLink::operator+=(const SentByLink& more) {
  within += more.within;
  between += more.between;
  return *this;
}

namespace {

// Counts what a rank sends for one call, by going through the same messages without allocating memory for them.
class SentCounter {
 public:
  SentCounter(const Call& call, int rank, const Machines& machines) : call_(call), rank_(rank), machines_(machines) {}

  SentByLink count() {
    if (call_.operation == Operation::send) {
      if (call_.peer != rank_) add(call_.peer, call_.from.front().size());
    } else if (machines_.count() == 1) {
      sent_.within = sent_bytes(call_, rank_, machines_.ranks());
    } else {
      collective();
    }
    return sent_;
  }

 private:
  void collective() {
    switch (call_.operation) {
      case Operation::all_gather:
        if (!all().empty()) between_.gather(all(), blocks_of(all().size(), all().size() / index(machines_.ranks())));
        break;
      case Operation::broadcast: between_.gather(all(), only(call_.peer, all().size())); break;
      case Operation::reduce_scatter: reduce(blocks_of(elements(), 1)); break;
      case Operation::all_reduce:
        reduce(blocks_of(elements(), 1));
        between_.gather(all(), blocks_of(all().size(), call_.reduction.to_bytes()));
        break;
      case Operation::reduce: reduce(only(call_.peer, elements())); break;
      case Operation::all_to_all:
        for (int r = 0; r < machines_.ranks(); ++r)
          if (r != rank_) add(r, call_.from[index(r)].size());
        break;
      default: break;
    }
  }

  // Counts contributions to the blocks of all owners.
  void reduce(const std::vector<Block>& blocks) {
    if (adds_by_machine(machines_, call_.reduction)) {
      std::byte result{};  // not written
      between_.fold(call_.reduction, call_.from.front().data(), blocks, &result);
      return;
    }
    for (int r = 0; r < machines_.ranks(); ++r)
      if (r != rank_) add(r, bytes_of(blocks[index(r)].count, call_.reduction.from_bytes()));
  }

  [[nodiscard]] Bytes all() const { return call_.to.front(); }
  [[nodiscard]] std::size_t elements() const { return call_.from.front().size() / call_.reduction.from_bytes(); }

  // Divides `size` bytes into one block per rank, in units of `each` bytes.
  [[nodiscard]] std::vector<Block> blocks_of(std::size_t size, std::size_t each) const {
    std::vector<Block> blocks;
    for (int r = 0; r < machines_.ranks(); ++r) {
      const auto block = block_of(static_cast<std::int64_t>(size / each), r, machines_.ranks());
      blocks.push_back({block.begin * static_cast<std::int64_t>(each), block.count * static_cast<std::int64_t>(each)});
    }
    return blocks;
  }
  // One rank owns everything.
  [[nodiscard]] std::vector<Block> only(int owner, std::size_t size) const {
    std::vector<Block> blocks(index(machines_.ranks()));
    blocks[index(owner)] = {0, static_cast<std::int64_t>(size)};
    return blocks;
  }

  void add(int to, std::uint64_t bytes) { (machines_.together(rank_, to) ? sent_.within : sent_.between) += bytes; }

  const Call& call_;
  const int rank_;
  const Machines& machines_;
  SentByLink sent_;
  std::vector<std::byte> staging_;
  const BetweenMachines::Means means_{.exchange =
                                          [this](const std::vector<Outgoing>& out, const std::vector<Incoming>&) {
                                            for (const auto& message : out) add(message.to, message.bytes.size());
                                          },
                                      .fold = [](const Reduction&, std::byte*, const Terms&, std::int64_t) {},
                                      .staging =
                                          [this](std::size_t bytes) {
                                            staging_.resize(bytes);
                                            return staging_.data();
                                          }};
  const BetweenMachines between_{machines_, rank_, means_};
};

}  // namespace

SentByLink sent_by_link(const Call& call, int rank, const Machines& machines) {
  return SentCounter(call, rank, machines).count();
}

}  // namespace terrace::comm
