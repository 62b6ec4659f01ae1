// Budgets hold: the program trains a model whose training state is far larger than both memory budgets together, and neither
// its own counts for the tiers nor the kernel's count for the process exceed them.
#include <gtest/gtest.h>

#include <terrace/tests/train/child_process.h>
#include <terrace/tests/train/train_run.h>

namespace terrace::test {
namespace {

// Code, stacks, the thread pool, libraries, the corpus window.
constexpr std::uint64_t kOutsideBudgets = 256 * kMiB;

struct Size {
  std::int64_t layers, hidden;
  std::uint64_t budget, least_state;
};

std::uint64_t bytes_on_disk(const std::filesystem::path& folder) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) bytes += entry.file_size();
  return bytes;
}

class BudgetsHold : public TrainTest {};

TEST_F(BudgetsHold, WhereTheStateIsManyTimesLarger) {
  if (TERRACE_SANITIZED) GTEST_SKIP() << "a sanitizer's shadow memory counts as the program's";
  const Size size = long_form() ? Size{22, 1024, 512 * kMiB, 4 * kGiB} : Size{11, 512, 64 * kMiB, 512 * kMiB};
  cli::RunConfig config;
  config.data.format = cli::DataFormat::bytes;
  config.model.layers = size.layers;
  config.model.hidden = size.hidden;
  config.model.seq_len = 64;
  config.train.batch_size = 1;
  config.train.steps = 3;
  config.train.eval_batches = 1;
  config.data.files = {corpus()};
  config.memory.device_memory = config.memory.host_memory = std::to_string(size.budget);
  config.memory.nvme_path = {folder_ / "disk"};
  std::filesystem::create_directory(folder_ / "disk");
  const auto p = plan_of(config);
  ASSERT_TRUE(p.fits) << p.refusal.why;
  ASSERT_GE(p.state_bytes, size.least_state);
  ASSERT_GT(p.state_bytes, 2 * size.budget + kOutsideBudgets) << "a run that keeps everything in memory would pass";
  const auto disk_limit = p.peak_bytes[Tier::disk];

  const auto run = folder_ / "run", log = folder_ / "log";
  const auto ended = run_to_end({TERRACE_PROGRAM,   "train",
                                 "--layers",        std::to_string(config.model.layers),
                                 "--hidden",        std::to_string(config.model.hidden),
                                 "--seq-len",       std::to_string(config.model.seq_len),
                                 "--batch-size",    std::to_string(config.train.batch_size),
                                 "--steps",         std::to_string(config.train.steps),
                                 "--eval-batches",  std::to_string(config.train.eval_batches),
                                 "--data",          corpus(),
                                 "--device-memory", config.memory.device_memory,
                                 "--host-memory",   config.memory.host_memory,
                                 "--nvme-path",     config.memory.nvme_path[0],
                                 "--nvme-limit",    std::to_string(disk_limit),
                                 "--out-dir",       run},
                                log);
  ASSERT_EQ(ended.exit_code, 0) << (std::ostringstream() << std::ifstream(log).rdbuf()).str();

  fmt::print("state {}, device and host {} each, disk {}: the process's peak was {}, {} outside the budgets\n",
             format_bytes(p.state_bytes), format_bytes(size.budget), format_bytes(disk_limit),
             format_bytes(ended.peak_resident_bytes),
             format_bytes(ended.peak_resident_bytes - std::min(ended.peak_resident_bytes, 2 * size.budget)));
  EXPECT_LE(ended.peak_resident_bytes, 2 * size.budget + kOutsideBudgets);
  const auto trained = read_run(run);
  ASSERT_EQ(trained.steps.size(), static_cast<std::size_t>(config.train.steps));
  for (const auto& m : trained.steps) {
    EXPECT_LE(m.device_peak_bytes, size.budget) << "step " << m.step;
    EXPECT_LE(m.host_peak_bytes, size.budget) << "step " << m.step;
    EXPECT_LE(m.nvme_peak_bytes, disk_limit) << "step " << m.step;
    fmt::print("step {}: device {}, host {}, disk {}; read {}, wrote {}, {:.1f} s, of which stalled {:.1f} s\n", m.step,
               format_bytes(m.device_peak_bytes), format_bytes(m.host_peak_bytes), format_bytes(m.nvme_peak_bytes),
               format_bytes(m.read_bytes), format_bytes(m.write_bytes), m.step_time_s, m.stall_s);
  }
  // The index and record of two commits, in addition to the chunks.
  constexpr std::uint64_t kIndex = 16 * kMiB;
  EXPECT_LE(bytes_on_disk(config.memory.nvme_path[0]), round_up(disk_limit, kHugePageBytes) + kIndex);
}

// A model goes from its files into the store and out again, byte for byte (the bench compares them), with much less memory than
// its size.
TEST_F(BudgetsHold, WhereAModelIsLoadedAndExported) {
  if (TERRACE_SANITIZED) GTEST_SKIP() << "a sanitizer's shadow memory counts as the program's";
  constexpr std::uint64_t kTier = 24 * kMiB, kOutside = 96 * kMiB;
  const auto disk = folder_ / "disk", log = folder_ / "log";
  std::filesystem::create_directory(disk);
  const auto ended = run_to_end({TERRACE_PROGRAM,   "bench",
                                 "weights",         disk,
                                 "--runs",          "3",
                                 "--model",         "llama",
                                 "--layers",        "16",
                                 "--hidden",        "1024",
                                 "--heads",         "16",
                                 "--ffn",           "3584",
                                 "--seq-len",       "16",
                                 "--dtype",         "bf16",
                                 "--lora-rank",     "2",
                                 "--device-memory", std::to_string(kTier),
                                 "--host-memory",   std::to_string(kTier)},
                                log);
  const auto said = (std::ostringstream() << std::ifstream(log).rdbuf()).str();
  ASSERT_EQ(ended.exit_code, 0) << said;
  constexpr std::uint64_t kModel = 16ULL * (4 * 1024 * 1024 + 3 * 1024 * 3584) * sizeof(bf16);
  static_assert(kModel > 3 * (2 * kTier + kOutside), "a program that keeps the model would pass");
  fmt::print("{} of weights in {}: the process's peak was {}\n{}", format_bytes(kModel), format_bytes(2 * kTier),
             format_bytes(ended.peak_resident_bytes), said);
  EXPECT_LE(ended.peak_resident_bytes, 2 * kTier + kOutside);
}

}  // namespace
}  // namespace terrace::test
