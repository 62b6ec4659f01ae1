// The config.json of published checkpoints, one in each line of published_configs.jsonl: each is read as the file says, or
// refused by name. A line has the checkpoint's name ("like"), whether it was copied from a public file or recalled ("source"),
// the published number of parameters, the keys that are kept with a warning, and the text of the refusal.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/lm/models/model_dir.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

using nlohmann::json;
using testing::ElementsAreArray;
using testing::HasSubstr;

double rounded(double number) { return std::round(number * 1e9) / 1e9; }

// The values that the library uses where the file of a Gemma 3 with images does not give the language model's own.
json language_model(const json& file) {
  if (!file.contains("text_config")) return file;
  json config{{"vocab_size", 262208},  {"num_attention_heads", 8},          {"num_key_value_heads", 4},
              {"head_dim", 256},       {"max_position_embeddings", 131072}, {"rms_norm_eps", 1e-6},
              {"rope_theta", 1000000}, {"query_pre_attn_scalar", 256}};
  config.update(file.at("text_config"));
  return config;
}

// A simple reading of a file, which knows families only by their types.
class Plain {
 public:
  explicit Plain(const json& file) : config_(language_model(file)), type_(config_.at("model_type").get<std::string>()) {}

  [[nodiscard]] json numbers() const {
    const auto heads = one("n_head", "num_attention_heads"), layers = one("n_layer", "num_hidden_layers");
    const auto hidden = one("n_embd", "hidden_size");
    const auto kv_heads = or_else("num_key_value_heads", heads);
    const auto width = or_else("head_dim", hidden.get<int>() / heads.get<int>());
    json numbers{{"layers", layers},
                 {"hidden", hidden},
                 {"heads", heads},
                 {"kv heads", kv_heads},
                 {"head dim", width},
                 {"ffn", ffn(hidden)},
                 {"positions", or_else(key("n_positions", "max_position_embeddings"), 2048)},
                 {"vocab", config_.at("vocab_size")},
                 {"eps", one("layer_norm_epsilon", "rms_norm_eps")},
                 {"tied", or_else("tie_word_embeddings", is("gpt2") || is_gemma() || is("smollm3"))},
                 {"activation", activation()},
                 {"qkv bias", or_else("attention_bias", is("gpt2") || is("qwen2"))},
                 {"mlp bias", or_else("mlp_bias", is("gpt2"))},
                 {"scale", rounded(1 / std::sqrt(or_else("query_pre_attn_scalar", width).get<double>()))},
                 {"caps", {or_else("attn_logit_softcapping", 0), or_else("final_logit_softcapping", 0)}},
                 {"theta", is("gpt2") ? json(0) : or_else("rope_theta", 10000)},
                 {"window theta", is("gemma3_text") ? or_else("rope_local_base_freq", 10000) : json(0)},
                 {"fraction", or_else("partial_rotary_factor", 1)},
                 {"scaling", scaling()},
                 {"experts", experts()}};
    for (std::size_t b = 0; b < layers.get<std::size_t>(); ++b) {
      numbers["windows"].push_back(has_window(b) ? or_else("sliding_window", 0) : json(0));
      numbers["rotates"].push_back(config_.contains("no_rope_layers") ? config_.at("no_rope_layers").at(b) : json(1));
    }
    return numbers;
  }

 private:
  [[nodiscard]] bool is(const char* type) const { return type_ == type; }
  [[nodiscard]] bool is_gemma() const { return type_.starts_with("gemma"); }
  [[nodiscard]] const char* key(const char* of_gpt2, const char* of_others) const { return is("gpt2") ? of_gpt2 : of_others; }
  [[nodiscard]] json one(const char* of_gpt2, const char* of_others) const { return config_.at(key(of_gpt2, of_others)); }
  [[nodiscard]] json or_else(const char* key, const json& otherwise) const {
    const auto value = config_.value(key, json());
    return value.is_null() ? otherwise : value;
  }
  [[nodiscard]] json ffn(const json& hidden) const {
    if (is("gpt2")) return or_else("n_inner", 4 * hidden.get<int>());
    return or_else("moe_intermediate_size", or_else("intermediate_size", nullptr));
  }
  [[nodiscard]] json activation() const {
    if (is_gemma()) return Activation::geglu_tanh;
    const auto name = one("activation_function", "hidden_act");
    if (is("gpt2")) return name == "gelu_new" ? Activation::gelu_tanh : Activation::gelu_erf;
    return name == "silu" ? json(Activation::swiglu) : name;
  }
  [[nodiscard]] json scaling() const {
    const auto object = or_else("rope_scaling", nullptr);
    if (object.is_null()) return RotaryScaling::none;
    const auto type = object.value("rope_type", object.value("type", ""));
    if (type == "linear") return {RotaryScaling::linear, object.at("factor")};
    if (type == "llama3")
      return {RotaryScaling::llama3, object.at("factor"), object.at("low_freq_factor"), object.at("high_freq_factor"),
              object.at("original_max_position_embeddings")};
    if (type == "yarn")
      return {RotaryScaling::yarn, object.at("factor"), object.at("original_max_position_embeddings"),
              rounded(0.1 * std::log(object.at("factor").get<double>()) + 1)};
    const auto original = config_.at("original_max_position_embeddings").get<double>();
    const auto factor = config_.at("max_position_embeddings").get<double>() / original;
    return {RotaryScaling::longrope, original, rounded(std::sqrt(1 + std::log(factor) / std::log(original))),
            object.at("short_factor"), object.at("long_factor")};
  }
  [[nodiscard]] json experts() const {
    const auto count = or_else("num_local_experts", or_else("num_experts", 0));
    if (count == 0) return 0;
    return {count, config_.at("num_experts_per_tok"), or_else("norm_topk_prob", true)};
  }
  [[nodiscard]] bool has_window(std::size_t block) const {
    if (is("gemma2")) return block % 2 == 0;
    if (is("gemma3_text")) return block % 6 != 5;
    return is("mistral") || is("mixtral") || is("phi3");  // Qwen's windows are switched off in all of these files
  }

  json config_;
  std::string type_;
};

json scaling_of(const Rotary& rotary) {
  switch (rotary.scaling) {
    case RotaryScaling::linear: return {rotary.scaling, rotary.factor};
    case RotaryScaling::llama3: return {rotary.scaling, rotary.factor, rotary.low, rotary.high, rotary.original};
    case RotaryScaling::yarn: return {rotary.scaling, rotary.factor, rotary.original, rounded(rotary.length)};
    case RotaryScaling::longrope: return {rotary.scaling, rotary.original, rounded(rotary.length), rotary.near, rotary.far};
    default: return rotary.scaling;
  }
}

json numbers_of(const lm::ModelConfig& config) {
  const auto model = lm::transformer_of(config);
  json numbers{{"layers", model.layers},
               {"hidden", model.hidden},
               {"heads", model.heads},
               {"kv heads", model.kv_heads},
               {"head dim", model.head_dim()},
               {"ffn", model.ffn},
               {"positions", model.seq_len},
               {"vocab", model.vocab},
               {"eps", model.norm_eps},
               {"tied", model.tied},
               {"activation", model.activation},
               {"qkv bias", model.names.qkv.bias},
               {"mlp bias", model.names.up.bias},
               {"scale", rounded(model.scores.factor(model.head_dim()))},
               {"caps", {model.scores.cap, model.logit_cap}},
               {"theta", model.rope_theta},
               {"window theta", model.window_rope_theta},
               {"fraction", model.rope_fraction},
               {"scaling", scaling_of(model.rope_scaling)},
               {"experts", 0}};
  if (const auto& experts = model.experts; experts.count != 0)
    numbers["experts"] = {experts.count, experts.chosen, experts.renormalise};
  for (std::int64_t b = 0; b < model.layers; ++b) {
    numbers["windows"].push_back(config.window.of(b));
    numbers["rotates"].push_back(model.rotated_blocks.of(b) ? 1 : 0);
  }
  return numbers;
}

// The file as version 5 of the library writes it.
json newer(json file) {
  auto& config = file.contains("text_config") ? file.at("text_config") : file;
  const auto take = [&](const char* key, const json& otherwise) {
    const auto value = config.value(key, json());
    config.erase(key);
    return value.is_null() ? otherwise : value;
  };
  file["dtype"] = file.value("torch_dtype", "float32");
  file.erase("torch_dtype");
  if (config.at("model_type") == "gpt2") return file;
  const bool is_gemma3 = config.at("model_type") == "gemma3_text";
  auto rope = take("rope_scaling", json::object());
  rope["rope_type"] = rope.value("rope_type", rope.value("type", "default"));
  rope.erase("type");
  rope["rope_theta"] = take("rope_theta", is_gemma3 ? 1000000 : 10000);
  if (config.contains("partial_rotary_factor")) rope["partial_rotary_factor"] = take("partial_rotary_factor", 1);
  const json of_windows{{"rope_type", "default"}, {"rope_theta", take("rope_local_base_freq", 10000)}};
  config["rope_parameters"] = is_gemma3 ? json{{"full_attention", rope}, {"sliding_attention", of_windows}} : rope;
  return file;
}

void expect_refused(const json& file, const std::string& said) {
  EXPECT_THAT(refusal_of([&] { static_cast<void>(lm::parse_model_config(file.dump(), "config.json")); }), HasSubstr(said));
}

void expect_read(const json& line) {
  const auto& file = line.at("config");
  std::vector<std::string> warned;
  const auto config = lm::parse_model_config(file.dump(), "config.json", &warned);
  EXPECT_THAT(warned, ElementsAreArray(line.value("warned", std::vector<std::string>{})));
  const auto numbers = numbers_of(config), plain = Plain(file).numbers();
  for (const auto& [key, value] : plain.items()) EXPECT_EQ(value, numbers.at(key)) << key;
  if (line.contains("parameters")) {
    EXPECT_EQ(line.at("parameters").get<std::uint64_t>(), lm::parameter_count(config));
  }
  EXPECT_EQ(numbers, numbers_of(lm::parse_model_config(newer(file).dump(), "newer")));
  // An export keeps all keys and gives the same model.
  const auto written = lm::model_config_json(config, DType::bf16, file);
  const auto& kept = file.contains("text_config") ? file.at("text_config") : file;
  for (const auto& [key, value] : kept.items()) EXPECT_TRUE(written.contains(key)) << key;
  EXPECT_EQ(numbers, numbers_of(lm::parse_model_config(written.dump(), "written")));
}

TEST(PublishedConfigs, AreReadAsTheySayOrRefusedByName) {
  std::ifstream lines(std::filesystem::path(TERRACE_SOURCE_FOLDER) / "tests/examples/lm/published_configs.jsonl");
  std::set<std::string> read, refused;
  for (std::string text; std::getline(lines, text);) {
    const auto line = json::parse(text);
    SCOPED_TRACE(line.at("like"));
    const bool is_refused = line.contains("refused");
    try {
      if (is_refused)
        expect_refused(line.at("config"), line.at("refused").get<std::string>());
      else
        expect_read(line);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    (is_refused ? refused : read).insert(line.at("like").get<std::string>());
  }
  EXPECT_EQ(103U, read.size());
  EXPECT_EQ(5U, refused.size());
}

}  // namespace
}  // namespace terrace::test
