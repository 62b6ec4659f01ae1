// The communicators of a data rank, one for each set of peers.
//
//   all      every data rank: losses, and sums that are not sharded
//   sharers  the ranks that share one replica of the state with it: gathers and reductions of groups
//   copies   the ranks that hold the same shard of the other replicas
//   turns    every data rank, in the order in which micro-batches are folded (DataParallel::turn())
//
// Owner:   a Compute; borrows the communicator of all, and makes the others if they differ from it.
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
  [[nodiscard]] Communicator& copies() const { return *copies_; }  // only if there are several replicas
  [[nodiscard]] Communicator& turns() const { return turns_ ? *turns_ : all_; }

 private:
  Communicator& all_;
  std::unique_ptr<Communicator> sharers_, copies_, turns_;
};

}  // namespace terrace
