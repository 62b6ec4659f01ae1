// The real cuDNN without a GPU: it accepts terrace's attention graphs for a GPU that is only described, proposes engines, and
// finalizes their plans. Skipped if the library is missing.
#include <gmock/gmock.h>

#include <cstdio>
#include <ostream>

#include <terrace/core/base/error.h>
#include <terrace/core/cuda/cudnn/attention_graph.h>
#include <terrace/core/cuda/cudnn/plan.h>

#include <terrace/tests/cuda/described_gpu.h>

namespace terrace::cuda::cudnn {
void PrintTo(const AttentionKey& key, std::ostream* out) { *out << to_string(key); }
}  // namespace terrace::cuda::cudnn

namespace terrace::test {
namespace {

using namespace cuda::cudnn;  // the namespace under test

constexpr std::size_t kRoomBytes = std::size_t{1} << 30;

PlanLimits limits_of(const AttentionKey& key) {
  return {.least_workspace_bytes = key.gradient ? score_bytes(key) : 0, .most_workspace_bytes = kRoomBytes};
}

class CudnnPlan : public testing::Test {
 protected:
  void SetUp() override {
    have_a_driver();
    std::string why;
    library_ = load_library(why);
    if (!library_) GTEST_SKIP() << "there is no cuDNN here: " << why;
  }
  std::optional<Library> library_;
};

class CudnnAttentionPlan : public CudnnPlan, public testing::WithParamInterface<AttentionKey> {};

// Proposes an engine whose workspace is large enough to store what is summed in one order, then makes the same engine from its
// text.
TEST_P(CudnnAttentionPlan, IsFinalizedForADescribedGpu) {
  const auto& key = GetParam();
  const auto device = describe_device(*library_, h100_json());
  const auto objects = attention_graph(*library_, key);
  const auto graph = objects.finish(nullptr);
  std::string why;
  const auto plan = propose_plan(graph, {.device = &device}, limits_of(key), why);
  ASSERT_TRUE(plan) << to_string(key) << why;
  const auto words = to_string(plan->choice);
  std::printf("cuDNN %s: %s: %s, workspace %zu bytes\n", library_->version().c_str(), to_string(key).c_str(), words.c_str(),
              plan->workspace_bytes);
  EXPECT_GE(plan->workspace_bytes, limits_of(key).least_workspace_bytes);

  const auto choice = parse_choice(words);
  ASSERT_TRUE(choice) << words;
  const auto again = make_plan(graph, {.device = &device}, limits_of(key), *choice, why);
  ASSERT_TRUE(again) << words << why;
  EXPECT_EQ(again->workspace_bytes, plan->workspace_bytes);
  EXPECT_EQ(to_string(again->choice), words);
}

constexpr AttentionKey with_gradient(AttentionKey key) {
  key.gradient = true;
  return key;
}
// Grouped queries in a part of wider buffers; separate keys for every head; an odd length; each head dim of terrace's kernels.
constexpr AttentionKey kGroup{
    .batch = 2, .seq = 4096, .heads = 4, .kv_heads = 1, .head_dim = 128, .all_heads = 32, .all_kv_heads = 8};
constexpr AttentionKey kHeads{
    .batch = 1, .seq = 1000, .heads = 8, .kv_heads = 8, .head_dim = 64, .all_heads = 8, .all_kv_heads = 8};
constexpr AttentionKey kOdd{
    .batch = 3, .seq = 77, .heads = 6, .kv_heads = 2, .head_dim = 32, .all_heads = 6, .all_kv_heads = 2};
constexpr AttentionKey kWide{
    .batch = 1, .seq = 2048, .heads = 8, .kv_heads = 2, .head_dim = 96, .all_heads = 8, .all_kv_heads = 2};

INSTANTIATE_TEST_SUITE_P(Shapes, CudnnAttentionPlan,
                         testing::Values(kGroup, kHeads, kOdd, kWide, with_gradient(kGroup), with_gradient(kHeads),
                                         with_gradient(kOdd), with_gradient(kWide)));

TEST_F(CudnnPlan, AnEngineBeyondTheRoomIsRefusedWithItsBytes) {
  const auto key = with_gradient(kGroup);
  const auto device = describe_device(*library_, h100_json());
  const auto objects = attention_graph(*library_, key);
  std::string why;
  EXPECT_FALSE(propose_plan(objects.finish(nullptr), {.device = &device}, {.most_workspace_bytes = 1 << 20}, why));
  EXPECT_THAT(why, testing::HasSubstr("bytes of workspace, more than 1048576"));
}

TEST_F(CudnnPlan, AnEngineThatDoesNotExistIsRefusedInTheLibrarysWords) {
  const auto device = describe_device(*library_, h100_json());
  const auto objects = attention_graph(*library_, kHeads);
  std::string why;
  EXPECT_FALSE(make_plan(objects.finish(nullptr), {.device = &device}, limits_of(kHeads), {.engine = 999}, why));
  EXPECT_THAT(why, testing::HasSubstr("engine 999, knobs none: cuDNN"));
  EXPECT_THAT(why, testing::HasSubstr("CUDNN_STATUS_"));
}

TEST_F(CudnnPlan, ADescriptionThatIsNoneIsAnError) { EXPECT_THROW(describe_device(*library_, "{}"), Error); }

TEST(CudnnChoice, WordsAreReadBack) {
  for (const EngineChoice& choice :
       {EngineChoice{}, EngineChoice{6, {{24, 26}}}, EngineChoice{2, {{24, 1}, {27, 0}, {40, 3}}}}) {
    const auto read = parse_choice(to_string(choice));
    ASSERT_TRUE(read) << to_string(choice);
    EXPECT_EQ(*read, choice);
  }
  for (const auto* text : {"", "engine", "engine 6", "engine 6, knobs", "engine 6, knobs none!", "engine x, knobs none",
                           "engine 6, knobs 24", "engine 6, knobs 24=", "engine 6, knobs 24=26 ", "engine 6, knobs 24=26, 1"})
    EXPECT_FALSE(parse_choice(text)) << text;
}

}  // namespace
}  // namespace terrace::test
