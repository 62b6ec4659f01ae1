// The fake CUDA runtime detects the errors that it is meant to detect.
#include <terrace/tests/support/gpu/fake_cuda.h>

#include <gmock/gmock.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <vector>

#include <terrace/tests/support/gpu/fake_kernels.h>

namespace terrace::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FakeCudaFinds : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(fake_.set_device(0), 0);
    ASSERT_EQ(fake_.create_stream(&stream_), 0);
    ASSERT_EQ(fake_.allocate(&there_, 4096), 0);
    ASSERT_EQ(fake_.register_host(host_.data(), 4096), 0);
  }
  void TearDown() override {
    fake_.release();
    fake_.synchronize_stream(stream_);
    fake_.destroy_stream(stream_);
    fake_.unregister_host(host_.data());
  }

  FakeCuda fake_;
  cuda::CudaStreamHandle stream_ = nullptr;
  void* there_ = nullptr;
  std::vector<std::byte> host_ = std::vector<std::byte>(8192, std::byte{1});
};

}  // namespace

TEST_F(FakeCudaFinds, DeviceMemoryIsPoisonedAndApart) {
  EXPECT_EQ(*fake_.reach(there_), std::byte{0xcb});
  EXPECT_EQ(fake_.copy_async(host_.data(), there_, 4096, stream_), 0);
  EXPECT_EQ(fake_.synchronize_stream(stream_), 0);
  EXPECT_EQ(host_[4095], std::byte{0xcb});
  EXPECT_EQ(host_[4096], std::byte{1});
  EXPECT_EQ(fake_.free(there_), 0);
  EXPECT_TRUE(fake_.complaints().empty());
}

TEST_F(FakeCudaFinds, DeviceMemoryWhereverItsAddressIsGivenToAKernel) {
  const AddArguments arguments{static_cast<std::byte*>(there_) + 4095, 1, 5};
  EXPECT_EQ(fake_.launch({.kernel = kernel(add_kernel), .arguments = &arguments, .argument_bytes = sizeof arguments}, stream_),
            0);
  EXPECT_EQ(fake_.synchronize_stream(stream_), 0);
  EXPECT_EQ(fake_.reach(there_)[4095], std::byte{0xcb + 5});
  EXPECT_EQ(fake_.reach(host_.data()), host_.data()) << "the host's memory is where it is";
  EXPECT_EQ(fake_.free(there_), 0);
}

TEST_F(FakeCudaFinds, AnAddressInWhatIsANumberAndPaddingAndLeavesTheNumberAsItIs) {
  struct Arguments {
    std::int32_t number;
    std::byte padding[4];
    std::int32_t* seen;
  };
  std::int32_t seen = 0;
  Arguments arguments{.number = 0, .padding = {}, .seen = &seen};
  std::memcpy(&arguments, &there_, sizeof there_);
  const auto run = [](const cuda::CudaLaunch& launch) {
    const auto& a = *static_cast<const Arguments*>(launch.arguments);
    *a.seen = a.number;
  };
  EXPECT_EQ(fake_.launch({.kernel = kernel(run), .arguments = &arguments, .argument_bytes = sizeof arguments}, stream_), 0);
  EXPECT_EQ(fake_.synchronize_stream(stream_), 0);
  EXPECT_EQ(seen, arguments.number);
  EXPECT_EQ(fake_.free(there_), 0);
}

TEST_F(FakeCudaFinds, UsesByTheHostThatMeetAnOperation) {
  const auto use = [&](void* data, std::size_t bytes, bool writes) {
    FakeCuda::Touched touched{.name = "an update"};
    touched.add(data, bytes, writes);
    return fake_.host_uses(touched);
  };
  EXPECT_EQ(fake_.copy_async(there_, host_.data(), 1024, stream_), 0);
  (void)use(host_.data(), 1024, false);        // both only read
  (void)use(host_.data() + 1024, 1024, true);  // other bytes
  EXPECT_THAT(fake_.complaints(), testing::IsEmpty());
  (void)use(host_.data() + 1000, 100, true);
  ASSERT_EQ(fake_.complaints().size(), 1U);
  EXPECT_THAT(fake_.complaints()[0], HasSubstr("a race: an update writes what cudaMemcpyAsync of 1024 bytes reads on another"));
  EXPECT_EQ(fake_.synchronize_stream(stream_), 0);
  auto lasting = use(host_.data(), 1024, true);
  EXPECT_EQ(fake_.complaints().size(), 1U);
  EXPECT_EQ(fake_.copy_async(there_, host_.data(), 1024, stream_), 0);
  ASSERT_EQ(fake_.complaints().size(), 2U);
  EXPECT_THAT(fake_.complaints()[1],
              HasSubstr("a race: cudaMemcpyAsync of 1024 bytes reads what an update writes on the host meanwhile"));
  EXPECT_EQ(fake_.synchronize_stream(stream_), 0);
  (void)use(host_.data(), 8, false);
  EXPECT_EQ(fake_.complaints().size(), 3U) << "two of the host";
  lasting.reset();
  (void)use(host_.data(), 8, true);
  EXPECT_EQ(fake_.copy_async(there_, host_.data(), 1024, stream_), 0);
  EXPECT_EQ(fake_.complaints().size(), 3U);
  EXPECT_EQ(fake_.synchronize_stream(stream_), 0);
  EXPECT_EQ(fake_.free(there_), 0);
}

using FakeCudaDeathTest = FakeCudaFinds;
TEST_F(FakeCudaDeathTest, AHostThatReadsDeviceMemoryFaults) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(std::fprintf(stderr, "%d", std::to_integer<int>(*static_cast<volatile std::byte*>(there_))), "");
  EXPECT_EQ(fake_.free(there_), 0);
}

TEST_F(FakeCudaFinds, NothingEndsBeforeItIsLetTo) {
  cuda::CudaEventHandle event = nullptr;
  ASSERT_EQ(fake_.create_event(&event), 0);
  EXPECT_EQ(fake_.synchronize_event(event), 0) << "as CUDA: an event that was never recorded is over";
  fake_.hold();
  EXPECT_EQ(fake_.copy_async(host_.data(), there_, 4096, stream_), 0);
  EXPECT_EQ(fake_.record_event(event, stream_), 0);
  const auto early = kThreadSanitizer ? std::byte{1} : host_[0];  // ThreadSanitizer would rightly report a read of host_[0]
  EXPECT_EQ(early, std::byte{1});
  fake_.release();
  EXPECT_EQ(fake_.synchronize_event(event), 0);
  EXPECT_EQ(host_[0], std::byte{0xcb});
  EXPECT_EQ(fake_.destroy_event(event), 0);
  EXPECT_EQ(fake_.free(there_), 0);
  EXPECT_TRUE(fake_.complaints().empty());
}

TEST_F(FakeCudaFinds, CopiesFromMemoryThatIsNotRegistered) {
  EXPECT_EQ(fake_.copy_async(there_, host_.data() + 4096, 100, stream_), 0);
  EXPECT_THAT(fake_.complaints(), ElementsAre(HasSubstr("not registered")));
  EXPECT_EQ(fake_.free(there_), 0);
}

TEST_F(FakeCudaFinds, KernelsThatReachHostMemoryThatIsNotRegistered) {
  const auto kernel = [&](const void* at) {
    FakeCuda::Touched touched{.name = "a kernel"};
    touched.add(at, 100, false);
    EXPECT_EQ(fake_.launch_touching(stream_, touched, [] {}), 0);
  };
  kernel(there_);
  kernel(host_.data());
  EXPECT_THAT(fake_.complaints(), testing::IsEmpty());
  kernel(host_.data() + 4096);
  EXPECT_THAT(fake_.complaints(), ElementsAre(HasSubstr("a kernel uses host memory that is not registered")));
  EXPECT_EQ(fake_.free(there_), 0);
}

TEST_F(FakeCudaFinds, CopiesThatLeaveTheirPlace) {
  EXPECT_NE(fake_.copy_async(there_, host_.data(), 4097, stream_), 0);
  EXPECT_NE(fake_.copy_async(there_, host_.data() + 4000, 200, stream_), 0);
  EXPECT_THAT(fake_.complaints(), ElementsAre(HasSubstr("leaves"), HasSubstr("leaves")));
  ASSERT_EQ(fake_.register_host(host_.data() + 4096, 4096), 0);
  EXPECT_NE(fake_.copy_async(there_, host_.data() + 4000, 200, stream_), 0) << "over two registrations";
  EXPECT_EQ(fake_.unregister_host(host_.data() + 4096), 0);
  EXPECT_EQ(fake_.free(there_), 0);
}

TEST_F(FakeCudaFinds, OperationsThatNothingOrders) {
  cuda::CudaStreamHandle other = nullptr;
  cuda::CudaEventHandle event = nullptr;
  ASSERT_EQ(fake_.create_stream(&other), 0);
  ASSERT_EQ(fake_.create_event(&event), 0);
  auto* const there = static_cast<std::byte*>(there_);
  const auto kernel = [&](cuda::CudaStreamHandle stream, std::size_t first, std::size_t bytes, bool writes) {
    FakeCuda::Touched touched{.name = "a kernel"};
    touched.add(there + first, bytes, writes);
    EXPECT_EQ(fake_.launch_touching(stream, touched, [] {}), 0);
  };
  EXPECT_EQ(fake_.copy_async(there, host_.data(), 1024, stream_), 0);
  EXPECT_EQ(fake_.record_event(event, stream_), 0);
  kernel(stream_, 0, 1024, true);   // ordered by its stream
  kernel(other, 1024, 100, false);  // other bytes
  EXPECT_THAT(fake_.complaints(), testing::IsEmpty());
  kernel(other, 1000, 100, false);
  ASSERT_EQ(fake_.complaints().size(), 1U);
  EXPECT_THAT(fake_.complaints()[0], HasSubstr("a race: a kernel reads what cudaMemcpyAsync of 1024 bytes writes on another"));
  // The event was recorded after the copy, but before the kernel.
  EXPECT_EQ(fake_.synchronize_event(event), 0);
  kernel(other, 1000, 20, false);
  ASSERT_EQ(fake_.complaints().size(), 2U);
  EXPECT_THAT(fake_.complaints()[1], HasSubstr("a race: a kernel reads what a kernel writes"));
  EXPECT_EQ(fake_.synchronize_stream(stream_), 0);
  EXPECT_EQ(fake_.synchronize_stream(other), 0);
  kernel(other, 0, 1024, false);
  kernel(stream_, 0, 1024, false);  // both only read
  EXPECT_EQ(fake_.complaints().size(), 2U);
  kernel(stream_, 0, 1, true);  // memory that is still being read
  ASSERT_EQ(fake_.complaints().size(), 3U);
  EXPECT_THAT(fake_.complaints()[2], HasSubstr("a race: a kernel writes what a kernel reads"));
  EXPECT_EQ(fake_.synchronize_stream(stream_), 0);
  EXPECT_EQ(fake_.synchronize_stream(other), 0);
  EXPECT_EQ(fake_.destroy_event(event), 0);
  EXPECT_EQ(fake_.destroy_stream(other), 0);
  EXPECT_EQ(fake_.free(there_), 0);
}

// After waiting for an event, a stream is ordered after everything that the event was recorded after, also indirectly.
TEST_F(FakeCudaFinds, NoRaceWhereAStreamWaitsForAnother) {
  cuda::CudaStreamHandle others[2];
  cuda::CudaEventHandle events[2];
  for (auto& other : others) ASSERT_EQ(fake_.create_stream(&other), 0);
  for (auto& event : events) ASSERT_EQ(fake_.create_event(&event), 0);
  std::atomic<int> ran = 0;
  const auto kernel = [&](cuda::CudaStreamHandle stream, int turn) {
    FakeCuda::Touched touched{.name = "a kernel"};
    touched.add(static_cast<std::byte*>(there_), 1024, true);
    EXPECT_EQ(fake_.launch_touching(stream, touched, [&ran, turn] { EXPECT_TRUE(ran++ == turn || turn > 2); }), 0);
  };
  EXPECT_EQ(fake_.stream_wait_event(stream_, events[0]), 0) << "as CUDA: an event that was never recorded is over";
  fake_.hold();
  kernel(stream_, 0);
  EXPECT_EQ(fake_.record_event(events[0], stream_), 0);
  EXPECT_EQ(fake_.stream_wait_event(others[0], events[0]), 0);
  kernel(others[0], 1);
  EXPECT_EQ(fake_.record_event(events[1], others[0]), 0);
  EXPECT_EQ(fake_.stream_wait_event(others[1], events[1]), 0);
  kernel(others[1], 2);
  EXPECT_THAT(fake_.complaints(), testing::IsEmpty());
  fake_.release();
  EXPECT_EQ(fake_.synchronize_stream(others[1]), 0);
  EXPECT_EQ(ran, 3);
  kernel(stream_, 3);  // the host has waited for all three
  EXPECT_THAT(fake_.complaints(), testing::IsEmpty());
  kernel(others[0], 4);
  EXPECT_EQ(fake_.complaints().size(), 1U) << "the wait was for the first kernel, not for this one";
  EXPECT_EQ(fake_.synchronize_stream(stream_), 0);
  EXPECT_EQ(fake_.synchronize_stream(others[0]), 0);
  for (auto* const event : events) EXPECT_EQ(fake_.destroy_event(event), 0);
  for (auto* const other : others) EXPECT_EQ(fake_.destroy_stream(other), 0);
  EXPECT_EQ(fake_.free(there_), 0);
}

// A lazy fake only runs operations that something waits for. Until then, the host sees poison instead of the old bytes.
TEST(LazyFakeCuda, RunsOnlyWhatIsWaitedFor) {
  FakeCuda::Options options;
  options.lazy_seed = 3;
  FakeCuda fake(options);
  ASSERT_EQ(fake.set_device(0), 0);
  std::vector<std::byte> host(4096, std::byte{1});
  ASSERT_EQ(fake.register_host(host.data(), 4096), 0);
  cuda::CudaStreamHandle streams[2];
  cuda::CudaEventHandle events[2];
  void* there[2];
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(fake.create_stream(&streams[i]), 0);
    ASSERT_EQ(fake.create_event(&events[i]), 0);
    ASSERT_EQ(fake.allocate(&there[i], 4096), 0);
  }
  int late = 0;
  for (int trial = 0; trial < 40; ++trial) {
    std::fill(host.begin(), host.end(), static_cast<std::byte>(trial + 2));
    EXPECT_EQ(fake.copy_async(there[0], host.data(), 4096, streams[0]), 0);
    EXPECT_EQ(fake.record_event(events[0], streams[0]), 0);
    std::atomic<bool> ran = false;
    EXPECT_EQ(fake.launch_touching(streams[1], {.name = "a kernel"}, [&] { ran = true; }), 0);
    EXPECT_EQ(fake.synchronize_event(events[0]), 0);
    EXPECT_EQ(fake.reach(there[0])[4095], host[0]);
    late += ran ? 0 : 1;
    EXPECT_EQ(fake.copy_async(host.data(), there[0], 4096, streams[0]), 0);
    EXPECT_EQ(fake.synchronize_stream(streams[1]), 0);
    EXPECT_TRUE(ran);
    EXPECT_EQ(fake.synchronize_stream(streams[0]), 0);
  }
  EXPECT_GE(late, 10) << "an eager one";
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(fake.destroy_event(events[i]), 0);
    EXPECT_EQ(fake.destroy_stream(streams[i]), 0);
    EXPECT_EQ(fake.free(there[i]), 0);
  }
  EXPECT_EQ(fake.unregister_host(host.data()), 0);
  EXPECT_THAT(fake.complaints(), testing::IsEmpty());
}

TEST(LazyFakeCuda, TheDestinationOfACopyIsPoisonUntilItHasCome) {
  if (kThreadSanitizer) GTEST_SKIP() << "what looks at it is found as a race";
  FakeCuda::Options options;
  options.lazy_seed = 3;
  FakeCuda fake(options);
  ASSERT_EQ(fake.set_device(0), 0);
  std::vector<std::byte> host(256, std::byte{1}), other(256, std::byte{2});
  ASSERT_EQ(fake.register_host(host.data(), 256), 0);
  ASSERT_EQ(fake.register_host(other.data(), 256), 0);
  cuda::CudaStreamHandle stream = nullptr;
  ASSERT_EQ(fake.create_stream(&stream), 0);
  int poisoned = 0;
  for (int trial = 0; trial < 20; ++trial) {
    fake.hold();
    EXPECT_EQ(fake.copy_async(host.data(), other.data(), 256, stream), 0);
    poisoned += host[0] == options.poison ? 1 : 0;
    fake.release();
    EXPECT_EQ(fake.synchronize_stream(stream), 0);
    EXPECT_EQ(host[255], std::byte{2});
  }
  EXPECT_EQ(poisoned, 20);
  EXPECT_EQ(fake.destroy_stream(stream), 0);
  EXPECT_EQ(fake.unregister_host(host.data()), 0);
  EXPECT_EQ(fake.unregister_host(other.data()), 0);
}

TEST_F(FakeCudaFinds, MemoryGivenBackUnderACopy) {
  fake_.hold();
  EXPECT_EQ(fake_.copy_async(there_, host_.data(), 4096, stream_), 0);
  EXPECT_EQ(fake_.unregister_host(host_.data()), 0);
  fake_.release();
  EXPECT_EQ(fake_.synchronize_stream(stream_), 0);
  EXPECT_THAT(fake_.complaints(), ElementsAre(HasSubstr("under way")));
  EXPECT_EQ(fake_.register_host(host_.data(), 4096), 0);
  EXPECT_EQ(fake_.free(there_), 0);
}

TEST_F(FakeCudaFinds, UseOfWhatIsNotThere) {
  cuda::CudaEventHandle event = nullptr;
  cuda::CudaStreamHandle stream = nullptr;
  ASSERT_EQ(fake_.create_event(&event), 0);
  ASSERT_EQ(fake_.create_stream(&stream), 0);
  EXPECT_EQ(fake_.destroy_event(event), 0);
  EXPECT_EQ(fake_.destroy_stream(stream), 0);
  EXPECT_NE(fake_.record_event(event, stream_), 0);
  EXPECT_NE(fake_.copy_async(there_, host_.data(), 1, stream), 0);
  EXPECT_EQ(fake_.free(there_), 0);
  EXPECT_NE(fake_.free(there_), 0);
  EXPECT_NE(fake_.unregister_host(host_.data() + 8), 0);
  EXPECT_NE(fake_.register_host(host_.data() + 8, 8), 0);
  EXPECT_EQ(fake_.complaints().size(), 5U);
}

TEST_F(FakeCudaFinds, ThreadsWithoutADevice) {
  std::thread([&] { (void)fake_.copy_async(there_, host_.data(), 1, stream_); }).join();
  EXPECT_THAT(fake_.complaints(), ElementsAre(HasSubstr("never set its device")));
  EXPECT_EQ(fake_.free(there_), 0);
}

TEST(FakeCuda, ReportsLeaksAtItsEnd) {
  std::vector<std::string> told;
  {
    FakeCuda fake({.report = [&](const std::string& text) { told.push_back(text); }});
    void* data = nullptr;
    cuda::CudaEventHandle event = nullptr;
    ASSERT_EQ(fake.set_device(0), 0);
    ASSERT_EQ(fake.allocate(&data, 100), 0);
    ASSERT_EQ(fake.create_event(&event), 0);
  }
  EXPECT_THAT(told, ElementsAre("never given back: device memory of 100 bytes, 1 events"));
}

TEST(FakeCuda, FailsWhereItIsTold) {
  FakeCuda fake;
  fake.fail(FakeCuda::Call::set_device, {.at = 1, .code = 46});
  int count = 0;
  EXPECT_EQ(fake.set_device(0), 0);
  EXPECT_EQ(fake.set_device(0), 46);
  EXPECT_EQ(fake.set_device(0), 0);
  fake.fail({.at = 4, .code = 700, .sticky = true});
  EXPECT_EQ(fake.device_count(&count), 0);
  EXPECT_EQ(fake.device_count(&count), 700);
  EXPECT_EQ(fake.set_device(0), 700);
}

}  // namespace terrace::test
