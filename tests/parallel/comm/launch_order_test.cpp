// Calls of all communicators of a rank are launched in one order, and make what they need while nothing else runs on the GPU.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>

#include <terrace/parallel/comm/nccl/launch_order.h>

#include <terrace/tests/parallel/comm/fake_gpus.h>

namespace terrace {
namespace {

using namespace std::chrono_literals;
using comm::LaunchOrder;
using test::Rank;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(LaunchOrder, ProposesNumbersThatNoOtherRankProposes) {
  LaunchOrder first(0, 100), second(1, 100);
  LaunchOrder::Turn a(first, 1), b(second, 1), c(first, 1);
  EXPECT_LT(a.number(), c.number());
  EXPECT_NE(a.number(), b.number());
  b.agree(c.number());
  const LaunchOrder::Turn later(second, 1);
  EXPECT_GT(later.number(), c.number()) << "a rank knows all numbers that it has agreed on";
}

// Turns are taken in the order of their numbers, and a call that may still get a smaller number is awaited.
TEST(LaunchOrder, TakesTurnsByNumber) {
  LaunchOrder order(0, 100);
  std::mutex mutex;
  std::vector<int> taken;
  LaunchOrder::Turn first(order, 1), second(order, 1), third(order, 1);
  const auto base = third.number();
  const auto take = [&](LaunchOrder::Turn& turn, int name) {
    return std::thread([&, name] {
      turn.take();
      {
        const std::lock_guard lock(mutex);
        taken.push_back(name);
      }
      turn.pass();
    });
  };
  third.agree(base);
  std::vector<std::thread> threads;
  threads.push_back(take(third, 3));
  second.agree(base + 2);
  threads.push_back(take(second, 2));
  {
    const std::lock_guard lock(mutex);
    EXPECT_THAT(taken, IsEmpty()) << "the first may still become the smallest";
  }
  first.agree(base + 1);
  threads.push_back(take(first, 1));
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(taken, testing::ElementsAre(3, 1, 2));
}

TEST(LaunchOrder, ACallThatFailsDelaysNoOther) {
  LaunchOrder order(0, 4);
  auto dropped = std::make_unique<LaunchOrder::Turn>(order, 4), failing = std::make_unique<LaunchOrder::Turn>(order, 4);
  LaunchOrder::Turn last(order, 4);
  failing->agree(failing->number());
  last.agree(last.number());
  dropped.reset();  // before it has a number
  failing->take();
  std::atomic<bool> taken = false;
  std::thread thread([&] {
    last.take();
    taken = true;
  });
  EXPECT_FALSE(taken) << "there is no room beside the call that runs";
  failing.reset();  // before it has launched
  thread.join();
  EXPECT_TRUE(taken);
}

// The letters by which ranks agree on numbers come late, each time by another delay. While `own_counts`, every rank uses the
// number that it proposed: that is how it would be without an order.
class LateLetters final : public comm::Transport {
 public:
  LateLetters(std::shared_ptr<comm::Transport> inner, std::uint64_t seed, const std::atomic<bool>& own_counts)
      : inner_(std::move(inner)), random_(seed), own_counts_(own_counts) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  const comm::Machines& machines() const override { return inner_->machines(); }
  void run(const comm::Call& call, std::uint64_t number) override {
    std::chrono::microseconds delay;
    {
      const std::lock_guard lock(mutex_);
      delay = std::chrono::microseconds(random_() % 500);
    }
    std::this_thread::sleep_for(delay);
    inner_->run(call, number);
    if (!own_counts_ || call.to.empty()) return;
    const auto to = call.to.front();
    constexpr auto kNumber = sizeof(std::uint64_t);
    if (call.operation == comm::Operation::all_gather && call.from.front().size() == kNumber)
      for (std::size_t at = 0; at < to.size(); at += kNumber)
        std::ranges::copy(call.from.front(), to.begin() + static_cast<std::ptrdiff_t>(at));
    if (call.operation == comm::Operation::receive && to.size() == kNumber) std::ranges::fill(to, std::byte{0});
  }
  std::shared_ptr<comm::Transport> split(int color, int key, const std::string& name, std::uint64_t number) override {
    auto part = inner_->split(color, key, name, number);
    return part ? std::make_shared<LateLetters>(std::move(part), random_(), own_counts_) : nullptr;
  }
  void check(std::uint64_t number, std::chrono::steady_clock::time_point since) override { inner_->check(number, since); }
  void fail(const std::string& why) noexcept override { inner_->fail(why); }
  void leave() noexcept override { inner_->leave(); }

 private:
  const std::shared_ptr<comm::Transport> inner_;
  std::mutex mutex_;
  std::minstd_rand random_;
  const std::atomic<bool>& own_counts_;
};

// Four ranks in two rows and two columns: sums over all, over rows and over columns, and messages around a ring on two lanes.
// Each has a stream, and nothing orders them. So each rank comes to these calls in an order of its own. `after_first` is called
// when the first call of each stream has ended, if it is not null.
void calls_on_many_streams(Rank& rank, const std::function<void()>& after_first) {
  constexpr int kRounds = 12;
  constexpr std::size_t kLanes = 2;
  const int me = rank.comm->rank(), ranks = rank.comm->size();
  auto& world = *rank.comm;
  const auto row = world.split(me / 2, me, "row"), column = world.split(me % 2, me, "column");
  struct Work {
    float expected = 0;
    std::function<void(Stream&, std::span<float>)> issue;
    std::vector<std::vector<float>> data = {};
    std::unique_ptr<Stream> stream = {};  // ends before its data
  };
  std::vector<std::vector<float>> first;
  std::vector<Work> all;
  const auto sum_over = [&](Communicator& members, float expected) {
    all.push_back({.expected = expected, .issue = [&members](Stream& stream, std::span<float> data) {
                     const auto bytes = std::as_writable_bytes(data);
                     members.all_reduce(stream, comm::Reduction::sum(DType::fp32), bytes, bytes);
                   }});
  };
  const auto value = [](int of) { return static_cast<float>(of + 1); };
  sum_over(world, 10);
  sum_over(*row, me / 2 == 0 ? 3.0F : 7.0F);
  sum_over(*column, me % 2 == 0 ? 4.0F : 6.0F);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const int next = (me + 1) % ranks, previous = (me + ranks - 1) % ranks, number = static_cast<int>(lane);
    all.push_back({.expected = value(me), .issue = [&world, next, number](Stream& stream, std::span<float> data) {
                     world.send(stream, std::as_bytes(data), next, number);
                   }});
    all.push_back({.expected = value(previous), .issue = [&world, previous, number](Stream& stream, std::span<float> data) {
                     world.receive(stream, std::as_writable_bytes(data), previous, number);
                   }});
  }
  for (auto& work : all) work.stream = rank.device.make_stream("lane");
  for (auto& work : all)
    for (int round = 0; round < kRounds; ++round) work.data.emplace_back(100 + 10 * round, value(me));
  if (after_first) {
    first.assign(all.size(), std::vector<float>(10));
    for (std::size_t i = 0; i < all.size(); ++i) all[i].issue(*all[i].stream, first[i]);
    for (auto& work : all) work.stream->synchronize();
    world.barrier(*all.front().stream);
    all.front().stream->synchronize();
    after_first();
  }
  for (int round = 0; round < kRounds; ++round)
    for (std::size_t i = 0; i < all.size(); ++i) {
      auto& work = all[(i + static_cast<std::size_t>(me + round)) % all.size()];
      work.issue(*work.stream, work.data[static_cast<std::size_t>(round)]);
    }
  for (auto& work : all) work.stream->synchronize();
  for (const auto& work : all)
    for (const auto& data : work.data) ASSERT_THAT(data, testing::Each(work.expected));
}

struct Found {
  test::Outcome outcome;
  std::vector<std::string> complaints = {};
};

Found run_on_many_streams(int multiprocessors, bool own_counts) {
  std::mutex mutex;
  Found found;
  std::atomic<bool> disagree = false;
  const test::GpusOptions options{.multiprocessors = multiprocessors,
                                  .emulates_folds = false,
                                  .report =
                                      [&](const std::string& complaint) {
                                        const std::lock_guard lock(mutex);
                                        found.complaints.push_back(complaint);
                                      },
                                  .letters =
                                      [&](int rank, std::shared_ptr<comm::Transport> plain) {
                                        return std::make_shared<LateLetters>(std::move(plain),
                                                                             17 + static_cast<std::uint64_t>(rank), disagree);
                                      }};
  found.outcome = test::on_fake_gpus(
      4, {.time_limit = 60s},
      [&](Rank& rank) { calls_on_many_streams(rank, own_counts ? std::function([&] { disagree = true; }) : nullptr); },
      [](int, test::FakeGpuRank&) {}, options);
  return found;
}

// Room for all calls at once; for a sum and a message; for one call.
TEST(NcclOrder, CallsOfManyCommunicatorsEndWhateverRoomTheGpusHave) {
  for (const int multiprocessors : {132, 20, 4}) {
    SCOPED_TRACE(multiprocessors);
    const auto found = run_on_many_streams(multiprocessors, false);
    EXPECT_THAT(found.complaints, IsEmpty());
    for (std::size_t r = 0; r < found.outcome.size(); ++r) EXPECT_EQ("", found.outcome[r]) << "rank " << r;
  }
}

TEST(NcclOrder, RanksThatDoNotAgreeAreFound) {
  const auto found = run_on_many_streams(132, true);
  EXPECT_THAT(found.complaints, Contains(HasSubstr("launched in different orders")));
  EXPECT_THAT(found.outcome, testing::Contains(testing::Ne("")));
}

// Memory that a rank allocates while its call waits for another GPU. Whoever has a first call has to wait for this one.
TEST(NcclOrder, MemoryAllocatedBesideACallIsFound) {
  std::mutex mutex;
  std::vector<std::string> complaints;
  std::array<std::shared_ptr<test::FakeCuda>, 2> gpus;
  std::atomic<bool> held = false, allocated = false;
  const auto outcome = test::on_fake_gpus(
      2, {.time_limit = 60s},
      [&](Rank& rank) {
        const int me = rank.comm->rank();
        const auto stream = rank.device.make_stream("message");
        std::vector<float> data(10);
        const auto exchange = [&] {
          if (me == 0) rank.comm->receive(*stream, std::as_writable_bytes(std::span(data)), 1, 0);
          if (me == 1) rank.comm->send(*stream, std::as_bytes(std::span(data)), 0, 0);
        };
        exchange();
        stream->synchronize();
        if (me == 1) {
          gpus[1]->hold();
          held = true;
          exchange();
          while (!allocated) std::this_thread::sleep_for(1ms);
          gpus[1]->release();
        } else {
          while (!held) std::this_thread::sleep_for(1ms);
          exchange();
          while (gpus[0]->waiting_blocks() == 0) std::this_thread::sleep_for(1ms);
          std::thread([&] { static_cast<void>(rank.device.memory().allocate(kPageBytes).detach()); }).join();
          allocated = true;
        }
        stream->synchronize();
      },
      [&](int rank, test::FakeGpuRank& gpu) { gpus.at(static_cast<std::size_t>(rank)) = gpu.runtime; },
      {.report = [&](const std::string& complaint) {
        const std::lock_guard lock(mutex);
        complaints.push_back(complaint);
      }});
  for (std::size_t r = 0; r < outcome.size(); ++r) EXPECT_EQ("", outcome[r]) << "rank " << r;
  gpus = {};
  EXPECT_THAT(complaints, Contains(HasSubstr("cudaMalloc beside a kernel that waits for another GPU")));
}

// A rank whose NCCL never joins a lane of messages.
TEST(NcclOrder, AJoinOfALaneThatHangsEndsInTime) {
  const auto outcome = test::on_fake_gpus(
      2, {.time_limit = 500ms},
      [](Rank& rank) {
        const auto stream = rank.device.make_stream("message");
        std::vector<float> data(10);
        if (rank.comm->rank() == 0) rank.comm->receive(*stream, std::as_writable_bytes(std::span(data)), 1, 3);
        if (rank.comm->rank() == 1) rank.comm->send(*stream, std::as_bytes(std::span(data)), 0, 3);
        stream->synchronize();
      },
      [](int rank, test::FakeGpuRank& gpu) {
        gpu.nccl = std::make_shared<test::FakeNccl>(gpu.runtime, test::FakeNccl::Options{.join_hangs = rank == 1});
      });
  for (std::size_t r = 0; r < outcome.size(); ++r)
    EXPECT_THAT(outcome[r], HasSubstr("joining 2 ranks in NCCL")) << "rank " << r;
}

}  // namespace
}  // namespace terrace
