#include <terrace/parallel/comm/threads/run_ranks.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <terrace/parallel/comm/rank_failed.h>

namespace terrace {
namespace {

// The errors of ranks, in the order in which they occurred.
class RankErrors {
 public:
  explicit RankErrors(std::size_t ranks) { errors_.reserve(ranks + 1); }
  void add(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    errors_.push_back(std::move(error));
  }
  void rethrow_cause() const {
    if (errors_.empty()) return;
    const auto cause = std::ranges::find_if_not(errors_, only_follows);
    std::rethrow_exception(cause == errors_.end() ? errors_.front() : *cause);
  }

 private:
  static bool only_follows(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const comm::RankFailed&) {
      return true;
    } catch (...) {
      return false;
    }
  }
  std::mutex mutex_;
  std::vector<std::exception_ptr> errors_;
};

}  // namespace

void run_ranks(int ranks, const CommunicatorOptions& options, const RankBody& body) {
  run_ranks(make_thread_communicators(ranks, options), body);
}

void run_ranks(std::vector<std::unique_ptr<Communicator>> communicators, const RankBody& body) {
  RankErrors errors(communicators.size());
  std::vector<std::jthread> threads;
  try {
    for (auto& own : communicators)
      threads.emplace_back([&body, &errors, mine = std::move(own)]() mutable {
        try {
          body(std::move(mine));
        } catch (...) {
          errors.add(std::current_exception());
        }
      });
  } catch (...) {  // no thread or no memory for a rank
    errors.add(std::current_exception());
    communicators.clear();
  }
  threads.clear();
  errors.rethrow_cause();
}

}  // namespace terrace
