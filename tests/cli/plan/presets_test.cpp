// Presets named after papers are only settings: runs with them end with the same weights as runs without them.
#include <map>

#include <nlohmann/json.hpp>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

class Presets : public Cli {
 protected:
  [[nodiscard]] static std::string file(const std::string& preset) {
    return (fs::path(TERRACE_PRESETS) / (preset + ".toml")).string();
  }
  [[nodiscard]] Outcome train_with(const Words& settings, const std::string& run) const {
    return train(Words{"--steps", "4", "--canonical-reduction", "--out-dir", run} + settings);
  }
};

TEST_F(Presets, AreSettings) {
  const std::map<std::string, Words> settings{
      {"fsdp", {"--zero", "3"}},
      {"zero-offload", {"--zero", "2", "--update", "host"}},
      {"zero-infinity", {"--zero", "3", "--update", "host", "--recompute", "layer", "--nvme-path", "nvme"}},
      {"patrickstar", {"--zero", "3", "--grad-clip", "0", "--deferred-updates", "none"}}};
  for (const auto& [preset, flags] : settings) {
    auto words = flags;
    words.insert(words.begin(), "config");
    const auto given = succeeded(terrace(words));
    for (const auto& way : {Words{"--config", file(preset)}, Words{"--preset", preset}}) {
      const auto taken = succeeded(terrace(Words{"config"} + way));
      EXPECT_EQ(given.out, taken.out) << preset;
    }
  }
}

TEST_F(Presets, EndInTheWeightsOfOneRank) {
  fs::create_directory(at("nvme"));
  const auto one = train_with({"--grad-accumulation", "4"}, "one");
  const auto unclipped = train_with({"--grad-accumulation", "4", "--grad-clip", "0"}, "unclipped");
  ASSERT_EQ(0, one.exit) << one.described;
  ASSERT_EQ(0, unclipped.exit) << unclipped.described;
  for (const auto* const preset : {"fsdp", "zero-offload", "zero-infinity", "patrickstar"}) {
    const auto many = succeeded(train_with({"--config", file(preset), "--dp", "2", "--grad-accumulation", "2"}, preset));
    EXPECT_EQ(weights_of(std::string(preset) == "patrickstar" ? unclipped : one), weights_of(many)) << preset;
  }
}

// Each preset's known properties, in the plan of a run that does not fit into the device: where updates run and which links
// carry what.
TEST_F(Presets, DoWhatTheyAreNamedFor) {
  const auto planned = [&](const std::string& preset, const Words& more) {
    return nlohmann::json::parse(
        succeeded(terrace(tiny("plan", Words{"--config", file(preset), "--dp", "2", "--json"} + more))).out);
  };
  const auto resident = planned("fsdp", {});
  EXPECT_EQ(resident["bytes"]["h2d"], 0);
  EXPECT_GT(resident["link_bytes"]["within"].get<double>(), 0);
  const auto offload = planned("zero-offload", {});
  EXPECT_EQ(offload["update"], "host");
  EXPECT_GT(offload["bytes"]["h2d"].get<std::uint64_t>(), 0U);
  const auto smallest = planned("zero-infinity", {})["smallest_bytes"];
  const auto budget = [&](const char* tier, std::uint64_t times, std::uint64_t more) {
    return std::to_string(smallest[tier].get<std::uint64_t>() * times + more);
  };
  const auto infinity = planned("zero-infinity", {"--device-memory", budget("device", 1, 131072), "--host-memory",
                                                  budget("host", 6, 262144)});  // of both ranks together
  EXPECT_GT(infinity["bytes"]["read"].get<std::uint64_t>(), 0U);
  EXPECT_GT(infinity["bytes"]["write"].get<std::uint64_t>(), 0U);
}

}  // namespace
}  // namespace terrace::test
