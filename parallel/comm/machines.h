// Which ranks of a communicator are on which machine, and the order of sums that follows from it. Everything that adds
// contributions of several machines uses this file, so all backends give the same bits.
//
// A machine is a run of consecutive ranks on one computer. (If a computer's ranks are not consecutive, each run counts as a
// machine.) A sum over machines 0, 1, … has two levels (SumOrder::machines):
//
//   P_m = ((c_a + c_b) + c_c) + …            the ranks of machine m in ascending order
//   (P_0 + P_1), (P_2 + P_3), …              then neighbours, round after round: sums of two machines,
//   ((P_0 + P_1) + (P_2 + P_3)), …           of four, of eight; a sum without a right neighbour waits for the next round
//
// and with `onto` the old content is added last, on the left: old + (that sum). On one machine everything is fold(): the old
// content first, then the ranks in ascending order. Sums of machines are fp32, even of bf16 contributions and of packed blocks
// (fp64 if contributions are fp64), and are sent in that dtype; a bf16 result is rounded once, at the end.
//
// The transfers follow the order: a sum over k machines takes ceil(log2 k) rounds. A block of the result has a home, the
// machine of the rank that owns it, and in every round one of two neighbours gives its sum of the block to the other. The
// home's number decides which one keeps it, so that all machines send the same number of bytes, and no byte twice.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <terrace/parallel/comm/fold.h>

namespace terrace::comm {

class Machines {
 public:
  static Machines one(int ranks);
  static Machines of(std::span<const int> machine_of_rank);

  [[nodiscard]] int count() const { return static_cast<int>(firsts_.size()); }
  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] int of_rank(int rank) const;
  [[nodiscard]] int first(int machine) const { return firsts_[static_cast<std::size_t>(machine)]; }
  [[nodiscard]] int size(int machine) const;
  [[nodiscard]] bool together(int one, int other) const { return of_rank(one) == of_rank(other); }
  // The rank of `machine` that works on the block of the rank `owner`: the owner itself on its own machine.
  [[nodiscard]] int deputy(int machine, int owner) const;
  // The owners for which `rank` is the deputy, ascending.
  [[nodiscard]] std::vector<int> owners_of(int rank) const;

  [[nodiscard]] int rounds() const;
  // In `round`, two neighbours' sums of a block with this home are added: the giver sends its sum to the keeper.
  struct Meeting {
    int keeper = 0, giver = 0;
    bool keeper_is_left = false;
    friend bool operator==(const Meeting&, const Meeting&) = default;
  };
  // The meeting in which `machine` takes part, if there is one.
  [[nodiscard]] std::optional<Meeting> meeting(int round, int machine, int home) const;

  friend bool operator==(const Machines&, const Machines&) = default;

 private:
  [[nodiscard]] int holder(int first, int round, int home) const;

  std::vector<int> firsts_;  // each machine's first rank
  int ranks_ = 0;
};

// The greatest number of its k blocks that the busiest machine sends or receives in all rounds of a sum or a gather; rounds are
// added, because in each round all machines wait for the busiest. It is k − 1 for powers of two, and up to 2.3 times that for
// other numbers, because the last machine replaces missing machines in their meetings.
std::int64_t busiest_blocks(int machines);

// The reductions of a sum over machines: within one machine, of two machines' sums, and of a sum onto the result.
DType sum_dtype(const Reduction& reduction);        // of a machine's sum
std::size_t sum_bytes(const Reduction& reduction);  // of a machine's sum, for one element of `from`
Reduction within_machine(const Reduction& reduction);
Reduction across_machines(const Reduction& reduction);
Reduction onto_result(const Reduction& reduction);
// The element count of a machine's sum: not `count` if an element is a packed block.
std::int64_t sum_elements(const Reduction& reduction, std::int64_t count);

[[nodiscard]] bool adds_by_machine(const Machines& machines, const Reduction& reduction);
// Adds all contributions, in ascending rank order in `from`, in the order of this file.
void fold(const Machines& machines, const Reduction& reduction, std::byte* to, std::span<const std::byte* const> from,
          std::int64_t count);

}  // namespace terrace::comm
