// Small numbers that ranks must agree on outside a step: whether to stop, which commit to go on from, that all have come.
//
// Owner:   the caller; borrows communicator and device.
// Threads: the issuing thread of the communicator; every call waits for all ranks, however long they take: they come from
//          opening, checking, copying or committing their parts of a state, and nobody knows how large those are.
// Errors:  those of the communicator: a rank that died or left is named.
#pragma once

#include <memory>
#include <vector>

#include <terrace/parallel/comm/communicator.h>

namespace terrace {

class Agreement {
 public:
  Agreement(Communicator& ranks, Device& host);
  [[nodiscard]] double max(double mine);
  [[nodiscard]] double min(double mine) { return -max(-mine); }
  [[nodiscard]] bool any(bool mine) { return max(mine ? 1 : 0) != 0; }
  [[nodiscard]] bool all(bool mine) { return !any(!mine); }
  [[nodiscard]] std::vector<double> each(double mine);  // in rank order
  void barrier();

 private:
  Communicator& ranks_;
  const std::unique_ptr<Stream> stream_;
};

}  // namespace terrace
