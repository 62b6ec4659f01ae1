// The contract of every I/O engine.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include <terrace/offload/io/direct_io.h>
#include <terrace/offload/io/io_engine.h>
#include <terrace/offload/io/io_progress.h>
#include <terrace/offload/store/extent_files.h>
#include <terrace/tests/doubles/simulated_disk.h>

#include <terrace/tests/offload/pages.h>
#include <terrace/tests/offload/temporary_directory.h>

namespace terrace {
namespace {

using namespace std::chrono_literals;
using test::fill_random;
using test::Pages;

constexpr std::uint64_t kFileBytes = 4 * kMiB;
constexpr int kFiles = 2;
constexpr std::uint32_t kDepth = 4;

class IoEngineContract : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (int f = 0; f < kFiles; ++f) {
      const auto path = directory_.path() / std::to_string(f);
      const int direct = GetParam() == std::string("uncached") ? 0 : O_DIRECT;
      files_.emplace_back(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | direct, 0600));
      ASSERT_TRUE(files_.back()) << path;
      ASSERT_EQ(0, ::ftruncate(files_.back().get(), static_cast<off_t>(kFileBytes)));
    }
    engine_ = make({files_[0].get(), files_[1].get()});
  }

  // `bad_requests`: indexes of the requests that fail with EBADF because of `descriptors`; the simulated engine has no
  // descriptors, so it gets these indexes.
  std::unique_ptr<IoEngine> make(std::vector<int> descriptors, const std::vector<std::uint64_t>& bad_requests = {}) {
    IoOptions options;
    options.queue_depth = kDepth;
    options.files = std::move(descriptors);
    options.buffers = {memory_.span().first(kMiB)};  // the rest is used without registration
    const std::string kind = GetParam();
    if (kind == "simulated") {
      std::vector<SimulatedFault> faults;
      for (const auto request : bad_requests) faults.push_back({request, SimulatedFault::What::error, EBADF});
      return make_simulated_engine(make_simulated_disk(kFiles, kFileBytes), 7, std::move(faults));
    }
    if (kind == "threads") return make_thread_engine(options, 3);
    if (kind == "uncached") return make_uncached_engine(make_thread_engine(options, 3), options.files);
    options.kernel_submits = kind == "uring-sqpoll";
    options.device_polls = kind == "uring-iopoll";
    std::string why;
    auto engine = make_uring_engine(options, why);
    if (!engine) skip_ = why;
    return engine;
  }

  // Polls until all requests have ended.
  void finish(IoEngine& engine) {
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    while (engine.in_flight() > 0) {
      engine.poll(100ms);
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << engine.in_flight() << " requests never ended";
    }
  }
  int run(IoEngine& engine, IoRequest request) {
    int result = -1, calls = 0;
    request.done = [&](IoRequest&, int error_number) {
      result = error_number;
      ++calls;
    };
    IoRequest* const one = &request;
    engine.submit({&one, 1});
    finish(engine);
    EXPECT_EQ(1, calls);
    return result;
  }

  test::TemporaryDirectory directory_;
  std::vector<files::FileHandle> files_;
  Pages memory_{4 * kMiB};
  std::unique_ptr<IoEngine> engine_;
  std::string skip_;
};

#define SKIP_WITHOUT_ENGINE() \
  if (!engine_) GTEST_SKIP() << "no " << GetParam() << " engine here: " << skip_

TEST_P(IoEngineContract, RandomRequestsEqualAnOracleInMemory) {
  SKIP_WITHOUT_ENGINE();
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<std::vector<std::byte>> oracle(kFiles, std::vector<std::byte>(kFileBytes));
    // Every round covers both files with disjoint requests, because their order is not guaranteed; there are far more than the
    // depth.
    for (int round = 0; round < 4; ++round) {
      const bool writing = round % 2 == 0;
      Pages buffer(kFiles * kFileBytes);
      if (writing) fill_random(buffer.span(), seed * 100 + static_cast<std::uint64_t>(round));
      std::deque<IoRequest> requests;
      int ended = 0, failed = 0;
      for (int f = 0; f < kFiles; ++f) {
        for (std::uint64_t at = 0; at < kFileBytes;) {
          const auto bytes = std::min((1 + random() % 24) * kPageBytes, kFileBytes - at);
          IoRequest& request = requests.emplace_back();
          request.op = writing ? IoRequest::Op::write : IoRequest::Op::read;
          request.file = f;
          request.offset = at;
          request.buffer = buffer.data() + static_cast<std::uint64_t>(f) * kFileBytes + at;
          request.bytes = bytes;
          request.done = [&](IoRequest&, int error_number) {
            ++ended;
            if (error_number != 0) ++failed;
          };
          at += bytes;
        }
      }
      std::vector<IoRequest*> all;
      for (auto& request : requests) all.push_back(&request);
      std::shuffle(all.begin(), all.end(), random);
      engine_->submit(all);
      EXPECT_EQ(all.size(), engine_->in_flight());
      finish(*engine_);
      ASSERT_EQ(static_cast<int>(all.size()), ended);
      ASSERT_EQ(0, failed);
      for (int f = 0; f < kFiles; ++f) {
        auto& image = oracle[static_cast<std::size_t>(f)];
        const auto* const part = buffer.data() + static_cast<std::uint64_t>(f) * kFileBytes;
        if (writing) {
          std::memcpy(image.data(), part, kFileBytes);
        } else {
          ASSERT_EQ(0, std::memcmp(image.data(), part, kFileBytes)) << "file " << f << ", round " << round;
        }
      }
    }
  }
}

TEST_P(IoEngineContract, RequestsMaySubmitOthersWhenTheyEnd) {
  SKIP_WITHOUT_ENGINE();
  IoRequest first{IoRequest::Op::write, 0, 0, memory_.data(), kPageBytes, {}};
  IoRequest second{IoRequest::Op::read, 0, 0, memory_.data() + 2 * kMiB, kPageBytes, {}};
  fill_random(memory_.span().first(kPageBytes), 3);
  int result = -1;
  second.done = [&](IoRequest&, int error_number) { result = error_number; };
  first.done = [&](IoRequest&, int) {
    IoRequest* const one = &second;
    engine_->submit({&one, 1});
  };
  IoRequest* const one = &first;
  engine_->submit({&one, 1});
  finish(*engine_);
  EXPECT_EQ(0, result);
  EXPECT_EQ(0, std::memcmp(first.buffer, second.buffer, kPageBytes));
}

TEST_P(IoEngineContract, AReadBehindTheEndOfTheFileEndsWithEnodata) {
  SKIP_WITHOUT_ENGINE();
  EXPECT_EQ(ENODATA, run(*engine_, {IoRequest::Op::read, 0, kFileBytes, memory_.data(), kPageBytes, {}}));
  EXPECT_EQ(ENODATA, run(*engine_, {IoRequest::Op::read, 1, kFileBytes - kPageBytes, memory_.data(), 4 * kPageBytes, {}}));
  EXPECT_EQ(0, run(*engine_, {IoRequest::Op::read, 1, kFileBytes - kPageBytes, memory_.data(), kPageBytes, {}}));
}

TEST_P(IoEngineContract, WakeEndsAPollFromAnotherThread) {
  SKIP_WITHOUT_ENGINE();
  for (int i = 0; i < 20; ++i) {
    std::thread waker([&] { engine_->wake(); });
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(0U, engine_->poll(60s));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
    waker.join();
  }
  engine_->wake();  // a wake-up before the poll also counts
  EXPECT_EQ(0U, engine_->poll(60s));
  EXPECT_EQ(0, run(*engine_, {IoRequest::Op::read, 0, 0, memory_.data(), kPageBytes, {}}));
}

TEST_P(IoEngineContract, MayBeMadeOnOneThreadAndUsedOnAnother) {
  SKIP_WITHOUT_ENGINE();
  int result = -1;
  std::thread([&] { result = run(*engine_, {IoRequest::Op::read, 0, 0, memory_.data(), kPageBytes, {}}); }).join();
  EXPECT_EQ(0, result);
}

TEST_P(IoEngineContract, AnErrorEndsItsRequestOnceAndNoOther) {
  SKIP_WITHOUT_ENGINE();
  const files::FileHandle read_only(::open((directory_.path() / "1").c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  const auto engine = make({files_[0].get(), read_only.get()}, {0, 3, 6});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(EBADF, run(*engine, {IoRequest::Op::write, 1, 0, memory_.data(), kPageBytes, {}}));
    EXPECT_EQ(0, run(*engine, {IoRequest::Op::write, 0, 0, memory_.data(), kPageBytes, {}}));
    EXPECT_EQ(0, run(*engine, {IoRequest::Op::read, 1, 0, memory_.data(), kPageBytes, {}}));
  }
}

TEST_P(IoEngineContract, AClosedFileEndsWithEbadf) {
  SKIP_WITHOUT_ENGINE();
  if (GetParam() == std::string("uring-iopoll")) GTEST_SKIP() << "refused before, because nothing tells that it can be polled";
  const auto engine = make({files_[0].get(), 1 << 20}, {0});  // no such descriptor; io_uring then runs without registered files
  EXPECT_EQ(EBADF, run(*engine, {IoRequest::Op::read, 1, 0, memory_.data(), kPageBytes, {}}));
  EXPECT_EQ(0, run(*engine, {IoRequest::Op::read, 0, 0, memory_.data(), kPageBytes, {}}));
}

INSTANTIATE_TEST_SUITE_P(Engines, IoEngineContract,
                         testing::Values("uring", "uring-sqpoll", "uring-iopoll", "threads", "uncached", "simulated"),
                         [](const auto& of) {
                           std::string name = of.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

IoRequest request_of(IoRequest::Priority priority) {
  IoRequest request;
  request.priority = priority;
  return request;
}

TEST(IoBacklog, DemandGoesBeforePrefetchBeforeWriteBack) {
  using Priority = IoRequest::Priority;
  auto write = request_of(Priority::write_back), prefetch = request_of(Priority::prefetch);
  auto first = request_of(Priority::demand), second = request_of(Priority::demand);
  io::IoBacklog backlog;
  for (auto* request : {&write, &prefetch, &first, &second}) backlog.push(*request);
  EXPECT_EQ(&first, backlog.pop());
  EXPECT_EQ(&second, backlog.pop());
  EXPECT_EQ(&prefetch, backlog.pop());
  EXPECT_FALSE(backlog.empty());
  EXPECT_EQ(&write, backlog.pop());
  EXPECT_TRUE(backlog.empty());
  EXPECT_EQ(nullptr, backlog.pop());
}

TEST(IoBacklog, NothingWaitsForEver) {
  auto write = request_of(IoRequest::Priority::write_back);
  std::deque<IoRequest> demands(100, request_of(IoRequest::Priority::demand));
  io::IoBacklog backlog;
  backlog.push(write);
  int started_before = 0;
  for (auto& demand : demands) {
    backlog.push(demand);
    if (backlog.pop() == &write) break;
    ++started_before;
  }
  EXPECT_EQ(16, started_before);
}

TEST(IoBacklog, AReadOvertakesTheWritesThatWaitInTheEngine) {
  test::TemporaryDirectory directory;
  const files::FileHandle file(::open((directory.path() / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0600));
  ASSERT_EQ(0, ::ftruncate(file.get(), static_cast<off_t>(kMiB)));
  Pages memory(kMiB);
  IoOptions options;
  options.queue_depth = 1;
  options.files = {file.get()};
  std::string why;
  auto engine = make_uring_engine(options, why);
  if (!engine) GTEST_SKIP() << why;  // threads may take the writes before the read is submitted
  std::vector<char> ended;
  std::deque<IoRequest> requests;
  const auto add = [&](IoRequest::Op op, IoRequest::Priority priority, char name) {
    const auto at = requests.size() * kPageBytes;
    requests.push_back(
        {op, 0, at, memory.data() + at, kPageBytes, [&ended, name](IoRequest&, int) { ended.push_back(name); }, priority});
  };
  for (const char name : {'a', 'b', 'c'}) add(IoRequest::Op::write, IoRequest::Priority::write_back, name);
  add(IoRequest::Op::read, IoRequest::Priority::demand, 'r');
  std::vector<IoRequest*> all;
  for (auto& request : requests) all.push_back(&request);
  engine->submit(std::span(all).first(3));  // the kernel already has the first write when the read comes
  engine->submit(std::span(all).last(1));
  while (engine->in_flight() > 0) engine->poll(1s);
  EXPECT_EQ((std::vector<char>{'a', 'r', 'b', 'c'}), ended);
}

// A read can still overtake requests that are outside the window.
TEST(IoWindow, HoldsSoManyBytesButTwoRequestsAtLeast) {
  IoRequest small, large;
  small.bytes = kPageBytes;
  large.bytes = kMiB;
  io::IoWindow window(8, 4 * kPageBytes);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(window.room()) << i;
    window.start(small);
  }
  EXPECT_FALSE(window.room());  // four pages are its limit
  window.end(small);
  EXPECT_TRUE(window.room());
  window.start(large);
  EXPECT_FALSE(window.room());
  for (int i = 0; i < 3; ++i) window.end(small);
  EXPECT_TRUE(window.room());  // regardless of the size of the remaining request
  window.start(large);
  EXPECT_FALSE(window.room());
  window.end(large);
  window.end(large);
  for (int i = 0; i < 8; ++i) window.start({});
  EXPECT_FALSE(window.room());  // the depth is its limit
  EXPECT_EQ(8U, window.requests());
}

TEST(IoWindow, IsWiderAfterManyWritesUntilTheNextRead) {
  IoRequest read, write;
  write.op = IoRequest::Op::write;
  read.bytes = write.bytes = 2 * kMiB;
  io::IoWindow window(64, 4 * kMiB);
  const auto most_requests = [&] {
    auto held = window;
    while (held.room()) held.start(write);
    return held.requests();
  };
  for (std::uint64_t written = 0; written < io::IoWindow::kOnlyWritesBytes; written += write.bytes) {
    if (written + 4 * kMiB < io::IoWindow::kOnlyWritesBytes) {
      EXPECT_EQ(2U, most_requests()) << "after " << written << " bytes";
    }
    window.start(write);
    window.end(write);
  }
  EXPECT_EQ(io::IoWindow::kWideBytes / write.bytes, most_requests());
  window.start(read);
  EXPECT_EQ(2U, most_requests());
}

TEST(Backoff, PausesGrowUntilSomethingIsTaken) {
  io::Backoff backoff;
  EXPECT_FALSE(backoff.active());
  std::int64_t now = 1000, last = 0;
  for (int i = 0; i < 20; ++i) {
    backoff.refused(now);
    EXPECT_TRUE(backoff.active());
    const auto left = backoff.left_ns(now);
    EXPECT_GE(left, last);
    EXPECT_LE(left, 20'000'000);
    EXPECT_EQ(0, backoff.left_ns(now + left));
    last = left;
    now += left;
  }
  EXPECT_EQ(20'000'000, last);
  backoff.accepted();
  EXPECT_FALSE(backoff.active());
  EXPECT_EQ(0, backoff.left_ns(now));
}

// The number of a file's pages in the page cache.
std::size_t cached_pages(int file, std::uint64_t bytes) {
  void* const map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  if (map == MAP_FAILED) throw std::runtime_error("mmap");
  std::vector<unsigned char> resident(bytes / kPageBytes);
  ::mincore(map, bytes, resident.data());
  ::munmap(map, bytes);
  return static_cast<std::size_t>(std::ranges::count_if(resident, [](unsigned char page) { return (page & 1U) != 0; }));
}

TEST(UncachedEngine, LeavesNothingInThePageCache) {
  constexpr std::uint64_t kBytes = 32 * kMiB, kBlock = kMiB;
  test::TemporaryDirectory directory;
  const files::FileHandle file(::open((directory.path() / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  struct statfs system {};
  ASSERT_EQ(0, ::fstatfs(file.get(), &system));
  if (system.f_type == TMPFS_MAGIC) GTEST_SKIP() << directory.path() << " is in memory, where a file has no other place";
  Pages memory(kBytes);
  fill_random(memory.span(), 5);
  Pages back(kBytes);
  IoOptions options;
  options.files = {file.get()};
  const auto transfer = [&](IoEngine& engine, IoRequest::Op op, std::byte* at) {
    std::deque<IoRequest> requests;
    int failed = 0;
    for (std::uint64_t offset = 0; offset < kBytes; offset += kBlock) {
      requests.push_back({op, 0, offset, at + offset, kBlock, [&](IoRequest&, int error) { failed += error != 0; }});
      IoRequest* const one = &requests.back();
      engine.submit({&one, 1});
    }
    while (engine.in_flight() > 0) engine.poll(1s);
    EXPECT_EQ(0, failed);
  };
  {
    const auto plain = make_thread_engine(options);
    transfer(*plain, IoRequest::Op::write, memory.data());
    EXPECT_EQ(kBytes / kPageBytes, cached_pages(file.get(), kBytes));  // proves that the oracle counts correctly
  }
  {
    const auto engine = make_uncached_engine(make_thread_engine(options), options.files);
    transfer(*engine, IoRequest::Op::write, memory.data());
    EXPECT_LE(cached_pages(file.get(), kBytes), 8 * kBlock / kPageBytes);  // pages that may still be in flight
  }
  EXPECT_EQ(0U, cached_pages(file.get(), kBytes));
  {
    const auto engine = make_uncached_engine(make_thread_engine(options), options.files);
    transfer(*engine, IoRequest::Op::read, back.data());
  }
  // Read-ahead may leave a few pages that were not requested.
  EXPECT_LE(cached_pages(file.get(), kBytes), kBytes / kPageBytes / 16);
  EXPECT_EQ(0, std::memcmp(memory.data(), back.data(), kBytes));
}

// The kernel reports such an error only once. If the report is ignored, a later fsync succeeds and a commit refers to lost
// bytes.
TEST(UncachedEngine, AFailedWriteOutEndsThatWriteAndAllThatFollow) {
  test::TemporaryDirectory directory;
  std::vector<files::FileHandle> files;
  IoOptions options;
  for (const char* name : {"a", "b"}) {
    files.emplace_back(::open((directory.path() / name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    options.files.push_back(files.back().get());
  }
  Pages memory(kPageBytes);
  fill_random(memory.span(), 5);
  for (const int refused : {0, EIO, ENOSPC, ENOSYS, EPERM}) {
    int waits = 0;
    const auto write_out = [&](int file, off_t offset, off_t bytes, unsigned flags) {
      const bool waited_for = (flags & SYNC_FILE_RANGE_WAIT_AFTER) != 0;
      if (file != options.files[0] || !waited_for || ++waits != 2) return ::sync_file_range(file, offset, bytes, flags);
      errno = refused;
      return refused == 0 ? 0 : -1;
    };
    const auto engine = make_uncached_engine(make_thread_engine(options), options.files, write_out);
    const auto errors_of = [&](IoRequest::Op op, int file) {
      std::vector<int> errors;
      for (std::uint64_t i = 0; i < 12; ++i) {
        IoRequest request{op, file, i * kPageBytes, memory.data(), kPageBytes, [&](IoRequest&, int e) { errors.push_back(e); }};
        IoRequest* const one = &request;
        engine->submit({&one, 1});
        while (engine->in_flight() > 0) engine->poll(1s);
      }
      return errors;
    };
    SCOPED_TRACE(refused);
    // Eight writes may be in flight, so the second wait is at the tenth write.
    const bool lost = refused == EIO || refused == ENOSPC;
    std::vector<int> expected(12, 0);
    for (std::size_t i = 9; lost && i < 12; ++i) expected[i] = refused;
    EXPECT_EQ(expected, errors_of(IoRequest::Op::write, 0));
    EXPECT_EQ(std::vector<int>(12, lost ? refused : 0), errors_of(IoRequest::Op::write, 0));
    EXPECT_EQ(std::vector<int>(12, 0), errors_of(IoRequest::Op::write, 1));
    EXPECT_EQ(std::vector<int>(12, 0), errors_of(IoRequest::Op::read, 0));
  }
}

TEST(DirectIo, RulesOfPagesAreKeptByPages) {
  EXPECT_TRUE(io::pages_suffice(std::nullopt));
  EXPECT_TRUE(io::pages_suffice(io::DirectIoRules{512, 512}));
  EXPECT_TRUE(io::pages_suffice(io::DirectIoRules{4, 4096}));
  EXPECT_FALSE(io::pages_suffice(io::DirectIoRules{0, 0}));        // none on this file
  EXPECT_FALSE(io::pages_suffice(io::DirectIoRules{512, 16384}));  // larger sectors than terrace's pages
  EXPECT_EQ(std::nullopt, io::direct_io_rules(-1));
}

}  // namespace
}  // namespace terrace
