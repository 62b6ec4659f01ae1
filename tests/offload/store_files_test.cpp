// The store's files: who may have them, where they lie, how much space they take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "chunk_store_run.h"

namespace terrace {
namespace {

using test::kPlaceBytes;
using StoreFiles = test::ChunkStoreTest;
using testing::HasSubstr;

TEST_F(StoreFiles, AStoreInUseIsRefusedToAnotherProcess) {
  const auto store = ChunkStore::create(options());
  write(*store, 0, 1);
  store->commit(1, "");
  for (const bool fresh : {true, false}) {
    const pid_t child = ::fork();
    if (child == 0) {
      int code = 0;
      try {
        fresh ? ChunkStore::create(options()) : ChunkStore::open(options());
      } catch (const Error& error) {
        code = std::string(error.what()).find("in use by another run") != std::string::npos ? 42 : 1;
      }
      ::_exit(code);
    }
    int status = 0;
    ASSERT_EQ(child, ::waitpid(child, &status, 0));
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(42, WEXITSTATUS(status));
  }
  expect_committed(*store, {1});
}

// Its own lock would be found held, and the store of "another run" looked for.
TEST_F(StoreFiles, APathThatIsGivenTwiceIsNamed) {
  const auto folder = directory_.path() / "twice";
  std::filesystem::create_directory(folder);
  std::filesystem::create_directory_symlink(folder, directory_.path() / "link");
  for (const bool temporary : {false, true})
    for (const auto& again : {folder, folder / ".", directory_.path() / "link"}) {
      auto o = options();
      o.paths = {folder, again};
      o.temporary = temporary;
      try {
        ChunkStore::create(o);
        ADD_FAILURE() << "two stores in one folder";
      } catch (const Error& error) {
        EXPECT_EQ(Exit::usage, error.exit());
        EXPECT_THAT(error.what(), testing::HasSubstr("the path " + again.string()));
        EXPECT_THAT(error.what(), testing::HasSubstr("is given more than once"));
      }
    }
}

TEST_F(StoreFiles, TooLittleSpaceIsRefusedBeforeAnyIsTaken) {
  auto o = options();
  o.capacity_bytes = 1ULL << 50;
  try {
    ChunkStore::create(o);
    FAIL() << "a PiB was found";
  } catch (const Error& error) {
    EXPECT_EQ(Exit::does_not_fit, error.exit());
    EXPECT_THAT(error.what(), HasSubstr(file("data").string()));
    EXPECT_THAT(error.what(), HasSubstr(std::to_string(1ULL << 50)));
    EXPECT_THAT(error.what(), HasSubstr("are free"));
  }
  struct stat info {};
  ASSERT_EQ(0, ::stat(file("data").c_str(), &info));
  EXPECT_EQ(0, info.st_blocks);
}

TEST_F(StoreFiles, CapacityIsAllocatedExactlyAndGrowsOnOpening) {
  auto o = options(3);
  o.capacity_bytes = 7 * o.stripe_bytes + kPageBytes;
  {
    const auto store = ChunkStore::create(o);
    EXPECT_EQ(o.capacity_bytes, store->allocated_bytes());
    // Every byte of the space has a place in some file.
    std::vector<std::uint64_t> ends(3);
    for (const auto& piece : store->pieces(0, o.capacity_bytes)) {
      auto& end = ends[static_cast<std::size_t>(piece.file)];
      end = std::max(end, piece.offset + piece.bytes);
    }
    for (std::size_t f = 0; f < 3; ++f) {
      EXPECT_EQ(ends[f], std::filesystem::file_size(o.paths[f] / "store" / "data")) << "file " << f;
    }
    write(*store, 0, 1);
    store->commit(1, "");
  }
  o.capacity_bytes += 20 * o.stripe_bytes;
  const auto store = ChunkStore::open(o);
  EXPECT_EQ(o.capacity_bytes, store->allocated_bytes());
  expect_committed(*store, {1});
}

TEST_F(StoreFiles, AnotherNumberOfPathsIsRefused) {
  {
    const auto store = ChunkStore::create(options(2));
    write(*store, 0, 1);
    store->commit(1, "");
  }
  std::string what;
  EXPECT_EQ(Exit::usage, exit_of_open(options(1), what));
  EXPECT_THAT(what, HasSubstr("2 paths"));
}

TEST_F(StoreFiles, OnlyTheOwnerMayReadIt) {
  const auto store = ChunkStore::create(options());
  write(*store, 0, 1);
  store->commit(1, "");
  struct stat info {};
  ASSERT_EQ(0, ::stat((directory_.path() / "nvme0" / "store").c_str(), &info));
  EXPECT_EQ(0700U, info.st_mode & 07777U);
  for (const std::string name : {"data", "lock", "commit.1", "commit.1.copy", "index.1.json", "index.1.json.copy"}) {
    ASSERT_EQ(0, ::stat(file(name).c_str(), &info)) << name;
    EXPECT_EQ(0600U, info.st_mode & 07777U) << name;
  }
}

TEST_F(StoreFiles, ASymbolicLinkIsNeverFollowed) {
  const auto victim = directory_.path() / "victim";
  std::ofstream(victim) << "precious";
  std::filesystem::create_directories(directory_.path() / "elsewhere");
  std::filesystem::create_directories(directory_.path() / "nvme0");
  std::filesystem::create_directory_symlink(directory_.path() / "elsewhere", directory_.path() / "nvme0" / "store");
  EXPECT_THROW(ChunkStore::create(options()), Error);
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path() / "elsewhere"));
  std::filesystem::remove(directory_.path() / "nvme0" / "store");

  std::filesystem::create_directory(directory_.path() / "nvme0" / "store");
  std::filesystem::create_symlink(victim, file("lock"));
  EXPECT_THROW(ChunkStore::create(options()), Error);
  std::filesystem::remove(file("lock"));

  std::filesystem::create_symlink(victim, file("data"));
  ChunkStore::create(options());  // a fresh store removes what is there: the link, not what it points to
  EXPECT_FALSE(std::filesystem::is_symlink(file("data")));
  std::string text;
  std::ifstream(victim) >> text;
  EXPECT_EQ("precious", text);
}

TEST_F(StoreFiles, SpaceBehindTheEndIsGivenBack) {
  for (const int paths : {1, 3}) {
    auto o = options(paths);
    o.name = fmt::format("store{}", paths);
    o.stripe_weights.assign(static_cast<std::size_t>(paths), 1);
    o.capacity_bytes = 64 * kPlaceBytes;
    const auto store = ChunkStore::create(o);
    for (std::uint32_t id = 0; id < 3; ++id) write(*store, id, 10 + id);
    store->commit(1, "");
    expect_allocated(*store, 64 * kPlaceBytes);
    store->trim(3 * kPlaceBytes);
    expect_allocated(*store, 3 * kPlaceBytes);
    expect_committed(*store, {10, 11, 12});
    store->trim(64 * kPlaceBytes);  // never takes
    expect_allocated(*store, 3 * kPlaceBytes);
  }
}

TEST_F(StoreFiles, AnExistingStoreKeepsItsStripes) {
  auto o = options(2);
  o.stripe_weights = {3, 1};
  {
    const auto store = ChunkStore::create(o);
    for (std::uint32_t id = 0; id < 3; ++id) write(*store, id, 10 + id);
    store->commit(1, "");
    EXPECT_EQ(3 * std::filesystem::file_size(o.paths[1] / "store" / "data"),
              std::filesystem::file_size(o.paths[0] / "store" / "data"));
  }
  o.stripe_weights = {1, 2};
  expect_committed(*ChunkStore::open(o), {10, 11, 12});
  o.stripe_weights = {1};
  o.name = "other";
  EXPECT_THROW(ChunkStore::create(o), Error);
}

// A large store measures its paths; two folders of one disk get about the same, and the store works whatever comes out.
TEST_F(StoreFiles, ALargeStoreMeasuresItsPaths) {
  auto o = options(2);
  o.capacity_bytes = kGiB;
  const auto store = ChunkStore::create(o);
  expect_allocated(*store, kGiB);
  write(*store, 0, 7);
  store->commit(1, "");
  expect_committed(*store, {7});
}

TEST_F(StoreFiles, AFolderOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  std::filesystem::create_directories(directory_.path() / "nvme0" / "store");
  ASSERT_EQ(0, ::chown((directory_.path() / "nvme0" / "store").c_str(), 12345, 12345));
  std::string what;
  try {
    ChunkStore::create(options());
  } catch (const Error& error) {
    what = error.what();
  }
  EXPECT_THAT(what, HasSubstr("belongs to another user"));
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path() / "nvme0" / "store"));
}

}  // namespace
}  // namespace terrace
