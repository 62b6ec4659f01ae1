// Updates of whole layers by the GPU's kernels, run through the emulated lane, give the same bits as the host's: for every such
// optimizer and recipe, however the layer is cut into chunks and shared between ranks. Both sides use the CPU's matrix
// products.
#include <terrace/optimizers/cuda/layer_update.h>

#include <cstring>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <terrace/core/device/thread_pool.h>
#include <terrace/tests/optimizers/recipe_cases.h>
#include <terrace/tests/optimizers/test_layer.h>
#include <terrace/tests/support/gpu/emulated_lane.h>

namespace terrace::test {
namespace {

struct Case {
  const char* label;
  const char* optimizer;
  OptimizerSettings settings = {};
};
const std::vector<Case> kCases{{"lamb", "lamb"},
                               {"adafactor", "adafactor"},
                               {"muon", "muon", {.momentum = 0.95}},
                               {"muon_nesterov", "muon", {.momentum = 0.95, .nesterov = true}}};

// Every launch runs its threads in another order, because results must not depend on it.
struct EmulatedKernels {
  template <class Kernel, class Args>
  void run(const cuda::LaunchShape& shape, const Args& args) const {
    static_assert(sizeof(Args) <= 4096);
    stream.submit([shape, args, schedule = ++*launches % 8] { emulate<Kernel>(shape, args, schedule); });
  }
  Stream& stream;
  std::uint64_t* launches;
};

class OnEmulatedGpu final : public Optimizer {
 public:
  explicit OnEmulatedGpu(const Case& c) : host_(make_optimizer(c.optimizer, c.settings)), settings_(c.settings) {}
  [[nodiscard]] std::string name() const override { return host_->name(); }
  [[nodiscard]] std::vector<ChunkKind> states() const override { return host_->states(); }
  [[nodiscard]] std::optional<LayerUnit> layer_unit() const override { return host_->layer_unit(); }
  void update(ThreadPool& pool, const UpdateStep& step, const ChunkUpdate& chunk) const override {
    host_->update(pool, step, chunk);
  }
  void enqueue_layer(Stream& stream, const UpdateStep& step, const LayerUpdate& layer) const override {
    const cuda::UpdateMaps maps{&rules::dynamic8::map_of(rules::dynamic8::Sign::both),
                                &rules::dynamic8::map_of(rules::dynamic8::Sign::none)};
    cuda::enqueue_layer_update(EmulatedKernels{stream, &launches_}, stream, maps, host_->name(), settings_, step, layer);
  }

 private:
  const std::unique_ptr<Optimizer> host_;
  const OptimizerSettings settings_;
  mutable std::uint64_t launches_ = 0;
};

// As in tests/optimizers/layer_contract_test.cpp, with fewer elements: both orientations, several blocks, vectors, one column.
std::vector<UpdateTensor> tensors() {
  return {{.rows = 7, .columns = 40, .hidden = true, .stream = 1},
          {.rows = 1, .columns = 65, .hidden = true, .decay = 0, .stream = 2},
          {.rows = 66, .columns = 70, .hidden = true, .stream = 3},
          {.rows = 61, .columns = 9, .hidden = true, .rate = 0.5, .gradient_scale = 0.5, .stream = 4},
          {.rows = 300, .columns = 1, .rate = 2, .decay = 0.5, .stream = 5},
          {.rows = 3, .columns = 5, .stream = 6}};
}

using Param = std::tuple<std::size_t, RecipeCase>;
class CudaLayerUpdate : public testing::TestWithParam<Param> {
 protected:
  [[nodiscard]] static const Case& tested() { return kCases[std::get<0>(GetParam())]; }
  [[nodiscard]] TestLayer layer(std::int64_t chunk_elements, std::int64_t ranks) const {
    const auto& recipe = std::get<1>(GetParam());
    TestLayer l(*host, recipe.dtype, recipe.name, tensors(), chunk_elements, ranks);
    for (auto& chunk : l.chunks())  // unwritten memory is NaN
      for (const auto kind : l.recipe().kinds()) std::ranges::fill(chunk.bytes(kind), std::byte{0xff});
    return l;
  }
  static UpdateStep step_of(std::uint64_t t) {
    return {.step = t,
            .learning_rate = 1e-3 * static_cast<double>(1 + t % 3),
            .gradient_scale = t % 2 == 0 ? 0.37 : 1.0,
            .seed = 5,
            .first = t == 1};
  }
  // A NaN's sign and payload are not specified; every other bit is.
  static void expect_same(const TestLayer& on_host, const TestLayer& on_gpu, const std::string& when) {
    for (std::size_t c = 0; c < on_host.chunks().size(); ++c) {
      const auto &a = on_host.chunks()[c], &b = on_gpu.chunks()[c];
      for (const auto kind : a.recipe().kinds()) {
        if (rules::is_packed(a.recipe().format_of(kind)) || a.bytes(kind) == b.bytes(kind)) continue;
        for (std::int64_t i = 0; i < a.elements(); ++i)
          ASSERT_TRUE(same(b.number(kind, i), a.number(kind, i)))
              << when << ", chunk " << c << ", element " << i << ", " << terrace::name_of(kind) << ": " << b.number(kind, i)
              << " on the GPU, " << a.number(kind, i) << " on the host";
      }
    }
    for (std::size_t c = 0; c < on_host.packed().size(); ++c) {
      const auto &a = on_host.packed()[c], &b = on_gpu.packed()[c];
      ASSERT_EQ(a.size(), b.size());
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(double)), 0) << when << ", packed state of chunk " << c;
    }
  }
  void compare(std::int64_t chunk_elements, std::int64_t ranks, std::uint64_t steps) const {
    auto on_host = layer(chunk_elements, ranks);
    draw_layer_weights(on_host, 7);
    auto on_gpu = on_host;
    const OnEmulatedGpu gpu(tested());
    for (std::uint64_t t = 1; t <= steps; ++t) {
      for (auto* const l : {&on_host, &on_gpu}) draw_layer_gradients(*l, t);
      on_host.update(*host, *stream, step_of(t));
      on_gpu.update(gpu, *stream, step_of(t));
      ASSERT_NO_FATAL_FAILURE(
          expect_same(on_host, on_gpu, fmt::format("chunks of {}, {} ranks, step {}", chunk_elements, ranks, t)));
    }
  }

  ThreadPool pool{2};
  std::unique_ptr<Optimizer> host = make_optimizer(tested().optimizer, tested().settings);
  std::unique_ptr<Device> device = make_cpu_device(pool);
  std::unique_ptr<Stream> stream = device->make_stream("test");
};

TEST_P(CudaLayerUpdate, GivesTheBitsOfTheHost) {
  compare(1 << 13, 1, 3);
  compare(256, 1, 2);  // blocks of sums that span many chunks
}

TEST_P(CudaLayerUpdate, GivesThemBetweenRanks) { compare(4096, 3, 2); }

TEST_P(CudaLayerUpdate, HostileGradientsGiveThemToo) {
  for (const auto value : hostile_numbers<float>()) {
    auto on_host = layer(4096, 1);
    draw_layer_weights(on_host, 7);
    auto on_gpu = on_host;
    const OnEmulatedGpu gpu(tested());
    for (std::uint64_t t = 1; t <= 2; ++t) {
      for (auto* const l : {&on_host, &on_gpu}) {
        draw_layer_gradients(*l, t);
        for (const std::int64_t i : {0, 11}) l->set_gradient(0, i, value);
        l->set_gradient(1, 3, value);
      }
      on_host.update(*host, *stream, step_of(t));
      on_gpu.update(gpu, *stream, step_of(t));
      ASSERT_NO_FATAL_FAILURE(expect_same(on_host, on_gpu, fmt::format("gradient {}, step {}", value, t)));
    }
  }
}

std::string name_of(const testing::TestParamInfo<Param>& info) {
  const auto& [c, recipe] = info.param;
  auto name = fmt::format("{}_{}_{}", kCases[c].label, recipe.name, terrace::name_of(recipe.dtype));
  std::ranges::replace(name, '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, CudaLayerUpdate,
                         testing::Combine(testing::Range<std::size_t>(0, kCases.size()), testing::ValuesIn(recipe_cases())),
                         name_of);

TEST(CudaLayerUpdateCases, AreAllThatSeeWholeLayers) {
  for (const auto& known : optimizers())
    EXPECT_EQ(make_optimizer(known.name, {})->layer_unit().has_value(),
              std::ranges::any_of(kCases, [&](const Case& c) { return c.optimizer == known.name; }))
        << known.name;
}

}  // namespace
}  // namespace terrace::test
