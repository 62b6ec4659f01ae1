// What `terrace top` shows of a run, read from the files of its directory while another process trains in it. Nothing is
// changed or locked there, so looking never disturbs a run.
//
// Owner:   the caller, with one RunWatcher for each run. A look reads only the lines that metrics.jsonl got since the last
//          look.
// Threads: one.
// Errors:  none: if a run cannot be read, `problem` says why.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <terrace/examples/terrace/metrics/metrics.h>

namespace terrace::cli {

struct RunStatus {
  // not_there: no directory; not_started: no run in it; starting: its process has not begun a step; stopped: no process has
  // the directory locked, and the run has not reached its last step; unreadable: see `problem`.
  enum class State : std::uint8_t { not_there, not_started, starting, running, finished, stopped, unreadable };
  State state = State::not_there;
  std::string name, problem;
  int pid = 0;                               // of the process that has the directory locked; 0: none on this machine
  std::uint64_t last_step = 0;               // of the configuration; 0: unknown
  std::string budgets[3];                    // device, host, disk, as configured
  std::vector<StepMetrics> recent;           // the last steps, at most kRecentSteps
  std::vector<double> losses;                // of all steps that had targets
  std::optional<double> eval_loss;           // the last one
  std::optional<double> seconds_since_step;  // since metrics.jsonl was written
  std::optional<std::uint64_t> commit;       // the step of the last commit
  std::optional<double> seconds_since_commit;
  double commit_s = 0, total_s = 0;  // of all steps: waiting for commits; and waiting and computing together
};

inline constexpr std::size_t kRecentSteps = 20;

class RunWatcher {
 public:
  explicit RunWatcher(std::filesystem::path directory);
  RunStatus look();

 private:
  void read_new_lines();
  void read_configuration(RunStatus& status) const;
  void read_commit(RunStatus& status) const;

  std::filesystem::path directory_;
  RunStatus kept_;  // what metrics.jsonl has said until now
  std::uint64_t read_bytes_ = 0, lines_ = 0, inode_ = 0;
};

// The process with a lock on the directory, from the text of /proc/locks; 0: none.
int holder_of_lock(const std::string& locks, const std::filesystem::path& directory);

}  // namespace terrace::cli
