// Directories in Hugging Face's format from a user's view: exported from a run of any layout, trained from, refused.
#include <sys/file.h>
#include <sys/syscall.h>

#include <csignal>
#include <fstream>

#include <terrace/core/base/files.h>

#include <terrace/tests/cli/faults/forbidden_call.h>
#include <terrace/tests/cli/ranks/on_ranks.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class ModelDirProgram : public Ranks {
 protected:
  Outcome exported(const std::string& run, const std::string& dir) { return terrace({"ckpt", "export", run, dir}); }
  // Runs a step that changes no weight: its loss, and the held-out one, are the model's.
  Outcome look(const std::string& run, const Words& more) {
    return train(Words{"--steps", "1", "--lr", "1e-30", "--min-lr", "1e-30", "--seq-len", "32", "--out-dir", run} + more);
  }
  [[nodiscard]] json config_of(const std::string& dir) const { return json::parse(std::ifstream(at(dir) / "config.json")); }
};

// --model DIR is the exported model, whatever ranks and tiers trained it.
TEST_F(ModelDirProgram, WhatIsExportedIsTheModel) {
  for (const auto& [family, trained] :
       {std::pair<std::string, Words>{
            "llama", {"--tp", "2", "--sp", "--untied", "--attention-bias", "--mlp-bias", "--activation", "gelu"}},
        {"gemma", {"--tp", "2", "--head-dim", "24"}},
        {"gemma2", {"--dp", "2", "--zero", "3", "--window", "7,0", "--query-scalar", "24"}},
        {"gemma3", {"--tp", "2", "--pp", "2", "--window", "5,0", "--logit-cap", "2"}},
        {"gpt2", {"--dp", "2", "--zero", "3", "--nvme-path", "."}},
        {"mistral", {"--pp", "2", "--window", "7", "--kv-heads", "2"}},
        {"olmo2", {"--tp", "4", "--sp", "--kv-heads", "2"}},
        {"phi3", {"--pp", "2", "--rope-fraction", "0.5"}},
        {"qwen2", {"--tp", "4", "--kv-heads", "2", "--vocab-tiles", "2", "--mlp-tiles", "2", "--window", "0,7"}},
        {"qwen3", {"--tp", "2", "--head-dim", "24", "--kv-heads", "2"}}}) {
    SCOPED_TRACE(family);
    const Words model{"--model", family, "--heads", "4", "--seq-len", "32", "--norm-eps", "0.0001"};
    succeeded(train(model + trained + Words{"--steps", "3", "--out-dir", family, "--save", family + ".safetensors"}));
    const auto dir = family + "-dir";
    const auto done = succeeded(exported(family, dir));
    EXPECT_THAT(done.out, HasSubstr("after step 3"));
    EXPECT_EQ(family == "gemma3" ? "gemma3_text" : family, config_of(dir)["model_type"].get<std::string>());
    const auto from_dir = succeeded(look(family + "-a", {"--model", dir}));
    const auto from_file = look(
        family + "-b", model + [&] {
          Words same{"--init-from", family + ".safetensors"};
          for (const auto* const flag : {"--window", "--kv-heads", "--head-dim", "--rope-fraction", "--rope-layers",
                                         "--query-scalar", "--logit-cap", "--activation"})
            if (const auto at = std::ranges::find(trained, flag); at != trained.end()) same = same + Words{flag, *(at + 1)};
          for (const auto* const flag : {"--untied", "--attention-bias", "--mlp-bias"})
            if (std::ranges::count(trained, flag) != 0) same.emplace_back(flag);
          return same;
        }());
    ASSERT_EQ(0, from_file.exit) << from_file.described;
    EXPECT_EQ(weights_of(from_file), weights_of(from_dir));
    EXPECT_EQ(steps(family + "-b"), steps(family + "-a"));
    // A directory's model is exported from a run unchanged, including the other keys of its config.json.
    auto config = config_of(dir);
    config["bos_token_id"] = 7;
    std::ofstream(at(dir) / "config.json") << config;
    std::ofstream(at(dir) / "tokenizer.json") << "{}";
    ASSERT_EQ(0, look(family + "-c", {"--model", dir, "--data-format", "bytes"}).exit);
    succeeded(exported(family + "-c", dir + "2"));
    EXPECT_EQ(config, config_of(dir + "2"));
    EXPECT_TRUE(fs::exists(at(dir + "2") / "tokenizer.json"));
    const auto bytes = [&](const std::string& of) { return scratch_.read((fs::path(of) / "model.safetensors").string()); };
    EXPECT_EQ(bytes(dir), bytes(dir + "2"));
  }
}

TEST_F(ModelDirProgram, AConfigThatWasDamagedSinceIsNamed) {
  ASSERT_EQ(0, train({"--model", "llama", "--seq-len", "32", "--steps", "1", "--out-dir", "run"}).exit);
  ASSERT_EQ(0, exported("run", "dir").exit);
  ASSERT_EQ(0, look("next", {"--model", "dir"}).exit);
  std::ofstream(at("dir") / "config.json") << "{";
  expect_refusal(exported("next", "out"), 5, {"dir/config.json", "not JSON", "bring the file back"});
}

TEST_F(ModelDirProgram, TwoExportsDoNotWriteOneDirectory) {
  ASSERT_EQ(0, train({"--steps", "1", "--out-dir", "run"}).exit);
  fs::create_directory(at("out"));
  for (const auto* const file : {"unfinished-export", "model.safetensors"}) std::ofstream(at("out") / file) << "half";
  {
    const files::FileHandle other(::open(at("out").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_EQ(0, ::flock(other.get(), LOCK_EX));  // like an export that is running
    expect_refusal(exported("run", "out"), 1, {"out is in use", "give a new directory"});
    EXPECT_EQ("half", scratch_.read("out/model.safetensors"));
  }
  EXPECT_EQ(0, exported("run", "out").exit);
}

// Killed at its first sync, which is the mark's, before the marked folder is filled.
TEST_F(ModelDirProgram, AnExportThatIsKilledAtItsMarkIsRepeated) {
  ASSERT_EQ(0, train({"--steps", "1", "--out-dir", "run"}).exit);
  auto killed = launch({"ckpt", "export", "run", "out"});
  killed.in_child = [] { die_at_call(__NR_fsync); };
  const auto outcome = ::terrace::test::run(killed);
  if (outcome.exit == kNotPermitted) GTEST_SKIP() << "a seccomp filter is not permitted here";
  ASSERT_EQ(SIGSYS, outcome.signal) << outcome.described;
  succeeded(exported("run", "out"));
  // As left by versions in which the mark had no temporary file.
  fs::create_directory(at("older"));
  scratch_.write("older/unfinished-export.tmp", "");
  EXPECT_EQ(0, exported("run", "older").exit);
  for (const auto* const dir : {"out", "older"})
    for (const auto& entry : fs::directory_iterator(at(dir)))
      EXPECT_FALSE(entry.path().filename().string().starts_with("unfinished")) << entry.path();
}

TEST_F(ModelDirProgram, AnUnfinishedExportLosesNothingOfItsUsers) {
  ASSERT_EQ(0, train({"--steps", "1", "--out-dir", "run"}).exit);
  ASSERT_EQ(0, exported("run", "base").exit);
  fs::create_directory(at("out"));
  const std::vector<std::string> made{"unfinished-export", "model-00001-of-00002.safetensors", "config.json.tmp"};
  for (const auto& name : made) scratch_.write("out/" + name, "half");
  for (const std::string name : {"thesis.txt", "model-of.safetensors", "model-00001-of-00002.safetensors.bak"}) {
    scratch_.write("out/" + name, "years");
    expect_refusal(exported("run", "out"), 2, {"out has an unfinished export, but also \"" + name + "\""});
    EXPECT_EQ("years", scratch_.read("out/" + name));
    for (const auto& half : made) EXPECT_EQ("half", scratch_.read("out/" + half));
    fs::remove(at("out/" + name));
  }
  fs::create_directory(at("out/folder"));
  expect_refusal(exported("run", "out"), 2, {"also \"folder\""});
  fs::remove(at("out/folder"));
  ASSERT_EQ(0, exported("run", "out").exit);
  EXPECT_FALSE(fs::exists(at("out") / made[1]) || fs::exists(at("out") / made[2]));
  // Nor does a mark turn the run's initial model into an export of the run.
  ASSERT_EQ(0, look("next", {"--model", "base"}).exit);
  scratch_.write("base/unfinished-export", "");
  const auto config = scratch_.read("base/config.json");
  expect_refusal(exported("next", "base"), 2, {"base is the directory that the run began with"});
  ASSERT_EQ(0, look("another", {"--init-from", "base/model.safetensors"}).exit);
  expect_refusal(exported("another", "base"), 2, {"base is the directory that the run began with"});
  EXPECT_EQ(config, scratch_.read("base/config.json"));
}

TEST_F(ModelDirProgram, FlagsStandAboveTheDirectoryAndResumedRunsNeedIt) {
  ASSERT_EQ(0, train({"--steps", "2", "--out-dir", "run"}).exit);
  ASSERT_EQ(0, exported("run", "dir").exit);
  const Words constant{"--lr-schedule", "constant", "--out-dir", "next", "--model", "dir", "--rope-base", "7"};
  succeeded(train(constant + Words{"--steps", "1"}));
  EXPECT_THAT(scratch_.read("next/config.toml"), HasSubstr("rope-base = 7.0"));
  succeeded(train(constant + Words{"--steps", "2", "--resume", "auto"}));
  succeeded(terrace({"generate", "next", "--prompt", "a", "--max-tokens", "4"}));
  expect_refusal(train({"--model", "dir", "--layers", "1", "--out-dir", "none"}), 2, {"of its tensors"});
}

// For every way to give settings: those in the same file as the directory, or after it, override the directory's, as do --set
// and flags; files before it do not.
TEST_F(ModelDirProgram, SettingsOfAFileStandAboveItToo) {
  ASSERT_EQ(0, train({"--steps", "1", "--rope-base", "7", "--activation", "gelu_pytorch_tanh", "--out-dir", "run"}).exit);
  ASSERT_EQ(0, exported("run", "dir").exit);
  scratch_.write("beside.toml", "model = \"dir\"\nrope-base = 8.0\n");
  scratch_.write("alone.toml", "model = \"dir\"\n");
  scratch_.write("before.toml", "rope-base = 9.0\nlayers = 5\n");
  scratch_.write("after.toml", "rope-base = 9.0\n");
  const auto expect_base = [&](const Words& words, const std::string& base) {
    const auto said = succeeded(terrace(Words{"config"} + words));
    EXPECT_THAT(said.out, AllOf(HasSubstr("rope-base = " + base), HasSubstr("layers = 2 "), HasSubstr("model = \"llama\""),
                                HasSubstr("init-from = \"dir\""), HasSubstr("activation = \"gelu_pytorch_tanh\"")))
        << said.described;
  };
  expect_base({"--config", "beside.toml"}, "8.0");
  expect_base({"--config", "alone.toml"}, "7.0");
  expect_base({"--config", "alone.toml", "--set", "rope-base=9"}, "9.0");
  expect_base({"--set", "rope-base=9", "--set", "model=dir"}, "9.0");
  expect_base({"--config", "beside.toml", "--rope-base", "10"}, "10.0");
  expect_base({"--config", "before.toml", "--model", "dir"}, "7.0");
  expect_base({"--config", "before.toml", "--config", "alone.toml"}, "7.0");
  expect_base({"--config", "before.toml", "--set", "model=dir"}, "7.0");
  expect_base({"--config", "beside.toml", "--config", "after.toml"}, "9.0");
  expect_base({"--config", "before.toml", "--model", "dir", "--config", "after.toml"}, "9.0");
  expect_base({"--config", "before.toml", "--model", "dir", "--set", "rope-base=9"}, "9.0");
  expect_base({"--set", "rope-base=9", "--model", "dir"}, "9.0");
  expect_base({"--set", "rope-base=9", "--model", "dir", "--rope-base", "10"}, "10.0");
  // A file printed by `terrace config` for another model names all settings. Those with default values override nothing.
  expect_base({"--model", "dir", "--set", "rope-base=0", "--set", "init-from=\"\"", "--activation", "usual"}, "7.0");
  scratch_.write("all.toml", terrace({"config"}).out);
  expect_base({"--config", "all.toml", "--model", "dir"}, "7.0");
  expect_refusal(
      train({"--model", "dir", "--layers", "3", "--out-dir", "none"}), 2,
      {"dir has no tensor model.layers.2", "its config.json has --layers 2: give that, or leave out what says otherwise"});
  // Of two models, the one with the higher priority is used, with nothing from the other.
  const auto family = terrace({"config", "--config", "alone.toml", "--model", "gpt2"});
  EXPECT_THAT(family.out, AllOf(HasSubstr("model = \"gpt2\""), HasSubstr("layers = 6 "), HasSubstr("init-from = \"\"")));
}

// A directory's window may be longer than the run's sequences: it does not change the results, and the export contains it.
TEST_F(ModelDirProgram, AWindowThatIsLongerThanTheRunsSequencesComesOutAgain) {
  for (const auto& [family, window] : {std::pair{"mistral", "48"}, {"gemma3", "48,0"}}) {
    SCOPED_TRACE(family);
    const std::string name = family;
    ASSERT_EQ(0, train({"--model", name, "--heads", "4", "--seq-len", "64", "--window", window, "--steps", "1", "--out-dir",
                        name, "--save", name + ".safetensors"})
                     .exit);
    ASSERT_EQ(0, exported(name, name + "-dir").exit);
    const auto run = succeeded(look(name + "-run", {"--model", name + "-dir"}));
    const auto same = succeeded(look(name + "-same", {"--model", name, "--heads", "4", "--window",
                                                      name == "mistral" ? "0" : "32,0", "--init-from", name + ".safetensors"}));
    EXPECT_EQ(steps(name + "-same"), steps(name + "-run"));
    EXPECT_EQ(name == "mistral" ? 1U : 0U, same.warnings("this run and its export have none; give --window 48"))
        << same.described;
    ASSERT_EQ(0, exported(name + "-run", name + "-out").exit);
    EXPECT_EQ(config_of(name + "-dir"), config_of(name + "-out"));
  }
}

// A family's name always means the family, even if a directory has that name.
TEST_F(ModelDirProgram, AFamilyBesideADirectoryOfItsNameIsSaid) {
  ASSERT_EQ(0, train({"--model", "llama", "--steps", "1", "--out-dir", "run"}).exit);
  ASSERT_EQ(0, exported("run", "llama").exit);
  const Words words{"--model", "llama", "--steps", "1", "--out-dir", "family"};
  for (const auto* const command : {"plan", "train"})
    EXPECT_EQ(1U, terrace(tiny(command, words))
                      .warnings("--model llama is the model family, with new weights, and not the model in "
                                "the directory llama: give --model ./llama for that"))
        << command;
  EXPECT_EQ(0U, train({"--model", "./llama", "--steps", "1", "--out-dir", "directory"}).warnings("model family"));
}

TEST_F(ModelDirProgram, WhatIsNoModelIsRefused) {
  ASSERT_EQ(0, train({"--steps", "1", "--out-dir", "run"}).exit);
  ASSERT_EQ(0, exported("run", "dir").exit);
  expect_refusal(exported("run", "dir"), 2, {"dir has \"config.json\" already", "new directory"});
  // A user's own files are not touched, whatever their names; files of an unfinished export are written again.
  fs::create_directory(at("own"));
  std::ofstream(at("own") / "tokenizer.json") << "mine";
  expect_refusal(exported("run", "own"), 2, {"own has \"tokenizer.json\" already"});
  EXPECT_EQ("mine", scratch_.read("own/tokenizer.json"));
  std::ofstream(at("own") / "unfinished-export") << "";
  EXPECT_EQ(0, exported("run", "own").exit);
  EXPECT_FALSE(fs::exists(at("own") / "tokenizer.json") || fs::exists(at("own") / "unfinished-export"));
  expect_refusal(train({"--model", "./none", "--out-dir", "none"}), 2, {"none/config.json", "No such file"});
  expect_refusal(train({"--model", "lama", "--out-dir", "none"}), 2, {"\"lama\"", "llama"});
  auto config = config_of("dir");
  config["rope_scaling"] = {{"rope_type", "longrope"}, {"factor", 4}};
  std::ofstream(at("dir") / "config.json") << config;
  expect_refusal(train({"--model", "dir", "--out-dir", "none"}), 2, {"rope_scaling", "longrope"});
  std::ofstream(at("dir") / "config.json") << "{\"model_type\": ";
  expect_refusal(train({"--model", "dir", "--out-dir", "none"}), 5, {"config.json", "not JSON"});
  EXPECT_FALSE(fs::exists(at("none")));
  ASSERT_EQ(0, train({"--steps", "1", "--out-dir", "windows", "--window", "4"}).exit);
  expect_refusal(exported("windows", "no"), 2, {"sliding window", "mistral"});
  EXPECT_FALSE(fs::exists(at("no")));
  expect_refusal(terrace({"ckpt", "export", "run"}), 2, {"second directory"});
}

}  // namespace
}  // namespace terrace::test
