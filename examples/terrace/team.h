// The ranks that train a run together, as one of them sees it: alone, a thread among threads, or a process among processes.
//
// Owner:   the rank; destroying it tells the others that this rank has left.
// Threads: the rank's. Every call is one that all ranks make.
// Errors:  those of the communicator. together() throws Elsewhere on ranks that another rank's failure ends.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <terrace/core/device.h>
#include <terrace/core/error.h>
#include <terrace/core/thread_pool.h>
#include <terrace/parallel/comm/agree.h>

namespace terrace::cli {

// Another rank failed and says why: nothing to be said here but the exit code.
struct Elsewhere : Error {
  explicit Elsewhere(Exit code) : Error("another rank failed", code) {}
};

class Team {
 public:
  Team() = default;  // alone
  Team(std::unique_ptr<Communicator> ranks, bool processes);
  [[nodiscard]] int rank() const { return ranks_ ? ranks_->rank() : 0; }
  [[nodiscard]] int size() const { return ranks_ ? ranks_->size() : 1; }
  [[nodiscard]] bool first() const { return rank() == 0; }
  [[nodiscard]] bool speaks_for_process() const { return processes_ || first(); }  // signals come to processes
  [[nodiscard]] Communicator* communicator() const { return ranks_.get(); }        // null: alone

  // Does what may fail, without calls of the team in it: when it fails on any rank, the first of them throws what it was.
  void together(const std::function<void()>& work);
  [[nodiscard]] bool any(bool mine) { return agreement_ ? agreement_->any(mine) : mine; }
  [[nodiscard]] std::uint64_t least(std::uint64_t mine);  // kUnlimited stays
  [[nodiscard]] std::vector<double> each(double mine);
  [[nodiscard]] std::uint64_t max(std::uint64_t mine);
  [[nodiscard]] std::uint64_t sum(std::uint64_t mine);

 private:
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Device> host_;
  std::unique_ptr<Communicator> ranks_;
  std::unique_ptr<Agreement> agreement_;
  bool processes_ = false;
};

}  // namespace terrace::cli
