// Exchanges small numbers on which the ranks must agree outside a step: whether to stop, from which commit to resume, whether
// all ranks have arrived.
//
// Owner:   the caller; borrows communicator and device.
// Threads: the issuing thread of the communicator. Every call waits for all ranks without a time limit: they may be opening,
//          checking, copying or committing state of any size.
// Errors:  those of the communicator: they name a rank that died or left.
#pragma once

#include <memory>
#include <string>
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
  [[nodiscard]] std::vector<double> each(double mine);   // in rank order
  [[nodiscard]] std::string of_first(std::string mine);  // the text of rank 0, on every rank
  void barrier();
  [[nodiscard]] const Communicator& communicator() const { return ranks_; }

 private:
  Communicator& ranks_;
  const std::unique_ptr<Stream> stream_;
};

}  // namespace terrace
