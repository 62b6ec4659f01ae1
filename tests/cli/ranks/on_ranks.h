// Shared by tests of runs on several ranks: the words that start them as threads and as processes.
#pragma once

#include <algorithm>
#include <fstream>
#include <string>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {

class Ranks : public Cli {
 protected:
  // Eight micro-batches per step for degrees that divide them, six for three ranks.
  [[nodiscard]] Words on(int ranks, int zero, const std::string& run, const Words& more = {}) const {
    Words words{"--grad-accumulation",
                std::to_string(8 / ranks),
                "--zero",
                std::to_string(zero),
                "--canonical-reduction",
                "--out-dir",
                run};
    if (std::ranges::find(more, "--steps") == more.end()) words.insert(words.end(), {"--steps", "5"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  [[nodiscard]] Words threads(int ranks, int zero, const std::string& run, const Words& more = {}) const {
    return on(ranks, zero, run, more) + Words{"--dp", std::to_string(ranks)};
  }
  // The largest needs of any rank, at least and in full, from the JSON of `terrace plan`.
  struct Needs {
    std::uint64_t least_device = 1, device = 1, least_host = 1, state = 1;
    static std::uint64_t between(std::uint64_t least, std::uint64_t most, double share) {
      return least + static_cast<std::uint64_t>(static_cast<double>(std::max(most, least) - least) * share);
    }
  };
  [[nodiscard]] static Needs needs_of(const nlohmann::json& plan) {
    Needs needs;
    for (const auto& rank : plan.contains("ranks") ? plan.at("ranks") : nlohmann::json::array({plan})) {
      const auto most = [](std::uint64_t& bytes, const nlohmann::json& of) {
        bytes = std::max(bytes, of.get<std::uint64_t>());
      };
      most(needs.least_device, rank.at("smallest_bytes").at("device"));
      most(needs.device, rank.at("peak_bytes").at("device"));
      most(needs.least_host, rank.at("smallest_bytes").at("host"));
      most(needs.state, rank.at("state_bytes"));
    }
    return needs;
  }
  // Two runs must agree within rounding. Held-out losses are compared where both have them, because a stopped run has more.
  void expect_near(const std::string& one, const std::string& other, double tolerance = 2e-5) {
    const auto a = steps(one), b = steps(other);
    ASSERT_EQ(a.size(), b.size()) << other;
    ASSERT_FALSE(a.empty());
    EXPECT_TRUE(a.back().held_out && b.back().held_out) << other;
    for (std::size_t s = 0; s < a.size(); ++s) {
      EXPECT_NEAR(a[s].loss, b[s].loss, tolerance * a[s].loss) << other << ", step " << a[s].step;
      EXPECT_NEAR(a[s].gradient_norm, b[s].gradient_norm, 10 * tolerance * a[s].gradient_norm) << other;
      if (a[s].held_out && b[s].held_out) {
        EXPECT_NEAR(*a[s].held_out, *b[s].held_out, tolerance * *a[s].held_out) << other;
      }
    }
  }
  // Damages a part of rank 1's second moments in a folder of stores and returns the chunk's entry in the store's index; null if
  // there is none.
  [[nodiscard]] nlohmann::json damage_second_moment(const std::string& folder) const {
    std::filesystem::path store;
    for (const auto& entry : std::filesystem::directory_iterator(at(folder)))
      if (entry.path().filename().string().ends_with("-rank1")) store = entry.path();
    if (store.empty()) return {};
    const auto index = nlohmann::json::parse(std::ifstream(store / "index.1.json"));
    nlohmann::json last;
    for (const auto& chunk : index.at("chunks"))
      if (chunk.at("label").get<std::string>().starts_with("second moment")) last = chunk;
    if (!last.is_null())
      std::fstream(store / "data", std::ios::in | std::ios::out | std::ios::binary)
          .seekp(last.at("offset").get<std::int64_t>())
          .write(std::string(64, 'x').data(), 64);
    return last;
  }
#ifdef TERRACE_MPIRUN
  // Processes of the launcher, each of which is a rank.
  [[nodiscard]] Launch apart(int ranks, const Words& words) const {
    auto launched = launch(Words{"launch", "-n", std::to_string(ranks), "--mpirun", TERRACE_MPIRUN, "--"} + words);
    launched.environment["ASAN_OPTIONS"] = "detect_leaks=0";  // Open MPI does not free all memory before the process ends
    return launched;
  }
  [[nodiscard]] Launch processes(int ranks, int zero, const std::string& run, const Words& more = {}, int pp = 1) const {
    return apart(ranks * pp, tiny("train", on(ranks, zero, run, more)));
  }
  // The two ranks of processes(), started directly by mpirun.
  [[nodiscard]] static Launch without_launch(Launch launched, const Words& more = {}) {
    launched.program = TERRACE_MPIRUN;
    auto& words = launched.arguments;
    const Words own = more + Words{"-n", "2", "--bind-to", "none", "--oversubscribe", "--allow-run-as-root", TERRACE_PROGRAM};
    words.erase(words.begin(), std::ranges::find(words, "--") + 1);
    words.insert(words.begin(), own.begin(), own.end());
    return launched;
  }
  // Two ranks, each with its own words. (Debian 13's mpirun crashes if it gets two programs.)
  [[nodiscard]] Launch one_by_one(const Words& first, const Words& second,
                                  const std::string& environment_of_second = "") const {
    const auto quoted = [](const Words& words) {
      std::string all = TERRACE_PROGRAM;
      for (const auto& word : words) all += " '" + word + "'";
      return all;
    };
    const auto script = "if [ \"$OMPI_COMM_WORLD_RANK\" = 0 ]; then exec " + quoted(first) + "; else exec env " +
                        environment_of_second + " " + quoted(second) + "; fi";
    auto started = launch({"--bind-to", "none", "--oversubscribe", "--allow-run-as-root", "-n", "2", "sh", "-c", script});
    started.program = TERRACE_MPIRUN;
    started.environment["ASAN_OPTIONS"] = "detect_leaks=0";
    return started;
  }
#endif
};

}  // namespace terrace::test
