// Writes out the order of sums over machines, and counts what its transfers cost each machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <terrace/parallel/comm/machines.h>

namespace terrace {
namespace {

comm::Machines machines_of(const std::vector<int>& sizes) {
  std::vector<int> of_rank;
  for (std::size_t m = 0; m < sizes.size(); ++m)
    of_rank.insert(of_rank.end(), static_cast<std::size_t>(sizes[m]), static_cast<int>(m));
  return comm::Machines::of(of_rank);
}

float sum(const comm::Machines& machines, const std::vector<float>& terms, const float* old = nullptr,
          comm::SumOrder order = comm::SumOrder::machines) {
  std::vector<const std::byte*> from;
  for (const auto& term : terms) from.push_back(reinterpret_cast<const std::byte*>(&term));
  float to = old ? *old : -1;
  comm::fold(machines, {.onto = old != nullptr, .order = order}, reinterpret_cast<std::byte*>(&to), from, 1);
  return to;
}

// Magnitudes so far apart that every other order rounds differently.
TEST(Machines, TheOrderWrittenOut) {
  const std::vector<float> c{1.0F, 0x1p-24F, 0x1.8p-24F, -1.0F, 0x1p-25F, 0x1.4p-23F, 0.5F};
  const float old = 0x1.000002p3F;
  EXPECT_EQ(sum(machines_of({7}), c), (((((c[0] + c[1]) + c[2]) + c[3]) + c[4]) + c[5]) + c[6]);
  EXPECT_EQ(sum(machines_of({7}), c, &old), ((((((old + c[0]) + c[1]) + c[2]) + c[3]) + c[4]) + c[5]) + c[6]);
  EXPECT_EQ(sum(machines_of({3, 4}), c), ((c[0] + c[1]) + c[2]) + (((c[3] + c[4]) + c[5]) + c[6]));
  EXPECT_EQ(sum(machines_of({3, 3, 1}), c), (((c[0] + c[1]) + c[2]) + ((c[3] + c[4]) + c[5])) + c[6]);
  EXPECT_EQ(sum(machines_of({2, 1, 1, 1, 2}), c), (((c[0] + c[1]) + c[2]) + (c[3] + c[4])) + (c[5] + c[6]));
  EXPECT_EQ(sum(machines_of({2, 1, 1, 1, 2}), c, &old), old + ((((c[0] + c[1]) + c[2]) + (c[3] + c[4])) + (c[5] + c[6])));
  EXPECT_EQ(sum(machines_of({3, 4}), c, nullptr, comm::SumOrder::ranks), sum(machines_of({7}), c));
  EXPECT_NE(sum(machines_of({3, 4}), c), sum(machines_of({7}), c)) << "the values do not tell the orders apart";
}

TEST(Machines, ABf16ResultIsRoundedOnce) {
  const std::vector<bf16> c{bf16(1.0F), bf16(0x1p-8F), bf16(0x1p-9F), bf16(0x1p-9F)};  // each addition to 1 alone would be lost
  std::vector<const std::byte*> from;
  for (const auto& term : c) from.push_back(reinterpret_cast<const std::byte*>(&term));
  bf16 to;
  comm::fold(machines_of({2, 2}), comm::Reduction::sum(DType::bf16), reinterpret_cast<std::byte*>(&to), from, 1);
  EXPECT_EQ(static_cast<float>(to), 1 + 0x1p-7F);
}

TEST(Machines, RanksThatAreNotNeighboursAreMachinesOfTheirOwn) {
  const std::vector<int> alternating{0, 1, 0, 1};
  EXPECT_EQ(comm::Machines::of(alternating).count(), 4);
  EXPECT_EQ(comm::Machines::one(4).count(), 1);
}

TEST(Machines, EveryBlockHasOneDeputyOnEachMachine) {
  for (const auto& sizes : {std::vector<int>{4}, {2, 2}, {3, 3, 1}, {1, 4, 2}, {5, 1, 1, 3}}) {
    const auto machines = machines_of(sizes);
    std::vector<std::vector<int>> of_rank;
    for (int r = 0; r < machines.ranks(); ++r) of_rank.push_back(machines.owners_of(r));
    for (int owner = 0; owner < machines.ranks(); ++owner)
      for (int m = 0; m < machines.count(); ++m) {
        const int deputy = machines.deputy(m, owner);
        EXPECT_EQ(machines.of_rank(deputy), m);
        EXPECT_TRUE(machines.of_rank(owner) != m || deputy == owner);
        for (int r = machines.first(m); r < machines.first(m) + machines.size(m); ++r)
          EXPECT_EQ(std::ranges::count(of_rank[static_cast<std::size_t>(r)], owner), r == deputy ? 1 : 0);
      }
  }
}

// Plays the rounds for every number of machines and every home machine, with sums written as text.
TEST(Machines, TheRoundsMakeTheOrderAndSendEveryBlockOnce) {
  for (int k = 1; k <= 40; ++k) {
    const auto machines = machines_of(std::vector<int>(static_cast<std::size_t>(k), 1));
    ASSERT_EQ(1 << machines.rounds() >= k && (k == 1 || 1 << (machines.rounds() - 1) < k), true) << k;
    std::vector<std::string> order;
    for (int m = 0; m < k; ++m) order.push_back(std::to_string(m));
    for (std::size_t apart = 1; apart < order.size(); apart *= 2)
      for (std::size_t left = 0; left + apart < order.size(); left += 2 * apart)
        order[left] = "(" + order[left] + "+" + order[left + apart] + ")";
    std::vector<int> sent(static_cast<std::size_t>(k));
    std::int64_t waited = 0;
    std::vector<std::vector<int>> gives(static_cast<std::size_t>(machines.rounds()), sent), takes = gives;
    for (int home = 0; home < k; ++home) {
      std::vector<std::string> held;
      for (int m = 0; m < k; ++m) held.push_back(std::to_string(m));
      for (int round = 0; round < machines.rounds(); ++round) {
        const auto before = held;
        for (int m = 0; m < k; ++m) {
          const auto meeting = machines.meeting(round, m, home);
          if (!meeting) continue;
          ASSERT_EQ(machines.meeting(round, meeting->keeper, home), machines.meeting(round, meeting->giver, home));
          if (meeting->giver != m) continue;
          const auto giver = static_cast<std::size_t>(m), keeper = static_cast<std::size_t>(meeting->keeper);
          held[keeper] = meeting->keeper_is_left ? "(" + before[keeper] + "+" + before[giver] + ")"
                                                 : "(" + before[giver] + "+" + before[keeper] + ")";
          ++sent[giver];
          ++gives[static_cast<std::size_t>(round)][giver];
          ++takes[static_cast<std::size_t>(round)][keeper];
        }
      }
      EXPECT_EQ(held[static_cast<std::size_t>(home)], order.front()) << k << " machines, home " << home;
    }
    for (const int blocks : sent) EXPECT_EQ(blocks, k - 1) << k;
    for (std::size_t round = 0; round < gives.size(); ++round)
      waited += std::max(std::ranges::max(gives[round]), std::ranges::max(takes[round]));
    EXPECT_LE(waited, comm::busiest_blocks(k)) << k;
    EXPECT_TRUE((k & (k - 1)) != 0 || comm::busiest_blocks(k) == k - 1) << k;
    EXPECT_LE(comm::busiest_blocks(k), 2.5 * (k - 1)) << k;
  }
}

}  // namespace
}  // namespace terrace
