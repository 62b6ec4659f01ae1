// Ranges of streams, as a profiler wrapped around the CUDA runtime receives them.
#include <terrace/core/device/stream_range.h>

#include <gmock/gmock.h>

#include <terrace/core/cuda/stream.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/tests/support/gpu/fake_profiler.h>
#include <terrace/tests/support/test_device.h>

namespace terrace::test {
namespace {

using testing::ElementsAre;

class StreamRanges : public testing::Test {
 protected:
  std::unique_ptr<Device> make(cuda::CudaProfiler* profiler) {
    auto options = strict_fake();
    options.profiler = profiler;
    options.pageable_copies = true;
    options.jitter_seed = 11;
    return make_fake_cuda_device(std::make_shared<FakeCuda>(options), pool_);
  }
  ThreadPool pool_{1};
  FakeProfiler profiler_;
};

TEST_F(StreamRanges, CoverWhatTheStreamIssuesBetweenTheirEnds) {
  const auto device = make(&profiler_);
  const auto stream = device->make_stream("compute");
  std::vector<std::string> seen;
  const auto look = [&](cuda::CudaStreamHandle) { seen.push_back(profiler_.open_range()); };
  cuda::cuda_stream(*stream).launch(look);
  {
    const device::StreamRange outer(*stream, [] { return "forward l1 m0"; });
    cuda::cuda_stream(*stream).launch(look);
    {
      const device::StreamRange inner(*stream, [] { return "norm"; });
      cuda::cuda_stream(*stream).launch(look);
    }
    cuda::cuda_stream(*stream).launch(look);
  }
  cuda::cuda_stream(*stream).launch(look);
  stream->synchronize();
  EXPECT_THAT(seen, ElementsAre("", "forward l1 m0", "norm", "forward l1 m0", ""));
  EXPECT_THAT(profiler_.streams(), ElementsAre("compute"));
  EXPECT_EQ(profiler_.complaints(), "");
}

TEST_F(StreamRanges, CloseAlsoWhenTheWorkInThemFails) {
  {
    const auto device = make(&profiler_);
    const auto stream = device->make_stream("compute");
    {
      const device::StreamRange range(*stream, [] { return "forward l1 m0"; });
      cuda::cuda_stream(*stream).launch([](cuda::CudaStreamHandle) { throw std::runtime_error("a launch failed"); });
    }
    const device::StreamRange after(*stream, [] { return "forward l2 m0"; });
    EXPECT_THROW(stream->synchronize(), std::runtime_error);
  }
  EXPECT_THAT(profiler_.ranges("compute"), ElementsAre("forward l1 m0", "forward l2 m0"));
  EXPECT_EQ(profiler_.complaints(), "");
}

TEST_F(StreamRanges, CostNotEvenANameWhereNobodyLooksOn) {
  const auto name = []() -> std::string {
    ADD_FAILURE() << "a name was made";
    return "";
  };
  const auto cpu = make_cpu_device(pool_);
  const auto gpu = make(nullptr);
  for (auto* const device : {cpu.get(), gpu.get()}) {
    const auto stream = device->make_stream("compute");
    const device::StreamRange range(*stream, name);
    stream->synchronize();
  }
}

}  // namespace
}  // namespace terrace::test
