// The communicators that a rank's exchanges go to, by what it shares with whom: the axes of data parallelism.
//
//   all      every data rank: losses, and sums that nothing shards
//   sharers  those that share one copy of the state with it: gathers and reductions of groups
//   copies   those that hold the same shard of another copy
//   turns    every data rank in the order in which micro-batches are folded (DataParallel::turn())
//
// Owner:   whoever computes; borrows the communicator of all, and makes the others where they differ from it.
// Threads: as a communicator. The constructor is collective.
#pragma once

#include <memory>

#include <terrace/parallel/comm/communicator.h>
#include <terrace/parallel/data_parallel.h>

namespace terrace {

class DataGroups {
 public:
  DataGroups(Communicator& all, const DataParallel& data);
  [[nodiscard]] Communicator& all() const { return all_; }
  [[nodiscard]] Communicator& sharers() const { return sharers_ ? *sharers_ : all_; }
  [[nodiscard]] Communicator& copies() const { return *copies_; }  // where there are several
  [[nodiscard]] Communicator& turns() const { return turns_ ? *turns_ : all_; }

 private:
  Communicator& all_;
  std::unique_ptr<Communicator> sharers_, copies_, turns_;
};

}  // namespace terrace
