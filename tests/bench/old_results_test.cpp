// Results of two outputs are partners if they measured the same; a difference counts if it is larger than both spreads.
#include <terrace/bench/old_results.h>

#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::bench {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

ordered_json output(ordered_json results, ordered_json machine = ordered_json::object()) {
  return {{"machine", std::move(machine)}, {"results", std::move(results)}};
}

ordered_json row(const char* op, int depth, double gb_per_s, double spread) {
  return {{"op", op}, {"queue_depth", depth}, {"gb_per_s", gb_per_s}, {"p50_us", 7}, {"spread", spread}};
}

TEST(OldResults, PartnersMeasuredTheSame) {
  const auto all = compare_results(output({row("read", 4, 2, 0.1), row("read", 8, 3, 0.1), row("write", 4, 1, 0.1)}),
                                   output({row("write", 4, 2, 0.1), row("read", 8, 3.1, 0.1), row("mixed", 4, 1, 0)}));
  ASSERT_EQ(2U, all.rows.size());
  EXPECT_EQ(R"({"op":"write","queue_depth":4})", all.rows[0].test.dump());
  EXPECT_EQ("gb_per_s", all.rows[0].figure);
  EXPECT_EQ(2, all.rows[0].ratio());
  EXPECT_EQ("read", all.rows[1].test.at("op"));
  EXPECT_EQ(3, all.rows[1].old);
  EXPECT_EQ(3.1, all.rows[1].now);
  EXPECT_EQ(1U, all.only_old);
  EXPECT_EQ(1U, all.only_new);
}

TEST(OldResults, ADifferenceCountsBeyondBothSpreads) {
  const auto beyond = [](double old_spread, double now, double now_spread) {
    return compare_results(output({row("read", 4, 10, old_spread)}), output({row("read", 4, now, now_spread)}))
        .rows.at(0)
        .beyond_spread;
  };
  EXPECT_FALSE(beyond(0.3, 8, 0.01)) << "2 less, while the old runs were 3 apart";
  EXPECT_FALSE(beyond(0.01, 8, 0.3)) << "2 less, while the new runs were 2.4 apart";
  EXPECT_TRUE(beyond(0.1, 8, 0.1));
  EXPECT_TRUE(beyond(0.1, 12, 0.1));
  EXPECT_FALSE(beyond(0, 10, 0));
}

TEST(OldResults, RepeatedTestsPairUpInTheirOrder) {
  const auto all = compare_results(output({row("read", 4, 1, 0), row("read", 4, 2, 0)}),
                                   output({row("read", 4, 3, 0), row("read", 4, 4, 0), row("read", 4, 5, 0)}));
  ASSERT_EQ(2U, all.rows.size());
  EXPECT_EQ(1, all.rows[0].old);
  EXPECT_EQ(2, all.rows[1].old);
  EXPECT_EQ(1U, all.only_new);
}

TEST(OldResults, OtherFiguresThanASpeedAreCompared) {
  const auto all = compare_results(output({{{"op", "launch"}, {"latency_us", 4.0}, {"spread", 0.1}}}),
                                   output({{{"op", "launch"}, {"latency_us", 5.0}, {"spread", 0.1}}}));
  ASSERT_EQ(1U, all.rows.size());
  EXPECT_EQ("latency_us", all.rows[0].figure);
  EXPECT_TRUE(all.rows[0].beyond_spread);
}

TEST(OldResults, FactsOfTheMachineThatDifferAreNamed) {
  const auto all =
      compare_results(output({row("read", 4, 1, 0)}, {{"kernel", "6.1"}, {"cores", 2}, {"seed", 7}}),
                      output({row("read", 4, 1, 0)}, {{"kernel", "6.8"}, {"cores", 2}, {"seed", 8}, {"path", "/a"}}));
  EXPECT_EQ(R"({"kernel":["6.1","6.8"]})", all.machine.dump());
}

TEST(OldResults, WhatIsNoOutputIsRefusedWithTheMend) {
  const ScratchFolder scratch;
  const auto file = scratch.write("old.json", R"({"machine": {}, "results": [{"op": "read"}]})");
  EXPECT_EQ("read", read_results(file, "").at("results")[0].at("op"));
  for (const auto* const text : {"", "[]", "{}", R"({"machine": {}, "results": []})", R"({"machine": {}, "results": [1]})"}) {
    EXPECT_THAT(test::refusal_of([&] { (void)read_results(scratch.write("bad.json", text), "give another one"); }),
                testing::AllOf(HasSubstr("bad.json"), HasSubstr("\n  give another one")))
        << text;
  }
}

}  // namespace
}  // namespace terrace::bench
