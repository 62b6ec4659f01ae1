// Reading gives the whole file or a reason; writing replaces the whole file or leaves the old one; and invalid UTF-8 is
// recognised.
#include <terrace/core/base/text_file.h>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include <terrace/core/base/error.h>
#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

std::string not_read(const char* file) {
  return test::error_of([&] { read_text_file(file); });
}

// Limits the size of files that this process writes, to imitate a full disk.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  SizeLimit(const SizeLimit&) = delete;
  SizeLimit& operator=(const SizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = std::signal(SIGXFSZ, SIG_IGN);
};

TEST(TextFile, AProgramReadsErrnoAndPath) {
  const auto absent = test::thrown_by([&] { read_text_file("/nowhere/at/all"); });
  EXPECT_EQ(std::errc::no_such_file_or_directory, absent.code());
  EXPECT_EQ("/nowhere/at/all", absent.path());
  const auto endless = test::thrown_by([&] { read_text_file("/dev/zero"); });
  EXPECT_EQ(ErrorKind::corrupt, endless.kind());
  EXPECT_EQ("/dev/zero", endless.path());
  const ScratchFolder folder;
  const auto file = folder.write("file", "old");
  const SizeLimit full(4096);
  const auto error = test::thrown_by([&] { replace_text_file(file, std::string(5000, 'x')); });
  EXPECT_EQ(std::errc::file_too_large, error.code());
  EXPECT_EQ(file.string(), error.path());
}

TEST(TextFile, AFileIsReadWholeOrTheReasonIsSaid) {
  EXPECT_NE(std::string::npos, read_text_file("/proc/self/status").find("Name:"));  // stat reports size 0
  EXPECT_EQ("No such file or directory (errno 2)", not_read("/nowhere/at/all"));
  EXPECT_EQ("it is not a regular file but a directory", not_read("/"));
  EXPECT_EQ("it is not a regular file but a device", not_read("/dev/zero"));
  EXPECT_EQ("it is larger than 4.00 KiB",
            test::error_of([&] { read_text_file(ScratchFolder().write("file", std::string(5000, 'x')), 4096); }));
  EXPECT_EQ("Input/output error (errno 5)", not_read("/proc/self/mem"));  // nothing is mapped at its beginning
}

TEST(TextFile, AFileIsWrittenWholeOrTheOneBeforeStays) {
  const ScratchFolder folder;
  const auto file = folder / "file", beside = folder / "file.tmp";
  for (const auto durable : {files::Durable::no, files::Durable::yes}) {
    replace_text_file(file, "first", durable);
    replace_text_file(file, "second", durable);
    EXPECT_EQ("second", folder.read("file"));
    {
      const SizeLimit limit(4096);
      EXPECT_EQ("File too large (errno 27)",
                test::error_of([&] { replace_text_file(file, std::string(10'000, 'x'), durable); }));
      EXPECT_EQ("File too large (errno 27)",
                test::error_of([&] { replace_text_file(folder / "new", std::string(10'000, 'x'), durable); }));
    }
    EXPECT_EQ("second", folder.read("file"));
    EXPECT_FALSE(fs::exists(beside));
    EXPECT_FALSE(fs::exists(folder / "new"));
    EXPECT_FALSE(fs::exists(folder / "new.tmp"));
  }
  EXPECT_EQ("No such file or directory (errno 2)", test::error_of([&] { write_text_file(folder / "nowhere" / "file", ""); }));
  EXPECT_EQ("Is a directory (errno 21)", test::error_of([&] { write_text_file(folder.path(), ""); }));
}

TEST(TextFile, WhatIsNoFileIsWrittenInPlace) {
  const ScratchFolder folder;
  write_text_file(folder / "file", "first");
  fs::create_symlink("file", folder / "link");
  write_text_file(folder / "link", "through the link");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ("through the link", folder.read("file"));
  write_text_file("/dev/null", "nothing");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(TextFile, LinesComeOneByOneWithTheLastOneMarked) {
  const ScratchFolder folder;
  folder.write("file", "one\n\n" + std::string(100'000, 'x') + "\nend");
  std::vector<std::string> seen;
  read_lines(folder / "file", [&](const std::string& line, bool complete) {
    seen.push_back(line.substr(0, 3) + (complete ? "" : " cut"));
    return true;
  });
  EXPECT_EQ((std::vector<std::string>{"one", "", "xxx", "end cut"}), seen);
  int lines = 0;
  read_lines(folder / "file", [&](const std::string&, bool) { return ++lines < 2; });
  EXPECT_EQ(2, lines);
}

TEST(TextFile, Utf8IsWhatTheStandardSays) {
  for (const auto* const good : {"", "plain", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEF\xBF\xBF",
                                 "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "gr\xC3\xBC\xC3\x9F"})
    EXPECT_TRUE(is_utf8(good)) << testing::PrintToString(good);
  for (const auto* const bad : {"l\xE4ufe", "\x80", "\xC1\x81", "\xC3", "\xE0\x9F\xBF", "\xE2\x82", "\xED\xA0\x80",
                                "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC3\x28", "\xE2\x28\xA1"})
    EXPECT_FALSE(is_utf8(bad)) << testing::PrintToString(bad);
}

}  // namespace
}  // namespace terrace
