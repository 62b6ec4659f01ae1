// Tokens that are named only in the files beside a tokenizer.json. tests/interop/tokens_beside.py compares with Hugging Face's
// library.
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/lm/tokenizer/words/byte_letters.h>
#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<TokenId>;
using Files = std::map<std::string, std::string>;

// The bytes, "ab", and one added token.
Json small_file() {
  Json model{{"type", "BPE"}, {"vocab", Json::object()}, {"merges", Json::array({Json::array({"a", "b"})})}};
  for (unsigned byte = 0; byte < 256; ++byte) model["vocab"][letters_of_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  model["vocab"]["ab"] = 256;
  return {{"added_tokens", {{{"id", 257}, {"content", "<end>"}, {"normalized", false}, {"special", true}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", model}};
}

Tokenizer with(const Files& files, const Json& file = small_file()) {
  const ScratchFolder scratch;
  for (const auto& [name, text] : files) scratch.write(name, text);
  return Tokenizer::read(scratch.write("tokenizer.json", file.dump()));
}

TEST(TokensBeside, GetTheNextIdsInTheOrderOfTheFiles) {
  // The ids in the files only give the order.
  const auto listed = with({{"tokenizer_config.json", R"({"added_tokens_decoder": {
      "300": {"content": "<x>"}, "41": {"content": "<y>", "special": true},
      "257": {"content": "<end>", "normalized": false, "special": true}}})"}});
  EXPECT_EQ((Ids{259, 258, 257}), listed.encode("<x><y><end>"));
  EXPECT_EQ(260U, listed.ids());
  EXPECT_EQ((std::vector<std::string>{"<end>", "<y>"}), listed.special());
  EXPECT_EQ("<y>", listed.decode(Ids{258}));
  const auto older = with({{"added_tokens.json", R"({"<b>": 400, "<a>": 399, "<end>": 257})"},
                           {"special_tokens_map.json", R"({"eos_token": {"content": "<a>"}})"}});
  EXPECT_EQ((Ids{258, 259, 257}), older.encode("<a><b><end>"));
  EXPECT_EQ((std::vector<std::string>{"<end>", "<a>"}), older.special());
}

TEST(TokensBeside, NamedTokensAreSpecialOnesOfTheVocabularyOrNewOnes) {
  const auto named = with({{"tokenizer_config.json", R"({"pad_token": "<pad>", "eos_token": "ab", "image_token": "<image>",
      "bos_token": {"__type": "AddedToken", "content": "<bos>", "rstrip": true}, "additional_special_tokens": ["<more>"]})"}});
  EXPECT_EQ((Ids{258, 256, 259, 260, 261}), named.encode("<bos>  ab<pad><image><more>"));
  EXPECT_THAT(named.special(), testing::ElementsAre("ab", "<end>", "<bos>", "<pad>", "<image>", "<more>"));
  auto padded = small_file();
  padded["padding"] = {{"strategy", "BatchLongest"}, {"pad_id", 0}, {"pad_token", "[PAD]"}};
  EXPECT_EQ((Ids{258}), with({}, padded).encode("[PAD]"));
}

TEST(TokensBeside, AreFoundAsTheConfigurationSays) {
  const auto changed = with({{"tokenizer_config.json", R"({"added_tokens_decoder": {
      "257": {"content": "<end>", "lstrip": true, "normalized": false, "special": true}}})"}});
  EXPECT_EQ((Ids{'a', 257, 'a'}), changed.encode("a  <end>a"));
  EXPECT_EQ(258U, changed.ids());
  // If the configuration has a list, only that list counts.
  const auto alone = with({{"tokenizer_config.json", R"({"added_tokens_decoder": {}})"},
                           {"added_tokens.json", R"({"<x>": 258})"},
                           {"special_tokens_map.json", R"({"eos_token": "<y>"})"}});
  EXPECT_EQ(258U, alone.ids());
}

TEST(TokensBeside, AreWrittenIntoTheFileAndNothingElseIs) {
  const Tokenizer plain(TokenizerFile::parse(small_file().dump()));
  EXPECT_EQ(plain.text(), with({}).text());
  EXPECT_EQ(plain.text(), with({{"tokenizer_config.json", R"({"eos_token": "<end>", "model_max_length": 5})"}}).text());
  const auto more = with({{"added_tokens.json", R"({"<x>": 258})"}});
  EXPECT_NE(plain.text(), more.text());
  EXPECT_EQ((Ids{'a', 258}), Tokenizer(TokenizerFile::parse(more.text())).encode("a<x>"));
}

TEST(TokensBeside, DamagedFilesAreNamed) {
  const auto why = [](const char* file, const char* text) -> std::string {
    return test::error_of(ErrorKind::corrupt, [&] { with({{file, text}}); });
  };
  EXPECT_THAT(why("tokenizer_config.json", "{"), testing::HasSubstr("tokenizer_config.json"));
  EXPECT_THAT(why("added_tokens.json", R"({"<x>": -1})"),
              testing::HasSubstr("added_tokens.json: an id is no number of a token"));
  EXPECT_THAT(why("tokenizer_config.json", R"({"added_tokens_decoder": {"x": {}}})"), testing::HasSubstr("\"x\" is no id"));
  EXPECT_THAT(why("tokenizer_config.json", R"({"added_tokens_decoder": {"258": {"content": "<x>", "lstrip": 1}}})"),
              testing::HasSubstr("\"lstrip\" is neither true nor false"));
}

}  // namespace
}  // namespace terrace::lm
