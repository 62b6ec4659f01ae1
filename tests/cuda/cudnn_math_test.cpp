// A GPU's math with attention by cuDNN: it uses the device's own math and streams and a workspace in device memory, and is
// recorded.
#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/core/math/math.h>
#include <terrace/tests/math/math_fixture.h>

#include <terrace/tests/cuda/attention_oracle.h>
#include <terrace/tests/cuda/emulated_gpu.h>

namespace terrace::test {
namespace {

using cuda::cudnn::AttentionOptions;
using cuda::cudnn::Use;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kRoom = std::size_t{1} << 20;

class CudnnMath : public MathTest {
 protected:
  static AttentionOptions options(Use use) { return {.use = use, .library = TERRACE_FAKE_CUDNN, .room_bytes = kRoom}; }
  ThreadPool pool{2};
};

TEST_F(CudnnMath, MakesBothOfTheDevicesAttentions) {
  const AttentionShape s{2, 21, 4, 2, 32};
  const auto qkv = random(DType::bf16, {42, 256}, -2, 2), dout = random(DType::bf16, {42, 128}, -1, 1);
  const AttentionOracle want(s, qkv.values(), dout.values());
  Tensor out(DType::bf16, {42, 128}), lse(DType::fp32, {2, 4, 21}), dqkv(DType::bf16, {42, 256});
  const auto gpu = make_emulated_gpu(pool, {.kernel = "warps", .cudnn = options(Use::always)});
  {
    const auto on = gpu->make_stream("compute");
    gpu->math().attention(*on, s, out, lse, qkv);
    gpu->math().attention_grad(*on, s, dqkv, dout, out, lse, qkv);
    on->record().wait();
  }
  expect_near(out, want.out, tolerance(DType::bf16), "out");
  expect_near(lse, want.lse, tolerance(DType::fp32), "lse");
  expect_near(dqkv, want.dqkv, 2 * tolerance(DType::bf16), "dqkv");
  EXPECT_THAT(gpu->math().algorithms(), AllOf(HasSubstr("kv heads, dim 32] forward: by cuDNN 9.19.0, engine 6, knobs 24=26"),
                                              HasSubstr("kv heads, dim 32] gradient: by cuDNN 9.19.0, engine 6, knobs 24=26")));
}

TEST_F(CudnnMath, WithoutItsLibraryTheDeviceIsNotMade) {
  auto absent = options(Use::always);
  absent.library = "/no/such/libcudnn.so.9";
  EXPECT_THROW(make_emulated_gpu(pool, {.cudnn = absent}), Error);
}

}  // namespace
}  // namespace terrace::test
