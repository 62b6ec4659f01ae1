// The toy model in an asynchronous pipeline: threads of this process, compared with one rank that computes every micro-batch
// with the old weights that the order declares.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/pipeline/pipeline.h>

#include <terrace/tests/parallel/pipeline/pipeline_run.h>
#include <terrace/tests/parallel/pipeline/stale_oracle.h>

namespace terrace::test {

struct AsynchronousCase {
  std::uint32_t ranks, micro_batches, updates;  // micro-batches of each update, updates of each step
};
inline std::string to_text(const std::string& order, const AsynchronousCase& c) {
  return fmt::format("{} on {} ranks, {} updates of {} micro-batches", order, c.ranks, c.updates, c.micro_batches);
}

// The version that the papers give, whatever the order wrote: an update is a mini-batch.
inline std::uint32_t published_version(const std::string& order, const AsynchronousCase& c, std::uint32_t stage,
                                       std::uint32_t micro_batch) {
  const int update = static_cast<int>(micro_batch / c.micro_batches);
  if (order == "pipedream-2bw") return static_cast<std::uint32_t>(std::max(0, update - 1));
  // Narayanan 2019: mini-batch i uses version max(0, i − (p − 1 − s)); if an update has several of them, only whole updates
  // count.
  const int behind = static_cast<int>(micro_batch) - static_cast<int>(c.ranks - 1 - stage);
  return static_cast<std::uint32_t>(std::max(0, behind) / static_cast<int>(c.micro_batches));
}

class AsynchronousRun : public FolderTest {
 protected:
  using Case = AsynchronousCase;

  static toy::RunOptions options(const std::string& order, const Case& c, std::int64_t blocks = 0) {  // 0: as many as ranks
    toy::RunOptions o;
    o.sizes = {.width = 16, .vocab = 33, .blocks = blocks == 0 ? c.ranks : blocks, .tied = false};
    o.steps = 2;
    o.shape = {{1, 4}, c.micro_batches * c.updates};
    o.before_use = false;
    const auto schedule =
        pipeline::write_order(order, {.ranks = c.ranks, .micro_batches = c.micro_batches, .updates = c.updates});
    const std::vector<double> costs(static_cast<std::size_t>(o.sizes.blocks) + 2, 1.0);
    o.pipeline = {schedule, pipeline::balance(costs, schedule.placement.stages)};
    return o;
  }
  // Data ranks take turns: of d of them, the pipelines' micro-batch i is the d of the global ones from i · d on.
  static toy::StaleOracle::Result oracle(toy::RunOptions o, const std::string& order, const Case& c) {
    const auto part = pipeline::placement_of(*o.pipeline);
    const auto ranks = o.data.ranks;
    o.shape.micro_batches *= ranks;
    return toy::StaleOracle(
               o, c.micro_batches * ranks,
               [&](std::uint32_t layer, std::uint32_t m) { return published_version(order, c, part.stage(layer), m / ranks); })
        .run();
  }
  std::vector<toy::RunResult> run(toy::RunOptions o, const std::string& what) {
    o.store = folder_ / ("run" + std::to_string(runs_++));
    o.commit_at_end = o.disk_tier;
    const auto all = toy::run_ranks(o);
    for (std::size_t r = 0; r < all.errors.size(); ++r) EXPECT_EQ(all.errors[r], "") << what << ", rank " << r;
    std::filesystem::remove_all(o.store);
    return all.ranks;
  }
  std::vector<toy::RunResult> expect_declared(const toy::RunOptions& o, const std::string& order, const Case& c,
                                              const std::string& what) {
    const auto wanted = oracle(o, order, c);
    auto ranks = run(o, what);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      EXPECT_TRUE(ranks[r].planned.fits) << what << ", rank " << r << ": " << ranks[r].planned.refusal.why;
      EXPECT_EQ(ranks[r].losses, wanted.losses) << what << ", rank " << r;
      EXPECT_EQ(ranks[r].norms, wanted.norms) << what << ", rank " << r;
      EXPECT_EQ(ranks[r].hash, wanted.hash) << what << ", rank " << r;
      EXPECT_LE(ranks[r].peak[Tier::device], o.budget.device) << what << ", rank " << r;
      EXPECT_LE(ranks[r].peak[Tier::host], o.budget.host) << what << ", rank " << r;
    }
    return ranks;
  }
  int runs_ = 0;
};

}  // namespace terrace::test
