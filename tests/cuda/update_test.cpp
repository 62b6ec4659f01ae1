// The GPU's updates, run through the emulated lane, give the same bits as the host's, for every optimizer and recipe.
#include <terrace/optimizers/cuda/update_launch.h>

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <terrace/tests/optimizers/recipe_cases.h>
#include <terrace/tests/optimizers/test_chunk.h>
#include <terrace/tests/support/gpu/emulated_lane.h>

namespace terrace::test {
namespace {

struct Case {
  const char* optimizer;
  OptimizerSettings settings = {};
  const char* variant = "";
};
const std::vector<Case> kCases{{"adamw"},
                               {"adam"},
                               {"sgd", {.momentum = 0}, "_plain"},
                               {"sgd", {.momentum = 0.9}, "_momentum"},
                               {"sgd", {.momentum = 0.8, .nesterov = true}, "_nesterov"},
                               {"lion", {.beta2 = 0.99}},
                               {"adagrad", {.eps = 1e-10}}};

using Param = std::tuple<std::size_t, RecipeCase>;
std::string name_of(const testing::TestParamInfo<Param>& info) {
  const auto& [c, recipe] = info.param;
  auto name = fmt::format("{}{}_{}_{}", kCases[c].optimizer, kCases[c].variant, recipe.name, terrace::name_of(recipe.dtype));
  std::ranges::replace(name, '-', '_');
  return name;
}

class CudaUpdate : public testing::TestWithParam<Param> {
 protected:
  CudaUpdate() : host(make_optimizer(tested().optimizer, tested().settings)) {}
  [[nodiscard]] static const Case& tested() { return kCases[std::get<0>(GetParam())]; }
  [[nodiscard]] TestChunk chunk(std::int64_t elements) const {
    const auto& recipe = std::get<1>(GetParam());
    TestChunk c(rules::Recipe::of(recipe.dtype, recipe.name, host->states()), elements);
    // Unwritten memory is NaN, also as codes of 8-bit states.
    for (const auto kind : c.recipe().kinds()) std::ranges::fill(c.bytes(kind), std::byte{0xff});
    return c;
  }
  static UpdateStep step_of(std::uint64_t t) {
    return {.step = t,
            .learning_rate = 1e-3 * static_cast<double>(t % 7),
            .gradient_scale = t % 2 == 0 ? 0.37 : 1.0,
            .seed = 5,
            .first = t == 1};
  }
  void update_on_gpu(const UpdateStep& step, TestChunk& c) {
    cuda::launch_update(EmulatedLauncher{&counts, step.step}, maps, tested().optimizer, tested().settings, step, c.update());
  }
  static void expect_same(const TestChunk& host, const TestChunk& gpu, const std::string& when) {
    for (const auto kind : host.recipe().kinds()) {
      if (host.bytes(kind) == gpu.bytes(kind)) continue;
      // A NaN's sign and payload are not specified; every other bit is.
      for (std::int64_t i = 0; i < host.elements(); ++i) {
        ASSERT_TRUE(same(gpu.number(kind, i), host.number(kind, i)))
            << when << ", element " << i << ", " << name_of(kind) << ": " << gpu.number(kind, i) << " on the GPU, "
            << host.number(kind, i) << " on the host; gradient " << host.gradient(i);
      }
    }
  }
  static std::string_view name_of(ChunkKind kind) { return terrace::name_of(kind); }

  ThreadPool pool{2};
  std::unique_ptr<Optimizer> host;
  EmulatedCounts counts;
  const cuda::UpdateMaps maps{&rules::dynamic8::map_of(rules::dynamic8::Sign::both),
                              &rules::dynamic8::map_of(rules::dynamic8::Sign::none)};
};

// Parts that begin and end anywhere, padding between and after them, incomplete tiles, and hostile gradients.
TEST_P(CudaUpdate, GivesTheBitsOfTheHost) {
  for (const std::int64_t elements : {2, 255, 1003, 2500}) {
    auto on_host = chunk(elements);
    on_host.parts = {{.first = 0, .count = elements / 3, .stream = 77, .tensor_element = 1003}};
    if (elements > 100) {
      on_host.parts.push_back({.first = elements / 3, .count = elements / 4, .decay = 0, .stream = 78});
      on_host.parts.push_back({.first = elements - 60, .count = 47, .rate = 0.5, .stream = 79, .tensor_element = 6});
    }
    draw_weights(on_host, static_cast<std::uint64_t>(elements));
    auto on_gpu = on_host;
    for (std::uint64_t t = 1; t <= 52; t += t == 6 ? 44 : 1) {  // draw_hostile_gradients() has infinities and NaNs at 50
      draw_hostile_gradients(on_host, t);
      on_gpu.bytes(ChunkKind::gradient) = on_host.bytes(ChunkKind::gradient);
      host->update(pool, step_of(t), on_host.update());
      update_on_gpu(step_of(t), on_gpu);
      ASSERT_NO_FATAL_FAILURE(expect_same(on_host, on_gpu, fmt::format("{} elements, step {}", elements, t)));
    }
  }
}

// More parts than one launch can take: launches are cut between tiles.
TEST_P(CudaUpdate, ManyPartsTakeSeveralLaunches) {
  auto on_host = chunk(9000);
  on_host.parts.clear();
  for (std::int64_t first = 300; first + 90 < 9000; first += 97)
    on_host.parts.push_back({.first = first, .count = 90 - first % 5, .decay = static_cast<double>(first % 2), .stream = 3});
  ASSERT_GT(on_host.parts.size(), 2 * cuda::kMaxUpdateParts);
  draw_weights(on_host, 1);
  auto on_gpu = on_host;
  for (std::uint64_t t = 1; t <= 2; ++t) {
    draw_gradients(on_host, t);
    on_gpu.bytes(ChunkKind::gradient) = on_host.bytes(ChunkKind::gradient);
    host->update(pool, step_of(t), on_host.update());
    update_on_gpu(step_of(t), on_gpu);
    ASSERT_NO_FATAL_FAILURE(expect_same(on_host, on_gpu, fmt::format("step {}", t)));
  }
}

TEST_P(CudaUpdate, TooManyTinyPartsAreRefused) {
  auto c = chunk(100);
  c.parts.clear();
  for (std::int64_t i = 0; i < 100; ++i) c.parts.push_back({.first = i, .count = 1});
  EXPECT_THROW(update_on_gpu(step_of(1), c), std::logic_error);
}

INSTANTIATE_TEST_SUITE_P(All, CudaUpdate,
                         testing::Combine(testing::Range<std::size_t>(0, kCases.size()), testing::ValuesIn(recipe_cases())),
                         name_of);

// All optimizers that update chunk by chunk; the others run on the host.
TEST(CudaUpdateCases, AreAllOptimizers) {
  for (const auto& known : optimizers())
    EXPECT_TRUE(make_optimizer(known.name, {})->layer_unit() ||
                std::ranges::any_of(kCases, [&](const Case& c) { return c.optimizer == known.name; }))
        << known.name;
}

}  // namespace
}  // namespace terrace::test
