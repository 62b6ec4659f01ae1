#include <terrace/parallel/comm/threads/thread_group.h>

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/device/host_copy.h>
#include <terrace/parallel/comm/rank_failed.h>

namespace terrace::comm {
namespace {

// A result for many ranks is folded in pieces that stay in the cache while the ranks copy them.
constexpr std::int64_t kPieceElements = 16 * 1024;

void copy_to(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from) device::copy_bytes(to, from, bytes);
}

class Entered {
 public:
  Entered(PositionLog& log, std::uint64_t number, const Call& call) : log_(log), number_(number) { log_.begin(number, call); }
  ~Entered() { log_.end(number_); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  PositionLog& log_;
  const std::uint64_t number_;
};

}  // namespace

ThreadGroup::ThreadGroup(std::vector<int> machine_of_rank, std::string name, const CommunicatorOptions& options)
    : name_(std::move(name)),
      options_(options),
      machine_of_rank_(std::move(machine_of_rank)),
      machines_(Machines::of(machine_of_rank_)),
      members_(machine_of_rank_.size()) {}

void ThreadGroup::run(int rank, const Call& call, std::uint64_t number) {
  switch (call.operation) {
    case Operation::send: return send(rank, call, number);
    case Operation::receive: return receive(rank, call, number);
    default: return collective(rank, call, number);
  }
}

void ThreadGroup::collective(int rank, const Call& call, std::uint64_t number) {
  Lock lock(mutex_);
  const Entered entered(members_[static_cast<std::size_t>(rank)].log, number, call);
  arrive(lock, rank, call, number);
  lock.unlock();
  std::exception_ptr error;
  try {
    if (!call.on_device) share(rank);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  finish(lock);
  if (error) std::rethrow_exception(error);
}

void ThreadGroup::arrive(Lock& lock, int rank, const Call& call, std::uint64_t number) {
  if (failure_) throw RankFailed(*failure_);
  auto& me = members_[static_cast<std::size_t>(rank)];
  me.call = &call;
  me.arrived = true;
  const auto turn = started_;
  if (++arrived_ < size()) {
    const auto awaited = [&] {
      std::vector<int> ranks;
      for (int r = 0; r < size(); ++r) {
        if (!members_[static_cast<std::size_t>(r)].arrived) ranks.push_back(r);
      }
      return ranks;
    };
    wait(
        lock, rank, call, number, [&] { return started_ != turn; }, awaited);
    return;
  }
  check_match();
  for (auto& member : members_) member.arrived = false;
  arrived_ = 0;
  working_ = size();
  ++started_;
  changed_.notify_all();
}

// Work always ends, so there is no time limit. It cannot be left early, because other ranks may still read this rank's buffers.
void ThreadGroup::finish(Lock& lock) {
  if (--working_ == 0) changed_.notify_all();
  changed_.wait(lock, [&] { return working_ == 0; });
}

// The last rank to arrive compares the calls of all.
void ThreadGroup::check_match() {
  const auto of = [&](std::size_t r) -> const Call& { return *members_[r].call; };
  for (std::size_t a = 0; a < members_.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      bool match = of(a).operation == of(b).operation && of(a).reduction == of(b).reduction && of(a).peer == of(b).peer &&
                   of(a).on_device == of(b).on_device;
      if (match && of(a).operation == Operation::all_to_all) {
        match = of(a).from[b].size() == of(b).to[a].size() && of(a).to[b].size() == of(b).from[a].size();
      } else if (match) {
        match = of(a).payload_bytes() == of(b).payload_bytes();
      }
      if (match) continue;
      fail_locked(
          fmt::format("{}: ranks {} and {} issued collectives that do not match; all ranks must issue them in the same "
                      "order with equal sizes{}",
                      name_, b, a, positions()));
      throw RankFailed(*failure_);
    }
  }
}

template <class Ready, class Awaited>
void ThreadGroup::wait(Lock& lock, int rank, const Call& call, std::uint64_t number, Ready ready, Awaited awaited) {
  const auto deadline = Clock::now() + options_.time_limit;
  const auto in_time = [&] {
    if (!call.patient) return changed_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    changed_.wait(lock);
    return true;
  };
  while (!ready()) {
    if (failure_) throw RankFailed(*failure_);
    const std::vector<int> ranks = awaited();
    const auto left = std::ranges::find_if(ranks, [&](int r) { return members_[static_cast<std::size_t>(r)].log.left(); });
    if (left != ranks.end()) {
      fail_locked(fmt::format("{}: rank {} has left, and rank {} waits for it in its call {}{}", name_, *left, rank, number,
                              positions()));
    } else if (!in_time() && !ready() && !failure_) {
      fail_locked(fmt::format("{}: rank {} waited {} s in its call {}; not arrived: rank {}{}", name_, rank,
                              std::chrono::duration<double>(options_.time_limit).count(), number, fmt::join(awaited(), ", "),
                              positions()));
    }
  }
}

std::string ThreadGroup::positions() const {
  std::vector<Position> all;
  for (const auto& member : members_) all.push_back(member.log.now());
  return report(all);
}

void ThreadGroup::fail_locked(const std::string& why) {
  if (!failure_) failure_ = why;
  changed_.notify_all();
}

void ThreadGroup::check(int rank, std::uint64_t number, Clock::time_point since) {
  const std::lock_guard lock(mutex_);
  if (!failure_ && Clock::now() - since > options_.time_limit) {
    fail_locked(fmt::format("{}: rank {} waited {} s for the bytes of its call {}{}", name_, rank,
                            std::chrono::duration<double>(options_.time_limit).count(), number, positions()));
  }
  if (failure_) throw RankFailed(*failure_);
}

void ThreadGroup::fail(int rank, const std::string& why) noexcept {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  try {
    fail_locked(fmt::format("{}: rank {} failed: {}{}", name_, rank, why, positions()));
  } catch (const std::exception&) {
    fail_locked("out of memory");  // short enough to need none
  }
}

void ThreadGroup::leave(int rank) noexcept {
  const std::lock_guard lock(mutex_);
  members_[static_cast<std::size_t>(rank)].log.leave();
  changed_.notify_all();
}

// ---- between two ranks ------------------------------------------------------------------------------------------------

void ThreadGroup::send(int rank, const Call& call, std::uint64_t number) {
  Lock lock(mutex_);
  const Entered entered(members_[static_cast<std::size_t>(rank)].log, number, call);
  Message message{call.from.front()};
  auto& queue = messages_[Route{rank, call.peer, call.lane}];
  queue.push_back(&message);
  changed_.notify_all();
  try {
    wait(
        lock, rank, call, number, [&] { return message.done; },
        [&] { return message.taken ? std::vector<int>() : std::vector<int>{call.peer}; });
  } catch (...) {
    changed_.wait(lock, [&] { return !message.taken || message.done; });  // until no rank reads it
    std::erase(queue, &message);
    throw;
  }
}

void ThreadGroup::receive(int rank, const Call& call, std::uint64_t number) {
  Lock lock(mutex_);
  const Entered entered(members_[static_cast<std::size_t>(rank)].log, number, call);
  auto& queue = messages_[Route{call.peer, rank, call.lane}];
  wait(
      lock, rank, call, number, [&] { return !queue.empty(); }, [&] { return std::vector<int>{call.peer}; });
  Message& message = *queue.front();
  const auto& to = call.to.front();
  if (message.bytes.size() != to.size()) {
    fail_locked(fmt::format("{}: rank {} sent {} bytes on lane {}, and rank {} receives {}{}", name_, call.peer,
                            message.bytes.size(), call.lane, rank, to.size(), positions()));
    throw RankFailed(*failure_);
  }
  queue.pop_front();
  message.taken = true;
  lock.unlock();
  if (!call.on_device) copy_to(to.data(), message.bytes.data(), to.size());
  lock.lock();
  message.done = true;
  changed_.notify_all();
}

// ---- the work of collectives -------------------------------------------------------------------------------------------

void ThreadGroup::share(int rank) const {
  const auto me = static_cast<std::size_t>(rank);
  const Call& call = *members_[me].call;
  const auto ranks = members_.size();
  const auto of = [&](std::size_t r) -> const Call& { return *members_[r].call; };
  const auto element_from = call.reduction.from_bytes(), element_to = call.reduction.to_bytes();
  // Folds elements [begin, begin + count) of all ranks' `from`.
  const auto fold_range = [&](std::byte* to, std::int64_t begin, std::int64_t count) {
    std::vector<const std::byte*> sources(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      sources[r] = of(r).from.front().data() + static_cast<std::size_t>(begin) * element_from;
    }
    fold(machines_, call.reduction, to, sources, count);
  };

  switch (call.operation) {
    case Operation::all_gather: {
      const auto bytes = call.from.front().size();
      for (std::size_t i = 0; i < ranks; ++i) {
        const auto r = (me + i) % ranks;  // not all from the same rank at once
        copy_to(call.to.front().data() + r * bytes, of(r).from.front().data(), bytes);
      }
      return;
    }
    case Operation::reduce_scatter: {
      const auto count = static_cast<std::int64_t>(call.from.front().size() / element_from / ranks);
      return fold_range(call.to.front().data(), count * rank, count);
    }
    case Operation::all_reduce: {
      const auto block = block_of(static_cast<std::int64_t>(call.from.front().size() / element_from), rank, size());
      for (std::int64_t at = block.begin; at < block.begin + block.count; at += kPieceElements) {
        const auto count = std::min(kPieceElements, block.begin + block.count - at);
        const auto offset = static_cast<std::size_t>(at) * element_to;
        std::byte* const mine = call.to.front().data() + offset;
        fold_range(mine, at, count);
        for (std::size_t r = 0; r < ranks; ++r) {
          copy_to(of(r).to.front().data() + offset, mine, static_cast<std::size_t>(count) * element_to);
        }
      }
      return;
    }
    case Operation::reduce: {
      const auto& root = of(static_cast<std::size_t>(call.peer));
      const auto block = block_of(static_cast<std::int64_t>(call.from.front().size() / element_from), rank, size());
      return fold_range(root.to.front().data() + static_cast<std::size_t>(block.begin) * element_to, block.begin, block.count);
    }
    case Operation::broadcast: {
      const auto& root = of(static_cast<std::size_t>(call.peer)).to.front();
      copy_to(call.to.front().data(), root.data(), root.size());
      return;
    }
    case Operation::all_to_all:
      for (std::size_t i = 0; i < ranks; ++i) {
        const auto r = (me + i) % ranks;
        copy_to(call.to[r].data(), of(r).from[me].data(), call.to[r].size());
      }
      return;
    default: return;
  }
}

// ---- split -------------------------------------------------------------------------------------------------------------

std::pair<std::shared_ptr<ThreadGroup>, int> ThreadGroup::split(int rank, int color, int key, const std::string& name,
                                                                std::uint64_t number) {
  const Call call{.operation = Operation::split};
  Lock lock(mutex_);
  auto& me = members_[static_cast<std::size_t>(rank)];
  const Entered entered(me.log, number, call);
  me.seat = {color, key, name, nullptr, 0};
  arrive(lock, rank, call, number);
  if (rank == 0) seat_all();
  finish(lock);
  return {std::move(me.seat.group), me.seat.rank};
}

void ThreadGroup::seat_all() {
  std::map<int, std::vector<std::size_t>> colors;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    if (members_[r].seat.color >= 0) colors[members_[r].seat.color].push_back(r);
  }
  for (auto& [color, ranks] : colors) {
    std::ranges::stable_sort(ranks, {}, [&](std::size_t r) { return members_[r].seat.key; });
    std::vector<int> machine_of_rank;
    for (const auto r : ranks) machine_of_rank.push_back(machine_of_rank_[r]);
    const auto group = std::make_shared<ThreadGroup>(std::move(machine_of_rank), members_[ranks.front()].seat.name, options_);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      members_[ranks[i]].seat.group = group;
      members_[ranks[i]].seat.rank = static_cast<int>(i);
    }
  }
}

}  // namespace terrace::comm
