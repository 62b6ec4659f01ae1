// The exchanges at the edges of a layer's call: which there are, from where to where, and how much.
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <terrace/parallel/model/tensor_edges.h>

namespace terrace {
namespace {

using Of = PhaseTensor::Of;

constexpr BatchShape kShape{.batch = 2, .seq = 6};
constexpr std::int64_t kWidth = 10, kAll = 120;

TensorEdges edges(std::uint32_t ranks, bool sequence) {
  return {.tensor = {.ranks = ranks, .sequence = sequence}, .dtype = DType::bf16, .width = kWidth};
}

std::vector<Phase> phases_of(LayerCall call, const TensorEdges& edges, CallSteps steps = {}) {
  steps.compute([](LayerContext&, const LayerTensors&) {});
  add_tensor_edges(steps, call, kShape, edges);
  return steps.phases();
}

void expect_exchange(const Phase& phase, comm::Operation operation, std::optional<Of> from, std::optional<Of> to,
                     std::int64_t sent, std::int64_t received) {
  ASSERT_TRUE(phase.exchange.has_value());
  EXPECT_EQ(phase.exchange->operation, operation);
  EXPECT_EQ(phase.exchange->members, mesh::kTensorRanks);
  EXPECT_EQ(phase.exchange->from.of, from.value_or(Of::work));
  EXPECT_EQ(phase.exchange->to.of, to.value_or(Of::work));
  EXPECT_EQ(phase.exchange->sent, std::vector{sent});
  EXPECT_EQ(phase.exchange->received, std::vector{received});
}

TEST(TensorEdges, WholeRowsAreSummedInPlace) {
  const auto forward = phases_of(LayerCall::forward, edges(3, false));
  ASSERT_EQ(forward.size(), 2U);
  EXPECT_TRUE(forward[0].undivided);
  expect_exchange(forward[1], comm::Operation::all_reduce, Of::y, Of::y, kAll, kAll);
  EXPECT_EQ(forward[1].y, Access::update);
  const auto backward = phases_of(LayerCall::backward, edges(3, false));
  ASSERT_EQ(backward.size(), 2U);
  expect_exchange(backward[1], comm::Operation::all_reduce, Of::dx, Of::dx, kAll, kAll);
  EXPECT_EQ(backward[1].dx, Access::update);
  EXPECT_EQ(backward[1].half, Half::input);
}

TEST(TensorEdges, SharesOfRowsAreGatheredBeforeAndSummedAfter) {
  const auto forward = phases_of(LayerCall::forward, edges(3, true));
  ASSERT_EQ(forward.size(), 3U);
  expect_exchange(forward[0], comm::Operation::all_gather, Of::x, {}, kAll / 3, kAll);
  EXPECT_TRUE(forward[0].x);
  expect_exchange(forward[2], comm::Operation::reduce_scatter, {}, Of::y, kAll, kAll / 3);
  EXPECT_EQ(forward[2].y, Access::overwrite);
  const auto backward = phases_of(LayerCall::backward, edges(3, true));
  ASSERT_EQ(backward.size(), 4U);
  expect_exchange(backward[0], comm::Operation::all_gather, Of::x, {}, kAll / 3, kAll);
  expect_exchange(backward[1], comm::Operation::all_gather, Of::dy, {}, kAll / 3, kAll);
  EXPECT_TRUE(backward[1].dy);
  EXPECT_EQ(backward[0].half, Half::both) << "each half reads it";
  expect_exchange(backward[3], comm::Operation::reduce_scatter, {}, Of::dx, kAll, kAll / 3);
  EXPECT_EQ(backward[3].half, Half::input);
}

TEST(TensorEdges, EachRoomHasAllRowsAndStandsForItsTensor) {
  CallSteps steps;
  steps.compute([](LayerContext&, const LayerTensors&) {});
  add_tensor_edges(steps, LayerCall::backward, kShape, edges(2, true));
  for (const auto of : {Of::x, Of::dy, Of::dx}) {
    ASSERT_TRUE(steps.room_of(of).has_value());
    const auto& room = steps.work().at(*steps.room_of(of));
    EXPECT_EQ(room.shape, (Shape{12, kWidth}));
    EXPECT_EQ(room.dtype, DType::bf16);
  }
  EXPECT_FALSE(steps.room_of(Of::y).has_value());
}

TEST(TensorEdges, ThereAreNoneWhereThereIsNothingToExchange) {
  EXPECT_EQ(phases_of(LayerCall::forward, edges(1, false)).size(), 1U);
  EXPECT_EQ(phases_of(LayerCall::decode, edges(2, true)).size(), 1U);
  auto first = edges(2, true), last = first, saves_more = first, sums = edges(2, false);
  first.has_x = false;
  EXPECT_EQ(phases_of(LayerCall::forward, first).size(), 2U);
  EXPECT_EQ(phases_of(LayerCall::backward, first).size(), 2U);
  last.has_y = false;
  EXPECT_EQ(phases_of(LayerCall::forward, last).size(), 2U);
  EXPECT_EQ(phases_of(LayerCall::backward, last).size(), 3U);
  saves_more.backward_reads_x = false;
  EXPECT_EQ(phases_of(LayerCall::backward, saves_more).size(), 3U);
  sums.sums_y = false;
  EXPECT_EQ(phases_of(LayerCall::forward, sums).size(), 1U);
  EXPECT_EQ(phases_of(LayerCall::backward, sums).size(), 2U) << "its dx is a part still";
}

}  // namespace
}  // namespace terrace
