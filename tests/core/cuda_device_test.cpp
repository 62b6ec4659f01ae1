// The CUDA device's use of CUDA: the calls that it makes, those that it never makes, and what remains after a failed call.
#include <terrace/core/cuda/device.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>

#include <terrace/core/cuda/cuda_error.h>
#include <terrace/core/cuda/memory.h>
#include <terrace/core/cuda/stream.h>
#include <terrace/core/cuda/workspace.h>
#include <terrace/core/device/issued.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/tests/support/gpu/fake_kernels.h>
#include <terrace/tests/support/test_device.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

using Call = FakeCuda::Call;
using testing::HasSubstr;

constexpr cuda::CudaPieces kSmallPieces{.copy_bytes = 64 * kKiB, .register_bytes = kMiB, .progress_bytes = 4 * kMiB};

class CudaDeviceCalls : public testing::Test {
 protected:
  std::unique_ptr<Device> make(const CudaOptions& options = {}) {
    return make_fake_cuda_device(fake_, pool_, options, kSmallPieces);
  }
  // The message of the Error that `what` must throw.

  ThreadPool pool_{1};
  std::shared_ptr<FakeCuda> fake_ = std::make_shared<FakeCuda>(strict_fake());
};

std::uintptr_t address(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

}  // namespace

TEST_F(CudaDeviceCalls, CopiesAreCutIntoPiecesThatCrossNoRegistration) {
  const auto device = make();
  const Slab host = device->host_memory()->allocate(3 * kMiB + 4096);
  const Slab there = device->memory().allocate(host.bytes());
  const auto stream = device->make_stream("upload");
  stream->copy(there.data(), host.data() + 1000, host.bytes() - 1000);
  stream->synchronize();
  const auto copies = fake_->records(Call::copy_async);
  std::size_t bytes = 0;
  for (const auto& copy : copies) {
    EXPECT_EQ(copy.to, there.data() + bytes);
    EXPECT_EQ(copy.from, host.data() + 1000 + bytes);
    EXPECT_LE(copy.bytes, kSmallPieces.copy_bytes);
    EXPECT_EQ(address(copy.from) / kMiB, (address(copy.from) + copy.bytes - 1) / kMiB);
    bytes += copy.bytes;
  }
  EXPECT_EQ(bytes, host.bytes() - 1000);
  EXPECT_EQ(fake_->count(Call::record_event), 1U) << "one for the end, none for the pieces";
}

TEST_F(CudaDeviceCalls, AWorkspaceOfAStreamThatIsGoneIsUsedAgain) {
  const auto device = make();
  cuda::StreamWorkspaces workspaces(*device);
  const auto of = [&](const std::unique_ptr<Stream>& stream) { return workspaces.of(cuda::cuda_stream(*stream)).data; };
  const auto stays = device->make_stream("compute");
  const auto* const own = of(stays);
  std::vector<std::unique_ptr<std::byte[]>> where_streams_were;  // no stream is made twice at one address
  for (int i = 0; i < 10; ++i) {
    auto stream = device->make_stream("another");
    EXPECT_NE(of(stream), own);
    stream.reset();
    where_streams_were.push_back(std::make_unique<std::byte[]>(sizeof(cuda::CudaStream)));
  }
  EXPECT_EQ(of(stays), own);
  EXPECT_EQ(fake_->used_bytes(), 2 * cuda::kWorkspaceBytes);
}

TEST_F(CudaDeviceCalls, WorkspacesAreMadeAtOnceAndGivenBackWithTheirStreams) {
  const auto device = make();
  cuda::StreamWorkspaces workspaces(*device);
  const auto a = device->make_stream("compute"), b = device->make_stream("communication");
  auto gone = device->make_stream("measure"), gone_too = device->make_stream("measure");
  workspaces.make(std::array{a.get(), gone.get(), gone_too.get()});
  gone.reset();
  gone_too.reset();
  EXPECT_EQ(fake_->used_bytes(), 3 * cuda::kWorkspaceBytes);
  workspaces.make(std::array{a.get(), b.get()});
  EXPECT_EQ(fake_->used_bytes(), 2 * cuda::kWorkspaceBytes);
  const auto calls = fake_->count(Call::allocate) + fake_->count(Call::free);
  EXPECT_NE(workspaces.of(cuda::cuda_stream(*a)).data, workspaces.of(cuda::cuda_stream(*b)).data);
  EXPECT_EQ(fake_->count(Call::allocate) + fake_->count(Call::free), calls) << "in mid-run";
}

TEST_F(CudaDeviceCalls, HostMemoryIsRegisteredWholeAndUnregisteredBeforeItGoes) {
  const auto device = make();
  {
    const Slab slab = device->host_memory()->allocate(2 * kMiB + 8192);
    auto pieces = fake_->records(Call::register_host);
    std::ranges::sort(pieces, {}, [](const auto& piece) { return address(piece.to); });
    auto* next = slab.data();
    for (const auto& piece : pieces) {
      EXPECT_EQ(piece.to, next);
      EXPECT_LE(piece.bytes, kMiB);
      next += piece.bytes;
    }
    EXPECT_EQ(next, slab.data() + slab.bytes());
    EXPECT_GE(fake_->count(Call::register_host), 3U);
  }
  EXPECT_EQ(fake_->count(Call::register_host), fake_->count(Call::unregister_host));
  EXPECT_EQ(fake_->leaks(), "");
}

TEST_F(CudaDeviceCalls, ALongRegistrationSaysHowFarItIs) {
  const auto device = make();
  testing::internal::CaptureStderr();
  { const Slab slab = device->host_memory()->allocate(9 * kMiB); }
  const auto text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("cuda:0: 4.0"));
  EXPECT_EQ(std::ranges::count(text, '\n'), 2) << text;
}

TEST_F(CudaDeviceCalls, ItsNotesAndWarningsGoToTheLogOfItsOptions) {
  std::string notes, warnings;
  testing::internal::CaptureStderr();
  {
    const auto device = make(
        {.log = Log([&](Log::Level level, std::string_view text) { (level == Log::Level::note ? notes : warnings) += text; })});
    fake_->fail(Call::unregister_host, {.code = 1});
    const Slab slab = device->host_memory()->allocate(9 * kMiB);
  }
  EXPECT_EQ("", testing::internal::GetCapturedStderr());
  EXPECT_THAT(notes, HasSubstr("cuda:0: 4.0"));
  EXPECT_THAT(warnings, HasSubstr("cudaHostUnregister failed"));
}

TEST_F(CudaDeviceCalls, ARegistrationThatFailsLeavesNothing) {
  const auto device = make();
  fake_->fail(Call::register_host, {.at = 2, .code = cuda::kCudaOutOfMemory});
  const auto text = error_of([&] { (void)device->host_memory()->allocate(4 * kMiB); });
  EXPECT_THAT(text, HasSubstr("cuda:0: cudaHostRegister of"));
  EXPECT_THAT(text, HasSubstr("cudaErrorMemoryAllocation (2)"));
  EXPECT_THAT(text, HasSubstr("memlock limit is"));
  EXPECT_EQ(text.find("device-memory"), std::string::npos) << "that setting does not help here: " << text;
  EXPECT_EQ(fake_->count(Call::unregister_host), fake_->count(Call::register_host) - 1);
  EXPECT_EQ(fake_->leaks(), "");
}

TEST_F(CudaDeviceCalls, TheMemoryLimitIsExact) {
  const auto device = make({.memory_limit_bytes = 5 * kPageBytes});
  Slab three = device->memory().allocate(3 * kPageBytes);
  const Slab two = device->memory().allocate(kPageBytes + 1);
  EXPECT_EQ(fake_->used_bytes(), 5 * kPageBytes);
  const auto calls = fake_->count();
  EXPECT_THAT(error_of([&] { (void)device->memory().allocate(1); }), HasSubstr("20480 of 20480 bytes are in use"));
  EXPECT_EQ(fake_->count(), calls) << "what is over the limit never reaches CUDA";
  three.reset();
  EXPECT_EQ(fake_->used_bytes(), 2 * kPageBytes);
  three = device->memory().allocate(3 * kPageBytes);
}

TEST_F(CudaDeviceCalls, AFullGpuSaysWhatIsFree) {
  const auto device = make();
  const Slab most = device->memory().allocate(200 * kMiB);
  const auto text = error_of([&] { (void)device->memory().allocate(100 * kMiB); });
  EXPECT_THAT(text, HasSubstr("cuda:0: cudaMalloc of 100 MiB (104857600 bytes; 56.0 MiB of 256 MiB are free) failed"));
  EXPECT_THAT(text, HasSubstr("`device-memory`"));
}

TEST_F(CudaDeviceCalls, HostWorkAloneAsksNothingOfTheGpu) {
  const auto device = make();
  const auto stream = device->make_stream("host");
  const auto calls = [&] {
    return fake_->count(Call::record_event) + fake_->count(Call::synchronize_stream) + fake_->count(Call::create_event);
  };
  for (int i = 0; i < 10; ++i) {
    stream->submit([] {});
    stream->then([](const std::exception_ptr&) {});
    stream->synchronize();
  }
  EXPECT_EQ(calls(), 0U);
}

TEST_F(CudaDeviceCalls, EventsAreUsedAgainAndSharedWhereNothingStandsBetween) {
  const auto device = make();
  const Slab host = device->host_memory()->allocate(4096), there = device->memory().allocate(4096);
  const auto stream = device->make_stream("upload");
  for (int i = 0; i < 200; ++i) {
    stream->copy(there.data(), host.data(), 4096);
    stream->then([](const std::exception_ptr&) {});
    (void)stream->record();
    stream->synchronize();
  }
  EXPECT_EQ(fake_->count(Call::record_event), 200U);
  EXPECT_EQ(fake_->count(Call::create_event), 1U);
}

TEST_F(CudaDeviceCalls, TheGpuRunsOnWhileTheStreamWaitsAndNobodyWaitsForThen) {
  const auto device = make();
  const Slab host = device->host_memory()->allocate(2 * 4096), there = device->memory().allocate(4096);
  std::fill_n(host.data(), 4096, std::byte{9});
  const auto gate = std::make_shared<Timeline>();
  const auto a = device->make_stream("a");
  a->copy(there.data(), host.data(), 4096);
  const Event copied = a->record();
  a->wait(Event(gate, 1));
  const Event end = a->record();
  copied.wait();  // although the stream waits at the gate
  EXPECT_FALSE(end.done());
  gate->advance(1);
  end.wait();

  const auto b = device->make_stream("b"), c = device->make_stream("c");
  b->then([held = Event(gate, 2)](const std::exception_ptr&) { held.wait(); });
  b->copy(host.data() + 4096, there.data(), 4096);
  bool copied_beside_then = false;
  b->submit([&] {
    copied_beside_then = host.data()[4096] == std::byte{9};
    gate->advance(2);  // only now can `then` continue
  });
  b->synchronize();
  EXPECT_TRUE(copied_beside_then);
}

// Two streams of one device, and the timeline of the first one.
class FollowedStreams : public CudaDeviceCalls {
 protected:
  // The end of what `a` does so far is the first point.
  void end_of_a() {
    dynamic_cast<device::IssuingStream&>(*a_).announce(points_, 1);
    a_->then([this](const std::exception_ptr& failure) { failure ? timeline_->fail(failure) : timeline_->advance(1); });
  }
  void follow_a() { dynamic_cast<device::IssuingStream&>(*b_).follow(points_, 1); }
  void wait_for(Call call, std::uint64_t count) const {
    while (fake_->count(call) < count) std::this_thread::yield();
  }

  const std::unique_ptr<Device> device_ = make();
  const Slab host_ = device_->host_memory()->allocate(2 * 4096), there_ = device_->memory().allocate(4096);
  const std::shared_ptr<Timeline> timeline_ = std::make_shared<Timeline>();
  const std::shared_ptr<device::IssuedPoints> points_ = std::make_shared<device::IssuedPoints>(timeline_);
  const std::unique_ptr<Stream> a_ = device_->make_stream("a"), b_ = device_->make_stream("b");
};

TEST_F(FollowedStreams, WaitOnTheGpuAndNotOnTheHost) {
  std::fill_n(host_.data(), 4096, std::byte{9});
  fake_->hold();
  follow_a();  // before there is anything to wait for
  b_->copy(host_.data() + 4096, there_.data(), 4096);
  a_->copy(there_.data(), host_.data(), 4096);
  end_of_a();
  wait_for(Call::copy_async, 2);  // both are issued, and neither has run
  EXPECT_EQ(timeline_->now(), 0U);
  EXPECT_EQ(fake_->count(Call::stream_wait_event), 1U);
  fake_->release();
  b_->synchronize();
  EXPECT_EQ(timeline_->now(), 1U) << "what the first stream reports comes first";
  EXPECT_EQ(host_.data()[4096 + 4095], std::byte{9});
}

// The fault is seen after its work has ended, when the other stream's work is issued already.
TEST_F(FollowedStreams, FailWithTheStreamThatTheyFollow) {
  bool ran = false;
  fake_->hold();
  a_->copy(there_.data(), host_.data(), 4096);
  cuda::cuda_stream(*a_).expect([] { throw std::out_of_range("a token"); });
  a_->copy(there_.data(), host_.data(), 4096);
  end_of_a();
  follow_a();
  b_->copy(host_.data() + 4096, there_.data(), 4096);
  const Event copied = b_->record();
  b_->submit([&ran] { ran = true; });
  wait_for(Call::copy_async, 3);
  fake_->release();
  EXPECT_THROW(copied.wait(), std::out_of_range);
  EXPECT_THROW(b_->synchronize(), std::out_of_range);
  EXPECT_FALSE(ran);
}

TEST_F(FollowedStreams, WaitOnTheHostForPointsThatNoStreamAnnounces) {
  follow_a();
  b_->copy(host_.data() + 4096, there_.data(), 4096);
  const Event end = b_->record();
  EXPECT_FALSE(end.done());
  timeline_->advance(1);
  end.wait();
  EXPECT_EQ(fake_->count(Call::stream_wait_event), 0U);
  timeline_->fail(std::make_exception_ptr(std::out_of_range("a token")));
  dynamic_cast<device::IssuingStream&>(*b_).follow(points_, 2);
  EXPECT_THROW(b_->synchronize(), std::out_of_range);
}

TEST_F(CudaDeviceCalls, HostWorkWaitsForTheGpu) {
  const auto device = make();
  const Slab host = device->host_memory()->allocate(8192), there = device->memory().allocate(4096);
  std::fill_n(host.data(), 4096, std::byte{9});
  const auto stream = device->make_stream("a");
  fake_->hold();
  stream->copy(there.data(), host.data(), 4096);
  stream->copy(host.data() + 4096, there.data(), 4096);
  std::atomic<bool> ran{false}, seen{false};
  stream->submit([&] {
    ran = true;
    seen = host.data()[4096 + 4095] == std::byte{9};
  });
  const Event end = stream->record();
  while (!ran && fake_->count(Call::synchronize_stream) == 0) std::this_thread::yield();
  EXPECT_FALSE(ran);
  EXPECT_FALSE(end.done());
  fake_->release();
  end.wait();
  EXPECT_TRUE(seen);
}

TEST_F(CudaDeviceCalls, KernelsRunInOrderWithCopies) {
  const auto device = make();
  const Slab host = device->host_memory()->allocate(8192), there = device->memory().allocate(4096);
  std::fill_n(host.data(), 4096, std::byte{1});
  const auto stream = device->make_stream("compute");
  stream->copy(there.data(), host.data(), 4096);
  for (int value = 1; value <= 10; ++value) {
    cuda::cuda_stream(*stream).launch([&, value](cuda::CudaStreamHandle handle) {
      const AddArguments arguments{there.data(), 4096, value};
      const cuda::CudaLaunch launch{
          .kernel = kernel(add_kernel), .threads = 128, .arguments = &arguments, .argument_bytes = sizeof arguments};
      ASSERT_EQ(fake_->launch(launch, handle), 0);
    });
  }
  stream->copy(host.data() + 4096, there.data(), 4096);
  stream->synchronize();
  EXPECT_TRUE(std::all_of(host.data() + 4096, host.data() + 8192, [](std::byte b) { return b == std::byte{56}; }));
  EXPECT_EQ(fake_->count(Call::launch), 10U);

  const auto cpu = make_cpu_device(pool_);
  const auto other = cpu->make_stream("cpu");
  EXPECT_THROW((void)cuda::cuda_stream(*other), std::logic_error);
}

TEST_F(CudaDeviceCalls, WhatAKernelDoesWrongReachesEveryEventBehindIt) {
  const auto device = make();
  const Slab host = device->host_memory()->allocate(4096), there = device->memory().allocate(4096);
  auto a = device->make_stream("a");
  const auto b = device->make_stream("b");
  b->synchronize();  // its threads have started
  a->copy(there.data(), host.data(), 4096);
  const Event good = a->record();
  good.wait();
  fake_->fail_operation(0, 700);  // the next operation; the number of pieces of the first copy depends on its address
  fake_->hold();                  // so that the copy fails after everything has been issued
  a->copy(there.data(), host.data(), 4096);
  bool ran = false;
  a->then([&](const std::exception_ptr& failure) { ran = !failure; });
  b->wait(a->record());
  b->submit([&] { ran = true; });
  while (fake_->count(Call::record_event) < 2) std::this_thread::yield();
  testing::internal::CaptureStderr();
  fake_->release();
  for (auto* const stream : {a.get(), b.get()}) {
    const auto text = error_of([&] { stream->synchronize(); });
    EXPECT_THAT(text, HasSubstr("cuda:0, stream \"a\": cudaEventSynchronize failed: cudaErrorIllegalAddress (700)"));
    EXPECT_THAT(text, HasSubstr("compute-sanitizer"));
  }
  EXPECT_NO_THROW(good.wait());
  a.reset();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "an error is told once";
  EXPECT_FALSE(ran);
}

// A caller that receives an error releases its buffers; the fake complains if a copy is still running then.
TEST_F(CudaDeviceCalls, AnErrorIsToldWhenNothingRunsAnyMore) {
  for (const auto call : {Call::synchronize_event, Call::record_event, Call::copy_async, Call::synchronize_stream}) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      SCOPED_TRACE(std::string(FakeCuda::cuda_name(call)) + ", seed " + std::to_string(seed));
      auto options = strict_fake();
      options.jitter_seed = seed;
      const auto fake = std::make_shared<FakeCuda>(options);
      const auto device = make_fake_cuda_device(fake, pool_, {}, kSmallPieces);
      Slab host = device->host_memory()->allocate(20 * kSmallPieces.copy_bytes);
      const Slab there = device->memory().allocate(host.bytes());
      const auto stream = device->make_stream("upload");
      fake->fail(call, {.at = call == Call::copy_async ? 12U : 0U, .code = 999});
      for (int i = 0; i < 2; ++i) {
        stream->copy(there.data(), host.data(), host.bytes());
        (void)stream->record();
      }
      // Only for synchronize_stream: in the other cases a successful stream synchronisation would change the error that an
      // event reports.
      if (call == Call::synchronize_stream) stream->submit([] {});
      EXPECT_THROW(stream->synchronize(), cuda::CudaError);
      host.reset();
    }
  }
}

TEST_F(CudaDeviceCalls, ADeviceThatIsNotThereIsMissingHardware) {
  for (const int index : {-1, 1, 7}) {
    EXPECT_THAT(error_of(ErrorKind::missing, [&] { make({.index = index}); }),
                HasSubstr("cuda:" + std::to_string(index) + " does not exist: this process sees 1 GPU"));
  }
  fake_->fail(Call::device_count, {.at = 3, .code = 35});
  EXPECT_THAT(error_of(ErrorKind::missing, [&] { make(); }),
              testing::AllOf(HasSubstr("cudaGetDeviceCount"), HasSubstr("newer driver")));
}

}  // namespace terrace::test
