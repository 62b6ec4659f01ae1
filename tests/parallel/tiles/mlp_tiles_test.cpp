// An MLP in tiles of its features trains what the untiled one trains, in a device budget that holds one tile.
#include <gmock/gmock.h>

#include <terrace/examples/lm/models/adapters.h>
#include <terrace/parallel/model/param_tiles.h>
#include <terrace/tests/parallel/tensor/tensor_run.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

using testing::HasSubstr;

class MlpTiles : public TensorRuns {};

// Its gate and up are one tensor.
lm::ModelConfig phi3() {
  auto config = llama();
  config.family = lm::family_named("phi3");
  return config;
}

TEST_F(MlpTiles, EqualTheWholeLayer) {
  for (const auto& family : {gpt2(), llama(), phi3()})
    for (const std::uint32_t tiles : {2U, 3U, 8U})
      for (const bool recompute : {false, true}) {
        TensorRun o{.config = family, .recompute = recompute};
        o.config.ffn = 48;
        o.config.mlp_tiles = tiles;
        expect_serial(o, kFp64);
        o.config.dtype = DType::fp32;
        expect_serial(o, kFp32);
      }
}

// Tiles add to the input of the norm, which tensor ranks add up, too.
TEST_F(MlpTiles, WithNormsOfTheResultEqualTheWholeLayer) {
  for (const char* const family : {"gemma2", "olmo2"})
    for (const std::uint32_t tensor : {1U, 2U})
      for (const auto& [features, rows] : {std::pair{3U, 1U}, {1U, 3U}, {2U, 2U}})
        for (const char* const schedule : {"", "zb-h1"}) {
          TensorRun o{.config = with_norms(family), .tensor_ranks = tensor};
          o.config.ffn = 48;
          o.config.mlp_tiles = features;
          o.config.mlp_row_tiles = rows;
          o.config.attention_tiles = rows;
          o.schedule = schedule;
          o.recompute = tensor == 2;
          o.disk_tier = o.squeezed = tensor == 1;
          if (o.config.attention_tiles == 3) o.config.attention_tiles = 1;
          expect_serial(o, kFp64);
        }
}

// Gate and up have a bias each, or one for both: a tile needs its part of both.
TEST_F(MlpTiles, WithSeveralBiasesEqualTheWholeLayer) {
  static const auto biased = [](const char* name) {
    auto family = lm::family_named(name);
    family.tensors.up.bias = family.tensors.down.bias = true;
    return family;
  };
  static const auto apart = biased("llama"), together = biased("phi3");
  for (const std::uint32_t tensor : {1U, 2U})
    for (const auto& [features, rows, one] :
         {std::tuple{3U, 1U, false}, {1U, 3U, false}, {2U, 2U, false}, {3U, 1U, true}, {2U, 2U, true}}) {
      TensorRun o{.config = llama(), .tensor_ranks = tensor, .sequence = tensor == 2 && rows == 3};
      o.config.family = one ? together : apart;
      o.config.ffn = 48;
      o.config.mlp_tiles = features;
      o.config.mlp_row_tiles = rows;
      o.recompute = tensor == 2;
      o.disk_tier = o.squeezed = tensor == 1;
      o.schedule = rows == 1 ? "zb-h1" : "";
      expect_serial(o, kFp64);
    }
}

// With sequence parallelism, too: each rank then has its share of the rows of the norm's result.
TEST_F(MlpTiles, WithNormsOfTheResultAndSequenceParallelismEqualTheWholeLayer) {
  for (const char* const family : {"gemma2", "olmo2"})
    for (const auto& [features, rows, pieces] : {std::tuple{3U, 1U, 1U}, {1U, 3U, 2U}, {2U, 2U, 1U}}) {
      TensorRun o{.config = with_norms(family), .tensor_ranks = 2, .sequence = true, .pieces = pieces};
      o.config.ffn = 48;
      o.config.mlp_tiles = features;
      o.config.mlp_row_tiles = rows;
      o.config.attention_tiles = features == 2 ? 2 : 1;
      o.recompute = rows == 2;
      o.disk_tier = o.squeezed = rows == 3;
      o.schedule = rows == 3 ? "zb-h1" : "";
      o.data = {.ranks = 2, .zero = features};
      expect_serial(o, kFp64);
    }
}

// A tile of the first product uses rows of B, a tile of the second one columns of A.
TEST_F(MlpTiles, WithAdaptersEqualTheWholeLayer) {
  for (const auto& config : {gpt2(), llama(), with_norms("gemma3"), phi3()})
    for (const std::uint32_t tensor : {1U, 2U})
      for (const auto& [features, rows] : {std::pair{3U, 1U}, {1U, 3U}, {2U, 2U}}) {
        TensorRun o{.config = config, .tensor_ranks = tensor};
        o.config.ffn = 48;
        o.config.adapters = lm::adapters_of(config.family, false, 3, 5, "all");
        o.config.mlp_tiles = features;
        o.config.mlp_row_tiles = rows;
        o.micro_batches = 2;
        o.recompute = tensor == 2;
        o.disk_tier = o.squeezed = tensor == 1;
        o.schedule = tensor == 2 ? "" : "zb-h1";
        expect_serial(o, kFp64);
      }
}

TEST_F(MlpTiles, ComposeWithTensorDataAndPipelineParallelism) {
  OneIn chosen(4);
  for (const char* const schedule : {"", "1f1b", "zb-h1"})
    for (const std::uint32_t zero : {0U, 1U, 2U, 3U})
      for (const std::uint32_t ranks : {1U, 2U, 4U}) {
        if (!chosen()) continue;
        TensorRun o{.config = zero % 2 == 0 ? gpt2() : llama(), .tensor_ranks = ranks, .sequence = ranks == 2};
        if (zero == 3 && ranks <= 2) o.config = phi3();
        o.config.ffn = 96;
        o.config.mlp_tiles = 3;
        o.config.vocab_tiles = zero == 3 ? 2 : 1;
        o.data = {.ranks = 2, .zero = zero};
        o.schedule = schedule;
        o.disk_tier = o.squeezed = zero == 3;
        expect_serial(o, kFp64);
      }
}

// Tiles of 32 rows, which 3 and 5 do not divide; alone, and together with tiles of features.
TEST_F(MlpTiles, TilesOfRowsEqualTheWholeLayer) {
  for (const auto& family : {gpt2(), llama()})
    for (const std::uint32_t rows : {2U, 3U, 5U})
      for (const std::uint32_t features : {1U, 3U}) {
        TensorRun o{.config = family, .recompute = rows == 3};
        o.config.ffn = 48;
        o.config.mlp_tiles = features;
        o.config.mlp_row_tiles = rows;
        expect_serial(o, kFp64);
        o.config.dtype = DType::fp32;
        expect_serial(o, kFp32);
      }
}

TEST_F(MlpTiles, TilesOfRowsCompose) {
  OneIn chosen(2);
  for (const char* const schedule : {"", "zb-h1"})
    for (const std::uint32_t zero : {0U, 3U})
      for (const auto& [tensor, context, pieces] : {std::tuple{1U, 1U, 1U}, {2U, 1U, 2U}, {1U, 2U, 1U}}) {
        if (!chosen()) continue;
        TensorRun o{.config = zero == 0 ? gpt2() : llama(), .tensor_ranks = tensor, .sequence = tensor > 1, .pieces = pieces};
        o.config.mlp_row_tiles = 3;
        o.context = context;
        o.data = {.ranks = 2, .zero = zero};
        o.schedule = schedule;
        o.disk_tier = o.squeezed = zero == 3;
        expect_serial(o, kFp64);
      }
}

// For a long sequence, the inner activations of the feed-forward layer need most of the device's memory, unless they are in
// tiles.
TEST_F(MlpTiles, TilesOfRowsNeedTheActivationsOfATileWithTheSameBits) {
  TensorRun o{.config = one_block("llama", 16, 512, 1024), .batch = {1, 1024}};
  o.steps = 2;
  const auto whole = run(o);
  const std::uint64_t inner = 1024 * 512 * 4;  // gate and up make two of these, the product another one
  EXPECT_GT(whole.smallest[Tier::device], 3 * inner);
  o.config.mlp_row_tiles = 16;
  const auto tiles = run(o);
  expect_equal(whole, tiles, kFp32, "tiles of rows");
  EXPECT_LT(tiles.smallest[Tier::device], inner);
  o.device_bytes = inner;
  for (const bool disk : {false, true}) {
    o.disk_tier = disk;
    o.order = disk ? Order::vertical : Order::horizontal;
    expect_same(tiles, run(o), disk ? "disk" : "memory");
  }
}

// A tile of more than a million elements has its own run of chunks.
TensorRun with_large_tiles(const char* family) {
  TensorRun o{.config = one_block(family, 512, 8192, 16)};
  o.config.mlp_tiles = 4;
  o.steps = 2;
  return o;
}

TEST_F(MlpTiles, LargeTilesAreLeasedApartWithTheSameBits) {
  OneIn chosen(2);
  for (const auto* const family : {"gpt2", "llama"}) {
    if (!chosen()) continue;
    auto o = with_large_tiles(family);
    const auto wide = run(o);
    const auto whole = serial(o);
    expect_equal(whole, wide, kFp32, family);
    EXPECT_LT(3 * wide.smallest[Tier::device], 2 * whole.smallest[Tier::device]) << family;
    o.squeezed = true;
    for (const bool disk : {false, true}) {
      o.disk_tier = disk;
      o.recompute = disk;
      o.order = disk ? Order::vertical : Order::horizontal;
      expect_same(wide, run(o), disk ? "disk" : "squeezed");
    }
    o.chunk_elements = 300'000;
    expect_same(wide, run(o), "other chunks");
  }
}

// A device budget of a quarter of one matrix.
TEST_F(MlpTiles, MatricesFourTimesTheDeviceTrainWithTheBitsOfAnUnlimitedRun) {
  OneIn chosen(2);
  for (const auto* const family : {"llama", "gpt2"}) {
    if (!chosen()) continue;
    auto o = with_large_tiles(family);
    o.config.ffn = 24576;
    o.config.mlp_tiles = 96;
    o.batch = {1, 8};
    const auto wide = run(o);
    const std::uint64_t matrix = std::uint64_t{512} * 24576 * 4;
    EXPECT_LT(wide.smallest[Tier::device], matrix / 4) << family;
    o.device_bytes = matrix / 4;
    for (const bool disk : {false, true}) {
      o.disk_tier = disk;
      const auto tight = run(o);
      expect_same(wide, tight, fmt::format("{} {}", family, disk ? "disk" : "memory"));
      EXPECT_LE(tight.peak[Tier::device], matrix / 4);
    }
  }
}

// A run's stores record which elements of the whole matrices they hold, whatever the order of the tiles.
TEST_F(MlpTiles, AStoppedRunGoesOnWithAnotherNumberOfTiles) {
  for (const auto* const family : {"gpt2", "llama", "phi3"})
    for (const std::uint32_t later : {1U, 2U}) {
      auto o = with_large_tiles(family);
      o.config.hidden = 128;
      const auto stopped = stopped_after(1, o);
      o = stopped;
      o.config.mlp_tiles = later;
      const auto resumed = resume_as(o, stopped);
      auto whole = with_large_tiles(family);
      whole.config.hidden = 128;
      whole.config.mlp_tiles = 1;
      expect_equal(end_of(run(whole), 1), resumed, kFp32, fmt::format("{} resumed with {} tiles", family, later));
    }
}

TEST(MlpTilesRefused, NumbersThatDoNotDivide) {
  auto config = llama();
  config.ffn = 48;
  for (const std::uint32_t tiles : {0U, 5U, 96U}) {
    config.mlp_tiles = tiles;
    EXPECT_THAT(refusal_of([&] { lm::make_model(config); }), HasSubstr("do not divide the 48 inner features")) << tiles;
  }
}

// LAMB and Adafactor need each tensor whole, Muon those of hidden layers; with tiles, each tile would be updated by itself.
TEST_F(MlpTiles, OptimizersOfWholeMatricesRefuseThem) {
  for (const auto* const optimizer : {"muon", "lamb", "adafactor"})
    for (const bool of_mlp : {true, false}) {
      TensorRun o{.config = gpt2()};
      o.config.ffn = 48;
      (of_mlp ? o.config.mlp_tiles : o.config.vocab_tiles) = 3;
      o.optimizer = optimizer;
      const auto refusal = refusal_of([&] { run(o); });
      if (!of_mlp && o.optimizer == "muon")
        EXPECT_EQ(refusal, "");
      else
        EXPECT_THAT(refusal, HasSubstr(of_mlp ? "`mlp-tiles`" : "`vocab-tiles`")) << optimizer;
    }
}

// Each element of the whole matrix is stored once, and each tile in one piece, row by row. With two parts, a tile has its rows
// or columns of both.
TEST(ParamTiles, StoredElementsAreTilesOfTheWhole) {
  for (const std::uint32_t dim : {0U, 1U})
    for (const auto& [ways, parts] : {std::pair{1U, 1U}, {2U, 1U}, {1U, 2U}, {2U, 2U}}) {
      const std::int64_t length = 14 * parts;
      model::TensorSplit split;
      if (ways > 1) split = {.dim = dim, .parts = std::vector<std::int64_t>(parts, 14), .ways = ways};
      const Shape whole = dim == 0 ? Shape{length, 3} : Shape{3, length};
      const ParamSpec param{.name = "w",
                            .shape = model::part_shape(whole, split),
                            .split = split,
                            .tiles = 3,
                            .tile_dim = dim,
                            .tile_parts = parts};
      std::vector<int> held(static_cast<std::size_t>(whole.elements()));
      for (std::uint32_t rank = 0; rank < ways; ++rank) {
        std::vector<std::int64_t> expected;  // element by element
        const auto mine = comm::block_of(14, static_cast<int>(rank), static_cast<int>(ways));
        for (std::uint32_t tile = 0; tile < 3; ++tile) {
          const auto count = model::tile_of(param, tile).count;
          EXPECT_EQ(count, model::tile_shape(param, tile)[dim]);
          const auto of_part = comm::block_of(mine.count, static_cast<int>(tile), 3);
          const auto in_whole = [&](std::int64_t i) {  // place i of the tile
            return i / of_part.count * 14 + mine.begin + of_part.begin + i % of_part.count;
          };
          for (std::int64_t a = 0; a < (dim == 0 ? count : 3); ++a)
            for (std::int64_t b = 0; b < (dim == 0 ? 3 : count); ++b)
              expected.push_back(dim == 0 ? in_whole(a) * 3 + b : a * length + in_whole(b));
        }
        const TensorParallel tensor{.ranks = ways, .rank = rank};
        for (std::size_t first = 0; first < expected.size(); ++first)
          for (const std::size_t count : {std::size_t{1}, std::size_t{4}, expected.size() - first}) {
            if (first + count > expected.size()) continue;
            std::vector<std::int64_t> found;
            model::each_stored_run(param, tensor, first, count, [&](const model::SplitRun& run) {
              EXPECT_EQ(first + found.size(), run.in_part);
              for (std::uint64_t i = 0; i < run.count; ++i) found.push_back(static_cast<std::int64_t>(run.in_whole + i));
            });
            ASSERT_EQ(std::vector(expected.begin() + static_cast<std::ptrdiff_t>(first),
                                  expected.begin() + static_cast<std::ptrdiff_t>(first + count)),
                      found);
          }
        for (const auto e : expected) ++held[static_cast<std::size_t>(e)];
      }
      EXPECT_TRUE(std::ranges::all_of(held, [](int times) { return times == 1; }));
    }
  const ParamSpec whole{.name = "w", .shape = {4, 4}, .tiles = 2};
  EXPECT_THROW((void)model::tile_of(whole, 2), std::logic_error);
}

}  // namespace
}  // namespace terrace::test
