// The program with a GPU: a fake driver and CUDA module replace the real ones, so that everything from the command line to a
// copy runs here.
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <fmt/format.h>

#include <terrace/core/base/text_file.h>
#include <terrace/core/machine/machine.h>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

class WithGpu : public Cli {
 protected:
  // Runs terrace WORDS… with the fakes, and `more` in the environment.
  [[nodiscard]] Outcome with_gpu(Words words, const std::map<std::string, std::string>& more = {}) const {
    auto started = launch(std::move(words));
    started.environment["LD_LIBRARY_PATH"] = TERRACE_FAKE_CUDA_FOLDER;
    started.environment["TERRACE_MODULE_PATH"] = TERRACE_FAKE_CUDA_FOLDER;
    for (const auto& [name, value] : more) started.environment[name] = value;
    return run(started);
  }
};

TEST_F(WithGpu, DoctorSaysWhichThereAre) {
  const auto outcome = succeeded(with_gpu({"doctor", "--device", "cuda:0"}, {{"TERRACE_FAKE_GPUS", "2"}}));
  EXPECT_THAT(outcome.out, HasSubstr("2 GPUs; cuda:0 Imaginary H0, 3.00 GiB, compute capability 9.1; cuda:1 Imaginary H1"));
}

TEST_F(WithGpu, TheFirstRunMeasuresTheMachine) {
  const auto measuring = HasSubstr("measuring cuda:0 and this machine once");
  auto settings = read_text_file(at("tiny.toml"));
  const std::string assumed = "assumed-costs = true\n";
  settings.erase(settings.find(assumed), assumed.size());
  scratch_.write("measured.toml", settings);
  const auto train = [&](const std::string& run, const std::string& cache) {
    const auto outcome = succeeded(with_gpu({"train", "--config", "measured.toml", "--device", "cuda:0", "--out-dir", run},
                                            {{"XDG_CACHE_HOME", at(cache).string()}}));
    return outcome;
  };
  const auto first = train("first", "fresh");
  EXPECT_THAT(first.err, measuring);
  const auto profile = load_profile(at("fresh/terrace/machine-cuda-0.json"));
  EXPECT_EQ("cuda:0", profile.device);
  EXPECT_NE("", profile.measured_at);
  const auto second = train("second", "fresh");
  EXPECT_THAT(second.err, Not(measuring));
  EXPECT_EQ(weights_of(first), weights_of(second));
  // A machine that cannot keep the rates still trains.
  scratch_.write("no_folder", "a file");
  EXPECT_THAT(train("third", "no_folder").err, HasSubstr("the plan assumes rates: the machine profile cannot be saved"));
}

TEST_F(WithGpu, ProductsOf8BitsNeedACapabilityThatHasThem) {
  const auto train = [&](const char* capability) {
    return with_gpu(tiny("train", {"--device", "cuda:0", "--dtype", "bf16", "--products", "fp8", "--steps", "1"}),
                    {{"TERRACE_FAKE_CAPABILITY", capability}});
  };
  for (const auto& [older, words] : {std::pair{"80", "8.0"}, {"86", "8.6"}})
    expect_refusal(train(older), 2,
                   {std::string("compute capability ") + words, "--products fp8 needs 8.9", "leave out --products"});
  const auto newer = train("89");
  EXPECT_EQ(0, newer.exit) << newer.described;
}

// 39 TFLOP/s of a usual card, not the quarter of a processor.
TEST_F(Cli, APlanForAGpuThatIsNotHereIsNoneForTheProcessor) {
  const auto compute_s = [&](const Words& device) {
    return nlohmann::json::parse(
               succeeded(terrace(tiny("plan", Words{"--assumed-costs", "--json", "--device-memory", "1GiB"} + device))).out)
        .at("floor_s")
        .get<double>();
  };
  EXPECT_LT(20 * compute_s({"--device", "cuda:0"}), compute_s({"--device", "cpu"}));
}

TEST_F(WithGpu, DoctorSaysWhetherThereIsCudnn) {
  EXPECT_THAT(with_gpu({"doctor"}).out, HasSubstr("9.19.0; used with TERRACE_ATTENTION=cudnn or faster"));
}

TEST_F(WithGpu, AClockOfEachRankDoesNotDecideWhoMakesAttention) {
  expect_refusal(with_gpu(tiny("train", {"--device", "cuda:0", "--dp", "2"}),
                          {{"TERRACE_ATTENTION", "faster"}, {"TERRACE_FAKE_GPUS", "2"}}),
                 2, {"TERRACE_ATTENTION=faster", "to own or cudnn"});
}

TEST_F(WithGpu, TheUsualBudgetLeavesRoomForWhatCudnnTakes) {
  const auto words = tiny("plan", {"--device", "cuda:0"});
  EXPECT_THAT(with_gpu(words, {{"TERRACE_ATTENTION", "own"}}).out, HasSubstr("device       2.00 GiB"));
  EXPECT_THAT(with_gpu(words, {{"TERRACE_ATTENTION", "cudnn"}}).out, HasSubstr("device       1.44 GiB"));
}

// Memory of other processes is not available, nor what NCCL will take: 384 MiB for the other GPU, and the buffer for sums.
TEST_F(WithGpu, TheUsualBudgetIsOfWhatIsFree) {
  const auto words = tiny("plan", {"--device", "cuda:0"}), two = tiny("plan", {"--device", "cuda:0", "--dp", "2"});
  EXPECT_THAT(with_gpu(words, {{"TERRACE_FAKE_GPU_FREE_MIB", "1536"}}).out, HasSubstr("device        512 MiB"));
  EXPECT_THAT(with_gpu(two, {{"TERRACE_FAKE_GPUS", "2"}}).out, HasSubstr("device       1.38 GiB"));
}

// The library is a fake, but it reads and writes the run's chunks.
TEST_F(WithGpu, DoctorSaysWhyThereIsNone) {
  const auto broken = with_gpu({"doctor", "--device", "cuda:0"}, {{"TERRACE_FAKE_DRIVER_ERROR", "803"}});
  EXPECT_EQ(4, broken.exit) << broken.described;
  EXPECT_THAT(broken.out, HasSubstr("the driver does not work: CUDA_ERROR_IMAGINARY (803)"));
  EXPECT_THAT(broken.out, HasSubstr("kernel log"));
}

TEST_F(WithGpu, AGpuWithoutAModuleIsWarnedOf) {
  std::filesystem::create_directory(at("module"));
  std::ofstream(at("module/terrace_cuda13.so")) << "no module";
  const auto outcome = succeeded(with_gpu({"doctor"}, {{"TERRACE_MODULE_PATH", at("module").string()}}));
  for (const auto* const part : {"but this build cannot use it", "terrace_cuda13.so", "TERRACE_MODULE_PATH", "nvcc"})
    EXPECT_THAT(outcome.out, HasSubstr(part));
}

// There is one module for each major version of CUDA; an older driver cannot run the newest one.
class WithModules : public WithGpu {
 protected:
  // A folder with modules that can be loaded, `good`, and others that cannot, `bad`.
  [[nodiscard]] std::string folder(const Words& good, const Words& bad) const {
    const auto modules = at("modules");
    fs::remove_all(modules);
    fs::create_directory(modules);
    for (const auto& name : good) fs::create_symlink(fs::path(TERRACE_FAKE_CUDA_FOLDER) / "terrace_cuda13.so", modules / name);
    for (const auto& name : bad) std::ofstream(modules / name) << "no module";
    return modules.string();
  }
  [[nodiscard]] Outcome doctor(const std::string& modules, const char* cuda_version) const {
    return with_gpu({"doctor", "--device", "cuda:0"},
                    {{"TERRACE_MODULE_PATH", modules}, {"TERRACE_FAKE_DRIVER_VERSION", cuda_version}});
  }
};

TEST_F(WithModules, TheDriverDecidesWhichOneRuns) {
  const struct {
    const char *driver, *good, *bad, *used;
  } cases[] = {{"12000", "terrace_cuda12.so", "terrace_cuda13.so", "the driver supports CUDA 12.0, used by terrace_cuda12"},
               {"12090", "terrace_cuda12.so", "terrace_cuda13.so", "the driver supports CUDA 12.9, used by terrace_cuda12"},
               {"13000", "terrace_cuda13.so", "terrace_cuda12.so", "the driver supports CUDA 13.0, used by terrace_cuda13"},
               {"14010", "terrace_cuda13.so", "terrace_cuda12.so", "the driver supports CUDA 14.1, used by terrace_cuda13"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.driver);
    const auto modules = folder({c.good}, {c.bad});
    const auto outcome = succeeded(doctor(modules, c.driver));
    EXPECT_THAT(outcome.out, HasSubstr(c.used));
    succeeded(with_gpu(tiny("train", {"--device", "cuda:0", "--out-dir", std::string("run_") + c.driver}),
                       {{"TERRACE_MODULE_PATH", modules}, {"TERRACE_FAKE_DRIVER_VERSION", c.driver}}));
    const auto other = doctor(folder({c.bad}, {c.good}), c.driver);
    EXPECT_EQ(4, other.exit) << "the other one was loaded";
  }
  // A single older module also runs with a newer driver.
  const auto alone = succeeded(doctor(folder({"terrace_cuda12.so"}, {}), "13000"));
  EXPECT_THAT(alone.out, HasSubstr("used by terrace_cuda12"));
}

TEST_F(WithModules, ADriverForNoneIsToldWhichItMustBe) {
  const auto expect = [&](const Words& here, const char* driver, const std::string& why, const std::string& mend) {
    const auto modules = folder(here, {});
    expect_refusal(with_gpu(tiny("train", {"--device", "cuda:0"}),
                            {{"TERRACE_MODULE_PATH", modules}, {"TERRACE_FAKE_DRIVER_VERSION", driver}}),
                   4, {why, mend});
    const auto report = doctor(modules, driver);
    EXPECT_EQ(4, report.exit) << report.described;
    EXPECT_THAT(report.out, AllOf(HasSubstr(why), HasSubstr(mend)));
  };
  expect(
      {"terrace_cuda13.so"}, "12040",
      "the driver version is insufficient (error 35): it supports CUDA 12.4, and terrace was built for CUDA 13 (driver 580 or "
      "newer)",
      "install NVIDIA driver 580 or newer, or build terrace with a toolkit of CUDA 12 (TERRACE_CUDA12_TOOLKIT)");
  expect({"terrace_cuda13.so"}, "11080", "it supports CUDA 11.8, and terrace was built for CUDA 13 (driver 580 or newer)",
         "install NVIDIA driver 580 or newer");
  expect({"terrace_cuda12.so", "terrace_cuda13.so"}, "11080",
         "it supports CUDA 11.8, and terrace was built for CUDA 13 (driver 580 or newer) and CUDA 12 (driver 525 or newer)",
         "install NVIDIA driver 525 or newer");
}

// The CPU's math runs as host work of the fake GPU's streams, so the bits equal the CPU device's.
TEST_F(WithGpu, ATrainingRunEndsWithTheWeightsOfTheCpuDevice) {
  const auto cpu = succeeded(train({"--out-dir", "on_cpu"}));
  for (const auto* const host_memory : {"unlimited", "1MiB"}) {
    std::filesystem::create_directories(at("disk"));
    const auto gpu =
        succeeded(with_gpu(tiny("train", {"--device", "cuda:0", "--out-dir", std::string("on_gpu_") + host_memory,
                                          "--device-memory", "1MiB", "--host-memory", host_memory, "--nvme-path", "disk"})));
    EXPECT_EQ(weights_of(cpu), weights_of(gpu)) << gpu.described;
  }
}

// The fake library of matrix products chooses an algorithm by its version, and the algorithm decides the bits.
class WithAlgorithms : public WithGpu {
 protected:
  [[nodiscard]] Outcome with_version(int version, const Words& more) const {
    return with_gpu(
        tiny("train", flags("--device cuda:0 --ckpt-interval 2 --machine-profile profile.json --resume auto") + more),
        {{"TERRACE_FAKE_CUBLAS", std::to_string(version)}});
  }
  // The weights at the end of a run in `out`.
  [[nodiscard]] std::string weights(int version, const std::string& out, const Words& more = {}) const {
    return weights_of(with_version(version, Words{"--out-dir", out} + more));
  }
  // A profile without algorithms.
  void write_profile() const {
    fs::remove(at("profile.json"));
    MachineProfile profile;
    profile.device = "cuda:0";
    save_profile(profile, at("profile.json"));
  }
  [[nodiscard]] nlohmann::json kept() const { return json_in("profile.json").value("algorithms", nlohmann::json::array()); }
};

TEST_F(WithAlgorithms, ARunEndsWithTheAlgorithmsItBeganWith) {
  write_profile();
  const auto first = weights(1, "first", {"--steps", "8"});
  const auto chosen = json_in("first/result.json").at("algorithms");
  ASSERT_GT(chosen.size(), 2U);
  EXPECT_EQ("library made up, version 1", chosen.at(0));

  write_profile();
  EXPECT_NE(first, weights(2, "second", {"--steps", "8"})) << "versions must differ, or nothing is shown";

  write_profile();
  (void)weights(1, "resumed", {"--steps", "4"});
  write_profile();
  ASSERT_EQ(0, terrace({"ckpt", "copy", "resumed", "copied"}).exit);
  EXPECT_EQ(first, weights(2, "resumed", {"--steps", "8"}));
  write_profile();
  EXPECT_EQ(first, weights(2, "copied", {"--steps", "8"})) << "a copy goes on as the run it is a copy of";
}

TEST_F(WithAlgorithms, TheMachineProfileKeepsThemForNewRuns) {
  write_profile();
  const auto first = weights(1, "first");
  const auto chosen = json_in("first/result.json").at("algorithms");
  EXPECT_EQ(chosen, kept());

  // As if the library had been tuned differently later: the profile's algorithm is used, and the profile stays unchanged.
  auto tuned = json_in("profile.json");
  for (auto& line : tuned.at("algorithms")) {
    auto text = line.get<std::string>();
    if (const auto words = text.find("words 0000000000000001"); words != std::string::npos) text[words + 21] = '3';
    line = text;
  }
  scratch_.write("profile.json", tuned.dump());
  const auto with_tuned = weights(1, "tuned");
  EXPECT_NE(first, with_tuned);
  EXPECT_EQ(tuned.at("algorithms"), kept());
  EXPECT_EQ(with_tuned, weights(1, "again"));

  // Another library cannot use these algorithms: it chooses again, and the profile then belongs to the new library.
  const auto second = weights(2, "second");
  EXPECT_EQ("library made up, version 2", kept().at(0));
  EXPECT_EQ(json_in("second/result.json").at("algorithms"), kept());
  EXPECT_EQ(second, weights(2, "second_again"));
}

TEST_F(WithAlgorithms, WithoutAProfileNothingIsKept) {
  succeeded(with_gpu(tiny("train", {"--device", "cuda:0"}),
                     {{"TERRACE_FAKE_CUBLAS", "1"}, {"XDG_CACHE_HOME", at("cache").string()}}));
  EXPECT_FALSE(fs::exists(at("cache")));
  EXPECT_TRUE(fs::exists(at("run/algorithms.txt")));
}

TEST_F(WithAlgorithms, ADamagedListIsRefused) {
  write_profile();
  (void)weights(1, "first");
  auto damaged = json_in("profile.json");
  damaged.at("algorithms").at(1) = "matmul of nothing";
  scratch_.write("profile.json", damaged.dump());
  expect_refusal(with_version(1, {"--out-dir", "second"}), 5, {"matmul of nothing", "machine profile", "damaged"});
  damaged["algorithms"] = 3;
  scratch_.write("profile.json", damaged.dump());
  expect_refusal(with_version(1, {"--out-dir", "third"}), 2, {"profile.json", "not a list of strings"});
}

// One GPU per rank, with a fake NCCL between them: sums on the devices have the same order as on the host.
TEST_F(WithGpu, RanksOnGpusEndWithTheWeightsOfOneRank) {
  const Words settings{"--canonical-reduction", "--recipe", "fp32"};
  const auto train_on = [&](int gpus, const Words& more) {
    return with_gpu(tiny("train", settings) + more, {{"TERRACE_FAKE_GPUS", std::to_string(gpus)}});
  };
  const auto one = succeeded(train_on(1, {"--device", "cuda:0", "--grad-accumulation", "4", "--out-dir", "one"}));
  std::filesystem::create_directories(at("disk"));
  for (const auto* const zero : {"0", "1", "2", "3"}) {
    const auto run = std::string("zero") + zero;
    const auto many =
        succeeded(train_on(3, {"--device", "cuda:1", "--dp", "2", "--grad-accumulation", "2", "--zero", zero, "--out-dir", run,
                               "--device-memory", "1MiB", "--host-memory", "2MiB", "--nvme-path", "disk"}));
    EXPECT_EQ(weights_of(one), weights_of(many)) << run;
    EXPECT_EQ(steps("one"), steps(run)) << run;
  }
  expect_refusal(train_on(2, {"--device", "cuda:1", "--dp", "2", "--out-dir", "none"}), 4,
                 {"2 ranks of this machine need a GPU each, from cuda:1 on, but the machine has 2"});
}

// The fake NCCL adds parts of sums, and special kernels add parts of a vocabulary.
TEST_F(WithGpu, TensorRanksOnGpusTrainWhatOneRankTrains) {
  const auto train_on = [&](const std::string& run, const Words& more) {
    const auto outcome = succeeded(with_gpu(
        tiny("train", Words{"--recipe", "fp32", "--heads", "4", "--device", "cuda:0", "--steps", "2", "--out-dir", run} + more),
        {{"TERRACE_FAKE_GPUS", "2"}}));
    return outcome;
  };
  train_on("one", {});
  const auto two = train_on("two", {"--tp", "2"}), rows = train_on("rows", {"--tp", "2", "--sp"});
  EXPECT_EQ(weights_of(two), weights_of(rows));
  const auto expected = steps("one"), found = steps("two");
  ASSERT_EQ(expected.size(), found.size());
  for (std::size_t s = 0; s < expected.size(); ++s) EXPECT_NEAR(expected[s].loss, found[s].loss, 2e-5 * expected[s].loss);
}

// Data sent in fewer bits is packed, summed and unpacked on the GPUs, with the same bits as between ranks on the host.
TEST_F(WithGpu, RanksOnGpusSendInFewerBitsAsRanksOnTheHostDo) {
  const std::vector<Words> ways{{"--compress-gradients", "bf16"},
                                {"--compress-gradients", "int8", "--compress-weights", "int8"}};
  for (const auto& way : ways) {
    const auto train_on = [&](const char* device, const std::string& run) {
      return with_gpu(tiny("train", {"--recipe", "bf16", "--dp", "2", "--zero", "3", "--grad-accumulation", "2", "--device",
                                     device, "--out-dir", run}) +
                          way,
                      {{"TERRACE_FAKE_GPUS", "2"}});
    };
    const auto name = way[1];
    const auto host = succeeded(train_on("cpu", name + "-host")), gpus = succeeded(train_on("cuda:0", name + "-gpus"));
    EXPECT_EQ(weights_of(host), weights_of(gpus)) << name;
    EXPECT_EQ(steps(name + "-host"), steps(name + "-gpus")) << name;
  }
}

TEST_F(WithGpu, BenchPcieMeasuresEveryWayOverTheLink) {
  std::filesystem::create_directory(at("disk"));
  const auto object = nlohmann::json::parse(
      succeeded(with_gpu({"bench", "pcie", "--size", "1MiB", "--runs", "3", "--disk", "disk", "--disk-size", "9MiB", "--json"}))
          .out);
  EXPECT_EQ("Imaginary H0", object.at("machine").at("gpu"));
  std::map<std::string, int> figures;  // "upload pinned 65536" → how many
  for (const auto& r : object.at("results")) {
    const auto op = r.at("op").get<std::string>();
    ++figures[r.contains("host_memory")
                  ? fmt::format("{} {} {}", op, r.at("host_memory").get<std::string>(), r.at("copy_bytes").get<std::uint64_t>())
                  : op];
    EXPECT_GT(r.contains("latency_us") ? r.at("latency_us").get<double>() : r.at("gb_per_s").get<double>(), 0) << r;
    EXPECT_EQ(3, r.at("runs"));
    if (op.find("_beside_") == std::string::npos) continue;
    const auto other = op.ends_with("product") ? "other_gflop_per_s" : "other_gb_per_s";
    for (const auto* const key : {"share", other, "other_share"}) EXPECT_GT(r.at(key).get<double>(), 0) << r;
  }
  // The names of nvbandwidth's tests, only where the method is the same.
  std::set<std::string> theirs;
  for (const auto& r : object.at("results"))
    if (r.contains("nvbandwidth"))
      theirs.insert(fmt::format("{} {}", r.at("op").get<std::string>(), r.at("nvbandwidth").get<std::string>()));
  EXPECT_EQ((std::set<std::string>{"upload host_to_device_memcpy_ce", "download device_to_host_memcpy_ce",
                                   "upload_beside_download host_to_device_bidirectional_memcpy_ce",
                                   "download_beside_upload device_to_host_bidirectional_memcpy_ce",
                                   "kernel_read host_to_device_memcpy_sm", "kernel_write device_to_host_memcpy_sm",
                                   "kernel_read_beside_kernel_write host_to_device_bidirectional_memcpy_sm",
                                   "kernel_write_beside_kernel_read device_to_host_bidirectional_memcpy_sm"}),
            theirs);
  for (const auto& r : object.at("results"))
    if (r.contains("nvbandwidth")) {
      EXPECT_EQ("pinned", r.at("host_memory")) << r;
    }
  const int nodes = read_topology().numa_nodes;
  std::map<std::string, int> wanted;
  for (const auto* const op : {"device_copy", "launch", "launch_and_wait", "hand_off", "disk_to_host", "disk_to_device",
                               "host_to_disk", "device_to_disk", "disk_to_device_beside_device_to_disk"})
    wanted[op] = 1;
  for (const auto* const pair :
       {"upload_beside_download", "download_beside_upload", "upload_beside_update", "download_beside_update",
        "upload_beside_product", "download_beside_product", "upload_beside_disk_read", "download_beside_disk_read",
        "kernel_read", "kernel_write", "kernel_read_beside_kernel_write", "kernel_write_beside_kernel_read"})
    wanted[fmt::format("{} pinned {}", pair, 1 << 20)] = 1;
  for (const auto* const op : {"upload", "download", "both"})
    for (const auto* const memory : {"pinned", "pageable"})
      for (const int bytes : {65536, 1 << 20}) wanted[fmt::format("{} {} {}", op, memory, bytes)] = nodes;
  EXPECT_EQ(wanted, figures);
  EXPECT_TRUE(std::filesystem::is_empty(at("disk")));
}

// Rows of the one GPU, and of all of them at once.
TEST_F(WithGpu, BenchPcieMeasuresAllGpusAtOnce) {
  const auto object =
      nlohmann::json::parse(succeeded(with_gpu({"bench", "pcie", "--gpu", "1", "--size", "64KiB", "--runs", "3", "--json"},
                                               {{"TERRACE_FAKE_GPUS", "2"}}))
                                .out);
  EXPECT_EQ("Imaginary H1", object.at("machine").at("gpu"));
  std::set<std::string> found;
  for (const auto& r : object.at("results"))
    if (r.contains("gpu")) found.insert(fmt::format("{} {}", r.at("op").get<std::string>(), r.at("gpu").get<std::string>()));
  std::set<std::string> wanted;
  for (const auto* const op :
       {"upload_to_all", "download_from_all", "upload_to_all_beside_download", "download_from_all_beside_upload"})
    for (const auto* const gpu : {"cuda:0", "cuda:1", "all"}) wanted.insert(fmt::format("{} {}", op, gpu));
  EXPECT_EQ(wanted, found);
}

TEST_F(WithGpu, BenchPcieRefusesWhatIsNotThere) {
  expect_refusal(with_gpu({"bench", "pcie", "--gpu", "3", "--runs", "3"}), 4,
                 {"cuda:3 does not exist", "CUDA_VISIBLE_DEVICES"});
  expect_refusal(with_gpu({"bench", "pcie", "--disk", "nowhere"}), 2, {"nowhere", "does not exist"});
}

}  // namespace
}  // namespace terrace::test
