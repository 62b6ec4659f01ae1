// Tests runs on several ranks of which all or some stop.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include <terrace/tests/doubles/faults.h>

#include <terrace/tests/parallel/zero/data_parallel_run.h>

namespace terrace {
namespace {

class ZeroRecovery : public test::FolderTest {
 protected:
  static toy::RunOptions options(std::uint32_t zero, const std::filesystem::path& store) {
    toy::RunOptions o;
    o.shape = {{1, 8}, 2};
    o.data = {.ranks = 3, .zero = zero};
    o.store = store;
    o.steps = 6;
    o.disk_tier = true;
    o.budget = {kUnlimited, 2 * kMiB, 256 * kMiB};
    return o;
  }
  // Trains until step `last`, commits after the steps `commits_at`, and returns the hash of the weights. A run to compare with
  // commits after the same steps, because a commit drains.
  static std::uint64_t train(toy::Training& training, std::uint64_t last, std::span<const std::uint64_t> commits_at) {
    for (auto s = training.steps_done() + 1; s <= last; ++s) {
      training.step();
      if (std::ranges::find(commits_at, s) != commits_at.end()) training.trainer->commit();
    }
    return training.hash();
  }
  std::vector<std::uint64_t> train_ranks(const toy::RunOptions& o, std::uint64_t last, std::vector<std::uint64_t> commits_at,
                                         std::vector<std::uint64_t>* began_after = nullptr) {
    std::vector<std::uint64_t> hashes(o.data.ranks);
    if (began_after) began_after->resize(o.data.ranks);
    const auto errors = test::on_threads(static_cast<int>(o.data.ranks), {std::chrono::seconds(60)}, [&](test::Rank& rank) {
      const auto r = rank.comm->rank();
      toy::Training training(toy::of_rank(o, r), rank.comm.get());
      if (began_after) (*began_after)[static_cast<std::size_t>(r)] = training.steps_done();
      hashes[static_cast<std::size_t>(r)] = train(training, last, commits_at);
    });
    for (const auto& error : errors) EXPECT_EQ(error, "");
    return hashes;
  }
};

// A rank died after the others' commit and before its own: all ranks go back to the last commit that all have.
TEST_F(ZeroRecovery, RanksGoOnFromTheLastCommitThatAllHave) {
  const auto expected = train_ranks(options(2, folder_ / "whole"), 6, {2, 4});
  auto o = options(2, folder_ / "cut");
  train_ranks(o, 4, {2, 4});
  for (const auto* const newest : {"commit.0", "commit.0.copy"})  // number 2, of step 4
    ASSERT_TRUE(std::filesystem::remove(folder_ / "cut" / "rank1" / "store" / newest));
  o.resume = true;
  std::vector<std::uint64_t> began_after;
  EXPECT_EQ(train_ranks(o, 6, {4}, &began_after), expected);
  EXPECT_EQ(began_after, std::vector<std::uint64_t>(3, 2));
}

// A rank dies in the middle of a step: the others stop and name it, and the run resumes from its last commit.
TEST_F(ZeroRecovery, ADyingRankStopsTheOthersWhichNameIt) {
  const auto expected = train_ranks(options(3, folder_ / "whole"), 6, {2});
  auto o = options(3, folder_ / "cut");
  train_ranks(o, 2, {2});
  o.resume = true;
  const auto errors = test::on_threads(3, {std::chrono::seconds(60)}, [&](test::Rank& rank) {
    const auto r = rank.comm->rank();
    const auto comm = with_faults(std::move(rank.comm), {.dying_rank = 1, .dies_at_call = 120});
    toy::Training training(toy::of_rank(o, r), comm.get());
    train(training, 6, {});
  });
  EXPECT_NE(errors[1], "");
  for (const auto& error : {errors[0], errors[2]}) {
    EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
    EXPECT_EQ(error.find("waited"), std::string::npos) << "it came to its time limit: " << error;
  }
  EXPECT_EQ(train_ranks(o, 6, {}), expected);
}

// If a rank fails for any reason, here its disk, the others do not wait for it.
TEST_F(ZeroRecovery, ARankThatFailsForItselfStopsTheOthers) {
  const auto o = options(1, folder_ / "run");
  const auto errors = test::on_threads(3, {std::chrono::seconds(60)}, [&](test::Rank& rank) {
    const auto r = rank.comm->rank();
    toy::Training training(toy::of_rank(o, r), rank.comm.get());
    training.step();
    if (r == 2) throw Error("its disk is gone");
    training.step();
  });
  EXPECT_EQ(errors[2], "its disk is gone");
  for (const int r : {0, 1})
    EXPECT_NE(errors[static_cast<std::size_t>(r)].find("rank 2"), std::string::npos) << errors[static_cast<std::size_t>(r)];
}

}  // namespace
}  // namespace terrace
