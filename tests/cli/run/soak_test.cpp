// A long run uses no more resources at its end than after its tenth step: no more files, pinned bytes or disk space, and no
// more memory except an allocator's reserves.
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>

#include <terrace/tests/support/environment.h>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

// The allocator gets different requests in every step: commits make texts as large as the index, metrics and traces make
// strings. Its arenas settle within a few MiB, and a thousand steps must not add to that; a leak of 4 KiB per step would be 4
// MiB.
constexpr std::uint64_t kAllocatorKiB = 4096;
constexpr std::uint64_t kSettled = 10;

struct Held {
  std::size_t files = 0;
  std::uint64_t resident_kib = 0, locked_kib = 0, pinned_kib = 0, disk_bytes = 0, disk_files = 0;
};

class Soak : public Cli {
 protected:
  [[nodiscard]] Held held_by(const Child& child) const {
    Held held;
    for (const auto& entry : fs::directory_iterator(child.proc() / "fd")) {
      static_cast<void>(entry);
      ++held.files;
    }
    std::ifstream status(child.proc() / "status");
    for (std::string line; std::getline(status, line);) {
      const auto number = [&] { return std::strtoull(line.c_str() + line.find(':') + 1, nullptr, 10); };
      if (line.starts_with("VmRSS:")) held.resident_kib = number();
      if (line.starts_with("VmLck:")) held.locked_kib = number();
      if (line.starts_with("VmPin:")) held.pinned_kib = number();
    }
    for (const auto& entry : fs::recursive_directory_iterator(at("disk"))) {
      if (!entry.is_regular_file() || entry.path().filename() != "data") continue;
      held.disk_bytes += entry.file_size();
      ++held.disk_files;
    }
    return held;
  }
};

TEST_F(Soak, TheEndTakesNoMoreThanTheTenthStep) {
  const auto steps = number_from_environment("TERRACE_SOAK_STEPS", 100);
  Child child(launch(tiny("train", {"--json", "--steps", std::to_string(steps), "--ckpt-interval", "2", "--eval-interval", "7",
                                    "--nvme-path", "disk", "--device-memory", "1MiB", "--host-memory", "1MiB"})));
  // It writes one line per step, and waits when a page of lines is unread.
  child.read_lines(kSettled);
  const auto early = held_by(child);
  constexpr std::uint64_t kAhead = 20;  // more than the number of lines in a page
  child.read_lines(steps - kAhead);
  const auto late = held_by(child);
  succeeded(child.wait());

  fmt::print("after {} and about {} steps: files {} and {}, resident {} and {} KiB, locked {} and {}, pinned {} and {}\n",
             kSettled, steps, early.files, late.files, early.resident_kib, late.resident_kib, early.locked_kib, late.locked_kib,
             early.pinned_kib, late.pinned_kib);
  ASSERT_GT(early.files, 3U);
  ASSERT_GT(early.resident_kib, 0U);
  // While a commit is being made, a small file and its duplicate for the deadline's thread are open.
  EXPECT_LE(late.files, early.files + 2);
  EXPECT_GE(late.files + 2, early.files);
  EXPECT_EQ(early.locked_kib, late.locked_kib);
  EXPECT_EQ(early.pinned_kib, late.pinned_kib);
  EXPECT_LE(late.resident_kib, early.resident_kib + kAllocatorKiB);
  EXPECT_EQ(1U, late.disk_files);
  EXPECT_EQ(early.disk_bytes, late.disk_bytes);
  // Two commits, whatever came before: data, lock, and two copies of each record and index.
  std::size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(at("disk"))) files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(10U, files);
}

}  // namespace
}  // namespace terrace::test
