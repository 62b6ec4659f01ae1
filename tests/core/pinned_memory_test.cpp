#include <terrace/core/device/memory_resource.h>

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {

TEST(PinnedMemory, IsAlignedExactAndResident) {
  ThreadPool pool(2);
  const auto memory = make_pinned_memory(pool);
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{4096}, std::size_t{5000}, std::size_t{2 * kMiB}, std::size_t{5 * kMiB + 1}}) {
    const Slab slab = memory->allocate(bytes);
    ASSERT_EQ(slab.bytes(), round_up(bytes, kPageBytes));
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(slab.data()) % kHugePageBytes, 0U);
    std::vector<unsigned char> pages(slab.bytes() / kPageBytes);
    ASSERT_EQ(mincore(slab.data(), slab.bytes(), pages.data()), 0);
    EXPECT_TRUE(std::ranges::all_of(pages, [](unsigned char p) { return p & 1; })) << bytes;
    EXPECT_TRUE(std::all_of(slab.data(), slab.data() + slab.bytes(), [](std::byte b) { return b == std::byte{0}; }));
    slab.data()[bytes - 1] = std::byte{7};
  }
}

TEST(PinnedMemory, ReturnsItsAddressSpace) {
  ThreadPool pool(1);
  const auto memory = make_pinned_memory(pool);
  std::byte* data = nullptr;
  {
    const Slab slab = memory->allocate(3 * kMiB);
    data = slab.data();
  }
  unsigned char page = 0;
  EXPECT_EQ(mincore(data, kPageBytes, &page), -1);  // no longer mapped
}

TEST(PinnedMemory, NamesTheSizeItCannotGive) {
  ThreadPool pool(1);
  const auto memory = make_pinned_memory(pool);
  EXPECT_THAT(test::thrown_by([&] { (void)memory->allocate(std::size_t{1} << 50); }).what(),
              testing::HasSubstr("1125899906842624"));
  EXPECT_THROW((void)memory->allocate(~std::size_t{0}), Error);
}

TEST(PinnedMemory, RefusesANumaNodeThatIsNotThere) {
  ThreadPool pool(1);
  EXPECT_THROW((void)make_pinned_memory(pool, 100'000), Error);
}

// Exits with code 0 if two slabs were allocated and one warning was written. Runs in its own process, because the limit cannot
// be raised again. Root is exempt from the limit, so it gives that privilege up first.
[[noreturn]] void allocate_without_leave_to_lock() {
  const rlimit none{0, 0};
  if (setrlimit(RLIMIT_MEMLOCK, &none) != 0 || (geteuid() == 0 && setuid(65534) != 0)) _exit(9);
  ThreadPool pool(1);
  const auto memory = make_pinned_memory(pool);
  testing::internal::CaptureStderr();
  const Slab a = memory->allocate(kPageBytes), b = memory->allocate(kPageBytes);
  const auto text = testing::internal::GetCapturedStderr();
  const auto first = text.find("warning:");
  const bool once = first != std::string::npos && text.find("warning:", first + 1) == std::string::npos;
  _exit(once && text.find("ulimit -l") != std::string::npos && a.data() && b.data() ? 0 : 1);
}

// These sanitizers replace mlock by a function that always succeeds, so a refusal cannot occur.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kLockIsReal = false;
#else
constexpr bool kLockIsReal = true;
#endif

TEST(PinnedMemory, GoesOnUnlockedWithOneWarning) {
  if (!kLockIsReal) GTEST_SKIP() << "the sanitizer replaces mlock";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(allocate_without_leave_to_lock(), testing::ExitedWithCode(0), "");
}

}  // namespace terrace
