// In a run, the hops of a ring run beside the attending to what came before (beside.h).
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "beside.h"
#include "tensor_run.h"

namespace terrace::test {
namespace {

using namespace std::chrono_literals;

class RingOverlap : public FolderTest {};

TEST_F(RingOverlap, HopsRunBesideTheAttendingInARun) {
  constexpr std::uint32_t kRanks = 4;
  auto config = llama();
  config.seq_len = 32;
  config.context.ring = kRanks;
  TensorRun o{.config = config, .context = kRanks};
  o.batch = {1, 32};
  std::vector<Beside> beside(kRanks);
  std::size_t expected = 0;
  const auto counts = [](Operation operation) { return operation == Operation::all_to_all; };
  const auto outcome = on_threads(kRanks, {90s}, [&](Rank& rank) {
    const auto r = static_cast<std::uint32_t>(rank.comm->rank());
    auto here = config;
    here.context = {.ranks = kRanks, .rank = r, .ring = kRanks};
    auto model = lm::make_model(here);
    for (auto& layer : model.layers)
      if (layer->name().ends_with("attention")) layer = std::make_unique<Watched>(std::move(layer), beside[r]);
    const auto optimizer = make_optimizer("adamw", {});
    const auto request = request_of(o, *optimizer, r);
    const auto planned = for_rank(plan(model, request, {}), model, request, {});
    const StepMap map(model, planned.map);
    GatedCommunicator ranks(std::move(rank.comm), beside[r], counts);
    Engine engine(model, planned,
                  {.device = &rank.device,
                   .store = {.paths = {folder_}, .name = fmt::format("rank{}", r), .temporary = true},
                   .optimizer = optimizer.get(),
                   .communicator = &ranks});
    engine.fill(random_weights(7));
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(map.options().shape.batch.tokens()) * o.micro_batches, 1);
    const auto partners = partners_of(map, planned.programs.first, counts);
    if (r == 0) expected = partners.size();
    beside[r].begin(partners);
    engine.step({.tokens = ids, .targets = ids});
  });
  for (const auto& error : outcome) ASSERT_EQ(error, "");
  // Of both blocks and micro-batches: all but the way home of gradients.
  EXPECT_EQ(2 * 2 * 3 * (kRanks - 1), expected);
  for (const auto& of_rank : beside) EXPECT_EQ(expected, of_rank.met());
}

}  // namespace
}  // namespace terrace::test
