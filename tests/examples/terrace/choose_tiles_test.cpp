// The choices made for a number of tiles, or of the head's rows, that is 0.
#include <gtest/gtest.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/plan/choose_tiles.h>

namespace terrace::test {
namespace {

cli::RunConfig with_vocabulary(const char* device, const char* memory) {
  cli::RunConfig c;
  c.model.layers = 1, c.model.hidden = 64, c.model.heads = 2, c.model.seq_len = 4096, c.train.batch_size = 2,
  c.model.vocab = 128256;
  c.model.dtype = DType::bf16, c.train.recipe = "split";
  c.memory.device = device, c.memory.device_memory = memory;
  c.plan.tiles = cli::Tiles::off;
  return c;
}
std::int64_t rows(const cli::RunConfig& c) { return cli::with_chosen_tiles(c).model.head_rows; }

// The logits of 4,096 rows need 1,002 MiB.
TEST(HeadRows, AreFewerOnlyWhereTheyWouldNotFit) {
  EXPECT_EQ(4096, rows(with_vocabulary("cuda:0", "80GiB")));
  EXPECT_EQ(4096, rows(with_vocabulary("cuda:0", "1.5GiB")));
  EXPECT_EQ(2048, rows(with_vocabulary("cuda:0", "900MiB")));
  EXPECT_EQ(1024, rows(with_vocabulary("cuda:0", "450MiB")));
  EXPECT_EQ(512, rows(with_vocabulary("cuda:0", "250MiB")));
  EXPECT_EQ(64, rows(with_vocabulary("cuda:0", "10MiB"))) << "which do not fit, either";
  EXPECT_EQ(0, rows(with_vocabulary("cpu", "80GiB"))) << "then those of 64 MiB";
}

// Slices of 512 rows are tried before a vocabulary in tiles, which computes logits twice; smaller slices only after all numbers
// of tiles.
TEST(HeadRows, AreHalvedBeforeTheVocabularyIsInTiles) {
  const auto chosen = [](const char* memory, std::uint32_t vocab_tiles) {
    auto c = with_vocabulary("cuda:0", memory);
    c.model.vocab_tiles = vocab_tiles;
    c = cli::with_chosen_tiles(c);
    return std::pair{c.model.head_rows, c.model.vocab_tiles};
  };
  EXPECT_EQ(std::pair(std::int64_t{512}, 1U), chosen("250MiB", 0));
  EXPECT_EQ(std::pair(std::int64_t{512}, 2U), chosen("120MiB", 0));
  EXPECT_EQ(std::pair(std::int64_t{256}, 1U), chosen("120MiB", 1));
}

// With automatic tiles, a model that fits whole keeps the bits that it has without tiles.
TEST(HeadRows, AreFewerBeforeAutomaticTiles) {
  for (const auto* const memory : {"80GiB", "450MiB", "250MiB"}) {
    auto c = with_vocabulary("cuda:0", memory);
    const auto off = rows(c);
    c.plan.tiles = cli::Tiles::automatic;
    const auto chosen = cli::with_chosen_tiles(c);
    EXPECT_EQ(off, chosen.model.head_rows) << memory;
    EXPECT_EQ(1U, chosen.model.vocab_tiles) << memory;
  }
  auto c = with_vocabulary("cuda:0", "20MiB");
  c.plan.tiles = cli::Tiles::automatic;
  EXPECT_LT(1U, cli::with_chosen_tiles(c).model.vocab_tiles);
  c.model.mlp_tiles = 2;
  EXPECT_EQ(1U, cli::with_chosen_tiles(c).model.vocab_tiles) << "a number is given";
}

// On an H100, a limit of 16 MiB changed bits because it cut the rows into slices of 512 and 18.
TEST(HeadRows, OfASmallModelAreThoseOfNoBudget) {
  cli::RunConfig c;
  c.model.layers = 2, c.model.hidden = 256, c.model.heads = 2, c.model.kv_heads = 1, c.model.ffn = 320, c.model.vocab = 509,
  c.model.seq_len = 521, c.train.batch_size = 2;
  c.memory.device = "cuda:0";
  for (const auto* const memory : {"80GiB", "16MiB", "7MiB"}) {
    c.memory.device_memory = memory;
    EXPECT_EQ(2048, rows(c)) << memory;
  }
}

TEST(HeadRows, AreNotMoreThanAMicroBatchHasAndStayAsTheyAreGiven) {
  auto c = with_vocabulary("cuda:0", "80GiB");
  c.model.seq_len = 700, c.train.batch_size = 1;
  EXPECT_EQ(1024, rows(c));
  c.model.seq_len = 100;
  EXPECT_EQ(512, rows(c));
  c.model.head_rows = 96;
  EXPECT_EQ(96, rows(c));
}

// While tiles are not chosen yet, no layer counts as cut. The choice then leaves a layer whole if a part of it is frozen, and
// cuts the others.
TEST(Tiles, LeaveLayersWholeOfWhichAPartIsFrozen) {
  auto c = with_vocabulary("cpu", "20MiB");
  c.model.seq_len = 64;
  c.model.vocab_tiles = c.model.mlp_tiles = c.model.mlp_row_tiles = c.model.attention_tiles = 0;
  const auto vocab_tiles = [&](const char* freeze) {
    c.train.freeze = freeze;
    EXPECT_NO_THROW(cli::validate(c)) << freeze;
    return cli::with_chosen_tiles(c).model.vocab_tiles;
  };
  const auto free = vocab_tiles("");
  EXPECT_GT(free, 1);
  EXPECT_EQ(free, vocab_tiles("layers.0.input_layernorm.weight"));
  EXPECT_EQ(free, vocab_tiles("layers.0.*"));
  EXPECT_EQ(1, vocab_tiles("norm.weight"));
  c.model.vocab_tiles = 2;
  EXPECT_THROW(cli::validate(c), Error);
  c.model.experts.count = 2, c.model.vocab_tiles = 1, c.train.freeze = "";
  EXPECT_NO_THROW(cli::validate(c)) << "of experts there is nothing to choose";
  EXPECT_EQ(1U, cli::with_chosen_tiles(c).model.mlp_tiles);
}

TEST(HeadRows, OfRanksAreTheFewestAndTilesTheMost) {
  auto c = with_vocabulary("cuda:0", "80GiB");
  c.model.head_rows = 2048, c.model.vocab_tiles = 2;
  cli::agree_on_tiles(c, [](std::uint64_t mine) { return mine; });
  EXPECT_EQ(2048, c.model.head_rows);
  std::uint64_t asked = 0;
  cli::agree_on_tiles(c, [&](std::uint64_t mine) { return ++asked == 1 ? 4 : std::max<std::uint64_t>(mine, (1 << 20) - 512); });
  EXPECT_EQ(4U, c.model.vocab_tiles);
  EXPECT_EQ(512, c.model.head_rows);
}

}  // namespace
}  // namespace terrace::test
