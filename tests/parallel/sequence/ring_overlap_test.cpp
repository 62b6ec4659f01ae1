// In a run, each hop of a ring runs beside the attention to the slice that came before (beside.h).
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <terrace/tests/parallel/tensor/tensor_plans.h>

namespace terrace::test {
namespace {

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
  TensorRun o{.config = llama(), .context = ranks, .batch = {1, 32}};
  o.config.seq_len = 32;
  o.config.place.ring = ranks;
  o.config.place.two_rings = two_rings;
  std::vector<Beside> beside(ranks);
  // Does not count the gradients of two rings, which go directly to their ranks.
  step_beside(
      o, folder_, beside, [](const std::string& layer) { return layer.ends_with("attention"); },
      [](comm::Operation operation) { return operation == comm::Operation::all_to_all; });
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
