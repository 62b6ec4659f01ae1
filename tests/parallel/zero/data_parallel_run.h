// The toy model on several ranks: threads of this process, each with an engine and a store of its own.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <terrace/tests/doubles/faults.h>
#include <terrace/tests/doubles/ledger.h>
#include <terrace/tests/support/folder_test.h>
#include <terrace/tests/support/toy_run.h>

#include <terrace/tests/parallel/comm/rank_group.h>

namespace terrace::toy {

// Result of every rank's body; `errors` of the ranks that threw.
struct RanksResult {
  std::vector<RunResult> ranks;
  test::Outcome errors;
};

inline RunOptions of_rank(RunOptions o, int rank) {
  if (!o.store.empty()) o.store /= "rank" + std::to_string(rank);
  return o;
}

inline RanksResult run_ranks(const RunOptions& o, const CommunicatorOptions& options = {.time_limit = std::chrono::seconds(60)},
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

// The hash of the weights, which must be the same on all ranks.
inline std::uint64_t hash_of_ranks(const RunOptions& o) {
  const auto all = run_ranks(o);
  for (const auto& error : all.errors) EXPECT_EQ(error, "");
  for (const auto& rank : all.ranks) EXPECT_EQ(rank.hash, all.ranks.front().hash);
  return all.ranks.front().hash;
}

// Sets budgets a little above the least ones that work.
inline void squeeze(RunOptions& o, bool disk_tier) {
  auto request = request_of(o);
  request.update = Tier::host;
  const auto wide = plan(make_model(o.sizes), request, o.profile);
  o.budget.device = wide.smallest_bytes[Tier::device] + wide.smallest_bytes[Tier::device] / 4;
  o.disk_tier = disk_tier;
  if (disk_tier) o.budget = {o.budget.device, wide.smallest_bytes[Tier::host] * 3 + 128 * kKiB, 256 * kMiB};
}

// What `rank` sends in the last of three steps and holds after it. Updates run in the backward, so that no step leaves one
// pending.
struct LastStep {
  Ledger sent;  // on the axis "world"
  PerTier<std::uint64_t> between{};
};
inline LastStep last_step(RunOptions o, int rank) {
  o.before_use = false;
  LastStep last;
  const CommunicatorOptions options{.time_limit = std::chrono::seconds(60),
                                    .ranks_per_machine = static_cast<int>(o.profile.links.ranks_per_node)};
  const auto errors = test::on_threads(static_cast<int>(o.data.ranks), options, [&](test::Rank& one) {
    Ledger ledger;
    const auto comm = with_ledger(std::move(one.comm), ledger);
    Training training(of_rank(o, comm->rank()), comm.get());
    for (std::uint64_t s = 1; s <= 3; ++s) {
      ledger.clear();
      training.step();
    }
    if (comm->rank() == rank) last = {ledger, training.engine->reserved_bytes()};
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  return last;
}

}  // namespace terrace::toy
