// Every family through the program: trained, saved, loaded, resumed, used to generate, and compared with a config.json. The
// tested program is linked with the tests' own families, which are not part of the product.
#include <filesystem>
#include <regex>

#include <fmt/format.h>

#include <terrace/examples/lm/models/family.h>

#include <terrace/tests/cli/cli_test.h>
#include <terrace/tests/cli/models/safetensors_file.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class FamilyProgram : public Cli, public testing::WithParamInterface<const lm::Family*> {
 protected:
  const lm::Family& family = *GetParam();
  const lm::TensorNames& names = family.tensors;
  const std::string name{*family.name};

  [[nodiscard]] Outcome trained(const std::string& run, const Words& more = {}) const {
    return train(Words{"--out-dir", run, "--model", name} + more);
  }
  // A run that does not change the weights.
  [[nodiscard]] Outcome unchanged(const std::string& run, const Words& more) const {
    return trained(run, Words{"--lr", "1e-30", "--min-lr", "1e-30", "--weight-decay", "0", "--steps", "1"} + more);
  }
  [[nodiscard]] SafetensorsFile file(const std::string& path) const { return SafetensorsFile(scratch_.read(path)); }
  // The file without --save's additions, as another program writes it.
  [[nodiscard]] SafetensorsFile foreign(const std::string& path) const {
    auto file = this->file(path);
    file.header.erase("__metadata__");
    return file;
  }
  void refuses(const std::string& file, const Words& more, const std::vector<std::string>& says) const {
    expect_refusal(trained("refused", Words{"--init-from", file} + more), 2, says);
    EXPECT_FALSE(fs::exists(at("refused")));
  }
};

TEST_P(FamilyProgram, TrainsResumesAndGenerates) {
  const Words untied{"--untied"};
  ASSERT_EQ(0, trained("whole", Words{"--steps", "6", "--lr", "3e-3"} + untied).exit);
  const auto losses = steps("whole");
  EXPECT_LT(losses.back().loss, losses.front().loss);
  ASSERT_EQ(0, trained("parts", Words{"--steps", "3", "--lr", "3e-3"} + untied).exit);
  succeeded(trained("parts", Words{"--steps", "6", "--lr", "3e-3", "--resume", "auto"} + untied));
  EXPECT_EQ(steps("parts"), losses);

  const Words generate{"generate", "whole", "--prompt", "The river", "--max-tokens", "20", "--temperature", "0"};
  const auto text = succeeded(terrace(generate));
  EXPECT_THAT(text.out, testing::StartsWith("The river"));
  EXPECT_EQ(terrace(generate).out, text.out);
}

TEST_P(FamilyProgram, SavedWeightsAreReadAgain) {
  for (const Words& more : {Words{}, Words{"--untied", "--skips", "u", "--layers", "3"}}) {
    ASSERT_EQ(0, trained("first", Words{"--save", "first.safetensors"} + more).exit);
    const auto again =
        succeeded(unchanged("again", Words{"--init-from", "first.safetensors", "--save", "again.safetensors"} + more));
    EXPECT_EQ(0U, again.warnings("--init-from")) << again.described;
    const auto before = file("first.safetensors"), after = file("again.safetensors");
    EXPECT_EQ(before.header, after.header);
    EXPECT_TRUE(before.data == after.data);
    fs::remove_all(at("first")), fs::remove_all(at("again"));
  }
}

TEST_P(FamilyProgram, NamesInFilesAreTheFamilys) {
  ASSERT_EQ(0, trained("run", {"--save", "m.safetensors", "--steps", "1"}).exit);
  const auto saved = file("m.safetensors");
  EXPECT_TRUE(saved.header.contains(std::string(*names.embedding) + ".weight"));
  EXPECT_TRUE(saved.header.contains(std::string(*names.block) + "1." + std::string(names.down.tensors[0]) + ".weight"));
  EXPECT_FALSE(saved.header.contains(std::string(*names.head) + ".weight")) << "the head is tied";

  // As written by a program that does not know the optional prefix, with a separate head and with buffers.
  SafetensorsFile other = saved;
  json renamed;
  for (const auto& [key, entry] : saved.header.items()) {
    const bool prefixed = key.starts_with(*names.optional_prefix);
    renamed[prefixed ? key.substr((*names.optional_prefix).size()) : key] = entry;
  }
  other.header = renamed;
  const auto table = saved.bytes_of(std::string(*names.embedding) + ".weight");
  other.add(std::string(*names.head) + ".weight", {256, 64}, table);
  for (const auto ending : names.buffers) other.add("some.0" + std::string(ending), {8}, zeros(8));
  scratch_.write("other.safetensors", other.text());
  ASSERT_EQ(0, unchanged("from", {"--init-from", "m.safetensors", "--save", "a.safetensors"}).exit);
  succeeded(unchanged("from_other", {"--init-from", "other.safetensors", "--save", "b.safetensors"}));
  EXPECT_TRUE(scratch_.read("a.safetensors") == scratch_.read("b.safetensors"));

  scratch_.write("more.safetensors", SafetensorsFile(saved).add("some.more.weight", {8}, zeros(8)).text());
  refuses("more.safetensors", {},
          {"does not have 1 of its tensors: \"some.more.weight\"", "parts that " + name + " does not have"});
}

TEST_P(FamilyProgram, NumbersThatNoTensorHasAreCompared) {
  ASSERT_EQ(0, trained("run", {"--save", "m.safetensors", "--steps", "1"}).exit);
  struct Number {
    lm::Words keys;
    double usual;
    bool varies;
    std::string flag;
  };
  std::vector<Number> numbers{{family.norm_eps.keys, *family.norm_eps.usual, *family.norm_eps.varies, "norm-eps"}};
  if (const auto* const base = lm::rotary_base(family))
    numbers.push_back({base->keys, *base->usual, *base->varies, "rope-base"});
  const auto metadata = file("m.safetensors").header.at("__metadata__");
  fs::create_directory(at("model"));
  scratch_.write("model/m.safetensors", foreign("m.safetensors").text());
  for (const auto& number : numbers) {
    const auto word = std::string(lm::word_of(number.keys));
    EXPECT_EQ(std::stod(metadata.at(word).get<std::string>()), number.usual) << word;
    fs::remove(at("model/config.json"));
    const auto silent = succeeded(trained("silent", {"--init-from", "model/m.safetensors", "--steps", "1"}));
    EXPECT_EQ(number.varies ? 1U : 0U, silent.warnings("--" + number.flag)) << silent.described;
    fs::remove_all(at("silent"));
    for (const auto key : number.keys) {
      const json::json_pointer place{std::string(key)};
      json config;
      config[place] = number.usual / 2;
      scratch_.write("model/config.json", config.dump());
      refuses("model/m.safetensors", {}, {"model/config.json has " + place.back() + " ", "give --" + number.flag + " "});
      config[place] = number.usual;
      scratch_.write("model/config.json", config.dump());
      const auto agreed = succeeded(trained("agreed", {"--init-from", "model/m.safetensors", "--steps", "1"}));
      EXPECT_EQ(0U, agreed.warnings("--" + number.flag)) << agreed.described;
      fs::remove_all(at("agreed"));
    }
    succeeded(trained(
        "other", {"--" + number.flag, fmt::format("{}", number.usual / 2), "--save", "other.safetensors", "--steps", "1"}));
    refuses("other.safetensors", {}, {"its metadata has " + word, "give --" + number.flag});
    fs::remove_all(at("other"));
  }
  EXPECT_EQ(metadata.at(std::string(lm::word_of(family.heads_keys))), "4");
  for (const auto key : family.heads_keys) {
    json config;
    config[json::json_pointer(std::string(key))] = 8;
    scratch_.write("model/config.json", config.dump());
    refuses("model/m.safetensors", {}, {"8, and this run would use 4\n  give --heads 8"});
  }
  if (const auto* const rotary = lm::rotary_positions(family))
    for (const auto key : rotary->scaling_keys) {
      json config;
      config[json::json_pointer(std::string(key))] = {{"rope_type", "stretched"}};
      scratch_.write("model/config.json", config.dump());
      const auto scaled = trained("scaled", {"--init-from", "model/m.safetensors", "--steps", "1"});
      EXPECT_EQ(1U, scaled.warnings("of type \"stretched\", and this run rotates positions with --rope-scaling none"))
          << scaled.described;
      fs::remove_all(at("scaled"));
    }
}

TEST_P(FamilyProgram, OptionsThatItDoesNotHaveAreRefused) {
  const Words grouped{"--kv-heads", "2"}, base{"--rope-base", "77"}, plan{"plan", "--config", "tiny.toml", "--model", name};
  if (*family.grouped_heads) {
    EXPECT_EQ(0, terrace(plan + grouped).exit);
  } else {
    expect_refusal(terrace(plan + grouped), 2,
                   {"--kv-heads 2: " + name + " has as many", "or give --model llama, mixed or fused"});
  }
  if (lm::rotary_base(family)) {
    EXPECT_EQ(0, terrace(plan + base).exit);
    expect_refusal(terrace(plan + Words{"--hidden", "60"}), 2, {"so " + name + " needs an even head width"});
  } else {
    expect_refusal(terrace(plan + base), 2,
                   {"--rope-base 77: " + name + " learns its positions", "or give --model llama or mixed"});
    EXPECT_EQ(0, terrace(plan + Words{"--hidden", "60"}).exit);
  }
  const auto usual = trained("usual", {"--steps", "2"});
  const auto given = trained("given", Words{"--steps", "2", "--norm-eps", fmt::format("{}", *family.norm_eps.usual), "--ffn",
                                            std::to_string((*family.usual_ffn)(64))});
  EXPECT_EQ(weights_of(usual), weights_of(given)) << usual.described << given.described;
  const auto help = std::regex_replace(terrace({"train", "--help"}).out, std::regex("\n +"), " ");  // with line breaks undone
  EXPECT_THAT(help, HasSubstr("--model gpt2|llama|mixed|fused"));
  EXPECT_THAT(help, HasSubstr("base of rotary positions (llama and mixed), rope_theta or rotary_emb_base in a config.json of "
                              "Hugging Face; 0: 10000 or 50, as usual in the model family"));
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyProgram, testing::ValuesIn(lm::families().begin(), lm::families().end()),
                         [](const auto& made) { return std::string(*made.param->name); });

}  // namespace
}  // namespace terrace::test
