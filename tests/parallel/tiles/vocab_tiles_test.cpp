// A vocabulary in tiles trains what the whole table trains, in a device budget that holds one tile.
#include <gmock/gmock.h>

#include <terrace/tests/parallel/tensor/tensor_run.h>
#include <terrace/tests/support/thrown_error.h>

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
      }
}

// Tiles and products of more than a million elements have their own runs of chunks, of which the device holds one at a time.
TensorRun with_large_units() {
  TensorRun o{.config = one_block("gpt2", 1024, 2048, 16)};
  o.config.vocab = 8195;
  o.config.vocab_tiles = 4;
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
  const auto stopped = stopped_after(1, o);
  o = stopped;
  o.config.vocab_tiles = 1;
  const auto resumed = resume_as(o, stopped);
  auto whole = with_large_units();
  whole.config.vocab_tiles = 1;
  expect_equal(end_of(run(whole), 1), resumed, kFp32, "resumed without tiles");
}

// 8-bit moments have a scale for each 256 elements, and the second tile begins in the middle of such a block.
TEST_F(VocabTiles, OtherTilesOfCodedMomentsAreRefusedAsSuch) {
  auto o = with_large_units();
  o.recipe = "8bit";
  o.config.hidden = 1040;
  const auto stopped = stopped_after(1, o);
  o = stopped;
  o.config.vocab_tiles = 1;
  EXPECT_THAT(refusal_of([&] { resume_as(o, stopped); }),
              testing::HasSubstr("because this run has other ranks or other tiles"));
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
    EXPECT_THAT(refusal_of([&] { lm::make_model(config); }), testing::HasSubstr("vocab_tiles must be 1 to 16 for 257 rows"))
        << tiles;
  }
}

}  // namespace
}  // namespace terrace::test
