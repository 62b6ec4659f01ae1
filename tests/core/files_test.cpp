// What is promised: opening a file never waits and never takes anything else for a file; a temporary file is always new.
#include <terrace/core/files.h>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include <terrace/core/error.h>
#include <terrace/core/text_file.h>
#include <terrace/tests/examples/scratch_folder.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

template <class F>
std::string why_not(const F& what) {
  try {
    what();
  } catch (const Error& error) {
    return error.what();
  }
  return "it was done";
}

TEST(Files, OnlyARegularFileIsOpened) {
  const ScratchFolder folder;
  ASSERT_EQ(0, ::mkfifo((folder / "pipe").c_str(), 0600));
  for (const int flags : {O_RDONLY, O_WRONLY, O_RDWR, O_WRONLY | O_APPEND | O_CREAT})
    EXPECT_EQ("it is not a regular file but a named pipe",
              why_not([&] { open_regular(folder / "pipe", flags, AT_FDCWD, 0600); }));
  for (const int flags : {O_RDONLY, O_WRONLY})
    EXPECT_EQ("it is not a regular file but a directory", why_not([&] { open_regular(folder.path(), flags); }));
  EXPECT_EQ("it is not a regular file but a device", why_not([&] { open_regular("/dev/null", O_RDONLY); }));
  errno = 0;
  EXPECT_FALSE(open_regular(folder / "nothing", O_RDONLY));
  EXPECT_EQ(ENOENT, errno);
  const auto opened = open_regular(folder.write("file", "text"), O_RDWR);
  ASSERT_TRUE(opened);
  EXPECT_EQ(0, ::fcntl(opened.get(), F_GETFL) & O_NONBLOCK) << "io_uring would end its requests with EAGAIN";
}

TEST(Files, ATemporaryFileIsNew) {
  const ScratchFolder folder;
  folder.write("mine", "precious");
  const auto make = [&] {
    NewFile file(folder / "file");
    file.write("new");
    file.finish(Durable::yes);
  };
  fs::create_symlink("mine", folder / "file.tmp");
  EXPECT_NE(std::string::npos, why_not(make).find("file.tmp is not a file that terrace left there"));
  EXPECT_TRUE(fs::is_symlink(folder / "file.tmp"));
  fs::remove(folder / "file.tmp");
  fs::create_hard_link(folder / "mine", folder / "file.tmp");  // a second name: the file stays
  EXPECT_EQ("it was done", why_not(make));
  EXPECT_EQ("new", folder.read("file"));
  EXPECT_EQ("precious", folder.read("mine"));
  fs::remove(folder / "file");
  fs::create_symlink("mine", folder / "file");
  EXPECT_EQ("it was done", why_not(make));
  EXPECT_FALSE(fs::is_symlink(folder / "file"));
  EXPECT_EQ("precious", folder.read("mine"));
  { const NewFile unfinished(folder / "other"); }
  EXPECT_FALSE(fs::exists(folder / "other.tmp"));
}

TEST(Files, AFileOfTerraceReplacesNoPipe) {
  const ScratchFolder folder;
  ASSERT_EQ(0, ::mkfifo((folder / "pipe").c_str(), 0600));
  EXPECT_EQ("it is not a regular file but a named pipe", why_not([&] { replace_text_file(folder / "pipe", "text"); }));
}

}  // namespace
}  // namespace terrace
