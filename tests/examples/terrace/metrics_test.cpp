// Every number is read back with the same bits, and a resumed run keeps exactly the steps that were done.
#include <terrace/examples/terrace/metrics/metrics.h>

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <limits>

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>

#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::cli {
namespace {

StepMetrics sample(std::uint64_t step) {
  StepMetrics m;
  m.step = step;
  m.loss = std::nextafter(1.0 / 3 + static_cast<double>(step), 0), m.grad_norm = 5e-324, m.lr = 3e-4 / 7;
  m.tokens = 2048, m.step_time_s = 0.1 + 0.2, m.tokens_per_s = 1e300;
  m.device_peak_bytes = ~0ULL, m.host_peak_bytes = (1ULL << 53) + 1, m.nvme_peak_bytes = 3;
  m.read_bytes = 4, m.write_bytes = 5, m.h2d_bytes = 6, m.d2h_bytes = 7, m.stall_s = 0.3;
  m.communication_s = 0.5, m.hidden_communication_s = 0.25;
  m.stall = {{"read", 0.1}, {"upload", 0.2}};
  if (step % 2) m.eval_loss = std::nextafter(2.5, 3), m.first_eval_loss = std::nextafter(3.5, 3);
  return m;
}

void write_steps(const std::filesystem::path& file, std::uint64_t count) {
  MetricsWriter writer(file, 0);
  for (std::uint64_t s = 1; s <= count; ++s) writer.write(sample(s));
}

std::vector<std::uint64_t> steps_of(const std::filesystem::path& file) {
  std::vector<std::uint64_t> out;
  for (const auto& m : read_metrics(file)) out.push_back(m.step);
  return out;
}

using testing::ElementsAre;

TEST(Metrics, NumbersReadBackAsTheSameBits) {
  const ScratchFolder scratch;
  write_steps(scratch / "m", 3);
  const auto read = read_metrics(scratch / "m");
  ASSERT_EQ(read.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto want = sample(i + 1);
    EXPECT_EQ(to_json(read[i]), to_json(want));
    EXPECT_EQ(read[i].loss, want.loss);
    EXPECT_EQ(read[i].grad_norm, want.grad_norm);
    EXPECT_EQ(read[i].step_time_s, want.step_time_s);
    EXPECT_EQ(read[i].device_peak_bytes, want.device_peak_bytes);
    EXPECT_EQ(read[i].host_peak_bytes, want.host_peak_bytes);
    EXPECT_EQ(read[i].eval_loss, want.eval_loss);
    EXPECT_EQ(read[i].first_eval_loss, want.first_eval_loss);
    EXPECT_EQ(read[i].stall, want.stall);
    EXPECT_EQ(read[i].communication_s, want.communication_s);
    EXPECT_EQ(read[i].hidden_communication_s, want.hidden_communication_s);
  }
}

TEST(Metrics, KeysAreTheDocumentedOnes) {
  const auto object = to_json(sample(1));
  for (const auto* const key :
       {"step", "loss", "grad_norm", "lr", "tokens", "step_time_s", "tokens_per_s", "eval_loss", "stall"}) {
    EXPECT_TRUE(object.contains(key)) << key;
  }
  for (const auto* const key : {"device_peak_bytes", "host_peak_bytes", "nvme_peak_bytes"})
    EXPECT_TRUE(object.at("mem").contains(key)) << key;
  for (const auto* const key : {"read_bytes", "write_bytes", "h2d_bytes", "d2h_bytes", "stall_s"}) {
    EXPECT_TRUE(object.at("offload").contains(key)) << key;
  }
  for (const auto* const key : {"seconds", "hidden_s"}) EXPECT_TRUE(object.at("communication").contains(key)) << key;
  EXPECT_FALSE(to_json(sample(2)).contains("eval_loss"));
  EXPECT_FALSE(to_json(StepMetrics{}).contains("communication")) << "one rank has nobody to talk to";
}

TEST(Metrics, AStepWithoutTargetsHasNoLoss) {
  const ScratchFolder scratch;
  auto m = sample(2);
  m.loss.reset();
  {
    MetricsWriter writer(scratch / "m", 0);
    writer.write(sample(1));
    writer.write(m);
  }
  EXPECT_THAT(scratch.read("m"), testing::HasSubstr("\"no_targets\":true"));
  const auto read = read_metrics(scratch / "m");
  EXPECT_EQ(std::nullopt, read.at(1).loss);
  EXPECT_FALSE(to_json(read[1]).contains("loss"));
}

TEST(Metrics, NotANumberIsReadAsNotANumber) {
  const ScratchFolder scratch;
  auto m = sample(1);
  m.loss = std::numeric_limits<double>::quiet_NaN();
  m.grad_norm = std::numeric_limits<double>::infinity();
  MetricsWriter(scratch / "m", 0).write(m);
  EXPECT_TRUE(std::isnan(read_metrics(scratch / "m").at(0).loss.value()));
  EXPECT_TRUE(std::isnan(read_metrics(scratch / "m").at(0).grad_norm));
}

TEST(Metrics, ResumeKeepsDoneStepsAndDropsLaterOnes) {
  const ScratchFolder scratch;
  write_steps(scratch / "m", 5);
  const auto first_two = scratch.read("m").substr(0, scratch.read("m").find("\"step\":3"));
  {
    MetricsWriter writer(scratch / "m", 3);
    EXPECT_THAT(steps_of(scratch / "m"), ElementsAre(1, 2, 3));
    writer.write(sample(4));
  }
  EXPECT_THAT(steps_of(scratch / "m"), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(scratch.read("m").substr(0, first_two.size()), first_two);  // kept lines are not rewritten
}

TEST(Metrics, AFreshRunBeginsEmpty) {
  const ScratchFolder scratch;
  write_steps(scratch / "m", 5);
  const MetricsWriter writer(scratch / "m", 0);
  EXPECT_EQ(scratch.read("m"), "");
  EXPECT_FALSE(std::filesystem::exists(scratch / "m.tmp"));
}

TEST(Metrics, ResumeWithoutAFileBeginsEmpty) {
  const ScratchFolder scratch;
  MetricsWriter(scratch / "m", 3).write(sample(4));
  EXPECT_THAT(steps_of(scratch / "m"), ElementsAre(4));
}

TEST(Metrics, ATornLastLineIsDroppedAtEveryLength) {
  const ScratchFolder scratch;
  write_steps(scratch / "whole", 2);
  const auto whole = scratch.read("whole");
  const auto first_end = whole.find('\n') + 1;
  for (std::size_t length = first_end; length < whole.size(); ++length) {
    scratch.write("m", whole.substr(0, length));
    ASSERT_THAT(steps_of(scratch / "m"), ElementsAre(1)) << "cut to " << length;
  }
  scratch.write("m", whole.substr(0, first_end + 9));
  MetricsWriter(scratch / "m", 1).write(sample(2));
  EXPECT_EQ(scratch.read("m"), whole);
}

TEST(Metrics, ABrokenLineInTheMiddleIsCorrupt) {
  const ScratchFolder scratch;
  write_steps(scratch / "m", 2);
  scratch.write("m", "{\"step\": 0}\n{\"st\n" + scratch.read("m"));
  EXPECT_THAT(test::error_of(ErrorKind::corrupt, [&] { read_metrics(scratch / "m"); }), testing::HasSubstr("line 2"));
}

TEST(Metrics, EveryFlippedBitOfEveryLineIsFound) {
  const ScratchFolder scratch;
  write_steps(scratch / "whole", 2);
  const auto whole = scratch.read("whole");
  for (std::size_t bit = 0; bit + 8 < 8 * whole.size(); ++bit) {  // without the last newline, the line counts as torn
    auto text = whole;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    scratch.write("m", text);
    EXPECT_THROW(read_metrics(scratch / "m"), Error) << "bit " << bit % 8 << " of byte " << bit / 8;
  }
}

// Lines after the commit were never synced: a power loss may leave anything there.
TEST(Metrics, WhatFollowsTheLastCommittedStepIsNotRead) {
  const ScratchFolder scratch;
  write_steps(scratch / "m", 2);
  scratch.write("m", scratch.read("m") + std::string(3, '\0') + "\n");
  EXPECT_THROW(read_metrics(scratch / "m"), Error);
  MetricsWriter(scratch / "m", 2).write(sample(3));
  EXPECT_THAT(steps_of(scratch / "m"), ElementsAre(1, 2, 3));
}

TEST(Metrics, AFileThatCannotBeWrittenIsNamed) {
  EXPECT_THAT(test::thrown_by([&] { const MetricsWriter writer("/no/such/folder/m", 0); }).what(),
              testing::AllOf(testing::HasSubstr("/no/such/folder/m"), testing::HasSubstr("errno 2")));
  const ScratchFolder scratch;
  MetricsWriter writer(scratch / "m", 0);
  rlimit before{};  // no file of this process may become larger, as on a full disk
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit none{0, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &none);
  EXPECT_THROW(writer.write(sample(1)), Error);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
}

}  // namespace
}  // namespace terrace::cli
