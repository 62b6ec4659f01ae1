// A plan of a run on a cluster that is not present, with a user's command line.
#include <nlohmann/json.hpp>
#include <regex>

#include <terrace/core/base/text_file.h>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

class ClusterPlan : public Cli {
 protected:
  [[nodiscard]] static Words plan(const Words& more) {
    return Words{"plan", "--cluster-profile", TERRACE_CLUSTERS "/dgx2.toml"} +
           flags(
               "--model gpt2 --dtype bf16 --recompute layer --zero 3 --vocab 50304 --seq-len 1024 --layers 96 --hidden 12288 "
               "--heads 96") +
           more;
  }
};

TEST_F(ClusterPlan, A175BModelOn1024Ranks) {
  const auto json = nlohmann::json::parse(succeeded(terrace(plan({"--nodes", "64", "--batch-size", "8", "--json"}))).out);
  EXPECT_TRUE(json.at("fits").get<bool>());
  const auto parameters = json.at("parameters").get<double>();
  EXPECT_NEAR(parameters, 175e9, 1e9);
  // Each rank has a 1,024th of bf16 weights, fp32 gradients, masters and two moments.
  EXPECT_NEAR(json.at("state_bytes").get<double>(), 18 * parameters / 1024, 0.02 * 18 * parameters / 1024);
  EXPECT_LE(json.at("peak_bytes").at("device").get<double>(), 32e9 * 1.074);
  // Weights are sent twice, gradients once: in each case the parts of the 15 neighbours, and a 16th of the other nodes' parts.
  const double sent = 2 * 2 * parameters + 4 * parameters;
  EXPECT_NEAR(json.at("link_bytes").at("within").get<double>(), sent * 15 / 16, 0.02 * sent);
  EXPECT_NEAR(json.at("link_bytes").at("between").get<double>(), sent * 63 / 64 / 16, 0.02 * sent / 16);
  EXPECT_GE(json.at("step_time_s").get<double>(), json.at("floor_s").get<double>());
  EXPECT_LT(json.at("model_flop_s").get<double>(), 7e13);
}

// A plan counts the sums that a run with these settings computes.
TEST_F(ClusterPlan, SumsAreThoseOfTheRun) {
  const auto planned = [&](const Words& more) {
    const auto outcome = succeeded(terrace(Words{"plan", "--cluster-profile", TERRACE_CLUSTERS "/dgx2.toml"} +
                                           flags("--json --layers 4 --hidden 2048 --heads 4 --vocab 512 --seq-len 128 "
                                                 "--batch-size 2 --nodes 4 --gpus-per-node 4 --zero 3") +
                                           more));
    return nlohmann::json::parse(outcome.out);
  };
  const auto by_machine = planned({}), by_rank = planned({"--sum-order", "ranks"}),
             canonical = planned({"--canonical-reduction"});
  const auto order = [](const nlohmann::json& plan) { return plan.at("sum_order").get<std::string>(); };
  EXPECT_EQ(order(by_machine), "machines");
  EXPECT_EQ(order(by_rank), "ranks");
  EXPECT_EQ(order(canonical), "ranks");
  const auto between = [](const nlohmann::json& plan) { return plan.at("link_bytes").at("between").get<double>(); };
  const auto seconds = [](const nlohmann::json& plan) { return plan.at("communication").at("seconds").get<double>(); };
  // By ranks, gradients cross a node's link once per rank instead of once per node; gathered weights cross once in any case.
  EXPECT_GT(between(by_rank), 1.5 * between(by_machine));
  EXPECT_DOUBLE_EQ(between(by_rank), between(canonical));
  EXPECT_GT(seconds(by_rank), seconds(by_machine));
  expect_refusal(terrace(plan({"--nodes", "2", "--ranks-per-machine", "3"})), 2, {"--ranks-per-machine 3", "16 ranks"});
  auto text = read_text_file(TERRACE_CLUSTERS "/dgx2.toml");
  scratch_.write("sums.toml", text + "sums = \"once a node\"\n");
  expect_refusal(terrace({"plan", "--cluster-profile", "sums.toml"}), 2,
                 {"links.sums", "--sum-order", "--canonical-reduction"});
}

// Two ranks, one micro-batch, layer by layer: the activation crosses the link once, and its gradient comes back; no rank
// computes in the meantime.
TEST_F(ClusterPlan, AMessageOfAPipelineCrossesTheLinkBetweenItsRanks) {
  const auto text = read_text_file(TERRACE_CLUSTERS "/dgx2.toml");
  const std::regex rate("between-bytes-s *= *[^ \n]+");
  ASSERT_TRUE(std::regex_search(text, rate));
  const double slow = 1e6;
  scratch_.write("slow.toml", std::regex_replace(text, rate, "between-bytes-s = 1e6"));
  const auto planned = [&](const Words& where) {
    auto words =
        flags(
            "plan --cluster-profile slow.toml --json --model gpt2 --dtype bf16 --layers 4 --hidden 256 --heads 4 --vocab 512 "
            "--seq-len 128 --batch-size 2 --pp 2 --schedule layerwise") +
        where;
    return nlohmann::json::parse(succeeded(terrace(words)).out);
  };
  const auto across = planned({"--nodes", "2", "--gpus-per-node", "1"}), within = planned({"--gpus-per-node", "2"});
  const double message = 2 * 128 * 256 * 2;  // bf16
  for (const auto& rank : across.at("ranks")) {
    EXPECT_EQ(0, rank.at("link_bytes").at("within").get<double>());
    EXPECT_GE(rank.at("link_bytes").at("between").get<double>(), message);
  }
  for (const auto& rank : within.at("ranks")) {
    EXPECT_GE(rank.at("link_bytes").at("within").get<double>(), message);
    EXPECT_EQ(0, rank.at("link_bytes").at("between").get<double>());
  }
  const auto slower = across.at("step_time_s").get<double>() - within.at("step_time_s").get<double>();
  EXPECT_NEAR(slower, 2 * message / slow, 0.01 * message / slow);
  EXPECT_GE(across.at("step_with_moves_s").get<double>() - within.at("step_with_moves_s").get<double>(),
            2 * message / slow * 0.99);
  // Two data ranks of each stage share the link of their node.
  const auto shared = planned({"--nodes", "2", "--gpus-per-node", "2", "--dp", "2", "--zero", "1"});
  EXPECT_GE(shared.at("step_time_s").get<double>(), 4 * message / slow);
  expect_refusal(terrace({"plan", "--cluster-profile", "slow.toml", "--nodes", "2", "--gpus-per-node", "2", "--pp", "3"}), 2,
                 {"--pp 3", "4 GPUs"});
}

TEST_F(ClusterPlan, RefusalsNameFileKeyAndMend) {
  expect_refusal(terrace(plan({"--gpus-per-node", "17"})), 2, {"--gpus-per-node 17", "has 16"});
  expect_refusal(terrace(plan({"--nodes", "0"})), 2, {"--nodes", "from 1"});
  expect_refusal(terrace(plan({"--nodes", "2", "--dp", "3"})), 2, {"--dp 3", "give --dp 32"});
  expect_refusal(terrace(plan({"--nodes", "1", "--batch-size", "128"})), 3, {"does not fit", "lower --batch-size"});
  scratch_.write("half.toml", "[gpu]\nmemory = \"32GiB\"\n");
  expect_refusal(terrace({"plan", "--cluster-profile", "half.toml"}), 2, {"half.toml", "gpu.matmul-bf16-flop-s is missing"});
  expect_refusal(terrace({"plan", "--cluster-profile", "none.toml"}), 2, {"none.toml", "No such file"});
  expect_refusal(terrace({"plan", "--nodes", "2"}), 2, {"--nodes", "--cluster-profile"});
}

}  // namespace
}  // namespace terrace::test
