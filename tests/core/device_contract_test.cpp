// The contract of every device: streams, events and memory (core/device/device.h).
#include <terrace/core/device/device.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/tests/support/test_device.h>

namespace terrace::test {
namespace {

class DeviceContract : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const auto why = why_not_here(GetParam()); !why.empty()) GTEST_SKIP() << why;
    device_ = make_test_device(GetParam(), pool_, 1);
  }

  ThreadPool pool_{2};
  std::unique_ptr<Device> device_;

  // Writes through the device's own memory, by copies only.
  static void fill(std::byte* data, std::size_t bytes, std::uint32_t seed) {
    std::minstd_rand random(seed + 1);
    for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(random());
  }
};

}  // namespace

TEST_P(DeviceContract, SaysWhatItIs) {
  EXPECT_EQ(device_->name(), GetParam() == "cpu" ? "cpu" : "cuda:0");
  EXPECT_EQ(&device_->pool(), &pool_);
  EXPECT_EQ(&device_->make_stream("x")->device(), device_.get());
  EXPECT_EQ(device_->computes_on_host(), GetParam() == "cpu");
}

TEST_P(DeviceContract, SlabsAreWholePages) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, std::size_t{3 * kMiB + 1}}) {
    EXPECT_EQ(device_->memory().allocate(bytes).bytes(), round_up(std::max<std::size_t>(bytes, 1), kPageBytes));
    const Slab host = device_->host_memory()->allocate(bytes);
    EXPECT_EQ(host.bytes(), round_up(std::max<std::size_t>(bytes, 1), kPageBytes));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(host.data()) % kPageBytes, 0U);
    host.data()[host.bytes() - 1] = std::byte{7};  // the host may write it
  }
}

TEST_P(DeviceContract, HostMemoryOutlivesItsDevice) {
  const auto memory = device_->host_memory();
  const Slab slab = memory->allocate(10'000);
  device_.reset();
  slab.data()[9'999] = std::byte{7};
  EXPECT_EQ(slab.data()[9'999], std::byte{7});
}

TEST_P(DeviceContract, HostWorkRunsInOrderOnAThreadOfTheStream) {
  const auto stream = device_->make_stream("a stream whose name is far too long for the kernel");
  std::vector<int> order;  // no lock: one thread writes, and synchronize() orders the rest
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

TEST_P(DeviceContract, NoCallBlocks) {
  const Slab from = device_->host_memory()->allocate(kMiB), to = device_->memory().allocate(kMiB);
  const auto gate = std::make_shared<Timeline>();
  const auto stream = device_->make_stream("a");
  bool ran = false, told = false;
  stream->wait(Event(gate, 1));  // a point that is not issued yet: the stream waits, its caller does not
  stream->copy(to.data(), from.data(), kMiB);
  stream->submit([&] { ran = true; });
  stream->then([&](const std::exception_ptr& failure) { told = !failure; });
  const Event end = stream->record();
  EXPECT_FALSE(end.done());
  gate->advance(1);
  end.wait();
  EXPECT_TRUE(ran);
  EXPECT_TRUE(told);
}

TEST_P(DeviceContract, ThenIsCalledInOrderAfterWhatWasSubmitted) {
  const auto stream = device_->make_stream("a");
  constexpr std::size_t kBytes = 300'000;
  const Slab first = device_->host_memory()->allocate(kBytes), last = device_->host_memory()->allocate(kBytes);
  const Slab middle = device_->memory().allocate(kBytes);
  fill(first.data(), kBytes, 1);
  std::vector<int> order;
  bool copied = false;
  for (int i = 0; i < 50; ++i) {
    if (i == 20) {
      stream->copy(middle.data(), first.data(), kBytes);
      stream->copy(last.data(), middle.data(), kBytes);
    }
    stream->then([&, i](const std::exception_ptr& failure) {
      EXPECT_FALSE(failure);
      order.push_back(i);
      if (i == 20) copied = std::memcmp(first.data(), last.data(), kBytes) == 0;
    });
  }
  stream->synchronize();
  ASSERT_EQ(order.size(), 50U);
  EXPECT_TRUE(std::ranges::is_sorted(order));
  EXPECT_TRUE(copied);
}

TEST_P(DeviceContract, WaitOrdersTwoStreams) {
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

TEST_P(DeviceContract, CopiesMoveEveryByteBetweenAllPlaces) {
  const auto up = device_->make_stream("up"), down = device_->make_stream("down");
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{65'537}, std::size_t{3 * kMiB + 11}}) {
    const Slab first = device_->host_memory()->allocate(bytes + 3), last = device_->host_memory()->allocate(bytes + 5);
    const Slab one = device_->memory().allocate(bytes + 7), two = device_->memory().allocate(bytes);
    fill(first.data(), first.bytes(), static_cast<std::uint32_t>(bytes));
    const std::byte canary{0x5a};
    std::fill_n(last.data(), last.bytes(), canary);
    up->copy(one.data() + 7, first.data() + 3, bytes);
    up->copy(two.data(), one.data() + 7, bytes);
    down->wait(up->record());
    down->copy(last.data() + 5, two.data(), bytes);
    down->synchronize();
    EXPECT_EQ(std::memcmp(last.data() + 5, first.data() + 3, bytes), 0) << bytes;
    EXPECT_TRUE(std::all_of(last.data(), last.data() + 5, [&](std::byte b) { return b == canary; })) << bytes;
    EXPECT_TRUE(std::all_of(last.data() + 5 + bytes, last.data() + last.bytes(), [&](std::byte b) { return b == canary; }))
        << bytes;
    up->copy(one.data(), first.data(), 0);  // copying nothing is allowed
    up->synchronize();
  }
}

TEST_P(DeviceContract, AnErrorSkipsLaterWorkAndTravels) {
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

TEST_P(DeviceContract, WhatAnErrorSkipsIsDestroyed) {
  const auto held = std::make_shared<int>(0);
  {
    const auto stream = device_->make_stream("a");
    stream->submit([] { throw std::runtime_error("chunk 118"); });
    stream->submit([held] { *held = 1; });
  }
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(*held, 0);
}

TEST_P(DeviceContract, WhoeverAskedIsToldOfAFailureOnceAndInOrder) {
  std::vector<std::string> told;
  const auto tell = [&](const std::exception_ptr& failure) {
    try {
      if (failure) std::rethrow_exception(failure);
      told.emplace_back("done");
    } catch (const std::runtime_error& error) {
      told.emplace_back(error.what());
    }
  };
  {
    const auto stream = device_->make_stream("a");
    stream->then(tell);
    stream->submit([] { throw std::runtime_error("chunk 118"); });
    stream->then(tell);
    stream->submit([] { throw std::runtime_error("another"); });
    EXPECT_THROW(stream->synchronize(), std::runtime_error);
    stream->then(tell);
  }
  EXPECT_EQ(told, (std::vector<std::string>{"done", "chunk 118", "chunk 118"}));
}

TEST_P(DeviceContract, WhatWasRecordedBeforeAnErrorStillEndsWell) {
  constexpr std::size_t kBytes = 2 * kMiB;
  const Slab from = device_->host_memory()->allocate(kBytes), to = device_->memory().allocate(kBytes);
  for (int i = 0; i < 20; ++i) {
    const auto stream = device_->make_stream("a");
    stream->copy(to.data(), from.data(), kBytes);
    const Event copied = stream->record();
    stream->submit([] { throw std::runtime_error("chunk 118"); });
    EXPECT_THROW(stream->synchronize(), std::runtime_error);
    EXPECT_NO_THROW(copied.wait());
  }
}

TEST_P(DeviceContract, DestructionFinishesWhatWasSubmitted) {
  constexpr std::size_t kBytes = kMiB;
  const Slab from = device_->host_memory()->allocate(kBytes), to = device_->host_memory()->allocate(kBytes);
  const Slab there = device_->memory().allocate(kBytes);
  fill(from.data(), kBytes, 3);
  std::atomic<int> ran{0};
  Event last;
  {
    const auto stream = device_->make_stream("a");
    for (int i = 0; i < 100; ++i) {
      stream->submit([&] { ++ran; });
      stream->then([&](const std::exception_ptr&) { ++ran; });
    }
    last = stream->record();
    stream->copy(there.data(), from.data(), kBytes);
    stream->copy(to.data(), there.data(), kBytes);  // nothing waits for its end
  }
  EXPECT_EQ(ran, 200);
  EXPECT_TRUE(last.done());  // an event outlives its stream
  EXPECT_EQ(std::memcmp(from.data(), to.data(), kBytes), 0);
}

// Random copies between buffers of both memories on several streams. Events order a copy after earlier ones only if they use
// the same buffer. The oracle runs the copies one by one.
TEST_P(DeviceContract, EventsOrderWhateverSharesABuffer) {
  constexpr std::size_t kStreams = 4, kBuffers = 6, kBytes = 80'000;
  constexpr int kCopies = 400;
  for (std::uint32_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::minstd_rand random(seed + 17);
    std::vector<std::unique_ptr<Stream>> streams;
    for (std::size_t i = 0; i < kStreams; ++i) streams.push_back(device_->make_stream("s" + std::to_string(i)));
    std::vector<Slab> buffers;
    std::vector<std::vector<std::byte>> oracle(kBuffers, std::vector<std::byte>(kBytes));
    const Slab seedling = device_->host_memory()->allocate(kBuffers * kBytes);
    fill(seedling.data(), kBuffers * kBytes, seed);
    std::vector<std::vector<Event>> used(kBuffers);  // last use by each stream
    for (std::size_t b = 0; b < kBuffers; ++b) {
      buffers.push_back((b % 2 ? device_->memory() : *device_->host_memory()).allocate(kBytes));
      used[b].resize(kStreams);
      std::memcpy(oracle[b].data(), seedling.data() + b * kBytes, kBytes);
      streams[0]->copy(buffers[b].data(), seedling.data() + b * kBytes, kBytes);
      used[b][0] = streams[0]->record();
    }
    for (int i = 0; i < kCopies; ++i) {
      const std::size_t s = random() % kStreams, from = random() % kBuffers,
                        to = (from + 1 + random() % (kBuffers - 1)) % kBuffers;
      const std::size_t begin = random() % kBytes, bytes = random() % (kBytes - begin) + 1;
      for (const std::size_t b : {from, to})
        for (std::size_t other = 0; other < kStreams; ++other)
          if (other != s) streams[s]->wait(used[b][other]);
      streams[s]->copy(buffers[to].data() + begin, buffers[from].data() + begin, bytes);
      used[from][s] = used[to][s] = streams[s]->record();
      std::memcpy(oracle[to].data() + begin, oracle[from].data() + begin, bytes);
    }
    const Slab out = device_->host_memory()->allocate(kBytes);
    for (std::size_t b = 0; b < kBuffers; ++b) {
      for (const auto& event : used[b]) streams[0]->wait(event);
      streams[0]->copy(out.data(), buffers[b].data(), kBytes);
      streams[0]->synchronize();
      EXPECT_EQ(std::memcmp(out.data(), oracle[b].data(), kBytes), 0) << "buffer " << b;
    }
  }
}

TEST_P(DeviceContract, ThreadsUseStreamsOfTheirOwn) {
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      constexpr std::size_t kBytes = 200'000;
      for (int round = 0; round < 10; ++round) {
        const Slab from = device_->host_memory()->allocate(kBytes), to = device_->host_memory()->allocate(kBytes);
        const Slab there = device_->memory().allocate(kBytes);
        fill(from.data(), kBytes, t);
        const auto up = device_->make_stream("up"), down = device_->make_stream("down");
        up->copy(there.data(), from.data(), kBytes);
        down->wait(up->record());
        down->copy(to.data(), there.data(), kBytes);
        down->synchronize();
        good += std::memcmp(from.data(), to.data(), kBytes) == 0;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 40);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceContract, test_devices(), [](const auto& of) { return std::string(of.param); });

}  // namespace terrace::test
