// What NCCL's transport promises beyond the contract: which bytes the host moves and which the GPUs, and what happens when
// something goes wrong between them.
#include <gmock/gmock.h>

#include <atomic>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include <terrace/core/base/error.h>

#include <terrace/tests/parallel/comm/backends.h>
#include <terrace/tests/parallel/comm/oracle.h>

namespace terrace {
namespace {

using namespace std::chrono_literals;
using test::Buffer;
using test::Rank;
using testing::HasSubstr;

bool under_mpirun() { return test::number_in("OMPI_COMM_WORLD_SIZE") != 0; }

class NcclTest : public testing::Test {
 protected:
  void SetUp() override {
    if (under_mpirun()) GTEST_SKIP() << "the made-up NCCL joins the threads of one process";
  }
};

// Enough sums that a fault can happen in the middle of them.
void twenty_sums(Rank& rank) {
  const auto stream = rank.device.make_stream("comm");
  std::vector<float> data(5000, 1.0F);
  const auto bytes = std::as_writable_bytes(std::span(data));
  for (int i = 0; i < 20; ++i) rank.comm->all_reduce(*stream, comm::Reduction::sum(DType::fp32), bytes, bytes);
  stream->synchronize();
}

// A span of GPU memory and a span of host memory, for ranks whose NCCL tells the two apart.
struct TwoMemories {
  explicit TwoMemories(Rank& rank) : slab(rank.device.memory().allocate(kPageBytes)), on_host(64) {
    std::iota(on_host.begin(), on_host.end(), static_cast<float>(rank.comm->rank()));
    std::ranges::copy(on_host, on_device().begin());
  }
  [[nodiscard]] std::span<float> on_device() { return {reinterpret_cast<float*>(slab.data()), on_host.size()}; }

  Slab slab;
  std::vector<float> on_host;
};

test::Outcome on_two_ranks_that_tell_memory_apart(const std::function<void(Rank&)>& body) {
  return test::on_fake_gpus(2, {.time_limit = 60s}, body, [](int, test::FakeGpuRank& gpu) {
    gpu.nccl = std::make_shared<test::FakeNccl>(
        gpu.runtime, test::FakeNccl::Options{.is_device_memory = [runtime = gpu.runtime](const void* data) {
          return runtime->pointer_is_of_device(data);
        }});
  });
}

// A rank's first messages arrive, a later one is lost: the others do not wait for it.
TEST_F(NcclTest, WhatNcclLosesEndsTheRunOnEveryRank) {
  const auto outcome = test::on_fake_gpus(3, {.time_limit = 60s}, twenty_sums, [](int rank, test::FakeGpuRank& gpu) {
    if (rank == 1) gpu.nccl->lose_messages_from(7);
  });
  for (std::size_t r = 0; r < outcome.size(); ++r) EXPECT_NE("", outcome[r]) << "rank " << r << " did not notice";
  EXPECT_THAT(testing::PrintToString(outcome), HasSubstr("ncclCommGetAsyncError: a made-up NCCL error (6)"));
}

// The abort comes while this rank's stream is in the middle of a group, whose next call must not use the handle.
TEST_F(NcclTest, AHandleIsNotUsedAfterItsAbort) {
  constexpr std::uint64_t kLost = 7;
  const auto outcome = test::on_fake_gpus(2, {.time_limit = 60s}, twenty_sums, [](int rank, test::FakeGpuRank& gpu) {
    if (rank == 1) return gpu.nccl->lose_messages_from(kLost);
    const auto self = std::make_shared<test::FakeNccl*>();
    gpu.nccl = std::make_shared<test::FakeNccl>(
        gpu.runtime,
        test::FakeNccl::Options{.report = [](const std::string& complaint) { ADD_FAILURE() << complaint; },
                                .before_send =
                                    [self](std::uint64_t number) {
                                      const auto end = std::chrono::steady_clock::now() + 300ms;
                                      while (number == kLost && !(*self)->aborts() && std::chrono::steady_clock::now() < end)
                                        std::this_thread::sleep_for(1ms);
                                    }});
    *self = gpu.nccl.get();
  });
  for (std::size_t r = 0; r < outcome.size(); ++r) EXPECT_NE("", outcome[r]) << "rank " << r << " did not notice";
}

// A rank whose NCCL never joins, as with a network that does not work: all ranks end in time, and no handle stays.
TEST_F(NcclTest, AJoinThatHangsEndsInTime) {
  std::atomic<int> aborted{0};
  std::vector<std::shared_ptr<test::FakeNccl>> libraries(3);
  const auto outcome = test::on_fake_gpus(3, {.time_limit = 500ms}, twenty_sums, [&](int rank, test::FakeGpuRank& gpu) {
    gpu.nccl = std::make_shared<test::FakeNccl>(gpu.runtime, test::FakeNccl::Options{.join_hangs = rank == 1});
    libraries[static_cast<std::size_t>(rank)] = gpu.nccl;
  });
  for (std::size_t r = 0; r < outcome.size(); ++r) {
    EXPECT_THAT(outcome[r], HasSubstr("joining 3 ranks in NCCL")) << "rank " << r;
    aborted += libraries[r]->aborts() ? 1 : 0;
  }
  EXPECT_EQ(3, aborted);
}

TEST_F(NcclTest, AJoinThatFailsIsNamedOnEveryRank) {
  const auto outcome = test::on_fake_gpus(2, {.time_limit = 60s}, twenty_sums, [](int rank, test::FakeGpuRank& gpu) {
    gpu.nccl = std::make_shared<test::FakeNccl>(
        gpu.runtime, test::FakeNccl::Options{.join_hangs = rank == 1,
                                             .join_result = rank == 1 ? test::kNcclSystemError : comm::kNcclInProgress});
  });
  EXPECT_THAT(outcome[1], HasSubstr("ncclCommInitRankConfig: a made-up NCCL error (2)"));
  EXPECT_THAT(outcome[0], HasSubstr("a made-up NCCL error (2)"));
}

// Calls of several lanes run at once, and each keeps its blocks until the other ranks make it.
TEST_F(NcclTest, CallsThatRunAtOnceHaveRoomOnAGpu) {
  std::mutex mutex;
  std::vector<int> blocks;
  const auto outcome = test::on_fake_gpus(
      2, {.time_limit = 60s},
      [](Rank& rank) {
        const auto stream = rank.device.make_stream("comm");
        TwoMemories data(rank);
        const auto bytes = std::as_writable_bytes(data.on_device());
        rank.comm->all_reduce(*stream, comm::Reduction::sum(DType::fp32), bytes, bytes);
        rank.comm->rank() == 0 ? rank.comm->send(*stream, bytes, 1, 0) : rank.comm->receive(*stream, bytes, 0, 0);
        stream->synchronize();
      },
      [&](int, test::FakeGpuRank& gpu) {
        gpu.nccl = std::make_shared<test::FakeNccl>(gpu.runtime, test::FakeNccl::Options{.joins = [&](int most) {
                                                      const std::lock_guard lock(mutex);
                                                      blocks.push_back(most);
                                                    }});
      });
  for (std::size_t r = 0; r < outcome.size(); ++r) EXPECT_EQ("", outcome[r]) << "rank " << r;
  EXPECT_THAT(blocks, testing::UnorderedElementsAre(16, 16, 4, 4));
}

// Sums of numbers on the host and of blocks on a GPU travel side by side.
TEST_F(NcclTest, HostMemoryGoesThroughTheHost) {
  const auto outcome = on_two_ranks_that_tell_memory_apart([](Rank& rank) {
    const auto stream = rank.device.make_stream("comm");
    TwoMemories data(rank);
    for (const auto span : {std::span(data.on_host), data.on_device()}) {
      const auto bytes = std::as_writable_bytes(span);
      rank.comm->all_reduce(*stream, comm::Reduction::sum(DType::fp32), bytes, bytes);
    }
    stream->synchronize();
    for (int i = 0; i < 64; ++i) {
      ASSERT_EQ(data.on_device()[static_cast<std::size_t>(i)], static_cast<float>(2 * i + 1));
      ASSERT_EQ(data.on_host[static_cast<std::size_t>(i)], static_cast<float>(2 * i + 1));
    }
  });
  for (std::size_t r = 0; r < outcome.size(); ++r) EXPECT_EQ("", outcome[r]) << "rank " << r;
}

// This call has a test of its own: the first rank that refuses it fails the world, and the other rank may learn of it at any
// point.
TEST_F(NcclTest, ASpanBetweenHostAndGpuIsRefused) {
  const auto outcome = on_two_ranks_that_tell_memory_apart([](Rank& rank) {
    const auto stream = rank.device.make_stream("comm");
    TwoMemories data(rank);
    const auto from = std::as_bytes(std::span(data.on_host));
    rank.comm->all_reduce(*stream, comm::Reduction::sum(DType::fp32), from, std::as_writable_bytes(data.on_device()));
    stream->synchronize();
  });
  for (std::size_t r = 0; r < outcome.size(); ++r)
    EXPECT_THAT(outcome[r], HasSubstr("between device and host memory")) << "rank " << r;
}

// Sums of more pieces than the two halves of the slots; the values are small integers, which bf16 and fp32 hold exactly. Tests
// delay the folds of the ranks.
void sums_of_many_pieces(Rank& rank) {
  const auto stream = rank.device.make_stream("comm");
  const int ranks = rank.comm->size();
  const std::size_t each = 40000;
  const auto total = static_cast<float>(ranks * (ranks + 1) / 2);
  std::vector<float> data(each * static_cast<std::size_t>(ranks)), mine(each), all(data.size());
  for (std::size_t i = 0; i < data.size(); ++i)
    data[i] = static_cast<float>((rank.comm->rank() + 1) * static_cast<int>(i % 97));
  const auto from = std::as_bytes(std::span(data));
  rank.comm->reduce_scatter(*stream, comm::Reduction::sum(DType::fp32), from, std::as_writable_bytes(std::span(mine)));
  rank.comm->all_reduce(*stream, comm::Reduction::sum(DType::fp32), from, std::as_writable_bytes(std::span(all)));
  stream->synchronize();
  const auto first = each * static_cast<std::size_t>(rank.comm->rank());
  for (std::size_t i = 0; i < each; ++i) ASSERT_EQ(mine[i], total * static_cast<float>((first + i) % 97)) << i;
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], total * static_cast<float>(i % 97)) << i;
}

// The first fold waits for the next piece, which would never come if pieces and folds took turns.
TEST_F(NcclTest, TheNextPieceComesWhileOneIsFolded) {
  std::atomic<int> overlapped = 0;
  const auto outcome =
      test::on_fake_gpus(3, {.time_limit = 60s}, sums_of_many_pieces, [&](int /*rank*/, test::FakeGpuRank& gpu) {
        gpu.before_fold = [&overlapped, nccl = gpu.nccl, first = std::make_shared<bool>(true)] {
          if (!std::exchange(*first, false)) return;
          const auto end = std::chrono::steady_clock::now() + 20s;
          while (nccl->groups_ended() < 2 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
          if (nccl->groups_ended() >= 2) ++overlapped;
        };
      });
  for (std::size_t r = 0; r < outcome.size(); ++r) EXPECT_EQ("", outcome[r]) << "rank " << r;
  EXPECT_EQ(overlapped, 3);
}

// Whichever rank is slow, a half is not overwritten before it is folded, and no result is handed out before it is a whole sum.
TEST_F(NcclTest, SlowFoldsChangeNoSum) {
  const auto outcome = test::on_fake_gpus(3, {.time_limit = 60s}, sums_of_many_pieces, [](int rank, test::FakeGpuRank& gpu) {
    gpu.before_fold = [rank, fold = std::make_shared<int>(0)] {
      if ((*fold)++ % 3 == rank) std::this_thread::sleep_for(20ms);
    };
  });
  for (std::size_t r = 0; r < outcome.size(); ++r) EXPECT_EQ("", outcome[r]) << "rank " << r;
}

// If CUDA refuses to order the two streams, the run ends, and the GPU's work with it.
TEST_F(NcclTest, ARefusedOrderOfStreamsIsAnError) {
  for (const auto call : {test::FakeCuda::Call::stream_wait_event, test::FakeCuda::Call::record_event}) {
    for (const std::uint64_t at : {0, 1, 2, 3, 7}) {
      SCOPED_TRACE(testing::Message() << test::FakeCuda::cuda_name(call) << ' ' << at);
      const auto outcome =
          test::on_fake_gpus(2, {.time_limit = 60s}, sums_of_many_pieces, [&](int rank, test::FakeGpuRank& gpu) {
            if (rank == 1) gpu.runtime->fail(call, {.at = at, .code = 999});
          });
      EXPECT_THAT(outcome[1], HasSubstr(test::FakeCuda::cuda_name(call)));
      EXPECT_NE("", outcome[0]);
    }
  }
}

// A GPU fails in one rank's sum.
TEST_F(NcclTest, AGpuThatFailsIsNamedToTheOthers) {
  const auto outcome = test::on_fake_gpus(2, {.time_limit = 60s}, twenty_sums, [](int rank, test::FakeGpuRank& gpu) {
    if (rank == 1) gpu.runtime->fail_operation(10, 700);
  });
  EXPECT_NE("", outcome[1]);
  EXPECT_THAT(outcome[0], HasSubstr("rank 1"));
}

}  // namespace
}  // namespace terrace
