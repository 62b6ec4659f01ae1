// Each property that a family states is honoured by its models. This program also has the families of the tests, which mix the
// properties in other ways than the program's families do, so that a property is found that is honoured only together with
// another one.
#include <terrace/tests/examples/lm/layer_harness.h>

#include <algorithm>
#include <array>
#include <set>

#include <terrace/core/base/error.h>
#include <terrace/tests/support/environment.h>

#include <terrace/tests/examples/families/mixed.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

using lm::Family;
using lm::ModelConfig;
using testing::HasSubstr;

// A family that leaves out a property does not compile: no type of its members has a default.
template <class T>
concept MadeOfNothing = requires {
  T{};
};
template <class... Members>
constexpr bool all_stated(const Members&...) {
  return !(MadeOfNothing<Members> || ...);
}
constexpr bool every_property_is_stated() {
  const auto& [name, norm, scales, query_key, positions, activation, grouped_heads, usual_ffn, norm_eps, heads_keys, file,
               matrices, tensors] = kMixed;
  const auto& [type, architecture, layers, hidden, kv_heads, ffn, longest, head_dim, usual_head_dim, heads_divide, window,
               activation_key, attention_bias, mlp_bias, tied, untold, fixed, experts, per_token, renormalise, wrapper,
               unused] = file;
  const auto& [window_size, window_used, windowed, window_number, usual_window_number, window_types] = window;
  const auto& [wrapper_type, wrapper_defaults, wrapper_prefix] = wrapper;
  const auto& [offset, by_root, query_scalar, untold_scalar, attention_cap, logit_cap] = scales;
  const auto& [cap_key, usual_cap] = attention_cap;
  const auto& [usual, varies, keys] = norm_eps;
  const auto& [parts, bias] = tensors.qkv;
  const auto& [base, scaling_keys, only_scaling, fraction_keys, blocks_key, every_key, plain_every, window_base,
               window_base_keys, window_scaling_key] = *lm::rotary_positions(kMixed);
  const auto& [table] = *lm::learned_positions(kFused);
  const auto& [prefix, embedding, final_norm, head, block, attention_norm, mlp_norm, attention_result, mlp_result, q_norm,
               k_norm, qkv, output, up, down, experts_named, buffers] = tensors;
  const auto& [router, experts_prefix, expert_up, expert_down] = experts_named;
  return all_stated(name, norm, scales, query_key, positions, activation, grouped_heads, usual_ffn, norm_eps, heads_keys, file,
                    matrices, tensors) &&
         all_stated(type, architecture, layers, hidden, kv_heads, ffn, longest, head_dim, usual_head_dim, heads_divide, window,
                    activation_key, attention_bias, mlp_bias, tied, untold, fixed, experts, per_token, renormalise, wrapper,
                    unused) &&
         all_stated(window_size, window_used, windowed, window_number, usual_window_number, window_types) &&
         all_stated(wrapper_type, wrapper_defaults, wrapper_prefix) && all_stated(usual, varies, keys) &&
         all_stated(parts, bias) && all_stated(offset, by_root, query_scalar, untold_scalar, attention_cap, logit_cap) &&
         all_stated(cap_key, usual_cap) &&
         all_stated(base, scaling_keys, only_scaling, fraction_keys, blocks_key, every_key, plain_every, window_base,
                    window_base_keys, window_scaling_key) &&
         all_stated(table) &&
         all_stated(prefix, embedding, final_norm, head, block, attention_norm, mlp_norm, attention_result, mlp_result, q_norm,
                    k_norm, qkv, output, up, down, buffers) &&
         all_stated(router, experts_prefix, expert_up, expert_down);
}
static_assert(every_property_is_stated());

class FamilyTest : public testing::TestWithParam<const Family*> {
 protected:
  static constexpr std::int64_t kSeq = 8, kVocab = 257;
  const Family& family = *GetParam();
  Machine machine;
  std::mt19937_64 generator{test_seed()};
  testing::ScopedTrace trace{__FILE__, __LINE__, "TERRACE_TEST_SEED=" + std::to_string(test_seed())};

  [[nodiscard]] ModelConfig config() const {
    return {.family = family,
            .layers = 1,  // a second block would see positions through the causal mask of the first
            .hidden = 24,
            .heads = 4,
            .seq_len = kSeq,
            .vocab = kVocab,
            .tied = false,
            .dtype = DType::fp64};
  }
  Values normal(std::int64_t n, double std, double mean = 0) {
    std::normal_distribution<double> draw(mean, std);
    Values v(static_cast<std::size_t>(n));
    for (double& e : v) e = draw(generator);
    return v;
  }
  // All weights of the model, random.
  Weights weights_of(const Model& model) {
    Weights weights;
    for (const auto& layer : model.layers) {
      for (const auto& p : layer->params()) weights[p.name] = normal(p.shape.elements(), 0.4, p.init.kind == InitKind::ones);
    }
    return weights;
  }
  // The loss of the last token alone, which depends on all earlier tokens.
  double last_loss(const ModelConfig& config, const Weights& weights, const std::vector<int>& tokens) {
    Chain chain(machine, config, {1, kSeq});
    chain.set_weights(weights);
    std::vector<int> targets(kSeq, -1);
    targets.back() = 1;
    chain.set_ids(tokens, targets);
    return chain.loss();
  }
  double last_loss(const ModelConfig& config, const Weights& weights) { return last_loss(config, weights, tokens_); }
  std::string refusal(const ModelConfig& config) {
    return refusal_of([&] { lm::complete(config); });
  }
  const std::vector<int> tokens_{65, 32, 200, 7, 99, 256, 32, 11};
};

TEST_P(FamilyTest, IsFoundByItsName) { EXPECT_EQ(&lm::family_named(*family.name), &family); }

TEST_P(FamilyTest, ItsNamesAreItsParameters) {
  const auto& names = family.tensors;
  std::multiset<std::string> expected;
  const auto weight_and_bias = [&](const std::string& name, bool bias) {
    expected.insert(name + ".weight");
    if (bias) expected.insert(name + ".bias");
  };
  const bool layer_norm = *family.norm == lm::NormKind::layer;
  weight_and_bias(std::string(*names.embedding), false);
  if (const auto* const learned = lm::learned_positions(family)) weight_and_bias(std::string(*learned->tensor), false);
  weight_and_bias(std::string(*names.final_norm), layer_norm);
  weight_and_bias(std::string(*names.head), false);
  const auto block = std::string(*names.block) + "0.";
  for (const auto norm : {*names.attention_norm, *names.mlp_norm, *names.attention_result_norm, *names.mlp_result_norm})
    if (!norm.empty()) weight_and_bias(block + std::string(norm), layer_norm);
  for (const auto norm : {*names.q_norm, *names.k_norm})
    if (!norm.empty()) weight_and_bias(block + std::string(norm), false);
  for (const auto* const parts : {&names.qkv, &names.attention_output, &names.up, &names.down}) {
    for (const auto tensor : parts->tensors) weight_and_bias(block + std::string(tensor), *parts->bias);
  }
  std::multiset<std::string> declared;
  for (const auto& layer : lm::make_model(config()).layers) {
    for (const auto& p : layer->params()) declared.insert(p.name);
  }
  EXPECT_EQ(declared, expected);
  EXPECT_EQ(std::set(declared.begin(), declared.end()).size(), declared.size()) << "two tensors have one name";
  auto tied = config();
  tied.tied = true;
  const auto model = lm::make_model(tied);
  EXPECT_EQ(model.layers.back()->params().back().name, std::string(*names.embedding) + ".weight");
}

TEST_P(FamilyTest, MatricesHaveTheirOrder) {
  auto c = config();
  c.ffn = 40;
  const auto model = lm::make_model(c);
  const auto name = std::string(*family.tensors.block) + "0." + std::string(family.tensors.down.tensors[0]) + ".weight";
  const auto params = model.layers[2]->params();
  const auto down = std::ranges::find(params, name, &ParamSpec::name);
  ASSERT_NE(down, params.end());
  EXPECT_EQ(down->shape, *family.matrices == lm::MatrixOrder::out_in ? (Shape{24, 40}) : (Shape{40, 24}));
}

// Without positions, a single block would not see the order of the tokens before the last one.
TEST_P(FamilyTest, PositionsReachTheLoss) {
  const auto weights = weights_of(lm::make_model(config()));
  auto swapped = tokens_;
  std::swap(swapped.at(0), swapped.at(5));
  const double loss = last_loss(config(), weights);
  EXPECT_GT(std::abs(last_loss(config(), weights, swapped) - loss), 1e-6 * loss);
}

TEST_P(FamilyTest, TheRotaryBaseReachesTheLossOrIsRefused) {
  auto other = config();
  other.rope_theta = 700;
  if (const auto* const base = lm::rotary_base(family)) {
    const auto weights = weights_of(lm::make_model(config()));
    const double loss = last_loss(config(), weights);
    EXPECT_GT(std::abs(last_loss(other, weights) - loss), 1e-6 * loss);
    other.rope_theta = *base->usual;
    EXPECT_EQ(last_loss(other, weights), loss);
    other.heads = 8;  // of width 3
    EXPECT_THAT(refusal(other), HasSubstr("rotary positions need heads of even width"));
  } else {
    EXPECT_THAT(refusal(other), HasSubstr(std::string(*family.name) + " rotates nothing: rope_theta must be 0, not 700"));
    other.rope_theta = 0, other.heads = 8;
    EXPECT_EQ(refusal(other), "");
  }
}

TEST_P(FamilyTest, TheNormEpsilonReachesTheLoss) {
  const auto weights = weights_of(lm::make_model(config()));
  const double loss = last_loss(config(), weights);
  auto other = config();
  other.norm_eps = *family.norm_eps.usual;
  EXPECT_EQ(last_loss(other, weights), loss);
  other.norm_eps = 0.25;
  EXPECT_GT(std::abs(last_loss(other, weights) - loss), 1e-6 * loss);
}

TEST_P(FamilyTest, ALayerNormRemovesTheMeanAndAnRmsNormDoesNot) {
  const auto model = lm::make_model(config());
  for (const std::size_t l : {1, 2}) {
    LayerRun run(machine, *model.layers[l], DType::fp64, 24, {1, kSeq}, false, false);
    const auto weights = weights_of(model);
    for (std::size_t p = 0; p < run.params.size(); ++p) set(run.weights.views[p], weights.at(run.params[p].name));
    auto x = normal(kSeq * 24, 1);
    // What the layer adds to x.
    const auto added = [&] {
      set(run.x.views[0], x);
      run.forward();
      auto y = get(run.y.views[0]);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] -= x[i];
      return y;
    };
    const auto before = added();
    for (double& e : x) e += 3;
    const auto after = added();
    double largest = 0;
    for (std::size_t i = 0; i < after.size(); ++i) largest = std::max(largest, std::abs(after[i] - before[i]));
    if (*family.norm == lm::NormKind::layer) {
      EXPECT_LT(largest, 1e-10) << model.layers[l]->name();
    } else {
      EXPECT_GT(largest, 1e-3) << model.layers[l]->name();
    }
  }
}

TEST_P(FamilyTest, EveryParameterReachesTheLoss) {
  auto weights = weights_of(lm::make_model(config()));
  const double loss = last_loss(config(), weights);
  for (auto& [name, values] : weights) {
    const auto kept = values;
    for (double& v : values) v *= 1.25;
    EXPECT_NE(last_loss(config(), weights), loss) << name;
    values = kept;
  }
}

// Biases named by a file, which few models of the family have.
TEST_P(FamilyTest, BiasesReachTheLossOrAreRefused) {
  for (const auto& [field, key, parts] :
       {std::tuple{&ModelConfig::attention_bias, *family.file.attention_bias,
                   std::array{&family.tensors.qkv, &family.tensors.attention_output}},
        std::tuple{&ModelConfig::mlp_bias, *family.file.mlp_bias, std::array{&family.tensors.up, &family.tensors.down}}}) {
    auto with = config();
    with.*field = true;
    if (key.empty()) {
      EXPECT_THAT(refusal(with), HasSubstr(std::string(*family.name) + " has the biases of its tensors"));
      continue;
    }
    auto weights = weights_of(lm::make_model(with));
    const double loss = last_loss(with, weights);
    for (const auto* const part : parts)
      for (const auto tensor : part->tensors) {
        auto& bias = weights.at(std::string(*family.tensors.block) + "0." + std::string(tensor) + ".bias");
        const auto kept = bias;
        for (double& v : bias) v += 0.25;
        EXPECT_NE(last_loss(with, weights), loss) << tensor;
        bias = kept;
      }
  }
}

TEST_P(FamilyTest, KeyValueHeadsAreGroupedOrRefused) {
  auto grouped = config();
  grouped.kv_heads = 2;
  if (*family.grouped_heads) {
    EXPECT_LT(lm::parameter_count(grouped), lm::parameter_count(config()));
    EXPECT_TRUE(std::isfinite(last_loss(grouped, weights_of(lm::make_model(grouped)))));
  } else {
    EXPECT_THAT(refusal(grouped), HasSubstr(std::string(*family.name) + " has a key-value head for each head"));
    EXPECT_THAT(refusal(grouped), HasSubstr("(grouped heads: model llama, mixed or fused)"));
  }
}

TEST_P(FamilyTest, WhatIsNotGivenIsAsUsual) {
  const auto c = lm::complete(config());
  EXPECT_EQ(c.kv_heads, c.heads);
  EXPECT_EQ(c.ffn, (*family.usual_ffn)(24));
  EXPECT_EQ(c.norm_eps, *family.norm_eps.usual);
  const auto* const base = lm::rotary_base(family);
  EXPECT_EQ(c.rope_theta, base ? *base->usual : 0);
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyTest, testing::ValuesIn(lm::families().begin(), lm::families().end()),
                         [](const auto& made) { return std::string(*made.param->name); });

TEST(Families, HaveDifferentNames) {
  std::set<std::string_view> names;
  for (const Family* const family : lm::families()) EXPECT_TRUE(names.insert(*family->name).second) << *family->name;
}

TEST(Families, AnUnknownNameIsRefusedWithAllNames) {
  EXPECT_EQ("model: 'bert' is not a model family; accepted are gpt2, llama, mixed and fused",
            refusal_of([&] { lm::family_named("bert"); }));
}

// The usual values stay those of published models, of old checkpoints and of old command lines.
TEST(Families, TheUsualValuesOfTheProgramsFamiliesStay) {
  const auto usual = [](const char* name) {
    return lm::complete(
        {.family = lm::family_named(name), .layers = 1, .hidden = 768, .heads = 12, .seq_len = 8, .vocab = 256});
  };
  EXPECT_EQ(usual("gpt2").ffn, 3072);
  EXPECT_EQ(usual("gpt2").norm_eps, 1e-5);
  EXPECT_EQ(usual("llama").ffn, 2048);
  EXPECT_EQ(usual("llama").norm_eps, 1e-5);
  EXPECT_EQ(usual("llama").rope_theta, 10000);
}

}  // namespace
}  // namespace terrace::test
