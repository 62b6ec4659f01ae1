// The number of launches in a step: a run on the emulated GPU makes exactly the counted number, and the launches of Llama 8B
// are counted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <tuple>

#include <terrace/core/cuda/stream.h>
#include <terrace/core/math/float8.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/terrace/plan/choose_tiles.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/optimizers/cuda/cuda_optimizer.h>
#include <terrace/parallel/run/engine.h>
#include <terrace/tests/support/folder_test.h>
#include <terrace/tests/support/gpu/emulated_updates.h>
#include <terrace/tests/support/gpu/fake_cuda.h>

#include <terrace/tests/cuda/emulated_gpu.h>
#include <terrace/tests/cuda/step_launches.h>

namespace terrace::test {
namespace {

struct Planned {
  explicit Planned(const cli::RunConfig& given)
      : config(cli::with_chosen_tiles(given)),
        model(lm::make_model(cli::model_config(config))),
        plan(cli::make_plan(config, model, cli::plan_request(config), cli::machine_profile(config))) {}
  [[nodiscard]] StepLaunches count(bool warpgroups = false) const {
    return count_launches(model, plan, config.train.optimizer, warpgroups);
  }
  const cli::RunConfig config;
  const Model model;
  const Plan plan;
};

class StepLaunchesTest : public FolderTest {
 protected:
  // A small model with grouped queries, odd numbers of rows, and two micro-batches.
  [[nodiscard]] cli::RunConfig small() const {
    cli::RunConfig c;
    c.model.layers = 2, c.model.hidden = 64, c.model.heads = 2, c.model.kv_heads = 1, c.model.ffn = 96, c.model.vocab = 259,
    c.model.seq_len = 33;
    c.model.tied = false;
    c.train.batch_size = 2, c.train.grad_accumulation = 2, c.train.steps = 3, c.train.eval_batches = 0;
    c.model.dtype = DType::bf16, c.train.recipe = "split";
    c.memory.device = "cuda:0", c.plan.assumed_costs = true, c.run.threads = 1;
    c.memory.device_memory = c.memory.host_memory = "unlimited";
    c.model.head_rows = 20;
    c.plan.machine_profile = profile();
    c.plan.early_updates = 0;
    return c;
  }
  // The rates that docs/internals/gpu.md assumes for an H200.
  [[nodiscard]] std::string profile() const {
    const MachineProfile h200{.disk_read = 2e9,
                              .disk_write = 1.2e9,
                              .disk_both = 2.4e9,
                              .memory_copy = 20e9,
                              .memory_stream = 120e9,
                              .matmul_fp32 = 60e12,
                              .matmul_bf16 = 630e12,
                              .matmul_fp64 = 30e12,
                              .device = "cuda:0",
                              .device_stream = 4e12,
                              .upload = 53e9,
                              .download = 53e9,
                              .links = {},
                              .measured_at = "assumed"};
    const auto file = folder_ / "h200.json";
    save_profile(h200, file);
    return file;
  }
  // The launches of the last of three steps.
  [[nodiscard]] StepLaunches run(const Planned& planned) const {
    ThreadPool pool(1);
    StepLaunches counts;
    std::mutex mutex;
    const auto count = [&](const std::string& operation) {
      const std::lock_guard lock(mutex);
      ++(operation == "matmul" || operation == "matmul_float8" ? counts.products : counts.kernels[operation]);
    };
    const auto device = make_emulated_gpu(pool, {.kernel = "warps", .launched = count});
    const auto any = device->make_stream("any");
    const auto fake = std::dynamic_pointer_cast<FakeCuda>(cuda::cuda_stream(*any).runtime());
    std::atomic<int> updates = 0;
    const auto optimizer = rules::make_cuda_optimizer(
        planned.config.train.optimizer, {},
        [&, issue = emulated_updates(fake, updates)](cuda::CudaStreamHandle stream, std::string_view name, const auto& settings,
                                                     const UpdateStep& step, const ChunkUpdate& chunk) {
          count("update");
          issue(stream, name, settings, step, chunk);
        });
    Engine engine(
        planned.model, planned.plan,
        {.device = device.get(), .store = {.paths = {folder_ / "store"}, .durable = false}, .optimizer = optimizer.get()});
    engine.fill([](const ParamSpec&, std::uint64_t, TensorView range) {
      for (std::int64_t i = 0; i < range.elements(); ++i) range.as<float>()[i] = 0.01F * static_cast<float>(i % 7);
    });
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(planned.plan.map.shape.batch.tokens()) *
                                     planned.plan.map.shape.micro_batches);
    std::iota(tokens.begin(), tokens.end(), 0);
    const UpdateStep update{.step = 1, .learning_rate = 1e-3};
    for (int step = 0; step < 3; ++step) {
      counts = {};
      const auto copies = fake->count(FakeCuda::Call::copy_async), events = fake->count(FakeCuda::Call::record_event);
      engine.step({.tokens = tokens, .targets = tokens, .update = update});
      counts.copies = fake->count(FakeCuda::Call::copy_async) - copies;
      counts.events = fake->count(FakeCuda::Call::record_event) - events;
      if (planned.plan.programs.updates_before_use) engine.set_pending(update);
    }
    return counts;
  }
  // A formula for an untied Llama without biases.
  [[nodiscard]] static std::uint64_t by_formula(const Planned& planned) {
    const auto& c = planned.config;
    const auto rows = c.train.batch_size * c.model.seq_len;
    const auto blocks = static_cast<std::uint64_t>(c.model.layers),
               micro_batches = static_cast<std::uint64_t>(c.train.grad_accumulation),
               slices = static_cast<std::uint64_t>((rows + c.model.head_rows - 1) / c.model.head_rows);
    const std::uint64_t tensors = 9 * blocks + 3, again = c.plan.recompute == kAllLayers ? 6 : 0;
    const auto updates =
        c.plan.update == Tier::host ? 0 : std::ranges::count(planned.plan.programs.steady.actions, Op::update, &Action::op);
    const std::uint64_t squares = tensors + 1;  // one per tensor, and one that clears them
    // Each of 20 operands of a block, and of 4 that are computed again, is rounded by two kernels.
    const std::uint64_t rounds = c.model.products == layers::Products::fp8 ? 2 * (20 + (again > 0 ? 4 : 0)) : 0;
    return micro_batches * (blocks * (35 + again + rounds) + 5 * slices + 9) + squares + static_cast<std::uint64_t>(updates);
  }
  // What quantise() reads and writes in a step of such a model that recomputes nothing. `once`: a gradient is rounded once for
  // dx and dW, else once for each.
  [[nodiscard]] static std::uint64_t rounded_bytes(const Planned& planned, bool once) {
    const auto& m = planned.config.model;
    const std::int64_t rows = planned.config.train.batch_size * m.seq_len,
                       qkv = m.hidden + 2 * (m.hidden / m.heads * m.kv_heads);
    const auto round = [](std::int64_t r, std::int64_t c, bool as_is, bool turned) {
      return 2 * 2 * r * c + (as_is ? r * math::float8_columns(c) : 0) + (turned ? c * math::float8_columns(r) : 0) + 4;
    };
    std::int64_t bytes = 0;
    for (const auto& [out, in] : {std::pair{qkv, m.hidden}, {m.hidden, m.hidden}, {2 * m.ffn, m.hidden}, {m.hidden, m.ffn}}) {
      bytes += round(out, in, true, false) + round(out, in, false, true);    // weights, in the forward and for dx
      bytes += round(rows, in, true, false) + round(rows, in, false, true);  // x, in the forward and for dW
      bytes += once ? round(rows, out, true, true) : round(rows, out, true, false) + round(rows, out, false, true);  // dy
    }
    return static_cast<std::uint64_t>(bytes * m.layers * planned.config.train.grad_accumulation);
  }
  void expect_counted(const cli::RunConfig& config, bool moves) const {
    const Planned planned(config);
    ASSERT_TRUE(planned.plan.fits) << planned.plan.refusal.why;
    const auto counted = planned.count();
    const auto made = run(planned);
    EXPECT_EQ(counted.kernels, made.kernels);
    EXPECT_EQ(counted.products, made.products);
    EXPECT_EQ(counted.copies, made.copies);
    EXPECT_EQ(counted.events, made.events);
    EXPECT_EQ(counted.copies > 2, moves) << counted.copies << " copies, more than tokens and squares";
    EXPECT_EQ(counted.launches(), by_formula(planned));
  }
};

TEST_F(StepLaunchesTest, OfAResidentRunAreAsCounted) {
  auto c = small();
  c.plan.update = Tier::device;
  expect_counted(c, false);
}

TEST_F(StepLaunchesTest, OfARunThatUpdatesOnTheHostAreAsCounted) {
  auto c = small();
  c.plan.update = Tier::host;
  expect_counted(c, true);
}

TEST_F(StepLaunchesTest, OfARunThatRecomputesAndOffloadsAreAsCounted) {
  auto c = small();
  c.plan.update = Tier::host, c.plan.order = Order::vertical, c.plan.recompute = kAllLayers, c.plan.activations = kAllLayers,
  c.train.grad_clip = 0;
  c.memory.device_memory = "300KiB";
  expect_counted(c, true);
}

TEST_F(StepLaunchesTest, OfARunWithProductsOf8BitsAreAsCounted) {
  auto c = small();
  c.plan.update = Tier::device;
  c.model.products = layers::Products::fp8;
  expect_counted(c, false);
  const Planned planned(c);
  EXPECT_EQ(planned.count().bytes.at("quantise"), rounded_bytes(planned, true));
}

// By hand, from the shapes: N tokens a micro-batch, all in bf16, and what the layers call for them.
TEST_F(StepLaunchesTest, TheBytesOfPointwiseOperationsAreThoseOfTheirTensors) {
  auto c = small();
  c.plan.update = Tier::device;
  const Planned planned(c);
  const auto bytes = planned.count().bytes;
  const auto& m = c.model;
  const std::int64_t rows = c.train.batch_size * m.seq_len, calls = m.layers * c.train.grad_accumulation,
                     of_rows = 2 * rows * calls;  // bytes of one column of all blocks
  const auto rotated = m.hidden + m.hidden / m.heads * m.kv_heads;
  EXPECT_EQ(bytes.at("activation"), 2 * 3 * m.ffn * of_rows) << "in the forward, and again in the backward";
  EXPECT_EQ(bytes.at("activation_grad"), 5 * m.ffn * of_rows);
  EXPECT_EQ(bytes.at("rotary"), 2 * 2 * rotated * of_rows) << "forward and backward, in place";
  EXPECT_EQ(bytes.at("embed"), (2 * 2 * m.hidden + 4) * rows * c.train.grad_accumulation) << "rows of the table, not the table";
}

// Llama 8B with 65,536 tokens per step: the figures of docs/internals/gpu.md, with the choices of `terrace plan` there.
TEST_F(StepLaunchesTest, OfLlama8B) {
  cli::RunConfig resident;
  auto& model = resident.model;
  model.layers = 32, model.hidden = 4096, model.heads = 32, model.kv_heads = 8, model.ffn = 14336;
  model.vocab = 128256, model.seq_len = 4096, model.tied = false, model.dtype = DType::bf16;
  resident.train.batch_size = 1, resident.train.grad_accumulation = 16, resident.train.recipe = "split";
  resident.memory = {.device = "cuda:0", .device_memory = "135GiB", .host_memory = "180GiB"};
  resident.plan = {.order = Order::horizontal,
                   .recompute = 0,
                   .activations = 0,
                   .deferred_updates = 0,
                   .early_updates = 0,
                   .update = Tier::device,
                   .prefetch_depth = 2,
                   .assumed_costs = true,
                   .machine_profile = profile()};
  auto offloaded = resident;
  offloaded.memory.device_memory = "24GiB";
  offloaded.plan.order = Order::vertical, offloaded.plan.recompute = kAllLayers, offloaded.plan.activations = 58;
  offloaded.plan.update = Tier::host, offloaded.plan.prefetch_depth = 4;

  auto narrow = resident;
  narrow.model.products = layers::Products::fp8, narrow.model.head_rows = 4096;
  const Planned in_8_bits(narrow);
  ASSERT_TRUE(in_8_bits.plan.fits) << in_8_bits.plan.refusal.why;
  const auto of_8_bits = in_8_bits.count(true);
  fmt::print("products of 8 bits: {} launches, {:.1f} GB of rounding, {:.1f} GB if gradients were rounded for each product\n",
             of_8_bits.launches(), 1e-9 * static_cast<double>(of_8_bits.bytes.at("quantise")),
             1e-9 * static_cast<double>(rounded_bytes(in_8_bits, false)));
  EXPECT_EQ(of_8_bits.launches(), by_formula(in_8_bits));
  EXPECT_EQ(of_8_bits.bytes.at("quantise"), rounded_bytes(in_8_bits, true));

  for (const auto& [c, before, now, pointwise] :
       {std::tuple{resident, 23786U, 21306U, 1364.8}, std::tuple{offloaded, 23988U, 21508U, 1476.5}})
    for (const auto& [rows, warpgroups, launches] : {std::tuple{128, false, before}, std::tuple{4096, true, now}}) {
      auto config = c;
      config.model.head_rows = rows;
      const Planned planned(config);
      ASSERT_TRUE(planned.plan.fits) << planned.plan.refusal.why;
      const auto n = planned.count(warpgroups);
      fmt::print("{} of device memory, {} rows of the head, attention by {}: {} launches\n", config.memory.device_memory, rows,
                 warpgroups ? "warpgroups" : "warps", n.launches());
      for (const auto& [operation, count] : n.kernels) fmt::print("  {:>7} {}\n", count, operation);
      const double token_layers = 65'536.0 * config.model.layers;
      for (const auto& [operation, count] : n.bytes)
        fmt::print("  {:>7.1f} GB {}\n", 1e-9 * static_cast<double>(count), operation);
      fmt::print("  {:>7.1f} GB pointwise, {:.0f} KB a token and layer\n", 1e-9 * static_cast<double>(n.pointwise_bytes()),
                 1e-3 * static_cast<double>(n.pointwise_bytes()) / token_layers);
      fmt::print("  {:>7} products\n  {:>7} copies\n  {:>7} events\n  {:>7} waits\n", n.products, n.copies, n.events, n.waits);
      EXPECT_EQ(n.launches(), launches);
      EXPECT_NEAR(1e-9 * static_cast<double>(n.pointwise_bytes()), pointwise, 0.05);
      EXPECT_EQ(n.launches(), by_formula(planned));
    }
}

}  // namespace
}  // namespace terrace::test
