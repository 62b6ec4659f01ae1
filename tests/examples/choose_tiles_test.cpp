// What is chosen where a number of tiles, or of the head's rows, is 0.
#include <gtest/gtest.h>

#include <terrace/examples/terrace/choose_tiles.h>

namespace terrace::test {
namespace {

cli::RunConfig with_vocabulary(const char* device, const char* memory) {
  cli::RunConfig c;
  c.layers = 1, c.hidden = 64, c.heads = 2, c.seq_len = 4096, c.batch_size = 2, c.vocab = 128256;
  c.dtype = "bf16", c.recipe = "split";
  c.device = device, c.device_memory = memory;
  return c;
}
std::int64_t rows(const cli::RunConfig& c) { return cli::with_chosen_tiles(c).head_rows; }

// Of 4,096 rows the logits are 1,002 MiB.
TEST(HeadRows, AreAsManyAsTakeAnEighthOfAGpu) {
  EXPECT_EQ(4096, rows(with_vocabulary("cuda:0", "80GiB")));
  EXPECT_EQ(4096, rows(with_vocabulary("cuda:0", "9GiB")));
  EXPECT_EQ(2048, rows(with_vocabulary("cuda:0", "8GiB")));
  EXPECT_EQ(512, rows(with_vocabulary("cuda:0", "1.5GiB")));
  EXPECT_EQ(0, rows(with_vocabulary("cuda:0", "1GiB"))) << "then those of 64 MiB";
  EXPECT_EQ(0, rows(with_vocabulary("cpu", "80GiB")));
}

TEST(HeadRows, AreNotMoreThanAMicroBatchHasAndStayAsTheyAreGiven) {
  auto c = with_vocabulary("cuda:0", "80GiB");
  c.seq_len = 700, c.batch_size = 1;
  EXPECT_EQ(1024, rows(c));
  c.seq_len = 100;
  EXPECT_EQ(512, rows(c));
  c.head_rows = 96;
  EXPECT_EQ(96, rows(c));
}

TEST(HeadRows, OfRanksAreTheFewestAndTilesTheMost) {
  auto c = with_vocabulary("cuda:0", "80GiB");
  c.head_rows = 2048, c.vocab_tiles = 2;
  cli::agree_on_tiles(c, [](std::uint64_t mine) { return mine; });
  EXPECT_EQ(2048, c.head_rows);
  std::uint64_t asked = 0;
  cli::agree_on_tiles(c, [&](std::uint64_t mine) { return ++asked == 1 ? 4 : std::max<std::uint64_t>(mine, (1 << 20) - 512); });
  EXPECT_EQ(4, c.vocab_tiles);
  EXPECT_EQ(512, c.head_rows);
}

}  // namespace
}  // namespace terrace::test
