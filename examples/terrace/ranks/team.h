// The ranks that train a run together, as one of them sees them. A rank is a whole process, or a thread of a process.
//
// Owner:   the rank; destroying it tells the others that this rank has left.
// Threads: the rank's. All ranks must make the same calls.
// Errors:  those of the communicator. If another rank failed, together() throws Elsewhere.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/parallel/comm/agree.h>

namespace terrace::cli {

// Another rank failed and reports the error. This rank ends with the same exit code and no message.
struct Elsewhere : Error {
  explicit Elsewhere(ErrorKind kind) : Error("another rank failed", kind) {}
};

class Team {
 public:
  Team() = default;  // one rank
  Team(std::unique_ptr<Communicator> ranks, bool processes);
  [[nodiscard]] int rank() const { return ranks_ ? ranks_->rank() : 0; }
  [[nodiscard]] int size() const { return ranks_ ? ranks_->size() : 1; }
  [[nodiscard]] bool first() const { return rank() == 0; }
  [[nodiscard]] bool speaks_for_process() const { return processes_ || first(); }  // a signal goes to a process, not to a rank
  [[nodiscard]] bool has_processes() const { return processes_; }            // started one by one, each with its own flags
  [[nodiscard]] std::vector<int> machines() const;                           // how many ranks are on each machine
  [[nodiscard]] Communicator* communicator() const { return ranks_.get(); }  // null: there is one rank
  [[nodiscard]] Agreement* agreement() const { return agreement_.get(); }    // null: there is one rank

  // Runs `work` on every rank; `work` must not call the team. If it fails on some ranks, the first of these throws its error.
  void together(const std::function<void()>& work);
  [[nodiscard]] bool any(bool mine) { return agreement_ ? agreement_->any(mine) : mine; }
  [[nodiscard]] std::uint64_t least(std::uint64_t mine);  // kUnlimited stays kUnlimited
  [[nodiscard]] std::vector<double> each(double mine);
  [[nodiscard]] std::vector<std::string> texts(const std::string& mine);  // for short texts; returns them in rank order
  [[nodiscard]] std::string of_first(std::string mine) { return agreement_ ? agreement_->of_first(std::move(mine)) : mine; }
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
