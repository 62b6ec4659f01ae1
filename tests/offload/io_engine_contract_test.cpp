// What every I/O engine promises.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <random>
#include <thread>

#include <terrace/offload/extent_files.h>
#include <terrace/offload/io_engine.h>
#include <terrace/offload/simulated_disk.h>

#include "pages.h"
#include "temporary_directory.h"

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
      files_.emplace_back(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0600));
      ASSERT_TRUE(files_.back()) << path;
      ASSERT_EQ(0, ::ftruncate(files_.back().get(), static_cast<off_t>(kFileBytes)));
    }
    engine_ = make({files_[0].get(), files_[1].get()});
  }

  // `bad_requests`: which requests the descriptors will make fail with EBADF; the simulated engine, without descriptors, is
  // told.
  std::unique_ptr<IoEngine> make(std::vector<int> descriptors, const std::vector<std::uint64_t>& bad_requests = {}) {
    IoOptions options;
    options.queue_depth = kDepth;
    options.files = std::move(descriptors);
    options.buffers = {memory_.span().first(kMiB)};  // the rest is used unregistered
    const std::string kind = GetParam();
    if (kind == "simulated") {
      std::vector<SimulatedFault> faults;
      for (const auto request : bad_requests) faults.push_back({request, SimulatedFault::What::error, EBADF});
      return make_simulated_engine(make_simulated_disk(kFiles, kFileBytes), 7, std::move(faults));
    }
    if (kind == "threads") return make_thread_engine(options, 3);
    std::string why;
    auto engine = make_uring_engine(options, why);
    if (!engine) skip_ = why;
    return engine;
  }

  // Ends all of the requests, however many polls that takes.
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
  std::vector<FileHandle> files_;
  Pages memory_{4 * kMiB};
  std::unique_ptr<IoEngine> engine_;
  std::string skip_;
};

#define SKIP_WITHOUT_ENGINE() \
  if (!engine_) GTEST_SKIP() << "no " << GetParam() << " engine here: " << skip_

TEST_P(IoEngineContract, RandomRequestsEqualAnOracleInMemory) {
  SKIP_WITHOUT_ENGINE();
  EXPECT_EQ(GetParam(), engine_->name());
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<std::vector<std::byte>> oracle(kFiles, std::vector<std::byte>(kFileBytes));
    // Every round covers both files with disjoint requests (no order between requests is promised), far more than the depth.
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
  engine_->wake();  // before the poll counts too
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
  const FileHandle read_only(::open((directory_.path() / "1").c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  const auto engine = make({files_[0].get(), read_only.get()}, {0, 3, 6});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(EBADF, run(*engine, {IoRequest::Op::write, 1, 0, memory_.data(), kPageBytes, {}}));
    EXPECT_EQ(0, run(*engine, {IoRequest::Op::write, 0, 0, memory_.data(), kPageBytes, {}}));
    EXPECT_EQ(0, run(*engine, {IoRequest::Op::read, 1, 0, memory_.data(), kPageBytes, {}}));
  }
}

TEST_P(IoEngineContract, AClosedFileEndsWithEbadf) {
  SKIP_WITHOUT_ENGINE();
  const auto engine = make({files_[0].get(), 1 << 20}, {0});  // no such descriptor; io_uring then runs without registered files
  EXPECT_EQ(EBADF, run(*engine, {IoRequest::Op::read, 1, 0, memory_.data(), kPageBytes, {}}));
  EXPECT_EQ(0, run(*engine, {IoRequest::Op::read, 0, 0, memory_.data(), kPageBytes, {}}));
}

INSTANTIATE_TEST_SUITE_P(Engines, IoEngineContract, testing::Values("uring", "threads", "simulated"),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace
}  // namespace terrace
