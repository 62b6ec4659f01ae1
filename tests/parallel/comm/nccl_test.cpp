// What NCCL's transport promises beyond the contract: what the host moves and what the GPUs do, and what goes wrong between
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include <terrace/core/error.h>

#include "backends.h"
#include "oracle.h"

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

// A rank's first messages arrive, a later one is lost: the others do not wait for it.
TEST_F(NcclTest, WhatNcclLosesEndsTheRunOnEveryRank) {
  const auto outcome = test::on_fake_gpus(
      3, {.time_limit = 60s},
      [](Rank& rank) {
        const auto stream = rank.device.make_stream("comm");
        std::vector<float> data(5000, 1.0F);
        const auto bytes = std::as_writable_bytes(std::span(data));
        for (int i = 0; i < 20; ++i) rank.comm->all_reduce(*stream, Reduction::sum(DType::fp32), bytes, bytes);
        stream->synchronize();
      },
      [](int rank, test::FakeGpuRank& gpu) {
        if (rank == 1) gpu.nccl->lose_messages_from(7);
      });
  for (std::size_t r = 0; r < outcome.size(); ++r) EXPECT_NE("", outcome[r]) << "rank " << r << " did not notice";
  EXPECT_THAT(testing::PrintToString(outcome), HasSubstr("ncclCommGetAsyncError: a made-up NCCL error (6)"));
}

// Sums of numbers on the host and of blocks on a GPU travel side by side; a span between the two is refused.
TEST_F(NcclTest, HostMemoryGoesThroughTheHost) {
  const auto outcome = test::on_fake_gpus(
      2, {.time_limit = 60s},
      [](Rank& rank) {
        const auto stream = rank.device.make_stream("comm");
        const auto slab = rank.device.memory().allocate(kPageBytes);
        auto* const there = reinterpret_cast<float*>(slab.data());
        std::vector<float> here(64);
        for (int i = 0; i < 64; ++i) there[i] = here[static_cast<std::size_t>(i)] = static_cast<float>(i + rank.comm->rank());
        const auto sum = Reduction::sum(DType::fp32);
        const auto host = std::as_writable_bytes(std::span(here)), device = std::as_writable_bytes(std::span(there, 64));
        rank.comm->all_reduce(*stream, sum, host, host);
        rank.comm->all_reduce(*stream, sum, device, device);
        stream->synchronize();
        for (int i = 0; i < 64; ++i) {
          ASSERT_EQ(there[i], static_cast<float>(2 * i + 1));
          ASSERT_EQ(here[static_cast<std::size_t>(i)], static_cast<float>(2 * i + 1));
        }
        const auto between = [&] {
          rank.comm->all_reduce(*stream, sum, host, device);
          stream->synchronize();
        };
        EXPECT_THROW(between(), std::exception);
      },
      [](int, test::FakeGpuRank& gpu) {
        gpu.nccl = std::make_shared<test::FakeNccl>(
            gpu.runtime,
            test::FakeNccl::Options{[runtime = gpu.runtime](const void* data) { return runtime->is_device_memory(data); }});
      });
  for (std::size_t r = 0; r < outcome.size(); ++r) EXPECT_EQ("", outcome[r]) << "rank " << r;
}

// A GPU that fails in one rank's sum.
TEST_F(NcclTest, AGpuThatFailsIsNamedToTheOthers) {
  const auto outcome = test::on_fake_gpus(
      2, {.time_limit = 60s},
      [](Rank& rank) {
        const auto stream = rank.device.make_stream("comm");
        std::vector<float> data(5000, 1.0F);
        const auto bytes = std::as_writable_bytes(std::span(data));
        for (int i = 0; i < 20; ++i) rank.comm->all_reduce(*stream, Reduction::sum(DType::fp32), bytes, bytes);
        stream->synchronize();
      },
      [](int rank, test::FakeGpuRank& gpu) {
        if (rank == 1) gpu.runtime->fail_operation(10, 700);
      });
  EXPECT_NE("", outcome[1]);
  EXPECT_THAT(outcome[0], HasSubstr("rank 1"));
}

}  // namespace
}  // namespace terrace
