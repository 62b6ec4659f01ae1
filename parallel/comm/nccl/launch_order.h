// The order in which a rank's communicators launch their calls on its GPU: for every two calls the same on all ranks that make
// both. NCCL needs this. A call keeps its blocks of a GPU until the other ranks launch it, too; if one rank has launched the
// first call, another one the second, and neither GPU has room for both, the two wait for each other.
//
// The ranks of a call agree on a number (Skeen's algorithm, in Birman and Joseph, "Reliable Communication in the Presence of
// Failures", 1987): when they have met, each proposes a number above all those that it knows, and the greatest counts. A call
// is launched when its number is the smallest of this rank's calls that have not been launched, and the GPU has room for its
// blocks beside the calls that run. So the unfinished call with the smallest number can always be launched on all of its ranks.
//
//   LaunchOrder::Turn turn(order, blocks);       // when all ranks of the call have met
//   turn.agree(greatest_of_all(turn.number()));  // must not wait for any other call
//   turn.take();
//   …                                            // launch
//   turn.pass();                                 // the end of `turn` is the end of the call: it gives the blocks back
//
// Owner:   shared by the communicators of one rank. Threads: any; a turn on one thread at a time.
// Errors:  none. A call that fails leaves the order when its turn is destroyed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>

namespace terrace::comm {

class LaunchOrder {
 public:
  // `rank`: a number that no other rank of the run has. `blocks`: how many one GPU runs at once.
  LaunchOrder(int rank, int blocks) : rank_(rank), blocks_(blocks), free_(blocks) {}
  [[nodiscard]] int blocks() const { return blocks_; }

  class Turn {
   public:
    Turn(LaunchOrder& order, int blocks);  // proposes a number; a call may not need more blocks than the GPU has
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    [[nodiscard]] std::uint64_t number() const { return number_; }
    void agree(std::uint64_t greatest);
    void take();  // waits for the turn and for room
    void pass();  // the call has been launched: the next one may be

   private:
    LaunchOrder& order_;
    const int blocks_;
    std::uint64_t number_ = 0;
    bool taken_ = false, passed_ = false;
  };

 private:
  static constexpr int kRankBits = 20;  // of a number, so that no two ranks propose the same one

  const int rank_, blocks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t clock_ = 0;          // of the greatest number that this rank knows
  std::set<std::uint64_t> waiting_;  // the numbers, proposed or agreed, of calls that have not been launched
  int free_;
};

}  // namespace terrace::comm
