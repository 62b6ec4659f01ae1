// Simulated and measured lanes are drawn one above the other on one axis, and end together.
#include <terrace/examples/terrace/plan/lanes_picture.h>

#include <gmock/gmock.h>

#include <terrace/core/base/trace.h>

namespace terrace::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kSecond_ns = 1'000'000'000;

TEST(TraceWindow, OfASimulatedRunIsItsLastSeconds) {
  Trace trace;
  trace.span({"message", "send activation l1 m0 r1", 4 * kSecond_ns, 5 * kSecond_ns});
  trace.span({"compute", "forward l0 m0", 1 * kSecond_ns, 4 * kSecond_ns});
  trace.span({"compute", "update l0 c0", 0, 1 * kSecond_ns});
  const auto window = window_of(trace, 6, 4);
  EXPECT_EQ(window.seconds, 4);
  ASSERT_EQ(window.rows.size(), 2U);
  EXPECT_EQ(window.rows[0].lane, "compute");
  ASSERT_EQ(window.rows[0].spans.size(), 1U);
  EXPECT_EQ(window.rows[0].spans[0].name, "forward l0 m0");
  EXPECT_EQ(window.rows[0].spans[0].begin_s, 0);  // cut off where the step begins
  EXPECT_EQ(window.rows[0].spans[0].end_s, 2);
  EXPECT_EQ(window.rows[0].busy_s, 2);
  EXPECT_EQ(window.rows[1].lane, "message");
}

TEST(LanesPicture, BeginsSimulatedAndMeasuredStepsTogetherAndEndsTheRanksOfEach) {
  RankLanes rank;
  rank.simulated = {.seconds = 2, .rows = {{"compute", {{"forward l0 m7", 1, 2}}, 1}}, .counters = {}};
  rank.measured = {
      .seconds = 4, .rows = {{"compute", {{"forward l0 m7", 3, 4}}, 1}, {"read", {{"<&>", 0, 1}}, 1}}, .counters = {}};
  RankLanes shorter;  // it began the measured step a second later
  shorter.measured = {.seconds = 3, .rows = {{"compute", {{"forward l0 m7", 0, 1}}, 1}}, .counters = {}};
  const auto svg = lanes_picture(std::vector{rank, shorter}, "two & two");
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n")) << svg;
  for (const auto* const piece : {"two &amp; two", "rank 0 compute, simulated", ">50 %<", ">25 %<", "rank 0 read, simulated",
                                  ">0 %<", "&lt;&amp;&gt;", "simulated 2 s, measured 4 s"})
    EXPECT_THAT(svg, HasSubstr(piece));
  // The bars cover quarters of the axis of 1,200, behind the labels; each shows its micro-batch.
  std::vector<std::string> bars;
  for (std::size_t at = svg.find("<rect x="); at != std::string::npos; at = svg.find("<rect x=", at + 1)) {
    const auto end = svg.find('>', at);
    if (svg.compare(end + 1, 20, "<title>forward l0 m7") == 0) bars.push_back(svg.substr(at, svg.find(" y=", at) - at));
  }
  EXPECT_THAT(bars, ElementsAre("<rect x='490.00'", "<rect x='1090.00'", "<rect x='490.00'"));
  EXPECT_THAT(svg, HasSubstr("text-anchor='middle'>7</text>"));
}

}  // namespace
}  // namespace terrace::cli
