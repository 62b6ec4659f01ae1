// Stores that are removed when their process ends.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include <terrace/tests/offload/chunk_store_run.h>

namespace terrace {
namespace {

using TemporaryStore = test::ChunkStoreTest;

TEST_F(TemporaryStore, WhatAKilledTemporaryStoreLeftIsRemovedByTheNext) {
  auto o = options();
  o.temporary = true;
  o.name = "killed";
  const auto left = directory_.path() / "nvme0" / "killed.temporary";
  const pid_t child = ::fork();
  if (child == 0) {
    const auto store = ChunkStore::create(o);
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(child, ::waitpid(child, &status, 0));
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_TRUE(std::filesystem::exists(left / "lock")) << "nothing to find";
  ASSERT_FALSE(std::filesystem::exists(left / "data")) << "its space comes back with the process";
  // Other folders named *.temporary stay: one that is in use, and one that contains something else.
  o.name = "alive";
  const auto alive = ChunkStore::create(o);
  EXPECT_FALSE(std::filesystem::exists(left));
  const auto precious = directory_.path() / "nvme0" / "mine.temporary" / "thesis";
  std::filesystem::create_directory(precious.parent_path());
  std::ofstream(precious) << "precious";
  o.name = "next";
  ChunkStore::create(o);
  write(*alive, 0, 1);
  expect_read(*alive, 0, 1);
  EXPECT_TRUE(std::filesystem::exists(directory_.path() / "nvme0" / "alive.temporary" / "lock"));
  EXPECT_TRUE(std::filesystem::exists(precious));
}

// Each thread removes the leftovers of dead runs while the others create their folders: none may take another's store for dead.
TEST_F(TemporaryStore, TemporaryStoresOfOneFolderAreMadeAtTheSameTime) {
  std::mutex mutex;
  std::set<std::string> errors;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        auto o = options();
        o.temporary = true;
        o.name = fmt::format("rank{}", t);
        for (int round = 0; round < 200; ++round) try {
            static_cast<void>(ChunkStore::create(o));
          } catch (const Error& error) {
            const std::lock_guard lock(mutex);
            errors.insert(error.what());
          }
      });
  }
  EXPECT_THAT(errors, testing::IsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path() / "nvme0"));
}

TEST_F(TemporaryStore, ATemporaryStoreLeavesNothing) {
  auto o = options();
  o.temporary = true;
  {
    const auto store = ChunkStore::create(o);
    EXPECT_FALSE(std::filesystem::exists(file("data")));
    write(*store, 0, 1);
    expect_read(*store, 0, 1);
    EXPECT_THROW(store->commit(1, ""), std::logic_error);
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path() / "nvme0"));
}

}  // namespace
}  // namespace terrace
