// The toy model in a pipeline: threads of this process, each with an engine and a store of its own, compared with one rank.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/pipeline/pipeline.h>
#include <terrace/tests/doubles/ledger.h>

#include <terrace/tests/parallel/zero/data_parallel_run.h>

namespace terrace::test {

class PipelineRun : public FolderTest {
 protected:
  // Runs on all ranks, whose results must agree.
  toy::RunResult run(toy::RunOptions o, const std::string& what, const CommunicationFaults& faults = {}) {
    o.store = folder_ / ("run" + std::to_string(runs_++));
    o.commit_at_end = o.disk_tier;
    auto all = toy::run_ranks(o, {std::chrono::seconds(60)}, faults);
    for (std::size_t r = 0; r < all.errors.size(); ++r) EXPECT_EQ(all.errors[r], "") << what << ", rank " << r;
    for (std::size_t r = 1; r < all.ranks.size(); ++r)
      expect_same(all.ranks[0], all.ranks[r], fmt::format("{}, rank {}", what, r));
    std::filesystem::remove_all(o.store);
    return std::move(all.ranks[0]);
  }
  static std::vector<std::uint64_t> bits(const std::vector<double>& numbers) {  // so that a NaN equals itself
    std::vector<std::uint64_t> all;
    for (const double n : numbers) all.push_back(std::bit_cast<std::uint64_t>(n));
    return all;
  }
  static void expect_same(const toy::RunResult& a, const toy::RunResult& b, const std::string& what) {
    ASSERT_TRUE(b.planned.fits) << what << ": " << b.planned.refusal.why;
    EXPECT_EQ(bits(a.losses), bits(b.losses)) << what;
    EXPECT_EQ(bits(a.norms), bits(b.norms)) << what;
    EXPECT_EQ(a.hash, b.hash) << what;
  }
  // Runs within the budgets of `o`; returns what the last step reads from the disk.
  std::uint64_t expect_same_within(const toy::RunOptions& o, const toy::RunResult& expected, const std::string& what) {
    const auto r = run(o, what);
    expect_same(expected, r, what);
    EXPECT_LE(r.peak[Tier::device], o.budget.device) << what;
    EXPECT_LE(r.peak[Tier::host], o.budget.host) << what;
    if (!o.evaluate_between) {  // plans do not include evaluations
      EXPECT_EQ(r.traffic.back(), r.planned.step_traffic.back()) << what;
    }
    return r.traffic.empty() ? 0 : r.traffic.back().read;
  }
  int runs_ = 0;
};

inline pipeline::Pipeline pipeline_of(const std::string& order, std::uint32_t ranks, std::uint32_t micro_batches,
                                      std::uint32_t chunks, std::int64_t blocks) {
  const auto schedule = pipeline::write_order(order, {.ranks = ranks, .micro_batches = micro_batches, .chunks = chunks});
  const std::vector<double> costs(static_cast<std::size_t>(blocks) + 2, 1.0);
  return {schedule, pipeline::balance(costs, schedule.placement.stages)};
}

// Sets budgets above the needs of the pipeline's most demanding rank: the places of messages that were asked for cannot move,
// and large chunks must find room beside them.
inline void squeeze_stages(toy::RunOptions& o, bool disk_tier) {
  o.update = Tier::host;
  PerTier<std::uint64_t> smallest{};
  for (std::uint32_t r = 0; r < o.pipeline_ranks(); ++r) {
    auto request = toy::request_of(o);
    request.rank = r * o.data.ranks;
    const auto wide = plan(toy::make_model(o.sizes), request, o.profile);
    for (const auto tier : {Tier::device, Tier::host}) smallest[tier] = std::max(smallest[tier], wide.smallest_bytes[tier]);
  }
  o.budget.device = smallest[Tier::device] * 7 / 4;
  o.disk_tier = disk_tier;
  if (disk_tier) o.budget = {o.budget.device, smallest[Tier::host] * 3 + 128 * kKiB, 256 * kMiB};
}

// The most bytes of layers' inputs and of what their forwards saved that a rank's list of tasks keeps alive at once.
inline std::uint64_t most_bytes(const pipeline::Pipeline& p, std::uint32_t rank, const StepMap& map) {
  std::uint64_t now = 0, most = 0;
  const auto bytes_of = [&](const pipeline::Task& t, bool head) {
    std::uint64_t bytes = 0;
    for (auto l = p.begins[t.stage]; l < p.begins[t.stage + 1]; ++l)
      for (const auto chunk : map.left_by_forward(l, t.micro_batch))
        if ((l + 1 == p.layers()) == head) bytes += map.chunks()[chunk].bytes;
    return bytes;
  };
  for (const auto& task : p.schedule.tasks[rank]) {
    // The last layer's forward is a part of its backward, which is whole.
    const bool input = task.work == pipeline::Work::backward || task.work == pipeline::Work::input;
    const bool weight = task.work == pipeline::Work::backward || task.work == pipeline::Work::weight;
    now += task.work == pipeline::Work::forward ? bytes_of(task, false) : input ? bytes_of(task, true) : 0;
    most = std::max(most, now);
    now -= (input ? bytes_of(task, true) : 0) + (weight ? bytes_of(task, false) : 0);
  }
  return most;
}

// The ledger of each rank's second step. Updates run within the step, so that none stays pending.
inline std::vector<Ledger> ledgers_of(toy::RunOptions o, std::uint32_t ranks) {
  o.before_use = o.before_use && o.asynchronous();
  std::vector<Ledger> steps(ranks);
  const auto errors = on_threads(static_cast<int>(ranks), {std::chrono::seconds(60)}, [&](Rank& rank) {
    const auto r = static_cast<std::size_t>(rank.comm->rank());
    const auto comm = with_ledger(std::move(rank.comm), steps[r]);
    toy::Training training(toy::of_rank(o, comm->rank()), comm.get());
    for (std::uint64_t s = 1; s <= 2; ++s) {
      steps[r].clear();
      training.step();
    }
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  return steps;
}

struct Messages {
  Ledger::Entry sent, received;
};
// The messages of all ranks in that step, added up.
inline Messages messages_of(const toy::RunOptions& o, std::uint32_t ranks) {
  Messages all;
  for (const auto& ledger : ledgers_of(o, ranks))
    for (const auto& [key, entry] : ledger.entries()) {
      if (key.second != comm::Operation::send && key.second != comm::Operation::receive) continue;
      auto& way = key.second == comm::Operation::send ? all.sent : all.received;
      way.calls += entry.calls;
      way.payload_bytes += entry.payload_bytes;
    }
  return all;
}

}  // namespace terrace::test
