// One page without external resources has every part, and says what is missing.
#include <terrace/examples/terrace/report/report.h>

#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/core/base/trace.h>
#include <terrace/examples/terrace/base/svg.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/metrics/metrics.h>
#include <terrace/examples/terrace/plan/trace_window.h>
#include <terrace/examples/terrace/report/run_steps.h>

#include <terrace/tests/examples/scratch_folder.h>

namespace terrace::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kGib = 1ULL << 30;

void write_metrics(const ScratchFolder& run, std::uint64_t count) {
  MetricsWriter writer(run / kMetricsFile, 0);
  for (std::uint64_t s = 1; s <= count; ++s) {
    const auto x = static_cast<double>(s);
    StepMetrics m;
    m.step = s, m.loss = 1.6 + 4 * std::exp(-x / 60) + 0.12 * std::sin(x * 12.9898) * std::cos(x * 78.233), m.grad_norm = 1,
    m.lr = 3e-4;
    m.tokens = 2048, m.step_time_s = 1.05 + 0.05 * std::sin(x), m.tokens_per_s = 2048 / m.step_time_s;
    m.device_peak_bytes = kGib / 2, m.host_peak_bytes = kGib, m.nvme_peak_bytes = 6 * kGib;
    m.read_bytes = s == 1 ? 0 : 3 * kGib, m.write_bytes = 2 * kGib, m.h2d_bytes = 3 * kGib, m.d2h_bytes = 2 * kGib;
    m.communication_s = 0.2, m.hidden_communication_s = 0.15;
    m.stall = {{"read", 0.1 + 0.05 * std::sin(x / 5)}, {"upload", 0.04}, {"download", 0.01}};
    for (const auto& [cause, seconds] : m.stall) m.stall_s += seconds;
    if (s % 40 == 0) m.eval_loss = *m.loss + 0.1;
    writer.write(m);
  }
}

void write_plan(const ScratchFolder& run) {
  const nlohmann::json plan{{"fits", true},
                            {"step_time_s", 1.0},
                            {"peak_bytes", {{"device", kGib / 2}, {"host", kGib}, {"nvme", 6 * kGib}}},
                            {"walked",
                             {{"steps", 2},
                              {"bytes",  // the first step reads nothing
                               {{"read", 3 * kGib}, {"write", 4 * kGib}, {"h2d", 6 * kGib}, {"d2h", 4 * kGib - 4096}}}}},
                            {"stall_s", {{"read", 0.1}, {"upload", 0.05}}},
                            {"communication", {{"seconds", 0.2}, {"hidden_s", 0.1}}},
                            {"floor_s", 0.8},
                            {"binding", "read"}};
  run.write(kPlanFile, plan.dump());
}

// Two steps of 1 s: layers compute, loads run ahead, write-back follows.
void write_trace(const ScratchFolder& run) {
  Trace trace;
  const auto ms = [](double v) { return static_cast<std::int64_t>(v * 1e6); };
  for (int step = 0; step < 2; ++step) {
    const double begin = step * 1000.0;
    for (int i = 0; i < 24; ++i) {
      const double at = begin + i * 40;
      trace.span({"compute", i < 12 ? "forward layer " + std::to_string(i) : "backward layer <" + std::to_string(23 - i) + ">",
                  ms(at), ms(at + 36)});
      trace.span({"upload", "upload chunk", ms(at - 25 < begin ? begin : at - 25), ms(at - 4 < begin ? begin + 2 : at - 4)});
      trace.span({"read", "read chunk", ms(at), ms(at + 30)});
      if (i >= 12) trace.span({"download", "download chunk", ms(at + 8), ms(at + 20)});
      if (i >= 12) trace.span({"write", "write chunk", ms(at + 20), ms(at + 39)});
      trace.counter({"device bytes", ms(at), 3e8 + 2e8 * (i % 3)});
      trace.counter({"host bytes", ms(at + 5), 6e8 + 3e7 * i});
      trace.counter({"disk bytes", ms(at), 6.4e9});
    }
  }
  trace.write(run / kTraceFile);
}

TEST(Report, HoldsEveryPart) {
  const ScratchFolder run;
  write_metrics(run, 240);
  write_plan(run);
  write_trace(run);
  run.write("config.toml", to_toml(RunConfig{}) + "# <script>alert(1)</script>\n");
  EXPECT_EQ(write_report(run.path()), run / kReportFile);
  const auto page = run.read(kReportFile);
  for (const auto* const part :
       {"Loss", "held-out loss", "Tiers during a step", "One step, lane by lane", "Stall by cause", "Planned beside measured",
        "Configuration", "forward layer 3", "backward layer &lt;3&gt;", "waiting for read", "prefers-color-scheme: dark",
        "tokens a second", "step time", "device peak", "seq-len = 256", "bound by read"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  EXPECT_THAT(page, HasSubstr("<td>read from disk, 2 steps</td><td>3.00 GiB</td><td>3.00 GiB</td><td class='same'>equal</td>"));
  EXPECT_THAT(page, HasSubstr("<td>+4.00 KiB</td>"));
  EXPECT_THAT(page, HasSubstr("<td>of these, while computing</td><td>50.0 %</td><td>75.0 %</td><td>+50.0 %</td>"));
  EXPECT_THAT(page, Not(HasSubstr("missing")));
  EXPECT_THAT(page, Not(HasSubstr("http")));  // nothing is fetched
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  EXPECT_LT(page.size(), 1'000'000U);
}

TEST(Report, OfSeveralRanksAllAreCompared) {
  const ScratchFolder run;
  write_metrics(run, 5);
  write_plan(run);
  auto plan = nlohmann::json::parse(run.read(kPlanFile));
  plan["ranks"] = {{"walked_bytes", {{"read", 3 * kGib}, {"write", 4 * kGib}, {"h2d", 6 * kGib}, {"d2h", 4 * kGib}}},
                   {"peak_bytes", {{"device", kGib / 2}, {"host", kGib}, {"nvme", 6 * kGib}}}};
  for (auto* const bytes : {&plan["walked"]["bytes"], &plan["peak_bytes"]})
    for (auto& value : *bytes) value = value.get<std::uint64_t>() / 4;  // the first rank's own share
  run.write(kPlanFile, plan.dump());
  write_report(run.path());
  const auto page = run.read(kReportFile);
  EXPECT_THAT(page, HasSubstr("<td>device to host, 2 steps</td><td>4.00 GiB</td><td>4.00 GiB</td><td class='same'>equal</td>"));
  EXPECT_THAT(page, HasSubstr("<td>host peak</td><td>1.00 GiB</td><td>1.00 GiB</td><td class='same'>equal</td>"));
}

TEST(Report, PeaksAreOfTheWholeRunWhereItIsDone) {
  const ScratchFolder run;
  write_metrics(run, 5);
  write_plan(run);
  auto plan = nlohmann::json::parse(run.read(kPlanFile));
  plan["peak_bytes"]["host"] = 2 * kGib;  // includes the last commit
  run.write(kPlanFile, plan.dump());
  run.write("result.json",
            nlohmann::json{{"peak_bytes", {{"device", kGib / 2}, {"host", 2 * kGib}, {"nvme", 6 * kGib}}}}.dump());
  write_report(run.path());
  EXPECT_THAT(run.read(kReportFile),
              HasSubstr("<td>host peak</td><td>2.00 GiB</td><td>2.00 GiB</td><td class='same'>equal</td>"));
}

TEST(Report, ShortRunsAreDrawnToo) {
  for (const std::uint64_t steps : {1, 2}) {
    const ScratchFolder run;
    write_metrics(run, steps);
    write_report(run.path());
    const auto page = run.read(kReportFile);
    EXPECT_EQ(steps == 1, page.find("1 step, ") != std::string::npos);
    EXPECT_EQ(steps == 1, page.find("<circle class='c-compute'") != std::string::npos);  // the only point
    const auto chart = page.substr(page.find("Loss by step"), page.find("</svg>") - page.find("Loss by step"));
    for (std::uint64_t s = 1; s <= steps; ++s) {  // a label for each step, and no step twice
      const auto label = ">" + std::to_string(s) + "</text>";
      const auto first = chart.find(label);
      ASSERT_NE(std::string::npos, first) << steps;
      EXPECT_EQ(std::string::npos, chart.find(label, first + 1)) << steps;
    }
  }
}

TEST(Report, OfManyTimesNextToNothingItSaysHowMuch) {
  const ScratchFolder run;
  write_metrics(run, 5);
  write_plan(run);
  auto plan = nlohmann::json::parse(run.read(kPlanFile));
  plan["stall_s"] = {{"read", 1e-6}};
  run.write(kPlanFile, plan.dump());
  write_report(run.path());
  EXPECT_THAT(run.read(kReportFile), testing::ContainsRegex("<td>stall</td><td>0ms</td><td>[0-9]+ms</td><td>\\+[0-9]+ms</td>"));
}

TEST(Report, SaysWhatIsMissing) {
  const ScratchFolder run;
  write_metrics(run, 1);
  write_report(run.path());
  const auto page = run.read(kReportFile);
  for (const auto* const file : {"trace.json is missing", "plan.json is missing", "config.toml is missing"})
    EXPECT_THAT(page, HasSubstr(file));
}

TEST(Report, SurvivesBrokenPieces) {
  const ScratchFolder run;
  write_metrics(run, 2);
  for (const auto* const text : {"", "{", "[]", "{\"traceEvents\": []}", "{\"traceEvents\": [1, {}, {\"ph\":\"X\"}]}"}) {
    run.write(kTraceFile, text);
    run.write(kPlanFile, text);
    EXPECT_NO_THROW(write_report(run.path())) << text;
  }
}

TEST(Report, SurvivesLossesThatAreNoNumbers) {
  const ScratchFolder run;
  {
    MetricsWriter writer(run / kMetricsFile, 0);
    for (std::uint64_t s = 1; s <= 3; ++s) {
      StepMetrics m;
      m.step = s, m.loss = NAN;
      writer.write(m);
    }
  }
  write_report(run.path());
  EXPECT_THAT(run.read(kReportFile), HasSubstr("No step waited for anything"));
}

// A loss of zero would pull the curve down to the axis.
TEST(Report, StepsWithoutTargetsAreInNoCurve) {
  const ScratchFolder run;
  const auto write = [&](bool with_empty) {
    MetricsWriter writer(run / kMetricsFile, 0);
    for (std::uint64_t s = 1; s <= 6; ++s) {
      StepMetrics m;
      m.step = s, m.loss = 2 + 0.1 * static_cast<double>(s);
      if (s == 3) m.loss.reset();
      if (m.loss || with_empty) writer.write(m);
    }
  };
  write(false);
  const auto chart = [&] {
    write_report(run.path());
    const auto page = run.read(kReportFile);
    const auto begin = page.find("Loss by step");
    return page.substr(begin, page.find("</svg>", begin) - begin);
  };
  const auto without = chart();
  write(true);
  const auto with = chart();
  EXPECT_THAT(run.read(kReportFile), AllOf(HasSubstr("training loss, step 6"), HasSubstr("steps without targets")));
  EXPECT_EQ(std::ranges::count(without, '<'), std::ranges::count(with, '<'));
  EXPECT_THAT(with, Not(HasSubstr("step 3: loss")));
  run.write(kPlanFile, R"({"warnings": ["--seq-len <64> cuts off"]})");
  write_report(run.path());
  EXPECT_THAT(run.read(kReportFile), HasSubstr("Warning: --seq-len &lt;64&gt; cuts off."));
}

// With any number of steps, a page has a bounded number of points; figures about the whole run are exact.
TEST(RunSteps, OfALongRunAFewPointsAreKept) {
  constexpr std::uint64_t kCount = 5 * RunSteps::kMostPoints + 7;
  RunSteps steps;
  for (std::uint64_t s = 1; s <= kCount; ++s) {
    StepMetrics m;
    m.step = s, m.loss = s == 3 ? NAN : static_cast<double>(s), m.step_time_s = 2, m.tokens = 10, m.stall_s = 0.5;
    m.read_bytes = 100, m.host_peak_bytes = s % 1000, m.stall = {{"read", s % 2 == 0 ? 1.0 : 0.0}};
    if (s % 1000 == 0) m.eval_loss = static_cast<double>(kCount - s), m.held_out = {{"a", 1.0}};
    steps.add(m, 4);
    ASSERT_LE(steps.points.size(), RunSteps::kMostPoints);
  }
  EXPECT_EQ(kCount, steps.count);
  EXPECT_EQ(10 * kCount, steps.tokens);
  EXPECT_EQ(2.0 * kCount, steps.all.time_s);
  EXPECT_EQ(2.0 * (kCount - 1), steps.steady().time_s);
  EXPECT_EQ(400U, steps.walked.read_bytes);
  EXPECT_EQ(999U, steps.peaks[1]);
  EXPECT_EQ(kCount, steps.last.step);
  EXPECT_EQ(kCount - 10'000, *steps.least_eval);
  EXPECT_EQ(2, steps.median([](const auto& m) { return m.step_time_s; }));
  std::uint64_t next = 1;
  for (const auto& point : steps.points) {
    EXPECT_EQ(next, point.first);
    next = point.mean.step + 1;
    EXPECT_EQ(next - point.first, point.lines);
    if (point.first > 3) {
      EXPECT_EQ(point.middle(), *point.mean.loss) << point.first;
    }
    EXPECT_EQ(100U, point.mean.read_bytes);
    EXPECT_TRUE(point.mean.held_out.empty());
  }
  EXPECT_EQ(kCount + 1, next);
  const auto& first = steps.points.front();
  EXPECT_EQ("steps 1 to 8", name_of_steps(first.first, first.mean.step));
  EXPECT_EQ(33.0 / 7, *first.mean.loss) << "of steps that have one";
  EXPECT_EQ(0.5, first.mean.stall.at("read"));
}

TEST(Report, OfALongRunIsAsSmallAsOfAShortOne) {
  const ScratchFolder run;
  write_metrics(run, 3 * RunSteps::kMostPoints);
  write_plan(run);
  write_report(run.path());
  const auto page = run.read(kReportFile);
  EXPECT_LT(page.size(), 300'000U);
  for (const auto* const part :
       {"6144 steps, ", "training loss, step 6144", "<title>steps 1 to 4: loss ", "of the step",
        "<td>read from disk, 2 steps</td><td>3.00 GiB</td><td>3.00 GiB</td><td class='same'>equal</td>"})
    EXPECT_THAT(page, HasSubstr(part));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
}

TEST(Report, NeedsAtLeastOneStep) {
  const ScratchFolder run;
  EXPECT_THROW(write_report(run.path()), Error);
  run.write(kMetricsFile, "");
  EXPECT_THROW(write_report(run.path()), Error);
}

TEST(TraceWindow, TakesTheLastStepAndCountsOverlapsOnce) {
  const ScratchFolder run;
  write_trace(run);
  const auto window = read_trace_window(run / kTraceFile, 0.9);
  EXPECT_NEAR(window.seconds, 0.9, 1e-6);
  ASSERT_EQ(window.rows.size(), 5U);
  EXPECT_EQ(window.rows[0].lane, "compute");
  for (const auto& row : window.rows) {
    EXPECT_LE(row.busy_s, window.seconds);
    for (const auto& s : row.spans) {
      EXPECT_GE(s.begin_s, 0);
      EXPECT_LE(s.end_s, window.seconds + 1e-9);
    }
  }
  ASSERT_EQ(window.counters.size(), 3U);
  for (const auto& c : window.counters)
    EXPECT_GT(c.values.front().second, 0) << c.name << ": the value before the window counts";
}

TEST(TraceWindow, PrefersTheLaneNamedStep) {
  const ScratchFolder run;
  Trace trace;
  trace.span({"step", "1", 0, 1'000'000'000});
  trace.span({"step", "2", 1'000'000'000, 1'500'000'000});
  trace.span({"compute", "a", 0, 1'500'000'000});
  trace.span({"compute", "b", 1'100'000'000, 1'200'000'000});
  trace.write(run / kTraceFile);
  const auto window = read_trace_window(run / kTraceFile, 9);
  EXPECT_NEAR(window.seconds, 0.5, 1e-9);
  ASSERT_EQ(window.rows.size(), 1U);
  EXPECT_NEAR(window.rows[0].busy_s, 0.5, 1e-9);
}

TEST(Svg, TicksAreRoundAndCover) {
  EXPECT_THAT(round_ticks(0, 10, 5), testing::ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_FALSE(std::signbit(round_ticks(0, 10, 5).front())) << "it would be shown as -0";
  EXPECT_THAT(round_ticks(1, 1, 5), testing::ElementsAre(1));
  EXPECT_EQ(escape("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
}

}  // namespace
}  // namespace terrace::cli
