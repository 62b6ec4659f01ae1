// Tensor parallelism from a user's view: --tp and --sp, with threads and processes, on disk, stopped, resumed, and used to
// generate.

#include <fmt/format.h>

#include <terrace/tests/cli/ranks/on_ranks.h>

namespace terrace::test {
namespace {

class Tensor : public Ranks {
 protected:
  [[nodiscard]] Words split(const std::string& run, const Words& more) const {
    return Words{"--heads", "4", "--steps", "4", "--grad-accumulation", "4", "--out-dir", run} + more;
  }
};

TEST_F(Tensor, EveryMeshTrainsWhatOneRankTrains) {
  succeeded(train(split("one", {})));
  std::string two;
  for (const auto& [run, more] :
       {std::pair<std::string, Words>{"tp2", {"--tp", "2"}},
        {"tp2-sp", {"--tp", "2", "--sp"}},
        {"tp2-pieces", {"--tp", "2", "--sp", "--tp-overlap", "3"}},
        {"tp2-disk", {"--tp", "2", "--nvme-path", ".", "--device-memory", "2MiB", "--host-memory", "8MB"}},
        {"tp4", {"--tp", "4", "--sp"}},
        {"tp2-dp2", {"--tp", "2", "--dp", "2", "--zero", "3", "--grad-accumulation", "2"}},
        {"tp2-pp2", {"--tp", "2", "--pp", "2", "--sp"}}}) {
    const auto many = succeeded(train(split(run, more)));
    expect_near("one", run);
    if (run == "tp2") two = weights_of(many);
    if (run == "tp2-sp" || run == "tp2-disk" || run == "tp2-pp2") {
      EXPECT_EQ(two, weights_of(many)) << run;
    }
  }
#ifdef TERRACE_MPIRUN
  EXPECT_EQ(two, weights_of(run(apart(4, tiny("train", split("processes", {"--tp", "2", "--pp", "2"}))))));
#endif
}

// With 257 rows, one rank has one row more than the other. Both must plan for it; otherwise a tight budget would give them
// different steps.
TEST_F(Tensor, RanksThatDoNotDivideTheVocabularyTakeTheSameSteps) {
  const auto train_on = [&](const char* ranks, const Words& more) {
    return train(Words{"--data-format", "bytes", "--layers", "2",   "--heads", "2", "--hidden", "32",  "--seq-len", "32",
                       "--batch-size",  "2",     "--vocab",  "257", "--steps", "2", "--tp",     ranks, "--out-dir", ranks} +
                 more);
  };
  ASSERT_EQ(0, train_on("1", {}).exit);
  succeeded(train_on("2", {"--device-memory", "256KiB", "--host-memory", "unlimited"}));
  expect_near("1", "2");
}

TEST_F(Tensor, EveryGridTrainsWhatOneRankTrains) {
  const Words four{"--batch-size", "4", "--grad-accumulation", "2"};
  ASSERT_EQ(0, train(split("one", four)).exit);
  std::string two;
  for (const auto& [run, more] :
       {std::pair<std::string, Words>{"2d", {"--tp", "4", "--tp-mode", "2d"}},
        {"2d-disk", {"--tp", "4", "--tp-mode", "2d", "--nvme-path", ".", "--device-memory", "2MiB", "--host-memory", "16MB"}},
        {"2d-dp2", {"--tp", "4", "--tp-mode", "2d", "--dp", "2", "--zero", "3", "--grad-accumulation", "1"}},
        {"2d-pp2", {"--tp", "4", "--tp-mode", "2d", "--pp", "2"}},
        {"2.5d", {"--tp", "8", "--tp-mode", "2.5d", "--tp-depth", "2"}},
        {"2d-tiles", {"--tp", "4", "--tp-mode", "2d", "--vocab-tiles", "2"}},
        {"3d", {"--tp", "8", "--tp-mode", "3d"}}}) {
    const auto many = succeeded(train(split(run, four + more)));
    expect_near("one", run);
    if (run == "2d") two = weights_of(many);
    if (run == "2d-disk" || run == "2d-pp2") {
      EXPECT_EQ(two, weights_of(many)) << run;
    }
  }
#ifdef TERRACE_MPIRUN
  EXPECT_EQ(two, weights_of(run(apart(4, tiny("train", split("processes", four + Words{"--tp", "4", "--tp-mode", "2d"}))))));
#endif
  EXPECT_EQ(text_of("one"), text_of("3d"));
}

TEST_F(Tensor, ARunGoesOnInAnotherModeAndIsSavedWhole) {
  const Words constant{"--batch-size", "4", "--grad-accumulation", "2", "--lr-schedule", "constant"};
  ASSERT_EQ(0, train(split("whole", constant)).exit);
  ASSERT_EQ(0, train(split("run", constant + Words{"--steps", "1", "--tp", "4", "--tp-mode", "2d"})).exit);
  for (const auto& [until, more] :
       {std::pair<std::string, Words>{"2", {"--tp", "8", "--tp-mode", "3d"}},
        {"3", {"--tp", "2", "--sp"}},
        {"4", {"--tp", "8", "--tp-mode", "2.5d", "--tp-depth", "2", "--save", "whole.safetensors"}}}) {
    succeeded(train(split("run", constant + Words{"--steps", until, "--resume", "auto"} + more)));
    EXPECT_EQ(0, terrace({"ckpt", "verify", "run"}).exit);
  }
  expect_near("whole", "run");
  ASSERT_EQ(0, train(split("one", constant + Words{"--init-from", "whole.safetensors"})).exit);
  succeeded(train(split("grid", constant + Words{"--init-from", "whole.safetensors", "--tp", "4", "--tp-mode", "2d"})));
  expect_near("one", "grid");
}

TEST_F(Tensor, AGridThatCannotBeIsRefusedWithTheNearest) {
  const auto why = [&](const Words& more) {
    const auto refused = train(split("none", more));
    EXPECT_EQ(2, refused.exit) << refused.described;
    return refused.err;
  };
  EXPECT_THAT(why({"--tp", "8", "--tp-mode", "2d"}), HasSubstr("--tp 8: in 2D it must be a square"));
  EXPECT_THAT(why({"--tp", "8", "--tp-mode", "2d"}), HasSubstr("nearest legal: 4 and 16"));
  EXPECT_THAT(why({"--tp", "4", "--tp-depth", "2"}), HasSubstr("give --tp-mode 2.5d"));
  EXPECT_THAT(why({"--tp", "4", "--tp-mode", "2d", "--experts", "2"}), HasSubstr("leave out --experts"));
  expect_refusal(terrace(tiny("plan", {"--tp", "6", "--tp-mode", "2d"})), 2, {"--tp 6: in 2D", "nearest legal: 4 and 16"});
  expect_refusal(train(split("none", {"--tp", "4", "--tp-mode", "2d", "--batch-size", "3"})), 2,
                 {"--tp-mode", "3 sequences", "--batch-size 2"});
  EXPECT_FALSE(std::filesystem::exists(at("none")));
}

TEST_F(Tensor, AsynchronousPipelinesKeepVersionsOfParts) {
  for (const auto* const schedule : {"pipedream", "pipedream-2bw"}) {
    const Words pipeline{"--pp", "2", "--untied", "--grad-clip", "0", "--schedule", schedule, "--drain-interval", "4"};
    const std::string name = schedule;
    ASSERT_EQ(0, train(split(name, pipeline)).exit);
    succeeded(train(split(name + "-tp", pipeline + Words{"--tp", "2", "--sp"})));
    expect_near(name, name + "-tp");
    succeeded(train(split(name + "-2d", pipeline + Words{"--tp", "4", "--tp-mode", "2d"})));
    expect_near(name, name + "-2d");
  }
}

TEST_F(Tensor, WeightsAreSavedWholeAndReadByAnyMesh) {
  ASSERT_EQ(0, train(split("two", {"--tp", "2", "--sp", "--save", "two.safetensors"})).exit);
  ASSERT_EQ(0, train(split("one", {"--steps", "2", "--init-from", "two.safetensors"})).exit);
  ASSERT_EQ(0, train(split("four", {"--steps", "2", "--init-from", "two.safetensors", "--tp", "4"})).exit);
  expect_near("one", "four");
  EXPECT_EQ(24U + 1, text_of("two").size());
}

// Shards change the size of chunks, and so the ranges in which weights are read.
TEST_F(Tensor, EqualWeightsHaveOneHashHoweverTheyAreSharded) {
  const auto with = [&](const std::string& zero) {
    return train(split("zero" + zero, {"--data-format", "bytes", "--model", "gpt2", "--hidden", "20", "--ffn", "36", "--vocab",
                                       "263", "--tp", "2", "--dp", "2", "--zero", zero, "--save", zero + ".safetensors"}));
  };
  const auto whole = succeeded(with("0")), sharded = succeeded(with("1"));
  EXPECT_EQ(scratch_.read("0.safetensors"), scratch_.read("1.safetensors"));
  EXPECT_EQ(weights_of(whole), weights_of(sharded));
}

TEST_F(Tensor, ARunGoesOnWithAnotherSplit) {
  ASSERT_EQ(0, train(split("whole", {"--steps", "6"})).exit);
  ASSERT_EQ(0, train(split("run", {"--steps", "2", "--lr-schedule", "constant", "--tp", "2"})).exit);
  for (const auto& [until, more] : {std::pair<std::string, Words>{"3", {"--tp", "4", "--sp"}},
                                    {"4", {"--tp", "2", "--pp", "2"}},
                                    {"5", {}},
                                    {"6", {"--tp", "2", "--dp", "2", "--zero", "2", "--grad-accumulation", "2"}}}) {
    succeeded(train(split("run", Words{"--steps", until, "--lr-schedule", "constant", "--resume", "auto"} + more)));
    EXPECT_EQ(0, terrace({"ckpt", "verify", "run"}).exit);
  }
  ASSERT_EQ(0, train(split("constant", {"--steps", "6", "--lr-schedule", "constant"})).exit);
  expect_near("constant", "run");
}

TEST_F(Tensor, WhatItCannotDoIsRefusedWithTheNearestThatItCan) {
  const auto three = train(split("none", {"--tp", "3"}));
  EXPECT_EQ(2, three.exit);
  EXPECT_THAT(three.err, HasSubstr("--tp 3: it must divide 4 heads and 192 ffn columns\n  nearest legal: 2 and 4"));
  expect_refusal(train(split("none", {"--sp"})), 2, {"--sp", "--tp 2 or more"});
  expect_refusal(train(split("none", {"--tp", "2", "--optimizer", "muon"})), 2, {"--tp 2", "whole matrices"});
  expect_refusal(train(split("none", {"--tp", "2", "--dtype", "fp16"})), 2, {"--tp 2", "fp16"});
  EXPECT_FALSE(std::filesystem::exists(at("none")));
}

// A vocabulary in tiles rounds differently, so a run may continue with other tiles, and generates the same text.
TEST_F(Tensor, TilesOfTheVocabularyTrainWhatTheWholeTableTrains) {
  const Words constant{"--dtype", "fp64", "--lr-schedule", "constant"};
  ASSERT_EQ(0, train(split("whole", constant)).exit);
  succeeded(
      train(split("tiles", constant + flags("--vocab-tiles 3 --nvme-path disk --device-memory 2500000 --host-memory 3MB"))));
  expect_near("whole", "tiles", 1e-9);
  EXPECT_EQ(text_of("whole"), text_of("tiles"));

  ASSERT_EQ(0, train(split("stopped", constant + Words{"--steps", "2", "--vocab-tiles", "5"})).exit);
  succeeded(train(split("stopped", constant + Words{"--vocab-tiles", "2", "--resume", "auto"})));
  expect_near("whole", "stopped", 1e-9);
  expect_refusal(train(split("none", {"--vocab-tiles", "17"})), 2, {"--vocab-tiles 17", "give --vocab-tiles 16 or fewer"});
}

// Generation also uses a tiled layer tile by tile.
TEST_F(Tensor, LayersInTilesTrainAndGenerateWhatWholeOnesDo) {
  for (const auto* const family : {"gpt2", "llama"}) {
    const auto run = [&](const std::string& name) { return std::string(family) + "-" + name; };
    const Words model{"--model", family, "--ffn", "96", "--dtype", "fp64"};
    ASSERT_EQ(0, train(split(run("whole"), model)).exit);
    const auto text = text_of(run("whole"));
    for (const auto& [name, more] :
         {std::pair<std::string, Words>{"attention", {"--attention-tiles", "4"}},
          {"all", {"--attention-tiles", "2", "--mlp-tiles", "2", "--mlp-row-tiles", "3", "--vocab-tiles", "2", "--tp", "2"}}}) {
      succeeded(train(split(run(name), model + more)));
      expect_near(run("whole"), run(name), 1e-9);
      EXPECT_EQ(text, text_of(run(name))) << name;
    }
  }
}

// The smallest number that fits; a resumed run keeps it, even if it has more memory.
TEST_F(Tensor, TilesAreChosenForTheDeviceBudget) {
  const Words model{"--hidden", "128", "--ffn", "2048", "--dtype", "fp64", "--steps", "2", "--lr-schedule", "constant"};
  const Words chosen = model + Words{"--vocab-tiles", "0", "--mlp-tiles", "0"};
  const auto settings = [&](const std::string& run) { return scratch_.read(run + "/config.toml"); };
  const Words little{"--nvme-path", "disk", "--device-memory", "15MB"};
  expect_refusal(train(model + little + Words{"--out-dir", "none"}), 3, {"--vocab-tiles 0 --mlp-tiles 0"});

  succeeded(train(chosen + Words{"--out-dir", "wide"}));
  EXPECT_THAT(settings("wide"), AllOf(HasSubstr("vocab-tiles = 1 "), HasSubstr("mlp-tiles = 1 ")));
  const auto tight = succeeded(train(chosen + little + Words{"--out-dir", "tight"}));
  EXPECT_THAT(tight.out, HasSubstr("in tiles (vocabulary 1, MLP "));
  EXPECT_THAT(settings("tight"), Not(HasSubstr("mlp-tiles = 1 ")));
  expect_near("wide", "tight", 1e-9);

  const auto on = succeeded(train(chosen + Words{"--steps", "3", "--resume", "auto", "--out-dir", "tight"}));
  EXPECT_THAT(on.out, HasSubstr("in tiles (vocabulary 1, MLP "));
  succeeded(terrace(tiny("plan", chosen + little + Words{"--tp", "2", "--pp", "2", "--grad-accumulation", "2"})));
}

// If a micro-batch has more rows than matrices have columns, tiles of rows are tried first; if a family keeps gate and values
// in one tensor, they are the only possible ones. A layer without tiles is refused as before.
TEST_F(Tensor, TilesOfRowsAreChosenWhereRowsAreWhatIsLarge) {
  const auto tiles = [&](const Words& more) {
    const auto plan = terrace(
        tiny("plan",
             flags("--hidden 64 --ffn 1024 --dtype fp64 --vocab-tiles 0 --mlp-tiles 0 --mlp-row-tiles 0 --attention-tiles 0") +
                 more));
    return fmt::format("{} {}", plan.exit, plan.out.substr(0, plan.out.find(" with ")));
  };
  EXPECT_EQ("0 llama", tiles({}));
  EXPECT_THAT(tiles({"--seq-len", "512", "--batch-size", "1", "--device-memory", "8MB"}), HasSubstr("MLP 1 × "));
  EXPECT_THAT(tiles({"--seq-len", "64", "--batch-size", "1", "--device-memory", "4MB"}), Not(HasSubstr("of rows")));
  EXPECT_THAT(tiles({"--model", "phi3", "--seq-len", "64", "--batch-size", "2", "--device-memory", "7MB"}),
              HasSubstr("MLP 1 × 2 of rows"));
  EXPECT_THAT(tiles({"--model", "olmo2", "--seq-len", "512", "--device-memory", "8MB"}), testing::StartsWith("3 "));
}

TEST_F(Tensor, APlanSaysWhatARankHoldsAndSends) {
  const auto whole = terrace(tiny("plan", {"--heads", "4", "--json"})),
             part = succeeded(terrace(tiny("plan", {"--heads", "4", "--tp", "4", "--json"})));
  const auto all = nlohmann::json::parse(whole.out), one = nlohmann::json::parse(part.out);
  EXPECT_EQ(all["parameters"], one["parameters"]);
  EXPECT_LT(one["state_bytes"].get<double>(), 0.5 * all["state_bytes"].get<double>());
  EXPECT_GT(one["communication"]["seconds"].get<double>(), 0);
}

}  // namespace
}  // namespace terrace::test
