// Compares the data of a run with several sources with each source alone.
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <terrace/examples/lm/data/mixture.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/data/run_data.h>
#include <terrace/tests/support/english_text.h>

#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::cli {
namespace {

constexpr std::uint64_t kSeqLen = 32, kRows = 3;

struct Read {
  std::vector<std::int32_t> tokens, targets, numbers;
  friend bool operator==(const Read&, const Read&) = default;
};

Read read(RunData& data, Split split, const std::vector<std::uint64_t>& sequences) {
  Read out;
  for (auto* const all : {&out.tokens, &out.targets, &out.numbers}) all->resize(sequences.size() * kSeqLen);
  EXPECT_TRUE(data.read(split, sequences, out.tokens, out.targets));
  if (const auto number = data.documents()) number(split, sequences, out.tokens, out.numbers);
  return out;
}

class MixedData : public testing::Test {
 protected:
  [[nodiscard]] RunConfig config(const std::vector<std::filesystem::path>& words) const {
    RunConfig c;
    c.data.format = DataFormat::bytes;
    c.data.files = words;
    c.model.seq_len = kSeqLen;
    c.train.batch_size = kRows;
    return c;
  }
  ScratchFolder folder_;
  const std::filesystem::path a_ = folder_.write("a.txt", test::EnglishText(1).of(4000)),
                              a2_ = folder_.write("a2.txt", "more. "),
                              b_ = folder_.write("b.txt", test::EnglishText(2).of(900));
};

TEST_F(MixedData, EachSequenceIsThatOfItsSource) {
  for (const std::int64_t separator : {-1, 46}) {
    auto all = config({"0.7", a_, a2_, "0.3", b_});
    auto only_a = config({a_, a2_}), only_b = config({b_});
    for (auto* const c : {&all, &only_a, &only_b}) c->data.document_separator = separator;
    RunData mixed(all), a(only_a), b(only_b);
    lm::Mixture mixture({7, 3}, all.train.seed);
    constexpr std::uint64_t kSequences = 200;  // three epochs of b.txt
    for (std::uint64_t i = 0; i < kSequences; ++i) {
      const auto [source, sequence] = mixture.at(i);
      ASSERT_EQ(read(source == 0 ? a : b, Split::training, {sequence}), read(mixed, Split::training, {i})) << i;
    }
    // Reads several sequences at once, as a batch does, and then again.
    const auto batch = read(mixed, Split::training, {150, 151, 3});
    EXPECT_EQ(batch, read(mixed, Split::training, {150, 151, 3}));
    const auto epochs = mixed.epochs(kSequences);
    EXPECT_THAT(epochs, testing::ElementsAre(testing::Pair("a.txt", testing::_), testing::Pair("b.txt", testing::Gt(2.0))));
    EXPECT_TRUE(a.epochs(kSequences).empty());
  }
}

TEST_F(MixedData, EvaluationsTakeTheSourcesInTurn) {
  RunData mixed(config({"7", a_, "3", b_})), a(config({a_})), b(config({b_}));
  EXPECT_EQ(read(a, Split::held_out, {0, 1, 2}), read(mixed, Split::held_out, {0, 1, 2}));
  EXPECT_EQ(read(b, Split::held_out, {0, 1, 2}), read(mixed, Split::held_out, {3, 4, 5}));
  EXPECT_EQ(read(a, Split::held_out, {3, 4, 5}), read(mixed, Split::held_out, {6, 7, 8}));
  const std::vector<Trainer::HeldOut> losses{{10, 4}, {3, 1}, {20, 4}, {9, 2}};
  const auto found = mixed.held_out(losses);
  EXPECT_EQ((std::map<std::string, double>{{"a.txt", 30.0 / 8}, {"b.txt", 12.0 / 3}}), found.of_sources);
  EXPECT_DOUBLE_EQ((0.7 * 30 + 0.3 * 12) / (0.7 * 8 + 0.3 * 3), found.loss.value());
  EXPECT_EQ(42.0 / 11, a.held_out(losses).loss);
  EXPECT_TRUE(a.held_out(losses).of_sources.empty());
  // A source without targets has no loss.
  const std::vector<Trainer::HeldOut> some{{10, 4}, {0, 0}}, none{{0, 0}, {0, 0}};
  EXPECT_EQ((std::map<std::string, double>{{"a.txt", 2.5}}), mixed.held_out(some).of_sources);
  EXPECT_EQ(2.5, mixed.held_out(some).loss);
  EXPECT_EQ(std::nullopt, mixed.held_out(none).loss);
  EXPECT_EQ(std::nullopt, a.held_out(none).loss);
}

// 5 % of a.txt are 200 bytes, 6 sequences of 32 tokens; of b.txt 45 bytes, one sequence.
TEST_F(MixedData, AnEvaluationThatReadsSequencesAgainIsSaid) {
  const auto notes = [&](std::int64_t eval_batches, const std::vector<std::filesystem::path>& words) {
    auto c = config(words);
    c.train.eval_batches = eval_batches;
    return RunData(c).notes();
  };
  EXPECT_TRUE(notes(2, {a_}).empty()) << "two micro-batches of three sequences";
  EXPECT_THAT(notes(3, {a_}),
              testing::ElementsAre("an evaluation reads 9 sequences (--eval-batches × --batch-size), and 6 are held out, so it "
                                   "reads some of them again"));
  EXPECT_THAT(notes(2, {"7", a_, "3", b_}),
              testing::ElementsAre(testing::StartsWith("data a.txt: 70 %"), testing::StartsWith("data b.txt: 30 %"),
                                   testing::StartsWith("data b.txt: an evaluation reads 6 sequences (--eval-batches × "
                                                       "--batch-size), and 1 is held out")));
  EXPECT_TRUE(notes(0, {a_}).empty());
}

TEST_F(MixedData, WordsAreSourcesWithWeights) {
  const auto sources = data_sources(config({"70", a_, a2_, "30.0", b_, "10", folder_ / "other" / "b.txt"}));
  ASSERT_EQ(3U, sources.size());
  EXPECT_EQ((std::vector<std::filesystem::path>{a_, a2_}), sources[0].files);
  EXPECT_EQ(7U, sources[0].weight);
  EXPECT_EQ("b.txt", sources[1].name);
  EXPECT_EQ("b.txt (2)", sources[2].name);
  EXPECT_EQ(1U, data_sources(config({"./7", a_})).size()) << "a file whose name is a number";
  EXPECT_EQ(1U, data_sources(config({"3", a_})).at(0).weight);
  EXPECT_TRUE(data_sources(config({})).empty());
  for (const auto& [words, why] : {std::pair<std::vector<std::filesystem::path>, std::string>{{"7"}, "has no files"},
                                   {{"7", a_, "3"}, "has no files"},
                                   {{"7", "3", a_}, "has no files"},
                                   {{a_, "3", b_}, "a.txt has no weight"},
                                   {{"-7", a_, "3", b_}, "not a positive number"},
                                   {{"nan", a_, "3", b_}, "not a positive number"},
                                   {{"0", a_, "3", b_}, "not a positive number"}})
    EXPECT_THAT(test::refusal_of([&] { static_cast<void>(data_sources(config(words))); }), testing::HasSubstr(why));
}

}  // namespace
}  // namespace terrace::cli
