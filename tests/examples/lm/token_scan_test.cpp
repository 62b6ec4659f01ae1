// The scan of a corpus for tokens outside the vocabulary finds each one, wherever it is, and reads nothing without need.
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/files.h>
#include <terrace/examples/lm/data/token_scan.h>

#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

using Paths = std::vector<std::filesystem::path>;
using std::chrono_literals::operator""ns;
constexpr auto kWhole = std::chrono::hours(1);

std::string bytes_of(const std::vector<std::uint32_t>& tokens, std::size_t width) {
  std::string bytes;
  for (const auto token : tokens)
    for (std::size_t b = 0; b < width; ++b) bytes += static_cast<char>(token >> 8 * b & 0xffU);
  return bytes;
}

// The error of the scan; empty if it finds nothing.
std::string found_in(const Paths& files, TokenFormat format, std::size_t block_bytes = TokenScan::kBlockBytes,
                     std::uint64_t parts = 1) {
  std::string said;
  for (std::uint64_t i = 0; i < parts; ++i) try {
      EXPECT_TRUE(TokenScan(files, format, {.index = i, .of = parts}, block_bytes).advance(kWhole));
    } catch (const Error& error) {
      EXPECT_EQ(ErrorKind::refused, error.kind());
      EXPECT_TRUE(said.empty()) << "found twice";
      said = error.what();
    }
  return said;
}

TEST(TokenScan, FindsATokenAtEveryPlace) {
  const ScratchFolder folder;
  constexpr std::size_t kTokens = 9000;  // two whole runs of the inner loop, and a remainder
  for (const std::size_t width : {2U, 4U}) {
    const TokenFormat format{width, 300};
    const std::vector<std::uint32_t> good(kTokens, 299);
    const auto first = folder.write("first", bytes_of(good, width));
    const auto empty = folder.write("empty", "");
    for (const std::size_t place : {0U, 1U, 4095U, 4096U, 8191U, 8192U, 8999U}) {
      auto tokens = good;
      tokens[place] = 300;
      const Paths files{first, empty, folder.write("second", bytes_of(tokens, width))};
      const auto says = fmt::format("{}, token {}: 300 is not below the vocabulary of 300", files.back().string(), place);
      EXPECT_THAT(found_in(files, format), testing::HasSubstr(says));
      // In blocks whose size is no multiple of a token, on three ranks.
      EXPECT_THAT(found_in(files, format, 1001, 3), testing::HasSubstr(says));
      EXPECT_EQ("", found_in(files, {width, 301}));
    }
  }
  // The largest numbers, whose highest bit is set.
  EXPECT_THAT(found_in({folder.write("large", bytes_of({1, 0xffffffffU}, 4))}, {4, 2147483647}),
              testing::HasSubstr("token 1: 4294967295 is not below the vocabulary of 2147483647"));
  EXPECT_THAT(found_in({folder.write("large", bytes_of({1, 0xffffU}, 2))}, {2, 65535}), testing::HasSubstr("token 1: 65535"));
}

TEST(TokenScan, ChecksumsDoNotDependOnHowManyReadAndChangeWithEachByte) {
  const ScratchFolder folder;
  std::vector<std::uint32_t> tokens(9000);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint32_t>(i % 300);
  const Paths files{folder.write("a", bytes_of(tokens, 2)), folder.write("empty", ""), folder.write("b", bytes_of(tokens, 2))};
  const auto checksums = [&](std::uint64_t parts) {
    std::vector<std::uint64_t> all(files.size());
    for (std::uint64_t i = 0; i < parts; ++i) {
      TokenScan scan(files, {2, 300}, {.index = i, .of = parts}, 1000);
      EXPECT_TRUE(scan.advance(kWhole));
      for (std::size_t f = 0; f < all.size(); ++f) all[f] += scan.checksums().at(f);
    }
    return all;
  };
  const auto first = checksums(1);
  EXPECT_EQ(first, checksums(3));
  EXPECT_EQ(first[0], first[2]);
  EXPECT_EQ(0U, first[1]);
  std::swap(tokens[1], tokens[8001]);  // in two blocks
  folder.write("b", bytes_of(tokens, 2));
  EXPECT_EQ(first[0], checksums(2)[0]);
  EXPECT_NE(first[2], checksums(2)[2]);
  EXPECT_TRUE(TokenScan(files, {2, 65536}).checksums().empty()) << "nothing is read";
}

// The number of a file's pages that are in memory.
std::size_t pages_in_memory(const std::filesystem::path& path) {
  const files::FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto bytes = static_cast<std::size_t>(std::filesystem::file_size(path));
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  EXPECT_NE(MAP_FAILED, mapped);
  std::vector<unsigned char> pages((bytes + 4095) / 4096);
  EXPECT_EQ(0, ::mincore(mapped, bytes, pages.data()));
  ::munmap(mapped, bytes);
  return static_cast<std::size_t>(std::ranges::count_if(pages, [](unsigned char page) { return (page & 1U) != 0; }));
}

// A corpus may be larger than the memory, or than a container's limit.
TEST(TokenScan, LeavesNoPagesInMemory) {
  const ScratchFolder folder;
  constexpr std::size_t kPages = 512;
  const auto file = folder.write("corpus", bytes_of(std::vector<std::uint32_t>(kPages * 1024, 7), 4));
  files::sync_to_disk(file);  // pages that are not on the disk yet cannot be dropped
  ASSERT_EQ(kPages, pages_in_memory(file));
  const files::FileHandle opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  ::posix_fadvise(opened.get(), 0, 0, POSIX_FADV_DONTNEED);
  if (pages_in_memory(file) > 0) GTEST_SKIP() << "this file system keeps its files in memory";
  EXPECT_EQ("", found_in({file}, {4, 300}, 64 << 10));
  EXPECT_LT(pages_in_memory(file), kPages / 8) << "what the kernel reads ahead may be there";
}

TEST(TokenScan, ReadsNothingIfEachNumberIsAToken) {
  const ScratchFolder folder;
  const Paths files{folder.write("all", std::string(1000, '\xff'))};
  for (const auto format : {TokenFormat{1, 256}, TokenFormat{2, 65536}, TokenFormat{2, 128256}}) {
    TokenScan scan(files, format);
    EXPECT_EQ(0U, scan.bytes());
    EXPECT_EQ(1, scan.share_done());
    EXPECT_TRUE(scan.advance(0ns));
  }
}

TEST(TokenScan, GoesOnWhereItPaused) {
  const ScratchFolder folder;
  auto tokens = std::vector<std::uint32_t>(1000, 7);
  const auto file = folder.write("file", bytes_of(tokens, 2));
  TokenScan scan({file}, {2, 300}, {}, 100);
  double before = -1;
  int steps = 1;
  for (; !scan.advance(0ns); ++steps) {
    EXPECT_GT(scan.share_done(), before);
    before = scan.share_done();
  }
  EXPECT_EQ(20, steps);
  EXPECT_EQ(1, scan.share_done());
}

TEST(TokenScan, AFileThatBecameShorterIsAnError) {
  const ScratchFolder folder;
  const auto file = folder.write("file", std::string(1000, '\0'));
  TokenScan scan({file}, {2, 300}, {}, 100);
  std::filesystem::resize_file(file, 150);
  EXPECT_THAT(test::error_of(ErrorKind::failed, [&] { scan.advance(kWhole); }),
              testing::HasSubstr("became shorter while it was in use: it ends at byte 150"));
}

}  // namespace
}  // namespace terrace::lm
