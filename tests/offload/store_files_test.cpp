// The files of a store: who may access them, where they are, and how much space they take.
#include <gmock/gmock.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <set>

#include <terrace/core/base/file_lock.h>
#include <terrace/core/base/files.h>

#include <terrace/tests/offload/chunk_store_run.h>
#include <terrace/tests/support/kernel_files.h>
#include <terrace/tests/support/thrown_error.h>

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

TEST_F(StoreFiles, AnEmbedderReadsWhyAStoreCannotBeOpened) {
  const auto below_a_file = directory_.path() / "file" / "below";
  std::ofstream(directory_.path() / "file") << "x";
  auto o = options();
  o.paths = {below_a_file};
  const auto in_a_file = test::thrown_by([&] { ChunkStore::create(o); });
  EXPECT_EQ(ErrorKind::failed, in_a_file.kind());
  EXPECT_EQ(std::errc::not_a_directory, in_a_file.code());
  EXPECT_EQ(below_a_file.string(), in_a_file.path());
  const auto absent = test::thrown_by([&] { ChunkStore::open(options()); });
  EXPECT_EQ(ErrorKind::corrupt, absent.kind());
  EXPECT_EQ(file("data").parent_path().string(), absent.path());
  const auto store = ChunkStore::create(options());
  const auto owned = test::thrown_by([&] { ChunkStore::open(options()); });
  EXPECT_EQ(std::errc::operation_would_block, owned.code());
  EXPECT_EQ(file("data").parent_path().string(), owned.path());
}

// Otherwise the store would find its own lock and report "another run".
TEST_F(StoreFiles, APathThatIsGivenTwiceIsNamed) {
  const auto folder = directory_.path() / "twice";
  std::filesystem::create_directory(folder);
  std::filesystem::create_directory_symlink(folder, directory_.path() / "link");
  for (const bool temporary : {false, true})
    for (const auto& again : {folder, folder / ".", directory_.path() / "link"}) {
      auto o = options();
      o.paths = {folder, again};
      o.temporary = temporary;
      EXPECT_THAT(
          test::refusal_of([&] { ChunkStore::create(o); }),
          testing::AllOf(testing::HasSubstr("the path " + again.string()), testing::HasSubstr("is given more than once")));
    }
}

TEST_F(StoreFiles, TooLittleSpaceIsRefusedBeforeAnyIsTaken) {
  auto o = options();
  o.capacity_bytes = 1ULL << 50;
  const auto error = test::thrown_by([&] { ChunkStore::create(o); });
  EXPECT_EQ(ErrorKind::does_not_fit, error.kind());
  EXPECT_THAT(error.what(), HasSubstr(file("data").string()));
  EXPECT_THAT(error.what(), HasSubstr(std::to_string(1ULL << 50)));
  EXPECT_THAT(error.what(), HasSubstr("are free"));
  EXPECT_EQ(std::errc::no_space_on_device, error.code());
  EXPECT_EQ(file("data").string(), error.path());
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
    // Every byte of the space is somewhere in a file.
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
  commit_one(options(2));
  std::string what;
  EXPECT_EQ(ErrorKind::refused, kind_of_open(options(1), what));
  EXPECT_THAT(what, HasSubstr("2 paths"));
}

// With any umask, others get no access; the group can read if the umask allows it.
TEST_F(StoreFiles, TheGroupMayReadItAndOthersMayNot) {
  const auto mode_of = [](const std::filesystem::path& path) {
    struct stat info {};
    EXPECT_EQ(0, ::stat(path.c_str(), &info)) << path;
    return info.st_mode & 07777U;
  };
  for (const mode_t mask : {022U, 002U, 077U}) {
    SCOPED_TRACE(mask);
    auto o = options();
    o.name = fmt::format("store{}", mask);
    const auto before = ::umask(mask);
    commit_one(o);
    ::umask(before);
    const auto folder = o.paths.front() / o.name;
    EXPECT_EQ(0750U & ~mask, mode_of(folder));
    for (const std::string name : {"data", "lock", "commit.1", "commit.1.copy", "index.1.json", "index.1.json.copy"})
      EXPECT_EQ(0640U & ~mask, mode_of(folder / name)) << name;
    // A folder that the user has made stricter, or whose files inherit its group, stays so; access of others is removed.
    for (const auto& [mode, then] : {std::pair{02750U, 02750U}, {0700U, 0700U}, {0777U, 0750U}}) {
      ASSERT_EQ(0, ::chmod(folder.c_str(), mode));
      expect_committed(*ChunkStore::open(o), {1});
      EXPECT_EQ(then, mode_of(folder));
    }
  }
}

TEST_F(StoreFiles, AColleagueOfTheGroupReadsAndDoesNotWrite) {
  constexpr gid_t kGroup = 12345;
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  std::filesystem::permissions(directory_.path(), std::filesystem::perms(0755));
  // The child starts first and waits, because ThreadSanitizer ends a child that is forked from a process with threads.
  std::array<int, 2> committed{};
  ASSERT_EQ(0, ::pipe(committed.data()));
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    ::close(committed[1]);
    if (::read(committed[0], &byte, 1) != 1) ::_exit(1);
    auto o = options();
    o.paths = {"nvme0"};  // the folders above may not be accessible
    if (::chdir(directory_.path().c_str()) != 0 || ::setgroups(0, nullptr) != 0 || ::setgid(kGroup) != 0 || ::setuid(4242) != 0)
      ::_exit(2);
    try {
      o.read_only = true;
      expect_committed(*ChunkStore::open(o), {1});
      o.read_only = false;
      ChunkStore::open(o);
    } catch (const Error& error) {
      ::_exit(o.read_only || HasFailure() ? 3 : 42);
    }
    ::_exit(4);
  }
  const auto group = ::getegid();
  ASSERT_EQ(0, ::setegid(kGroup));
  const auto mask = ::umask(022);
  commit_one(options());
  ::umask(mask);
  ASSERT_EQ(0, ::setegid(group));
  EXPECT_EQ(1, ::write(committed[1], "1", 1));
  for (const int end : committed) ::close(end);
  int status = 0;
  ASSERT_EQ(child, ::waitpid(child, &status, 0));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(42, WEXITSTATUS(status));
}

// The kernel's calls, with a record of their arguments.
class ToldFiles final : public test::KernelFiles {
 public:
  int sync(int f) override {
    synced.insert(std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", f)));
    return KernelFiles::sync(f);
  }
  int switch_off_copy_on_write(int f) override {
    struct stat info {};
    EXPECT_EQ(0, ::fstat(f, &info));
    sizes.push_back(info.st_size);
    return refusal;
  }
  std::set<std::filesystem::path> synced;
  std::vector<off_t> sizes;  // of files for which switching copy-on-write off was requested
  int refusal = 0;
};

// Otherwise a power loss could remove the store of a run.
TEST_F(StoreFiles, TheFoldersAboveANewStoreAreSynced) {
  const auto files = std::make_shared<ToldFiles>();
  auto o = options();
  o.deadline = {};
  o.file_ops = files;
  o.paths = {directory_.path() / "a" / "b" / "one", directory_.path() / "c"};
  ChunkStore::create(o);
  for (const auto* const folder : {"a/b/one/store", "a/b/one", "a/b", "a", "c/store", "c"})
    EXPECT_TRUE(files->synced.contains(directory_.path() / folder)) << folder;
  EXPECT_TRUE(files->synced.contains(directory_.path()));
  files->synced.clear();
  o.temporary = true;
  ChunkStore::create(o);
  EXPECT_THAT(files->synced, testing::IsEmpty()) << "nothing of it outlives its process";
}

// On btrfs, only an empty file can be switched to no copy-on-write.
TEST_F(StoreFiles, CopyOnWriteIsSwitchedOffBeforeAnythingIsWritten) {
  const auto files = std::make_shared<ToldFiles>();
  auto o = options(2);
  o.deadline = {};
  o.file_ops = files;
  {
    const auto store = ChunkStore::create(o);
    EXPECT_THAT(files->sizes, testing::ElementsAre(0, 0));
    write(*store, 0, 1);
    store->commit(1, "");
  }
  files->refusal = -EINVAL;
  testing::internal::CaptureStderr();
  expect_committed(*ChunkStore::open(o), {1});
  const auto told = testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, HasSubstr("nvme1/store/data has copy-on-write, which cannot be switched off there: Invalid argument"));
  // A program that gives a log gets the warning, and standard error nothing.
  std::string warned;
  o.io.log = Log([&](Log::Level level, std::string_view text) {
    EXPECT_EQ(Log::Level::warning, level);
    warned += text;
  });
  testing::internal::CaptureStderr();
  expect_committed(*ChunkStore::open(o), {1});
  EXPECT_EQ("", testing::internal::GetCapturedStderr());
  EXPECT_THAT(warned, HasSubstr("nvme1/store/data has copy-on-write, which cannot be switched off there: Invalid argument"));
  o.read_only = true;
  files->sizes.clear();
  expect_committed(*ChunkStore::open(o), {1});
  EXPECT_THAT(files->sizes, testing::IsEmpty());
}

// All paths are checked and locked before any file is touched.
TEST_F(StoreFiles, APathInUseLeavesTheOthersAsTheyAre) {
  auto o = options(2);
  commit_one(o);
  {
    const files::FileHandle held(::open((o.paths[1] / "store" / "lock").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(files::Locked::yes, files::try_lock(held.get(), LOCK_EX));
    EXPECT_THROW(ChunkStore::create(o), Error);
  }
  expect_committed(*ChunkStore::open(o), {1});
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
  ChunkStore::create(options());  // a new store removes the link, not its target
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
    store->trim(64 * kPlaceBytes);  // never removes a part
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

// A large store measures its paths. Two folders on one disk get about the same weight, and the store works with any result.
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
  const auto what = test::error_of([&] { ChunkStore::create(options()); });
  EXPECT_THAT(what, HasSubstr("belongs to another user"));
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path() / "nvme0" / "store"));
}

}  // namespace
}  // namespace terrace
