// Lets every CUDA call fail in turn, once or permanently. Each time an error must name the call, nothing may hang or leak, and
// no buffer may be released while an operation on a stream may still use it.
#include <gmock/gmock.h>

#include <cstring>
#include <optional>

#include <terrace/core/cuda/cuda_error.h>
#include <terrace/core/cuda/stream.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/tests/support/gpu/fake_kernels.h>
#include <terrace/tests/support/test_device.h>

namespace terrace::test {
namespace {

using Call = FakeCuda::Call;
using testing::HasSubstr;

constexpr std::size_t kBytes = 300'000;

// A short use of a device: uploads on one stream, a kernel on a second, downloads on a third, and host work between them.
void live(const std::shared_ptr<FakeCuda>& fake, ThreadPool& pool) {
  const auto device =
      make_fake_cuda_device(fake, pool, {.memory_limit_bytes = kMiB}, {.copy_bytes = 128 * kKiB, .register_bytes = kMiB});
  const Slab from = device->host_memory()->allocate(kBytes), to = device->host_memory()->allocate(kBytes);
  const Slab there = device->memory().allocate(kBytes);
  {
    // Buffers outlive streams, as leases do: after an error, or after a stream has ended, no operation touches them.
    const auto upload = device->make_stream("upload"), compute = device->make_stream("compute"),
               download = device->make_stream("download");
    for (int round = 0; round < 3; ++round) {
      upload->submit([&, round] { std::memset(from.data(), round, kBytes); });
      upload->copy(there.data(), from.data(), kBytes);
      compute->wait(upload->record());
      cuda::cuda_stream(*compute).launch([&](cuda::CudaStreamHandle handle) {
        const AddArguments arguments{there.data(), kBytes, 5};
        const cuda::CudaLaunch launch{
            .kernel = kernel(add_kernel), .arguments = &arguments, .argument_bytes = sizeof arguments};
        if (const int code = fake->launch(launch, handle)) throw cuda::CudaError(*fake, code, "cuda:0", "cudaLaunchKernel");
      });
      compute->then([](const std::exception_ptr&) {});
      download->wait(compute->record());
      download->copy(to.data(), there.data(), kBytes);
      upload->wait(download->record());
      compute->synchronize();
    }
    upload->synchronize();
    download->synchronize();
  }
  for (std::size_t i = 0; i < kBytes; ++i) ASSERT_EQ(to.data()[i], std::byte{7}) << i;
}

struct Life {
  std::string error;  // empty: no error
  std::optional<Call> struck;
  bool typed = false;
};

Life live_with(Call call, const FakeCuda::Fault& fault, ThreadPool& pool) {
  auto options = strict_fake();
  options.jitter_seed = fault.at + 1;
  const auto fake = std::make_shared<FakeCuda>(options);
  fake->fail(call, fault);
  Life life;
  testing::internal::CaptureStderr();
  try {
    live(fake, pool);
  } catch (const cuda::CudaError& error) {
    life.typed = error.cuda_code() == fault.code;
    life.error = error.what();
  } catch (const std::exception& error) {
    life.error = error.what();
  }
  const auto warnings = testing::internal::GetCapturedStderr();
  if (life.error.empty()) life.error = warnings;
  life.struck = fake->struck();
  EXPECT_EQ(fake->leaks(), "");
  return life;
}

}  // namespace

// Counted per kind of call: the number and order of all calls differ between runs, because registrations depend on addresses,
// but each run makes at least one call of every kind.
TEST(CudaFaults, EveryCallFailsInTurn) {
  ThreadPool pool(1);
  for (const auto call :
       {Call::device_count, Call::properties, Call::set_device, Call::allocate, Call::free, Call::register_host,
        Call::unregister_host, Call::create_stream, Call::destroy_stream, Call::synchronize_stream, Call::copy_async,
        Call::launch, Call::create_event, Call::destroy_event, Call::record_event, Call::synchronize_event}) {
    const std::string name = FakeCuda::cuda_name(call);
    for (const bool sticky : {false, true}) {
      for (std::uint64_t at = 0;; ++at) {
        SCOPED_TRACE(name + " " + std::to_string(at) + (sticky ? ", sticky" : ""));
        const auto life = live_with(call, {.at = at, .code = 999, .sticky = sticky}, pool);
        if (!life.struck) {
          EXPECT_GT(at, 0U) << "never failed";
          break;
        }
        EXPECT_TRUE(life.typed || FakeCuda::told_by_warning(call)) << life.error;
        EXPECT_THAT(life.error, HasSubstr("cudaError999 (999)"));
        if (!sticky) {
          EXPECT_THAT(life.error, HasSubstr(name));
        }
      }
    }
  }
}

TEST(CudaFaults, EveryOperationOfTheGpuFailsInTurn) {
  ThreadPool pool(1);
  for (std::uint64_t at = 0; at < 21; ++at) {  // three rounds of three copies up, a kernel, three copies down
    SCOPED_TRACE("operation " + std::to_string(at));
    const auto fake = std::make_shared<FakeCuda>(strict_fake());
    fake->fail_operation(at, 700);
    testing::internal::CaptureStderr();
    try {
      live(fake, pool);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const cuda::CudaError& error) {
      EXPECT_EQ(error.cuda_code(), 700);
    }
    testing::internal::GetCapturedStderr();
    EXPECT_EQ(fake->leaks(), "");
  }
}

}  // namespace terrace::test
