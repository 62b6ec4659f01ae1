// Ranks that were given different budgets and rates plan alike; ranks that did not agree are named before their first
// collective.
#include <gmock/gmock.h>

#include <array>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/profile/profile_rates.h>
#include <terrace/parallel/comm/threads/run_ranks.h>
#include <terrace/parallel/train/agree_on_plan.h>
#include <terrace/tests/support/thrown_error.h>
#include <terrace/tests/support/toy_model.h>

namespace terrace {
namespace {

using testing::HasSubstr;

PlanRequest request_of(int rank) {
  PlanRequest request{.shape = {{2, 16}, 2}, .budget = {kUnlimited, kUnlimited, kUnlimited}, .steps = 3};
  request.mesh.shard = 3;
  request.data.zero = 2;
  request.rank = static_cast<std::uint32_t>(rank);
  return request;
}

struct OnRank {
  explicit OnRank(Communicator& own) : device(make_cpu_device(pool)), ranks(own, *device) {}
  ThreadPool pool{1};
  std::unique_ptr<Device> device;
  Agreement ranks;
};

TEST(AgreeOnPlan, AllTakeTheSmallestBudgetsAndTheFirstRanksRates) {
  run_ranks(3, {}, [](std::unique_ptr<Communicator> own) {
    OnRank here(*own);
    auto request = request_of(0);
    request.budget.device = static_cast<std::uint64_t>(100 + own->rank()) * kMiB;
    request.budget.host = static_cast<std::uint64_t>(300 - own->rank()) * kMiB;
    MachineProfile profile;
    for (double* const rate : profile::rates_of(profile)) *rate = 5.0 + own->rank();
    agree(here.ranks, request, profile);
    EXPECT_EQ(100 * kMiB, request.budget.device);
    EXPECT_EQ(298 * kMiB, request.budget.host);
    EXPECT_EQ(kUnlimited, request.budget.disk);
    EXPECT_EQ(static_cast<std::uint32_t>(own->rank()), request.rank);
    for (const double* const rate : profile::rates_of(profile)) EXPECT_EQ(5.0, *rate);
  });
}

TEST(AgreeOnPlan, RanksWithOtherProgramsAreNamedOnAllRanks) {
  const auto model = toy::make_model({});
  std::array<std::string, 3> said;
  run_ranks(3, {}, [&](std::unique_ptr<Communicator> own) {
    OnRank here(*own);
    auto request = request_of(own->rank());
    const auto same = plan(model, request, {});
    ASSERT_TRUE(same.fits);
    demand_same_program(here.ranks, same, request.mesh);
    if (own->rank() == 2) request.order = Order::vertical;
    said.at(static_cast<std::size_t>(own->rank())) =
        test::refusal_of([&] { demand_same_program(here.ranks, plan(model, request, {}), request.mesh); });
  });
  for (const auto& one : said) EXPECT_THAT(one, HasSubstr("ranks 0 and 2 have planned different steps"));
}

TEST(AgreeOnPlan, PlanTogetherGivesEachRankItsPlanOrRefusesAll) {
  const auto model = toy::make_model({});
  run_ranks(3, {}, [&](std::unique_ptr<Communicator> own) {
    OnRank here(*own);
    auto request = request_of(0);
    const auto mine = plan_together(here.ranks, model, request);
    EXPECT_TRUE(mine.fits);
    EXPECT_EQ(static_cast<std::uint32_t>(own->rank()), mine.map.rank);
    if (own->rank() == 1) request.budget.device = request.budget.host = kKiB;
    EXPECT_EQ(ErrorKind::does_not_fit,
              test::thrown_by([&] { static_cast<void>(plan_together(here.ranks, model, request)); }).kind());
  });
}

}  // namespace
}  // namespace terrace
