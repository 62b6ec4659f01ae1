// Each block may have its own window: the right block has it, and every mesh trains what one rank trains.
#include <gmock/gmock.h>

#include <terrace/parallel/layers/parts/block_pattern.h>

#include <terrace/tests/parallel/tensor/tensor_run.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

using layers::Windows;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kSeq = 24;

TensorRun of(lm::ModelConfig config, const Windows& windows) {
  config.seq_len = kSeq;
  config.layers = 3;
  config.window = windows;
  TensorRun o{.config = std::move(config)};
  o.batch = {2, kSeq};
  return o;
}

class WindowsOfBlocks : public TensorRuns {};

// Each of these patterns gives another model. A pattern is repeated over the blocks, and a window of all positions equals none.
TEST_F(WindowsOfBlocks, EachBlockHasItsOwn) {
  for (const auto& config : {gpt2(), llama()}) {
    std::vector<double> losses;
    for (const auto& pattern : {std::vector<std::int64_t>{0}, {4}, {4, 0}, {0, 4}, {4, 0, 0}, {0, 0, 4}, {4, 4, 0}})
      losses.push_back(run(of(config, Windows(pattern))).held_out);
    for (std::size_t a = 0; a < losses.size(); ++a)
      for (std::size_t b = 0; b < a; ++b) EXPECT_GT(std::abs(losses[a] - losses[b]), 1e-7) << a << " and " << b;
    expect_same(run(of(config, Windows({4, 0}))), run(of(config, Windows({4, 0, 4}))), "repeated");
    expect_equal(run(of(config, Windows({0, 0, 4}))), run(of(config, Windows({kSeq, kSeq, 4}))), kFp64, "long windows");
  }
}

TEST_F(WindowsOfBlocks, EveryMeshTrainsWhatOneRankTrains) {
  for (const auto& config : {gpt2(), llama()})
    for (const auto& windows : {Windows({5, 0}), Windows({0, 13, 1})}) {
      for (const auto& [ranks, ring] : {std::pair{2U, 1U}, {4U, 1U}, {3U, 3U}, {4U, 4U}, {4U, 2U}}) {
        auto o = of(config, windows);
        o.context = ranks;
        o.config.place.ring = ring;
        expect_serial(o, kFp64);
      }
      for (const auto& [data, tensor, schedule] : {std::tuple{2U, 1U, ""}, {1U, 2U, ""}, {1U, 1U, "1f1b"}}) {
        auto o = of(config, windows);
        o.data = {.ranks = data, .zero = 3};
        o.tensor_ranks = tensor;
        o.sequence = tensor > 1;
        o.schedule = schedule;
        o.squeezed = o.disk_tier = true;
        expect_serial(o, kFp64);
      }
      for (const bool cube : {false, true}) {
        auto o = of(config, windows);
        o.grid = {.depth = 2, .side = 2, .cube = cube};
        o.tensor_ranks = 8;
        o.sequence = true;
        o.batch.batch = 4;
        expect_serial(o, kFp64);
      }
    }
}

TEST_F(WindowsOfBlocks, BudgetsAndOrdersChangeNoBit) {
  auto o = of(llama(), Windows({5, 0}));
  o.context = 4;
  o.config.place.ring = 4;
  o.micro_batches = 3;
  expect_no_bit_changes_in_little_memory(o);
}

TEST(Windows, APatternIsRepeated) {
  const auto windows = Windows::parse("512,512,0");
  EXPECT_THAT(windows.pattern(), ElementsAre(512, 512, 0));
  EXPECT_EQ(512, windows.of(1));
  EXPECT_EQ(0, windows.of(5));
  EXPECT_EQ("512,512,0", to_string(windows));
  EXPECT_FALSE(windows.is_usual());
  EXPECT_TRUE(Windows({0, 0}).is_usual());
  EXPECT_EQ(Windows(7), Windows::parse("7"));
  for (const auto* const wrong : {"", "x", "1,", ",1", "1,,2", "-1", "1 ,2", "99999999999999999999"}) {
    EXPECT_THAT(refusal_of([&] { static_cast<void>(Windows::parse(wrong)); }), HasSubstr("is no window of attention")) << wrong;
  }
}

// 1,0,1 over six blocks is 1,0,1,1,0,1, and not 1,0,1,0,1,0.
TEST(RotatedBlocks, AListIsShortenedOnlyToAPartThatRepeatsInIt) {
  using layers::RotatedBlocks;
  const auto blocks = RotatedBlocks::parse("1,0,1");
  EXPECT_EQ("1,0,1", to_string(blocks));
  EXPECT_TRUE(blocks.of(3));
  EXPECT_FALSE(blocks.of(4));
  EXPECT_EQ("1,0", to_string(RotatedBlocks::parse("1,0,1,0")));
  EXPECT_EQ(RotatedBlocks(), RotatedBlocks::parse("1,1,1"));
  // A list of all blocks ends anywhere in its pattern.
  EXPECT_EQ(2U, layers::shortest_pattern(std::vector<bool>{true, false, true}).size());
}

}  // namespace
}  // namespace terrace::test
