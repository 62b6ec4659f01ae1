// Runs `terrace train` inside a test: the same function and files, with access to the contents of its run directory.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/terrace/base/sealed_json.h>
#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/examples/terrace/metrics/metrics.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/report/report.h>
#include <terrace/examples/terrace/trainer.h>
#include <terrace/tests/support/english_text.h>
#include <terrace/tests/support/one_in.h>

namespace terrace::test {

inline Plan plan_of(const cli::RunConfig& config) {
  const auto model = lm::make_model(cli::model_config(config));
  return plan(model, cli::plan_request(config), cli::machine_profile(config));
}

struct Trained {
  std::vector<cli::StepMetrics> steps;
  std::string hash;
  double eval_loss = 0;
  nlohmann::json planned, peaks;  // plan.json; the result's peak_bytes

  [[nodiscard]] std::vector<double> losses() const {
    std::vector<double> all;
    for (const auto& step : steps) all.push_back(step.loss.value());
    return all;
  }
};

inline nlohmann::json read_json(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return cli::parse_sealed(std::string(std::istreambuf_iterator<char>(in), {}));
}

inline Trained read_run(const std::filesystem::path& run) {
  const auto result = read_json(run / "result.json");
  return {cli::read_metrics(run / cli::kMetricsFile), result.at("weights_xxh64"), result.value("eval_loss", 0.0),
          read_json(run / cli::kPlanFile), result.at("peak_bytes")};
}

// Keeps a run's output out of the test's own output.
class QuietOutput {
 public:
  QuietOutput() { testing::internal::CaptureStdout(); }
  QuietOutput(const QuietOutput&) = delete;
  QuietOutput& operator=(const QuietOutput&) = delete;
  ~QuietOutput() { testing::internal::GetCapturedStdout(); }
};

inline Trained run_train(const cli::RunConfig& config) {
  for (const auto& disk : config.memory.nvme_path) std::filesystem::create_directories(disk);
  {
    const QuietOutput quiet;
    if (cli::train(config) != cli::Exit::ok) throw Error("training was interrupted", ErrorKind::interrupted);
  }
  return read_run(config.run.out_dir);
}

// A test with its own folder beside the build, that is, on a real disk, with a corpus in it; removed at the end.
class TrainTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    std::ranges::replace(name, '/', '-');
    folder_ = std::filesystem::absolute("train-test") / name;
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    ::setenv("XDG_CACHE_HOME", folder_.c_str(), 1);  // ignores any profile that this machine has saved
    std::ofstream(corpus(), std::ios::binary) << EnglishText(1).of(64 * 1024);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::filesystem::path corpus() const { return folder_ / "corpus.txt"; }
  // Trains in a new run directory, which is removed when the test ends.
  Trained train_fresh(cli::RunConfig config) {
    config.run.out_dir = folder_ / fmt::format("run-{}", ++runs_);
    return run_train(config);
  }

  std::filesystem::path folder_;
  int runs_ = 0;
};

inline void expect_same_bits(const Trained& expected, const Trained& got, const std::string& what) {
  ASSERT_EQ(got.steps.size(), expected.steps.size()) << what;
  for (std::size_t i = 0; i < got.steps.size(); ++i) {
    EXPECT_EQ(got.steps[i].loss, expected.steps[i].loss) << what << ", step " << i + 1;
    EXPECT_EQ(got.steps[i].grad_norm, expected.steps[i].grad_norm) << what << ", step " << i + 1;
  }
  EXPECT_EQ(got.hash, expected.hash) << what;
  EXPECT_EQ(got.eval_loss, expected.eval_loss) << what;
}

}  // namespace terrace::test
