// Opening a file never blocks and only accepts regular files; a temporary file is always new.
#include <terrace/core/base/files.h>
#include <terrace/core/base/folders.h>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include <terrace/core/base/text_file.h>
#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

TEST(Files, OnlyARegularFileIsOpened) {
  const ScratchFolder folder;
  ASSERT_EQ(0, ::mkfifo((folder / "pipe").c_str(), 0600));
  for (const int flags : {O_RDONLY, O_WRONLY, O_RDWR, O_WRONLY | O_APPEND | O_CREAT})
    EXPECT_EQ("it is not a regular file but a named pipe",
              test::error_of([&] { files::open_regular(folder / "pipe", flags, AT_FDCWD, 0600); }));
  for (const int flags : {O_RDONLY, O_WRONLY})
    EXPECT_EQ("it is not a regular file but a directory", test::error_of([&] { files::open_regular(folder.path(), flags); }));
  EXPECT_EQ("it is not a regular file but a device", test::error_of([&] { files::open_regular("/dev/null", O_RDONLY); }));
  errno = 0;
  EXPECT_FALSE(files::open_regular(folder / "nothing", O_RDONLY));
  EXPECT_EQ(ENOENT, errno);
  const auto opened = files::open_regular(folder.write("file", "text"), O_RDWR);
  ASSERT_TRUE(opened);
  EXPECT_EQ(0, ::fcntl(opened.get(), F_GETFL) & O_NONBLOCK) << "io_uring would end its requests with EAGAIN";
}

TEST(Files, ATemporaryFileIsNew) {
  const ScratchFolder folder;
  folder.write("mine", "precious");
  const auto make = [&] {
    files::NewFile file(folder / "file");
    file.write("new");
    file.finish(files::Durable::yes);
  };
  fs::create_symlink("mine", folder / "file.tmp");
  EXPECT_NE(std::string::npos, test::error_of(make).find("file.tmp is not a file that terrace left there"));
  EXPECT_TRUE(fs::is_symlink(folder / "file.tmp"));
  fs::remove(folder / "file.tmp");
  fs::create_hard_link(folder / "mine", folder / "file.tmp");  // a second name: the file stays
  EXPECT_EQ("", test::error_of(make));
  EXPECT_EQ("new", folder.read("file"));
  EXPECT_EQ("precious", folder.read("mine"));
  fs::remove(folder / "file");
  fs::create_symlink("mine", folder / "file");
  EXPECT_EQ("", test::error_of(make));
  EXPECT_FALSE(fs::is_symlink(folder / "file"));
  EXPECT_EQ("precious", folder.read("mine"));
  { const files::NewFile unfinished(folder / "other"); }
  EXPECT_FALSE(fs::exists(folder / "other.tmp"));
}

TEST(Files, AFileOfTerraceReplacesNoPipe) {
  const ScratchFolder folder;
  ASSERT_EQ(0, ::mkfifo((folder / "pipe").c_str(), 0600));
  EXPECT_EQ("it is not a regular file but a named pipe", test::error_of([&] { replace_text_file(folder / "pipe", "text"); }));
}

TEST(Files, FoldersAreMadeListedAndRemoved) {
  const ScratchFolder folder;
  files::make_folders(folder / "a/b/c/");
  files::make_folders(folder / "a/b");  // already exists
  folder.write("a/b/file", "text");
  fs::create_symlink("nothing", folder / "a/b/link");
  std::vector<std::string> names;
  for (const auto& entry : files::entries_of(folder / "a/b")) names.push_back(entry.path().filename());
  EXPECT_EQ(names, (std::vector<std::string>{"c", "file", "link"}));
  EXPECT_EQ((folder / "a/b").string() + " cannot be removed: Directory not empty (errno 39)",
            test::error_of([&] { files::remove_path(folder / "a/b"); }));
  for (const auto* const name : {"a/b/c", "a/b/file", "a/b/link", "a/b", "a/b"}) files::remove_path(folder / name);
  EXPECT_FALSE(fs::exists(folder / "a/b"));
  EXPECT_EQ((folder / "a/b").string() + " cannot be read: No such file or directory (errno 2)",
            test::error_of([&] { files::entries_of(folder / "a/b"); }));
  folder.write("file", "");
  EXPECT_EQ("Not a directory (errno 20)", test::error_of([&] { files::make_folders(folder / "file/b"); }));
}

}  // namespace
}  // namespace terrace
