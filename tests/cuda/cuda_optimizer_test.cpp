// Which updates run on a GPU: with a fake CUDA runtime and emulated kernels.
#include <terrace/optimizers/cuda/cuda_optimizer.h>

#include <gtest/gtest.h>

#include <atomic>

#include <terrace/core/base/error.h>
#include <terrace/tests/optimizers/test_chunk.h>
#include <terrace/tests/support/gpu/emulated_updates.h>
#include <terrace/tests/support/test_device.h>

namespace terrace::test {
namespace {

class CudaOptimizerTest : public testing::Test {
 protected:
  rules::LaunchUpdate emulated() { return emulated_updates(fake, launched); }

  static TestChunk drawn_chunk() {
    TestChunk chunk(rules::Recipe::of(DType::bf16, "8bit"), 3000);
    chunk.parts = {{.first = 0, .count = 1700, .stream = 1}, {.first = 1800, .count = 1100, .decay = 0, .stream = 2}};
    draw_weights(chunk, 1);
    draw_gradients(chunk, 2);
    return chunk;
  }
  static constexpr UpdateStep kStep{.learning_rate = 1e-2, .first = true};

  static FakeCuda::Options options() {
    auto o = strict_fake();
    o.pageable_copies = true;
    o.jitter_seed = 7;
    return o;
  }
  ThreadPool pool{2};
  std::shared_ptr<FakeCuda> fake = std::make_shared<FakeCuda>(options());
  std::unique_ptr<Device> device = make_fake_cuda_device(fake, pool);
  std::atomic<int> launched = 0;
};

TEST_F(CudaOptimizerTest, UpdatesOnItsStreamsInTheirOrder) {
  auto chunk = drawn_chunk(), expected = chunk;
  make_optimizer("adamw", {})->update(pool, kStep, expected.update());

  const auto optimizer = rules::make_cuda_optimizer("adamw", {}, emulated());
  const auto stream = device->make_stream("compute");
  std::vector<Slab> slabs;
  auto on_device = chunk.update();
  const auto upload = [&](Stored& stored, ChunkKind kind) {
    auto& bytes = chunk.bytes(kind);
    slabs.push_back(device->memory().allocate(bytes.size()));
    stream->copy(slabs.back().data(), bytes.data(), bytes.size());
    stored.data = slabs.back().data();
  };
  const std::vector<ChunkKind> kinds{ChunkKind::parameter, ChunkKind::master, ChunkKind::gradient, ChunkKind::first_moment,
                                     ChunkKind::second_moment};
  Stored* const places[] = {&on_device.parameter, &on_device.master, &on_device.gradient, &on_device.states[0],
                            &on_device.states[1]};
  for (std::size_t i = 0; i < kinds.size(); ++i) upload(*places[i], kinds[i]);
  auto parts = chunk.parts;
  on_device.parts = parts;
  optimizer->enqueue(*stream, kStep, on_device);
  parts.assign(parts.size(), {});  // they were copied before
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    stream->copy(chunk.bytes(kinds[i]).data(), places[i]->data, chunk.bytes(kinds[i]).size());
  }
  stream->synchronize();
  EXPECT_EQ(launched, 1);
  for (const auto kind : kinds) EXPECT_EQ(chunk.bytes(kind), expected.bytes(kind)) << name_of(kind);
}

TEST_F(CudaOptimizerTest, UpdatesElsewhereOnTheHost) {
  auto chunk = drawn_chunk(), expected = chunk;
  make_optimizer("adamw", {})->update(pool, kStep, expected.update());
  const auto optimizer = rules::make_cuda_optimizer("adamw", {}, emulated());
  const auto host = make_cpu_device(pool);
  const auto stream = host->make_stream("update");
  optimizer->enqueue(*stream, kStep, chunk.update());
  stream->synchronize();
  EXPECT_EQ(launched, 0);
  for (const auto kind : chunk.recipe().kinds()) EXPECT_EQ(chunk.bytes(kind), expected.bytes(kind)) << name_of(kind);
}

TEST_F(CudaOptimizerTest, ArraysThatDoNotMatchFailInTheStreamsEvents) {
  auto chunk = drawn_chunk();
  auto update = chunk.update();
  update.gradient.elements -= 1;
  const auto optimizer = rules::make_cuda_optimizer("adamw", {}, [&](auto, auto name, auto& settings, auto& step, auto& given) {
    EmulatedCounts counts;
    cuda::launch_update(EmulatedLauncher{&counts}, {}, name, settings, step, given);
  });
  const auto stream = device->make_stream("compute");
  optimizer->enqueue(*stream, kStep, update);
  EXPECT_THROW(stream->synchronize(), Error);
}

TEST_F(CudaOptimizerTest, IsTheHostsWhereTheDeviceIsTheHost) {
  const auto host = make_cpu_device(pool);
  EXPECT_EQ(make_optimizer_for(*host, "lion", {})->name(), "lion");
  EXPECT_EQ(rules::make_cuda_optimizer("lion", {}, emulated())->states(), make_optimizer("lion", {})->states());
  EXPECT_THROW(rules::make_cuda_optimizer("lion", {.beta1 = 2}, emulated()), Error);
}

}  // namespace
}  // namespace terrace::test
