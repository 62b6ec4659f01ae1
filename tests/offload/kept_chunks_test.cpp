// Chunks that last: after every end of a process, expected or not, the next one finds the last commit, whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <optional>

#include <terrace/core/base/error.h>
#include <terrace/offload/manager/chunk_manager.h>
#include <terrace/tests/doubles/simulated_disk.h>
#include <terrace/tests/offload/kept_words.h>
#include <terrace/tests/support/crash_journal.h>
#include <terrace/tests/support/environment.h>
#include <terrace/tests/support/folder_test.h>
#include <terrace/tests/support/killed_program.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

using test::has_words;
using test::kept_bytes;
using test::kept_name;
using test::kKeptChunks;
using testing::HasSubstr;

class KeptChunks : public test::FolderTest {
 protected:
  [[nodiscard]] OffloadOptions options() const { return test::kept_options(folder_ / "mine"); }
  static std::vector<ChunkId> add_all(ChunkManager& manager) {
    std::vector<ChunkId> chunks;
    for (std::uint64_t i = 0; i < kKeptChunks; ++i) chunks.push_back(manager.add(kept_name(i), kept_bytes(i)));
    return chunks;
  }
  // The step whose content the store has; every chunk is checked.
  static std::uint64_t step_of(ChunkManager& manager) {
    const auto commit = manager.last_commit();
    if (!commit) return 0;
    EXPECT_EQ(fmt::format("at {}", commit->step), commit->payload);
    const auto chunks = add_all(manager);
    for (std::uint64_t i = 0; i < kKeptChunks; ++i)
      EXPECT_TRUE(has_words(manager.acquire(chunks[i], Tier::host, Access::read).bytes(), commit->step, i))
          << "chunk " << i << " after step " << commit->step;
    return commit->step;
  }
};

// Chunks of random sizes are added in any order, beside chunks without a name that take disk places between theirs. Some steps
// are committed, and some processes end between two commits.
TEST_F(KeptChunks, EveryLifeBeginsWithTheLastCommit) {
  std::mt19937_64 random(test::test_seed());
  SCOPED_TRACE(fmt::format("TERRACE_TEST_SEED={}", test::test_seed()));
  std::map<std::uint64_t, std::uint64_t> shadow, committed;  // number of a chunk → step of its content
  std::uint64_t step = 0, last = 0;
  for (int life = 0; life < 25; ++life) {
    SCOPED_TRACE(fmt::format("life {}", life));
    ChunkManager manager(options());
    shadow = committed;
    ASSERT_EQ(last, manager.last_commit() ? manager.last_commit()->step : 0);
    std::vector<std::uint64_t> numbers(kKeptChunks);
    for (std::uint64_t i = 0; i < kKeptChunks; ++i) numbers[i] = i;
    std::ranges::shuffle(numbers, random);
    numbers.resize(1 + random() % kKeptChunks);  // the others stay in the store
    std::map<std::uint64_t, ChunkId> chunks;
    std::vector<ChunkId> nameless;
    for (const auto i : numbers) {
      if (random() % 2 == 0) {
        nameless.push_back(manager.add(kPageBytes * (1 + random() % 3)));
        test::write_words(manager.acquire(nameless.back(), Tier::host, Access::overwrite).bytes(), 7, 7);
      }
      chunks[i] = manager.add(kept_name(i), kept_bytes(i));
      ASSERT_EQ(committed.contains(i), manager.has_content(chunks[i])) << i;
    }
    for (auto operations = random() % 40; operations > 0; --operations) {
      const auto i = numbers[random() % numbers.size()];
      const Tier tier = random() % 2 == 0 ? Tier::device : Tier::host;
      switch (random() % 6) {
        case 0: manager.prefetch(chunks[i], tier); break;
        case 1:
          if (!shadow.contains(i)) break;
          ASSERT_TRUE(has_words(manager.acquire(chunks[i], tier, Access::read).bytes(), shadow[i], i)) << i;
          break;
        case 2:
          manager.commit(++step, fmt::format("at {}", step));
          committed = shadow;
          last = step;
          break;
        default: test::write_words(manager.acquire(chunks[i], tier, Access::overwrite).bytes(), ++step, i); shadow[i] = step;
      }
    }
    for (const auto chunk : nameless) ASSERT_TRUE(has_words(manager.acquire(chunk, Tier::host, Access::read).bytes(), 7, 7));
  }
  EXPECT_GT(last, 0U);
}

TEST_F(KeptChunks, AKilledProgramLosesNothingThatItWasToldIsCommitted) {
  const auto lives = test::number_from_environment("TERRACE_KILLS", 12);
  std::mt19937_64 random(test::test_seed());
  SCOPED_TRACE(fmt::format("TERRACE_TEST_SEED={}", test::test_seed()));
  std::uint64_t last = 0, killed = 0, ahead = 0;
  for (std::uint64_t life = 0; life < lives; ++life) {
    const auto end = test::run_and_kill({TERRACE_KEPT_PROGRAM, (folder_ / "mine").string(), "100000", std::to_string(random())},
                                        last, 6, std::chrono::milliseconds(20), random);
    ASSERT_EQ(0, end.exit);
    killed += end.was_killed ? 1 : 0;
    ChunkManager manager(options());
    const auto step = step_of(manager);
    ASSERT_GE(step, end.last) << "life " << life;
    ASSERT_LE(step, end.last + 1) << "life " << life;
    ahead += step > end.last ? 1 : 0;
    last = step;
  }
  EXPECT_EQ(lives, killed);
  fmt::print("{} commits, {} kills, {} of them between a commit and its report\n", last, killed, ahead);
}

// Power is lost before every event; what may then be on the disk is drawn from the seed.
TEST_F(KeptChunks, APowerLossAtAnyMomentLeavesACommitWhole) {
  constexpr std::uint64_t kSteps = 3;
  const auto seed = test::test_seed();
  const auto journal = std::make_shared<test::CrashJournal>();
  std::vector<std::pair<std::size_t, std::size_t>> made{{0, 0}};  // by step: where its commit begins and ends in the journal
  auto o = options();
  std::uint64_t data_bytes = 0;
  o.io_deadline = {};  // without a deadline, all calls on a file use one descriptor
  o.file_ops = std::make_shared<test::JournalFiles>(journal);
  o.make_io = [&](const IoOptions& io) {
    struct stat info {};
    EXPECT_EQ(0, ::fstat(io.files.at(0), &info));
    data_bytes = static_cast<std::uint64_t>(info.st_size);
    return std::make_unique<test::JournalEngine>(make_simulated_engine(make_simulated_disk(1, data_bytes), seed), journal);
  };
  {
    ChunkManager manager(o);
    const auto chunks = add_all(manager);
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      test::write_step(manager, chunks, step, seed);
      made.emplace_back(journal->size(), 0);
      manager.commit(step, fmt::format("at {}", step));
      made.back().second = journal->size();
    }
  }
  std::uint64_t opened = 0, newer = 0;
  const auto moments = journal->size();
  for (std::size_t moment = 0; moment <= moments; ++moment) {
    if (journal->is_end_of_write(moment)) continue;
    std::uint64_t last = 0;
    while (last < kSteps && made[last + 1].second <= moment) ++last;
    for (auto draw = seed; draw < seed + (journal->is_folder_sync(moment) ? 8 : 1); ++draw) {
      SCOPED_TRACE(fmt::format("TERRACE_TEST_SEED={}: draw {} before event {} of {}", seed, draw, moment, moments));
      const auto home = folder_ / "left";
      std::filesystem::remove_all(home);
      journal->leave(moment, draw + moment * 1'000'003, data_bytes, home);
      std::uint64_t step = 0;
      const auto refused = test::error_if_any([&] {
        ChunkManager manager(test::kept_options(home));
        step = step_of(manager);
      });
      ASSERT_TRUE(last == 0 || !refused) << refused->what();
      ASSERT_TRUE(step == last || (step == last + 1 && made[step].first < moment)) << step << " after " << last;
      opened += step > 0 ? 1 : 0;
      newer += step != last ? 1 : 0;
    }
  }
  fmt::print("{} moments, {} stores opened, {} of them at a commit that was not told yet\n", moments, opened, newer);
  EXPECT_GT(newer, 0U);
}

// A flipped bit in any file is found, or changes nothing that is read.
TEST_F(KeptChunks, NoFlippedBitIsSilent) {
  {
    ChunkManager manager(options());
    const auto chunks = add_all(manager);
    for (std::uint64_t step = 1; step <= 2; ++step) {
      test::write_step(manager, chunks, step, step);
      manager.commit(step, fmt::format("at {}", step));
    }
  }
  std::mt19937_64 random(test::test_seed());
  SCOPED_TRACE(fmt::format("TERRACE_TEST_SEED={}", test::test_seed()));
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "mine"))
    if (entry.file_size() > 0) files.push_back(entry.path().filename());
  std::ranges::sort(files);
  std::uint64_t found = 0, harmless = 0;
  for (int flip = 0; flip < 150; ++flip) {
    const auto home = folder_ / "flipped";
    std::filesystem::remove_all(home);
    std::filesystem::copy(folder_ / "mine", home);
    const auto& name = flip % 2 == 0 ? std::filesystem::path("data") : files[random() % files.size()];
    const auto at = static_cast<std::streamoff>(random() % std::filesystem::file_size(home / name));
    {
      std::fstream file(home / name, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(at);
      const auto byte = static_cast<char>(file.get() ^ (1 << random() % 8));
      file.seekp(at);
      file.put(byte);
    }
    SCOPED_TRACE(fmt::format("byte {} of {}", at, name.string()));
    std::uint64_t step = 0;
    testing::internal::CaptureStderr();
    const auto refused = test::error_if_any([&] {
      ChunkManager manager(test::kept_options(home));
      step = step_of(manager);
    });
    testing::internal::GetCapturedStderr();
    if (refused) {
      ++found;
      EXPECT_EQ(ErrorKind::corrupt, refused->kind()) << refused->what();
      EXPECT_THAT(refused->path(), HasSubstr(home.string()));
      EXPECT_THAT(refused->object(), HasSubstr("chunk "));
      EXPECT_THAT(refused->what(), HasSubstr("go back to an exported checkpoint"));
    } else {
      ++harmless;
      EXPECT_EQ(2U, step);  // in a free place, in the other generation, or in one of two copies of a file
    }
  }
  fmt::print("{} flips were found, {} were harmless\n", found, harmless);
  EXPECT_GT(found, 10U);
}

TEST_F(KeptChunks, WhatTheStoreCannotTakeIsRefused) {
  ChunkManager manager(options());
  const auto chunks = add_all(manager);
  test::write_step(manager, chunks, 1, 1);
  const auto locked = test::error_if_any([&] { ChunkManager second(options()); });
  ASSERT_TRUE(locked);
  EXPECT_THAT(locked->what(), HasSubstr("is in use by another run"));
  EXPECT_EQ((folder_ / "mine").string(), locked->path());
  {
    const auto lease = manager.acquire(chunks[3], Tier::host, Access::update);
    EXPECT_THROW(manager.commit(1, ""), std::logic_error);
    test::write_words(lease.bytes(), 1, 3);
  }
  const auto text = test::error_if_any([&] { manager.commit(1, "\xff"); });
  ASSERT_TRUE(text);
  EXPECT_EQ(ErrorKind::refused, text->kind());
  EXPECT_THROW(manager.add(kept_name(3), kPageBytes), std::logic_error);
  EXPECT_THROW(manager.drop(chunks[3]), std::logic_error);
  manager.commit(1, "at 1");
  const auto full = test::error_if_any([&] {
    for (int i = 0; i < 40; ++i) manager.add(fmt::format("more/{}", i), kPageBytes);
  });
  ASSERT_TRUE(full);
  EXPECT_EQ(ErrorKind::does_not_fit, full->kind());
}

TEST_F(KeptChunks, AStoreOfAnotherFormIsRefusedAndStaysAsItWas) {
  {
    ChunkManager manager(options());
    test::write_step(manager, add_all(manager), 1, 1);
    manager.commit(1, "at 1");
  }
  const auto with = [&](const auto& change) {
    auto o = options();
    change(o);
    return test::error_if_any([&] {
      ChunkManager manager(o);
      (void)add_all(manager);
    });
  };
  const auto larger = test::error_if_any([&] { ChunkManager(options()).add(kept_name(2), 17 * kPageBytes); });
  ASSERT_TRUE(larger);
  EXPECT_EQ(ErrorKind::refused, larger->kind());
  EXPECT_EQ(kept_name(2), larger->object());
  EXPECT_THAT(larger->what(), HasSubstr("add it as it was, or give another store"));
  const auto smaller = with([](OffloadOptions& o) { o.nvme_bytes = 20 * kPageBytes; });
  ASSERT_TRUE(smaller);
  EXPECT_EQ(ErrorKind::does_not_fit, smaller->kind());
  EXPECT_THAT(smaller->what(), HasSubstr("raise nvme_bytes by"));
  const auto no_disk = with([](OffloadOptions& o) { o.nvme_bytes = 0; });
  ASSERT_TRUE(no_disk);
  EXPECT_THAT(no_disk->what(), HasSubstr("store is given, but nvme_bytes is 0"));
  const auto both = with([&](OffloadOptions& o) { o.nvme_paths = {folder_}; });
  ASSERT_TRUE(both);
  EXPECT_EQ(ErrorKind::refused, both->kind());
  const auto nameless = test::error_if_any([&] {
    auto o = options();
    o.store = "";
    o.nvme_paths = {folder_};
    ChunkManager manager(o);
    manager.add("name", kPageBytes);
  });
  ASSERT_TRUE(nameless);
  EXPECT_EQ(ErrorKind::refused, nameless->kind());
  ChunkManager manager(options());
  EXPECT_EQ(1U, step_of(manager));
}

TEST_F(KeptChunks, TheStoreOfATrainingRunIsNotTouched) {
  {
    auto store = ChunkStore::create({.paths = {folder_}, .name = "mine", .capacity_bytes = kMiB, .run_ids = {"a run"}});
    store->commit(5, "{}");
  }
  const auto refused = test::error_if_any([&] { ChunkManager manager(options()); });
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->what(), HasSubstr("is the store of another run"));
}

TEST_F(KeptChunks, AStoreStripedOverPathsResumes) {
  auto o = options();
  o.store = "mine";
  o.nvme_paths = {folder_ / "a", folder_ / "b"};
  {
    ChunkManager manager(o);
    test::write_step(manager, add_all(manager), 1, 1);
    manager.commit(1, "at 1");
  }
  ChunkManager manager(o);
  EXPECT_EQ(1U, step_of(manager));
}

}  // namespace
}  // namespace terrace
