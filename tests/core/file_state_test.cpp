// A read gets all bytes or fails; another file, or other bytes, have another state.
#include <terrace/core/base/file_state.h>

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include <terrace/core/base/files.h>
#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

TEST(FileState, AllBytesAreReadOrNone) {
  const ScratchFolder folder;
  const auto file = files::open_regular(folder.write("f", "0123456789"), O_RDONLY);
  std::string out(4, ' ');
  const auto bytes = std::as_writable_bytes(std::span(out));
  files::read_all(file.get(), 3, bytes);
  EXPECT_EQ("3456", out);
  EXPECT_STREQ("it has become shorter: it ends at byte 10",
               test::thrown_by([&] { files::read_all(file.get(), 7, bytes); }).what());
}

TEST(FileState, TellsWritesAndOtherFilesApart) {
  const ScratchFolder folder;
  const auto state = [&] { return files::state_of(files::open_regular(folder / "f", O_RDONLY).get()); };
  folder.write("f", "01");
  const auto first = state();
  EXPECT_EQ(first, state());
  const timespec later[2]{{1, 0}, {1, 7}};
  ASSERT_EQ(0, ::utimensat(AT_FDCWD, (folder / "f").c_str(), later, 0));
  EXPECT_EQ(1'000'000'007, state().written_ns);
  folder.write("g", "02");
  std::filesystem::rename(folder / "g", folder / "f");
  EXPECT_NE(first.inode, state().inode);
}

}  // namespace
}  // namespace terrace
