#include <utility>

#include <terrace/core/base/error.h>
#include <terrace/parallel/comm/threads/thread_group.h>
#include <terrace/parallel/comm/transport.h>

namespace terrace {
namespace {

class ThreadTransport final : public comm::Transport {
 public:
  ThreadTransport(std::shared_ptr<comm::ThreadGroup> group, int rank) : group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  const std::string& name() const override { return group_->name(); }
  const comm::Machines& machines() const override { return group_->machines(); }
  void run(const comm::Call& call, std::uint64_t number) override { group_->run(rank_, call, number); }
  std::shared_ptr<comm::Transport> split(int color, int key, const std::string& name, std::uint64_t number) override {
    auto [group, rank] = group_->split(rank_, color, key, name, number);
    return group ? std::make_shared<ThreadTransport>(std::move(group), rank) : nullptr;
  }
  void check(std::uint64_t number, std::chrono::steady_clock::time_point since) override {
    group_->check(rank_, number, since);
  }
  void fail(const std::string& why) noexcept override { group_->fail(rank_, why); }
  void leave() noexcept override { group_->leave(rank_); }

 private:
  const std::shared_ptr<comm::ThreadGroup> group_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int ranks, const CommunicatorOptions& options) {
  if (ranks < 1) throw Error("a communicator has at least one rank, not " + std::to_string(ranks), ErrorKind::refused);
  std::vector<int> machine_of_rank(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks && options.ranks_per_machine > 0; ++r)
    machine_of_rank[static_cast<std::size_t>(r)] = r / options.ranks_per_machine;
  const auto group = std::make_shared<comm::ThreadGroup>(std::move(machine_of_rank), ranks == 1 ? "self" : "world", options);
  std::vector<std::unique_ptr<Communicator>> all;
  for (int r = 0; r < ranks; ++r) all.push_back(comm::make_communicator(std::make_shared<ThreadTransport>(group, r)));
  return all;
}

}  // namespace terrace
