// A vocabulary in tiles trains what the whole table trains, in a device budget that holds one tile.
#include <terrace/tests/parallel/tensor/tensor_run.h>

namespace terrace::test {
namespace {

class VocabTiles : public TensorRuns {};

TEST_F(VocabTiles, EqualTheWholeTable) {
  OneIn chosen(2);
  for (const auto& family : {gpt2(), llama()})
    for (const std::uint32_t tiles : {2U, 3U, 7U, 16U})
      for (const bool tied : {true, false}) {
        if (!chosen()) continue;
        TensorRun o{.config = family};
        o.config.tied = tied;
        o.config.vocab_tiles = tiles;
        o.recompute = tiles == 3;
        expect_serial(o, kFp64);
        o.config.dtype = DType::fp32;
        expect_serial(o, kFp32);
      }
}

TEST_F(VocabTiles, ComposeWithTensorDataAndPipelineParallelism) {
  OneIn chosen(4);
  for (const char* const schedule : {"", "1f1b", "zb-h1"})
    for (const std::uint32_t zero : {0U, 1U, 2U, 3U})
      for (const std::uint32_t ranks : {1U, 2U, 3U}) {
        if (!chosen()) continue;
        TensorRun o{.config = gpt2(), .tensor_ranks = ranks, .sequence = ranks == 2};
        o.config.vocab_tiles = 3;
        o.config.tied = zero % 2 == 0;
        if (ranks == 3) {
          o.config.heads = 6;
          o.config.hidden = 48;
          o.batch = {2, 15};
        }
        o.data = {.ranks = 2, .zero = zero};
        o.schedule = schedule;
        o.disk_tier = o.squeezed = zero == 3;
        expect_serial(o, kFp64);
        if (HasFailure()) return;
      }
}

// Tiles and products of more than a million elements have their own runs of chunks, of which the device holds one at a time.
TensorRun with_large_units() {
  TensorRun o{.config = {.family = lm::family_named("gpt2"),
                         .layers = 1,
                         .hidden = 1024,
                         .heads = 8,
                         .ffn = 2048,
                         .seq_len = 16,
                         .vocab = 8195,
                         .vocab_tiles = 4,
                         .dtype = DType::fp32}};
  o.steps = 2;
  o.micro_batches = 2;
  return o;
}

TEST_F(VocabTiles, LargeUnitsAreLeasedApartWithTheSameBits) {
  auto o = with_large_units();
  const auto wide = run(o);
  const auto whole = serial(o);
  expect_equal(whole, wide, kFp32, "tiles");
  const std::uint64_t table = 8195 * 1024 * 4;
  EXPECT_GT(whole.smallest[Tier::device], 2 * table);  // the table and its gradient
  EXPECT_LT(wide.smallest[Tier::device], table);
  o.squeezed = true;
  for (const bool disk : {false, true}) {
    o.disk_tier = disk;
    o.recompute = disk;
    o.order = disk ? Order::vertical : Order::horizontal;
    expect_same(wide, run(o), disk ? "disk" : "squeezed");
  }
  o.chunk_elements = 300'000;
  expect_same(wide, run(o), "other chunks");
  o.config.tied = false;
  o.squeezed = o.disk_tier = false;
  const auto untied = run(o);
  o.squeezed = o.disk_tier = true;
  expect_same(untied, run(o), "untied");
}

TEST_F(VocabTiles, LargeUnitsGiveTheSameBitsInEveryStage) {
  auto o = with_large_units();
  o.micro_batches = 1;
  std::optional<TensorResult> first;
  for (const std::uint32_t zero : {0U, 1U, 2U, 3U}) {
    o.data = {.ranks = 2, .zero = zero, .canonical = true};
    o.squeezed = zero == 3;
    const auto result = run(o);
    if (!first) first = result;
    expect_same(*first, result, fmt::format("stage {}", zero));
  }
}

TEST_F(VocabTiles, AStoppedRunGoesOnWithAnotherNumberOfTiles) {
  auto o = with_large_units();
  o.steps = 2;
  o.commit_after = 1;
  o.store = new_store();
  run_all(o);
  const auto stopped = o.store / "rank0";
  o.commit_after = 0;
  o.resume = true;
  o.config.vocab_tiles = 1;
  o.reshard_from = {stopped};
  o.store = new_store();
  const auto resumed = run_all(o).front();
  auto whole = with_large_units();
  whole.config.vocab_tiles = 1;
  auto expected = run(whole);
  expected.losses.erase(expected.losses.begin());  // the first step ran before the resume
  expected.norms.erase(expected.norms.begin());
  expect_equal(expected, resumed, kFp32, "resumed without tiles");
}

// 8-bit moments have a scale for each 256 elements, and the second tile begins in the middle of such a block.
TEST_F(VocabTiles, OtherTilesOfCodedMomentsAreRefusedAsSuch) {
  auto o = with_large_units();
  o.recipe = "8bit";
  o.config.hidden = 1040;
  o.commit_after = 1;
  o.store = new_store();
  run_all(o);
  o.resume = true;
  o.reshard_from = {o.store / "rank0"};
  o.store = new_store();
  o.config.vocab_tiles = 1;
  try {
    run_all(o);
    ADD_FAILURE() << "it was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::refused);
    EXPECT_NE(std::string(error.what()).find("because this run has other ranks or other tiles"), std::string::npos)
        << error.what();
  }
}

TEST_F(VocabTiles, OptimizersOfWholeMatricesUpdateTiles) {
  TensorRun o{.config = gpt2()};
  o.config.vocab_tiles = 5;
  o.optimizer = "muon";
  expect_serial(o, kFp64);
}

TEST(VocabTilesRefused, MoreTilesThanRows) {
  auto config = gpt2();
  for (const std::uint32_t tiles : {0U, 17U, 300U}) {
    config.vocab_tiles = tiles;
    try {
      lm::make_model(config);
      FAIL() << tiles;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::refused);
      EXPECT_NE(std::string(e.what()).find("vocab_tiles must be 1 to 16 for 257 rows"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace terrace::test
