// The toy model on several ranks: threads of this process, each with an engine and a store of its own.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include <terrace/parallel/comm/faults.h>
#include <terrace/tests/support/toy_run.h>

#include "comm/rank_group.h"

namespace terrace::toy {

// What every rank's body came to; `errors` where one threw.
struct RanksResult {
  std::vector<RunResult> ranks;
  test::Outcome errors;
};

inline RunOptions of_rank(RunOptions o, int rank) {
  o.store /= "rank" + std::to_string(rank);
  return o;
}

inline RanksResult run_ranks(const RunOptions& o, const CommunicatorOptions& options = {std::chrono::seconds(60)},
                             const CommunicationFaults& faults = {}) {
  RanksResult out;
  const auto ranks = o.data.ranks * o.pipeline_ranks();
  out.ranks.resize(ranks);
  out.errors = test::on_threads(static_cast<int>(ranks), options, [&](test::Rank& rank) {
    const auto r = rank.comm->rank();
    if (faults.longest_delay.count() > 0) rank.comm = with_faults(std::move(rank.comm), faults);
    out.ranks[static_cast<std::size_t>(r)] = run(of_rank(o, r), rank.comm.get());
  });
  return out;
}

// The weights' hash, which all ranks must have.
inline std::uint64_t hash_of_ranks(const RunOptions& o) {
  const auto all = run_ranks(o);
  for (const auto& error : all.errors) EXPECT_EQ(error, "");
  for (const auto& rank : all.ranks) EXPECT_EQ(rank.hash, all.ranks.front().hash);
  return all.ranks.front().hash;
}

// Into a little more than the least that is legal.
inline void squeeze(RunOptions& o, bool disk_tier) {
  auto request = request_of(o);
  request.update = Tier::host;
  const auto wide = plan(make_model(o.sizes), request, o.profile);
  o.budget.device = wide.smallest_bytes[Tier::device] + wide.smallest_bytes[Tier::device] / 4;
  o.disk_tier = disk_tier;
  if (disk_tier) o.budget = {o.budget.device, wide.smallest_bytes[Tier::host] * 3 + 128 * kKiB, 256 * kMiB};
}

// A test of runs whose stores lie in a folder of its own.
class RanksTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  const std::filesystem::path folder_ = [] {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    return std::filesystem::path("ranks-test") / test->test_suite_name() / test->name();
  }();
};

}  // namespace terrace::toy
