// Presets named after tasks: each fits its machine, and a user's own settings override it.
#include <map>
#include <sstream>

#include <nlohmann/json.hpp>

#include <terrace/core/base/text_file.h>
#include <terrace/core/base/units.h>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// "gpu-24gb", from the machine line in the file's comment.
std::string machine_in(const std::string& text) {
  const std::string begin = "\n# Machine: ";
  const auto at = text.find(begin);
  return at == std::string::npos ? "" : text.substr(at + begin.size(), text.find('\n', at + 1) - at - begin.size());
}

// All presets and their machines; empty: any machine.
std::map<std::string, std::string> all_presets() {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::directory_iterator(TERRACE_PRESETS))
    all[entry.path().stem()] = machine_in(read_text_file(entry.path()));
  return all;
}

class NamedPresets : public Cli {
 protected:
  [[nodiscard]] json settings(const Words& more) const {
    return json::parse(succeeded(terrace(Words{"config", "--json"} + more)).out);
  }
};

TEST_F(NamedPresets, FitTheirMachinesAndAreBoundByComputing) {
  constexpr double kWithDisk = 1.5;
  std::size_t planned = 0;
  for (const auto& [preset, machine] : all_presets()) {
    if (machine.empty()) continue;
    ++planned;
    const auto plan = json::parse(succeeded(terrace({"plan", "--preset", preset, "--cluster-profile", machine, "--json"})).out);
    EXPECT_TRUE(plan.at("fits").get<bool>());
    const auto memory = settings({"--preset", preset}).at("memory");
    for (const auto& [tier, flag] : {std::pair("device", "device-memory"), {"host", "host-memory"}}) {
      const std::string budget = memory.at(flag);
      if (budget == "auto") continue;
      EXPECT_LE(plan.at("peak_bytes").at(tier).get<std::uint64_t>(), parse_bytes(budget)) << preset << ", " << tier;
    }
    if (memory.at("nvme-path").empty()) {
      EXPECT_EQ("compute", plan.at("binding")) << preset;
      EXPECT_EQ(0, plan.at("peak_bytes").at("nvme")) << preset;
    } else {  // a disk slower than the card cannot be hidden completely
      EXPECT_LT(plan.at("step_time_s").get<double>(), kWithDisk * plan.at("floor_s").get<double>()) << preset;
    }
  }
  EXPECT_GE(planned, 5U);
}

// The driver and the libraries take 1 GiB, and a card has less memory than its name says.
TEST_F(NamedPresets, LeaveRoomOnTheCard) {
  const std::map<std::string, std::uint64_t> cards{{"gpu-24gb", 24 * kGiB}, {"gpu-80gb", 80 * kGiB}};
  for (const auto& [preset, machine] : all_presets()) {
    if (!cards.contains(machine)) continue;
    const std::string budget = settings({"--preset", preset}).at("memory").at("device-memory");
    if (budget != "auto") {
      EXPECT_LE(parse_bytes(budget), cards.at(machine) / 100 * 95) << preset;
    }
  }
}

TEST_F(NamedPresets, StandBelowAllThatIsGiven) {
  ASSERT_EQ(0, train({"--seq-len", "32", "--dtype", "bf16", "--steps", "1"}).exit);
  ASSERT_EQ(0, terrace({"ckpt", "export", "run", "model"}).exit);
  scratch_.write("mine.toml", "grad-accumulation = 3\nlora-rank = 5\nlora-alpha = 7\n");
  const auto all = settings(flags("--lora-rank 6 --preset lora-8b-24gb --set lora-alpha=8 --config mine.toml --model model"));
  const auto &model = all.at("model"), &of_training = all.at("train");
  EXPECT_EQ(64, model.at("hidden")) << "the directory's";
  EXPECT_EQ(false, model.at("untied"));
  EXPECT_EQ(32, model.at("seq-len")) << "no more than the directory's";
  EXPECT_EQ("model", model.at("init-from"));
  EXPECT_EQ(3, of_training.at("grad-accumulation")) << "the file's";
  EXPECT_EQ(8, of_training.at("lora-alpha")) << "that of --set";
  EXPECT_EQ(6, of_training.at("lora-rank")) << "the flag's";
  EXPECT_EQ("all", of_training.at("lora-targets")) << "the preset's";
  EXPECT_EQ("22GiB", all.at("memory").at("device-memory"));
  EXPECT_EQ(4096, settings({"--preset", "lora-8b-24gb"}).at("model").at("hidden")) << "without a directory";
  // Of steps and epochs, the one with the higher priority counts.
  EXPECT_EQ(1, settings({"--preset", "lora-8b-24gb"}).at("train").at("epochs"));
  EXPECT_EQ(0, settings({"--preset", "lora-8b-24gb", "--steps", "7"}).at("train").at("epochs"));
  EXPECT_EQ(7, settings({"--preset", "lora-8b-24gb", "--steps", "7"}).at("train").at("steps"));
}

// A run keeps the values, so it continues without the preset's name.
TEST_F(NamedPresets, ARunKeepsTheValues) {
  ASSERT_EQ(0, train({"--seq-len", "32", "--steps", "1"}).exit);
  ASSERT_EQ(0, terrace({"ckpt", "export", "run", "model"}).exit);
  const Words of_tests =
      flags("--data corpus.txt --data-format bytes --device-memory 8MiB --host-memory 8MiB --assumed-costs --lr 1e-4");
  const auto by_name = succeeded(
      terrace(Words{"train", "--preset", "lora-1b-cpu", "--model", "model", "--steps", "2", "--out-dir", "a"} + of_tests));
  const auto by_flags = terrace(flags("train --model model --steps 2 --out-dir b --device cpu --dtype fp32 --batch-size 1 "
                                      "--grad-accumulation 8 --lora-rank 16 --lora-alpha 32 --lora-targets all") +
                                of_tests);
  EXPECT_EQ(weights_of(by_name), weights_of(by_flags)) << by_flags.described;
  EXPECT_THAT(scratch_.read("a/config.toml"), AllOf(HasSubstr("lora-rank = 16"), HasSubstr("grad-accumulation = 8")));
  EXPECT_EQ(0, terrace({"train", "--resume", "a", "--steps", "3"}).exit);
  expect_refusal(terrace({"train", "--resume", "a", "--preset", "lora-1b-cpu"}), 2, {"--preset lora-1b-cpu", "--resume"});
}

TEST_F(NamedPresets, MistakesAreNamed) {
  expect_refusal(terrace({"plan", "--preset", "lora-8b-24g"}), 2,
                 {"--preset lora-8b-24g", "did you mean lora-8b-24gb?", "pretrain-124m", "terrace help presets"});
  expect_refusal(terrace({"plan", "--preset", ""}), 2, {"--preset", "lora-8b-24gb"});
  expect_refusal(terrace({"train", "--preset", "lora-8b-24gb", "--data", "corpus.txt"}), 2,
                 {"--preset lora-8b-24gb", "--model DIR"});
  expect_refusal(terrace({"plan", "--preset", "lora-8b-24gb", "--cluster-profile", "cpu-64gb"}), 2,
                 {"--device cuda:0", "its CPU"});
  expect_refusal(terrace({"generate", "run", "--preset", "fsdp"}), 2, {"unknown flag --preset"});
}

TEST_F(NamedPresets, AreListedWithALineEach) {
  const auto list = terrace({"help", "presets"}).out;
  EXPECT_EQ(list, terrace({"plan", "--preset", "help"}).out);
  EXPECT_EQ(list, terrace({"train", "--preset", "help"}).out);
  const auto man = terrace({"man"}).out, help = terrace({"train", "--help"}).out;
  for (const auto& [preset, machine] : all_presets()) {
    std::istringstream lines(list);
    std::size_t times = 0;
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  " + preset + " ")) continue;
      ++times;
      EXPECT_LE(line.size(), 80U) << line;
      EXPECT_GT(line.size(), preset.size() + 15) << line;
    }
    EXPECT_EQ(1U, times) << preset;
    std::string in_man = preset;
    for (std::size_t at = 0; (at = in_man.find('-', at)) != std::string::npos; at += 2) in_man.insert(at, "\\");
    EXPECT_THAT(man, HasSubstr(in_man));
    EXPECT_THAT(help, HasSubstr(preset));
  }
}

// Without a GPU, the output says that the plan is for the preset's machine.
TEST_F(NamedPresets, ArePlannedForTheirMachineWhereThereIsNoGpu) {
  const Words small{"plan", "--preset", "full-1b-24gb", "--layers", "2"};
  const auto there = succeeded(terrace(small));
  EXPECT_THAT(there.out, HasSubstr("--cluster-profile gpu-24gb (that of the preset: no GPU was found here)"));
  EXPECT_EQ("gpu-24gb", json::parse(terrace(small + Words{"--json"}).out).at("cluster_profile"));
  const auto here = succeeded(terrace(small + Words{"--device", "cpu", "--device-memory", "2GiB", "--assumed-costs"}));
  EXPECT_THAT(here.out, Not(HasSubstr("--cluster-profile")));
}

}  // namespace
}  // namespace terrace::test
