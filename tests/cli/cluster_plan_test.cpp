// A run on a cluster that is not here, planned as its user asks for it.
#include <nlohmann/json.hpp>

#include "cli_test.h"

namespace terrace::test {
namespace {

class ClusterPlan : public Cli {
 protected:
  [[nodiscard]] static Words plan(const Words& more) {
    Words words{"plan",
                "--cluster-profile",
                TERRACE_CLUSTERS "/dgx2.toml",
                "--model",
                "gpt2",
                "--dtype",
                "bf16",
                "--recompute",
                "layer",
                "--zero",
                "3",
                "--vocab",
                "50304",
                "--seq-len",
                "1024",
                "--layers",
                "96",
                "--hidden",
                "12288",
                "--heads",
                "96"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

TEST_F(ClusterPlan, A175BModelOn1024Ranks) {
  const auto outcome = terrace(plan({"--nodes", "64", "--batch-size", "8", "--json"}));
  ASSERT_EQ(0, outcome.exit) << outcome.described;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_TRUE(json.at("fits").get<bool>());
  const auto parameters = json.at("parameters").get<double>();
  EXPECT_NEAR(parameters, 175e9, 1e9);
  // bf16 weights, their fp32 gradients, masters and two moments, on a 1,024th each.
  EXPECT_NEAR(json.at("state_bytes").get<double>(), 18 * parameters / 1024, 0.02 * 18 * parameters / 1024);
  EXPECT_LE(json.at("peak_bytes").at("device").get<double>(), 32e9 * 1.074);
  // Weights twice, gradients once: of each, what the 15 neighbours hold, and a 16th of what other nodes hold.
  const double sent = 2 * 2 * parameters + 4 * parameters;
  EXPECT_NEAR(json.at("link_bytes").at("within").get<double>(), sent * 15 / 16, 0.02 * sent);
  EXPECT_NEAR(json.at("link_bytes").at("between").get<double>(), sent * 63 / 64 / 16, 0.02 * sent / 16);
  EXPECT_GE(json.at("step_time_s").get<double>(), json.at("floor_s").get<double>());
  EXPECT_LT(json.at("model_flop_s").get<double>(), 7e13);
}

TEST_F(ClusterPlan, RefusalsNameFileKeyAndMend) {
  expect_refusal(terrace(plan({"--gpus-per-node", "17"})), 2, {"--gpus-per-node 17", "has 16"});
  expect_refusal(terrace(plan({"--nodes", "0"})), 2, {"--nodes", "from 1"});
  expect_refusal(terrace(plan({"--nodes", "2", "--dp", "3"})), 2, {"--dp 3", "give --dp 32"});
  expect_refusal(terrace(plan({"--nodes", "1", "--batch-size", "64"})), 3, {"does not fit", "lower --batch-size"});
  scratch_.write("half.toml", "[gpu]\nmemory = \"32GiB\"\n");
  expect_refusal(terrace({"plan", "--cluster-profile", "half.toml"}), 2, {"half.toml", "gpu.matmul-bf16-flop-s is missing"});
  expect_refusal(terrace({"plan", "--cluster-profile", "none.toml"}), 2, {"none.toml", "No such file"});
  expect_refusal(terrace({"plan", "--nodes", "2"}), 2, {"--nodes", "--cluster-profile"});
}

}  // namespace
}  // namespace terrace::test
