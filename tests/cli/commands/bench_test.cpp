// `terrace bench nvme`: JSON for scripts, no data destroyed and no files left, warnings if the figures are not a disk's, and a
// meaningful exit code.
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <set>

#include <terrace/core/device/cuda.h>
#include <terrace/core/machine/machine.h>

#include <terrace/tests/cli/cli_test.h>
#include <terrace/tests/cli/faults/private_mount.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

class BenchNvme : public Cli {
 protected:
  BenchNvme() { fs::create_directory(at("disk")); }
  // A very short job.
  [[nodiscard]] static Words small(const Words& more = {}) { return small("3", more); }
  [[nodiscard]] static Words small(const std::string& runs, const Words& more) {
    return Words{"bench", "nvme", "disk", "--size", "4MiB", "--block-size", "256KiB", "--queue-depth", "4", "--runs", runs} +
           more;
  }
};

std::vector<std::string> keys_of(const ordered_json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

TEST_F(BenchNvme, JsonHasTheShapeThatScriptsRead) {
  const auto object = ordered_json::parse(succeeded(terrace(small({"--op", "all", "--json"}))).out);
  EXPECT_EQ((std::vector<std::string>{"machine", "results"}), keys_of(object));
  for (const auto* const key : {"cpu", "cores", "memory_bytes", "path", "file_system", "direct", "engine", "block_devices"})
    EXPECT_TRUE(object.at("machine").contains(key)) << key;
  ASSERT_EQ(4U, object.at("results").size());
  const std::vector<std::string> wanted{"op",     "block_bytes", "parts",  "queue_depth", "threads",       "gb_per_s",
                                        "iops",   "p50_us",      "p99_us", "p999_us",     "cpu_s_per_gib", "runs",
                                        "spread", "time_axis"};
  std::vector<std::string> ops;
  for (const auto& r : object.at("results")) {
    EXPECT_EQ(wanted, keys_of(r));
    ops.push_back(r.at("op"));
    EXPECT_EQ(256 * 1024, r.at("block_bytes"));
    EXPECT_EQ(4, r.at("queue_depth"));
    EXPECT_EQ(1, r.at("threads"));
    EXPECT_EQ(3, r.at("runs"));
    const double gb_per_s = r.at("gb_per_s"), p50_us = r.at("p50_us");
    EXPECT_GT(gb_per_s, 0);
    EXPECT_NEAR(gb_per_s * 1e9 / (256 * 1024), r.at("iops").get<double>(), 1e-6 * r.at("iops").get<double>());
    EXPECT_GT(p50_us, 0);
    EXPECT_LE(p50_us, r.at("p99_us"));
    EXPECT_LE(r.at("p99_us"), r.at("p999_us"));
    EXPECT_GE(r.at("cpu_s_per_gib"), 0.0);
    EXPECT_GE(r.at("spread"), 0.0);
    std::map<int, std::uint64_t> bytes;  // by run
    for (const auto& second : r.at("time_axis")) {
      EXPECT_EQ((std::vector<std::string>{"run", "at_s", "seconds", "bytes", "p50_us", "p99_us", "max_us"}), keys_of(second));
      bytes[second.at("run")] += second.at("bytes").get<std::uint64_t>();
    }
    EXPECT_EQ((std::map<int, std::uint64_t>{{1, 4 << 20}, {2, 4 << 20}, {3, 4 << 20}}), bytes);
  }
  EXPECT_EQ((std::vector<std::string>{"read", "write", "randread", "mixed"}), ops);
  EXPECT_TRUE(fs::is_empty(at("disk")));
}

TEST_F(BenchNvme, PeopleGetATableAndTheSameJobForFio) {
  const auto outcome = succeeded(terrace(small({"--op", "randread", "--threads", "2", "--engine", "threads"})));
  for (const auto* const part : {"GB/s", "p99.9 µs", "randread", "256 KiB", "fio --name=terrace", "--rw=randread"})
    EXPECT_THAT(outcome.out, HasSubstr(part));
  EXPECT_THAT(outcome.err, Not(HasSubstr("\r"))) << "a live line where there is no terminal";
}

TEST_F(BenchNvme, ASweepEndsWithSettingsToPaste) {
  const auto outcome =
      succeeded(terrace({"bench", "nvme", "disk", "--op", "read", "--size", "16MiB", "--runs", "3", "--sweep"}));
  for (const auto* const part : {"best for read", "terrace bench nvme disk --op read --size 16MiB", "\"aio\": {", "fio --name"})
    EXPECT_THAT(outcome.out, HasSubstr(part));
}

TEST_F(BenchNvme, ARowCanTakeATimeAndAStatedAmountIsWrittenFirst) {
  const auto object = ordered_json::parse(
      succeeded(terrace(small({"--op", "write", "--seconds", "1", "--precondition", "10MiB", "--json"}))).out);
  EXPECT_EQ(10 << 20, object.at("machine").at("precondition_bytes"));
  const auto& results = object.at("results");
  ASSERT_EQ(2U, results.size());
  EXPECT_EQ("precondition", results[0].at("op"));
  EXPECT_EQ(1, results[0].at("runs"));
  std::uint64_t written = 0;
  for (const auto& second : results[0].at("time_axis")) written += second.at("bytes").get<std::uint64_t>();
  EXPECT_GE(written, 10U << 20);
  double seconds = 0;
  for (const auto& second : results[1].at("time_axis")) seconds += second.at("seconds").get<double>();
  EXPECT_GE(seconds, 0.99) << "three runs of a third of a second";
  const auto shown = terrace(small({"--op", "read", "--seconds", "3"}));
  EXPECT_THAT(shown.out, HasSubstr("--time_based --runtime=1000ms"));
}

TEST_F(BenchNvme, SeveralPathsHaveARowEachAndOneTogether) {
  fs::create_directory(at("other"));
  auto words = small({"--op", "mixed", "--json"});
  words.insert(words.begin() + 3, "other");
  const auto outcome = succeeded(terrace(words));
  const auto object = ordered_json::parse(outcome.out);
  std::vector<std::string> paths;
  for (const auto& r : object.at("results")) {
    paths.push_back(r.at("path"));
    EXPECT_EQ(r.at("path") != "all", r.at("cpu_s_per_gib").is_null()) << "the process has one processor time";
  }
  EXPECT_EQ((std::vector<std::string>{"disk", "other", "all"}), paths);
  EXPECT_EQ(2U, object.at("machine").at("paths").size());
  if (!object.at("machine").at("block_devices").empty()) {
    EXPECT_EQ(1U, outcome.warnings("they share its rate")) << outcome.described;
  }
  EXPECT_TRUE(fs::is_empty(at("disk")) && fs::is_empty(at("other")));
  expect_refusal(terrace({"bench", "nvme", "disk", "disk/."}), 2, {"disk/. is given twice"});
  expect_refusal(terrace({"bench", "nvme", "disk", "nothing"}), 2, {"nothing", "does not exist"});
}

TEST_F(BenchNvme, ANumaSweepMeasuresFromEveryNodeOrSaysThatThereIsOne) {
  const int nodes = read_topology().numa_nodes;
  const auto outcome = succeeded(terrace(small({"--op", "read", "--numa"})));
  if (nodes == 1)
    EXPECT_THAT(outcome.out, HasSubstr("one NUMA node, so there is nothing to compare"));
  else
    EXPECT_THAT(outcome.out, HasSubstr("node"));
}

TEST_F(BenchNvme, OldFiguresStandBesideTheNewOnes) {
  const auto first = succeeded(terrace(small({"--op", "all", "--json"})));
  scratch_.write("old.json", first.out);
  const auto again = succeeded(terrace(small({"--op", "read", "--compare", "old.json"})));
  for (const auto* const part : {"beside old.json: tests in both: 1, only there: 3, only here: 0", "ratio"})
    EXPECT_THAT(again.out, HasSubstr(part));
  const auto json = terrace(small({"--op", "read", "--compare", "old.json", "--json"}));
  const auto compared = ordered_json::parse(json.out).at("compared");
  ASSERT_EQ(1U, compared.at("rows").size());
  const auto& row = compared.at("rows")[0];
  EXPECT_NEAR(row.at("ratio").get<double>(), row.at("new").get<double>() / row.at("old").get<double>(), 1e-9);
  EXPECT_TRUE(row.at("beyond_spread").is_boolean());
}

TEST_F(BenchNvme, AComparisonWithNothingIsRefusedBeforeAnythingIsMeasured) {
  scratch_.write("broken.json", "{");
  for (const auto* const file : {"broken.json", "absent.json", "disk"}) {
    const auto outcome = terrace(small({"--compare", file}));
    expect_refusal(outcome, 2, {file, "--compare needs a file that terrace bench"});
    EXPECT_EQ("", outcome.out);
  }
}

TEST_F(BenchNvme, NothingThatIsThereIsTouched) {
  scratch_.write("precious", "data");
  expect_refusal(terrace({"bench", "nvme", "precious"}), 2, {"precious", "existing files are never written"});
  EXPECT_EQ("data", scratch_.read("precious"));
  expect_refusal(terrace({"bench", "nvme", "/dev/null"}), 2, {"/dev/null", "is a device"});
  expect_refusal(terrace({"bench", "nvme", "nothing"}), 2, {"nothing", "does not exist"});
}

TEST_F(BenchNvme, ABlockDeviceIsRefused) {
  const auto device = at("device").string();
  // A number without a driver: even if it were opened, no data could be lost.
  if (::mknod(device.c_str(), S_IFBLK | 0600, makedev(252, 255)) != 0) GTEST_SKIP() << "no device node can be made here";
  expect_refusal(terrace({"bench", "nvme", device}), 2, {device, "is a device", "would be destroyed"});
}

TEST_F(BenchNvme, WhatMakesNoSenseEndsWithTwo) {
  expect_refusal(terrace(small({"--op", "raed"})), 2, {"--op", "raed", "did you mean read?", "terrace bench nvme --help"});
  expect_refusal(terrace({"bench", "nvme", "disk", "--queue-depth", "0"}), 2, {"--queue-depth", "\"0\" is not accepted"});
  expect_refusal(terrace({"bench", "nvme", "disk", "--block-size", "5000"}), 2, {"--block-size", "multiple of 4 KiB"});
  expect_refusal(terrace({"bench", "nvme", "disk", "--size", "1MiB", "--block-size", "2MiB"}), 2,
                 {"--size", "too small for a block"});
  expect_refusal(terrace({"bench", "nvme", "disk", "--size", "much"}), 2, {"--size", "much"});
  expect_refusal(terrace({"bench", "nvme", "disk", "--runs", "2"}), 2, {"--runs", "an integer from 3"});
  expect_refusal(terrace({"bench", "nvme", "disk", "--blocksize", "2MiB"}), 2, {"--blocksize; did you mean --block-size?"});
  expect_refusal(terrace({"bench", "nvme", "disk", "--bs", "2MiB"}), 2, {"unknown flag --bs; terrace has --block-size"});
  expect_refusal(terrace({"bench", "nvme", "disk", "--end_fsync=1"}), 2, {"terrace has --sync"});
  expect_refusal(terrace({"bench", "nvme", "disk", "--seconds", "-1"}), 2, {"--seconds", "an integer from 0"});
  expect_refusal(terrace({"bench", "nvme", "disk", "--precondition", "0"}), 2, {"--precondition", "a size from 4KiB"});
  expect_refusal(terrace({"bench", "nvme"}), 2, {"PATH"});
  expect_refusal(terrace({"bench", "nvem", "disk"}), 2, {"unknown bench \"nvem\"; did you mean nvme?"});
  expect_refusal(terrace({"bench"}), 2, {"needs the name of a bench"});
  EXPECT_TRUE(fs::is_empty(at("disk")));
}

TEST_F(BenchNvme, MoreThanTheDiskHoldsDoesNotFit) {
  expect_refusal(terrace({"bench", "nvme", "disk", "--size", "1000000GiB"}), 3, {"not enough space", "--size"});
}

TEST_F(BenchNvme, AStopPrintsWhatWasMeasuredAndLeavesNothing) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Child child(launch(small("300", {"--op", "all"})));
    child.read_lines(3);  // the title, the header and the reads; three more tests of 300 runs follow
    child.send(signal);
    const auto outcome = child.wait();
    EXPECT_EQ(75, outcome.exit) << outcome.described;
    EXPECT_THAT(outcome.out, HasSubstr("  read "));
    EXPECT_THAT(outcome.out, Not(HasSubstr("mixed")));
    EXPECT_THAT(outcome.err, HasSubstr("stopped"));
    EXPECT_TRUE(fs::is_empty(at("disk")));
  }
}

TEST_F(BenchNvme, AStopBeforeAnythingIsMeasuredLeavesNothing) {
  Child child(launch({"bench", "nvme", "disk", "--size", "4GiB"}));
  child.read_lines(1);  // the title; now the file is written
  child.send(SIGINT);
  const auto outcome = child.wait();
  EXPECT_EQ(75, outcome.exit) << outcome.described;
  EXPECT_TRUE(fs::is_empty(at("disk")));
}

TEST_F(BenchNvme, AKillLeavesNothingEither) {
  Child child(launch(small("300", {})));
  child.read_lines(1);
  child.send(SIGKILL);
  EXPECT_EQ(SIGKILL, child.wait().signal);
  EXPECT_TRUE(fs::is_empty(at("disk")));
}

TEST_F(BenchNvme, MemoryIsNoDisk) {
  PrivateMount disk(at("disk"));
  if (!disk.memory(64 << 20)) GTEST_SKIP() << "mounting is not permitted here: " << disk.why();
  const auto outcome = succeeded(terrace(small({"--op", "read", "--json"})));
  EXPECT_EQ(1U, outcome.warnings("tmpfs")) << outcome.described;
  EXPECT_EQ("tmpfs", ordered_json::parse(outcome.out).at("machine").at("file_system"));
}

TEST_F(BenchNvme, AContainersOverlayIsNamed) {
  for (const auto* const folder : {"lower", "upper", "work"}) fs::create_directory(at(folder));
  PrivateMount disk(at("disk"));
  if (!disk.overlay(at("lower"), at("upper"), at("work"))) GTEST_SKIP() << "no overlay can be mounted here: " << disk.why();
  const auto outcome = succeeded(terrace(small({"--op", "read"})));
  EXPECT_EQ(1U, outcome.warnings("overlay")) << outcome.described;
  EXPECT_TRUE(fs::is_empty(at("disk")));
}

TEST_F(BenchNvme, ADirectoryThatCannotBeWrittenIsAnError) {
  PrivateMount disk(at("disk"));
  if (!disk.read_only()) GTEST_SKIP() << "mounting is not permitted here: " << disk.why();
  expect_refusal(terrace(small()), 1, {"disk", "no file can be created", "Read-only file system"});
}

class BenchHost : public Cli {
 protected:
  // The results of a benchmark that must succeed; each result has these keys.
  [[nodiscard]] ordered_json results(const Words& words, const std::vector<std::string>& wanted) const {
    auto all = words;
    all.insert(all.begin(), "bench");
    all.insert(all.end(), {"--runs", "3", "--json"});
    const auto object = ordered_json::parse(succeeded(terrace(all)).out);
    EXPECT_EQ((std::vector<std::string>{"machine", "results"}), keys_of(object));
    for (const auto& r : object.at("results")) {
      EXPECT_EQ(wanted, keys_of(r));
      EXPECT_EQ(r.value("op", "") == "planned" ? 1 : 3, r.at("runs"));
      EXPECT_GE(r.at("spread"), 0.0);
    }
    return object.at("results");
  }
};

TEST_F(BenchHost, RamHasEveryKernelOnOneThreadAndOnTwo) {
  for (const auto* const threads : {"1", "2"}) {
    const auto all = results({"ram", "--size", "1MiB", "--threads", threads},
                             {"op", "threads", "array_bytes", "gb_per_s", "runs", "spread"});
    std::vector<std::string> ops;
    for (const auto& r : all) {
      ops.push_back(r.at("op"));
      EXPECT_EQ(threads, std::to_string(r.at("threads").get<int>()));
      EXPECT_GT(r.at("gb_per_s"), 0.0);
    }
    EXPECT_EQ((std::vector<std::string>{"read", "write", "copy", "copy_nt", "triad", "adamw"}), ops);
  }
}

TEST_F(BenchHost, SizesWhoseSumsOverflowAreRefused) {
  expect_refusal(terrace({"bench", "ram", "--size", "9223372036854775807"}), 2, {"--size", "1024TiB"});
  expect_refusal(terrace({"bench", "ram", "--size", "1000TiB"}), 1, {"cannot be allocated"});
}

TEST_F(BenchHost, ComputeHasProductsAndAttentionOfADtype) {
  const auto all = results({"compute", "--dtype", "fp32", "--n", "64", "--threads", "1"},
                           {"op", "dtype", "n", "threads", "gflop_per_s", "runs", "spread"});
  ASSERT_EQ(2U, all.size());
  EXPECT_EQ("matmul", all[0].at("op"));
  EXPECT_EQ(64, all[0].at("n"));
  EXPECT_EQ("attention", all[1].at("op"));
  for (const auto& r : all) EXPECT_GT(r.at("gflop_per_s"), 0.0);
  expect_refusal(terrace({"bench", "compute", "--dtype", "fp8"}), 2, {"--dtype", "fp8", "one of fp32, bf16, fp16, fp64, all"});
}

TEST_F(BenchHost, OptimizerStandsBesideTheStream) {
  const auto all = results({"optimizer", "--params", "100000", "--threads", "1"},
                           {"optimizer", "recipe", "dtype", "bytes_per_param", "threads", "gb_per_s", "fraction_of_stream",
                            "params_per_s", "runs", "spread"});
  ASSERT_GE(all.size(), 4U);
  EXPECT_EQ("adamw", all[0].at("optimizer"));
  EXPECT_EQ("fp32", all[0].at("recipe"));
  for (const auto& r : all) {
    EXPECT_GT(r.at("fraction_of_stream"), 0.0);
    EXPECT_GT(r.at("params_per_s"), 0.0);
  }
  // 4 fp32 arrays are read and 3 written: 28 bytes per parameter.
  EXPECT_NEAR(all[0].at("gb_per_s").get<double>() * 1e9, 28 * all[0].at("params_per_s").get<double>(),
              1e-6 * all[0].at("gb_per_s").get<double>() * 1e9);
}

TEST_F(BenchHost, OptimizersOfWholeLayersAreTimedToo) {
  for (const auto* optimizer : {"lamb", "adafactor"}) {
    const auto all =
        results({"optimizer", "--optimizer", optimizer, "--recipe", "all-bf16", "--params", "100000", "--threads", "1"},
                {"optimizer", "recipe", "dtype", "bytes_per_param", "threads", "gb_per_s", "fraction_of_stream", "params_per_s",
                 "runs", "spread"});
    ASSERT_EQ(1U, all.size());
    EXPECT_EQ(optimizer, all[0].at("optimizer"));
    EXPECT_EQ("all-bf16", all[0].at("recipe"));
    EXPECT_GT(all[0].at("params_per_s"), 0.0);
    // bf16 weights are read and written, bf16 gradients read; plus LAMB's two bf16 moments, or Adafactor's row and column sums
    // of a million elements.
    EXPECT_NEAR(all[0].at("bytes_per_param").get<double>(), std::string(optimizer) == "lamb" ? 14 : 6, 0.02);
  }
}

TEST_F(BenchHost, OptimizerTakesOneRecipeOfOneDtype) {
  const auto all = results({"optimizer", "--recipe", "bf16", "--dtype", "fp32", "--params", "100000", "--threads", "1"},
                           {"optimizer", "recipe", "dtype", "bytes_per_param", "threads", "gb_per_s", "fraction_of_stream",
                            "params_per_s", "runs", "spread"});
  ASSERT_EQ(1U, all.size());
  EXPECT_EQ("fp32", all[0].at("dtype"));
  EXPECT_EQ(20.0, all[0].at("bytes_per_param"));
  expect_refusal(terrace({"bench", "optimizer", "--recipe", "4bit"}), 2, {"--recipe", "4bit", "one of fp32"});
  expect_refusal(terrace({"bench", "optimizer", "--recipe", "split", "--dtype", "fp32"}), 2, {"recipe split", "--dtype bf16"});
}

TEST_F(BenchHost, PcieWithoutAGpuSaysWhy) {
  const auto found = find_gpus();
  if (!found.gpus.empty()) GTEST_SKIP() << "a GPU is here: " << found.gpus[0].name;
  const auto outcome = terrace({"bench", "pcie", "--json"});
  expect_refusal(outcome, 4, {"no CUDA device", found.why_none, found.mend});
  EXPECT_TRUE(ordered_json::parse(outcome.out).at("results").empty());
}

const Words kSmallModel{"--layers", "2", "--hidden", "64", "--heads", "4", "--seq-len", "64", "--batch-size", "2"};

Words with_model(Words words) {
  words.insert(words.end(), kSmallModel.begin(), kSmallModel.end());
  return words;
}

TEST_F(BenchHost, ResidencyReplaysAPlanAsItReplaysItsRecord) {
  const auto planned =
      ordered_json::parse(succeeded(terrace(with_model({"bench", "residency", "--json", "--record", "step.trace"}))).out)
          .at("results");
  EXPECT_EQ(
      planned,
      ordered_json::parse(succeeded(terrace({"bench", "residency", "--json", "--trace", "step.trace"})).out).at("results"));
  ASSERT_GE(planned.size(), 2U);
  std::map<std::uint64_t, std::map<std::string, std::uint64_t>> hits;
  for (const auto& r : planned) {
    EXPECT_EQ((std::vector<std::string>{"policy", "tier", "memory_bytes", "accesses", "hits", "hit_rate", "read_bytes",
                                        "write_bytes", "runs", "spread"}),
              keys_of(r));
    hits[r.at("memory_bytes")][r.at("policy")] = r.at("hits");
  }
  for (const auto& [memory, by_policy] : hits) EXPECT_GE(by_policy.at("belady"), by_policy.at("lru")) << memory;

  scratch_.write("broken.trace", "device read:1\n");
  expect_refusal(terrace({"bench", "residency", "--trace", "broken.trace"}), 2, {"line 1", "not an access"});
  expect_refusal(terrace({"bench", "residency", "--trace", "absent.trace"}), 2, {"absent.trace", "--record"});
  expect_refusal(terrace({"bench", "residency", "--trace", "step.trace", "--memory", "8KiB"}), 3, {"does not fit", "--memory"});
}

TEST_F(BenchHost, AStepStandsBesideItsPlan) {
  fs::create_directory(at("disk"));
  const auto all = results(
      with_model({"step", "--assumed-costs", "--nvme-path", "disk", "--device-memory", "1MiB", "--host-memory", "1MiB"}),
      {"op", "model", "step_s", "tokens_per_s", "stall_s", "read_bytes", "write_bytes", "upload_bytes", "download_bytes",
       "runs", "spread"});
  ASSERT_EQ(2U, all.size());
  EXPECT_EQ("planned", all[0].at("op"));
  EXPECT_EQ("measured", all[1].at("op"));
  EXPECT_GT(all[1].at("tokens_per_s"), 0.0);
  EXPECT_GT(all[1].at("upload_bytes"), 0);
  for (const auto* const bytes : {"read_bytes", "write_bytes", "upload_bytes", "download_bytes"})
    EXPECT_EQ(all[0].at(bytes), all[1].at(bytes)) << bytes;
  EXPECT_TRUE(fs::is_empty(at("disk")));
  expect_refusal(terrace(with_model({"bench", "step", "--device-memory", "4KiB"})), 3, {"does not fit"});
}

TEST_F(BenchHost, AModelsWeightsGoInAndOutBesideTheDisk) {
  fs::create_directory(at("disk"));
  for (const Words& more : {Words{}, Words{"--dtype", "bf16", "--lora-rank", "2"}}) {
    const auto all = results(with_model(Words{"weights", "disk", "--device-memory", "1MiB", "--host-memory", "1MiB"} + more),
                             {"op", "model", "file_bytes", "chunk_bytes", "gb_per_s", "disk_gb_per_s", "ratio", "cpu_s_per_gib",
                              "peak_resident_bytes", "runs", "spread"});
    ASSERT_EQ(2U, all.size());
    EXPECT_EQ("load", all[0].at("op"));
    EXPECT_EQ("export", all[1].at("op"));
    for (const auto& one : all) {
      EXPECT_GT(one.at("file_bytes"), 0);
      EXPECT_GT(one.at("gb_per_s"), 0.0);
      EXPECT_GT(one.at("disk_gb_per_s"), 0.0);
      EXPECT_GT(one.at("cpu_s_per_gib"), 0.0);
    }
    EXPECT_TRUE(fs::is_empty(at("disk")));
  }
  expect_refusal(terrace(with_model({"bench", "weights", "disk", "--dtype", "fp16"})), 2, {"fp16"});
}

// Options without an effect are refused.
TEST_F(BenchHost, AStepTakesNoOptionOfARun) {
  const std::pair<const char*, const char*> of_a_run[] = {{"--save", "weights.safetensors"}, {"--steps", "7"},
                                                          {"--eval-interval", "1"},          {"--on-non-finite", "skip"},
                                                          {"--data", "corpus.txt"},          {"--warmup", "3"}};
  for (const auto& [flag, value] : of_a_run)
    for (const auto* const bench : {"step", "residency"})
      expect_refusal(terrace(with_model({"bench", bench, flag, value})), 2, {std::string("does not take ") + flag});
  expect_refusal(terrace(with_model({"bench", "residency", "--lr", "1"})), 2, {"does not take --lr"});
}

TEST_F(BenchHost, AllRunsWhatCanRun) {
  fs::create_directory(at("disk"));
  const auto outcome =
      succeeded(terrace(with_model({"bench", "all", "disk", "--quick", "--assumed-costs", "--runs", "3", "--json"})));
  std::set<std::string> benches;
  const auto object = ordered_json::parse(outcome.out);
  for (const auto& r : object.at("results")) {
    benches.insert(r.at("bench"));
    EXPECT_EQ("bench", r.begin().key());
    EXPECT_TRUE(r.contains("runs") && r.contains("spread")) << r.dump();
  }
  std::set<std::string> wanted{"nvme",     "chunks",  "stream",  "states", "ram",       "compute", "optimizer",
                               "pipeline", "bubbles", "overlap", "pieces", "residency", "step",    "weights"};
  if (!find_gpus().gpus.empty() && cuda_module_trouble().empty()) wanted.insert("pcie");
  EXPECT_EQ(wanted, benches);
  EXPECT_FALSE(fs::exists(at("cache/terrace/machine.json"))) << "figures of caches are no profile";
  EXPECT_TRUE(fs::is_empty(at("disk")));
  expect_refusal(terrace({"bench", "all", "nothing"}), 2, {"nothing", "does not exist"});
}

}  // namespace
}  // namespace terrace::test
