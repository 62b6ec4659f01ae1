// The model learns: from random weights to predicting the next byte better than byte frequencies can.
#include <array>
#include <cmath>

#include <gtest/gtest.h>

#include <terrace/tests/train/train_run.h>

namespace terrace::test {
namespace {

class Learning : public TrainTest, public testing::WithParamInterface<const char*> {
 protected:
  // Order-0 entropy, in nats per byte: no model that ignores the preceding bytes can have a smaller mean loss on this text.
  [[nodiscard]] double unigram_entropy() const {
    std::ifstream in(corpus(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    std::array<double, 256> count{};
    for (const char c : text) ++count[static_cast<unsigned char>(c)];
    double entropy = 0;
    for (const double n : count)
      if (n > 0) entropy -= n / static_cast<double>(text.size()) * std::log(n / static_cast<double>(text.size()));
    return entropy;
  }
};

TEST_P(Learning, TheLossFallsFromThatOfChanceToBelowTheUnigramEntropy) {
  cli::RunConfig config;
  config.data.format = cli::DataFormat::bytes;
  config.model.family = lm::family_named(GetParam());
  config.model.layers = 2;
  config.model.hidden = 64;
  config.model.heads = 4;
  config.model.seq_len = 64;
  config.train.batch_size = 8;
  config.train.steps = 60;
  config.train.lr = 5e-3;
  config.train.min_lr = 5e-4;
  config.train.warmup = 5;
  config.data.files = {corpus()};
  config.memory.device_memory = "3MiB";  // small enough to force offloading
  config.memory.host_memory = "unlimited";
  const auto run = train_fresh(config);
  const double chance = std::log(256.0), unigram = unigram_entropy();
  EXPECT_NEAR(run.steps.front().loss.value(), chance, 0.1);
  EXPECT_GT(unigram, 2.5);  // the text is not trivial
  EXPECT_LT(run.steps.back().loss.value(), unigram - 0.2) << "of " << chance << " at first";
  EXPECT_LT(run.eval_loss, unigram - 0.2) << "held-out text";
}

INSTANTIATE_TEST_SUITE_P(Families, Learning, testing::Values("gpt2", "llama"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace terrace::test
