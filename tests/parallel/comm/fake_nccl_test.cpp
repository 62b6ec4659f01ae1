// The fake NCCL and the fake GPUs below it find what they are meant to find: launches in different orders, a GPU without room,
// memory that is allocated beside a kernel that waits.
#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include <terrace/tests/support/gpu/fake_cuda.h>
#include <terrace/tests/support/gpu/fake_nccl.h>

namespace terrace::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Several GPUs, and communicators between some of them, each with a stream on each of its GPUs.
class FakeNcclFinds : public testing::Test {
 protected:
  struct Gpu {
    std::shared_ptr<FakeCuda> cuda;
    std::shared_ptr<FakeNccl> nccl;
  };
  struct Seat {
    std::size_t gpu = 0;
    comm::NcclHandle handle = nullptr;
    cuda::CudaStreamHandle stream = nullptr;
    std::shared_ptr<std::array<std::byte, 8>> bytes = std::make_shared<std::array<std::byte, 8>>();
  };
  using Group = std::vector<Seat>;

  void make_gpus(std::size_t count, int multiprocessors, bool any_order = false) {
    for (std::size_t g = 0; g < count; ++g) {
      Gpu gpu{.cuda = std::make_shared<FakeCuda>(FakeCuda::Options{.multiprocessors = multiprocessors}), .nccl = {}};
      gpu.nccl = std::make_shared<FakeNccl>(gpu.cuda, FakeNccl::Options{.any_order = any_order});
      ASSERT_EQ(0, gpu.cuda->set_device(0));
      gpus_.push_back(std::move(gpu));
    }
  }
  Group join(const std::vector<std::size_t>& on, int blocks = 1) {
    comm::NcclId id;
    EXPECT_EQ(0, gpus_[on.front()].nccl->make_id(&id));
    Group group;
    for (const auto g : on) {
      Seat seat{.gpu = g};
      EXPECT_EQ(0, gpus_[g].cuda->create_stream(&seat.stream));
      EXPECT_EQ(0, gpus_[g].nccl->begin_join(&seat.handle, {.ranks = static_cast<int>(on.size()),
                                                            .id = id,
                                                            .rank = static_cast<int>(group.size()),
                                                            .most_blocks = blocks}));
      group.push_back(seat);
      seats_.push_back(seat);
    }
    return group;
  }
  // Rank `rank` of a group of two sends to the other one, or receives.
  int launch(const Group& group, int rank) {
    const auto& seat = group[static_cast<std::size_t>(rank)];
    auto& gpu = gpus_[seat.gpu];
    return rank == 0 ? gpu.nccl->send(seat.bytes->data(), 8, 1, seat.handle, seat.stream)
                     : gpu.nccl->receive(seat.bytes->data(), 8, 0, seat.handle, seat.stream);
  }
  // The first messages, for which NCCL allocates memory.
  void connect(const std::vector<Group>& groups) {
    for (const auto& group : groups) {
      for (const int rank : {0, 1}) EXPECT_EQ(0, launch(group, rank));
      synchronize();
    }
  }
  void TearDown() override {
    for (const auto& seat : seats_) {
      gpus_[seat.gpu].nccl->abort(seat.handle);
      EXPECT_EQ(0, gpus_[seat.gpu].cuda->synchronize_stream(seat.stream));
      EXPECT_EQ(0, gpus_[seat.gpu].cuda->destroy_stream(seat.stream));
    }
  }
  [[nodiscard]] std::vector<std::string> complaints() const {
    std::vector<std::string> all;
    for (const auto& gpu : gpus_)
      for (auto& text : gpu.cuda->complaints()) all.push_back(text);
    return all;
  }
  void synchronize() {
    for (const auto& seat : seats_) EXPECT_EQ(0, gpus_[seat.gpu].cuda->synchronize_stream(seat.stream));
  }
  void wait_for_blocks(std::size_t gpu, int blocks) const {
    while (gpus_[gpu].cuda->waiting_blocks() != blocks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  std::vector<Gpu> gpus_;
  std::vector<Seat> seats_;
};

TEST_F(FakeNcclFinds, NothingInLaunchesOfOneOrder) {
  make_gpus(3, 4);
  const std::vector<Group> groups{join({0, 1}), join({1, 2}), join({2, 0}), join({1, 0})};
  connect(groups);
  for (int round = 0; round < 100; ++round) {
    for (const auto& group : groups)
      for (const int rank : {round % 2, 1 - round % 2}) EXPECT_EQ(0, launch(group, rank));
  }
  synchronize();
  EXPECT_THAT(complaints(), IsEmpty());
}

TEST_F(FakeNcclFinds, TwoCommunicatorsInDifferentOrders) {
  make_gpus(2, 4);
  const auto a = join({0, 1}), b = join({0, 1});
  connect({a, b});
  EXPECT_EQ(0, launch(a, 0));
  EXPECT_EQ(0, launch(b, 0));
  EXPECT_EQ(0, launch(b, 1));
  EXPECT_EQ(kNcclInvalidUsage, launch(a, 1));
  EXPECT_THAT(complaints(), ElementsAre(HasSubstr("launched in different orders")));
}

// A receive that is launched early, and everything that this GPU launches after it.
TEST_F(FakeNcclFinds, ALaunchThatWasEarlyOnOneGpuAndLateOnTheOther) {
  make_gpus(2, 4);
  const auto early = join({0, 1}), other = join({0, 1});
  connect({early, other});
  EXPECT_EQ(0, launch(early, 1));
  for (int i = 0; i < 10; ++i)
    for (const int rank : {0, 1}) EXPECT_EQ(0, launch(other, rank));
  EXPECT_EQ(kNcclInvalidUsage, launch(early, 0));
  EXPECT_THAT(complaints(), ElementsAre(HasSubstr("launched in different orders")));
}

// No two GPUs share two communicators here.
TEST_F(FakeNcclFinds, ThreeCommunicatorsInACircle) {
  make_gpus(3, 4);
  const auto a = join({0, 1}), b = join({1, 2}), c = join({2, 0});
  connect({a, b, c});
  EXPECT_EQ(0, launch(a, 0));
  EXPECT_EQ(0, launch(c, 1));
  EXPECT_EQ(0, launch(b, 0));
  EXPECT_EQ(0, launch(a, 1));
  EXPECT_EQ(0, launch(c, 0));
  EXPECT_EQ(kNcclInvalidUsage, launch(b, 1));
  EXPECT_THAT(complaints(), ElementsAre(HasSubstr("launched in different orders")));
}

// Each GPU has room for four calls; the fifth waits for one of them to end, and none does.
TEST_F(FakeNcclFinds, TheDeadlockOfTheFifthCall) {
  constexpr int kBlocks = 32, kCalls = 8, kFit = 4;
  make_gpus(2, kFit * kBlocks, true);
  std::vector<Group> groups;
  for (int i = 0; i < kCalls; ++i) groups.push_back(join({0, 1}, kBlocks));
  for (int i = 0; i < kCalls; ++i)
    for (const int rank : {0, 1}) {
      ASSERT_EQ(0, launch(groups[static_cast<std::size_t>(rank == 0 ? i : kCalls - 1 - i)], rank));
      wait_for_blocks(static_cast<std::size_t>(rank), kBlocks * std::min(i + 1, kFit));
    }
  for (const auto& gpu : gpus_) EXPECT_EQ(0U, gpu.nccl->groups_ended());
}

TEST_F(FakeNcclFinds, NoDeadlockWhereAllCallsHaveRoom) {
  constexpr int kBlocks = 32, kCalls = 8;
  make_gpus(2, kCalls * kBlocks, true);
  std::vector<Group> groups;
  for (int i = 0; i < kCalls; ++i) groups.push_back(join({0, 1}, kBlocks));
  for (int i = 0; i < kCalls; ++i)
    for (const int rank : {0, 1}) ASSERT_EQ(0, launch(groups[static_cast<std::size_t>(rank == 0 ? i : kCalls - 1 - i)], rank));
  synchronize();
  for (const auto& gpu : gpus_) EXPECT_EQ(kCalls, gpu.nccl->groups_ended());
}

TEST_F(FakeNcclFinds, MemoryThatIsAllocatedBesideAWaitingKernel) {
  make_gpus(2, 4);
  const auto group = join({0, 1});
  auto& cuda = *gpus_[0].cuda;
  void* data = nullptr;
  alignas(64) std::byte host[64];
  const auto all = [&] {
    EXPECT_EQ(0, cuda.allocate(&data, 64));
    EXPECT_EQ(0, cuda.register_host(host, sizeof host));
    EXPECT_EQ(0, cuda.unregister_host(host));
  };
  all();
  EXPECT_EQ(0, cuda.free(data));
  EXPECT_EQ(0, launch(group, 0));
  wait_for_blocks(0, 1);
  EXPECT_THAT(complaints(), IsEmpty());
  all();
  EXPECT_THAT(complaints(), ElementsAre(HasSubstr("cudaMalloc beside a kernel that waits"),
                                        HasSubstr("cudaHostRegister beside a kernel that waits"),
                                        HasSubstr("cudaHostUnregister beside a kernel that waits")));
  std::thread freeing([&] { EXPECT_EQ(0, cuda.free(data)); });  // as in CUDA, it waits for the kernel
  while (complaints().size() < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(0, launch(group, 1));
  freeing.join();
  synchronize();
  EXPECT_THAT(complaints().back(), HasSubstr("cudaFree beside a kernel that waits"));
  all();
  EXPECT_EQ(0, cuda.free(data));
  EXPECT_EQ(4U, complaints().size()) << "after the kernel's end";
}

TEST_F(FakeNcclFinds, JoiningAndConnectingBesideAWaitingKernel) {
  make_gpus(2, 4);
  const auto a = join({0, 1}), b = join({0, 1});
  EXPECT_EQ(0, launch(a, 0));
  wait_for_blocks(0, 1);
  EXPECT_EQ(0, launch(b, 0));
  EXPECT_THAT(complaints(), ElementsAre(HasSubstr("connects two ranks beside a kernel that waits")));
  const auto c = join({0, 1});
  EXPECT_THAT(complaints(), ElementsAre(testing::_, HasSubstr("joins ranks beside a kernel that waits")));
}

}  // namespace
}  // namespace terrace::test
