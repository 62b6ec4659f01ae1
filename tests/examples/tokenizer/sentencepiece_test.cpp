// Models of sentencepiece, trained here: terrace gives the library's own ids and texts, and handles special tokens, spaces and
// cuts as it needs them.
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/tokenizer/decode_stream.h>
#include <terrace/examples/lm/tokenizer/sentencepiece_file.h>
#include <terrace/examples/lm/tokenizer/tokenize_job.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

using testing::HasSubstr;

constexpr unsigned kSeed = 20240401;

// Words of few syllables, of several scripts, with numbers, white space and letters that no model has seen.
std::string some_text(std::mt19937& random, std::size_t words) {
  const std::vector<std::string> syllables{"ba", "ra", "on", "ce", "up", "na", "Ti", "mé", "Ω", "да", "が", "1", "20", "x"};
  const std::vector<std::string> between{" ",  " ",  " ",      " ",        "  ",   "\n",          ", ",
                                         ". ", "\t", "\u3000", " \u2581 ", "🙂", "\u00e9\u0301"};
  std::string text;
  for (std::size_t i = 0; i < words; ++i) {
    for (auto left = 1 + random() % 4; left > 0; --left) text += syllables[random() % syllables.size()];
    text += between[random() % between.size()];
  }
  return text;
}

struct Kind {
  std::string name, flags;
};
const std::vector<Kind> kKinds{
    // Like the models of Llama 2 and Mistral, and of Gemma.
    {"bpe", "--model_type=bpe --byte_fallback=true --normalization_rule_name=identity --remove_extra_whitespaces=false"},
    {"bpe_without_prefix",
     "--model_type=bpe --byte_fallback=true --normalization_rule_name=identity --remove_extra_whitespaces=false "
     "--add_dummy_prefix=false --split_digits=true"},
    {"bpe_plain", "--model_type=bpe"},
    {"unigram", "--model_type=unigram"},
    {"unigram_bytes", "--model_type=unigram --byte_fallback=true --remove_extra_whitespaces=false"},
    {"unigram_symbols", "--model_type=unigram --user_defined_symbols=<sep>,baba --control_symbols=<ctrl>"}};

// Trains each model of this program once.
class SentencePiece : public testing::TestWithParam<Kind> {
 public:
  static void SetUpTestSuite() {
    folder_ = new ScratchFolder;
    std::mt19937 random(kSeed);
    std::string lines;
    for (int i = 0; i < 400; ++i) {
      auto line = some_text(random, 12);
      std::ranges::replace(line, '\n', ' ');
      lines += line + "\n";
    }
    folder_->write("text", lines);
  }
  static void TearDownTestSuite() { delete folder_; }

 protected:
  // The folder of a trained model.
  static std::filesystem::path folder_of(const Kind& kind) {
    const auto folder = *folder_ / kind.name;
    if (std::filesystem::exists(folder)) return folder;
    std::filesystem::create_directories(folder);
    const auto status = sentencepiece::SentencePieceTrainer::Train(
        "--input=" + (*folder_ / "text").string() + " --model_prefix=" + (folder / "tokenizer").string() +
        " --vocab_size=340 --hard_vocab_limit=false --character_coverage=0.99 --num_threads=1 --minloglevel=2 " + kind.flags);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return folder;
  }
  static Tokenizer tokenizer_of(const Kind& kind) { return Tokenizer::read(folder_of(kind) / "tokenizer.model"); }
  static void load(sentencepiece::SentencePieceProcessor& library, const Kind& kind) {
    ASSERT_TRUE(library.Load((folder_of(kind) / "tokenizer.model").string()).ok());
  }
  static std::vector<TokenId> ids_of(const std::vector<int>& ids) { return {ids.begin(), ids.end()}; }

  static ScratchFolder* folder_;
};
ScratchFolder* SentencePiece::folder_ = nullptr;

INSTANTIATE_TEST_SUITE_P(Models, SentencePiece, testing::ValuesIn(kKinds), [](const auto& of) { return of.param.name; });

TEST_P(SentencePiece, HasTheIdsAndTextsOfTheLibrary) {
  sentencepiece::SentencePieceProcessor library;
  load(library, GetParam());
  const auto tokenizer = tokenizer_of(GetParam());
  EXPECT_EQ(static_cast<std::size_t>(library.GetPieceSize()), tokenizer.ids());
  std::mt19937 random(kSeed + 1);
  std::vector<std::string> texts{
      "", " ", "a", "\u2581", " once", "once  ", std::string("a\0b", 3), "\xff\xfe", "<sep>baba<ctrl>"};
  for (int i = 0; i < 300; ++i) texts.push_back(some_text(random, random() % 40));
  Encoding with;
  for (const auto& text : texts) {
    std::vector<int> expected;
    ASSERT_TRUE(library.Encode(text, &expected).ok());
    TokenBuffer ids;
    tokenizer.encode(text, {.finds_added = false}, with, ids);
    ASSERT_EQ(ids_of(expected), std::vector<TokenId>(ids.view().begin(), ids.view().end())) << "seed " << kSeed << ": " << text;
    // The library writes " ⁇ " for an unknown token, and U+FFFD for a byte that is no character.
    if (std::ranges::find(expected, library.unk_id()) != expected.end()) continue;
    std::string decoded;
    ASSERT_TRUE(library.Decode(expected, &decoded).ok());
    EXPECT_EQ(decoded, tokenizer.decode(ids.view())) << "seed " << kSeed << ": " << text;
  }
}

TEST_P(SentencePiece, StreamsWhatItDecodes) {
  const auto tokenizer = tokenizer_of(GetParam());
  std::mt19937 random(kSeed + 2);
  for (int i = 0; i < 300; ++i) {
    std::vector<TokenId> ids;
    for (auto left = random() % 30; left > 0; --left) ids.push_back(static_cast<TokenId>(random() % tokenizer.ids()));
    for (const bool skips : {false, true}) {
      DecodeStream stream(tokenizer, {.skips_special = skips});
      std::string text;
      for (const auto id : ids) text += stream.add(id);
      EXPECT_EQ(tokenizer.decode(ids, {.skips_special = skips}), text + stream.finish()) << "seed " << kSeed;
    }
  }
}

// Counts the texts that may be cut; the two parts must have the tokens of the whole.
int cuts_of(const Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  int cuts = 0;
  for (const auto& text : texts) {
    const auto at = tokenizer.cut_before(text, text.size() / 2);
    if (!at) continue;
    ++cuts;
    auto parts = tokenizer.encode(text.substr(0, *at));
    const auto rest = tokenizer.encode(text.substr(*at), {.goes_on = true});
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(tokenizer.encode(text), parts) << "seed " << kSeed << ": " << text;
  }
  return cuts;
}

// A table of characters may depend on text across a cut, and unigrams add up scores from the begin of a text.
bool may_be_cut(const std::string& kind) { return kind == "bpe" || kind == "bpe_without_prefix"; }

TEST_P(SentencePiece, TextsAreCutWhereBothPartsHaveTheirTokens) {
  std::mt19937 random(kSeed + 3);
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) texts.push_back(some_text(random, 20));
  EXPECT_EQ(may_be_cut(GetParam().name), cuts_of(tokenizer_of(GetParam()), texts) > 0);
}

// Where no piece contains the two neighbouring characters, nothing is merged.
TEST_P(SentencePiece, TextsWithoutSpacesAreCutBetweenPieces) {
  std::mt19937 random(kSeed + 5);
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) {
    auto& text = texts.emplace_back(some_text(random, 20));
    for (auto at = text.find(' '); at != std::string::npos; at = text.find(' ', at))
      text.replace(at, 1, i % 2 == 0 ? "\n" : "\u3002");
  }
  EXPECT_EQ(may_be_cut(GetParam().name) ? 300 : 0, cuts_of(tokenizer_of(GetParam()), texts));
}

TEST_P(SentencePiece, FilesOfTokensDoNotDependOnPieces) {
  std::mt19937 random(kSeed + 4);
  const auto input = folder_->write("input.txt", some_text(random, 3000));
  const auto tokenizer = tokenizer_of(GetParam());
  ThreadPool pool(2);
  const auto bytes_with = [&](std::uint64_t piece_bytes) {
    TokenizeSettings settings;
    settings.inputs = {input};
    settings.out = *folder_ / "ids";
    settings.piece_bytes = piece_bytes;
    TokenizeJob job(settings, tokenizer, pool);
    while (job.step()) continue;
    job.finish();
    return folder_->read("ids");
  };
  const auto whole = bytes_with(1 << 20);
  EXPECT_EQ(2 * tokenizer.encode(folder_->read("input.txt"), {.finds_added = false}).size(), whole.size());
  EXPECT_EQ(whole, bytes_with(100));
}

// Texts with special tokens, which the files beside the model name.
class SpecialTokens : public SentencePiece {
 protected:
  static Tokenizer with(const std::map<std::string, std::string>& files, const Kind& kind = kKinds[0]) {
    const auto folder = *folder_ / "special";
    std::filesystem::remove_all(folder);
    std::filesystem::copy(folder_of(kind), folder);
    for (const auto& [name, text] : files) std::ofstream(folder / name) << text;
    return Tokenizer::read(folder / "tokenizer.model");
  }
  static std::vector<std::string> pieces(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
    std::vector<std::string> out;
    for (const auto id : tokenizer.encode(text, options)) out.push_back(tokenizer.piece(id));
    return out;
  }
};

TEST_F(SpecialTokens, AreThoseOfTheModelOrThoseThatFilesName) {
  const auto plain = with({});
  EXPECT_THAT(plain.special(), testing::ElementsAre("<unk>", "<s>", "</s>"));
  EXPECT_THAT(pieces(plain, "<s>on</s>"), testing::ElementsAre("<s>", "on", "</s>"));
  EXPECT_THAT(pieces(plain, "<s>", {.finds_added = false}), testing::Not(testing::Contains("<s>")));
  EXPECT_EQ("on", plain.decode(plain.encode("<s>on</s>"), {.skips_special = true}));
  const auto named = with({{"tokenizer_config.json", R"({"bos_token":{"content":"<s>"},"pad_token":"<pad>",
      "added_tokens_decoder":{"2":{"content":"<|end|>","special":true},"340":{"content":"<pad>","rstrip":true,"special":true},
                              "341":{"content":"<tool>","special":false}}})"},
                           {"added_tokens.json", R"({"<more>":342})"}});
  EXPECT_EQ(343U, named.ids());
  EXPECT_THAT(named.special(), testing::ElementsAre("<unk>", "<s>", "<|end|>", "<pad>"));
  EXPECT_THAT(pieces(named, "on<|end|><pad>  <tool>on<more>"),
              testing::ElementsAre(" on", "<|end|>", "<pad>", "<tool>", "on", "<more>"));
  EXPECT_EQ(341U, named.id_of("<tool>"));
  EXPECT_EQ("on<tool>", named.decode(named.encode("on<pad><tool>"), {.skips_special = true}));
}

TEST_F(SpecialTokens, ATemplateSetsBeginAndEnd) {
  const EncodeOptions whole{.with_template = true};
  EXPECT_THAT(pieces(with({}), "on", whole), testing::ElementsAre(" on"));
  EXPECT_THAT(pieces(with({{"tokenizer_config.json", R"({"add_bos_token":true})"}}), "on", whole),
              testing::ElementsAre("<s>", " on"));
  EXPECT_THAT(pieces(with({{"tokenizer_config.json", R"({"add_bos_token":false,"add_eos_token":true})"}}), "on", whole),
              testing::ElementsAre(" on", "</s>"));
}

TEST_F(SpecialTokens, TheSpaceBeforeATextIsSetOnceOrBehindEach) {
  EXPECT_THAT(pieces(with({{"tokenizer_config.json", R"({"legacy":true})"}}), "on<s>on"),
              testing::ElementsAre(" on", "<s>", " on"));
  EXPECT_THAT(pieces(with({{"tokenizer_config.json", R"({"legacy":false})"}}), "on<s>on"),
              testing::ElementsAre(" on", "<s>", "on"));
  const auto without = with({{"tokenizer_config.json", R"({"add_prefix_space":false})"}});
  EXPECT_THAT(pieces(without, "on"), testing::ElementsAre("on"));
  EXPECT_EQ(" on", without.decode(without.encode(" on")));
  EXPECT_THAT(pieces(with({}, kKinds[1]), "on on"), testing::ElementsAre("on", " on"));
  EXPECT_THAT(pieces(with({}), "on", {.goes_on = true}), testing::ElementsAre("on"));
}

TEST_F(SpecialTokens, DamagedFilesAreRefusedByName) {
  const auto why = [&](const std::map<std::string, std::string>& files, ErrorKind kind) {
    return test::error_of(kind, [&] { with(files); });
  };
  EXPECT_THAT(why({{"tokenizer_config.json", "{"}}, ErrorKind::corrupt), HasSubstr("tokenizer_config.json"));
  EXPECT_THAT(why({{"added_tokens.json", R"({"a":-1})"}}, ErrorKind::corrupt), HasSubstr("added_tokens.json"));
  EXPECT_THAT(why({{"added_tokens.json", R"({"a":2000000000})"}}, ErrorKind::corrupt), HasSubstr("has the id 2000000000"));
  EXPECT_THAT(why({{"tokenizer_config.json", R"({"added_tokens_decoder":{"x":{}}})"}}, ErrorKind::corrupt),
              HasSubstr("\"x\" is no id"));
  EXPECT_THAT(why({{"tokenizer_config.json", R"({"legacy":1})"}}, ErrorKind::corrupt), HasSubstr("\"legacy\""));
  EXPECT_THAT(why({{"tokenizer.model", "x"}}, ErrorKind::corrupt), HasSubstr("tokenizer.model cannot be used: it is no model"));
  EXPECT_THAT(why({{"tokenizer.model", ""}}, ErrorKind::corrupt), HasSubstr("tokenizer.model"));
}

// Flipped bits in a model, or a model that is cut short, give a typed error or a tokenizer.
TEST_F(SpecialTokens, DamagedModelsAreTypedErrors) {
  const auto good = [&] {
    std::ostringstream bytes;
    bytes << std::ifstream(folder_of(kKinds[3]) / "tokenizer.model", std::ios::binary).rdbuf();
    return bytes.str();
  }();
  std::mt19937 random(kSeed + 5);
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    auto bytes = good;
    for (auto left = 1 + random() % 3; left > 0; --left)
      bytes[random() % bytes.size()] ^= static_cast<char>(1U << random() % 8);
    if (i % 4 == 0) bytes.resize(random() % bytes.size());
    try {
      static_cast<void>(with({{"tokenizer.model", bytes}}).encode("once upon <s>"));
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 50) << "seed " << kSeed;
}

TEST(SentencePieceFile, TellsWhatTheLibraryDoesNot) {
  EXPECT_TRUE(read_sentencepiece_file("").prefixes);
  EXPECT_FALSE(read_sentencepiece_file(without_prefix("")).prefixes);
  EXPECT_TRUE(read_sentencepiece_file(without_prefix("")).removes_spaces);
  EXPECT_TRUE(read_sentencepiece_file(std::string("\x12\x02\x18\x02", 4)).bpe);
  EXPECT_TRUE(read_sentencepiece_file(std::string("\x12\x03\xc0\x01\x01", 5)).spaces_behind);
  for (const std::string_view bad :
       {"\x12", "\x12\x05x", "\x13", "\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x19x", "\x1dx"})
    EXPECT_THROW(static_cast<void>(read_sentencepiece_file(bad)), Error);
}

}  // namespace
}  // namespace terrace::lm
