// An OptimizerState computes the bits of the optimizer in memory, for every optimizer, recipe, budget and resume.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include <terrace/core/base/error.h>
#include <terrace/core/math/math.h>
#include <terrace/optimizers/schedule.h>
#include <terrace/parallel/map/gradient_squares.h>
#include <terrace/tests/optimizers/recipe_cases.h>
#include <terrace/tests/optimizers/state/whole_tensors.h>
#include <terrace/tests/support/environment.h>
#include <terrace/tests/support/folder_test.h>
#include <terrace/tests/support/killed_program.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

using test::draw_gradients;
using test::InMemory;
using test::WholeTensor;
using testing::HasSubstr;

OptimizerStateOptions options_of(const std::string& optimizer, const std::string& recipe) {
  OptimizerStateOptions options;
  options.optimizer = optimizer;
  options.recipe = recipe;
  options.chunk_elements = 4096;
  options.seed = 11;
  options.tiers.host_bytes = 4 * kMiB;
  options.tiers.threads = 1;
  options.tiers.io.engine = "threads";
  return options;
}

class OptimizerStateTest : public test::FolderTest {
 protected:
  // The smallest host that the optimizer's tensors allow; whole tensors are at most 12,300 elements.
  [[nodiscard]] OptimizerStateOptions small(const std::string& optimizer, const std::string& recipe) const {
    auto options = options_of(optimizer, recipe);
    const bool whole = make_optimizer(optimizer, {})->layer_unit().has_value();
    options.tiers.host_bytes = (whole ? 100 : 25) * 4 * kKiB;  // of fp64, one piece has three chunks of 32 KiB, or of 100 KiB
    options.tiers.nvme_bytes = 8 * kMiB;
    options.tiers.nvme_paths = {folder_};
    return options;
  }
  static void add_all(OptimizerState& state, std::vector<WholeTensor>& tensors) {
    for (auto& t : tensors) state.add(t.name, t.weight_view(), t.gradient_view(), t.set);
  }
  void compare_with_memory(const std::string& optimizer, const test::RecipeCase& recipe, std::uint64_t seed);
};

// In memory; with a temporary disk below a host that holds little more than one piece; and with a store, where every second
// step is committed and the process begins anew, with weights that the resumed state must restore.
void OptimizerStateTest::compare_with_memory(const std::string& optimizer, const test::RecipeCase& recipe, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  auto tensors = test::random_tensors(recipe.dtype, random);
  const std::string name(recipe.name);
  const auto rules = make_optimizer(optimizer, {});
  ThreadPool pool(1);
  const auto device = make_cpu_device(pool);
  const auto stream = device->make_stream("oracle");
  std::vector<InMemory> expected;
  for (const auto& t : tensors) expected.emplace_back(*rules, name, t);

  auto on_memory = tensors, on_disk = tensors, on_store = tensors;
  auto lasting = small(optimizer, name);
  lasting.tiers.nvme_paths = {};
  lasting.tiers.store = folder_ / "mine";
  OptimizerState memory(options_of(optimizer, name)), disk(small(optimizer, name));
  auto store = std::make_unique<OptimizerState>(lasting);
  add_all(memory, on_memory);
  add_all(disk, on_disk);
  add_all(*store, on_store);
  for (std::uint64_t n = 1; n <= 4; ++n) {
    draw_gradients(tensors, random);
    const double rate = n % 2 == 0 ? 3e-3 : 1e-2, scale = n == 3 ? 0.5 : 1;
    for (std::size_t t = 0; t < tensors.size(); ++t)
      expected[t].update(*rules, *stream,
                         {.step = n, .learning_rate = rate, .gradient_scale = scale, .seed = 11, .first = false}, tensors[t]);
    for (auto* const copies : {&on_memory, &on_disk, &on_store})
      for (std::size_t t = 0; t < tensors.size(); ++t) std::ranges::copy(tensors[t].gradient, (*copies)[t].gradient.begin());
    for (auto* const state : {&memory, &disk, store.get()}) state->step({.rate = rate, .clip = 0, .gradient_scale = scale});
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      ASSERT_EQ(expected[t].weight(), on_memory[t].weight) << "in memory, " << to_string(tensors[t].shape) << ", step " << n;
      ASSERT_EQ(expected[t].weight(), on_disk[t].weight) << "on disk, " << to_string(tensors[t].shape) << ", step " << n;
      ASSERT_EQ(expected[t].weight(), on_store[t].weight) << "in a store, " << to_string(tensors[t].shape) << ", step " << n;
    }
    if (n % 2 == 1) continue;
    store->commit(n, fmt::format("after {}", n));
    store.reset();
    for (auto& t : on_store) std::ranges::fill(t.weight, std::byte{1});
    lasting.tiers.host_bytes += 64 * kKiB;
    lasting.chunk_elements = 8192;  // those of the store count, and its seed
    lasting.seed = 12;
    store = std::make_unique<OptimizerState>(lasting);
    add_all(*store, on_store);
    ASSERT_EQ(n, store->committed_step());
    ASSERT_EQ(n, store->updates());
    ASSERT_EQ(fmt::format("after {}", n), store->payload());
  }
}

TEST_F(OptimizerStateTest, EveryOptimizerAndRecipeHasTheBitsOfMemory) {
  const auto seed = test::test_seed();
  int cases = 0;
  for (const auto& optimizer : optimizers())
    for (const auto& recipe : test::recipe_cases()) {
      SCOPED_TRACE(
          fmt::format("TERRACE_TEST_SEED={}: {}, recipe {} of {}", seed, optimizer.name, recipe.name, name_of(recipe.dtype)));
      std::filesystem::remove_all(folder_ / "mine");
      compare_with_memory(std::string(optimizer.name), recipe, seed + static_cast<std::uint64_t>(++cases));
      if (HasFatalFailure()) return;
    }
  fmt::print("{} pairs of an optimizer and a recipe\n", cases);
}

// The same sums as an engine whose layers have one tensor each; then, the clip factor of them.
TEST_F(OptimizerStateTest, TheNormIsTheEngines) {
  std::mt19937_64 random(test::test_seed());
  auto tensors = test::random_tensors(DType::fp32, random);
  std::erase_if(tensors, [](const auto& t) { return t.shape.elements() == 0; });
  draw_gradients(tensors, random);
  ThreadPool pool(2);
  const auto device = make_cpu_device(pool);
  const auto stream = device->make_stream("oracle");
  std::vector<std::vector<memory::LayoutTensor>> layers;
  for (const auto& t : tensors)
    layers.push_back({{.name = t.name, .elements = static_cast<std::uint64_t>(t.shape.elements())}});
  const memory::Layout layout(layers, 8192);
  const mapping::GradientSquares squares(layout, device->host_memory());
  for (std::uint32_t l = 0; l < layout.layers(); ++l) {
    const auto count = tensors[l].shape.elements();
    const auto blocks = squares.of(l, 0, 0, static_cast<std::uint64_t>(count));
    device->math().sum_of_squares(*stream, blocks.sums, {tensors[l].gradient.data(), tensors[l].gradient_dtype, {count}},
                                  blocks.first);
  }
  stream->synchronize();
  const auto norm = squares.norm([](auto, auto) { return true; });

  const auto rules = make_optimizer("adamw", {});
  std::vector<InMemory> expected;
  for (auto& t : tensors) {
    expected.emplace_back(*rules, "fp32", t);
    expected.back().update(
        *rules, *stream,
        {.step = 1, .learning_rate = 0.01, .gradient_scale = clip_factor(norm, norm / 3), .seed = 0, .first = true}, t);
  }
  OptimizerState state(small("adamw", "fp32"));
  add_all(state, tensors);
  const auto result = state.step({.rate = 0.01, .clip = norm / 3});
  EXPECT_EQ(norm, result.norm);
  for (std::size_t t = 0; t < tensors.size(); ++t) EXPECT_EQ(expected[t].weight(), tensors[t].weight);
}

TEST_F(OptimizerStateTest, ANormThatIsNotFiniteChangesNothing) {
  std::mt19937_64 random(1);
  auto tensors = test::random_tensors(DType::fp32, random);
  draw_gradients(tensors, random);
  OptimizerState state(small("adamw", "fp32"));
  add_all(state, tensors);
  ASSERT_TRUE(state.step({.rate = 0.01, .clip = 1}).applied);
  const auto before = tensors;
  const auto hit = std::ranges::find_if(tensors, [](const auto& t) { return t.shape.elements() > 0; });
  const float infinite = std::numeric_limits<float>::infinity();
  const bf16 narrow(infinite);
  if (hit->gradient_dtype == DType::fp32)
    std::memcpy(hit->gradient.data(), &infinite, 4);
  else
    std::memcpy(hit->gradient.data(), &narrow, 2);
  const auto result = state.step({.rate = 0.01, .clip = 1});
  EXPECT_FALSE(result.applied);
  EXPECT_FALSE(std::isfinite(result.norm.value()));
  EXPECT_EQ(1U, state.updates());
  for (std::size_t t = 0; t < tensors.size(); ++t) EXPECT_EQ(before[t].weight, tensors[t].weight);
}

// In the order of the caller's own stream, and in turns on two of them.
TEST_F(OptimizerStateTest, StepsOnTheCallersStreamsHaveTheSameBits) {
  std::mt19937_64 random(test::test_seed());
  auto tensors = test::random_tensors(DType::bf16, random);
  auto others = tensors;
  ThreadPool pool(2);
  const auto device = make_cpu_device(pool);
  auto options = small("adamw", "8bit");
  OptimizerState first(options);
  options.tiers.device = device.get();
  OptimizerState second(options);
  add_all(first, tensors);
  add_all(second, others);
  const std::unique_ptr<Stream> streams[] = {device->make_stream("a"), device->make_stream("b")};
  for (std::uint64_t n = 0; n < 6; ++n) {
    draw_gradients(tensors, random);
    for (std::size_t t = 0; t < tensors.size(); ++t) std::ranges::copy(tensors[t].gradient, others[t].gradient.begin());
    first.step({.rate = 0.01, .clip = 0.5});
    second.step({.rate = 0.01, .clip = 0.5}, *streams[n % 2]);
    streams[n % 2]->synchronize();
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) EXPECT_EQ(tensors[t].weight, others[t].weight);
}

// Sixteen pieces of two chunks, of which the host holds eight: each step reads and writes the other eight only, because it
// begins where the last one ended.
TEST_F(OptimizerStateTest, ASweepBeginsWithWhatIsInMemory) {
  constexpr std::int64_t kPieces = 16, kHeld = 8;
  auto options = options_of("adamw", "fp32");
  constexpr std::uint64_t kPieceBytes = 2 * 4096 * 4;
  options.tiers.host_bytes = kHeld * kPieceBytes;
  options.tiers.nvme_paths = {folder_};
  options.tiers.nvme_bytes = kPieces * kPieceBytes;
  std::vector<float> weight(kPieces * 4096), gradient(kPieces * 4096, 0.5F);
  OptimizerState state(options);
  state.add("w", std::span(weight), std::span(gradient));
  for (int n = 0; n < 6; ++n) {
    const auto before = state.traffic();
    state.step({.rate = 0.1});
    state.finish_writes();
    const auto after = state.traffic();
    EXPECT_EQ(n == 0 ? 0 : (kPieces - kHeld) * kPieceBytes, after.read - before.read) << "step " << n;
    EXPECT_EQ((kPieces - kHeld) * kPieceBytes, after.write - before.write) << "step " << n;
  }
  EXPECT_EQ(options.tiers.host_bytes, state.peak_bytes()[Tier::host]);
}

TEST_F(OptimizerStateTest, WhatDoesNotGoTogetherIsRefused) {
  std::vector<float> weight(5000, 1), gradient(5000, 1), fewer(4000, 1), block(4096, 1), blocks(8192, 1);
  const auto refused = [&](const auto& body, const std::string& text) {
    const auto error = test::error_if_any(body);
    ASSERT_TRUE(error) << text;
    EXPECT_EQ(ErrorKind::refused, error->kind()) << error->what();
    EXPECT_THAT(error->what(), HasSubstr(text));
  };
  refused([&] { OptimizerState s(options_of("adamx", "fp32")); }, "unknown optimizer \"adamx\"");
  refused([&] { OptimizerState s(options_of("adamw", "fp31")); }, "unknown recipe \"fp31\"");
  OptimizerState plain(options_of("adamw", "fp32"));
  refused([&] { plain.add("w", std::span(weight), std::span(fewer)); }, "the gradient has the shape [4000]");
  plain.add("w", std::span(weight), std::span(gradient));
  refused([&] { plain.step({.rate = -1}); }, "the learning rate");
  refused([&] { plain.commit(1); }, "commit needs a store that lasts");

  auto narrow = options_of("adamw", "fp32");
  narrow.tiers.host_bytes = 7 * kPageBytes;  // of eight
  const auto full = test::error_if_any([&] { OptimizerState(narrow).add("w", std::span(weight), std::span(gradient)); });
  ASSERT_TRUE(full);
  EXPECT_EQ(ErrorKind::does_not_fit, full->kind());
  EXPECT_THAT(full->what(), HasSubstr("raise host_bytes by 4096 bytes, or lower chunk_elements"));

  auto lasting = small("adamw", "fp32");
  lasting.tiers.nvme_paths = {};
  lasting.tiers.store = folder_ / "mine";
  {
    OptimizerState state(lasting);
    state.add("w", std::span(weight), std::span(gradient));
    state.add("block", std::span(block), std::span(block));
    state.step({.rate = 0.1});
    state.commit(1);
  }
  auto other = lasting;
  other.optimizer = "adam";
  refused([&] { OptimizerState s(other); }, "has the states of adamw with the recipe fp32, not of adam with fp32");
  OptimizerState state(lasting);
  refused([&] { state.add("w", std::span(fewer), std::span(fewer)); }, "has another form than it had in the last commit");
  refused([&] { state.add("block", std::span(blocks), std::span(blocks)); }, "has 8192 elements, but fewer in the last commit");
}

TEST_F(OptimizerStateTest, ATensorThatWasNotAddedAgainIsNamed) {
  std::vector<float> weight(5000, 1), gradient(5000, 1);
  auto lasting = small("adamw", "fp32");
  lasting.tiers.nvme_paths = {};
  lasting.tiers.store = folder_ / "mine";
  {
    OptimizerState state(lasting);
    for (const auto* const name : {"v", "w"}) state.add(name, std::span(weight), std::span(gradient));
    state.step({.rate = 0.1});
    state.commit(1);
  }
  OptimizerState state(lasting);
  state.add("w", std::span(weight), std::span(gradient));
  const auto missing = test::error_if_any([&] { state.step({.rate = 0.1}); });
  ASSERT_TRUE(missing);
  EXPECT_THAT(missing->what(), HasSubstr("has states that were not added: first moment of v, from element 0"));
  state.add("v", std::span(weight), std::span(gradient));
  EXPECT_NO_THROW(state.step({.rate = 0.1}));
}

// The chunk is read in the step; the error comes from there, and the store stays as it was.
TEST_F(OptimizerStateTest, AFlippedBitOfAStateIsFoundByTheStep) {
  std::vector<float> weight(9000, 1), gradient(9000, 1);
  auto lasting = small("adamw", "fp32");
  lasting.tiers.nvme_paths = {};
  lasting.tiers.store = folder_ / "mine";
  {
    OptimizerState state(lasting);
    state.add("w", std::span(weight), std::span(gradient));
    state.step({.rate = 0.1});
    state.commit(1);
  }
  std::vector<StoredChunk> chunks;
  {
    const auto store = ChunkStore::open({.paths = {folder_}, .name = "mine", .read_only = true});
    chunks = store->committed();
  }
  ASSERT_EQ(9U, chunks.size());
  for (const auto& chunk : chunks) {
    const auto flip = [&] {
      std::fstream file(folder_ / "mine" / "data", std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(chunk.offset + 100));
      const auto byte = static_cast<char>(file.get() ^ 4);
      file.seekp(static_cast<std::streamoff>(chunk.offset + 100));
      file.put(byte);
    };
    flip();
    const auto found = test::error_if_any([&] {
      OptimizerState state(lasting);
      state.add("w", std::span(weight), std::span(gradient));
      EXPECT_NE(ChunkKind::parameter, chunk.description.kind) << "found by add()";
      state.step({.rate = 0.1});
    });
    ASSERT_TRUE(found) << chunk.description.label;
    EXPECT_EQ(ErrorKind::corrupt, found->kind()) << found->what();
    EXPECT_EQ(fmt::format("chunk {}", index(chunk.description.chunk)), found->object());
    EXPECT_THAT(found->what(), HasSubstr(chunk.description.label));
    flip();
  }
  OptimizerState state(lasting);
  state.add("w", std::span(weight), std::span(gradient));
  EXPECT_NO_THROW(state.step({.rate = 0.1}));
}

// Killed again and again, the program ends with the weights of one that never was: none of its commits is lost or mixed.
TEST_F(OptimizerStateTest, AKilledTrainingEndsWithTheSameWeights) {
  const auto lives = test::number_from_environment("TERRACE_KILLS", 8);
  std::mt19937_64 random(test::test_seed());
  SCOPED_TRACE(fmt::format("TERRACE_TEST_SEED={}", test::test_seed()));
  const auto arguments = [&](const std::string& store, std::uint64_t steps) {
    return std::vector<std::string>{TERRACE_STATE_PROGRAM, (folder_ / store).string(), std::to_string(steps),
                                    (folder_ / (store + ".weights")).string()};
  };
  std::uint64_t last = 0;
  int killed = 0;
  for (std::uint64_t life = 0; life < lives; ++life) {
    const auto end = test::run_and_kill(arguments("killed", 100'000), last, 4, std::chrono::milliseconds(30), random);
    ASSERT_EQ(0, end.exit);
    killed += end.was_killed ? 1 : 0;
    last = std::max(last, end.last);
  }
  const auto steps = last + 2;
  const auto run_to_end = [&](const std::string& store) {
    std::string command;
    for (const auto& a : arguments(store, steps)) command += a + " ";
    EXPECT_EQ(0, std::system((command + "> " + (folder_ / "told").string()).c_str()));
    std::ifstream told(folder_ / "told");
    std::uint64_t first = 0;
    told >> first;
    std::ifstream file(folder_ / (store + ".weights"), std::ios::binary);
    return std::pair(first, std::string(std::istreambuf_iterator<char>(file), {}));
  };
  const auto [resumed_at, weights] = run_to_end("killed");
  EXPECT_GT(resumed_at, last);  // the step after the last commit, which is at least the last one that was told
  EXPECT_FALSE(weights.empty());
  EXPECT_TRUE(weights == run_to_end("undisturbed").second);
  fmt::print("{} steps, {} kills\n", steps, killed);
}

}  // namespace
}  // namespace terrace
