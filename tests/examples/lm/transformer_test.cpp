// The library's transformers without a family, as an embedder builds them from parallel/layers.
#include <gmock/gmock.h>

#include <terrace/parallel/layers/attention/attention.h>
#include <terrace/parallel/layers/chain.h>
#include <terrace/parallel/mesh/degrees.h>

#include <terrace/tests/examples/lm/layer_harness.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

using layers::Positions;
using layers::Transformer;

const Transformer small{
    .layers = 3, .hidden = 24, .heads = 4, .kv_heads = 2, .ffn = 34, .seq_len = 9, .vocab = 41, .dtype = DType::fp64};

std::vector<std::string> names_of(const Model& model) {
  std::vector<std::string> names;
  for (const auto& layer : model.layers)
    for (const auto& param : layer->params()) names.push_back(layer->name() + " " + param.name + to_string(param.shape));
  return names;
}

TEST(Transformer, TheNamesThatAreNotGivenAreLlamas) {
  auto of_family = small;
  of_family.vocab = 257;
  for (const bool tied : {false, true}) {
    of_family.tied = tied;
    const auto llama = lm::make_model({.family = lm::family_named("llama"),
                                       .layers = 3,
                                       .hidden = 24,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .ffn = 34,
                                       .seq_len = 9,
                                       .vocab = 257,
                                       .tied = tied,
                                       .dtype = DType::fp64});
    EXPECT_EQ(names_of(layers::make_transformer(of_family)), names_of(llama));
  }
}

// Nothing is rotated or added to the embedding: the bits are those of a model whose learned positions are zero.
TEST(Transformer, WithoutPositionsIsAsWithPositionsOfZero) {
  const BatchShape shape{2, 9};
  Machine machine;
  auto without = small, learned = small, rotary = small;
  without.positions = Positions::none, learned.positions = Positions::learned;
  const auto names = names_of(layers::make_transformer(without));
  EXPECT_EQ(names, names_of(layers::make_transformer(rotary)));
  EXPECT_EQ(names.size() + 1, names_of(layers::make_transformer(learned)).size());

  std::vector<int> tokens, targets;
  for (int i = 0; i < 18; ++i) tokens.push_back(i * 7 % 41), targets.push_back(i * 5 % 41);
  std::mt19937_64 generator(3);
  std::normal_distribution<double> draw(0, 0.3);
  Weights weights;
  const auto loss = [&](const Transformer& transformer) {
    Chain chain(machine, layers::make_transformer(transformer), shape);
    for (const auto& run : chain.runs) {
      for (const auto& param : run->params) {
        auto& values = weights[param.name];
        if (!values.empty()) continue;
        values.resize(static_cast<std::size_t>(param.shape.elements()));
        if (param.name == "model.embed_positions.weight") continue;  // zero
        for (double& v : values) v = draw(generator);
      }
    }
    chain.set_weights(weights);
    chain.set_ids(tokens, targets);
    return chain.loss();
  };
  EXPECT_EQ(loss(without), loss(learned));
  EXPECT_NE(loss(without), loss(rotary));
}

TEST(Transformer, RefusesWhatCannotBeOneModel) {
  const auto refusal = [](auto change, bool whole = true) -> std::string {
    auto transformer = small;
    change(transformer);
    return refusal_of([&] {
      if (whole)
        layers::make_transformer(transformer);
      else
        layers::Attention(transformer, 0);
    });
  };
  using testing::HasSubstr;
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_THAT(refusal([](auto& t) { t.activation = Activation::gelu_tanh; }),
              HasSubstr("names.up has 2 tensors: it needs one"));
  EXPECT_EQ(refusal([](auto& t) { t.activation = Activation::gelu_tanh, t.names.up = {{"up"}}; }), "");
  EXPECT_THAT(refusal([](auto& t) {
                t.names.qkv = {{"q", "kv"}};
              }),
              HasSubstr("it needs one, or one for each of its 3 results"));
  EXPECT_THAT(refusal([](auto& t) { t.matrices = layers::MatrixOrder::in_out; }),
              HasSubstr("names.qkv has 3 tensors, and matrices [inputs, outputs] of several tensors cannot be one product"));
  EXPECT_THAT(refusal([](auto& t) { t.place = {.mesh = {.part = 2}, .rank = 2}; }),
              HasSubstr("there is no rank 2 in a mesh of part 2"));
  EXPECT_THAT(refusal([](auto& t) { t.init_std = -1; }), HasSubstr("init_std must be at least 0, not -1"));
  // A layer that is built alone checks these values, too, because it divides by them.
  EXPECT_THAT(refusal([](auto& t) { t.heads = 0; }, false), HasSubstr("heads must be at least 1, not 0"));
  EXPECT_THAT(refusal([](auto& t) { t.kv_heads = 0; }, false), HasSubstr("kv_heads must be at least 1, not 0"));
  EXPECT_THAT(refusal([](auto& t) { t.place.mesh.part = 0; }, false), HasSubstr("part has degree 0"));
}

// If two ranks share a key-value head, each adds the other's gradient to its own, so the mesh must say how many ranks share it.
TEST(Transformer, TheMeshSaysHowManyRanksShareKeyValueHeads) {
  auto split = small;
  for (const std::uint32_t ranks : {1, 2}) {
    split.place = {.mesh = {.part = ranks}};
    EXPECT_EQ(layers::make_transformer(split).place.tensor().twins, 1U);
  }
  split.kv_heads = 1;
  split.place = {.mesh = mesh_of({.tp = 2}, 1), .rank = 1};
  EXPECT_EQ(layers::make_transformer(split).place.tensor().twins, 2U);
  split.place.mesh = {.part = 2};
  EXPECT_THAT(thrown_by([&] { layers::make_transformer(split); }).what(),
              testing::HasSubstr("their mesh needs part 1 and twin 2, not part 2 and twin 1"));
}

}  // namespace
}  // namespace terrace::test
