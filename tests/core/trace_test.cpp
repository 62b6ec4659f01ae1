#include <terrace/core/base/trace.h>

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

std::filesystem::path scratch(const std::string& name) {
  return std::filesystem::path(testing::TempDir()) / (name + std::to_string(now_ns()) + ".json");
}

nlohmann::json events_of(const Trace& trace) {
  const auto file = scratch("terrace-trace");
  trace.write(file, "the \"test\"");
  std::ifstream in(file);
  auto json = nlohmann::json::parse(in);
  std::filesystem::remove(file);
  return json.at("traceEvents");
}

}  // namespace

TEST(Trace, WritesSpansAndCounters) {
  Trace trace;
  trace.span({"compute", "forward \"a\\b\"\n", 1'000'500, 1'002'000});
  trace.span({"read", "chunk 7 \xff", 1'000'000, 1'004'000});  // not UTF-8
  trace.span({"compute", "backward", 1'002'000, 1'003'000});
  trace.counter({"device bytes", 1'001'000, 12.5});
  int spans = 0, rows = 0, counters = 0;
  std::map<std::string, int> tid;
  for (const auto& event : events_of(trace)) {
    if (event["ph"] == "M" && event["name"] == "process_name") {
      EXPECT_EQ(event["args"]["name"], "the \"test\"");
    }
    if (event["ph"] == "M" && event["name"] == "thread_name") {
      tid[event["args"]["name"]] = event["tid"];
      ++rows;
    }
    if (event["ph"] == "C") {
      EXPECT_EQ(event["args"]["value"], 12.5);
      EXPECT_EQ(event["ts"], 1.0);
      ++counters;
    }
    if (event["ph"] == "X") ++spans;
    if (event["ph"] == "X" && event["name"] == "forward \"a\\b\"\n") {
      EXPECT_EQ(event["ts"], 0.5);  // relative to the earliest event
      EXPECT_EQ(event["dur"], 1.5);
      EXPECT_EQ(event["tid"], tid["compute"]);
    }
  }
  EXPECT_EQ(spans, 3);
  EXPECT_EQ(rows, 2);
  EXPECT_EQ(counters, 1);
  EXPECT_NE(tid["compute"], tid["read"]);
}

TEST(Trace, EmptyIsValid) { EXPECT_EQ(events_of(Trace{}).size(), 1U); }

TEST(Trace, TakesSpansFromManyThreads) {
  Trace trace;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&trace, t] {
        for (int i = 0; i < 250; ++i) trace.span({"lane " + std::to_string(t), "x", i, i + 1});
        trace.counter({"c", 0, 1});
      });
    }
  }
  EXPECT_EQ(trace.spans().size(), 1000U);
  EXPECT_EQ(trace.counters().size(), 4U);
}

TEST(Trace, ForgetsWhatEndedWithinATime) {
  Trace trace;
  for (const std::int64_t end : {10, 20, 30, 40}) {
    trace.span({"compute", std::to_string(end), end - 15, end});
    trace.counter({"bytes", end, 1});
  }
  trace.forget_between(20, 30);
  ASSERT_EQ(2U, trace.spans().size());
  EXPECT_EQ("10", trace.spans().front().name);
  EXPECT_EQ("40", trace.spans().back().name);
  ASSERT_EQ(2U, trace.counters().size());
  EXPECT_EQ(10, trace.counters().front().at_ns);
  EXPECT_EQ(40, trace.counters().back().at_ns);
}

TEST(Trace, NamesTheFileItCannotWrite) {
  EXPECT_THAT(test::thrown_by([&] { Trace{}.write("/nonexistent/trace.json"); }).what(),
              testing::HasSubstr("/nonexistent/trace.json"));
}

}  // namespace terrace
