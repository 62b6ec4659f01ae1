// Compares every key of a config.json, in every family, with what Hugging Face's library computes from it. The table is made by
// tests/interop/config_keys.py, which says how.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/lm/models/model_dir.h>

namespace terrace::test {
namespace {

using nlohmann::json;

// Keys for which the library computes values that terrace does not have, or which the library reads in one place but not in
// another. terrace refuses them by name.
const std::set<std::string> kNotHere{"activation_function",   "attention_bias",
                                     "decoder_sparse_step",   "hidden_act",
                                     "hidden_activation",     "layer_types",
                                     "mlp_only_layers",       "no_rope_layers",
                                     "num_experts",           "num_local_experts",
                                     "partial_rotary_factor", "rope_parameters",
                                     "rope_scaling",          "scale_attn_by_inverse_layer_idx",
                                     "scale_attn_weights",    "use_bidirectional_attention"};

// Collects the keys of an object and of the objects in it.
void collect_keys(const json& object, std::set<std::string>& keys) {
  for (const auto& [key, value] : object.items()) {
    keys.insert(key);
    if (value.is_object()) collect_keys(value, keys);
  }
}

double activated(Activation kind, double x) {
  const double root = std::sqrt(2 / M_PI);
  switch (kind) {
    case Activation::swiglu: return x / (1 + std::exp(-x));
    case Activation::gelu_erf:
    case Activation::geglu_erf: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    default: return 0.5 * x * (1 + std::tanh(root * (x + 0.044715 * x * x * x)));
  }
}

std::vector<std::string> biases_of(const layers::Transformer& t) {
  std::set<std::string> names;
  const auto add = [&](const layers::ProjectionParts& parts) {
    for (const auto& tensor : parts.tensors)
      if (parts.bias) names.insert(tensor.substr(tensor.rfind('.') + 1));
  };
  add(t.names.qkv), add(t.names.attention_output);
  if (t.experts.count == 0) add(t.names.up), add(t.names.down);
  return {names.begin(), names.end()};
}

json facts_of(lm::ModelConfig c) {
  json facts;
  for (const std::int64_t length : {16, 64}) {
    c.seq_len = length;
    const auto t = lm::transformer_of(c);
    for (std::int64_t b = 0; b < t.layers; ++b) {
      const auto pairs = t.rotated(b) / 2;
      const auto key = fmt::format("{}angles {}", t.window_rope_theta != 0 && c.window.of(b) != 0 ? "window " : "", length);
      if (pairs == 0 || facts.contains(key)) continue;
      const auto angles = t.rotary(b);
      facts[key] = {pairs, angles.length};
      for (const std::int64_t pair : {1, 4, 7})
        if (pair < pairs) facts[key].push_back(angles.frequency(pair, 2 * pairs));
    }
  }
  const auto t = lm::transformer_of(c);
  const bool rotary = t.positions == layers::Positions::rotary;
  facts["windows"] = facts["rotates"] = json::array();
  for (std::int64_t b = 0; b < t.layers; ++b) {
    facts["windows"].push_back(c.window.of(b));
    if (rotary) facts["rotates"].push_back(t.rotated(b) == 0 ? 0 : 1);
  }
  facts["causal"] = true, facts["scales"] = 1;
  facts["scale"] = t.scores.factor(t.head_dim());
  facts["score cap"] = t.scores.cap, facts["logit cap"] = t.logit_cap;
  facts["tied"] = t.tied, facts["eps"] = t.norm_eps;
  facts["act"] = {activated(t.activation, 1), activated(t.activation, -0.5)};
  facts["head dim"] = t.head_dim(), facts["kv heads"] = t.kv_heads, facts["ffn"] = t.ffn;
  facts["biases"] = biases_of(t);
  if (t.experts.count != 0) {
    facts["experts"] = {t.experts.count, t.experts.chosen, t.experts.renormalise};
    facts["dense"] = json::array();
  }
  return facts;
}

// The library computes angles in fp32, and the table has six digits.
bool agree(const json& a, const json& b) {
  if (a.is_number() && b.is_number()) return std::abs(a.get<double>() - b.get<double>()) <= 2e-5 * std::abs(b.get<double>());
  if (!a.is_array() || !b.is_array() || a.size() != b.size()) return a == b;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!agree(a[i], b[i])) return false;
  return true;
}

TEST(ConfigKeys, AreReadAsTheLibraryReadsThem) {
  const auto table =
      json::parse(read_text_file(std::filesystem::path(TERRACE_SOURCE_FOLDER) / "tests/examples/lm/config_keys.json"));
  std::size_t compared = 0;
  std::set<std::string> not_here;
  const auto compare = [&](const json& config, const json& change, const json& want) {
    lm::ModelConfig read{.family = lm::family_named("llama")};
    try {
      read = lm::parse_model_config(config.dump(), "config.json");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::refused);
      const std::string_view what = error.what();
      if (want.is_null()) return;
      std::set<std::string> keys, named;
      collect_keys(change, keys);
      for (const auto& key : keys)
        if (kNotHere.contains(key) && what.find(key) != std::string_view::npos) named.insert(key);
      EXPECT_FALSE(named.empty()) << config.at("model_type") << " with " << change << "\n" << what;
      not_here.merge(named);
      return;
    }
    if (want.is_null()) return;  // the library refuses it
    const auto facts = facts_of(read);
    for (const auto& [key, value] : want.items())
      EXPECT_TRUE(agree(facts.value(key, json()), value))
          << config.at("model_type") << " with " << change << ": " << key << " is " << facts.value(key, json())
          << ", and the library's " << value;
    ++compared;
  };
  for (const auto& [name, family] : table.at("families").items())
    compare(family.at("config"), json::object(), family.at("facts"));
  for (const auto& one : table.at("cases")) {
    const auto& family = table.at("families").at(one[0].get<std::string>());
    auto config = family.at("config");
    for (const auto& [key, value] : one[1].items())
      if (value == "absent")
        config.erase(key);
      else
        config[key] = value;
    auto want = family.at("facts");
    if (!one[2].is_null())
      want.update(one[2]);
    else
      want = nullptr;
    compare(config, one[1], want);
  }
  EXPECT_EQ(kNotHere, not_here) << "a key of this list is no longer refused";
  EXPECT_GT(compared, 1000U);
}

}  // namespace
}  // namespace terrace::test
