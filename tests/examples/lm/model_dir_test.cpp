// Model directories of Hugging Face's library: what a config.json says about the model, and which file has which weights.
#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/core/base/text_file.h>
#include <terrace/core/math/philox.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/lm/models/model_dir.h>
#include <terrace/examples/lm/models/rope_scaling.h>
#include <terrace/examples/lm/models/weights.h>
#include <terrace/examples/lm/weights/weight_files.h>
#include <terrace/tests/support/folder_test.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

json llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_act", "silu"},
          {"hidden_size", 96},
          {"intermediate_size", 160},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 6},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 2048},
          {"vocab_size", 1000},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 500000.0},
          {"rope_scaling", nullptr},
          {"tie_word_embeddings", false},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"head_dim", 16},
          {"torch_dtype", "bfloat16"},
          {"bos_token_id", 1},
          {"_name_or_path", "somewhere"}};
}

std::string refusal(const json& config, ErrorKind expected = ErrorKind::refused) {
  return error_of(expected, [&] { static_cast<void>(lm::parse_model_config(config.dump(), "dir/config.json")); });
}

std::string refusal_of_dir(const std::filesystem::path& directory) {
  return refusal_of([&] { static_cast<void>(lm::read_model_dir(directory)); });
}

TEST(ModelDir, AProgramReadsErrnoAndPath) {
  const auto error = thrown_by([&] { static_cast<void>(lm::read_model_dir("/proc/self")); });
  EXPECT_EQ(ErrorKind::refused, error.kind());
  EXPECT_EQ(std::errc::no_such_file_or_directory, error.code());
  EXPECT_EQ("/proc/self/config.json", error.path());
}

TEST(ModelDir, TellsFamilySizesAndNumbers) {
  const auto c = lm::parse_model_config(llama().dump(), "config.json");
  EXPECT_EQ("llama", *c.family.get().name);
  EXPECT_EQ(3, c.layers);
  EXPECT_EQ(96, c.hidden);
  EXPECT_EQ(6, c.heads);
  EXPECT_EQ(2, c.kv_heads);
  EXPECT_EQ(160, c.ffn);
  EXPECT_EQ(2048, c.seq_len);
  EXPECT_EQ(1000, c.vocab);
  EXPECT_TRUE(c.window.is_usual());
  EXPECT_FALSE(c.tied);
  EXPECT_EQ(1e-6, c.norm_eps);
  EXPECT_EQ(500000.0, c.rope_theta);
}

TEST(ModelDir, HasBothSpellings) {
  auto newer = llama();
  newer.erase("rope_theta");
  newer.erase("rope_scaling");
  newer.erase("torch_dtype");
  newer["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  newer["dtype"] = "bfloat16";
  newer["layer_types"] = {"full_attention", "full_attention", "full_attention"};
  EXPECT_EQ(500000.0, lm::parse_model_config(newer.dump(), "config.json").rope_theta);
}

TEST(ModelDir, HasEveryFamily) {
  auto mistral = llama();
  mistral["model_type"] = "mistral";
  mistral["sliding_window"] = 128;
  mistral.erase("attention_bias");
  mistral.erase("mlp_bias");
  EXPECT_EQ(layers::Windows(128), lm::parse_model_config(mistral.dump(), "c").window);
  mistral["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ("128,0", layers::to_string(lm::parse_model_config(mistral.dump(), "c").window));
  mistral.erase("layer_types");
  mistral["sliding_window"] = nullptr;
  EXPECT_TRUE(lm::parse_model_config(mistral.dump(), "c").window.is_usual());
  auto qwen2 = mistral;
  qwen2["model_type"] = "qwen2";
  qwen2["sliding_window"] = 4096;  // which this model does not use
  qwen2["use_sliding_window"] = false;
  qwen2["max_window_layers"] = 2;
  const auto c = lm::parse_model_config(qwen2.dump(), "c");
  EXPECT_TRUE(c.window.is_usual());
  EXPECT_EQ("qwen2", *c.family.get().name);
  const json gpt2{{"model_type", "gpt2"}, {"n_layer", 2},        {"n_head", 4},
                  {"n_embd", 64},         {"n_inner", nullptr},  {"n_positions", 128},
                  {"vocab_size", 300},    {"n_ctx", 128},        {"layer_norm_epsilon", 1e-5},
                  {"attn_pdrop", 0.1},    {"summary_type", "x"}, {"activation_function", "gelu_new"}};
  const auto g = lm::parse_model_config(gpt2.dump(), "c");
  EXPECT_EQ(256, g.ffn);
  EXPECT_TRUE(g.tied);
  EXPECT_EQ(128, g.seq_len);
}

json of_type(const char* type, const json& more) {
  auto config = llama();
  config["model_type"] = type;
  for (const auto* const key : {"mlp_bias", "head_dim"}) config.erase(key);
  config.update(more);
  return config;
}

TEST(ModelDir, HeadsHaveWidthsOfTheirOwn) {
  auto config = llama();
  config["head_dim"] = 32;
  const auto wide = lm::parse_model_config(config.dump(), "c");
  EXPECT_EQ(32, wide.head_dim());
  EXPECT_EQ(32, lm::model_config_json(wide, DType::fp32, {}).at("head_dim"));
  EXPECT_EQ(0, lm::parse_model_config(llama().dump(), "c").head_size);
  // The library's usual head width for Qwen3 is not hidden ÷ heads.
  EXPECT_EQ(128, lm::parse_model_config(of_type("qwen3", json::object()).dump(), "c").head_dim());
  EXPECT_EQ(16, lm::parse_model_config(of_type("qwen3", {{"head_dim", 16}}).dump(), "c").head_dim());
}

TEST(ModelDir, MixturesHaveTheirExperts) {
  const auto of = [](const json& more) {
    auto config = of_type("mixtral", {{"num_local_experts", 8}, {"num_experts_per_tok", 2}, {"router_aux_loss_coef", 0.02}});
    config.erase("attention_bias");
    config.update(more);
    return config;
  };
  auto c = lm::parse_model_config(of({{"router_jitter_noise", 0.0}, {"output_router_logits", false}}).dump(), "c");
  EXPECT_EQ(8, c.experts.count);
  EXPECT_EQ(2, c.experts.chosen);
  EXPECT_EQ(0, c.experts.balance_loss);
  EXPECT_THAT(refusal(of({{"output_router_logits", true}})), HasSubstr("output_router_logits is true"));
  EXPECT_THAT(refusal(of({{"router_jitter_noise", 0.1}})), HasSubstr("router_jitter_noise is 0.1"));
  EXPECT_THAT(refusal(of({{"num_local_experts", nullptr}})), HasSubstr("does not tell num_local_experts"));
  c.experts.renormalise = false;
  EXPECT_THROW(static_cast<void>(lm::model_config_json(c, DType::fp32, {})), Error);
  auto qwen =
      of_type("qwen3_moe", {{"num_experts", 6}, {"num_experts_per_tok", 3}, {"moe_intermediate_size", 96}, {"head_dim", 16}});
  const auto small = lm::parse_model_config(qwen.dump(), "c");
  EXPECT_EQ(6, small.experts.count);
  EXPECT_EQ(96, small.ffn);
  EXPECT_FALSE(small.experts.renormalise) << "as the library takes it where it is not told";
  qwen["norm_topk_prob"] = true;
  qwen["num_local_experts"] = 6;  // as newer versions write it
  qwen.erase("num_experts");
  const auto renormalised = lm::parse_model_config(qwen.dump(), "c");
  EXPECT_TRUE(renormalised.experts.renormalise);
  const auto written = lm::model_config_json(renormalised, DType::fp32, qwen);
  EXPECT_EQ(6, written.at("num_experts"));
  EXPECT_EQ(6, written.at("num_local_experts"));
  EXPECT_EQ(true, written.at("norm_topk_prob"));
  qwen["norm_topk_prob"] = 1;
  EXPECT_THAT(refusal(qwen), HasSubstr("norm_topk_prob is 1"));
  qwen["norm_topk_prob"] = true;
  qwen["mlp_only_layers"] = {0};
  EXPECT_THAT(refusal(qwen), HasSubstr("mlp_only_layers is [0]"));
  c.experts = {};  // the library has no dense model of this family
  EXPECT_THROW(static_cast<void>(lm::model_config_json(c, DType::fp32, {})), Error);
}

TEST(ModelDir, SomeBlocksAndPartsOfHeadsRotate) {
  const auto blocks = [](const json& more) {
    const auto c = lm::parse_model_config(of_type("smollm3", more).dump(), "c");
    const auto written = lm::model_config_json(c, DType::fp32, {});
    EXPECT_EQ(c.rotated_blocks, lm::parse_model_config(written.dump(), "written").rotated_blocks);
    return layers::to_string(*c.rotated_blocks);
  };
  EXPECT_EQ("1", blocks(json::object()));  // the model has three blocks
  EXPECT_EQ("1,1,1,0", blocks({{"num_hidden_layers", 6}}));
  EXPECT_EQ("1,0", blocks({{"no_rope_layer_interval", 2}}));
  EXPECT_EQ("0,1,1", blocks({{"no_rope_layers", {0, 1, 1}}, {"no_rope_layer_interval", 2}, {"pretraining_tp", 2}}));
  EXPECT_THAT(refusal(of_type("smollm3", {{"no_rope_layers", {0, 1}}})), HasSubstr("no_rope_layers is [0,1]"));
  EXPECT_THAT(refusal(of_type("smollm3", {{"no_rope_layers", {0, 1, 2}}})), HasSubstr("no list of 0 and 1"));
  for (const json& part :
       {json{{"partial_rotary_factor", 0.5}},
        json{{"rope_theta", nullptr},
             {"rope_scaling", nullptr},
             {"rope_parameters", {{"rope_theta", 9.0}, {"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}}}) {
    const auto config = of_type("phi3", part);
    const auto c = lm::parse_model_config(config.dump(), "c");
    EXPECT_EQ(0.5, c.rope_fraction);
    EXPECT_EQ(0.5, lm::parse_model_config(lm::model_config_json(c, DType::fp32, config).dump(), "written").rope_fraction);
  }
  EXPECT_THAT(refusal(of_type("phi3", {{"partial_rotary_factor", 0.2}})), HasSubstr("an even number of elements, not 3"));
  auto newer = llama();
  newer["rope_parameters"] = {{"rope_theta", 9.0}, {"partial_rotary_factor", 0.5}};
  EXPECT_THAT(refusal(newer), HasSubstr("partial_rotary_factor is 0.5"));
  auto plain = lm::parse_model_config(llama().dump(), "c");
  plain.rotated_blocks = layers::RotatedBlocks({true, false});
  EXPECT_THROW(static_cast<void>(lm::model_config_json(plain, DType::fp32, {})), Error);
  for (const auto* const text : {"", "2", "1,", ",1", "1 0", "1,x", "usual"})
    EXPECT_THROW(static_cast<void>(layers::RotatedBlocks::parse(text)), Error) << text;
}

// A model that computes in another way must never be trained silently.
TEST(ModelDir, RefusesByNameWhatChangesTheArithmetic) {
  for (const auto& [key, value, said] :
       {std::tuple<const char*, json, const char*>{
            "rope_scaling", {{"rope_type", "spiral"}, {"factor", 8.0}}, "\"spiral\" is no kind"},
        {"rope_scaling", {{"rope_type", "longrope"}, {"short_factor", {1.0}}}, "longrope needs long_factor, a list of numbers"},
        {"rope_scaling", {{"type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", {1.0, 2.0}}}, "two lists of as many"},
        {"rope_scaling", {{"type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", {-1.0}}}, "positive factors"},
        {"rope_scaling", {{"type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", {2.0}}}, "1 factors for the 8 pairs"},
        {"rope_parameters", {{"full_attention", {{"rope_theta", 1.0}}}}, "it has full_attention apart"},
        {"rope_scaling", {{"type", "linear"}}, "linear needs factor"},
        {"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}, "factor must be at least 1"},
        {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}, {"stretch", 0.7}}, "stretch of yarn is not known"},
        {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}, {"truncate", 1}}, "truncate is neither true nor false"},
        {"hidden_act", "relu", "hidden_act is \"relu\""},
        {"hidden_act", 1, "hidden_act is 1"},
        {"attention_bias", 1, "attention_bias is 1, neither true nor false"},
        {"mlp_bias", "true", "mlp_bias is \"true\", neither true nor false"},
        {"tie_word_embeddings", 1, "tie_word_embeddings is 1, neither true nor false"},
        {"tie_word_embeddings", "true", "tie_word_embeddings is \"true\", neither true nor false"},
        {"rope_interleaved", true, "what terrace does not know: rope_interleaved (true)"},
        {"auto_map", {{"AutoModel", "own.Model"}}, "what terrace does not know: auto_map"},
        {"head_dim", 33, "heads of even width, not 33"},
        {"partial_rotary_factor", 0.5, "partial_rotary_factor is 0.5"},
        {"model_type", "mamba",
         "model_type is \"mamba\"\n  terrace has gemma, gemma2, gemma3_text, gpt2, llama, mistral, mixtral, olmo2, phi3, "
         "qwen2, qwen3, qwen3_moe, smollm3"},
        {"quantization_config", {{"bits", 4}}, "what terrace does not know: quantization_config ({\"bits\":4})"},
        {"final_logit_softcapping", 30.0, "final_logit_softcapping (30.0)"},
        {"layer_types", {"full_attention", "sliding_attention"}, "layer_types"},
        {"num_hidden_layers", "three", "num_hidden_layers is \"three\", which is no size"},
        {"num_hidden_layers", -1, "num_hidden_layers is -1"},
        {"hidden_size", nullptr, "does not tell hidden_size"},
        {"num_key_value_heads", 4, "kv_heads"}}) {
    auto config = llama();
    config[key] = value;
    EXPECT_THAT(refusal(config), HasSubstr(said)) << key;
  }
  auto unused = llama();
  unused["quantization_config"] = nullptr;
  EXPECT_EQ("", refusal(unused));
  EXPECT_THROW(static_cast<void>(lm::parse_model_config("[1]", "c")), Error);
  EXPECT_THROW(static_cast<void>(lm::parse_model_config("{", "c")), Error);
}

std::vector<std::string> unread(const json& config) {
  std::vector<std::string> keys;
  static_cast<void>(lm::parse_model_config(config.dump(), "dir/config.json", &keys));
  return keys;
}

TEST(ModelDir, KeepsWhatChangesNothing) {
  auto config = llama();
  const json off = {{"use_mrope", false}, {"use_parallel", 0}, {"residual_dropout", 0.0}};
  const json known = {
      {"auto_map",
       {{"AutoConfig", "own.LlamaConfig"}, {"AutoModel", "own--code.LlamaForCausalLM"}, {"AutoTokenizer", "own/tokens"}}},
      {"do_sample", true},
      {"temperature", 0.6},
      {"cache_implementation", "hybrid"},
      {"max_new_tokens", 64},
      {"num_labels", 2},
      {"interpolate_factor", 1}};
  config.update(off), config.update(known);
  EXPECT_THAT(unread(config), ElementsAre("residual_dropout (0.0)", "use_mrope (false)", "use_parallel (0)"));
  const auto written = lm::model_config_json(lm::parse_model_config(config.dump(), "c"), DType::fp32, config);
  for (const auto& object : {off, known})
    for (const auto& [key, value] : object.items()) EXPECT_EQ(value, written.at(key)) << key;
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, json>>{{"use_mrope", true},
                                                 {"interpolate_factor", 2},
                                                 {"use_qk_norm", true},
                                                 {"sliding_window_size", 64},
                                                 {"torch_dtype dtype", "two harmless keys"},
                                                 {"auto_map", {{"AutoModel", {"own.LlamaModel"}}}},
                                                 {"auto_map", {{"AutoModel", "LlamaModel.Other"}}}}) {
    auto changed = llama();
    changed[key] = value;
    EXPECT_THAT(refusal(changed), HasSubstr("what terrace does not know: " + key));
  }
  auto qwen3 = of_type("qwen3", {{"use_qk_norm", true}});
  EXPECT_TRUE(unread(qwen3).empty());
  auto mistral = of_type("mistral", {{"sliding_window", 64}, {"sliding_window_size", 64}});
  EXPECT_TRUE(unread(mistral).empty());
}

TEST(ModelDir, HasTheScalingsOfPositions) {
  const auto of = [](const json& scaling, bool newer = false) {
    auto config = llama();
    config["rope_scaling"] = scaling;
    if (newer) {
      config.erase("rope_scaling");
      config.erase("rope_theta");
      config["rope_parameters"] = scaling;
      config["rope_parameters"]["rope_theta"] = 500000.0;
    }
    return lm::to_text(lm::parse_model_config(config.dump(), "c").rope_scaling);
  };
  const json llama3{{"rope_type", "llama3"},
                    {"factor", 8.0},
                    {"low_freq_factor", 1.0},
                    {"high_freq_factor", 4.0},
                    {"original_max_position_embeddings", 8192}};
  EXPECT_EQ("llama3:factor=8,low=1,high=4,original=8192", of(llama3));
  EXPECT_EQ(of(llama3), of(llama3, true));
  EXPECT_EQ("linear:factor=2", of({{"type", "linear"}, {"factor", 2}}));
  EXPECT_EQ("dynamic:factor=4,original=2048", of({{"type", "dynamic"}, {"factor", 4.0}}));
  EXPECT_EQ("none", of({{"rope_type", "default"}}));
  const auto yarn = lm::parse_rope_scaling(
      of({{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}, {"truncate", false}}));
  EXPECT_DOUBLE_EQ(0.1 * std::log(4.0) + 1, yarn.length);
  EXPECT_FALSE(yarn.whole);
  EXPECT_EQ(512, yarn.original);
}

TEST(ModelDir, HasLongropeInBothSpellings) {
  const std::vector<double> near(8, 1.5), far{2, 3, 4, 5, 6, 7, 8, 9};
  const json scaling{{"type", "longrope"}, {"short_factor", near}, {"long_factor", far}};
  auto older = of_type("phi3", {{"rope_scaling", scaling}, {"original_max_position_embeddings", 256}});
  auto newer = of_type("phi3", json::object());
  newer.erase("rope_scaling");
  newer["rope_parameters"] = scaling;
  newer["rope_parameters"]["rope_theta"] = 500000.0;
  newer["original_max_position_embeddings"] = 256;  // without it the library takes 4096 and ignores the object
  for (const auto& config : {older, newer}) {
    const auto c = lm::parse_model_config(config.dump(), "c");
    EXPECT_DOUBLE_EQ(std::sqrt(1 + std::log(2048.0 / 256) / std::log(256.0)), c.rope_scaling.length);
    EXPECT_EQ(c.rope_scaling, lm::parse_rope_scaling(lm::to_text(c.rope_scaling)));
    auto angles = c.rope_scaling;
    for (const double positions : {256.0, 257.0}) {
      angles.positions = positions;
      for (std::int64_t i = 0; i < 8; ++i)
        EXPECT_DOUBLE_EQ(Rotary(10000).frequency(i, 16) / (positions > 256 ? far : near)[static_cast<std::size_t>(i)],
                         angles.frequency(i, 16));
    }
    // The keys of the file stay as they are, and a config.json written without a file gives the same model.
    const auto kept = lm::model_config_json(c, DType::fp32, config);
    const auto* const key = config.contains("rope_parameters") ? "rope_parameters" : "rope_scaling";
    EXPECT_EQ(config.at(key), kept.at(key));
    EXPECT_EQ(c.rope_scaling, lm::parse_model_config(kept.dump(), "kept").rope_scaling);
    EXPECT_EQ(c.rope_scaling, lm::parse_model_config(lm::model_config_json(c, DType::fp32, {}).dump(), "new").rope_scaling);
  }
}

json gemma3() {
  return of_type("gemma3_text", {{"hidden_act", nullptr},
                                 {"hidden_activation", "gelu_pytorch_tanh"},
                                 {"num_hidden_layers", 8},
                                 {"sliding_window", 512},
                                 {"query_pre_attn_scalar", 168},
                                 {"attn_logit_softcapping", nullptr},
                                 {"final_logit_softcapping", nullptr},
                                 {"cache_implementation", "hybrid"},
                                 {"max_new_tokens", 64},
                                 {"num_labels", 2},
                                 {"use_bidirectional_attention", false},
                                 {"tie_word_embeddings", nullptr}});
}

TEST(ModelDir, Gemma3HasBothSpellings) {
  auto older = gemma3(), newer = gemma3();
  older["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  older["rope_local_base_freq"] = 77.0;
  older["sliding_window_pattern"] = 3;
  newer.erase("rope_theta");
  newer.erase("rope_scaling");
  newer["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 500000.0}}},
                              {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 77.0}}}};
  const auto types = [](const char* pattern) {
    json all = json::array();
    for (const char* p = pattern; *p; ++p) all.push_back(*p == 's' ? "sliding_attention" : "full_attention");
    return all;
  };
  newer["layer_types"] = types("ssfssfss");
  for (const auto& config : {older, newer}) {
    const auto c = lm::parse_model_config(config.dump(), "c");
    EXPECT_EQ("gemma3", *c.family.get().name);
    EXPECT_EQ("512,512,0", layers::to_string(c.window));
    EXPECT_EQ(500000, c.rope_theta);
    EXPECT_EQ(77, c.window_rope_theta);
    EXPECT_EQ("linear:factor=8", lm::to_text(c.rope_scaling));
    EXPECT_EQ(168, c.query_scalar);
    EXPECT_EQ(0, c.attention_cap);
    EXPECT_EQ(0, c.logit_cap);
    EXPECT_TRUE(c.tied);
    const auto t = lm::transformer_of(c);
    EXPECT_EQ(Rotary(77), t.rotary(0));
    EXPECT_EQ(RotaryScaling::linear, t.rotary(2).scaling);
    for (const auto& base : {config, json()}) {
      const auto written = lm::model_config_json(c, DType::fp32, base);
      EXPECT_EQ(types("ssfssfss"), written.at("layer_types"));
      const auto again = lm::parse_model_config(written.dump(), "written");
      EXPECT_EQ(c.window, again.window);
      EXPECT_EQ(c.window_rope_theta, again.window_rope_theta);
      EXPECT_EQ(c.rope_theta, again.rope_theta);
      EXPECT_EQ(c.rope_scaling, again.rope_scaling);
      EXPECT_EQ(c.query_scalar, again.query_scalar);
      EXPECT_EQ(c.logit_cap, again.logit_cap);
    }
  }
  EXPECT_EQ("512,512,512,512,512,0", layers::to_string(lm::parse_model_config(gemma3().dump(), "c").window));
  newer["rope_parameters"]["sliding_attention"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  EXPECT_THAT(refusal(newer), HasSubstr("sliding_attention changes the angles"));
  newer["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5.0}};
  EXPECT_THAT(refusal(newer), HasSubstr("rope_parameters has rope_theta, which is no type of layers"));
  auto bidirectional = gemma3();
  bidirectional["use_bidirectional_attention"] = true;
  EXPECT_THAT(refusal(bidirectional), HasSubstr("use_bidirectional_attention is true"));
}

// In the file of a model with images, one object has the keys of the language model, without those that have their usual
// values.
TEST(ModelDir, GemmasLanguageModelIsFoundInAModelWithAPartForImages) {
  const json config{{"architectures", {"Gemma3ForConditionalGeneration"}},
                    {"model_type", "gemma3"},
                    {"eos_token_id", {1, 106}},
                    {"mm_tokens_per_image", 256},
                    {"torch_dtype", "bfloat16"},
                    {"text_config",
                     {{"hidden_size", 2560},
                      {"intermediate_size", 10240},
                      {"model_type", "gemma3_text"},
                      {"num_hidden_layers", 34},
                      {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                      {"sliding_window", 1024}}},
                    {"vision_config", {{"hidden_size", 1152}, {"model_type", "siglip_vision_model"}}}};
  const auto c = lm::parse_model_config(config.dump(), "c");
  EXPECT_EQ(std::tuple(34, 2560, 8, 4, 256, 10240, 131072, 262208),
            std::tuple(c.layers, c.hidden, c.heads, c.kv_heads, c.head_dim(), c.ffn, c.seq_len, c.vocab));
  EXPECT_EQ("1024,1024,1024,1024,1024,0", layers::to_string(c.window));
  EXPECT_EQ("linear:factor=8", lm::to_text(c.rope_scaling));
  EXPECT_TRUE(c.tied);
  const auto written = lm::model_config_json(c, DType::bf16, config);
  EXPECT_EQ("gemma3_text", written.at("model_type"));
  EXPECT_FALSE(written.contains("vision_config"));
  EXPECT_EQ(c.window, lm::parse_model_config(written.dump(), "written").window);
  auto unknown = config;
  unknown["text_config"]["router_jitter"] = 1;
  EXPECT_THAT(refusal(unknown), HasSubstr("router_jitter"));
}

// A window longer than all sequences is kept for files and computes the same as none; in Gemma 3 with its own rotary base.
TEST(ModelDir, AWindowMayBeLongerThanTheSequences) {
  for (const std::string type : {"mistral", "mixtral", "phi3", "gemma2", "gemma3_text"}) {
    SCOPED_TRACE(type);
    auto config = type.starts_with("gemma") ? gemma3() : of_type(type.c_str(), {{"attention_bias", nullptr}});
    if (type == "mixtral") config.update({{"num_local_experts", 4}, {"num_experts_per_tok", 2}});
    config["model_type"] = type;
    config["sliding_window"] = 4096;
    config["max_position_embeddings"] = 2048;
    const auto c = lm::parse_model_config(config.dump(), "c");
    const std::string pattern = type == "gemma2" ? "4096,0" : type == "gemma3_text" ? "4096,4096,4096,4096,4096,0" : "4096";
    EXPECT_EQ(pattern, layers::to_string(c.window));
    auto shorter = c;
    shorter.seq_len = 32;
    const auto computed = lm::transformer_of(lm::complete(shorter)).window;
    EXPECT_EQ(type == "gemma3_text" ? "32,32,32,32,32,0" : type == "gemma2" ? "0,0" : "0", layers::to_string(computed));
    const auto written = lm::model_config_json(shorter, DType::fp32, config);
    EXPECT_EQ(4096, written.at("sliding_window"));
    EXPECT_EQ(2048, written.at("max_position_embeddings"));
    EXPECT_EQ(c.window, lm::parse_model_config(written.dump(), "written").window);
  }
}

TEST(ModelDir, Gemma2HasCapsUnlessTheyAreNull) {
  const auto of = [](const json& more) {
    auto config = gemma3();
    config["model_type"] = "gemma2";
    for (const auto& [key, value] : more.items()) config[key] = value;
    return config;
  };
  const auto capped = of({{"attn_logit_softcapping", 50.0}, {"final_logit_softcapping", 20.0}});
  const auto c = lm::parse_model_config(capped.dump(), "c");
  EXPECT_EQ(50, c.attention_cap);
  EXPECT_EQ(20, c.logit_cap);
  EXPECT_EQ("512,0", layers::to_string(c.window));
  EXPECT_EQ(20.0, lm::model_config_json(c, DType::fp32, {}).at("final_logit_softcapping"));
  auto untold = of({});
  untold.erase("attn_logit_softcapping");
  const auto usual = lm::parse_model_config(untold.dump(), "c");
  EXPECT_EQ(50, usual.attention_cap) << "as the library takes it where it is not told";
  EXPECT_EQ(0, usual.logit_cap) << "null is none";
  EXPECT_TRUE(lm::model_config_json(usual, DType::fp32, {}).at("final_logit_softcapping").is_null());
  for (const json& bad : {json(0), json(-1.0), json("50"), json::array()})
    EXPECT_THAT(refusal(of({{"attn_logit_softcapping", bad}})), HasSubstr("which is no cap"));
  EXPECT_THAT(refusal(of({{"query_pre_attn_scalar", 0}})), HasSubstr("query_pre_attn_scalar is 0"));
  EXPECT_THAT(refusal(of({{"hidden_activation", "relu"}})), HasSubstr("hidden_activation is \"relu\""));
  // Settings that the library does not have for Llama.
  auto plain = lm::parse_model_config(llama().dump(), "c");
  plain.logit_cap = 3;
  EXPECT_THROW(static_cast<void>(lm::model_config_json(plain, DType::fp32, {})), Error);
  plain.logit_cap = 0, plain.query_scalar = 3;
  EXPECT_THROW(static_cast<void>(lm::model_config_json(plain, DType::fp32, {})), Error);
  plain.query_scalar = 0, plain.window_rope_theta = 3;
  EXPECT_THROW(static_cast<void>(lm::model_config_json(plain, DType::fp32, {})), Error);
}

// The embedding is multiplied by the root of the width, rounded to the weights' dtype: 55.5 in bf16, not 55.4256.
TEST(ModelDir, GemmasEmbeddingIsMultiplied) {
  auto config = gemma3();
  config["hidden_size"] = 3072;
  auto c = lm::parse_model_config(config.dump(), "c");
  c.dtype = DType::fp32;
  EXPECT_DOUBLE_EQ(std::sqrt(3072.0), lm::transformer_of(c).embedding_factor);
  c.dtype = DType::bf16;
  EXPECT_EQ(55.5, lm::transformer_of(c).embedding_factor);
}

TEST(ModelDir, HasTheTypeOfItsWeights) {
  for (const auto& [name, dtype] : {std::pair{"bfloat16", DType::bf16},
                                    {"float16", DType::bf16},
                                    {"float32", DType::fp32},
                                    {"float64", DType::fp64},
                                    {"unheard_of", DType::fp32}})
    for (const auto* const key : {"torch_dtype", "dtype"}) {
      auto config = llama();
      config.erase("torch_dtype");
      EXPECT_EQ(DType::fp32, lm::parse_model_config(config.dump(), "c").dtype);
      config[key] = name;
      EXPECT_EQ(dtype, lm::parse_model_config(config.dump(), "c").dtype) << key << ' ' << name;
    }
}

// Computes the formulas in another way: a wave of pair i has 2π · base^(2i/D) positions.
TEST(ModelDir, ScaledAnglesAreThoseOfTheirFormulas) {
  const std::int64_t dim = 64;
  const auto wave = [&](const Rotary& r, std::int64_t i) { return 1 / r.frequency(i, dim); };
  auto plain = Rotary(500000);
  const auto with = [](const char* text) {
    auto r = lm::parse_rope_scaling(text);
    r.base = 500000;
    return r;
  };
  const auto llama3 = with("llama3:factor=8,low=1,high=4,original=8192");
  int kept = 0, divided = 0, blended = 0;
  for (std::int64_t i = 0; i < dim / 2; ++i) {
    EXPECT_NEAR(3 * wave(plain, i), wave(with("linear:factor=3"), i), 1e-9 * wave(plain, i));
    const double turns = 8192 / (2 * M_PI * wave(plain, i)), ratio = wave(llama3, i) / wave(plain, i);
    if (turns > 4) {
      EXPECT_DOUBLE_EQ(1, ratio);
      ++kept;
    } else if (turns < 1) {
      EXPECT_DOUBLE_EQ(8, ratio);
      ++divided;
    } else {
      EXPECT_NEAR(1 / ratio, 1.0 / 8 + (turns - 1) / 3 * (7.0 / 8), 1e-12);
      ++blended;
    }
    auto dynamic = with("dynamic:factor=4,original=1000");
    dynamic.positions = 1000;
    EXPECT_EQ(wave(plain, i), wave(dynamic, i));
    dynamic.positions = 3000;  // s = 4 · 3 − 3 = 9
    EXPECT_NEAR(wave(Rotary(500000 * std::pow(9.0, 64.0 / 62)), i), wave(dynamic, i), 1e-9 * wave(dynamic, i));
  }
  EXPECT_GT(kept * divided * blended, 0);
  const auto yarn = with("yarn:factor=4,original=8192");
  EXPECT_EQ(wave(plain, 0), wave(yarn, 0));
  EXPECT_NEAR(4 * wave(plain, dim / 2 - 1), wave(yarn, dim / 2 - 1), 1e-6 * wave(plain, dim / 2 - 1));
}

TEST(ModelDir, ScalingsThatAreNoneAreRefused) {
  for (const auto* const text :
       {"", "yarn", "linear:factor=x", "linear:factor=2,low=1", "llama3:factor=8", "dynamic:factor=4",
        "yarn:factor=4,original=0", "llama3:factor=8,low=4,high=1,original=8192", "linear:factor=inf", "default:"})
    EXPECT_THROW(static_cast<void>(lm::parse_rope_scaling(text)), Error) << text;
}

TEST(ModelDir, WhatIsWrittenIsReadAsTheSameModel) {
  for (const auto* const family : lm::families())
    for (const bool tied : {false, true}) {
      lm::ModelConfig c{.family = *family, .layers = 2, .hidden = 64, .heads = 4, .seq_len = 32, .vocab = 260, .tied = tied};
      if (*family->grouped_heads) c.kv_heads = 2;
      if (!(*family->file.window.size).empty()) c.window = 8;
      if (family->file.experts.size() != 0) c.experts = {.count = 5, .chosen = 3};
      if (!(*family->file.head_dim).empty()) c.head_size = tied ? 24 : 16;
      c.norm_eps = 3e-6;
      if (lm::rotary_positions(*family)) {
        c.rope_theta = 1234.5;
        if (tied && (*lm::rotary_positions(*family)->only_scaling).empty())
          c.rope_scaling = lm::parse_rope_scaling("yarn:factor=4,original=16");
      }
      c = lm::complete(c);
      json newer{{"dtype", "float16"}, {"bos_token_id", 7}};
      if (const auto* const rotary = lm::rotary_positions(*family))
        newer[json::json_pointer(std::string(rotary->scaling_keys[1]))] = {{"rope_theta", 7.0}, {"rope_type", "default"}};
      for (const auto& base : {json(), newer}) {
        const auto written = lm::model_config_json(c, DType::bf16, base);
        const auto read = lm::parse_model_config(written.dump(), "written");
        EXPECT_EQ(&c.family.get(), &read.family.get());
        EXPECT_EQ(std::tuple(c.layers, c.hidden, c.heads, c.kv_heads, c.ffn, c.seq_len, c.vocab, c.window, c.tied, c.norm_eps,
                             c.rope_theta, c.head_dim(), c.rotated_blocks, c.experts.count, c.experts.chosen),
                  std::tuple(read.layers, read.hidden, read.heads, read.kv_heads, read.ffn, read.seq_len, read.vocab,
                             read.window, read.tied, read.norm_eps, read.rope_theta, read.head_dim(), read.rotated_blocks,
                             read.experts.count, read.experts.chosen))
            << written;
        EXPECT_EQ(lm::to_text(c.rope_scaling), lm::to_text(read.rope_scaling)) << written;
        EXPECT_EQ("bfloat16", written.at("torch_dtype"));
        EXPECT_EQ(base.is_object() ? json(7) : json(), written.value("bos_token_id", json()));
      }
    }
}

// The library counts from max_position_embeddings, whatever the length of a run's sequences.
TEST(ModelDir, ADynamicScalingKeepsItsPositions) {
  auto config = llama();
  config["max_position_embeddings"] = 16;
  config["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.0}};
  auto c = lm::parse_model_config(config.dump(), "c");
  c.seq_len = 64;
  const auto written = lm::model_config_json(c, DType::fp32, config);
  EXPECT_EQ(16, written.at("max_position_embeddings"));
  EXPECT_EQ("dynamic:factor=2,original=16", lm::to_text(lm::parse_model_config(written.dump(), "c").rope_scaling));
}

TEST(ModelDir, ModelsThatTheLibraryDoesNotHaveAreNotWritten) {
  lm::ModelConfig c{
      .family = lm::family_named("llama"), .layers = 2, .hidden = 64, .heads = 4, .seq_len = 32, .window = 8, .vocab = 260};
  c = lm::complete(c);
  EXPECT_THROW(static_cast<void>(lm::model_config_json(c, DType::fp32, {})), Error);
}

// A list of layer types must fit the model or is refused: it is not cut, repeated or ignored.
TEST(ModelDir, LayerTypesHaveOneForEachLayer) {
  const auto types = [](const char* pattern) {
    json all = json::array();
    for (const char* p = pattern; *p; ++p) all.push_back(*p == 's' ? "sliding_attention" : "full_attention");
    return all;
  };
  const auto of = [&](const char* type, const char* pattern, const json& window = 128) {
    auto config = of_type(type, {{"sliding_window", window}, {"layer_types", types(pattern)}});
    config.erase("attention_bias");
    return config;
  };
  for (const auto* const pattern : {"", "sf", "sfss", "s"})
    EXPECT_THAT(refusal(of("mistral", pattern)), HasSubstr("layer_types is " + types(pattern).dump() + ", for 3 layers"));
  EXPECT_THAT(refusal(of("mistral", "sfs", nullptr)), HasSubstr("for 3 layers with no window"));
  EXPECT_THAT(refusal(of("llama", "ffs")), HasSubstr("for 3 layers with no window"));
  EXPECT_THAT(refusal(of("llama", "ff")), HasSubstr("for 3 layers"));
  EXPECT_EQ("", refusal(of("llama", "fff")));
  for (const auto* const type : {"phi3", "mixtral"}) {
    auto config = of(type, "fff");
    if (type == std::string("mixtral")) config.update({{"num_local_experts", 4}, {"num_experts_per_tok", 2}});
    EXPECT_THAT(refusal(config), HasSubstr("the library does not read it in this model, and computes with a window of 128"));
    config["layer_types"] = types("sss");
    EXPECT_EQ("", refusal(config));
  }
  for (const auto* const pattern : {"sfs", "ffs", "sff"}) {
    const auto config = of("mistral", pattern);
    const auto c = lm::parse_model_config(config.dump(), "c");
    for (const auto& base : {config, json()}) {
      const auto written = lm::model_config_json(c, DType::fp32, base);
      EXPECT_EQ(types(pattern), written.at("layer_types"));
      EXPECT_EQ(128, written.at("sliding_window"));
      EXPECT_EQ(16, written.at("head_dim")) << "a Ministral of the library does not compute it";
      EXPECT_EQ(c.window, lm::parse_model_config(written.dump(), "written").window);
    }
  }
  // A Mistral whose layers are all alike stays one: with layer types, the library's Auto classes take it for a Ministral.
  auto alike = of("mistral", "sss");
  alike.erase("layer_types");
  EXPECT_FALSE(lm::model_config_json(lm::parse_model_config(alike.dump(), "c"), DType::fp32, alike).contains("layer_types"));
}

TEST(ModelDir, WindowsThatHaveToBeSwitchedOn) {
  const auto qwen = [](const char* type, const json& more) {
    auto config =
        of_type(type, {{"use_sliding_window", true}, {"sliding_window", 64}, {"max_window_layers", 1}, {"head_dim", 16}});
    if (type == std::string("qwen3_moe"))
      config.update({{"num_experts", 4}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 32}});
    config.update(more);
    return config;
  };
  const auto windows = [](const json& config) {
    const auto c = lm::parse_model_config(config.dump(), "c");
    for (const auto& base : {config, json()}) {
      const auto written = lm::model_config_json(c, DType::fp32, base);
      EXPECT_EQ(!c.window.is_usual(), written.at("use_sliding_window")) << written;
      EXPECT_EQ(c.window, lm::parse_model_config(written.dump(), "written").window) << written;
      if (config.at("model_type") == "qwen2" && !c.window.is_usual()) {
        EXPECT_EQ(1, written.at("max_window_layers"));
      }
    }
    return layers::to_string(c.window);
  };
  for (const auto* const type : {"qwen2", "qwen3"}) {
    EXPECT_EQ("0,64,64", windows(qwen(type, json::object())));
    EXPECT_EQ("0", windows(qwen(type, {{"max_window_layers", nullptr}}))) << "28 layers have none, as the library takes it";
    EXPECT_EQ("0", windows(qwen(type, {{"use_sliding_window", false}})));
    EXPECT_EQ("0", windows(qwen(type, {{"sliding_window", nullptr}})));
  }
  EXPECT_EQ("64", windows(qwen("qwen3_moe", json::object())));
  EXPECT_EQ("0,64", windows(qwen("smollm3", {{"no_rope_layers", {1, 0, 1}}})));
  EXPECT_THAT(refusal(qwen("qwen2", {{"use_sliding_window", 1}})), HasSubstr("use_sliding_window is 1"));
  EXPECT_THAT(refusal(qwen("qwen2", {{"sliding_window", 0}})), HasSubstr("sliding_window is 0"));
}

// Granite's code models have such biases; they are Llama models.
TEST(ModelDir, BiasesAreThoseOfTheFile) {
  const auto names = [](const json& config) {
    const auto c = lm::parse_model_config(config.dump(), "c");
    EXPECT_EQ(config.at("attention_bias"), lm::model_config_json(c, DType::fp32, {}).at("attention_bias"));
    std::set<std::string> found;
    for (const auto& layer : lm::make_model(c).layers)
      for (const auto& param : layer->params())
        if (param.name.starts_with("model.layers.1.") && param.name.ends_with(".bias")) found.insert(param.name.substr(15));
    return found;
  };
  auto config = llama();
  EXPECT_EQ(std::set<std::string>{}, names(config));
  config["mlp_bias"] = true;
  const std::set<std::string> of_mlp{"mlp.down_proj.bias", "mlp.gate_proj.bias", "mlp.up_proj.bias"};
  EXPECT_EQ(of_mlp, names(config));
  config["attention_bias"] = true;
  auto all = of_mlp;
  for (const auto* const name : {"q", "k", "v", "o"}) all.insert(fmt::format("self_attn.{}_proj.bias", name));
  EXPECT_EQ(all, names(config));
  auto plain =
      lm::complete({.family = lm::family_named("mistral"), .layers = 1, .hidden = 8, .heads = 2, .seq_len = 4, .vocab = 256});
  plain.attention_bias = true;
  EXPECT_THROW(static_cast<void>(lm::complete(plain)), Error);
}

// An export never has what the library refuses to load.
TEST(ModelDir, ExportsCanBeLoaded) {
  const auto of = [](const char* family, const auto& change) {
    lm::ModelConfig c{.family = lm::family_named(family), .layers = 2, .hidden = 64, .heads = 4, .seq_len = 32, .vocab = 260};
    change(c);
    return lm::model_config_json(lm::complete(c), DType::fp32, {});
  };
  const auto refused = [&](const char* family, const auto& change) -> std::string {
    return error_of([&] { static_cast<void>(of(family, change)); });
  };
  // The library's own padding token is beyond small vocabularies.
  for (const auto& [family, padding] : {std::pair{"phi3", 32000}, {"smollm3", 128004}}) {
    const auto small = of(family, [](auto&) {});
    EXPECT_TRUE(small.contains("pad_token_id") && small.at("pad_token_id").is_null()) << small;
    EXPECT_FALSE(of(family, [&](auto& c) { c.vocab = padding + 1; }).contains("pad_token_id"));
    EXPECT_TRUE(of(family, [&](auto& c) { c.vocab = padding; }).contains("pad_token_id"));
  }
  EXPECT_FALSE(of("llama", [](auto&) {}).contains("pad_token_id"));
  for (const auto* const scaling : {"linear:factor=2", "yarn:factor=2,original=16", "dynamic:factor=2,original=16"})
    EXPECT_THAT(refused("phi3", [&](auto& c) { c.rope_scaling = lm::parse_rope_scaling(scaling); }),
                HasSubstr("of its positions is none that Hugging Face's library has as Phi3ForCausalLM"));
  const auto longrope = of("phi3", [](auto& c) {
    c.rope_scaling = lm::parse_rope_scaling("longrope:original=16,short=1/1/1/1/1/1/1/1,long=2/2/2/2/2/2/2/2");
  });
  EXPECT_EQ(16, longrope.at("original_max_position_embeddings")) << "which stands above that of the object";
  const auto mixture = [](const char* scaling) {
    return [=](auto& c) {
      c.experts = {.count = 4, .chosen = 2};
      c.rope_scaling = lm::parse_rope_scaling(scaling);
    };
  };
  EXPECT_FALSE(of("mixtral", mixture("none")).contains("head_dim"));
  EXPECT_EQ(16, of("mixtral", mixture("dynamic:factor=2,original=16")).at("head_dim"));
  EXPECT_THAT(refused("phi3",
                      [](auto& c) {
                        c.head_size = 8;
                        c.rope_scaling = lm::parse_rope_scaling("longrope:original=16,short=1/1/1/1,long=2/2/2/2");
                      }),
              HasSubstr("4 factors of positions, where hidden / heads has 8 pairs"));
  EXPECT_THAT(refused("llama", [](auto& c) { c.head_size = 16, c.heads = c.kv_heads = 5; }),
              HasSubstr("5 heads and a hidden size of 64"));
  EXPECT_EQ("", refused("qwen3", [](auto& c) { c.head_size = 16, c.heads = c.kv_heads = 5; }));
  EXPECT_THAT(refused("llama", [](auto& c) { c.rope_scaling = lm::parse_rope_scaling("yarn:factor=2,original=16.5"); }),
              HasSubstr("positions that are scaled from 16.5"));
  EXPECT_THAT(refused("gemma2", [](auto& c) { c.query_scalar = 24.5; }), HasSubstr("the root of 24.5"));
  EXPECT_THAT(refused("gemma3", [](auto& c) { c.attention_cap = 3; }), HasSubstr("a cap of its scores"));
}

class ModelDirFiles : public FolderTest {};

// Every element has its own value, which depends on its place in the tensor.
void numbers(const ParamSpec& param, std::uint64_t first, TensorView range) {
  for (std::int64_t i = 0; i < range.elements(); ++i)
    range.as<float>()[i] = static_cast<float>(param.name.size() * 1000 + (first + static_cast<std::uint64_t>(i)) % 977);
}

TEST_F(ModelDirFiles, WeightsOfSeveralFilesAreReadAsThoseOfOne) {
  const lm::ModelConfig c{.family = lm::family_named("qwen2"),
                          .layers = 3,
                          .hidden = 64,
                          .heads = 4,
                          .kv_heads = 2,
                          .seq_len = 32,
                          .vocab = 300,
                          .tied = false};
  const auto model = lm::make_model(lm::complete(c));
  for (const std::uint64_t most : {std::uint64_t{1} << 40, std::uint64_t{60'000}, std::uint64_t{1}}) {
    const auto dir = folder_ / std::to_string(most);
    std::filesystem::create_directory(dir);
    lm::write_weight_files(dir, model, DType::fp32, most, numbers);
    const lm::WeightFiles files(dir);
    EXPECT_EQ(most == std::uint64_t{1} << 40, files.files().size() == 1);
    const auto weights = lm::weights_from(dir, c.family, model);
    EXPECT_TRUE(lm::tensors_of_another_model(dir, c.family, model).empty());
    std::vector<float> read(100), expected(100);
    for (const auto& layer : model.layers)
      for (const auto& param : layer->params()) {
        const auto count = std::min<std::int64_t>(100, param.shape.elements());
        const auto view = [&](std::vector<float>& to) {
          return TensorView{reinterpret_cast<std::byte*>(to.data()), DType::fp32, {count}};
        };
        const auto first = static_cast<std::uint64_t>(param.shape.elements() - count);
        weights.read(param, first, view(read));
        numbers(param, first, view(expected));
        EXPECT_EQ(expected, read) << param.name;
      }
  }
}

TEST_F(ModelDirFiles, AnIndexStaysInItsDirectoryAndIsTrue) {
  const lm::ModelConfig c{
      .family = lm::family_named("llama"), .layers = 1, .hidden = 64, .heads = 4, .seq_len = 32, .vocab = 300};
  lm::write_weight_files(folder_, lm::make_model(lm::complete(c)), DType::fp32, 1, numbers);
  const auto index = folder_ / lm::kWeightsIndex;
  const auto good = json::parse(read_text_file(index));
  const auto why = [&](const std::function<void(json&)>& change) {
    auto bad = good;
    change(bad);
    std::ofstream(index) << bad;
    return error_of(ErrorKind::corrupt, [&] { const lm::WeightFiles files(folder_); });
  };
  const std::string norm = "model.norm.weight", table = "model.embed_tokens.weight";
  EXPECT_EQ("", why([](json&) {}));
  for (const auto* const name : {"../x.safetensors", "/etc/passwd", "a/b.safetensors", "", ".."})
    EXPECT_THAT(why([&](json& j) { j["weight_map"][norm] = name; }), HasSubstr("no file of the directory")) << name;
  EXPECT_THAT(why([&](json& j) { j["weight_map"][norm] = j["weight_map"][table]; }), HasSubstr("is not in model-00001"));
  EXPECT_THAT(why([&](json& j) { j["weight_map"]["model.none.weight"] = j["weight_map"][table]; }),
              HasSubstr("model.none.weight"));
  EXPECT_THAT(why([&](json& j) { j["weight_map"][norm] = 7; }), HasSubstr("is no text"));
  EXPECT_THAT(why([&](json& j) { j.erase("weight_map"); }), HasSubstr("no weight_map"));
  EXPECT_THAT(why([&](json& j) { j["weight_map"] = json::object(); }), HasSubstr("names no file"));
  std::ofstream(index) << std::string(100'000, '[');
  EXPECT_THROW(const lm::WeightFiles files(folder_), Error);
  // If a tensor is named twice, neither file is chosen silently.
  auto twice = good.dump();
  twice.insert(twice.find(fmt::format("\"{}\"", norm)), fmt::format(R"("{}":{},)", norm, good["weight_map"][table].dump()));
  std::ofstream(index) << twice;
  EXPECT_THAT(error_of(ErrorKind::corrupt, [&] { const lm::WeightFiles files(folder_); }),
              HasSubstr("model.safetensors.index.json: it has the key \"model.norm.weight\" twice"));
}

// Directories as users have them: with an old model's index, with links copied without their targets, cloned without Git LFS.
TEST_F(ModelDirFiles, WhatIsNoFileOfWeightsIsSaid) {
  const lm::ModelConfig c{
      .family = lm::family_named("llama"), .layers = 1, .hidden = 64, .heads = 4, .seq_len = 32, .vocab = 300};
  const auto model = lm::make_model(lm::complete(c));
  const auto in = [&](const char* name, std::uint64_t most) {
    const auto dir = folder_ / name;
    std::filesystem::create_directory(dir);
    lm::write_weight_files(dir, model, DType::fp32, most, numbers);
    return dir;
  };
  const auto whole = in("whole", std::uint64_t{1} << 40), parts = in("parts", 1);
  const auto why = [](const std::filesystem::path& path) { return refusal_of([&] { const lm::WeightFiles files(path); }); };
  std::filesystem::copy(parts / lm::kWeightsIndex, whole / lm::kWeightsIndex);
  EXPECT_EQ(std::vector{whole / lm::kWeightsFile}, lm::weight_files(whole)) << "the library takes the whole file";
  EXPECT_EQ("", why(whole));

  std::filesystem::remove(parts / lm::kWeightsIndex);
  EXPECT_THAT(why(parts), AllOf(HasSubstr("parts has model-00001-of-000"), HasSubstr("but not model.safetensors.index.json")));
  const auto pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n";
  const auto file = whole / lm::kWeightsFile, index = parts / lm::kWeightsIndex;
  for (const auto& [name, dir] : {std::pair{file, whole}, {index, parts}}) {
    std::filesystem::remove(name);
    std::ofstream(name) << pointer;
    EXPECT_THAT(why(dir), AllOf(HasSubstr(name.string() + " is a pointer of Git LFS"), HasSubstr("git lfs pull")));
    std::filesystem::remove(name);
    std::filesystem::create_symlink("../blobs/1", name);
  }
  EXPECT_THAT(why(parts),
              AllOf(HasSubstr(index.string() + " is a link to ../blobs/1, which does not exist"), HasSubstr("cp -rL")));
  EXPECT_THAT(why(file), HasSubstr("is a link to ../blobs/1"));
  EXPECT_THAT(why(whole), HasSubstr("model-00001-of-")) << "the index is read";
  std::filesystem::create_symlink("nowhere", folder_ / lm::kModelConfigFile);
  EXPECT_THAT(refusal_of_dir(folder_), HasSubstr("config.json is a link to nowhere"));
}

// The library's AutoModel writes these names, those of the model without its output head.
TEST_F(ModelDirFiles, NamesMayLackTheirPrefix) {
  for (const auto* const family : {"llama", "gemma3", "gpt2"})
    for (const bool tied : {true, false}) {
      SCOPED_TRACE(family);
      const lm::ModelConfig c{
          .family = lm::family_named(family), .layers = 1, .hidden = 64, .heads = 4, .seq_len = 32, .vocab = 300, .tied = tied};
      const auto model = lm::make_model(lm::complete(c));
      const std::string prefix(*c.family.get().tensors.optional_prefix);
      std::vector<std::vector<ParamSpec>> layers;
      std::vector<lm::NamedParam> params;
      for (const auto& layer : model.layers) layers.push_back(layer->params());
      for (const auto& layer : layers)
        for (const auto& param : layer)
          if (!param.tied && param.name.starts_with(prefix)) params.push_back({&param, param.name.substr(prefix.size())});
      const auto file = folder_ / "short.safetensors";
      lm::write_weight_file(file, params, DType::fp32, numbers);
      if (tied) {
        EXPECT_NO_THROW(static_cast<void>(lm::weights_from(file, c.family, model)));
        EXPECT_TRUE(lm::tensors_of_another_model(file, c.family, model).empty());
        continue;
      }
      EXPECT_THAT(thrown_by([&] { static_cast<void>(lm::weights_from(file, c.family, model)); }).what(),
                  AllOf(HasSubstr("has no tensor lm_head.weight"), HasSubstr("AutoModelForCausalLM")));
    }
}

// Sizes that no model has are refused before anything of such a size is made.
TEST(ModelDir, HugeAndFractionalSizesAreRefusedAtOnce) {
  auto huge =
      of_type("smollm3", {{"num_hidden_layers", std::int64_t{1} << 40}, {"no_rope_layer_interval", std::int64_t{1} << 40}});
  EXPECT_THAT(refusal(huge), HasSubstr("layers must be at most 65536"));
  auto fraction = llama();
  fraction["num_attention_heads"] = 4.9;
  EXPECT_THAT(refusal(fraction), HasSubstr("num_attention_heads is 4.9"));
}

// Changed, cut and repeated bytes of a good file give a typed error or a model, and nothing else.
TEST_F(ModelDirFiles, DamagedFilesAreTypedErrors) {
  constexpr std::uint64_t kSeed = 21;
  const auto good = llama().dump();
  const auto index = json{{"weight_map", {{"a", "a.safetensors"}, {"b", "b.safetensors"}}}}.dump();
  std::uint64_t refused = 0;
  for (std::uint64_t round = 0; round < 3000; ++round) {
    auto text = round % 3 == 2 ? index : good;
    const auto draw = [&](std::uint64_t what, std::uint64_t below) { return math::random_below(kSeed, round, what, below); };
    for (std::uint64_t change = 0; change <= draw(0, 4); ++change) {
      const auto at = draw(10 + change, text.size());
      switch (draw(20 + change, 4)) {
        case 0: text[at] = static_cast<char>(draw(30 + change, 256)); break;
        case 1: text.erase(at, draw(30 + change, 40)); break;
        case 2: text.insert(at, text.substr(at / 2, draw(30 + change, 40))); break;
        default: text.insert(at, std::to_string(math::random_u32(kSeed, round, 40 + change)));
      }
      if (text.empty()) text = "x";
    }
    try {
      if (round % 3 == 2) {
        std::ofstream(folder_ / lm::kWeightsIndex) << text;
        static_cast<void>(lm::weight_files(folder_));
      } else {
        static_cast<void>(lm::parse_model_config(text, "config.json"));
      }
    } catch (const Error& error) {
      ++refused;
      EXPECT_TRUE(error.kind() == ErrorKind::refused || error.kind() == ErrorKind::corrupt)
          << "seed " << kSeed << ", round " << round;
    } catch (const std::exception& other) {
      ADD_FAILURE() << "seed " << kSeed << ", round " << round << ": " << other.what() << "\n" << text;
    }
  }
  EXPECT_GT(refused, 1000U);
}

}  // namespace
}  // namespace terrace::test
