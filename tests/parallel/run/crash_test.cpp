// Power is lost at every write of a run and at every call of its commits. Whatever the disk may then hold opens, whole, at the
// last commit reported as made or at the one in progress; a run resumed from it ends with the undisturbed run's weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include <fmt/format.h>

#include <terrace/tests/doubles/simulated_disk.h>
#include <terrace/tests/support/crash_journal.h>
#include <terrace/tests/support/environment.h>
#include <terrace/tests/support/folder_test.h>
#include <terrace/tests/support/toy_run.h>

namespace terrace {
namespace {

using test::CrashJournal;
using test::number_from_environment;

constexpr std::uint64_t kSteps = 4;

class CrashTest : public test::FolderTest {
 protected:
  toy::RunOptions options(bool larger) const {
    auto o = toy::options_on_disk(kSteps, larger);
    o.durable = true;
    o.deadline = {};  // without a deadline, all calls on a file use one descriptor
    return o;
  }

  // beside: each commit is written while the next step is computed.
  void everywhere(bool larger, bool beside = false);
};

// A commit as it was when it was made.
struct Made {
  std::size_t begun = 0, ended = 0;  // in the journal
  std::vector<std::pair<ChunkId, std::uint64_t>> checksums;
};

std::vector<std::pair<ChunkId, std::uint64_t>> checksums_of(const ChunkStore& store) {
  std::vector<std::pair<ChunkId, std::uint64_t>> all;
  for (const auto& chunk : store.committed()) all.emplace_back(chunk.description.chunk, chunk.checksum);
  return all;
}

void CrashTest::everywhere(bool larger, bool beside) {
  const auto first_seed = number_from_environment("TERRACE_CRASH_SEED", 1);
  const auto losses = number_from_environment("TERRACE_CRASH_LOSSES", 1);  // power losses at each moment
  // The larger run has many more moments, so only some are tried, except in the long form.
  const auto stride = number_from_environment("TERRACE_CRASH_STRIDE", larger ? 5 : 1);
  // The number of states left on disk that are trained to the end.
  const auto resumes = number_from_environment("TERRACE_CRASH_RESUMES", 8);
  auto o = options(larger);

  // The undisturbed run, in memory except for its commits.
  const auto journal = std::make_shared<CrashJournal>();
  std::vector<Made> made(1);  // by commit number; none has the number 0
  std::uint64_t hash = 0, data_bytes = 0;
  {
    o.store = folder_ / "undisturbed";
    o.file_ops = std::make_shared<test::JournalFiles>(journal);
    o.make_io = [&](const IoOptions& io) {
      struct stat info {};
      EXPECT_EQ(0, ::fstat(io.files.at(0), &info));
      data_bytes = static_cast<std::uint64_t>(info.st_size);
      return std::make_unique<test::JournalEngine>(make_simulated_engine(make_simulated_disk(1, data_bytes), first_seed),
                                                   journal);
    };
    toy::Training t(o);
    ASSERT_TRUE(t.planned.fits) << t.planned.refusal.why;
    for (std::uint64_t s = 1; s <= kSteps; ++s) {
      t.step();
      if (beside && s > 1) made.back().ended = journal->size();
      made.push_back({journal->size(), 0, {}});
      beside ? t.trainer->begin_commit() : t.trainer->commit();
      if (!beside) made.back().ended = journal->size();
    }
    t.trainer->finish_commit();
    made.back().ended = journal->size();
    hash = t.hash();
  }
  const auto moments = journal->size();
  for (std::uint64_t n = 1; n <= kSteps; ++n) {
    journal->leave(made[n].ended, 0, data_bytes, folder_ / "then" / "store");
    const auto store = ChunkStore::open({.paths = {folder_ / "then"}});
    ASSERT_EQ(n, store->last_commit()->number);
    made[n].checksums = checksums_of(*store);
    std::filesystem::remove_all(folder_ / "then");
  }

  std::mt19937_64 choice(first_seed);
  std::uint64_t opened = 0, resumed = 0, newer = 0;
  for (std::size_t moment = 0; moment <= moments; ++moment) {
    if (journal->is_end_of_write(moment)) continue;  // the same bytes are uncertain as before the next event
    const bool committing = std::ranges::any_of(
        made, [&](const Made& m) { return !beside && m.begun <= moment && moment <= m.ended && m.ended != 0; });
    // A commit is told after the sync of its folder, so every one of these moments is tried.
    if (!committing && !journal->is_folder_sync(moment) && moment % stride != first_seed % stride) continue;
    std::uint64_t last = 0;
    while (last < kSteps && made[last + 1].ended <= moment) ++last;
    // Where only file names are uncertain, more draws reach every outcome, including a commit not yet reported as made.
    const auto drawn = journal->is_folder_sync(moment) ? 8 * losses : losses;
    for (std::uint64_t seed = first_seed; seed < first_seed + drawn; ++seed) {
      SCOPED_TRACE(
          fmt::format("TERRACE_CRASH_SEED={}: before event {} of {}, commit {} was there", seed, moment, moments, last));
      const auto home = folder_ / "left";
      std::filesystem::remove_all(home);
      journal->leave(moment, seed + moment * 1000003, data_bytes, home / "store");
      const ChunkStore::Options left{.paths = {home}};
      std::uint64_t number = 0, step = 0;
      try {
        const auto store = ChunkStore::open(left);
        ++opened;
        number = store->last_commit()->number;
        step = store->last_commit()->step;
        std::vector<std::byte> bytes;
        for (const auto& chunk : store->committed()) {
          bytes.resize(chunk.description.bytes);
          store->read_committed(chunk, bytes);
        }
        ASSERT_LE(number, kSteps);
        ASSERT_EQ(made[number].checksums, checksums_of(*store));
      } catch (const Error& error) {
        ASSERT_EQ(0U, last) << error.what();
        continue;
      }
      ASSERT_EQ(number, step);
      ASSERT_TRUE(number == last || (number == last + 1 && made[number].begun < moment)) << number;
      newer += number != last;
      // Every state that opens equals a commit bit for bit, so what follows depends only on the commit's number.
      if (choice() % (moments / stride * losses) >= resumes) continue;
      auto again = o;
      again.store = home;
      again.resume = true;
      again.file_ops = nullptr;
      again.durable = false;
      again.make_io = make_io_engine;
      toy::Training t(again);
      while (t.steps_done() < kSteps) t.step();
      ASSERT_EQ(hash, t.hash());
      ++resumed;
    }
  }
  fmt::print("{} moments, {} stores opened, {} of them at a commit that was not told yet, {} trained to the end\n", moments,
             opened, newer, resumed);
  EXPECT_GT(newer, 0U);
}

TEST_F(CrashTest, APowerLossAtEveryWrite) { everywhere(false); }
TEST_F(CrashTest, APowerLossAtEveryWriteOfALargerRun) { everywhere(true); }
TEST_F(CrashTest, APowerLossWhileACommitIsWrittenBesideAStep) { everywhere(false, true); }
TEST_F(CrashTest, APowerLossWhileACommitIsWrittenBesideAStepOfALargerRun) { everywhere(true, true); }

}  // namespace
}  // namespace terrace
