// --init-from with files of other models and programs, and with values that are in no tensor: the rotary base, the norm epsilon
// and the number of heads.

#include <terrace/tests/cli/cli_test.h>
#include <terrace/tests/cli/models/safetensors_file.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class InitFrom : public Cli {
 protected:
  InitFrom() {
    EXPECT_EQ(0, train({"--out-dir", "source", "--save", "m.safetensors", "--steps", "1"}).exit);
    EXPECT_EQ(0, train({"--out-dir", "source2", "--save", "gpt2.safetensors", "--steps", "1", "--model", "gpt2"}).exit);
  }
  [[nodiscard]] SafetensorsFile file(const std::string& name) const { return SafetensorsFile(scratch_.read(name)); }
  // As another program writes it.
  [[nodiscard]] SafetensorsFile without_metadata(const std::string& name) const {
    auto file = this->file(name);
    file.header.erase("__metadata__");
    return file;
  }
  [[nodiscard]] Outcome from(const std::string& name, const Words& more = {}) const {
    std::error_code ignored;
    fs::remove_all(at("next"), ignored);
    return train(Words{"--out-dir", "next", "--init-from", name, "--steps", "1"} + more);
  }
  void refuses(const std::string& name, const Words& more, const std::vector<std::string>& says) const {
    expect_refusal(from(name, more), 2, says);
    EXPECT_FALSE(fs::exists(at("next")));
  }
};

TEST_F(InitFrom, TensorsThatTheModelDoesNotHaveMeanAnotherModel) {
  succeeded(from("m.safetensors"));
  refuses("m.safetensors", {"--layers", "1"},
          {"--init-from m.safetensors: the model does not have 9 of its tensors: \"model.layers.1.", "and 6 more"});
  scratch_.write("biases.safetensors", file("m.safetensors")
                                           .add("model.layers.0.self_attn.q_proj.bias", {64}, zeros(64))
                                           .add("model.layers.1.self_attn.q_proj.bias", {64}, zeros(64))
                                           .text());
  refuses("biases.safetensors", {},
          {"does not have 2 of its tensors",
           "\"model.layers.0.self_attn.q_proj.bias\", \"model.layers.1.self_attn.q_proj.bias\"\n"});
  scratch_.write("odd.safetensors", file("m.safetensors").add("\x1b[31m" + std::string(5000, 'x'), {1}, zeros(1)).text());
  const auto odd = from("odd.safetensors");
  expect_refusal(odd, 2, {"1 of its tensors: \"\\x1b[31mxxx", "(5005 bytes)"});
  EXPECT_THAT(odd.err, Not(HasSubstr("\x1b")));
}

TEST_F(InitFrom, AHeadThatIsTheEmbeddingIsTied) {
  const auto good = from("m.safetensors");
  for (const auto& [name, embedding] :
       {std::pair{"m.safetensors", "model.embed_tokens.weight"}, {"gpt2.safetensors", "transformer.wte.weight"}}) {
    const Words family{"--model", std::string_view(name) == "m.safetensors" ? "llama" : "gpt2"};
    const auto tied = file(name);
    const auto table = tied.bytes_of(embedding);
    scratch_.write("head.safetensors", SafetensorsFile(tied).add("lm_head.weight", {256, 64}, table).text());
    EXPECT_EQ(weights_of(from(name, family)), weights_of(from("head.safetensors", family)));
    auto other = table;
    other.back() = static_cast<char>(other.back() ^ 1);
    scratch_.write("head.safetensors", SafetensorsFile(tied).add("lm_head.weight", {256, 64}, other).text());
    refuses("head.safetensors", family, {"does not have 1 of its tensors: \"lm_head.weight\"", "--untied"});
    scratch_.write("head.safetensors", SafetensorsFile(tied).add("lm_head.weight", {64, 256}, table).text());
    refuses("head.safetensors", family, {"\"lm_head.weight\""});
  }
}

TEST_F(InitFrom, BuffersOfHuggingFaceAreNoWeights) {
  scratch_.write("buffers.safetensors", file("m.safetensors")
                                            .add("model.layers.0.self_attn.rotary_emb.inv_freq", {8}, zeros(8))
                                            .add("model.rotary_emb.inv_freq", {8}, zeros(8))
                                            .text());
  EXPECT_EQ(weights_of(from("m.safetensors")), weights_of(from("buffers.safetensors")));
  // The first GPT-2 files have no prefix, and two kinds of masks.
  auto old = file("gpt2.safetensors");
  json renamed;
  for (const auto& [name, entry] : old.header.items())
    renamed[name.starts_with("transformer.") ? name.substr(12) : name] = entry;
  old.header = renamed;
  old.add("h.0.attn.bias", {1, 1, 64, 64}, std::string(64 * 64, '\1'), "U8").add("h.0.attn.masked_bias", {}, zeros(1));
  old.add("transformer.h.1.attn.bias", {1, 1, 64, 64}, zeros(64 * 64));
  scratch_.write("masks.safetensors", old.text());
  const auto masks = succeeded(from("masks.safetensors", {"--model", "gpt2"}));
  EXPECT_EQ(weights_of(from("gpt2.safetensors", {"--model", "gpt2"})), weights_of(masks));
}

TEST_F(InitFrom, WhatNoTensorTellsIsSaid) {
  const auto says =
      "does not tell its rotary base and norm epsilon, so this run uses --rope-base 10000 and --norm-eps 1e-05; the "
      "config.json of its model has the right values (rope_theta, rms_norm_eps)";
  fs::create_directory(at("model"));
  scratch_.write("model/m.safetensors", without_metadata("m.safetensors").text());
  const auto silent = succeeded(from("model/m.safetensors"));
  EXPECT_EQ(1U, silent.warnings(says)) << silent.described;
  EXPECT_EQ(1U, from("model/m.safetensors", {"--rope-base", "500000"}).warnings("does not tell its norm epsilon, so"));
  EXPECT_EQ(0U, from("model/m.safetensors", {"--rope-base", "10000", "--norm-eps", "1e-5"}).warnings("--init-from"));
  EXPECT_EQ(0U, from("gpt2.safetensors", {"--model", "gpt2"}).warnings("--init-from"));

  // With a config.json beside the file.
  scratch_.write("model/config.json", R"({"rope_theta": 500000.0, "rms_norm_eps": 1e-05, "num_attention_heads": 4})");
  refuses("model/m.safetensors", {},
          {"--init-from model/m.safetensors: model/config.json has rope_theta 500000, and this run would use 10000\n  give "
           "--rope-base 500000; or --rope-base 10000, if that is intended"});
  for (const auto* const base : {"500000", "10000"}) {
    const auto given = succeeded(from("model/m.safetensors", {"--rope-base", base}));
    EXPECT_EQ(0U, given.warnings("--init-from")) << given.described;
  }
  refuses("model/m.safetensors", {"--rope-base", "500000", "--heads", "8"},
          {"num_attention_heads 4, and this run would use 8\n  give --heads 4\n"});
  // As newer versions of transformers write it, with settings that terrace does not have.
  scratch_.write("model/config.json",
                 R"({"rope_parameters": {"rope_theta": 500000, "rope_type": "llama3"}, "rms_norm_eps": 1e-6})");
  refuses("model/m.safetensors", {"--norm-eps", "1e-6"}, {"has rope_theta 500000"});
  refuses("model/m.safetensors", {"--rope-base", "500000"}, {"has rms_norm_eps 1e-06", "give --norm-eps 1e-06"});
  EXPECT_EQ(
      1U,
      from("model/m.safetensors", {"--rope-base", "500000", "--norm-eps", "1e-6"})
          .warnings(
              "config.json has rope_parameters of type \"llama3\", and this run rotates positions with --rope-scaling none"));
  scratch_.write("model/gpt2.safetensors", without_metadata("gpt2.safetensors").text());
  scratch_.write("model/config.json", R"({"layer_norm_epsilon": 1e-6, "n_head": 4})");
  refuses("model/gpt2.safetensors", {"--model", "gpt2"}, {"has layer_norm_epsilon 1e-06", "--norm-eps"});
  // A file that does not describe a model is ignored.
  for (const auto* const other : {"{", "[]", "7", R"({"rope_theta": "big", "rope_parameters": 3, "rope_scaling": null})"}) {
    scratch_.write("model/config.json", other);
    EXPECT_EQ(1U, from("model/m.safetensors").warnings(says)) << other;
  }
}

// Windows are in no tensor. A window at least as long as a sequence has no effect.
TEST_F(InitFrom, AModelWithWindowsKeepsThem) {
  fs::create_directory(at("model"));
  scratch_.write("model/m.safetensors", without_metadata("m.safetensors").text());
  const std::string told = R"({"rope_theta": 10000, "rms_norm_eps": 1e-05, "sliding_window": )";
  for (const auto& [config, pattern] : {std::pair<std::string, std::string>{"9}", "9"},
                                        {R"(9, "layer_types": ["full_attention", "sliding_attention"]})", "0,9"},
                                        {R"(9, "sliding_window_pattern": 2})", "9,0"},
                                        {R"(9, "use_sliding_window": true})", "9"}}) {
    scratch_.write("model/config.json", told + config);
    refuses("model/m.safetensors", {},
            {"model/config.json has windows of attention, and this run would have none\n  give --window " + pattern});
    succeeded(from("model/m.safetensors", {"--window", pattern}));
  }
  for (const auto* const none :
       {"null}", "64}", R"(9, "use_sliding_window": false})", "\"many\"}", R"(9, "layer_types": ["sliding_attention"]})"}) {
    scratch_.write("model/config.json", told + none);
    succeeded(from("model/m.safetensors"));
  }
  fs::remove(at("model/config.json"));
  ASSERT_EQ(0, train({"--out-dir", "w", "--save", "model/w.safetensors", "--window", "9,0"}).exit);
  refuses("model/w.safetensors", {}, {"its metadata has windows of attention", "give --window 9,0"});
  succeeded(from("model/w.safetensors", {"--window", "9,0"}));
}

TEST_F(InitFrom, WhatTerraceSavesTellsIt) {
  ASSERT_EQ(0, train({"--out-dir", "a", "--save", "a.safetensors", "--rope-base", "500000", "--norm-eps", "1e-6"}).exit);
  refuses("a.safetensors", {}, {"its metadata has rope_theta 500000, and this run would use 10000", "--rope-base 500000"});
  refuses("a.safetensors", {"--rope-base", "500000"}, {"its metadata has rms_norm_eps 1e-06"});
  const auto same = succeeded(from("a.safetensors", {"--rope-base", "500000", "--norm-eps", "1e-6"}));
  EXPECT_EQ(0U, same.warnings("--init-from")) << same.described;
}

TEST_F(InitFrom, BaseAndEpsilonReachTheModel) {
  const auto usual = train({"--out-dir", "usual"});
  const auto named = train({"--out-dir", "named", "--rope-base", "10000", "--norm-eps", "1e-5"});
  EXPECT_EQ(weights_of(usual), weights_of(named));
  EXPECT_EQ(steps("usual"), steps("named"));
  const auto base = train({"--out-dir", "base", "--rope-base", "500000"});
  const auto epsilon = train({"--out-dir", "epsilon", "--norm-eps", "1e-2"});
  EXPECT_NE(weights_of(usual), weights_of(base));
  EXPECT_NE(weights_of(usual), weights_of(epsilon));
  EXPECT_NE(steps("usual").front(), steps("epsilon").front());
  EXPECT_NE(weights_of(train({"--out-dir", "g", "--model", "gpt2"})),
            weights_of(train({"--out-dir", "g2", "--model", "gpt2", "--norm-eps", "1e-2"})));
  expect_refusal(train({"--out-dir", "none", "--model", "gpt2", "--rope-base", "500000"}), 2, {"--rope-base", "gpt2"});
  EXPECT_EQ(0, terrace(tiny("plan", {"--rope-base", "500000", "--norm-eps", "1e-6"})).exit);

  // A resumed run keeps its initial values.
  expect_refusal(train({"--out-dir", "usual", "--resume", "auto", "--steps", "5", "--rope-base", "500000"}), 2,
                 {"rope-base: 10000.0 then, 500000.0 now"});
  EXPECT_EQ(0, train({"--out-dir", "base", "--resume", "auto", "--steps", "5", "--rope-base", "500000"}).exit);
  // generate takes them from the run.
  const Words generate{"generate", "epsilon", "--prompt", "The river", "--max-tokens", "60"};
  EXPECT_EQ(0, terrace(generate).exit);
  auto config = scratch_.read("epsilon/config.toml");
  config.replace(config.find("norm-eps = 0.01"), 15, "norm-eps = 0.99");
  scratch_.write("epsilon/config.toml", config);
  expect_refusal(terrace(generate), 5, {"norm-eps: 0.01 in run.json, 0.99 here"});
}

// Runs from before these flags have the default values.
TEST_F(InitFrom, RunsFromBeforeTheFlagsContinue) {
  ASSERT_EQ(0, train({"--out-dir", "old", "--steps", "2"}).exit);
  for (const auto* const name : {"old/run.json", "old/run.copy.json"}) {
    auto run = json_in(name);  // without its checksum
    EXPECT_EQ(2U, run["fingerprint"].erase("rope-base") + run["fingerprint"].erase("norm-eps"));
    scratch_.write(name, run.dump());
  }
  const Words more{"--out-dir", "old", "--resume", "auto"};
  expect_refusal(train(more + Words{"--norm-eps", "1e-6"}), 2, {"norm-eps: 1e-05 then, 1e-06 now"});
  const auto rest = succeeded(train(more + Words{"--rope-base", "10000"}));
  EXPECT_EQ(weights_of(train({"--out-dir", "whole"})), weights_of(rest));
}

}  // namespace
}  // namespace terrace::test
