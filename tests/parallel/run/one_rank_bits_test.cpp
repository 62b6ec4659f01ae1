// Whatever the settings, a run has the bits of one rank that runs everything in memory: losses and gradient norms of every
// step, the held-out loss, weights, masters and moments. Every legal pair of values of the settings in one_rank_settings.h is
// in some row.
//
// A failing row prints its settings. TERRACE_SEED chooses other rows. Continuous integration runs every other row.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <terrace/parallel/plan/dry_run.h>
#include <terrace/tests/doubles/faults.h>
#include <terrace/tests/support/one_in.h>

#include <terrace/tests/parallel/run/committed_hashes.h>
#include <terrace/tests/parallel/run/one_rank_settings.h>

namespace terrace::test {
namespace {

const CoveringRows& covering() {
  static const auto rows = [] {
    const auto* const seed = std::getenv("TERRACE_SEED");
    return covering_rows(seed ? std::strtoull(seed, nullptr, 10) : 1);
  }();
  return rows;
}

struct Trained {
  std::vector<std::uint64_t> losses, norms;  // as bits
  std::uint64_t weights = 0;
  std::map<std::string, std::uint64_t> committed;
};

std::vector<std::uint64_t> bits_of(const std::vector<double>& numbers) {
  std::vector<std::uint64_t> all;
  for (const double n : numbers) all.push_back(std::bit_cast<std::uint64_t>(std::isnan(n) ? std::nan("") : n));
  return all;
}

// Each process computes all rows again, which takes longer than to run one of them, so it runs a group of rows. The rows of a
// group are 12 apart.
constexpr std::size_t kGroups = 12;
bool is_run(std::size_t number) { return long_form() || number / kGroups % 2 == 0; }

class OneRankBits : public FolderTest, public testing::WithParamInterface<std::size_t> {
 protected:
  void expect_bits_of_one_rank(std::size_t number);
  // Runs on all ranks, whose results must agree.
  Trained run(Settings s, const std::string& what) {
    const auto all = toy::run_ranks(s.run, s.ranks, s.messages);
    Trained out;
    for (std::size_t r = 0; r < all.ranks.size(); ++r) {
      SCOPED_TRACE(fmt::format("{}, rank {}", what, r));
      EXPECT_EQ(all.errors[r], "");
      const auto& rank = all.ranks[r];
      EXPECT_TRUE(rank.planned.fits) << rank.planned.refusal.why;
      if (all.errors[r] != "" || !rank.planned.fits) return out;
      if (r == 0) out = {bits_of(rank.losses), bits_of(rank.norms), rank.hash, {}};
      EXPECT_EQ(out.losses, bits_of(rank.losses));
      EXPECT_EQ(out.norms, bits_of(rank.norms));
      EXPECT_EQ(out.weights, rank.hash);
      expect_planned(s, rank);
    }
    out.committed = hashes(s, all.ranks.front().planned.map.recipe);
    return out;
  }
  static void expect_planned(const Settings& s, const toy::RunResult& rank) {
    EXPECT_LE(rank.peak[Tier::device], s.run.budget.device);
    EXPECT_LE(rank.peak[Tier::host], s.run.budget.host);
    // A plan assumes that early updates hold.
    if (s.run.early != 0 || s.run.resume || s.run.commit_after != 0 || s.run.evaluate_between || s.run.not_finite_step != 0)
      return;
    for (std::size_t i = 0; i < rank.traffic.size(); ++i)
      EXPECT_EQ(rank.traffic[i], rank.planned.step_traffic.at(i)) << "step " << i + 1;
    for (const auto tier : {Tier::device, Tier::host}) EXPECT_EQ(rank.peak[tier], rank.planned.peak_bytes[tier]);
  }
  // Reads the stores in both orders, so that state held by two of them must be the same in both.
  static std::map<std::string, std::uint64_t> hashes(const Settings& s, const rules::Recipe& recipe) {
    auto stores = stores_of(s);
    const auto model = toy::make_model(s.run.sizes);
    const auto all = committed_hashes(model, recipe, stores);
    std::ranges::reverse(stores);
    EXPECT_EQ(committed_hashes(model, recipe, stores), all) << "copies on several ranks";
    return all;
  }
  static std::vector<ChunkStore::Options> stores_of(const Settings& s) {
    std::vector<ChunkStore::Options> stores;
    for (std::uint32_t r = 0; r < s.run.data.ranks * s.run.pipeline_ranks(); ++r)
      stores.push_back({.paths = {toy::of_rank(s.run, static_cast<int>(r)).store}, .durable = false});
    return stores;
  }
  // One step with the settings `first`, the others with `second`.
  Trained run_in_two(Settings first, Settings second, const std::string& what) {
    first.run.commit_after = 1;
    const auto before = run(first, what + ", first step");
    second.run.resume = true;
    if (second.run.store != first.run.store)
      for (const auto& store : stores_of(first)) second.run.reshard_from.push_back(store.paths.front());
    auto after = run(second, what + ", other steps");
    after.losses.insert(after.losses.begin(), before.losses.begin(), before.losses.end());
    after.norms.insert(after.norms.begin(), before.norms.begin(), before.norms.end());
    return after;
  }
};

// True if a short run of these programs fits. Unlike a plan, it does not search for settings that fit, which takes long.
bool fits(const Model& model, const StepMap::Options& options, const PlanRequest& request) {
  const MachineProfile profile;
  const StepMap map(model, options);
  const walk::ProfileCosts costs(map, profile);
  const auto programs =
      planning::write_programs(map, request, request.prefetch_depth == kAutoDepth ? 1 : request.prefetch_depth,
                               request.gather_ahead == kAutoDepth ? 0 : request.gather_ahead);
  auto budget = request.budget;
  budget.commit_only = !request.disk_tier;
  budget = with_room_for_commits(budget);
  try {
    for (const bool resumed : {false, true})
      planning::dry_run(map, request, programs, budget, request.generations, costs, profile, {.resumed = resumed});
    return true;
  } catch (const memory::DoesNotFit&) {
    return false;
  }
}

// Sets budgets a little above the least ones that work for all ranks of a pipeline.
void squeeze(Settings& s) {
  if (s.tiers == "device") return;
  const auto model = toy::make_model(s.run.sizes);
  s.run.disk_tier = s.tiers == "disk";
  std::vector<PlanRequest> requests;
  std::vector<StepMap::Options> options;
  PerTier<std::uint64_t> smallest{};
  for (std::uint32_t r = 0; r < s.run.pipeline_ranks(); ++r) {
    requests.push_back(toy::request_of(s.run));
    requests.back().rank = r * s.run.data.ranks;
    const auto wide = plan(model, requests.back(), s.run.profile);
    options.push_back(wide.map);
    for (const auto tier : {Tier::device, Tier::host}) smallest[tier] = std::max(smallest[tier], wide.smallest_bytes[tier]);
  }
  for (std::uint64_t quarters = 4; quarters < 100; quarters += quarters / 4) {
    const auto budget_of = [&](std::uint64_t of) {
      return Budget{smallest[Tier::device] * of / 4,
                    s.run.disk_tier ? (smallest[Tier::host] + 128 * kKiB) * of / 4 : kUnlimited,
                    s.run.disk_tier ? 256 * kMiB : 0};
    };
    bool all = true;
    for (std::size_t r = 0; all && r < requests.size(); ++r) {
      requests[r].budget = budget_of(quarters);
      all = fits(model, options[r], requests[r]);
    }
    s.run.budget = budget_of(quarters + 2);
    if (all) return;
  }
  ADD_FAILURE() << "no budgets fit";
}

Settings on_three_ranks(Settings s) {
  s.run.data.ranks = s.run.data.zero = 3;
  s.run.data.canonical = true;
  s.settle();
  return s;
}

void OneRankBits::expect_bits_of_one_rank(std::size_t number) {
  const auto& row = covering().rows()[number];
  const auto what = fmt::format("row {}: {}", number, in_words(row));
  fmt::print("{}\n", what);
  std::fflush(stdout);
  auto plain = settings_of(row, true), s = settings_of(row, false);
  plain.run.store = folder_ / "one";
  const auto one = run(plain, "one rank");
  squeeze(s);
  s.run.store = folder_ / "row";
  plain.run.store = folder_ / "part";
  const auto found = s.begins == "here"             ? run(s, what)
                     : s.begins == "here, stopped"  ? run_in_two(s, s, what)
                     : s.begins == "on one rank"    ? run_in_two(plain, s, what)
                     : s.begins == "on three ranks" ? run_in_two(on_three_ranks(plain), s, what)
                                                    : run_in_two(s, plain, what);
  EXPECT_EQ(found.losses, one.losses) << what;
  EXPECT_EQ(found.norms, one.norms) << what;
  EXPECT_EQ(found.weights, one.weights) << what;
  EXPECT_EQ(found.committed, one.committed) << what;
}

TEST_P(OneRankBits, Rows) {
  for (auto number = GetParam(); number < covering().rows().size(); number += kGroups) {
    if (!is_run(number)) continue;
    expect_bits_of_one_rank(number);
    TearDown();
    std::filesystem::create_directories(folder_);
  }
}
INSTANTIATE_TEST_SUITE_P(Groups, OneRankBits, testing::Range<std::size_t>(0, kGroups));

// Each value declared to reach the bits changes them, so that the rows notice a run that ignores it.
using ReachesBits = FolderTest;
TEST_F(ReachesBits, EveryValueThatIsSaidTo) {
  int runs = 0;
  const auto run = [&](std::size_t dimension, int value) {
    Row row(dimensions().size(), kUnset);
    row[dimension] = value;
    auto s = settings_of(row, true);
    s.run.store = folder_ / std::to_string(++runs);
    return toy::run(s.run);
  };
  for (std::size_t d = 0; d < dimensions().size(); ++d) {
    const auto& [name, reaches_bits, values, put] = dimensions()[d];
    if (!reaches_bits || name == "loss scale") continue;  // a power of two may change no bit
    std::vector<toy::RunResult> earlier;
    for (int v = 0; v < static_cast<int>(values.size()); ++v) {
      const auto& value = values[static_cast<std::size_t>(v)];
      auto result = run(d, v);
      for (const auto& other : earlier)
        EXPECT_TRUE(result.hash != other.hash || result.losses != other.losses) << name << " " << value;
      earlier.push_back(std::move(result));
    }
  }
}

TEST(OneRankRows, EveryValueIsInARowThatIsRun) {
  for (const auto& pair : covering().impossible()) fmt::print("never together: {}\n", in_words(pair));
  fmt::print("{} rows, {} pairs of values never together\n", covering().rows().size(), covering().impossible().size());
  for (std::size_t d = 0; d < dimensions().size(); ++d)
    for (std::size_t v = 0; v < dimensions()[d].values.size(); ++v) {
      bool found = false;
      for (std::size_t number = 0; number < covering().rows().size(); ++number)
        found = found || (is_run(number) && covering().rows()[number][d] == static_cast<int>(v));
      EXPECT_TRUE(found) << dimensions()[d].name << " " << dimensions()[d].values[v];
    }
}

}  // namespace
}  // namespace terrace::test
