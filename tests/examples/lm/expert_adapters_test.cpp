// Adapters of experts as one tensor: the places of all elements, and ranges of any length.
#include <gtest/gtest.h>

#include <random>

#include <terrace/examples/lm/models/adapters.h>
#include <terrace/examples/lm/models/expert_adapters.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/tests/support/environment.h>

namespace terrace::test {
namespace {

constexpr std::int64_t kExperts = 3, kRank = 2, kHidden = 8, kFfn = 5;

lm::ModelConfig config(const char* targets) {
  lm::ModelConfig c{.family = lm::family_named("mixtral"),
                    .layers = 2,
                    .hidden = kHidden,
                    .heads = 2,
                    .ffn = kFfn,
                    .seq_len = 4,
                    .vocab = 256};
  c.experts = {.count = kExperts};
  c.adapters = lm::adapters_of(c.family, true, kRank, 4, targets);
  return lm::complete(c);
}

std::vector<lm::AdapterTensor> tensors(const lm::ModelConfig& c) {
  return lm::adapter_tensors(lm::make_model(c), c.adapters, "block_sparse_moe.experts.", "mlp.experts.");
}

TEST(ExpertAdapters, AreOneTensorOfAllExperts) {
  std::vector<std::string> told;
  for (const auto& t : tensors(config("q,gate,up,down")))
    told.push_back(t.whole.name + " " + to_string(t.whole.shape) + " of " + std::to_string(t.parts.size()));
  const auto block = [](const std::string& b) {
    const auto prefix = "model.layers." + b + ".";
    return std::vector<std::string>{prefix + "self_attn.q_proj.lora_A.weight [2, 8] of 1",
                                    prefix + "self_attn.q_proj.lora_B.weight [8, 2] of 1",
                                    prefix + "mlp.experts.base_layer.lora_A.weight [6, 8] of 3",
                                    prefix + "mlp.experts.base_layer.lora_B.weight [10, 6] of 3",
                                    prefix + "mlp.experts.lora_A.weight [6, 5] of 3",
                                    prefix + "mlp.experts.lora_B.weight [8, 6] of 3"};
  };
  auto want = block("0");
  for (auto& name : block("1")) want.push_back(std::move(name));
  EXPECT_EQ(want, told);
  // With adapters of one product alone, no name has base_layer.
  EXPECT_EQ("model.layers.0.mlp.experts.lora_A.weight", tensors(config("gate,up")).front().whole.name);
  EXPECT_EQ("model.layers.0.mlp.experts.lora_A.weight", tensors(config("down")).front().whole.name);
}

// Element [row, column] of expert e's matrix is a number that identifies all three.
double number(std::int64_t expert, std::int64_t row, std::int64_t column) {
  return static_cast<double>(expert * 10000 + row * 100 + column);
}

TEST(ExpertAdapters, RangesOfAnyLengthHaveTheirElements) {
  const auto seed = test_seed();
  SCOPED_TRACE(testing::Message() << "TERRACE_TEST_SEED=" << seed);
  std::mt19937_64 generator(seed);
  for (const auto& tensor : tensors(config("gate,up,down"))) {
    const auto& whole = tensor.whole.shape;
    const bool rows = tensor.of == lm::AdapterTensor::Of::rows;
    const auto element_of_whole = [&](std::int64_t at) {
      const auto row = at / whole[1], column = at % whole[1];
      // The expert is the slowest index in lora_A and the fastest in lora_B.
      return rows ? number(row / kRank, row % kRank, column) : number(column % kExperts, row, column / kExperts);
    };
    const auto element_of_part = [&](std::size_t part, std::int64_t at) {
      const auto columns = tensor.parts[part].shape[1];
      return number(static_cast<std::int64_t>(part), at / columns, at % columns);
    };
    for (int trial = 0; trial < 200; ++trial) {
      const auto draw = [&](std::int64_t elements) {
        const auto first = std::uniform_int_distribution<std::int64_t>(0, elements - 1)(generator);
        return std::pair(first, std::uniform_int_distribution<std::int64_t>(1, elements - first)(generator));
      };
      const auto [first, n] = draw(whole.elements());
      std::vector<double> got(static_cast<std::size_t>(n));
      lm::read_whole(tensor, static_cast<std::uint64_t>(first), {reinterpret_cast<std::byte*>(got.data()), DType::fp64, {n}},
                     [&](const ParamSpec& param, std::uint64_t from, TensorView range) {
                       std::size_t part = 0;
                       while (tensor.parts[part].name != param.name) ++part;
                       for (std::int64_t i = 0; i < range.elements(); ++i)
                         range.as<double>()[i] = element_of_part(part, static_cast<std::int64_t>(from) + i);
                     });
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(element_of_whole(first + i), got[static_cast<std::size_t>(i)]);
      const auto part = static_cast<std::size_t>(trial) % tensor.parts.size();
      const auto [begin, count] = draw(tensor.parts[part].shape.elements());
      std::vector<double> some(static_cast<std::size_t>(count));
      lm::read_part(tensor, part, static_cast<std::uint64_t>(begin),
                    {reinterpret_cast<std::byte*>(some.data()), DType::fp64, {count}},
                    [&](std::uint64_t from, TensorView range) {
                      for (std::int64_t i = 0; i < range.elements(); ++i)
                        range.as<double>()[i] = element_of_whole(static_cast<std::int64_t>(from) + i);
                    });
      for (std::int64_t i = 0; i < count; ++i)
        ASSERT_EQ(element_of_part(part, begin + i), some[static_cast<std::size_t>(i)]) << tensor.whole.name;
    }
  }
}

}  // namespace
}  // namespace terrace::test
