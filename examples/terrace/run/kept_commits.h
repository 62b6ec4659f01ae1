// --ckpt-keep N: keeps the newest N commits of a run. The newest is in the store itself. Each older one is a copy of the store
// in RUN/kept/step-00000100/, a run directory of its own, as `terrace ckpt copy` makes it.
//
// A commit is copied during the steps that follow it. The next commit waits until the copy is finished, and the oldest copy is
// removed after it. So a kill at any moment leaves at least the N newest commits, or an unfinished copy, which the next start
// removes.
//
// Owner:   the caller. Threads: the rank's; all ranks make the same calls. Each rank copies on a thread of its own.
// Errors:  Error(ErrorKind::does_not_fit) before training if the copies do not fit; those of the stores.
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include <terrace/examples/terrace/base/unfinished_copy.h>
#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/examples/terrace/ranks/team.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/parallel/run/engine.h>

namespace terrace::cli {

struct KeptCommit {
  std::uint64_t step = 0;
  std::filesystem::path directory;
};
// The finished copies, oldest first. A copy in which a user continued the run is a run now: it is not listed, and stays.
std::vector<KeptCommit> kept_commits(const std::filesystem::path& run);

// For one rank of a run; all ranks must be on one machine.
class CommitKeeper {
 public:
  CommitKeeper(const RunConfig& config, const RunDir& dir, Team& team, const Engine& engine)
      : config_(config), dir_(dir), team_(team), engine_(engine) {}

  ~CommitKeeper() { stop_.request_stop(); }

  void demand_room() const;    // before the run begins; exchanges nothing with other ranks
  void begin() const;          // removes what a killed run left unfinished; only warns if that fails
  void copy_last_commit();     // if there is one; continues during the steps
  void finish_copy();          // before the next commit
  void remove_oldest() const;  // after the next commit
  void drop_copy();            // at the end of a run: its last commit needs no copy

 private:
  [[nodiscard]] bool keeps() const { return config_.run.ckpt_keep > 1; }
  [[nodiscard]] std::uint64_t state_bytes() const;
  bool begin_copy(std::uint64_t step);  // only called on the first rank; false: the commit is not copied

  const RunConfig& config_;
  const RunDir& dir_;
  Team& team_;
  const Engine& engine_;
  // Destroyed in reverse order: first the copying thread ends, then an unfinished copy is removed.
  std::stop_source stop_;
  std::optional<UnfinishedCopy> unfinished_;  // on the first rank only
  std::filesystem::path folder_;
  std::future<void> copying_;  // this rank's part
};

// The step of the last commit that all ranks have, from their records, even while the run is training. Empty: none.
std::optional<std::uint64_t> last_step_of(const std::filesystem::path& run, std::span<const std::filesystem::path> given);
// For `terrace ckpt … --step S`: returns the run itself if its last commit is after that step, or the directory of a kept one.
std::filesystem::path directory_of_commit(const std::filesystem::path& run, std::span<const std::filesystem::path> given,
                                          std::uint64_t step);
// Removes the kept commit after that step, or what a kill left of it. Returns false if there is none.
bool remove_kept_commit(const std::filesystem::path& run, std::uint64_t step);
void remove_kept_commits(const std::filesystem::path& run);

}  // namespace terrace::cli
