// What a plan says about links: formulas of collectives computed by hand, and the bytes that a ledger counts.
#include <gtest/gtest.h>

#include <terrace/parallel/comm/between_machines.h>
#include <terrace/parallel/map/exchange.h>
#include <terrace/parallel/plan/plan.h>
#include <terrace/tests/support/toy_run.h>

namespace terrace {
namespace {

constexpr machine::Links kCluster{
    .ranks_per_node = 4, .within = 100, .between = 10, .within_latency_s = 1, .between_latency_s = 2};

TEST(Exchange, OnOneNodeEverythingIsWithinIt) {
  const mapping::Exchange gather{comm::Operation::all_gather, 400, 4, 1};
  const auto bytes = mapping::link_bytes(kCluster, gather);
  EXPECT_DOUBLE_EQ(bytes.within, 300);
  EXPECT_DOUBLE_EQ(bytes.between, 0);
  EXPECT_DOUBLE_EQ(mapping::seconds_of(kCluster, gather), 3 + 1 + 3 * 1) << "the ranks meet, then a ring";
  EXPECT_DOUBLE_EQ(mapping::link_bytes({}, {comm::Operation::all_gather, 400, 8, 1}).within, 350) << "no nodes: one machine";
}

TEST(Exchange, BetweenNodesANodesLinkCarriesWhatItsRanksLackOnce) {
  const mapping::Exchange gather{comm::Operation::all_gather, 800, 8, 1};  // two nodes of four
  const auto bytes = mapping::link_bytes(kCluster, gather);
  EXPECT_DOUBLE_EQ(bytes.within, 600);       // every rank takes all but a fourth from its neighbours
  EXPECT_DOUBLE_EQ(bytes.between * 4, 400);  // per node: the other node's half
  EXPECT_DOUBLE_EQ(mapping::seconds_of(kCluster, gather), 6 + 40 + 2 * (1 + 2)) << "the ranks meet, then the gather";
  const mapping::Exchange scatter{comm::Operation::reduce_scatter, 800, 8, 1}, reduce{comm::Operation::all_reduce, 800, 8, 1};
  EXPECT_DOUBLE_EQ(mapping::seconds_of(kCluster, scatter), mapping::seconds_of(kCluster, gather));
  EXPECT_DOUBLE_EQ(mapping::seconds_of(kCluster, reduce), 2 * (6 + 40) + 3 * (1 + 2));
}

TEST(Exchange, SumsInRankOrderCrossTheNodesLinkOnceARank) {
  const mapping::Exchange scatter{comm::Operation::reduce_scatter, 800, 8, 1, comm::SumOrder::ranks};
  const auto bytes = mapping::link_bytes(kCluster, scatter);
  EXPECT_DOUBLE_EQ(bytes.within, 300);
  EXPECT_DOUBLE_EQ(bytes.between, 400);
  EXPECT_DOUBLE_EQ(mapping::seconds_of(kCluster, scatter), 3 + 160 + (1 + 2) + 2);
}

TEST(Exchange, RanksThatLieApartShareTheirNodesLink) {
  // Ranks 0, 4, 8, 12: one on each of four nodes. Three more such collectives run beside it.
  const mapping::Exchange reduce{comm::Operation::all_reduce, 400, 4, 4};
  const auto bytes = mapping::link_bytes(kCluster, reduce);
  EXPECT_DOUBLE_EQ(bytes.within, 0);
  EXPECT_DOUBLE_EQ(bytes.between, 600);
  EXPECT_DOUBLE_EQ(mapping::seconds_of(kCluster, reduce), 600 * 4 / 10.0 + 3 * 2 * 2) << "three times two rounds";
}

// A small reduction between many nodes must not wait for as many messages in a row as there are nodes.
TEST(Exchange, ManyNodesAreFewRounds) {
  const mapping::Exchange reduce{comm::Operation::all_reduce, 1024, 128, 4};
  EXPECT_LT(mapping::seconds_of(kCluster, reduce) - mapping::link_bytes(kCluster, reduce).between * 4 / 10, 3 * 7 * 2 + 1e-9);
}

// The formulas give what the transports send (sent_by_link walks their messages): for every rank if the number of nodes is a
// power of two, and on average for any number.
TEST(Exchange, TheFormulasAreWhatIsSent) {
  struct Kind {
    comm::Reduction reduction;
    std::uint64_t sum_bytes_of_an_element;
  };
  const std::vector<Kind> kinds{{comm::Reduction::sum(DType::fp32), 4},
                                {comm::Reduction::sum(DType::bf16), 4},
                                {{.from = DType::bf16, .to = DType::fp32, .onto = true}, 4},
                                {comm::Reduction::sum_of_blocks(), 1024},
                                {comm::Reduction::sum(DType::fp64), 8}};
  for (const int nodes : {1, 2, 3, 4, 7})
    for (const int each : {1, 2, 3}) {
      const int ranks = nodes * each;
      std::vector<int> machine_of_rank;
      for (int r = 0; r < ranks; ++r) machine_of_rank.push_back(r / each);
      const auto machines = comm::Machines::of(machine_of_rank);
      const machine::Links links{.ranks_per_node = static_cast<std::uint32_t>(each)};
      const auto expect = [&](const comm::Call& call, const mapping::Exchange& exchange) {
        const auto formula = mapping::link_bytes(links, exchange);
        const auto what = to_string(call) + ", " + std::to_string(nodes) + " nodes of " + std::to_string(each);
        // If the number of nodes is no power of two, some nodes pass on more of a gather than others.
        const bool alike = exchange.operation == comm::Operation::reduce_scatter || (nodes & (nodes - 1)) == 0;
        mapping::LinkBytes all;
        for (int r = 0; r < ranks; ++r) {
          const auto sent = comm::sent_by_link(call, r, machines);
          all += {static_cast<double>(sent.within) / ranks, static_cast<double>(sent.between) / ranks};
          EXPECT_NEAR(static_cast<double>(sent.within), formula.within, 1e-6) << what;
          EXPECT_NEAR(static_cast<double>(sent.between), formula.between, alike ? 1e-6 : formula.between) << what;
        }
        EXPECT_NEAR(all.between, formula.between, 1e-6) << what;
      };
      const auto size = static_cast<std::uint32_t>(ranks);
      const auto count = 12U * size;
      for (auto [reduction, wide] : kinds)
        for (const auto order : {comm::SumOrder::machines, comm::SumOrder::ranks}) {
          reduction.order = order;
          std::vector<std::byte> from(count * reduction.from_bytes()), to(count * reduction.to_bytes());
          const comm::Call scatter{
              .operation = comm::Operation::reduce_scatter, .reduction = reduction, .from = {from}, .to = {to}};
          expect(scatter, {comm::Operation::reduce_scatter, from.size(), size, 1, order, count * wide});
          if (reduction.from != reduction.to || reduction.blocks) continue;
          const comm::Call reduce{.operation = comm::Operation::all_reduce, .reduction = reduction, .from = {from}, .to = {to}};
          expect(reduce, {comm::Operation::all_reduce, from.size(), size, 1, order, count * wide});
        }
      std::vector<std::byte> mine(12), all(12 * size);
      expect({.operation = comm::Operation::all_gather, .from = {mine}, .to = {all}},
             {comm::Operation::all_gather, all.size(), size, 1});
    }
}

// A program's uses are those of one rank, so no list of them grows with the number of ranks.
TEST(Exchange, AProgramsUsesDoNotGrowWithTheRanks) {
  const auto most_uses = [](std::uint32_t ranks) {
    toy::RunOptions o;
    o.sizes.tied = true;
    o.shape = {{1, 8}, 1};
    o.data = {.ranks = ranks, .zero = 3};
    const auto model = toy::make_model(o.sizes);
    auto request = toy::request_of(o);
    request.chunk_elements = memory::Layout::kBlockElements;
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
