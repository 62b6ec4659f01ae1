#include <terrace/core/device.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include <terrace/core/thread_pool.h>
#include <terrace/core/units.h>

namespace terrace {
namespace {

class CpuStreams : public testing::Test {
 protected:
  ThreadPool pool_{2};
  std::unique_ptr<Device> device_ = make_cpu_device(pool_);
};

}  // namespace

TEST_F(CpuStreams, DeviceSaysWhatItIs) {
  EXPECT_EQ(device_->name(), "cpu");
  EXPECT_EQ(&device_->pool(), &pool_);
  EXPECT_EQ(&device_->make_stream("x")->device(), device_.get());
  EXPECT_GE(device_->memory().allocate(5000).bytes(), 5000U);
}

TEST_F(CpuStreams, RunInOrderOnTheirOwnThread) {
  const auto stream = device_->make_stream("a stream whose name is far too long for the kernel");
  std::vector<int> order;  // no lock: one thread, and synchronize() orders the rest
  std::vector<std::thread::id> threads;
  for (int i = 0; i < 1000; ++i) {
    stream->submit([&, i] {
      order.push_back(i);
      threads.push_back(std::this_thread::get_id());
    });
  }
  stream->synchronize();
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_NE(threads.front(), std::this_thread::get_id());
  EXPECT_EQ(std::ranges::count(threads, threads.front()), 1000);
}

TEST_F(CpuStreams, SubmitDoesNotBlock) {
  const auto gate = std::make_shared<Timeline>();
  const auto stream = device_->make_stream("a");
  bool ran = false;
  stream->wait(Event(gate, 1));  // a point nobody has issued yet: the stream waits, its caller does not
  stream->submit([&] { ran = true; });
  const Event end = stream->record();
  EXPECT_FALSE(end.done());
  gate->advance(1);
  end.wait();
  EXPECT_TRUE(ran);
}

TEST_F(CpuStreams, ThenIsCalledInOrderAfterWhatWasSubmittedAndNeverAfterAnError) {
  const auto stream = device_->make_stream("a");
  int done = 0, seen = -1;
  stream->submit([&] { done = 1; });
  stream->then([&] { seen = done; });
  stream->synchronize();
  EXPECT_EQ(seen, 1);
  const auto held = std::make_shared<int>(0);
  stream->submit([] { throw std::runtime_error("chunk 118"); });
  stream->then([held] { *held = 1; });
  EXPECT_THROW(stream->synchronize(), std::runtime_error);
  EXPECT_EQ(*held, 0);
}

TEST_F(CpuStreams, HostMemoryOutlivesItsDevice) {
  auto device = make_cpu_device(pool_);
  EXPECT_TRUE(device->computes_on_host());
  const auto memory = device->host_memory();
  const Slab slab = memory->allocate(10'000);
  device.reset();
  slab.data()[9'999] = std::byte{7};
  EXPECT_EQ(slab.data()[9'999], std::byte{7});
}

TEST_F(CpuStreams, WaitOrdersTwoStreams) {
  const auto a = device_->make_stream("a"), b = device_->make_stream("b");
  std::vector<int> log;
  for (int i = 0; i < 200; ++i) {
    a->submit([&, i] { log.push_back(2 * i); });
    b->wait(a->record());
    b->submit([&, i] { log.push_back(2 * i + 1); });
    a->wait(b->record());
  }
  b->synchronize();
  ASSERT_EQ(log.size(), 400U);
  for (int i = 0; i < 400; ++i) ASSERT_EQ(log[static_cast<std::size_t>(i)], i);
}

TEST_F(CpuStreams, AnErrorSkipsLaterWorkAndTravels) {
  const auto a = device_->make_stream("a"), b = device_->make_stream("b");
  std::atomic<bool> ran{false};
  const Event before = a->record();
  a->submit([] { throw std::runtime_error("chunk 118"); });
  a->submit([&] { ran = true; });
  const Event after = a->record();
  b->wait(after);
  b->submit([&] { ran = true; });
  before.wait();
  for (const auto& event : {after, b->record()}) {
    try {
      event.wait();
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "chunk 118");
    }
  }
  a->submit([&] { ran = true; });
  EXPECT_THROW(a->synchronize(), std::runtime_error);
  EXPECT_THROW(b->synchronize(), std::runtime_error);
  EXPECT_FALSE(ran);
}

TEST_F(CpuStreams, DestructionFinishesWhatWasSubmitted) {
  std::atomic<int> ran{0};
  Event last;
  {
    const auto stream = device_->make_stream("a");
    for (int i = 0; i < 100; ++i) stream->submit([&] { ++ran; });
    last = stream->record();
  }
  EXPECT_EQ(ran, 100);
  EXPECT_TRUE(last.done());  // an event outlives its stream
}

TEST_F(CpuStreams, CopyMovesTheBytes) {
  constexpr std::size_t kBytes = 3 * kMiB;
  const Slab from = device_->memory().allocate(kBytes), to = device_->memory().allocate(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) from.data()[i] = static_cast<std::byte>(i * 31 >> 3);
  const auto a = device_->make_stream("a"), b = device_->make_stream("b");
  a->copy(to.data(), from.data(), kBytes);
  bool same = false;
  b->wait(a->record());
  b->submit([&] { same = std::memcmp(to.data(), from.data(), kBytes) == 0; });
  b->synchronize();
  EXPECT_TRUE(same);
}

}  // namespace terrace
