// Leases whose bytes a stream waits for, and which end with a stream or an event: on a fake GPU that finds races, with the
// manager's own kind of stream and with a caller's CUDA stream; and what ends or refuses a call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <terrace/core/cuda/stream.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/offload/manager/chunk_manager.h>
#include <terrace/tests/support/test_device.h>

namespace terrace {
namespace {

using test::FakeCuda;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint64_t kChunk = 3 * kPageBytes;

void write_words(std::span<std::byte> bytes, std::uint64_t value) {
  for (std::size_t at = 0; at < bytes.size(); at += 8) std::memcpy(bytes.data() + at, &value, 8);
}
std::uint64_t word_of(const std::byte* bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes, 8);
  return value;
}

// A device with room for one chunk, and a caller that launches kernels on its own CUDA stream.
class CallersStream : public testing::Test {
 protected:
  CallersStream() {
    EXPECT_EQ(fake_->set_device(0), 0);
    for (auto*& stream : raw_) EXPECT_EQ(fake_->create_stream(&stream), 0);
    for (std::size_t i = 0; i < 2; ++i) adopted_[i] = device_->adopt_stream(raw_[i], "mine");
  }
  ~CallersStream() override {
    manager_.reset();
    for (auto& stream : adopted_) stream.reset();
    for (auto* const stream : raw_) {
      EXPECT_EQ(fake_->synchronize_stream(stream), 0);
      EXPECT_EQ(fake_->destroy_stream(stream), 0);
    }
  }
  void make(OffloadOptions options = {.device_bytes = kChunk, .host_bytes = 4 * kChunk}) {
    options.device = device_.get();
    manager_ = std::make_unique<ChunkManager>(options);
    for (std::uint64_t i = 0; i < 3; ++i) {
      chunks_.push_back(manager_->add(kChunk));
      write_words(manager_->acquire(chunks_[i], Tier::host, Access::overwrite).bytes(), 10 + i);
    }
  }
  // A kernel that reads the bytes, and then adds to each word; or only says so, where a race is planted.
  void launch(std::size_t stream, std::span<std::byte> bytes, std::uint64_t add = 0) {
    FakeCuda::Touched touched{.name = "a kernel"};
    touched.add(bytes.data(), bytes.size(), add != 0);
    auto* const here = fake_->reach(bytes.data());
    EXPECT_EQ(fake_->launch_touching(raw_[stream], touched,
                                     [this, here, add, size = bytes.size()] {
                                       ++ran_;
                                       if (only_says_so_) return;
                                       seen_.push_back(word_of(here + size - 8));
                                       if (add != 0) write_words({here, size}, seen_.back() + add);
                                     }),
              0);
  }
  Lease acquire(std::size_t chunk, Access access, std::size_t stream = 0) {
    return manager_->acquire(chunks_[chunk], Tier::device, access, {.stream = adopted_[stream].get()});
  }

  const std::shared_ptr<FakeCuda> fake_ = std::make_shared<FakeCuda>(FakeCuda::Options{.lazy_seed = 3});
  ThreadPool pool_{1};
  const std::unique_ptr<Device> device_ = test::make_asynchronous_fake_device(fake_, pool_);
  cuda::CudaStreamHandle raw_[2] = {};
  std::unique_ptr<Stream> adopted_[2];
  std::vector<ChunkId> chunks_;
  std::unique_ptr<ChunkManager> manager_;
  std::vector<std::uint64_t> seen_;  // by kernels, which all run on one stream
  std::atomic<int> ran_{0};
  bool only_says_so_ = false;
};

// Nothing runs on the GPU, and yet three kernels are launched, each with its chunk in the one frame, in turn.
TEST_F(CallersStream, WaitsOnTheGpuForBytesAndMovesWaitThereForItsLastUse) {
  make();
  fake_->hold();
  for (const std::size_t chunk : {0, 1, 2, 0}) {
    const Lease lease = acquire(chunk, Access::update);
    launch(0, lease.bytes(), 100);
  }
  EXPECT_EQ(ran_, 0);
  EXPECT_EQ(manager_->traffic().uploads, 0U) << "counted when they end";
  fake_->release();
  EXPECT_EQ(word_of(manager_->acquire(chunks_[0], Tier::host, Access::read).bytes().data()), 210U);
  EXPECT_THAT(seen_, testing::ElementsAre(10, 11, 12, 110));
  EXPECT_EQ(manager_->traffic().uploads, 4U);
  EXPECT_THAT(fake_->complaints(), IsEmpty());
}

// The same with a mistake of the caller: each must be found.
TEST_F(CallersStream, MistakesAreFoundAsRaces) {
  only_says_so_ = true;
  enum { none, ends_at_once, other_stream, uses_after_end };
  make();
  std::size_t found = 0;
  for (const auto mistake : {none, ends_at_once, other_stream, uses_after_end}) {
    SCOPED_TRACE(mistake);
    fake_->hold();  // so that no copy ends before the mistake is made
    {
      Lease lease = acquire(0, Access::read);
      if (mistake != uses_after_end) launch(mistake == other_stream ? 1 : 0, lease.bytes());
      const auto bytes = lease.bytes();
      if (mistake == ends_at_once) lease.release(Event());
      lease.release();
      if (mistake == uses_after_end) launch(0, bytes);
      const Lease next = acquire(1, Access::read, 1);  // into the same frame
    }
    fake_->release();
    EXPECT_EQ(fake_->synchronize_stream(raw_[0]), 0);
    EXPECT_EQ(fake_->synchronize_stream(raw_[1]), 0);
    const auto complaints = fake_->complaints();
    if (mistake == none) {
      EXPECT_THAT(complaints, IsEmpty());
    } else {
      ASSERT_GT(complaints.size(), found);
      EXPECT_THAT(complaints.back(), testing::MatchesRegex("a race: (cudaMemcpyAsync of .* writes|a kernel reads) what .*"));
    }
    found = complaints.size();
  }
}

TEST_F(CallersStream, AnotherStreamMayEndALease) {
  make();
  for (const std::size_t chunk : {0, 1, 0}) {
    Lease lease = acquire(chunk, Access::read, 1);
    EXPECT_EQ(fake_->set_device(0), 0);
    cuda::CudaEventHandle event = nullptr;  // the caller's own order between its streams
    EXPECT_EQ(fake_->create_event(&event), 0);
    EXPECT_EQ(fake_->record_event(event, raw_[1]), 0);
    EXPECT_EQ(fake_->stream_wait_event(raw_[0], event), 0);
    launch(0, lease.bytes());
    lease.release_after(*adopted_[0]);
    EXPECT_EQ(fake_->destroy_event(event), 0);
  }
  adopted_[0]->synchronize();
  EXPECT_THAT(seen_, testing::ElementsAre(10, 11, 10));
  EXPECT_THAT(fake_->complaints(), IsEmpty());
}

TEST_F(CallersStream, GetsTheErrorOfACopyThatCannotBeIssued) {
  make();
  fake_->fail(FakeCuda::Call::copy_async, {.at = 0, .code = 999});
  const Use use{chunks_[0], Access::read};
  const auto acquired = manager_->try_acquire(std::span(&use, 1), Tier::device, {.stream = adopted_[0].get()});
  ASSERT_FALSE(acquired);
  EXPECT_THAT(acquired.error->what(), HasSubstr("cudaMemcpyAsync"));
  EXPECT_EQ(acquired.lease.size(), 0U);
  EXPECT_EQ(word_of(manager_->acquire(chunks_[1], Tier::host, Access::read).bytes().data()), 11U);
}

// A copy fails when the kernel behind it is launched already: the end of its lease fails, and what needs the chunk.
TEST_F(CallersStream, FailsWithACopyThatFailsLater) {
  make();
  fake_->hold();
  {
    const Lease lease = acquire(0, Access::update);
    launch(0, lease.bytes(), 1);
  }
  fake_->fault(700);
  testing::internal::CaptureStderr();
  fake_->release();
  EXPECT_THROW((void)manager_->acquire(chunks_[0], Tier::host, Access::read), Error);
  EXPECT_THROW(adopted_[0]->synchronize(), Error);
  manager_.reset();
  (void)testing::internal::GetCapturedStderr();
  fake_->fault(0);
}

TEST_F(CallersStream, ACallThatWaitsForBytesOrForRoomCanBeStopped) {
  make();
  const Use use{chunks_[0], Access::update};
  std::stop_source stop;
  stop.request_stop();
  fake_->hold();
  const auto on_their_way = manager_->try_acquire(std::span(&use, 1), Tier::device, {.stop = stop.get_token()});
  fake_->release();
  ASSERT_FALSE(on_their_way);
  EXPECT_EQ(on_their_way.error->kind(), ErrorKind::interrupted);
  {
    const Lease first = acquire(0, Access::update);
    std::stop_source later;
    std::thread stops([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      later.request_stop();
    });
    const Use other{chunks_[1], Access::overwrite};
    const auto room = manager_->try_acquire(std::span(&other, 1), Tier::device, {.stop = later.get_token()});
    stops.join();
    ASSERT_FALSE(room);
    EXPECT_EQ(room.error->kind(), ErrorKind::interrupted);
    launch(0, first.bytes(), 5);
  }
  EXPECT_EQ(word_of(manager_->acquire(chunks_[0], Tier::host, Access::read).bytes().data()), 15U);
}

TEST_F(CallersStream, LeasesLieInTheCallersOwnDeviceMemory) {
  const Slab own = device_->memory().allocate(3 * kChunk);
  const auto used = fake_->used_bytes();
  make({.host_bytes = 4 * kChunk, .device_memory = std::span(own.data(), 2 * kChunk)});
  EXPECT_EQ(fake_->used_bytes(), used);
  for (std::size_t chunk = 0; chunk < 3; ++chunk) {
    const Lease lease = acquire(chunk, Access::update);
    EXPECT_GE(lease.bytes().data(), own.data());
    EXPECT_LE(lease.bytes().data() + kChunk, own.data() + 2 * kChunk);
    launch(0, lease.bytes(), 1);
  }
  for (std::size_t chunk = 0; chunk < 3; ++chunk)
    EXPECT_EQ(word_of(manager_->acquire(chunks_[chunk], Tier::host, Access::read).bytes().data()), 11 + chunk);
  EXPECT_EQ(manager_->peak_bytes()[Tier::device], 2 * kChunk);
  manager_.reset();
  try {
    const ChunkManager refused(
        {.device_bytes = 4 * kChunk, .device = device_.get(), .device_memory = std::span(own.data(), kChunk)});
    FAIL() << "it was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::refused);
  }
}

// The least that a device of another program needs.
class TheirDevice final : public Device {
 public:
  explicit TheirDevice(Device& host) : host_(host) {}
  std::string name() const override { return "theirs"; }
  std::unique_ptr<Stream> make_stream(std::string name) override { return host_.make_stream(std::move(name)); }
  MemoryResource& memory() override { return host_.memory(); }
  std::shared_ptr<MemoryResource> host_memory() override { return host_.host_memory(); }
  bool computes_on_host() const override { return true; }

 private:
  Device& host_;
};

// More streams than the manager has lanes for.
TEST(StreamLeases, AnyNumberOfStreamsOfAnyDeviceCanHoldAndEndThem) {
  ThreadPool pool(1);
  const auto host = make_host_device(pool);
  TheirDevice device(*host);
  EXPECT_THROW((void)device.adopt_stream(nullptr, "none"), Error);
  ChunkManager manager({.device_bytes = 2 * kChunk, .host_bytes = 4 * kChunk, .device = &device});
  std::vector<ChunkId> chunks;
  for (int i = 0; i < 4; ++i) {
    chunks.push_back(manager.add(kChunk));
    write_words(manager.acquire(chunks.back(), Tier::host, Access::overwrite).bytes(), 0);
  }
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 40; ++i) streams.push_back(device.make_stream("s"));
  for (std::size_t round = 0; round < 400; ++round) {
    auto& stream = *streams[round % streams.size()];
    const Lease lease = manager.acquire(chunks[round % 4], Tier::device, Access::update, {.stream = &stream});
    stream.submit([bytes = lease.bytes()] { write_words(bytes, word_of(bytes.data() + bytes.size() - 8) + 1); });
  }
  for (const auto chunk : chunks) EXPECT_EQ(word_of(manager.acquire(chunk, Tier::host, Access::read).bytes().data()), 100U);
}

TEST(StreamLeases, AnEventEndsALeaseAndItsErrorReachesWhoNeedsTheBytes) {
  ChunkManager manager({.device_bytes = kChunk, .host_bytes = 2 * kChunk, .threads = 1});
  const ChunkId a = manager.add(kChunk), b = manager.add(kChunk);
  const auto use = std::make_shared<Timeline>();
  Lease lease = manager.acquire(a, Tier::device, Access::overwrite);
  const auto bytes = lease.bytes();
  lease.release(Event(use, 1));
  std::atomic<bool> ended{false}, early{false};
  std::thread other([&] {
    const Lease next = manager.acquire(b, Tier::device, Access::overwrite);  // in the place of a, which is copied first
    early = !ended;
    write_words(next.bytes(), 2);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  write_words(bytes, 1);  // the lease has ended, its use has not
  ended = true;
  use->advance(1);
  other.join();
  EXPECT_FALSE(early);
  EXPECT_EQ(word_of(manager.acquire(a, Tier::host, Access::read).bytes().data()), 1U);

  Lease failing = manager.acquire(a, Tier::device, Access::update);
  failing.release(Event(use, 2));
  use->fail(std::make_exception_ptr(Error("the kernel failed")));
  EXPECT_THROW((void)manager.acquire(a, Tier::host, Access::read), Error);
}

}  // namespace
}  // namespace terrace
