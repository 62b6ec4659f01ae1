// Decoding token by token gives the text of decoding at once, and only whole characters before the end.
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <terrace/core/base/text_file.h>
#include <terrace/examples/lm/tokenizer/decode_stream.h>
#include <terrace/examples/lm/tokenizer/words/byte_letters.h>

namespace terrace::lm {
namespace {

using Json = nlohmann::ordered_json;

Tokenizer of_bytes() {
  Json model{{"type", "BPE"}, {"vocab", Json::object()}, {"merges", Json::array()}};
  for (unsigned byte = 0; byte < 256; ++byte) model["vocab"][letters_of_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  const Json json{{"version", "1.0"},
                  {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                  {"decoder", {{"type", "ByteLevel"}}},
                  {"model", model}};
  return Tokenizer(TokenizerFile::parse(json.dump()));
}

// Like a tokenizer made by sentencepiece: spaces are letters, and bytes are tokens <0xNN>.
Tokenizer with_fallback(std::size_t at_front, std::size_t at_end) {
  Json model{{"type", "BPE"}, {"byte_fallback", true}, {"vocab", Json::object()}, {"merges", Json::array()}};
  for (unsigned byte = 0; byte < 256; ++byte) {
    constexpr const char* kDigits = "0123456789ABCDEF";
    model["vocab"][std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">"] = byte;
  }
  for (const auto* const letter : {"▁", "▁▁", "a", "é"}) model["vocab"][letter] = model["vocab"].size();
  const Json json{{"version", "1.0"},
                  {"decoder",
                   {{"type", "Sequence"},
                    {"decoders",
                     {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                      {{"type", "ByteFallback"}},
                      {{"type", "Fuse"}},
                      {{"type", "Strip"}, {"content", " "}, {"start", at_front}, {"stop", at_end}}}}}},
                  {"model", model}};
  return Tokenizer(TokenizerFile::parse(json.dump()));
}

void expect_same(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  DecodeStream stream(tokenizer);
  const auto whole = tokenizer.decode(ids);
  for (int again = 0; again < 2; ++again) {
    std::string text;
    for (const auto id : ids) {
      const auto more = stream.add(id);
      if (is_utf8(whole)) {
        ASSERT_TRUE(is_utf8(more));
      }
      text += more;
    }
    ASSERT_EQ(whole, text + stream.finish());
  }
}

TEST(DecodeStream, GivesWhatDecodingAtOnceGives) {
  std::mt19937 random(1);
  const std::string bytes = "a \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xff\x80\xed\xa0";  // characters and invalid bytes
  const auto plain = of_bytes();
  for (int i = 0; i < 2000; ++i) {
    std::vector<TokenId> ids;
    for (auto n = random() % 12; n > 0; --n) ids.push_back(static_cast<unsigned char>(bytes[random() % bytes.size()]));
    ASSERT_NO_FATAL_FAILURE(expect_same(plain, ids));
  }
  for (const auto& [at_front, at_end] : {std::pair<std::size_t, std::size_t>{1, 0}, {0, 0}, {2, 3}, {0, 1}, {99, 2000000000}}) {
    const auto tokenizer = with_fallback(at_front, at_end);
    for (int i = 0; i < 1000; ++i) {
      std::vector<TokenId> ids;
      for (auto n = random() % 12; n > 0; --n)
        ids.push_back(random() % 3 != 0 ? 256 + random() % 4 : static_cast<unsigned char>(bytes[random() % bytes.size()]));
      ASSERT_NO_FATAL_FAILURE(expect_same(tokenizer, ids));
    }
  }
}

TEST(DecodeStream, GivesACharacterWhenItsLastByteComes) {
  const auto tokenizer = of_bytes();
  DecodeStream stream(tokenizer);
  EXPECT_EQ("a", stream.add('a'));
  EXPECT_EQ("", stream.add(0xf0));
  EXPECT_EQ("", stream.add(0x9f));
  EXPECT_EQ("", stream.add(0x98));
  EXPECT_EQ("\xf0\x9f\x98\x80", stream.add(0x80));
  EXPECT_EQ("", stream.add(0xc3));
  EXPECT_EQ("\xc3!", stream.add('!'));  // the bytes became no character
  EXPECT_EQ("", stream.add(0xe2));
  EXPECT_EQ("\xe2", stream.finish());
}

}  // namespace
}  // namespace terrace::lm
