// All sinks use the names of one table; event files have the bytes that TensorBoard reads; a resumed run has no step twice; a
// failing sink never ends a run that it only watches.
#include <terrace/examples/terrace/metrics/metrics_sinks.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/examples/terrace/base/crc32c.h>
#include <terrace/examples/terrace/metrics/metric_table.h>
#include <terrace/examples/terrace/metrics/prometheus_sink.h>
#include <terrace/examples/terrace/metrics/tensorboard_events.h>
#include <terrace/examples/terrace/metrics/tensorboard_sink.h>

#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

StepMetrics step_with_all(std::uint64_t step) {
  StepMetrics m;
  m.step = step, m.loss = 2.5, m.grad_norm = 0.5, m.lr = 1e-3, m.tokens = 64, m.step_time_s = 0.25, m.tokens_per_s = 256;
  m.device_peak_bytes = 1, m.host_peak_bytes = (1ULL << 53) + 1, m.nvme_peak_bytes = 3;
  m.read_bytes = 4, m.write_bytes = 5, m.h2d_bytes = 6, m.d2h_bytes = 7, m.stall_s = 0.75;
  m.stall = {{"read", 0.25}, {"upload", 0.5}};
  m.communication_s = 0.5, m.hidden_communication_s = 0.25;
  m.commit_s = 0.0625, m.eval_loss = 2.75, m.first_eval_loss = 3.5, m.router_balance = 1.5, m.router_z = 0.125,
  m.router_dropped = 8;
  m.held_out = {{"a.bin", 2.25}}, m.epochs = {{"a.bin", 1.25}};
  return m;
}

std::vector<TensorBoardEvent> events_of(std::string_view bytes) {
  std::vector<TensorBoardEvent> out;
  for (TensorBoardEvent event; take_record(bytes, event);) out.push_back(event);
  EXPECT_EQ("", bytes) << "not all bytes are records";
  return out;
}

std::vector<std::uint64_t> steps_of(std::string_view bytes) {
  std::vector<std::uint64_t> steps;
  for (const auto& event : events_of(bytes)) steps.push_back(event.step);
  return steps;
}

// RFC 3720, appendix B.4.
TEST(Crc32c, IsTheOneOfTheStandard) {
  EXPECT_EQ(0xe3069283U, crc32c("123456789"));
  EXPECT_EQ(0x8a9136aaU, crc32c(std::string(32, '\0')));
  EXPECT_EQ(0x62a8ab43U, crc32c(std::string(32, '\xff')));
}

// The bytes that PyPI's tensorboard 2.21 writes for this event.
TEST(EventFile, ARecordHasTensorBoardsBytes) {
  const auto record = to_record({.wall_time = 1.5, .step = 300, .file_version = {}, .scalars = {{"loss", 2.5F}}});
  const std::string message("\x09\0\0\0\0\0\0\xf8\x3f\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\x20\x40", 27);
  ASSERT_EQ(8 + 4 + message.size() + 4, record.size());
  EXPECT_EQ(message, record.substr(12, message.size()));
  EXPECT_EQ(std::string("\x1b\0\0\0\0\0\0\0", 8), record.substr(0, 8));
  EXPECT_EQ("\x1a\x0d\x9e\x13", record.substr(8, 4));
  EXPECT_EQ("\x68\x99\x7c\x51", record.substr(12 + message.size()));
}

TEST(EventFile, AnyDamageEndsTheRecords) {
  const TensorBoardEvent event{.wall_time = 1.5, .step = 300, .file_version = {}, .scalars = {{"a", 2.5F}, {"b/c", NAN}}};
  const auto whole = to_record(event);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    std::string_view bytes = std::string_view(whole).substr(0, length);
    TensorBoardEvent read;
    EXPECT_FALSE(take_record(bytes, read)) << "cut to " << length;
  }
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    auto text = whole;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    std::string_view bytes = text;
    TensorBoardEvent read;
    EXPECT_FALSE(take_record(bytes, read)) << "bit " << bit;
  }
}

TEST(EventFile, HasEveryMetricOfEveryStep) {
  const ScratchFolder scratch;
  {
    TensorBoardSink sink(scratch / "e", 0);
    for (std::uint64_t s = 1; s <= 3; ++s) sink.write(step_with_all(s));
  }
  const auto events = events_of(scratch.read("e"));
  ASSERT_EQ(4U, events.size());
  EXPECT_EQ(kEventFileVersion, events[0].file_version);
  EXPECT_THAT(steps_of(scratch.read("e")), ElementsAre(0, 1, 2, 3));
  const std::map<std::string, float> scalars(events[3].scalars.begin(), events[3].scalars.end());
  EXPECT_EQ(2.5F, scalars.at("loss"));
  EXPECT_EQ(7.0F, scalars.at("offload/d2h_bytes"));
  EXPECT_EQ(0.5F, scalars.at("stall/upload"));
  EXPECT_EQ(8.0F, scalars.at("router/dropped"));
}

TEST(EventFile, AResumedRunHasNoStepTwice) {
  const ScratchFolder scratch;
  {
    TensorBoardSink sink(scratch / "e", 0);
    for (std::uint64_t s = 1; s <= 5; ++s) sink.write(step_with_all(s));
  }
  const auto before = events_of(scratch.read("e"));
  scratch.write("e", scratch.read("e") + "torn");
  {
    TensorBoardSink sink(scratch / "e", 3);
    sink.write(step_with_all(4));
  }
  const auto after = events_of(scratch.read("e"));
  EXPECT_THAT(steps_of(scratch.read("e")), ElementsAre(0, 1, 2, 3, 4));
  for (std::size_t i = 0; i <= 3; ++i) EXPECT_EQ(before[i], after[i]) << "what is kept is kept as it is, with its time";
  const TensorBoardSink afresh(scratch / "e", 0);
  EXPECT_THAT(steps_of(scratch.read("e")), ElementsAre(0));
}

// One rule makes the names of all three sinks; only the separator differs.
TEST(MetricSinks, UseTheNamesOfOneTable) {
  const auto step = step_with_all(1);
  const auto json = to_json(step);
  const auto text = prometheus_text(step, "r");
  const ScratchFolder scratch;
  TensorBoardSink(scratch / "e", 0).write(step);
  std::set<std::string> tags;
  const auto events = events_of(scratch.read("e"));
  for (const auto& [tag, value] : events.at(1).scalars) tags.insert(tag);
  std::size_t values = 0;
  for (const auto& metric : metric_table()) {
    const auto name = metric.name('.');
    EXPECT_THAT(text, HasSubstr("# TYPE terrace_" + metric.name('_') + " gauge\n")) << name;
    EXPECT_THAT(text, HasSubstr("\nterrace_" + metric.name('_') + "{run=\"r\"")) << name;
    ASSERT_FALSE(values_of(metric, step).empty()) << name << " is missing in step_with_all()";
    for (const auto& [cause, value] : values_of(metric, step)) {
      const auto key = cause.empty() ? std::string(metric.key) : cause;
      EXPECT_EQ(value.real, (metric.group.empty() ? json : json.at(std::string(metric.group))).at(key).get<double>()) << name;
      EXPECT_EQ(name != "step", tags.contains(metric.name('/') + (cause.empty() ? "" : "/" + cause))) << name;
      ++values;
    }
  }
  EXPECT_EQ(tags.size() + 1, values) << "TensorBoard has the step beside its scalars";
}

TEST(Prometheus, TheTextIsExact) {
  StepMetrics m;
  m.step = 7, m.host_peak_bytes = (1ULL << 53) + 1, m.loss = std::numeric_limits<double>::quiet_NaN();
  m.grad_norm = std::numeric_limits<double>::infinity(), m.stall = {{"read", 0.25}};
  const auto text = prometheus_text(m, "a\"b\\c\nd");
  EXPECT_THAT(text, testing::StartsWith("# HELP terrace_step Finished steps (steps).\n# TYPE terrace_step gauge\n"
                                        "terrace_step{run=\"a\\\"b\\\\c\\nd\"} 7\n# HELP terrace_loss "));
  for (const auto* const line :
       {"terrace_loss{run=\"a\\\"b\\\\c\\nd\"} NaN\n", "terrace_grad_norm{run=\"a\\\"b\\\\c\\nd\"} +Inf\n",
        "terrace_mem_host_peak_bytes{run=\"a\\\"b\\\\c\\nd\"} 9007199254740993\n",
        "terrace_stall{run=\"a\\\"b\\\\c\\nd\",cause=\"read\"} 0.25\n"})
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_THAT(text, Not(HasSubstr("eval_loss"))) << "a step without an evaluation";
}

TEST(Prometheus, TheFileIsReplacedAsAWhole) {
  const ScratchFolder scratch;
  PrometheusSink sink(scratch / "p", "r");
  sink.write(step_with_all(1));
  const std::filesystem::path seen = scratch / "seen";
  std::filesystem::create_hard_link(scratch / "p", seen);
  sink.write(step_with_all(2));
  EXPECT_EQ(prometheus_text(step_with_all(1), "r"), scratch.read("seen")) << "written in place";
  EXPECT_EQ(prometheus_text(step_with_all(2), "r"), scratch.read("p"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "p.tmp"));
}

TEST(Prometheus, AMissingFolderIsRefusedBeforeTheRun) {
  EXPECT_NO_THROW(demand_folder_of_prometheus(""));
  EXPECT_NO_THROW(demand_folder_of_prometheus("file"));
  EXPECT_THAT(test::refusal_of([&] { demand_folder_of_prometheus("/no/such/file"); }), HasSubstr("/no/such"));
}

class Counting final : public MetricsSink {
 public:
  Counting(int& writes, bool fails) : writes_(writes), fails_(fails) {}
  void write(const StepMetrics&) override {
    ++writes_;
    if (fails_) throw Error("it is full");
  }

 private:
  int& writes_;
  bool fails_;
};

TEST(MetricSinks, OneThatOnlyWatchesIsLeftOutAfterItsFirstFailure) {
  int first = 0, good = 0, bad = 0;
  MetricsSinks sinks(std::make_unique<Counting>(first, false));
  sinks.add(std::make_unique<Counting>(bad, true));
  sinks.add(std::make_unique<Counting>(good, false));
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) sinks.write({});
  const auto said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(3, first);
  EXPECT_EQ(3, good);
  EXPECT_EQ(1, bad);
  EXPECT_THAT(said, HasSubstr("it is full"));
  EXPECT_EQ(said.find("warning"), said.rfind("warning"));
  MetricsSinks essential(std::make_unique<Counting>(first, true));
  EXPECT_THROW(essential.write({}), Error);
}

}  // namespace
}  // namespace terrace::cli
