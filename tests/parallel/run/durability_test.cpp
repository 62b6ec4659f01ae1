// The number of generations on disk and the interval of commits change what a kill costs and what is moved. They change no bit,
// and every moved byte was planned.
#include <gtest/gtest.h>

#include <filesystem>

#include <terrace/tests/support/folder_test.h>
#include <terrace/tests/support/toy_run.h>

namespace terrace {
namespace {

constexpr std::uint64_t kSteps = 4;

struct Way {
  std::uint32_t generations = 2;
  std::uint64_t commit_every = 0;
  bool disk_tier = true;
};

class Durability : public test::FolderTest {
 protected:
  toy::RunOptions options(const Way& way) const {
    toy::RunOptions o;
    o.steps = kSteps;
    o.store = folder_;
    o.generations = way.generations;
    o.commit_every = way.commit_every;
    if (way.disk_tier) {
      const auto smallest = plan(toy::make_model(o.sizes), toy::request_of(o), MachineProfile{}).smallest_bytes;
      o.disk_tier = true;
      o.budget = {smallest[Tier::device], 768 * kKiB, 256 * kMiB};
    }
    return o;
  }
  [[nodiscard]] ChunkStore::Options store() const { return {.paths = {folder_}}; }
};

TEST_F(Durability, EveryWayGivesTheSameBitsAndMovesWhatWasPlanned) {
  std::uint64_t hash = 0;
  PerTier<std::uint64_t> two_generations{};
  for (const Way& way : {Way{2, 0}, Way{2, 1}, Way{2, 3}, Way{1, 0}, Way{2, 1, false}, Way{1, 0, false}}) {
    SCOPED_TRACE(testing::Message() << way.generations << " generations, a commit every " << way.commit_every
                                    << " steps, disk tier " << way.disk_tier);
    std::filesystem::remove_all(folder_ / "store");
    toy::Training t(options(way));
    ASSERT_TRUE(t.planned.fits) << t.planned.refusal.why;
    std::uint64_t commits = 0, commit_bytes = 0;
    const auto commit = [&] {
      const auto before = t.engine->moved().write;
      t.trainer->commit();
      commit_bytes = t.engine->moved().write - before;
      ++commits;
    };
    ASSERT_EQ(kSteps, t.planned.step_traffic.size());
    for (std::uint64_t s = 1; s <= kSteps; ++s) {
      EXPECT_EQ(t.planned.step_traffic[s - 1], t.step().back().result.moved) << "step " << s;
      if (way.commit_every != 0 && s % way.commit_every == 0 && s != kSteps) commit();
    }
    commit();
    EXPECT_EQ(t.planned.commits, commits);
    EXPECT_EQ(t.planned.commit_traffic.write, commit_bytes);
    EXPECT_GT(commit_bytes, 0U);
    EXPECT_GT(t.planned.commit_seconds, 0.0);
    const auto now = t.hash();
    const auto peak = t.engine->peak_bytes();
    t.engine.reset();
    std::uint64_t committed_bytes = 0;
    for (const auto& chunk : ChunkStore::open(store())->committed()) committed_bytes += chunk.description.bytes;
    EXPECT_EQ(hash == 0 ? now : hash, now);
    hash = now;
    EXPECT_EQ(t.planned.peak_bytes[Tier::host], peak[Tier::host]);
    EXPECT_EQ(t.planned.peak_bytes[Tier::disk], peak[Tier::disk]);
    if (!way.disk_tier) continue;
    if (way.generations == 2 && way.commit_every == 0) two_generations = t.planned.peak_bytes;
    if (way.generations == 1) {
      EXPECT_EQ(two_generations[Tier::disk] - committed_bytes, t.planned.peak_bytes[Tier::disk]);
    }
  }
}

TEST_F(Durability, OneGenerationIsCommittedAtTheEndOnly) {
  auto o = options({1, 0});
  {
    toy::Training t(o);
    for (int s = 0; s < 2; ++s) t.step();
    EXPECT_FALSE(ChunkStore::has_commit(store()));
    t.trainer->commit();
    EXPECT_TRUE(ChunkStore::has_commit(store()));
  }
  o.resume = true;
  {
    toy::Training t(o);  // continues, and is stopped like a killed process
    EXPECT_EQ(2U, t.steps_done());
    EXPECT_TRUE(ChunkStore::has_commit(store()));
    t.step();
    t.step();
    EXPECT_FALSE(ChunkStore::has_commit(store())) << "a commit whose bytes are written over would be a lie";
  }
  EXPECT_THROW(ChunkStore::open(store()), Error);
}

TEST_F(Durability, OneGenerationAndCommitsInBetweenContradict) { EXPECT_THROW(toy::Training(options({1, 2})), Error); }

}  // namespace
}  // namespace terrace
