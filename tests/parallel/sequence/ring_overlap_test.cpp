// In a run, each hop of a ring runs beside the attention to the slice that came before (beside.h).
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <terrace/tests/parallel/run/beside.h>
#include <terrace/tests/parallel/tensor/tensor_run.h>

namespace terrace::test {
namespace {

using namespace std::chrono_literals;

class RingOverlap : public FolderTest {
 protected:
  // The number of hops that each rank makes in a step, and of those that began only after their partner had begun.
  struct Hops {
    std::size_t made = 0, hidden = 0;
    friend bool operator==(const Hops&, const Hops&) = default;
  };
  Hops hops_of(std::uint32_t ranks, bool two_rings);
};

RingOverlap::Hops RingOverlap::hops_of(std::uint32_t ranks, bool two_rings) {
  auto config = llama();
  config.seq_len = 32;
  TensorRun o{.config = config, .context = ranks};
  o.batch = {1, 32};
  std::vector<Beside> beside(ranks);
  // Does not count the gradients of two rings, which go directly to their ranks.
  const auto is_hop = [](comm::Operation operation) { return operation == comm::Operation::all_to_all; };
  const auto outcome = on_threads(static_cast<int>(ranks), {90s}, [&](Rank& rank) {
    const auto r = static_cast<std::uint32_t>(rank.comm->rank());
    auto here = config;
    here.place = {.mesh = {.context = ranks}, .rank = r, .ring = ranks, .two_rings = two_rings};
    auto model = lm::make_model(here);
    for (auto& layer : model.layers)
      if (layer->name().ends_with("attention")) layer = std::make_unique<Watched>(std::move(layer), beside[r]);
    const auto optimizer = make_optimizer("adamw", {});
    const auto request = request_of(o, *optimizer, r);
    const auto planned = for_rank(plan(model, request, {}), model, request, {});
    const StepMap map(model, planned.map);
    GatedCommunicator gated(std::move(rank.comm), beside[r], is_hop);
    Engine engine(model, planned,
                  {.device = &rank.device,
                   .store = {.paths = {folder_}, .name = fmt::format("rank{}", r), .temporary = true},
                   .optimizer = optimizer.get(),
                   .communicator = &gated});
    engine.fill(random_weights(7));
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(map.options().shape.batch.tokens()) * o.micro_batches, 1);
    beside[r].begin(partners_of(map, planned.programs.first, is_hop));
    engine.step({.tokens = ids, .targets = ids});
  });
  for (const auto& error : outcome) EXPECT_EQ(error, "");
  const auto of = [](const Beside& rank) { return Hops{rank.issued(), rank.met()}; };
  for (const auto& rank : beside) EXPECT_EQ(of(beside.front()), of(rank));
  return of(beside.front());
}

// In both blocks and micro-batches, as in the simulation, all hops are hidden except those that return gradients.
TEST_F(RingOverlap, HopsRunBesideTheAttendingInARun) {
  for (const std::uint32_t ranks : {2U, 4U}) {
    const auto hops = hops_of(ranks, false);
    EXPECT_EQ(2 * 2 * (3 * (ranks - 1) + 1), hops.made);
    EXPECT_EQ(2 * 2 * 3 * (ranks - 1), hops.hidden);
  }
}

TEST_F(RingOverlap, HopsOfTwoRingsRunBesideTheProductsInARun) {
  for (const std::uint32_t ranks : {2U, 4U}) {
    const auto hops = hops_of(ranks, true);
    EXPECT_EQ(2 * 2 * 4 * (ranks - 1), hops.made);
    EXPECT_EQ(hops.made, hops.hidden);
  }
}

}  // namespace
}  // namespace terrace::test
