// Leases from many threads, compared with a shadow of the chunks, with budgets far too small for all chunks at once.
#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/cuda/stream.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/offload/io/file_system.h>
#include <terrace/offload/manager/chunk_manager.h>
#include <terrace/tests/support/test_device.h>

#include <terrace/tests/offload/temporary_directory.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

constexpr std::uint64_t kChunkBytes = 3 * kPageBytes;

OffloadOptions options_for(const test::TemporaryDirectory& directory, std::uint64_t device_chunks, std::uint64_t host_chunks,
                           std::uint64_t disk_chunks) {
  OffloadOptions options;
  options.device_bytes = device_chunks * kChunkBytes;
  options.host_bytes = host_chunks * kChunkBytes;
  if (disk_chunks > 0) options.nvme_paths = {directory.path()};
  options.nvme_bytes = disk_chunks * kChunkBytes;
  options.threads = 1;
  return options;
}

void write_words(std::span<std::byte> bytes, std::uint64_t value) {
  for (std::size_t at = 0; at < bytes.size(); at += 8) std::memcpy(bytes.data() + at, &value, 8);
}
bool holds_words(std::span<const std::byte> bytes, std::uint64_t value) {
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    if (std::memcmp(bytes.data() + at, &value, 8) != 0) return false;
  }
  return true;
}

class ChunkManagerOn : public testing::TestWithParam<std::string> {
 protected:
  ThreadPool pool_{1};  // the test's threads access leases of both devices directly
  const std::unique_ptr<Device> device_ = GetParam() == "own" ? nullptr : test::make_test_device(GetParam(), pool_, 1, false);
};
INSTANTIATE_TEST_SUITE_P(Devices, ChunkManagerOn, testing::Values("own", "cpu", "fake_cuda"),
                         [](const auto& device) { return device.param; });

TEST(ChunkManagerLog, TheWarningsOfItsStoreGoToTheLogOfItsOptions) {
  const auto folder = std::filesystem::path("/dev/shm") / fmt::format("terrace-log-{}", ::getpid());
  std::filesystem::create_directory(folder);
  if (io::file_system_of(folder).name != "tmpfs") GTEST_SKIP() << "/dev/shm is not in memory";
  std::string warned;
  testing::internal::CaptureStderr();
  {
    ChunkManager manager({.device_bytes = kChunkBytes,
                          .host_bytes = 2 * kChunkBytes,
                          .nvme_paths = {folder},
                          .nvme_bytes = 4 * kChunkBytes,
                          .threads = 1,
                          .io = {.engine = "threads", .log = Log([&](Log::Level, std::string_view text) { warned += text; })}});
    manager.acquire(manager.add(kChunkBytes), Tier::device, Access::overwrite);
  }
  std::filesystem::remove_all(folder);
  EXPECT_EQ("", testing::internal::GetCapturedStderr());
  EXPECT_THAT(warned, testing::HasSubstr("is not on a disk but in memory"));
}

// A kernel still reads a lease's bytes when the lease ends, and the next chunk is moved into its frame: the fake must complain.
TEST(ChunkManagerOnFakeGpu, AFrameThatIsUsedAgainWhileAKernelReadsItIsFound) {
  for (const bool waits : {true, false}) {
    test::FakeCuda::Options options;
    options.lazy_seed = 3;
    const auto fake = std::make_shared<test::FakeCuda>(options);
    {
      ThreadPool pool(1);
      const auto device = test::make_asynchronous_fake_device(fake, pool);
      ChunkManager manager({.device_bytes = kChunkBytes, .host_bytes = 3 * kChunkBytes, .device = device.get()});
      const ChunkId chunks[] = {manager.add(kChunkBytes), manager.add(kChunkBytes)};
      for (const auto chunk : chunks) write_words(manager.acquire(chunk, Tier::host, Access::overwrite).bytes(), index(chunk));
      const auto stream = device->make_stream("compute");
      auto lease = manager.acquire(chunks[0], Tier::device, Access::read);
      cuda::cuda_stream(*stream).launch([&fake, bytes = lease.bytes()](cuda::CudaStreamHandle handle) {
        test::FakeCuda::Touched touched{.name = "a kernel"};
        touched.add(bytes.data(), bytes.size(), false);
        EXPECT_EQ(fake->launch_touching(handle, touched, [] {}), 0);
      });
      if (waits) stream->synchronize();
      while (fake->count(test::FakeCuda::Call::launch) == 0) std::this_thread::yield();
      lease.release();
      (void)manager.acquire(chunks[1], Tier::device, Access::read);
    }
    if (waits) {
      EXPECT_THAT(fake->complaints(), testing::IsEmpty());
    } else {
      ASSERT_EQ(fake->complaints().size(), 1U);
      EXPECT_THAT(fake->complaints()[0],
                  testing::MatchesRegex("a race: cudaMemcpyAsync of .* writes what a kernel reads on .*"));
    }
  }
}

TEST_P(ChunkManagerOn, RandomLeasesFromManyThreadsSeeTheShadow) {
  constexpr std::uint32_t kChunks = 12;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const test::TemporaryDirectory directory;
    auto options = options_for(directory, 4, 4, kChunks + 2);
    options.device = device_.get();
    ChunkManager manager(options);
    // The shadow of a chunk is accessed only under a lease of that chunk, so leases act as its lock.
    std::vector<std::uint64_t> shadow(kChunks);
    std::vector<ChunkId> chunks;
    for (std::uint32_t i = 0; i < kChunks; ++i) {
      chunks.push_back(manager.add(kChunkBytes));
      const auto lease = manager.acquire(chunks[i], Tier::device, Access::overwrite);
      write_words(lease.bytes(), shadow[i] = i + 1);
    }
    std::atomic<int> wrong{0};
    std::atomic<std::uint64_t> next_value{1000};
    const auto work = [&](std::uint64_t thread) {
      std::mt19937_64 random(seed * 16 + thread);
      for (int operation = 0; operation < 150; ++operation) {
        const auto i = random() % kChunks, j = random() % kChunks;
        const Tier tier = random() % 2 == 0 ? Tier::device : Tier::host;
        switch (random() % 5) {
          case 0: manager.prefetch(chunks[i], tier); break;
          case 1: {
            const auto lease = manager.acquire(chunks[i], tier, Access::overwrite);
            write_words(lease.bytes(), shadow[i] = next_value++);
            break;
          }
          case 2: {
            const auto lease = manager.acquire(chunks[i], tier, Access::update);
            if (!holds_words(lease.bytes(), shadow[i])) ++wrong;
            write_words(lease.bytes(), ++shadow[i]);
            break;
          }
          case 3: {
            const std::vector<Use> uses{{chunks[i], Access::read}, {chunks[j], Access::read}};
            const auto lease = manager.acquire(uses, tier);
            if (!holds_words(lease.bytes(0), shadow[i]) || !holds_words(lease.bytes(1), shadow[j])) ++wrong;
            break;
          }
          default:
            if (operation % 50 == 0) manager.flush();
        }
      }
    };
    std::vector<std::thread> threads;
    for (std::uint64_t thread = 0; thread < 4; ++thread) threads.emplace_back(work, thread);
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(0, wrong.load());
    for (std::uint32_t i = 0; i < kChunks; ++i) {
      const auto lease = manager.acquire(chunks[i], Tier::host, Access::read);
      EXPECT_TRUE(holds_words(lease.bytes(), shadow[i])) << "chunk " << i;
    }
    const auto peak = manager.peak_bytes();
    EXPECT_LE(peak[Tier::device], 4 * kChunkBytes);
    EXPECT_LE(peak[Tier::host], 4 * kChunkBytes);
    EXPECT_LE(peak[Tier::disk], (kChunks + 2) * kChunkBytes);
    EXPECT_GT(manager.traffic().reads, 0U);
    EXPECT_GT(manager.traffic().writes, 0U);
  }
}

TEST(ChunkManager, ARequestLargerThanItsTierIsRefusedAtOnce) {
  const test::TemporaryDirectory directory;
  ChunkManager manager(options_for(directory, 2, 4, 0));
  std::vector<Use> uses;
  for (int i = 0; i < 3; ++i) uses.push_back({manager.add(kChunkBytes), Access::overwrite});
  const auto other = manager.acquire(uses[0].chunk, Tier::device, Access::overwrite);  // the request does not wait for it
  try {
    manager.acquire(uses, Tier::device);
    FAIL() << "three chunks fitted into two";
  } catch (const memory::DoesNotFit& refusal) {
    EXPECT_EQ(Tier::device, refusal.tier);
    EXPECT_EQ(kChunkBytes, refusal.missing_bytes);
    EXPECT_EQ(ErrorKind::does_not_fit, refusal.kind());
  }
}

TEST(ChunkManager, MoreContentThanAllTiersHoldIsRefusedWhenNothingCanBeReleased) {
  const test::TemporaryDirectory directory;
  ChunkManager manager(options_for(directory, 1, 2, 0));
  std::vector<ChunkId> chunks;
  for (int i = 0; i < 5; ++i) chunks.push_back(manager.add(kChunkBytes));
  std::size_t filled = 0;
  try {
    for (; filled < chunks.size(); ++filled) {
      write_words(manager.acquire(chunks[filled], Tier::device, Access::overwrite).bytes(), filled);
    }
  } catch (const memory::DoesNotFit&) {
  }
  ASSERT_EQ(3U, filled);    // one on the device, two in the host
  manager.drop(chunks[2]);  // space for swapping
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(holds_words(manager.acquire(chunks[i], Tier::host, Access::read).bytes(), i)) << "chunk " << i;
  }
}

TEST(ChunkManager, AcquireWaitsForTheRoomOfAnotherLease) {
  const test::TemporaryDirectory directory;
  ChunkManager manager(options_for(directory, 1, 2, 4));
  const ChunkId a = manager.add(kChunkBytes), b = manager.add(kChunkBytes);
  auto lease = manager.acquire(a, Tier::device, Access::overwrite);
  write_words(lease.bytes(), 1);
  std::atomic<bool> released{false}, early{false};
  std::thread other([&] {
    const auto second = manager.acquire(b, Tier::device, Access::overwrite);
    early = !released;
    write_words(second.bytes(), 2);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  released = true;
  lease.release();
  other.join();
  EXPECT_FALSE(early);
  EXPECT_TRUE(holds_words(manager.acquire(a, Tier::device, Access::read).bytes(), 1));
  EXPECT_TRUE(holds_words(manager.acquire(b, Tier::device, Access::read).bytes(), 2));
}

TEST(ChunkManager, FlushPutsEverythingOnDiskAndChangesNothing) {
  const test::TemporaryDirectory directory;
  {
    ChunkManager manager(options_for(directory, 2, 2, 4));
    std::vector<ChunkId> chunks;
    for (std::uint64_t i = 0; i < 4; ++i) {
      chunks.push_back(manager.add(kChunkBytes - 100));  // rounded up to pages
      write_words(manager.acquire(chunks.back(), Tier::device, Access::overwrite).bytes(), i);
    }
    manager.flush();
    const auto writes = manager.traffic().writes;
    EXPECT_EQ(4U, writes);
    manager.flush();
    EXPECT_EQ(writes, manager.traffic().writes);
    for (std::uint64_t i = 0; i < 4; ++i)
      EXPECT_TRUE(holds_words(manager.acquire(chunks[i], Tier::device, Access::read).bytes(), i));
    EXPECT_EQ(writes, manager.traffic().writes);  // a clean chunk is not written again
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(ChunkManager, ALeaseMoves) {
  const test::TemporaryDirectory directory;
  ChunkManager manager(options_for(directory, 1, 1, 0));
  const ChunkId chunk = manager.add(kChunkBytes);
  Lease first = manager.acquire(chunk, Tier::device, Access::overwrite);
  write_words(first.bytes(), 3);
  EXPECT_THROW(manager.drop(chunk), std::logic_error);
  Lease second = std::move(first);
  first.release();  // it holds nothing any more
  EXPECT_THROW(manager.drop(chunk), std::logic_error);
  second = Lease();
  EXPECT_TRUE(holds_words(manager.acquire(chunk, Tier::device, Access::read).bytes(), 3));
  manager.drop(chunk);
}

TEST(ChunkManager, FlushNeedsADisk) {
  const test::TemporaryDirectory directory;
  ChunkManager manager(options_for(directory, 1, 1, 0));
  EXPECT_THROW(manager.flush(), Error);
}

TEST(ChunkManager, WhatThereIsNotIsNamed) {
  ChunkManager manager({.device_bytes = 64 * kKiB, .host_bytes = 64 * kKiB});
  const ChunkId stranger{12345}, chunk = manager.add(kPageBytes);
  const auto none = "ChunkManager: there is no chunk 12345";
  EXPECT_EQ(none, test::error_of([&] { (void)manager.acquire(stranger, Tier::device, Access::read); }));
  EXPECT_EQ(none, test::error_of([&] { manager.prefetch(stranger, Tier::device); }));
  EXPECT_EQ(none, test::error_of([&] { manager.drop(stranger); }));
  EXPECT_NE("", test::error_of([&] { (void)manager.add(0); }));
  EXPECT_NE("", test::error_of([&] { (void)manager.add(~std::uint64_t{0}); }));
  Lease lease = manager.acquire(chunk, Tier::host, Access::overwrite);
  EXPECT_NE("", test::error_of([&] { (void)lease.bytes(1); }));
  const Lease moved = std::move(lease);
  EXPECT_NE("", test::error_of([&] { (void)lease.bytes(); }));  // NOLINT(bugprone-use-after-move): tested on purpose
  EXPECT_EQ(kPageBytes, moved.bytes().size());
}

TEST(ChunkManager, ADiskBudgetWithoutADiskIsRefused) {
  EXPECT_EQ(ErrorKind::refused,
            test::thrown_by([&] {
              const ChunkManager manager({.device_bytes = 64 * kKiB, .host_bytes = 64 * kKiB, .nvme_bytes = kMiB});
            }).kind());
}

}  // namespace
}  // namespace terrace
