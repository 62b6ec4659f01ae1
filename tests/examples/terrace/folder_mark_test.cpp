// A kill leaves an empty folder or a marked one, and a power loss does not bring a mark back.
#include <terrace/examples/terrace/base/folder_mark.h>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <terrace/tests/examples/scratch_folder.h>

namespace {

// The calls of the code under test to the file system, recorded while a test listens.
std::vector<std::string>* asked = nullptr;

}  // namespace

// Replaces the C library's function.
extern "C" int fsync(int file) {
  if (asked) {
    std::error_code error;
    const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file), error);
    asked->push_back("sync " + path.filename().string());
  }
  return static_cast<int>(::syscall(SYS_fsync, file));
}

extern "C" int unlink(const char* path) noexcept {
  if (asked) asked->push_back("remove " + std::filesystem::path(path).filename().string());
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

template <class F>
std::vector<std::string> calls_of(const F& what) {
  std::vector<std::string> all;
  asked = &all;
  what();
  asked = nullptr;
  return all;
}

TEST(FolderMark, IsOnTheDiskBeforeTheFilesAndItsEndBeforeTheCommandEnds) {
  const ScratchFolder scratch;
  const auto folder = scratch / "folder";
  fs::create_directory(folder);
  const std::vector<std::string> made{"sync unfinished", "sync folder"};
  EXPECT_EQ(made, calls_of([&] { mark_folder(folder, "unfinished", "text"); }));
  EXPECT_TRUE(is_marked(folder, "unfinished"));
  EXPECT_EQ("text", scratch.read("folder/unfinished"));
  EXPECT_EQ(made, calls_of([&] { mark_folder(folder, "unfinished", "other text"); })) << "a killed command may not have synced";
  EXPECT_EQ("text", scratch.read("folder/unfinished"));
  EXPECT_EQ((std::vector<std::string>{"remove unfinished", "sync folder"}),
            calls_of([&] { unmark_folder(folder, "unfinished"); }));
  EXPECT_FALSE(is_marked(folder, "unfinished"));
}

TEST(FolderMark, IsALinkOfNobody) {
  const ScratchFolder scratch;
  scratch.write("mine", "precious");
  fs::create_symlink("mine", scratch / "unfinished");
  EXPECT_FALSE(is_marked(scratch.path(), "unfinished"));
  EXPECT_ANY_THROW(mark_folder(scratch.path(), "unfinished", "text"));
  EXPECT_EQ("precious", scratch.read("mine"));
}

}  // namespace
}  // namespace terrace::cli
