// The page about several runs has every run's curve and numbers, only the settings that differ, and every name escaped.
#include <terrace/examples/terrace/report/report_compare.h>

#include <gmock/gmock.h>

#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/metrics/metrics.h>

#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

void write_run(const ScratchFolder& scratch, const std::string& name, double rate, std::uint64_t steps) {
  std::filesystem::create_directories(scratch / name);
  MetricsWriter writer(scratch / name / kMetricsFile, 0);
  for (std::uint64_t s = 1; s <= steps; ++s) {
    StepMetrics m;
    m.step = s, m.loss = 5 - rate * static_cast<double>(s), m.tokens_per_s = 1000, m.step_time_s = 0.25, m.read_bytes = 4096;
    if (s == 2) m.eval_loss = *m.loss + 0.5;
    writer.write(m);
  }
  RunConfig config;
  config.train.lr = rate;
  config.run.save = "<script>" + name;
  scratch.write(name + "/" + kConfigFile, to_toml(config));
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(Comparison, HasEveryRunAndOnlyTheSettingsThatDiffer) {
  const ScratchFolder scratch;
  write_run(scratch, "a", 0.5, 4);
  write_run(scratch, "b<i>&", 0.25, 8);
  const auto page_file = write_comparison({scratch / "a", scratch / "b<i>&"});
  EXPECT_EQ(scratch / "a" / kComparisonFile, page_file);
  const auto page = scratch.read("a/" + std::string(kComparisonFile));
  EXPECT_THAT(page, HasSubstr("b&lt;i&gt;&amp;"));
  EXPECT_THAT(page, Not(HasSubstr("<i>&")));
  EXPECT_THAT(page, Not(HasSubstr("<script>")));
  EXPECT_EQ(2U, count(page, "<path class='line k-compute'")) << "loss and tokens; the held-out loss is one point";
  EXPECT_EQ(2U, count(page, "<path class='line k-write'"));
  EXPECT_EQ(2U, count(page, "<circle"));
  EXPECT_THAT(page, HasSubstr("<tr><td>last loss</td><td>3.00000</td><td>3.00000</td></tr>"));
  EXPECT_THAT(page, HasSubstr("<tr><td>steps</td><td>4</td><td>8</td></tr>"));
  EXPECT_THAT(page, HasSubstr("<tr><td>lr</td><td class='long'>0.5</td><td class='long'>0.25</td></tr>"));
  EXPECT_EQ(2U, count(page, "<td class='long'>0.")) << "only lr";
  EXPECT_THAT(page, Not(HasSubstr("<td>layers</td>")));
}

TEST(Comparison, EqualCurvesAreBothSeen) {
  const ScratchFolder scratch;
  for (const auto* const name : {"a", "b"}) write_run(scratch, name, 0.5, 4);
  write_comparison({scratch / "a", scratch / "b"});
  const auto page = scratch.read("a/" + std::string(kComparisonFile));
  EXPECT_EQ(2U, count(page, "<path class='line k-compute'"));
  EXPECT_EQ(2U, count(page, "<path class='line k-write dashed'"));
}

TEST(Comparison, ARunWithoutStepsIsNamed) {
  const ScratchFolder scratch;
  write_run(scratch, "a", 0.5, 4);
  std::filesystem::create_directory(scratch / "empty");
  EXPECT_THAT(test::refusal_of([&] { write_comparison({scratch / "a", scratch / "empty"}); }), HasSubstr("empty has no step"));
}

}  // namespace
}  // namespace terrace::cli
