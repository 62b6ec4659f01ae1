#include <terrace/bench/disk/paths_run.h>

#include <algorithm>
#include <barrier>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <terrace/bench/statistics.h>

namespace terrace::bench {
namespace {

constexpr double kSlow = 0.8;  // of the fastest path's rate

// What the passes of all paths share.
class Together {
 public:
  Together(std::size_t paths, const DiskPass::Watch& watch)
      : runs_(paths), moved_bytes_(paths), start_(static_cast<std::ptrdiff_t>(paths)), watch_(watch) {}

  void run(std::size_t path, DiskTarget& target, const PathWork& work) {
    const auto watch = [this, path](std::uint64_t moved, double seconds) { return go_on(path, moved, seconds); };
    bool started = false;
    const auto ready = [this, &started] {
      started = true;
      start_.arrive_and_wait();
    };
    try {
      runs_[path] = work(target, watch, ready);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
    if (!started) start_.arrive_and_drop();  // it failed before: the others need not wait for it
  }
  std::vector<DiskRun> ended() {
    if (error_) std::rethrow_exception(error_);
    return std::move(runs_);
  }

 private:
  bool go_on(std::size_t path, std::uint64_t moved, double seconds) {
    const std::lock_guard lock(mutex_);
    moved_bytes_[path] = moved;
    return watch_(std::accumulate(moved_bytes_.begin(), moved_bytes_.end(), std::uint64_t{0}), seconds) && !error_;
  }

  std::vector<DiskRun> runs_;
  std::vector<std::uint64_t> moved_bytes_;
  std::barrier<> start_;
  const DiskPass::Watch& watch_;
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

std::vector<DiskRun> run_together(const DiskTargets& targets, const DiskPass::Watch& watch, const PathWork& work) {
  Together all(targets.size(), watch);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < targets.size(); ++i)
      threads.emplace_back([&all, &targets, &work, i] { all.run(i, *targets[i], work); });
    all.run(0, *targets[0], work);
  }
  return all.ended();
}

DiskRun sum_of(const std::vector<DiskRun>& runs) {
  DiskRun sum{.whole = true, .axis = {}};
  for (const auto& run : runs) {
    sum.whole = sum.whole && run.whole;
    sum.seconds = std::max(sum.seconds, run.seconds);
    sum.cpu_s = std::max(sum.cpu_s, run.cpu_s);  // each is that of the whole process
    sum.bytes += run.bytes;
    sum.blocks += run.blocks;
    sum.axis.add(run.axis);
  }
  return sum;
}

std::vector<SlowPath> slow_paths(const std::vector<PathRates>& paths) {
  const auto& fastest = *std::ranges::max_element(paths, {}, [](const PathRates& p) { return median(p.gb_per_s); });
  const double most = median(fastest.gb_per_s);
  std::vector<SlowPath> slow;
  for (const auto& p : paths)
    if (median(p.gb_per_s) < kSlow * most && std::ranges::max(p.gb_per_s) < std::ranges::min(fastest.gb_per_s))
      slow.push_back({p.path, fastest.path, median(p.gb_per_s), most});
  return slow;
}

std::string describe(const std::string& op, const SlowPath& slow) {
  return fmt::format(
      "{}: {} is slow: {:.3g} GB/s, {:.0f} % of {}'s {:.3g}; see the row of each second in --json, and the drive's "
      "temperature and link",
      op, slow.path, slow.gb_per_s, 100 * slow.gb_per_s / slow.fastest_gb_per_s, slow.fastest, slow.fastest_gb_per_s);
}

}  // namespace terrace::bench
