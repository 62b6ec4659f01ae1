// Reading ahead and writing behind, compared with reading and writing the file at once.
#include <atomic>
#include <cerrno>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include <terrace/core/base/files.h>
#include <terrace/core/base/units.h>
#include <terrace/offload/io/read_ahead.h>
#include <terrace/offload/io/write_behind.h>

#include <terrace/tests/offload/pages.h>
#include <terrace/tests/offload/temporary_directory.h>

namespace terrace {
namespace {

constexpr std::uint64_t kSeed = 20261126;

struct Part {
  std::uint64_t offset = 0, bytes = 0;
};

// Ranges from `begin` to `end` of different sizes; with `holes`, every third one is left out.
std::vector<Part> parts_of(std::uint64_t begin, std::uint64_t end, bool holes) {
  std::mt19937_64 random(kSeed);
  std::vector<Part> parts;
  for (auto at = begin; at < end;) {
    const std::uint64_t most = random() % 2 == 0 ? 3 * kMiB : 5000;
    const auto bytes = std::min(end - at, 1 + random() % most);
    if (!holes || random() % 3 != 0) parts.push_back({at, bytes});
    at += bytes;
  }
  return parts;
}

class FileStreams : public testing::Test {
 protected:
  FileStreams() { test::fill_random(content_, kSeed); }
  std::filesystem::path written() {
    const auto file = directory_.path() / "file";
    std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char*>(content_.data()), std::ssize(content_));
    return file;
  }
  [[nodiscard]] bool equal(const Part& part, std::span<const std::byte> bytes) const {
    return std::equal(bytes.begin(), bytes.end(), content_.begin() + static_cast<std::ptrdiff_t>(part.offset));
  }
  void expect_content_in(const std::filesystem::path& path) const {
    std::vector<std::byte> bytes(content_.size() + 1);
    std::ifstream in(path, std::ios::binary);
    in.read(reinterpret_cast<char*>(bytes.data()), std::ssize(bytes));
    EXPECT_EQ(std::ssize(content_), in.gcount());
    EXPECT_TRUE(equal({0, content_.size()}, std::span(bytes).first(content_.size())));
  }

  test::TemporaryDirectory directory_;
  std::vector<std::byte> content_ = std::vector<std::byte>(45 * kMiB + 1237);  // several rings and a part of a page
};

TEST_F(FileStreams, WhatWasAnnouncedIsReadAheadByAllThreads) {
  const auto opened = files::open_regular(written(), O_RDONLY);
  const int file = opened.get();
  for (const bool holes : {false, true}) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", holes " << holes);
    const auto parts = parts_of(100, content_.size(), holes);
    io::ReadAhead ahead({&file, 1});
    for (const auto& part : parts) ahead.announce(0, part.offset, part.bytes);
    std::atomic<std::size_t> next{0};
    std::atomic<std::uint64_t> wrong{0}, left{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        std::vector<std::byte> bytes;
        for (std::size_t i = 0; (i = next++) < parts.size();) {
          bytes.resize(parts[i].bytes);
          const auto filled = ahead.read(0, parts[i].offset, bytes);
          if (!equal(parts[i], std::span(bytes).first(filled))) ++wrong;
          left += bytes.size() - filled;
        }
      });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(0U, wrong);
    EXPECT_LE(left, kPageBytes) << "only the file's last page is left to the caller";
  }
}

// A ring full of ranges that are not requested yet must not block the reader of another range.
TEST_F(FileStreams, AnyOtherOrderEndsToo) {
  const auto opened = files::open_regular(written(), O_RDONLY);
  const int file = opened.get();
  auto parts = parts_of(0, content_.size(), false);
  io::ReadAhead ahead({&file, 1});
  for (const auto& part : parts) ahead.announce(0, part.offset, part.bytes);
  std::ranges::reverse(parts);
  std::vector<std::byte> bytes;
  std::uint64_t filled = 0;
  for (const auto& part : parts) {
    bytes.resize(part.bytes);
    const auto here = ahead.read(0, part.offset, bytes);
    EXPECT_TRUE(equal(part, std::span(bytes).first(here)));
    filled += here;
  }
  EXPECT_GT(filled, 0U);
  EXPECT_EQ(0U, ahead.read(0, 0, bytes)) << "what was read is not there any more";
}

TEST_F(FileStreams, WhatCannotBeReadIsLeftToTheCaller) {
  const auto path = written();
  const auto opened = files::open_regular(path, O_RDONLY);
  const int file = opened.get();
  io::ReadAhead ahead({&file, 1});
  std::filesystem::resize_file(path, 10 * kMiB);
  ahead.announce(0, 0, content_.size());
  std::vector<std::byte> bytes(content_.size());
  EXPECT_EQ(10 * kMiB, ahead.read(0, 0, bytes));
  EXPECT_TRUE(equal({0, 10 * kMiB}, std::span(bytes).first(10 * kMiB)));
}

TEST_F(FileStreams, WhatIsWrittenInAnyOrderIsThere) {
  for (const auto& folder : {directory_.path(), std::filesystem::path("/dev/shm")})
    for (const bool shuffled : {false, true}) {
      SCOPED_TRACE(testing::Message() << folder << ", seed " << kSeed << ", shuffled " << shuffled);
      const auto path = folder / (directory_.path().filename().string() + "-written");
      {
        files::NewFile file(path, 0644);
        auto parts = parts_of(0, content_.size(), false);
        std::mt19937_64 random(kSeed);
        if (shuffled) std::ranges::shuffle(parts, random);
        io::WriteBehind behind(file.get());
        for (const auto& part : parts)
          ASSERT_FALSE(behind.write(part.offset, std::span(content_).subspan(part.offset, part.bytes)));
        ASSERT_FALSE(behind.drain());
        file.finish(files::Durable::yes);
      }
      expect_content_in(path);
      std::filesystem::remove(path);
    }
}

// Pieces come in order and cover the range, and each has the same offset within a page in memory and in the file.
TEST_F(FileStreams, WhatIsFilledInPlaceIsThere) {
  const auto path = directory_.path() / "filled";
  files::NewFile file(path, 0644);
  {
    io::WriteBehind behind(file.get());
    std::uint64_t at = 0;
    const auto fill = [&](std::span<std::byte> piece) {
      ASSERT_EQ(at % kPageBytes, reinterpret_cast<std::uintptr_t>(piece.data()) % kPageBytes);
      std::ranges::copy(std::span(content_).subspan(at, piece.size()), piece.begin());
      at += piece.size();
    };
    bool in_place = true;  // alternates with copies
    for (const auto& part : parts_of(0, content_.size(), false)) {
      at = part.offset;
      if (in_place) {
        ASSERT_FALSE(behind.write(part.offset, part.bytes, fill));
        ASSERT_EQ(part.offset + part.bytes, at);
      } else {
        ASSERT_FALSE(behind.write(part.offset, std::span(content_).subspan(part.offset, part.bytes)));
      }
      in_place = !in_place;
    }
    ASSERT_FALSE(behind.drain());
    file.finish(files::Durable::yes);
  }
  expect_content_in(path);
}

TEST_F(FileStreams, AFullDiskIsReportedWithItsPlace) {
  const files::FileHandle full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  io::WriteBehind behind(full.get());
  auto failure = behind.write(kPageBytes, std::span(content_).first(2 * kMiB));
  if (!failure) failure = behind.drain();
  ASSERT_TRUE(failure);
  EXPECT_EQ(ENOSPC, failure->error_number);
  EXPECT_GE(failure->offset, kPageBytes);
  EXPECT_LE(failure->offset + failure->bytes, kPageBytes + 2 * kMiB);
  EXPECT_TRUE(behind.drain()) << "the file stays lost";
}

}  // namespace
}  // namespace terrace
