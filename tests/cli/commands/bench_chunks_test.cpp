// `terrace bench chunks`, `stream` and `pipeline`: they print the figures of all sides and their ratio, and leave nothing on
// the disk.
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

class BenchChunks : public Cli {
 protected:
  BenchChunks() { std::filesystem::create_directory(at("disk")); }
  [[nodiscard]] static Words words(const Words& more) { return Words{"bench", "chunks", "disk", "--runs", "3"} + more; }
};

TEST_F(BenchChunks, ComparesTheWholePathWithTheEngineAlone) {
  // More chunks than memory slots, so that slots are reused.
  const auto results =
      nlohmann::json::parse(succeeded(terrace(words({"--size", "288MiB", "--chunk-size", "4MiB", "--json"}))).out)
          .at("results");
  ASSERT_EQ(2U, results.size());
  for (const auto& r : results) {
    EXPECT_EQ(4 * 1024 * 1024, r.at("chunk_bytes"));
    EXPECT_EQ(3, r.at("runs"));
    for (const auto* const key : {"gb_per_s", "engine_gb_per_s", "ratio"}) EXPECT_GT(r.at(key).get<double>(), 0) << key;
  }
  EXPECT_EQ("write", results[0].at("op"));
  EXPECT_EQ("read", results[1].at("op"));
  EXPECT_TRUE(std::filesystem::is_empty(at("disk")));
}

TEST_F(BenchChunks, StreamedUpdatesStandBesideTheirLimits) {
  // More groups than memory slots.
  const auto outcome =
      succeeded(terrace(flags("bench stream disk --runs 3 --params 7000000 --chunk-size 4MiB --depth 3 --threads 1 --json")));
  const auto results = nlohmann::json::parse(outcome.out).at("results");
  ASSERT_EQ(1U, results.size());
  EXPECT_EQ(3, results[0].at("depth"));
  for (const auto* const key : {"gb_per_s", "disk_gb_per_s", "memory_gb_per_s", "ratio"})
    EXPECT_GT(results[0].at(key).get<double>(), 0) << key;
  EXPECT_TRUE(std::filesystem::is_empty(at("disk")));
  expect_refusal(terrace({"bench", "stream", "disk", "--chunk-size", "5MiB"}), 2, {"--chunk-size", "multiple of 4 MiB"});
}

TEST_F(BenchChunks, StepsOfAnOptimizerStandBesideTheDisk) {
  // Three chunks more than the host holds.
  const auto outcome = terrace({"bench", "states", "disk", "--runs", "3", "--params", "7000000", "--host-memory", "32MiB",
                                "--chunk-size", "4MiB", "--threads", "1", "--json"});
  ASSERT_EQ(0, outcome.exit) << outcome.described;
  const auto results = nlohmann::json::parse(outcome.out).at("results");
  ASSERT_EQ(1U, results.size());
  EXPECT_EQ(2 * 2 * 3 * (4 << 20), results[0].at("bytes_moved"));
  for (const auto* const key : {"gb_per_s", "disk_gb_per_s", "ratio"}) EXPECT_GT(results[0].at(key).get<double>(), 0) << key;
  EXPECT_TRUE(std::filesystem::is_empty(at("disk")));
  expect_refusal(terrace({"bench", "states", "disk", "--params", "1000"}), 2, {"--params", "fit into --host-memory"});
  expect_refusal(terrace({"bench", "states", "disk", "--host-memory", "64MiB"}), 2, {"--host-memory", "at least 128"});
}

// Writes wait for updates, and updates for reads: a failed read must not leave them waiting.
TEST_F(BenchChunks, AReadThatFailsEndsTheStream) {
  Child child(launch({"bench", "stream", "disk", "--runs", "10000", "--params", "7000000", "--chunk-size", "4MiB"}));
  std::error_code none;
  const auto moves = [&] {  // its store is complete and a thread is working
    for (const auto& task : std::filesystem::directory_iterator(child.proc() / "task", none)) {
      std::string name;
      if (std::getline(std::ifstream(task.path() / "comm"), name) && name == "disk lanes") return true;
    }
    return false;
  };
  const auto cut = [&] {  // false: the unnamed file is gone
    for (const auto& open : std::filesystem::directory_iterator(child.proc() / "fd", none)) {
      const auto file = std::filesystem::read_symlink(open.path(), none).string();
      if (file.find("terrace-bench.temporary/data") != std::string::npos) return ::truncate(open.path().c_str(), 4096) == 0;
    }
    return false;
  };
  const auto patience = std::chrono::steady_clock::now() + std::chrono::minutes{1};
  const auto wait = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
    return std::chrono::steady_clock::now() < patience;
  };
  while (!moves()) ASSERT_TRUE(wait()) << "it never begins";
  while (cut()) ASSERT_TRUE(wait()) << "it goes on";  // repeated, because writes make the file longer again
  const auto outcome = child.wait();
  EXPECT_NE(0, outcome.exit) << outcome.described;
  EXPECT_NE(std::string::npos, outcome.err.find("terrace-bench.temporary/data, offset")) << outcome.described;
}

TEST_F(BenchChunks, PipelinesStandBesideTheirSimulation) {
  const auto outcome = succeeded(terrace(
      {"bench", "pipeline", "disk", "--ranks", "2", "--micro-batches", "4", "--unit-ms", "2", "--runs", "3", "--json"}));
  std::map<std::string, nlohmann::json> by_order;
  const auto results = nlohmann::json::parse(outcome.out).at("results");
  for (const auto& r : results) by_order[r.at("op")] = r;
  for (const auto* const order : {"layerwise", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "chimera", "dualpipe-v"}) {
    ASSERT_TRUE(by_order.contains(order)) << outcome.described;
    const auto& r = by_order[order];
    for (const auto* const key : {"step_s", "simulated_step_s", "bubble", "simulated_bubble", "order_bubble", "ratio"}) {
      if (std::string_view(order) == "chimera" && std::string_view(key) == "order_bubble") continue;  // two ranks have none
      EXPECT_GT(r.at(key).get<double>(), 0) << order << ", " << key;
    }
    EXPECT_EQ(r.at("peak_live"), r.at("order_peak_live")) << order;
    EXPECT_GE(r.at("step_s").get<double>(), r.at("order_step_s").get<double>()) << order << ": layers take their time";
  }
  EXPECT_TRUE(std::filesystem::is_empty(at("disk")));
  expect_refusal(terrace({"bench", "pipeline", "disk", "--schedule", "dualpipe-v", "--micro-batches", "3"}), 2, {"dualpipe-v"});
}

TEST_F(BenchChunks, BubblesStandBesideTheStepsEnd) {
  const auto results = nlohmann::json::parse(succeeded(terrace({"bench", "bubbles", "disk", "--ranks", "2", "--unit-ms", "4",
                                                                "--disk-ms", "20", "--runs", "3", "--json"}))
                                                 .out)
                           .at("results");
  ASSERT_EQ(2U, results.size());
  EXPECT_EQ("end", results[0].at("op"));
  EXPECT_EQ("bubbles", results[1].at("op"));
  EXPECT_LT(results[1].at("simulated_step_s"), results[0].at("simulated_step_s"));
  EXPECT_EQ(1 - results[1].at("simulated_step_s").get<double>() / results[0].at("simulated_step_s").get<double>(),
            results[1].at("simulated_saved").get<double>());
  // No run is faster than its layers, and state is moved.
  for (const auto& r : results) {
    EXPECT_GE(r.at("step_s").get<double>(), r.at("order_step_s").get<double>());
    EXPECT_GT(r.at("read_bytes").get<double>(), 0);
  }
  EXPECT_TRUE(std::filesystem::is_empty(at("disk")));
}

TEST_F(BenchChunks, RefusesWhatItCannotDo) {
  expect_refusal(terrace(words({"--chunk-size", "5MiB"})), 2, {"--chunk-size", "multiple of 4 MiB"});
  expect_refusal(terrace(words({"--chunk-size", "1GiB"})), 2, {"--chunk-size", "at most 128 MiB"});
  expect_refusal(terrace(words({"--size", "1MiB"})), 2, {"--size", "too small for one chunk"});
  expect_refusal(terrace({"bench", "chunks", "nowhere"}), 2, {"nowhere"});
}

}  // namespace
}  // namespace terrace::test
