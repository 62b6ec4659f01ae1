// Compares tokenizers with a plain implementation of byte-pair encoding, and tests damaged and unsupported files.
// tests/interop/compare_with_tokenizers.py compares with other libraries.
#include <ctime>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/lm/tokenizer/words/byte_letters.h>
#include <terrace/examples/lm/tokenizer/words/normalize.h>
#include <terrace/examples/lm/tokenizer/words/pattern.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<TokenId>;

// A tokenizer of all bytes, and of merges of randomly drawn tokens.
Json drawn_file(unsigned seed, int merges, const std::string& letters) {
  std::mt19937 random(seed);
  Json model{{"type", "BPE"}, {"vocab", Json::object()}, {"merges", Json::array()}};
  std::vector<std::string> tokens;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto letter = letters_of_bytes(std::string(1, static_cast<char>(byte)));
    model["vocab"][letter] = byte;
    if (letters.find(static_cast<char>(byte)) != std::string::npos) tokens.push_back(letter);
  }
  while (merges > 0) {
    const auto &left = tokens[random() % tokens.size()], &right = tokens[random() % tokens.size()];
    const auto both = left + right;
    if (model["vocab"].contains(both)) continue;
    model["vocab"][both] = model["vocab"].size();
    model["merges"].push_back({left, right});
    tokens.push_back(both);
    --merges;
  }
  return {{"version", "1.0"},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", model}};
}

Tokenizer made(const Json& json) { return Tokenizer(TokenizerFile::parse(json.dump())); }

// The definition: merge the pair of the lowest rank, the leftmost one if there are several, until no pair is a merge.
Ids plainly_encoded(const Json& json, std::string_view text) {
  std::map<std::pair<std::string, std::string>, std::size_t> ranks;
  for (const auto& merge : json["model"]["merges"]) ranks.emplace(std::pair(merge[0], merge[1]), ranks.size());
  Ids ids;
  each_word(Pattern::gpt2, text, [&](std::string_view word) {
    std::vector<std::string> parts;
    for (const char byte : word) parts.push_back(letters_of_bytes(std::string(1, byte)));
    for (;;) {
      std::size_t best = ranks.size(), at = 0;
      for (std::size_t i = 0; i + 1 < parts.size(); ++i)
        if (const auto found = ranks.find({parts[i], parts[i + 1]}); found != ranks.end() && found->second < best) {
          best = found->second;
          at = i;
        }
      if (best == ranks.size()) break;
      parts[at] += parts[at + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    for (const auto& part : parts) ids.push_back(json["model"]["vocab"][part].get<TokenId>());
  });
  return ids;
}

std::string drawn_text(std::mt19937& random, std::size_t bytes, const std::string& letters) {
  std::string text(bytes, '\0');
  for (auto& byte : text) byte = random() % 50 == 0 ? static_cast<char>(random()) : letters[random() % letters.size()];
  return text;
}

template <class F>
void expect_error(F&& f, ErrorKind kind, const std::string& words) {
  EXPECT_THAT(test::error_of(kind, f), testing::HasSubstr(words));
}

TEST(Tokenizer, EncodesAsTheDefinitionSaysAndDecodes) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const std::string letters = seed % 2 == 0 ? "aaab" : "abc de\nA.";
    const auto json = drawn_file(seed, 60, letters);
    const auto tokenizer = made(json);
    std::mt19937 random(seed);
    Encoding with;
    for (int i = 0; i < 60; ++i) {
      const auto text = drawn_text(random, i == 0 ? 2000 : random() % 300, letters);
      TokenBuffer out;
      tokenizer.encode(text, {}, with, out);  // reuses words that it has seen
      const Ids ids(out.view().begin(), out.view().end());
      ASSERT_EQ(plainly_encoded(json, text), ids) << "seed " << seed << ", text " << i;
      ASSERT_EQ(ids, tokenizer.encode(text));
      ASSERT_EQ(text, tokenizer.decode(ids));
    }
  }
}

// Merges within, across and beside characters of several bytes, also in orders that no trainer would write.
TEST(Tokenizer, CharactersOfSeveralBytesMergeAsTheDefinitionSays) {
  const std::vector<std::string> characters{" ",      "a",          "\u00e9",     "\u00ea", "\u4e2d", "\u4e2e",
                                            "\u4ead", "\U0001f600", "\U0001f601", "\x98",   "\xe4"};
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const auto drawn = [&](std::size_t most) {
      std::string text;
      for (auto count = 1 + random() % most; count > 0; --count) text += characters[random() % characters.size()];
      return text;
    };
    auto json = drawn_file(seed, 0, "");
    auto& model = json["model"];
    const auto token_of = [&](TokenId id) {
      for (const auto& [token, number] : model["vocab"].items())
        if (number == id) return token;
      return std::string();
    };
    std::set<std::pair<std::string, std::string>> known;
    for (auto merges = random() % 40; merges > 0; --merges) {  // neighbours in the tokens of a text
      const auto ids = plainly_encoded(json, drawn(4));
      if (ids.size() < 2) continue;
      const auto at = random() % (ids.size() - 1);
      const auto left = token_of(ids[at]), right = token_of(ids[at + 1]);
      if (!known.emplace(left, right).second) continue;  // the two ids may belong to two words
      if (!model["vocab"].contains(left + right)) model["vocab"][left + right] = model["vocab"].size();
      model["merges"].push_back({left, right});
    }
    auto& merges = model["merges"];
    for (auto swaps = seed % 3 * merges.size() / 8; swaps > 0; --swaps)
      std::swap(merges[random() % merges.size()], merges[random() % merges.size()]);
    const auto tokenizer = made(json);
    for (int i = 0; i < 30; ++i) {
      const auto text = drawn(6);
      ASSERT_EQ(plainly_encoded(json, text), tokenizer.encode(text))
          << "seed " << seed << ", \"" << text << "\" of " << json["model"]["merges"];
    }
  }
}

TEST(Tokenizer, MillionsOfOneLetterAreOneWord) {
  Json json = drawn_file(1, 0, "a");
  std::string token = "a";
  for (int i = 0; i < 4; ++i) {
    json["model"]["merges"].push_back({token, token});
    token += token;
    json["model"]["vocab"][token] = 256 + i;
  }
  const auto ids = made(json).encode(std::string((1U << 20U) + 3, 'a'));
  ASSERT_EQ((1U << 16U) + 2, ids.size());
  EXPECT_EQ(Ids(std::size_t{1} << 16U, 259), Ids(ids.begin(), ids.end() - 2));
  EXPECT_EQ(256U, ids[ids.size() - 2]);
  EXPECT_EQ(static_cast<TokenId>('a'), ids.back());
}

// The tokens as texts.
std::vector<std::string> spelled(const Json& json, std::string_view text, EncodeOptions options = {}) {
  std::vector<std::string> out;
  for (const auto id : made(json).encode(text, options))
    for (const auto& [token, number] : json["model"]["vocab"].items())
      if (number == id) out.push_back(token);
  return out;
}

// The expected tokens are those of Hugging Face's library; tests/interop/sentencepiece_models.py compares with it.
TEST(Tokenizer, MetaspaceMarksSpacesAndTheBeginning) {
  using testing::ElementsAre;
  const auto file = [](const Json& pre_tokenizer) {
    Json model{{"type", "BPE"},
               {"vocab", {{"<s>", 0}, {"\u2581", 1}, {"a", 2}, {"b", 3}, {"\u2581a", 4}, {"b\u2581", 5}}},
               {"merges", {"b \u2581", "\u2581 a"}}};
    Json special{{"id", 0}, {"content", "<s>"}, {"special", true}};
    return Json{{"added_tokens", Json::array({special})}, {"pre_tokenizer", pre_tokenizer}, {"model", model}};
  };
  const auto metaspace = [&](const char* scheme, bool split) {
    return file({{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}, {"split", split}});
  };
  const std::string text = "a<s>a a";
  EXPECT_THAT(spelled(metaspace("always", false), text), ElementsAre("\u2581a", "<s>", "\u2581a", "\u2581a"));
  EXPECT_THAT(spelled(metaspace("first", false), text), ElementsAre("\u2581a", "<s>", "a", "\u2581a"));
  EXPECT_THAT(spelled(metaspace("never", false), text), ElementsAre("a", "<s>", "a", "\u2581a"));
  EXPECT_THAT(spelled(metaspace("first", false), "<s>a"), ElementsAre("<s>", "a"));
  EXPECT_THAT(spelled(metaspace("always", false), " a"), ElementsAre("\u2581a"));
  EXPECT_THAT(spelled(metaspace("always", false), "a", {.goes_on = true}), ElementsAre("a"));
  EXPECT_THAT(spelled(metaspace("always", false), "b a"), ElementsAre("\u2581", "b\u2581", "a"));
  EXPECT_THAT(spelled(metaspace("always", true), "b a"), ElementsAre("\u2581", "b", "\u2581a"));
  EXPECT_THAT(spelled(file({{"type", "Metaspace"}, {"replacement", "\u2581"}, {"add_prefix_space", false}}), text),
              ElementsAre("a", "<s>", "a", "\u2581a"));
  expect_error([&] { made(metaspace("last", true)); }, ErrorKind::refused, "Metaspace \"last\"");
}

TEST(Tokenizer, ASeparatorEndsOrBeginsAWord) {
  const auto words = [](const char* behavior, std::string_view text) {
    auto merges = Json::array();
    for (const auto& [left, right] : {std::pair{" ", " "}, {" ", "b"}, {" ", "a"}, {"a", " "}, {"b", " "}})
      merges.push_back(Json::array({left, right}));
    const Json vocabulary{{" ", 0}, {"a", 1}, {"b", 2}, {"a ", 3}, {"b ", 4}, {" b", 5}, {" a", 6}, {"  ", 7}};
    const Json split{{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", behavior}, {"invert", false}};
    return spelled({{"pre_tokenizer", split}, {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}}, text);
  };
  EXPECT_THAT(words("MergedWithPrevious", " a  b a"), testing::ElementsAre(" ", "a ", " ", "b ", "a"));
  EXPECT_THAT(words("MergedWithNext", "a  b a "), testing::ElementsAre("a", " ", " b", " a", " "));
}

// The two parts of a cut text have the same tokens as the whole.
TEST(Tokenizer, MayBeCutWhereItSays) {
  const auto tokenizer = made(drawn_file(3, 60, "abc de\nA."));
  std::mt19937 random(3);
  int cuts = 0;
  for (int i = 0; i < 200; ++i) {
    const auto text = drawn_text(random, 100, "abc de\nA.'");
    const auto cut = tokenizer.cut_before(text, random() % 100);
    if (!cut) continue;
    ++cuts;
    auto parts = tokenizer.encode(text.substr(0, *cut));
    for (const auto id : tokenizer.encode(text.substr(*cut))) parts.push_back(id);
    ASSERT_EQ(tokenizer.encode(text), parts) << text << " at " << *cut;
  }
  EXPECT_GT(cuts, 50);
}

// A text may not be cut within an added token that is found in it, nor where such a token may begin.
TEST(Tokenizer, IsNotCutWithinAnAddedTokenNorBehindOne) {
  auto json = drawn_file(3, 60, "abc de\nA.");
  json["added_tokens"] = Json::array({{{"id", 316}, {"content", "ab.c"}, {"special", true}}});
  auto spaced = json;  // a text behind a token gets a space, too
  spaced["pre_tokenizer"]["add_prefix_space"] = true;
  const auto tokenizer = made(json);
  std::mt19937 random(4);
  int cuts = 0;
  for (const auto* const file : {&json, &spaced}) {
    const auto tried = made(*file);
    for (int i = 0; i < 2000; ++i) {
      const auto text = drawn_text(random, 40, "abc.\n");
      for (const bool finds : {true, false}) {
        const auto cut = tried.cut_before(text, random() % 40, finds);
        if (!cut) continue;
        ++cuts;
        auto parts = tried.encode(text.substr(0, *cut), {.finds_added = finds});
        for (const auto id : tried.encode(text.substr(*cut), {.finds_added = finds, .goes_on = true})) parts.push_back(id);
        ASSERT_EQ(tried.encode(text, {.finds_added = finds}), parts) << text << " at " << *cut;
      }
    }
  }
  EXPECT_GT(cuts, 1000);
  EXPECT_EQ(2U, tokenizer.cut_before("ab.....", 2));
  EXPECT_EQ(2U, tokenizer.cut_before("ab.czzz", 2, false));
  EXPECT_EQ(std::nullopt, tokenizer.cut_before("ab.czzz", 2)) << "the token itself";
  // A token that takes the white space behind it, or depends on its neighbours, matters only if tokens are searched for.
  json["added_tokens"][0]["rstrip"] = true;
  EXPECT_EQ(std::nullopt, made(json).cut_before("a a a a", 5));
  EXPECT_EQ(5U, made(json).cut_before("a a a a", 5, false));
}

TEST(Tokenizer, IsWrittenBackWithWhatItDoesNotUse) {
  auto json = drawn_file(1, 10, "ab");
  json["from somewhere else"] = {{"x", {1, 2.5, nullptr, "é"}}};
  EXPECT_EQ(json, Json::parse(TokenizerFile::parse(json.dump()).text()));
  for (auto& merge : json["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  EXPECT_EQ(json, Json::parse(TokenizerFile::parse(json.dump()).text()));
}

// Hugging Face's library turns truncation and padding off for a plain text.
TEST(Tokenizer, SettingsOfBatchesAreKeptAndDoNotCount) {
  auto json = drawn_file(1, 10, "ab");
  const std::string text = "a text of many tokens";
  const auto plain = made(json).encode(text);
  json["truncation"] = {{"direction", "Right"}, {"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}};
  json["padding"] = {{"strategy", {{"Fixed", 99}}}, {"direction", "Right"}, {"pad_id", 0}, {"pad_token", "a"}};
  EXPECT_EQ(plain, made(json).encode(text));
  EXPECT_EQ(json, Json::parse(made(json).text()));
}

// A long file, one item a line: a list of a hundred thousand lines once took minutes.
TEST(Tokenizer, AFileOfManyLinesIsWrittenBack) {
  auto json = drawn_file(1, 10, "ab");
  auto lines = Json::array();
  for (int i = 0; i < 1'000'000; ++i) lines.push_back(i % 10);
  json["from somewhere else"] = lines;
  const auto file = TokenizerFile::parse(json.dump());
  const auto begin = std::clock();  // time of this process, which other programs do not change
  const auto text = file.text();
  EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 5) << "seconds; moving the rest of the text at each line takes longer";
  EXPECT_EQ(json, Json::parse(text));
}

TEST(Tokenizer, AddedTokensAreFoundBeforeWords) {
  auto json = drawn_file(1, 10, "ab");
  const auto add = [&](TokenId id, const char* content, Json more) {
    more["id"] = id;
    more["content"] = content;
    json["added_tokens"].push_back(more);
  };
  add(300, "<|end|>", {{"special", true}});
  add(301, "<|end|>>", {{"special", true}});
  add(302, "word", {{"single_word", true}});
  add(303, "<l>", {{"lstrip", true}});
  add(304, "<r>", {{"rstrip", true}});
  const auto tokenizer = made(json);
  const TokenId x = 'x';
  EXPECT_EQ((Ids{x, 300, 301, 302}), tokenizer.encode("x<|end|><|end|>>word"));
  EXPECT_EQ((Ids{x, 303, 304, x}), tokenizer.encode("x  \n<l><r> \tx"));
  EXPECT_EQ(6U, tokenizer.encode("xwordx").size());
  EXPECT_EQ(7U, tokenizer.encode("<|end|>", {.finds_added = false}).size());
  EXPECT_EQ("xx", tokenizer.decode(Ids{x, 300, x}, {.skips_special = true}));
  EXPECT_EQ(305U, tokenizer.ids());
  EXPECT_EQ(300U, tokenizer.id_of("<|end|>"));
  expect_error([&] { static_cast<void>(tokenizer.decode(Ids{299})); }, ErrorKind::refused, "299 is the id of no token");
}

TEST(Tokenizer, WhatWouldChangeIdsIsRefusedByName) {
  const auto refused = [](const char* path, const Json& value, ErrorKind kind, const std::string& words) {
    auto json = drawn_file(1, 10, "ab");
    json[Json::json_pointer(path)] = value;
    expect_error([&] { made(json); }, kind, words);
  };
  refused("/normalizer", {{"type", "Lowercase"}}, ErrorKind::refused, "Lowercase");
  refused("/pre_tokenizer", {{"type", "Digits"}}, ErrorKind::refused, "Digits");
  refused("/model/type", "Unigram", ErrorKind::refused, "Unigram");
  refused("/model/dropout", 0.5, ErrorKind::refused, "dropout");
  refused("/model/end_of_word_suffix", "</w>", ErrorKind::refused, "end_of_word_suffix");
  refused("/post_processor", {{"type", "Other"}}, ErrorKind::refused, "Other");
  refused("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "\\p{N}{1,3}+"}}}, {"behavior", "Isolated"}},
          ErrorKind::refused, "}+");
  refused("/model/vocab/a", 98, ErrorKind::corrupt, "both have the id 98");
  refused("/model/vocab/a", 0x7fffffff, ErrorKind::corrupt, "the id 2147483647");
  refused("/model/vocab/a", 1e30, ErrorKind::corrupt, "no number");
  refused("/model/merges", Json::array({Json::array({"a", "nothing"})}), ErrorKind::corrupt,
          "\"nothing\" is not in the vocabulary");
  refused("/model/merges", Json::array({Json::array({"a", "b", "c"})}), ErrorKind::corrupt, "more than two parts");
  refused("/model/merges", {{"a", "b"}}, ErrorKind::corrupt, "another form");
  refused("/added_tokens", {{{"id", 300}, {"content", "x y"}}, {{"id", 301}, {"content", "x y"}}}, ErrorKind::corrupt,
          "stands twice");
  refused("/added_tokens", {{{"id", 98}, {"content", "x y"}}}, ErrorKind::corrupt, "for another token");
  // A file of some kilobytes that would take all memory: it doubles a text sixty times.
  Json doubling = Json::array();
  for (int i = 0; i < 60; ++i) doubling.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  auto grows = drawn_file(1, 10, "ab");
  grows["normalizer"] = {{"type", "Sequence"}, {"normalizers", doubling}};
  grows["added_tokens"] = {{{"id", 300}, {"content", "a b"}, {"normalized", true}}};
  expect_error([&] { Tokenizer(TokenizerFile::parse(grows.dump())); }, ErrorKind::corrupt, "longer than");
  expect_error([] { TokenizerFile::parse(R"({"model":{"vocab":{"a":1,"a":2}}, "model":{}})"); }, ErrorKind::corrupt, "twice");
  expect_error([] { TokenizerFile::parse(R"({"model":)" + std::string(100000, '[')); }, ErrorKind::corrupt, "levels");
  expect_error([] { TokenizerFile::parse("{\"model\":\"\xff\"}"); }, ErrorKind::corrupt, "not JSON");
  expect_error([] { Tokenizer::read("/no/such/tokenizer.json"); }, ErrorKind::refused, "/no/such/tokenizer.json");
}

// Whatever is damaged, the file gives a tokenizer or an Error.
TEST(Tokenizer, DamagedFilesEndInErrors) {
  auto json = drawn_file(2, 20, "ab");
  json["added_tokens"] = {{{"id", 300}, {"content", "<|end|>"}, {"special", true}}};
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<|end|>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}}}}}},
      {"special_tokens", {{"<|end|>", {{"id", "<|end|>"}, {"ids", {300}}}}}}};
  const auto text = json.dump();
  std::mt19937 random(20240520);
  int usable = 0;
  constexpr int kFiles = 3000;
  for (int i = 0; i < kFiles; ++i) {
    auto damaged = text;
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    for (auto changes = random() % 3; changes > 0 && !damaged.empty(); --changes) {
      const auto at = random() % damaged.size();
      switch (random() % 4) {
        case 0: damaged[at] = static_cast<char>(random()); break;
        case 1: damaged.erase(at, random() % 20); break;
        case 2: damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 40)); break;
        default: damaged.insert(at, std::string("9[{\"}],:").substr(random() % 8, 1)); break;
      }
    }
    try {
      const auto tokenizer = Tokenizer(TokenizerFile::parse(damaged));
      static_cast<void>(tokenizer.encode("ab <|end|> aabb", {.with_template = true}));
      ++usable;
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::corrupt || error.kind() == ErrorKind::refused) << error.what();
    }
  }
  EXPECT_GT(usable, 0);
  EXPECT_LT(usable, kFiles);
}

TEST(Normalize, ComposesAsUnicodeSays) {
  EXPECT_EQ("\u00e9", to_nfc("e\u0301"));
  EXPECT_EQ("\u1ec7", to_nfc("e\u0302\u0323"));       // marks in the other order
  EXPECT_EQ("\uac01", to_nfc("\u1100\u1161\u11a8"));  // Hangul
  EXPECT_EQ("\u00c5", to_nfc("\u212b"));
  EXPECT_EQ("\u0915\u093c", to_nfc("\u0958"));      // excluded from composition
  EXPECT_EQ("e\xff\u0301", to_nfc("e\xff\u0301"));  // nothing is joined over a byte that is no character
  EXPECT_TRUE(is_surely_nfc("plain \u00e9 \u4e2d"));
  EXPECT_FALSE(is_surely_nfc("e\u0301"));
}

}  // namespace
}  // namespace terrace::lm
