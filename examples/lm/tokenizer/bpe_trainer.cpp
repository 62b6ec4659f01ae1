#include <terrace/examples/lm/tokenizer/bpe_trainer.h>

#include <algorithm>
#include <array>
#include <queue>
#include <unordered_map>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/tokenizer/words/byte_letters.h>

namespace terrace::lm {
namespace {

using Json = nlohmann::ordered_json;
using Pair = std::uint64_t;  // left id × 2³² + right id

struct PairHash {
  std::size_t operator()(Pair pair) const {
    pair *= 0x9e3779b97f4a7c15U;
    return pair ^ pair >> 32U;
  }
};

Pair pair_of(TokenId left, TokenId right) { return std::uint64_t{left} << 32U | right; }

struct Candidate {
  std::int64_t count;
  Pair pair;
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.count != b.count ? a.count < b.count : a.pair > b.pair;
  }
};

class Trainer {
 public:
  Trainer(const std::vector<std::pair<std::string, std::uint64_t>>& words, const TrainerSettings& settings)
      : settings_(settings) {
    for (const auto& special : settings.special) add(special);
    add_bytes();
    if (spellings_.size() > settings.vocabulary)
      throw base::Refused(fmt::format("a vocabulary of {} ids cannot hold {} special tokens and 256 bytes", settings.vocabulary,
                                      settings.special.size()));
    for (const auto& [word, count] : words) {
      words_.push_back({.first = static_cast<std::uint64_t>(symbols_.size()),
                        .size = static_cast<std::uint32_t>(word.size()),
                        .count = static_cast<std::int64_t>(count)});
      for (const char byte : word) symbols_.push_back(bytes_[static_cast<unsigned char>(byte)]);
      each_pair(words_.back(), [&](Pair pair) { change(pair, words_.back().count, words_.size() - 1); });
    }
    for (const auto& [pair, entry] : pairs_) heap_.push({entry.count, pair});
  }

  // Returns false when nothing is left to merge.
  bool merge_next() {
    while (!heap_.empty() && spellings_.size() < settings_.vocabulary) {
      const auto best = heap_.top();
      heap_.pop();
      const auto found = pairs_.find(best.pair);
      if (found == pairs_.end()) continue;
      if (found->second.count != best.count) {  // it has changed since it was pushed
        heap_.push({found->second.count, best.pair});
        continue;
      }
      if (best.count < 1 || static_cast<std::uint64_t>(best.count) < settings_.least_count) return false;
      merge(best.pair, std::move(found->second.words));
      return true;
    }
    return false;
  }
  [[nodiscard]] std::size_t ids() const { return spellings_.size(); }

  [[nodiscard]] TokenizerFile file() const;

 private:
  struct Word {
    std::uint64_t first;  // index of its first symbol
    std::uint32_t size;
    std::int64_t count;
  };
  struct Entry {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // words that may contain the pair, perhaps listed twice
  };

  TokenId add(const std::string& spelling) {
    const auto [found, is_new] = ids_.emplace(spelling, static_cast<TokenId>(spellings_.size()));
    if (is_new) spellings_.push_back(spelling);
    return found->second;
  }
  void add_bytes() {
    std::array<unsigned char, 256> order{};
    for (unsigned byte = 0; byte < 256; ++byte) order[byte] = static_cast<unsigned char>(byte);
    std::ranges::sort(order, {}, letter_of_byte);
    for (const auto byte : order) bytes_[byte] = add(letters_of_bytes(std::string(1, static_cast<char>(byte))));
  }
  template <class F>
  void each_pair(const Word& word, const F& f) const {
    for (std::uint64_t i = word.first; i + 1 < word.first + word.size; ++i) f(pair_of(symbols_[i], symbols_[i + 1]));
  }
  void change(Pair pair, std::int64_t by, std::size_t word) {
    auto& entry = pairs_[pair];
    entry.count += by;
    const auto number = static_cast<std::uint32_t>(word);
    if (entry.words.empty() || entry.words.back() != number) entry.words.push_back(number);
  }
  void replace(Word& word, TokenId left, TokenId right, TokenId both) {
    std::uint64_t kept = word.first;
    for (std::uint64_t i = word.first; i < word.first + word.size; ++i) {
      const bool merges = i + 1 < word.first + word.size && symbols_[i] == left && symbols_[i + 1] == right;
      symbols_[kept++] = merges ? both : symbols_[i];
      if (merges) ++i;
    }
    word.size = static_cast<std::uint32_t>(kept - word.first);
  }

  void merge(Pair pair, std::vector<std::uint32_t> places) {
    const auto left = static_cast<TokenId>(pair >> 32U), right = static_cast<TokenId>(pair);
    const auto both = add(spellings_[left] + spellings_[right]);
    merges_.emplace_back(left, right);
    std::ranges::sort(places);
    places.erase(std::unique(places.begin(), places.end()), places.end());
    changes_.clear();
    for (const auto number : places) {
      auto& word = words_[number];
      const auto before = word.size;
      each_pair(word, [&](Pair p) { changes_[p].count -= word.count; });
      replace(word, left, right, both);
      each_pair(word, [&](Pair p) {
        auto& entry = changes_[p];
        entry.count += word.count;
        const bool is_new = static_cast<TokenId>(p) == both || static_cast<TokenId>(p >> 32U) == both;
        if (before != word.size && is_new) entry.words.push_back(number);
      });
    }
    pairs_.erase(pair);
    for (auto& [p, entry] : changes_) {
      if (p == pair || (entry.count == 0 && entry.words.empty())) continue;
      auto& known = pairs_[p];
      known.count += entry.count;
      known.words.insert(known.words.end(), entry.words.begin(), entry.words.end());
      if (entry.count > 0) heap_.push({known.count, p});
      if (known.count == 0) pairs_.erase(p);
    }
  }

  const TrainerSettings& settings_;
  std::vector<std::string> spellings_;  // by id
  std::unordered_map<std::string, TokenId> ids_;
  std::array<TokenId, 256> bytes_{};
  std::vector<TokenId> symbols_;
  std::vector<Word> words_;
  std::unordered_map<Pair, Entry, PairHash> pairs_, changes_;
  std::priority_queue<Candidate> heap_;
  std::vector<std::pair<TokenId, TokenId>> merges_;
};

Json pre_tokenizer_of(Pattern pattern) {
  const bool own = pattern != Pattern::gpt2;  // ByteLevel itself applies GPT-2's pattern
  const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", !own}};
  if (!own) return bytes;
  const Json split{
      {"type", "Split"}, {"pattern", {{"Regex", std::string(text_of(pattern))}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}};
}

TokenizerFile Trainer::file() const {
  TokenizerFile out;
  Json added = Json::array();
  for (const auto& special : settings_.special)
    added.push_back({{"id", ids_.at(special)},
                     {"content", special},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  const Json model{{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", false},
                   {"vocab", nullptr},
                   {"merges", nullptr}};
  out.rest = {{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", added},
              {"normalizer", nullptr},
              {"pre_tokenizer", pre_tokenizer_of(settings_.pattern)},
              {"post_processor", nullptr},
              {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
              {"model", model}};
  for (std::size_t id = 0; id < spellings_.size(); ++id) out.vocabulary.emplace_back(spellings_[id], static_cast<TokenId>(id));
  for (const auto& [left, right] : merges_) out.merges.emplace_back(spellings_[left], spellings_[right]);
  return out;
}

}  // namespace

TokenizerFile train_bpe(const std::vector<std::pair<std::string, std::uint64_t>>& words, const TrainerSettings& settings,
                        const std::function<bool(std::size_t)>& progress) {
  Trainer trainer(words, settings);
  constexpr std::size_t kAskEvery = 64;
  for (std::size_t merges = 1; trainer.merge_next(); ++merges)
    if (merges % kAskEvery == 0 && !progress(trainer.ids())) throw Error("stopped while merging", ErrorKind::interrupted);
  return trainer.file();
}

}  // namespace terrace::lm
