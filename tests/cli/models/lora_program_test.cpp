// Fine-tuning from a user's view: adapters on any layout of ranks and tiers, written to and read from a PEFT directory, merged;
// frozen parameters; refusals. (tests/interop/lora_adapters.py compares with PEFT itself.)
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include <terrace/tests/cli/models/safetensors_file.h>
#include <terrace/tests/cli/ranks/on_ranks.h>

namespace terrace::test {
namespace {

using nlohmann::json;

class LoraProgram : public Ranks {
 protected:
  Outcome exported(const Words& words) { return terrace(Words{"ckpt", "export"} + words); }
  // Runs a step that changes no weight: its loss is the model's.
  double loss_of(const std::string& run, const Words& more) {
    const auto done = succeeded(
        train(Words{"--steps", "1", "--lr", "1e-30", "--min-lr", "1e-30", "--seq-len", "32", "--out-dir", run} + more));
    return done.exit == 0 ? steps(run).front().loss : 0;
  }
  // Compares the numbers of two exports, adapters or whole models, in fp64.
  void expect_near_files(const std::string& one, const std::string& other, double tolerance) {
    const SafetensorsFile a(bytes_of(one)), b(bytes_of(other));
    ASSERT_EQ(a.header.size(), b.header.size()) << other;
    for (const auto& [name, entry] : a.header.items()) {
      if (name == "__metadata__") continue;
      ASSERT_EQ(entry.at("shape"), b.header.at(name).at("shape")) << other << ", " << name;
      const auto expected = numbers(a.bytes_of(name)), found = numbers(b.bytes_of(name));
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(expected[i], found[i], tolerance) << other << ", " << name << ", element " << i;
    }
  }
  static std::vector<double> numbers(const std::string& bytes) {
    std::vector<double> all(bytes.size() / sizeof(double));
    std::memcpy(all.data(), bytes.data(), all.size() * sizeof(double));
    return all;
  }
  [[nodiscard]] std::string bytes_of(const std::string& file) const {
    std::ifstream in(at(file), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

// With canonical sums, data ranks, budgets and pipelines change no bit; nor does resuming.
TEST_F(LoraProgram, EveryLayoutTrainsTheSameAdapters) {
  const Words lora = flags(
      "--model llama --heads 4 --kv-heads 2 --seq-len 32 --lora-rank 3 --lora-alpha 5 --lora-targets q,v,down "
      "--canonical-reduction --steps 6");
  const auto one = succeeded(train(lora + Words{"--grad-accumulation", "4", "--out-dir", "one"}));
  for (const auto& [run, layout] :
       {std::pair<std::string, Words>{"zero1", {"--dp", "2", "--zero", "1", "--grad-accumulation", "2"}},
        {"zero3", {"--dp", "2", "--zero", "3", "--grad-accumulation", "2"}},
        {"pipeline", {"--pp", "2", "--grad-accumulation", "4"}},
        {"disk", {"--device-memory", "1MiB", "--host-memory", "1MiB", "--nvme-path", ".", "--grad-accumulation", "4"}}}) {
    EXPECT_EQ(weights_of(one), weights_of(train(lora + layout + Words{"--out-dir", run}))) << run;
  }
  const Words whole{"--grad-accumulation", "4", "--lr-schedule", "constant"};
  const auto at_once = train(lora + whole + Words{"--out-dir", "at-once"});
  ASSERT_EQ(0, train(lora + whole + Words{"--steps", "3", "--out-dir", "twice"}).exit);
  EXPECT_EQ(weights_of(at_once), weights_of(train(lora + whole + Words{"--resume", "auto", "--out-dir", "twice"})));
  // Also on other ranks.
  ASSERT_EQ(0, train(lora + whole + Words{"--steps", "3", "--out-dir", "moved"}).exit);
  const auto moved = succeeded(
      train(lora + flags("--lr-schedule constant --grad-accumulation 2 --dp 2 --zero 3 --resume auto --out-dir moved")));
  EXPECT_EQ(weights_of(at_once), weights_of(moved));
}

TEST_F(LoraProgram, EveryLayoutTrainsTheSameAdaptersOfExperts) {
  const Words lora = flags(
      "--model mixtral --experts 4 --heads 4 --seq-len 32 --lora-rank 3 --lora-targets q,gate,up,down --canonical-reduction "
      "--lr 0.01 --steps 4");
  const auto one = succeeded(train(lora + Words{"--grad-accumulation", "4", "--out-dir", "one"}));
  for (const auto& [run, layout] :
       {std::pair<std::string, Words>{"zero3", {"--dp", "2", "--zero", "3", "--grad-accumulation", "2"}},
        {"pipeline", {"--pp", "2", "--grad-accumulation", "4"}},
        {"disk", {"--device-memory", "2MiB", "--host-memory", "2MiB", "--nvme-path", ".", "--grad-accumulation", "4"}}}) {
    EXPECT_EQ(weights_of(one), weights_of(train(lora + layout + Words{"--out-dir", run}))) << run;
    EXPECT_EQ(steps("one"), steps(run));
  }
}

// Ranks that share matrices, positions or experts round differently. Whichever ranks wrote a run, its adapter, merged model and
// text are within rounding of those of one rank.
TEST_F(LoraProgram, RanksOfEveryKindTrainExportAndSayWhatOneRankDoes) {
  const Words dense{"--model", "llama", "--heads", "4", "--kv-heads", "2", "--lora-targets", "all"},
      mixed{"--model", "mixtral", "--experts", "4", "--heads", "4", "--lora-targets", "q,o,gate,up,down"};
  const std::vector<std::pair<std::string, Words>> of_dense{
      {"tp2", {"--tp", "2", "--sp", "--tp-overlap", "2"}},
      {"tp4", {"--tp", "4", "--zero", "1"}},
      {"cp2", {"--cp", "2", "--cp-mode", "ring"}},
      {"dp2tp2", {"--dp", "2", "--tp", "2", "--zero", "3", "--grad-accumulation", "2"}},
      {"pp2tp2", {"--pp", "2", "--tp", "2", "--device-memory", "2MiB", "--host-memory", "8MiB", "--nvme-path", "."}}},
      of_mixed{{"ep2", {"--ep", "2", "--grad-accumulation", "2"}},
               {"ep4", {"--ep", "4", "--grad-accumulation", "1"}},
               {"ep2tp2", {"--ep", "2", "--tp", "2", "--grad-accumulation", "2"}},
               {"ep2cp2", {"--ep", "2", "--cp", "2", "--grad-accumulation", "2"}},
               {"ep2dp2pp2", {"--ep", "2", "--dp", "2", "--pp", "2", "--zero", "1", "--grad-accumulation", "1"}}};
  for (const auto& [model, layouts] : {std::pair{dense, of_dense}, {mixed, of_mixed}}) {
    const auto one = model[1] + "-one";
    const auto lora =
        model +
        flags("--dtype fp64 --seq-len 32 --lora-rank 3 --lora-alpha 5 --lr 0.01 --eps 1e-3 --steps 5 --grad-accumulation 4");
    const auto exports = [&](const std::string& run) {
      ASSERT_EQ(0, exported({run, run + "-adapter"}).exit) << run;
      ASSERT_EQ(0, exported({"--merge", run, run + "-merged"}).exit) << run;
    };
    succeeded(train(lora + Words{"--out-dir", one}));
    exports(one);
    const auto text = text_of(one);
    for (const auto& [run, layout] : layouts) {
      succeeded(train(lora + layout + Words{"--out-dir", run}));
      expect_near(one, run, 1e-10);
      EXPECT_EQ(text, text_of(run)) << run;
      exports(run);
      expect_near_files(one + "-adapter/adapter_model.safetensors", run + "-adapter/adapter_model.safetensors", 1e-10);
      expect_near_files(one + "-merged/model.safetensors", run + "-merged/model.safetensors", 1e-10);
      EXPECT_EQ(bytes_of(one + "-adapter/adapter_config.json"), bytes_of(run + "-adapter/adapter_config.json"));
      // The adapter of one rank is read by these ranks and written again without any change.
      succeeded(train(lora + layout +
                      Words{"--init-adapter", one + "-adapter", "--steps", "1", "--lr", "1e-300", "--min-lr", "1e-300",
                            "--out-dir", run + "-in"}));
      ASSERT_EQ(0, exported({run + "-in", run + "-again"}).exit);
      EXPECT_EQ(bytes_of(one + "-adapter/adapter_model.safetensors"), bytes_of(run + "-again/adapter_model.safetensors"))
          << run;
    }
  }
}

// Tensor ranks killed at any moment continue from the last commit with the same bits; other ranks can continue, too.
TEST_F(LoraProgram, KilledTensorRanksGoOn) {
  const Words lora = flags(
      "--model llama --heads 4 --kv-heads 2 --seq-len 32 --lora-rank 3 --dtype fp64 --eps 1e-3 --lr 0.01 --lr-schedule "
      "constant --steps 40 --ckpt-interval 2 --grad-accumulation 2");
  const Words two{"--tp", "2", "--sp"};
  const auto begin = std::chrono::steady_clock::now();
  const auto whole = succeeded(train(lora + two + Words{"--out-dir", "whole"}));
  const auto whole_ns = std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
  std::mt19937_64 random(24);
  // If other work slowed down the whole run, a run to be killed may end before its time; then it is killed earlier.
  int killed = 0;
  for (auto latest_ns = static_cast<std::uint64_t>(whole_ns); killed == 0; latest_ns /= 2) {
    std::filesystem::remove_all(at("killed"));
    for (int tries = 0; tries < 4; ++tries)
      killed += Child(launch(tiny("train", lora + two + Words{"--out-dir", "killed", "--resume", "auto"})))
                    .kill_after(std::chrono::nanoseconds(random() % (latest_ns + 1)))
                    .signal == SIGKILL;
  }
  EXPECT_EQ(weights_of(whole), weights_of(train(lora + two + Words{"--out-dir", "killed", "--resume", "auto"})));
  const auto on = [&](const Words& layout, const std::string& steps) {
    return train(lora + layout + Words{"--steps", steps, "--out-dir", "moved", "--resume", "auto"});
  };
  ASSERT_EQ(0, on(two, "12").exit);
  ASSERT_EQ(0, on({"--tp", "4"}, "20").exit);
  ASSERT_EQ(0, on({"--dp", "2", "--zero", "3", "--grad-accumulation", "1"}, "30").exit);
  succeeded(on({"--cp", "2"}, "40"));
  expect_near("whole", "moved", 1e-9);
}

// Muon orthogonalises each adapter's matrix. With canonical sums, data ranks and pipelines change no bit.
TEST_F(LoraProgram, MuonTrainsAdaptersOnDataRanksAndPipelines) {
  const Words lora = flags(
      "--model llama --heads 4 --seq-len 32 --lora-rank 3 --optimizer muon --lr 0.01 --lora-targets all --warmup 0 --steps 12 "
      "--eval-first --canonical-reduction --grad-accumulation 4");
  const auto one = succeeded(train(lora + Words{"--out-dir", "one"}));
  EXPECT_LT(steps("one").back().held_out.value_or(9), json_in("one/result.json").at("first_eval_loss").get<double>() - 0.05);
  for (const auto& [run, layout] :
       {std::pair<std::string, Words>{"zero1", {"--dp", "2", "--zero", "1", "--grad-accumulation", "2"}},
        {"zero3", {"--dp", "2", "--zero", "3", "--grad-accumulation", "2"}},
        {"pipeline", {"--pp", "2"}},
        {"disk", {"--device-memory", "1MiB", "--host-memory", "1MiB", "--nvme-path", "."}}}) {
    EXPECT_EQ(weights_of(one), weights_of(train(lora + layout + Words{"--out-dir", run}))) << run;
  }
  ASSERT_EQ(0, exported({"one", "adapter"}).exit);
}

TEST_F(LoraProgram, AnAdapterGoesOutAndInAndIntoItsModel) {
  for (const auto& [family, targets] : {std::pair<std::string, std::string>{"llama", "q,v,gate"},
                                        {"phi3", "q,k,v,o"},
                                        {"gpt2", "all"},
                                        {"gemma2", "all"},
                                        {"mixtral", "all"},
                                        {"qwen3_moe", "gate,up"}}) {
    SCOPED_TRACE(family);
    const auto named = [&](const char* what) { return family + what; };
    const auto experts = family == "mixtral" || family == "qwen3_moe" ? Words{"--experts", "3"} : Words{};
    ASSERT_EQ(
        0,
        train(Words{"--model", family, "--heads", "4", "--seq-len", "32", "--steps", "3", "--out-dir", family} + experts).exit);
    ASSERT_EQ(0, exported({family, named("-base")}).exit);
    const Words lora{"--model", named("-base"), "--seq-len", "32", "--lora-rank", "4", "--lora-targets", targets};
    const auto before = loss_of(named("-before"), {"--model", named("-base")});
    EXPECT_EQ(before, loss_of(named("-new"), lora)) << "a new adapter changes the model";
    succeeded(train(lora + Words{"--steps", "8", "--lr", "0.01", "--out-dir", named("-run")}));
    succeeded(exported({named("-run"), named("-adapter")}));
    succeeded(exported({"--merge", named("-run"), named("-merged")}));
    const auto loss = loss_of(named("-in"), lora + Words{"--init-adapter", named("-adapter")});
    EXPECT_LT(loss, before);
    EXPECT_NEAR(loss, loss_of(named("-whole"), {"--model", named("-merged")}), 1e-5 * loss);
    // The adapter is written exactly as it was read.
    ASSERT_EQ(0, exported({named("-in"), named("-again")}).exit);
    EXPECT_EQ(bytes_of(named("-adapter/adapter_model.safetensors")), bytes_of(named("-again/adapter_model.safetensors")));
    const auto config = json::parse(bytes_of(named("-adapter/adapter_config.json")));
    EXPECT_EQ(4, config["r"]);
    EXPECT_EQ("LORA", config["peft_type"]);
    EXPECT_EQ(at(named("-base")).string(), config["base_model_name_or_path"].get<std::string>()) << "from any folder";
  }
}

// A file of another program: keys that change what an adapter computes, or which of its tensors count, must not be ignored.
TEST_F(LoraProgram, WhatAnAdaptersConfigurationSaysMustBeKnown) {
  const Words run{"--model", "llama", "--heads", "4", "--seq-len", "32", "--lora-rank", "4"};
  ASSERT_EQ(0, train(run + Words{"--steps", "1", "--out-dir", "run"}).exit);
  ASSERT_EQ(0, exported({"run", "adapter"}).exit);
  const auto good = json::parse(bytes_of("adapter/adapter_config.json"));
  const auto with = [&](const char* key, const json& value) {
    auto config = good;
    config[key] = value;
    std::ofstream(at("adapter/adapter_config.json")) << config;
    return train(run + Words{"--steps", "1", "--out-dir", "next", "--init-adapter", "adapter"});
  };
  const auto taken = [&](const char* key, const json& value) {
    succeeded(with(key, value));
    std::filesystem::remove_all(at("next"));
  };
  const auto refused = [&](const char* key, const json& value, const std::vector<std::string>& said) {
    expect_refusal(with(key, value), 2, said);
    EXPECT_FALSE(std::filesystem::exists(at("next")));
  };
  // Initializations that change the base, and others.
  for (const json& init :
       {json("pissa"), json("pissa_niter_16"), json("olora"), json("corda"), json("lora_ga"), json("loftq"), json(7)})
    refused("init_lora_weights", init,
            {"adapter/adapter_config.json", "init_lora_weights is " + init.dump(), "path_initial_model_for_weight_conversion"});
  for (const json& init : {json(false), json("gaussian"), json("eva"), json("orthogonal"), json("mica"), json()})
    taken("init_lora_weights", init);
  refused("kasa_config", {{"beta", 1e-4}}, {"what terrace does not know: kasa_config ({\"beta\":0.0001})", "take it out"});
  refused("use_tomorrows_lora", true, {"use_tomorrows_lora (true)"});
  for (const auto& [key, value] : {std::pair<const char*, json>{"use_tomorrows_lora", false},
                                   {"velora_config", nullptr},
                                   {"layer_replication", json::array()},
                                   {"peft_version", "0.21.2"},
                                   {"lora_dropout", 0.1},
                                   {"loftq_config", json::object()},
                                   {"megatron_core", "megatron.core"}})
    taken(key, value);
  // Names of modules: whole names, or their ends.
  for (const json& modules : {json{"q_proj"}, json{"q_proj", "proj", "model.layers.0.self_attn.v_proj"}, json::array()})
    refused("target_modules", modules, {"target_modules", "PEFT would drop that of model.layers."});
  refused("exclude_modules", {"layers.1.self_attn.q_proj"}, {"PEFT would drop that of model.layers.1.self_attn.q_proj"});
  for (const json& modules :
       {json{"q_proj", "k_proj", "v_proj"}, json{"q_proj", "model.layers.0.self_attn.v_proj", "1.self_attn.v_proj"},
        json("all-linear"), json(".*self_attn.(q|v)_proj")})
    taken("target_modules", modules);
}

TEST_F(LoraProgram, FrozenWeightsAreExportedAsTheyCame) {
  ASSERT_EQ(0, train({"--model", "llama", "--heads", "4", "--seq-len", "32", "--steps", "2", "--out-dir", "first"}).exit);
  ASSERT_EQ(0, exported({"first", "base"}).exit);
  succeeded(train({"--model", "base", "--seq-len", "32", "--steps", "3", "--freeze", "layers.*", "--out-dir", "frozen"}));
  ASSERT_EQ(0, exported({"frozen", "after"}).exit);
  const auto before = bytes_of("base/model.safetensors"), after = bytes_of("after/model.safetensors");
  ASSERT_EQ(before.size(), after.size());
  EXPECT_NE(before, after);
  std::size_t same = 0;
  for (std::size_t i = 0; i < before.size(); ++i) same += before[i] == after[i] ? 1 : 0;
  EXPECT_GT(same, before.size() / 2) << "the blocks are most of the model";
}

TEST_F(LoraProgram, WhatCannotBeIsRefused) {
  const auto refused = [&](const Words& more, const std::vector<std::string>& said) {
    expect_refusal(train(Words{"--model", "llama", "--heads", "4", "--steps", "1", "--out-dir", "no"} + more), 2, said);
  };
  refused({"--freeze", "layer.0.*"}, {"--freeze", "layer.0.*", "layers.0."});
  refused({"--freeze", "*"}, {"--freeze", "no parameter to train"});
  refused({"--freeze", "*q_proj*"}, {"--freeze", "q_proj", "one product"});
  refused({"--freeze", "norm.weight", "--vocab-tiles", "2"},
          {"--freeze", "the layer head", "--vocab-tiles", "whole or not at all"});
  refused({"--lora-rank", "4", "--lora-targets", "q,w"}, {"--lora-targets", "\"w\"", "gate, up, down"});
  refused({"--lora-rank", "4", "--optimizer", "muon", "--tp", "2"}, {"--optimizer", "whole matrices"});
  refused({"--init-adapter", "nothing"}, {"nothing/adapter_config.json", "give a directory that PEFT wrote"});
}

}  // namespace
}  // namespace terrace::test
