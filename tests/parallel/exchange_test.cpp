// What a plan says of links: the formulas of collectives by hand, and the bytes that a ledger counts.
#include <gtest/gtest.h>

#include <terrace/parallel/exchange.h>
#include <terrace/parallel/plan.h>
#include <terrace/tests/support/toy_run.h>

namespace terrace {
namespace {

constexpr Links kCluster{.ranks_per_node = 4, .within = 100, .between = 10, .within_latency_s = 1, .between_latency_s = 2};

TEST(Exchange, OnOneNodeEverythingIsWithinIt) {
  const Exchange gather{Operation::all_gather, 400, 4, 1};
  const auto bytes = link_bytes(kCluster, gather);
  EXPECT_DOUBLE_EQ(bytes.within, 300);
  EXPECT_DOUBLE_EQ(bytes.between, 0);
  EXPECT_DOUBLE_EQ(seconds_of(kCluster, gather), 3 + 3 * 1);
  EXPECT_DOUBLE_EQ(link_bytes({}, {Operation::all_gather, 400, 8, 1}).within, 350) << "no nodes: one machine";
}

TEST(Exchange, BetweenNodesANodesLinkCarriesWhatItsRanksLackOnce) {
  const Exchange gather{Operation::all_gather, 800, 8, 1};  // two nodes of four
  const auto bytes = link_bytes(kCluster, gather);
  EXPECT_DOUBLE_EQ(bytes.within, 600);       // every rank takes all but a fourth from its neighbours
  EXPECT_DOUBLE_EQ(bytes.between * 4, 400);  // a node, the other's half
  EXPECT_DOUBLE_EQ(seconds_of(kCluster, gather), 40 + 3 * 1 + 1 * 2);
  const Exchange reduce{Operation::all_reduce, 800, 8, 1};
  EXPECT_DOUBLE_EQ(seconds_of(kCluster, reduce), 2 * seconds_of(kCluster, gather));
}

TEST(Exchange, DirectSumsCrossTheNodesLinkOnceARank) {
  auto links = kCluster;
  links.direct = true;
  const Exchange scatter{Operation::reduce_scatter, 800, 8, 1};
  const auto bytes = link_bytes(links, scatter);
  EXPECT_DOUBLE_EQ(bytes.within, 300);
  EXPECT_DOUBLE_EQ(bytes.between, 400);
  EXPECT_DOUBLE_EQ(seconds_of(links, scatter), 160 + 2);
}

TEST(Exchange, RanksThatLieApartShareTheirNodesLink) {
  // Ranks 0, 4, 8, 12: one on each of four nodes, and three more such collectives beside it.
  const Exchange reduce{Operation::all_reduce, 400, 4, 4};
  const auto bytes = link_bytes(kCluster, reduce);
  EXPECT_DOUBLE_EQ(bytes.within, 0);
  EXPECT_DOUBLE_EQ(bytes.between, 600);
  EXPECT_DOUBLE_EQ(seconds_of(kCluster, reduce), 600 * 4 / 10.0 + 2 * 3 * 2);
}

// Whatever a plan costs, its uses are those of a rank: nobody's list of them grows with the number of ranks.
TEST(Exchange, AProgramsUsesDoNotGrowWithTheRanks) {
  const auto most_uses = [](std::uint32_t ranks) {
    toy::RunOptions o;
    o.sizes.tied = true;
    o.shape = {{1, 8}, 1};
    o.data = {.ranks = ranks, .zero = 3};
    const auto model = toy::make_model(o.sizes);
    auto request = toy::request_of(o);
    request.chunk_elements = Layout::kBlockElements;
    const auto p = plan(model, request, o.profile);
    EXPECT_TRUE(p.fits) << p.refusal.why;
    const StepMap map(model, p.map);
    std::size_t most = 0;
    for (const auto* program : {&p.programs.steady, &p.programs.fill, &p.programs.visit})
      for (const auto& action : program->actions) most = std::max(most, map.uses(action).size());
    return most;
  };
  EXPECT_LE(most_uses(1000), most_uses(8));
}

}  // namespace
}  // namespace terrace
