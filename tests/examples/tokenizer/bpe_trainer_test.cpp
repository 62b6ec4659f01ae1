// Compares the trainer with a plain one that counts everything again for each merge, and tests the counting of words.
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/tokenizer/bpe_trainer.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/lm/tokenizer/words/byte_letters.h>
#include <terrace/examples/lm/tokenizer/words/word_counts.h>
#include <terrace/tests/examples/scratch_folder.h>

namespace terrace::lm {
namespace {

using Words = std::vector<std::pair<std::string, std::uint64_t>>;
using Merges = std::vector<std::pair<std::string, std::string>>;
constexpr auto kGoesOn = [](auto...) { return true; };

Merges plainly_trained(const Words& words, std::size_t vocabulary, const std::map<std::string, TokenId>& first_ids) {
  auto ids = first_ids;
  std::vector<std::pair<std::vector<std::string>, std::int64_t>> split;
  for (const auto& [word, count] : words) {
    split.push_back({{}, static_cast<std::int64_t>(count)});
    for (const char byte : word) split.back().first.push_back(letters_of_bytes(std::string(1, byte)));
  }
  Merges merges;
  while (ids.size() < vocabulary) {
    std::map<std::pair<TokenId, TokenId>, std::pair<std::int64_t, std::pair<std::string, std::string>>> pairs;
    for (const auto& [parts, count] : split)
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        auto& entry = pairs[{ids.at(parts[i]), ids.at(parts[i + 1])}];
        entry.first += count;
        entry.second = {parts[i], parts[i + 1]};
      }
    std::pair<std::int64_t, std::pair<std::string, std::string>> best;
    for (const auto& [of, entry] : pairs)  // ascending: among equal counts, the pair with the lowest ids stays
      if (entry.first > best.first) best = entry;
    if (best.first == 0) break;
    const auto& [left, right] = best.second;
    merges.push_back(best.second);
    ids.emplace(left + right, static_cast<TokenId>(ids.size()));
    for (auto& [parts, count] : split)
      for (std::size_t i = 0; i + 1 < parts.size(); ++i)
        if (parts[i] == left && parts[i + 1] == right) {
          parts[i] += parts[i + 1];
          parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
  }
  return merges;
}

TEST(BpeTrainer, MergesAsTheDefinitionSays) {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    Words words;
    for (int i = 0; i < 40; ++i) {
      std::string word;
      for (auto letters = 1 + random() % 8; letters > 0; --letters) word += "aab\xc3"[random() % 4];
      words.emplace_back(word, 1 + random() % 20);
    }
    TrainerSettings settings;
    settings.vocabulary = 258 + random() % 60;
    settings.special = {"<|end|>", "<|x|>"};
    const auto file = train_bpe(words, settings, kGoesOn);
    std::map<std::string, TokenId> first;
    for (std::size_t i = 0; i < 258; ++i) first.emplace(file.vocabulary[i].first, file.vocabulary[i].second);
    EXPECT_EQ("<|end|>", file.vocabulary[0].first);
    EXPECT_EQ("!", file.vocabulary[2].first);
    ASSERT_EQ(plainly_trained(words, settings.vocabulary, first), file.merges) << "seed " << seed;
    const Tokenizer tokenizer(TokenizerFile::parse(file.text()));
    EXPECT_EQ(file.vocabulary.size(), tokenizer.ids());
    EXPECT_EQ("aabab \xc3", tokenizer.decode(tokenizer.encode("aabab \xc3")));
  }
}

TEST(BpeTrainer, AVocabularyHoldsSpecialTokensAndBytes) {
  TrainerSettings settings;
  settings.vocabulary = 256;
  EXPECT_EQ(256U, train_bpe({}, settings, kGoesOn).vocabulary.size());
  settings.special = {"<|end|>"};
  EXPECT_THROW(train_bpe({}, settings, kGoesOn), Error);
}

class Count : public testing::Test {
 protected:
  [[nodiscard]] CountSettings settings(const std::string& text) const {
    CountSettings s;
    s.inputs = {folder_.write("text", text), folder_.write("more.jsonl", R"({"text":"one two"})"
                                                                         "\n")};
    s.pattern = Pattern::gpt2;
    s.piece_bytes = 500;
    return s;
  }
  static WordCounts counted(const CountSettings& settings, int threads) {
    ThreadPool pool(threads);
    return count_words(settings, pool, kGoesOn);
  }
  ScratchFolder folder_;
};

TEST_F(Count, IsThatOfTheWholeText) {
  std::string text;
  std::map<std::string, std::uint64_t> expected;
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) text += " w" + std::string(1 + random() % 9, static_cast<char>('a' + random() % 5));
  for (const std::string_view document : {std::string_view(text), std::string_view("one two")})
    each_word(Pattern::gpt2, document, [&](std::string_view word) { ++expected[std::string(word)]; });
  for (const int threads : {1, 2, 5}) {
    const auto counts = counted(settings(text), threads);
    EXPECT_EQ(Words(expected.begin(), expected.end()), counts.words);
    EXPECT_EQ(0U, counts.most_missed);
  }
}

// The words that are dropped depend on the text alone; words that were never rare among the others stay.
TEST_F(Count, InLittleMemoryIsTheSameForEachNumberOfThreads) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += " often x" + std::to_string(i);
  auto s = settings(text);
  s.most_bytes = 100000;
  const auto one = counted(s, 1);
  EXPECT_GT(one.most_missed, 0U);
  EXPECT_LT(one.words.size(), 3000U);
  EXPECT_EQ(one.words, counted(s, 3).words);
  const auto often = std::ranges::find(one.words, " often", &Words::value_type::first);
  ASSERT_NE(one.words.end(), often);
  EXPECT_EQ(20000U, often->second);
}

}  // namespace
}  // namespace terrace::lm
