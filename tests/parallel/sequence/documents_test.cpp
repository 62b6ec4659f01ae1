// Sequences of several documents, and padding: training equals that on the same documents one a sequence, on every mesh.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <terrace/parallel/model/documents.h>
#include <terrace/parallel/train/documents.h>

#include <terrace/tests/parallel/tensor/tensor_run.h>

namespace terrace::test {
namespace {

using testing::ElementsAre;

constexpr std::int64_t kSeq = 24, kDocuments = 4;  // positions and documents of a sequence; the last document is padding

// Three documents of unequal lengths (every third sequence begins with one of a single token), then padding or none.
std::vector<std::int64_t> lengths(std::uint64_t sequence) {
  const auto draw = [&](std::uint64_t at, std::uint64_t below) {
    return static_cast<std::int64_t>(math::random_below(11, sequence, at, below));
  };
  const std::int64_t first = sequence % 3 == 0 ? 1 : 2 + draw(0, 9), second = 2 + draw(1, 7);
  const std::int64_t third = sequence % 2 == 0 ? kSeq - first - second : 2 + draw(2, 3);
  return {first, second, third, kSeq - first - second - third};
}

std::int32_t token(Split split, std::uint64_t document, std::int64_t at, std::int64_t vocab) {
  return static_cast<std::int32_t>(math::random_below(split == Split::training ? 3 : 4, document,
                                                      static_cast<std::uint64_t>(at), static_cast<std::uint64_t>(vocab)));
}

// Tokens and targets of a document, at the begin of the spans; the last token and some others have no target.
void write(Split split, std::uint64_t document, std::int64_t count, std::int64_t vocab, std::span<std::int32_t> tokens,
           std::span<std::int32_t> targets) {
  for (std::int64_t i = 0; i < count; ++i) {
    tokens[static_cast<std::size_t>(i)] = token(split, document, i, vocab);
    targets[static_cast<std::size_t>(i)] = i + 1 == count || i % 7 == 3 ? -1 : token(split, document, i + 1, vocab);
  }
}

// Packs all documents of a sequence. The targets at their borders are wrong: the trainer drops them.
TensorRun packed(lm::ModelConfig config, std::int64_t rows = 2, std::int32_t padding = 9) {
  config.seq_len = kSeq;
  TensorRun o{.config = config};
  o.batch = {rows, kSeq};
  o.read = [vocab = config.vocab, padding](Split split, auto sequences, auto tokens, auto targets) {
    std::ranges::fill(targets, -1);
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      auto at = s * kSeq;
      std::uint64_t document = sequences[s] * kDocuments;
      for (const auto count : lengths(sequences[s])) {
        const auto n = static_cast<std::size_t>(count);
        if (document % kDocuments == kDocuments - 1) {
          std::ranges::fill(tokens.subspan(at, n), padding);
        } else {
          write(split, document, count, vocab, tokens.subspan(at, n), targets.subspan(at, n));
          if (at + n < (s + 1) * kSeq) targets[at + n - 1] = 5;
        }
        at += n;
        ++document;
      }
    }
    return true;
  };
  o.documents = [](Split, auto sequences, auto, auto numbers) {
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      auto at = s * kSeq;
      std::int32_t number = 7;
      for (const auto count : lengths(sequences[s])) {
        std::ranges::fill(numbers.subspan(at, static_cast<std::size_t>(count)), number--);
        at += static_cast<std::size_t>(count);
      }
    }
  };
  return o;
}

// The same documents, each at the begin of a sequence of its own. The rest is padding of the same document, which no token
// sees.
TensorRun one_a_sequence(const TensorRun& of) {
  auto o = of;
  o.batch.batch *= kDocuments;
  o.read = [vocab = of.config.vocab](Split split, auto sequences, auto tokens, auto targets) {
    std::ranges::fill(tokens, 17);
    std::ranges::fill(targets, -1);
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const auto number = sequences[s] % kDocuments;
      if (number == kDocuments - 1) continue;
      const auto count = lengths(sequences[s] / kDocuments)[number];
      write(split, sequences[s], count, vocab, tokens.subspan(s * kSeq), targets.subspan(s * kSeq));
    }
    return true;
  };
  o.documents = [](Split, auto, auto, auto numbers) { std::ranges::fill(numbers, 0); };
  return o;
}

class DocumentsRun : public TensorRuns {};

TEST_F(DocumentsRun, TrainsAsOnTheSameDocumentsOneASequence) {
  for (const auto& config : {gpt2(), llama()})
    for (const std::int64_t window : {0, 3})
      for (const auto dtype : {DType::fp64, DType::fp32}) {
        auto o = packed(config);
        o.config.window = window;
        o.config.dtype = dtype;
        o.recompute = dtype == DType::fp32;
        const auto apart = run(one_a_sequence(o));
        expect_equal(apart, run(o), dtype == DType::fp64 ? kFp64 : kFp32, name_of(o));
        // Borders do matter: read as one document, the sequences have another loss.
        auto joined = o;
        joined.documents = one_a_sequence(o).documents;
        EXPECT_GT(std::abs(run(joined).held_out - apart.held_out), 1e-4);
      }
}

// The loss is a mean over the targets of all micro-batches together, so a micro-batch with few targets counts less.
TEST_F(DocumentsRun, DoesNotDependOnHowTheBatchIsCut) {
  for (const auto& config : {gpt2(), llama()}) {
    auto whole = packed(config, 32);
    whole.micro_batches = 1;
    whole.evaluated = 1;
    const auto expected = run(whole);
    for (const auto& [rows, micro_batches, data] : {std::tuple{1, 32U, 1U}, {4, 8U, 1U}, {2, 8U, 2U}, {1, 8U, 4U}}) {
      auto o = packed(config, rows);
      o.micro_batches = micro_batches;
      o.data.ranks = data;
      o.evaluated = static_cast<std::uint64_t>(32 / rows);
      expect_equal(expected, run(o), kFp64, fmt::format("{} × {} × {}", data, micro_batches, rows));
    }
  }
}

// Padding uses no expert's capacity and counts in no loss and in no mean of a router: whatever its tokens are, no bit changes.
TEST_F(DocumentsRun, PaddingIsRoutedNowhere) {
  const auto with = [&](std::int32_t padding, std::uint32_t experts) {
    auto o = packed(llama(), 2, padding);
    o.config.experts = {
        .count = 4, .chosen = 2, .shared = 1, .capacity_factor = 0.6, .balance_loss = 0.05, .square_loss = 0.01};
    o.experts = experts;
    return run(o);
  };
  for (const std::uint32_t ranks : {1U, 2U}) {
    const auto one = with(9, ranks), other = with(200, ranks);
    expect_same(one, other, fmt::format("{} expert ranks", ranks));
    EXPECT_EQ(one.router, other.router);
    EXPECT_GT(one.router.dropped, 0);
  }
}

// The mean square of a router's sums is taken over all tokens of a step, as the loss is, and so is the reported balance. (The
// balance loss is that of each micro-batch.)
TEST_F(DocumentsRun, RoutersDoNotDependOnHowTheBatchIsCut) {
  const auto with = [&](std::int64_t rows, std::uint32_t micro_batches, std::uint32_t data, std::uint32_t context) {
    auto o = packed(llama(), rows);
    o.config.experts = {.count = 4, .chosen = 2, .square_loss = 0.01};
    o.micro_batches = micro_batches;
    o.data.ranks = data;
    o.context = context;
    o.evaluated = static_cast<std::uint64_t>(8 / rows);
    return run(o);
  };
  const auto expected = with(8, 1, 1, 1);
  for (const auto& [rows, micro_batches, data, context] :
       {std::tuple{1, 8U, 1U, 1U}, {2, 2U, 2U, 1U}, {8, 1U, 1U, 2U}, {4, 1U, 2U, 2U}}) {
    const auto what = fmt::format("{} × {} × {}, {} context ranks", data, micro_batches, rows, context);
    const auto found = with(rows, micro_batches, data, context);
    expect_equal(expected, found, kFp64, what);
    EXPECT_NEAR(expected.router.balance, found.router.balance, 1e-10) << what;
    EXPECT_NEAR(expected.router.squares, found.router.squares, 1e-10 * expected.router.squares) << what;
  }
}

TEST_F(DocumentsRun, TensorRanksTrainWhatOneRankTrains) {
  for (const auto& config : {gpt2(), llama()})
    for (const std::uint32_t ranks : {2U, 4U})
      for (const bool sequence : {false, true}) {
        auto o = packed(config);
        o.tensor_ranks = ranks;
        o.sequence = sequence;
        expect_serial(o, kFp64);
      }
}

TEST_F(DocumentsRun, GridsTrainWhatOneRankTrains) {
  for (const auto& grid :
       {TensorGrid{.depth = 1, .side = 2}, TensorGrid{.depth = 2, .side = 2}, TensorGrid{.depth = 2, .side = 2, .cube = true}})
    for (const auto& config : {gpt2(), llama()}) {
      auto o = packed(config, 2 * grid.depth * grid.side);
      o.tensor_ranks = grid.depth * grid.side * grid.side;
      o.sequence = true;
      o.grid = grid;
      o.config.window = grid.cube ? 4 : 0;
      expect_serial(o, kFp64);
    }
}

// Context ranks share heads, or keys in a ring (zigzag, with windows), or both. Documents end within slices and at their ends.
TEST_F(DocumentsRun, ContextRanksTrainWhatOneRankTrains) {
  OneIn chosen(3);
  for (const auto& config : {gpt2(), llama()})
    for (const auto& [ranks, ring] : {std::pair{2U, 1U}, {4U, 1U}, {2U, 2U}, {3U, 3U}, {4U, 4U}, {4U, 2U}, {6U, 3U}})
      for (const std::int64_t window : {0, 5}) {
        if (!chosen()) continue;
        auto o = packed(config);
        o.context = ranks;
        o.config.place.ring = ring;
        o.config.window = window;
        expect_serial(o, kFp64);
      }
}

TEST_F(DocumentsRun, ComposesWithDataTensorAndPipelineParallelismInEveryStageOnDisk) {
  OneIn chosen(3);
  for (const auto& config : {gpt2(), llama()})
    for (std::uint32_t zero = 0; zero <= 3; ++zero)
      for (const auto& [data, tensor, context, schedule] :
           {std::tuple{2U, 1U, 1U, ""}, {1U, 2U, 2U, ""}, {1U, 1U, 1U, "1f1b"}, {2U, 1U, 2U, "zb-h1"}}) {
        if (!chosen()) continue;
        auto o = packed(config);
        o.data = {.ranks = data, .zero = zero};
        o.tensor_ranks = tensor;
        o.context = context;
        o.config.place.ring = zero % 2 == 0 ? context : 1;
        o.schedule = schedule;
        o.squeezed = o.disk_tier = (zero + data) % 2 == 0;
        o.recompute = zero == 3;
        expect_serial(o, kFp64);
      }
}

TEST_F(DocumentsRun, BudgetsAndOrdersChangeNoBit) {
  for (const auto& [config, context, ring] : {std::tuple{gpt2(), 1U, 1U}, {llama(), 1U, 1U}, {llama(), 4U, 4U}}) {
    auto o = packed(config);
    o.micro_batches = 3;
    o.context = context;
    o.config.place.ring = ring;
    expect_no_bit_changes_in_little_memory(o);
  }
}

TEST_F(DocumentsRun, CountsTheTargetsOfAllRanks) {
  std::vector<std::uint64_t> expected(3);
  for (std::uint64_t sequence = 0; sequence < 24; ++sequence)
    for (std::uint64_t d = 0; d + 1 < kDocuments; ++d)
      for (std::int64_t i = 0, count = lengths(sequence)[d]; i + 1 < count; ++i) expected[sequence / 8] += i % 7 != 3;
  for (const auto& [data, context, ring] : {std::tuple{2U, 1U, 1U}, {2U, 3U, 1U}, {2U, 2U, 2U}}) {
    auto o = packed(gpt2());
    o.data.ranks = data;
    o.context = context;
    o.config.place.ring = ring;
    EXPECT_EQ(expected, run(o).counted);
  }
}

// The second update is computed with the first weights, too, but its batch has other targets than the first one's.
TEST_F(DocumentsRun, UpdatesOfAnAsynchronousPipelineHaveTheirOwnMeans) {
  auto o = packed(gpt2());
  o.steps = 2;
  o.config.tied = false;
  auto pipeline = o;
  pipeline.schedule = "pipedream-2bw";
  pipeline.together = 2;
  const auto found = run(pipeline);
  ASSERT_EQ(2U, found.norms.size());
  ASSERT_NE(found.counted[0], found.counted[1]);
  const auto first = run(o);
  EXPECT_NEAR(first.norms[0], found.norms[0], kFp64);
  auto second = o;
  second.steps = 1;
  const auto shifted = [&](std::span<const std::uint64_t> sequences) {
    std::vector<std::uint64_t> later(sequences.begin(), sequences.end());
    for (auto& sequence : later) sequence += static_cast<std::uint64_t>(o.batch.batch) * o.micro_batches;
    return later;
  };
  second.read = [&](Split split, auto sequences, auto tokens, auto targets) {
    return o.read(split, shifted(sequences), tokens, targets);
  };
  second.documents = [&](Split split, auto sequences, auto tokens, auto numbers) {
    o.documents(split, shifted(sequences), tokens, numbers);
  };
  EXPECT_NEAR(run(second).norms[0], found.norms[1], kFp64);
}

// The same run where step i trains on the data of step data[i]; kNone: a step without targets.
constexpr int kNone = -1;
TensorRun with_steps(const TensorRun& of, const std::vector<int>& data) {
  auto o = of;
  o.steps = data.size();
  const auto each = static_cast<std::uint64_t>(of.batch.batch) * of.micro_batches * of.data.ranks;
  const auto moved = [=](Split split, std::span<const std::uint64_t> sequences) {
    std::vector<std::uint64_t> out(sequences.begin(), sequences.end());
    for (auto& s : out)
      if (split == Split::training) s = static_cast<std::uint64_t>(std::max(0, data[s / each])) * each + s % each;
    return out;
  };
  o.read = [=](Split split, auto sequences, auto tokens, auto targets) {
    of.read(split, moved(split, sequences), tokens, targets);
    for (std::size_t i = 0; i < sequences.size(); ++i)
      if (split == Split::training && data[sequences[i] / each] == kNone)
        std::ranges::fill(targets.subspan(i * kSeq, kSeq), -1);
    return true;
  };
  o.documents = [=](Split split, auto sequences, auto tokens, auto numbers) {
    of.documents(split, moved(split, sequences), tokens, numbers);
  };
  return o;
}

// It changes no weight, no moment and no count of steps, as the first step or a later one, wherever updates are made.
TEST_F(DocumentsRun, AStepWithoutTargetsChangesNothing) {
  for (const auto& [optimizer, recipe, dtype, before_use, zero] : {std::tuple{"adamw", "fp32", DType::fp64, true, 0U},
                                                                   {"adamw", "fp32", DType::fp32, false, 2U},
                                                                   {"adamw", "split24-8bit", DType::bf16, false, 0U},
                                                                   {"adamw", "split-8bit", DType::bf16, true, 1U},
                                                                   {"muon", "fp32", DType::fp32, false, 0U},
                                                                   {"lamb", "fp32", DType::fp32, true, 1U},
                                                                   {"adafactor", "fp32", DType::fp64, false, 0U}}) {
    SCOPED_TRACE(fmt::format("{} {} {}", optimizer, recipe, before_use));
    auto o = packed(gpt2());
    o.optimizer = optimizer;
    o.recipe = recipe;
    o.config.dtype = dtype;
    o.before_use = before_use;
    if (zero != 0) o.data = {.ranks = 2, .zero = zero};
    const auto without = run(with_steps(o, {0, 1}));
    const auto with = run(with_steps(o, {kNone, 0, kNone, 1, kNone}));
    ASSERT_EQ(5U, with.losses.size());
    EXPECT_EQ(without.losses, (std::vector{with.losses[1], with.losses[3]}));
    EXPECT_EQ(0U, with.counted[0] + with.counted[2] + with.counted[4]);
    EXPECT_EQ(without.held_out, with.held_out);
    EXPECT_EQ("", first_difference(without.weights, with.weights));
  }
}

// The same in an asynchronous pipeline, which computes this step together with others between two drains.
TEST_F(DocumentsRun, AStepWithoutTargetsChangesNothingInAnAsynchronousPipeline) {
  for (const std::string schedule : {"pipedream-2bw", "pipedream"}) {
    auto o = packed(gpt2());
    o.config.tied = false;
    o.schedule = schedule;
    o.before_use = schedule == "pipedream-2bw";
    const auto without = run(with_steps(o, {0, 1}));
    o.together = 2;
    const auto with = run(with_steps(o, {0, kNone, kNone, 1}));
    EXPECT_EQ("", first_difference(without.weights, with.weights)) << schedule;
    EXPECT_EQ(without.held_out, with.held_out) << schedule;
  }
}

// Ranks update copies by themselves: one rank has targets, and the other one keeps its weights.
TEST_F(DocumentsRun, AStepWithoutTargetsChangesNoLocalCopy) {
  for (const bool before_use : {true, false}) {
    auto o = packed(gpt2());
    o.before_use = before_use;
    const auto untrained = run(with_steps(o, {kNone}));
    o.data = {.ranks = 2, .local = true};
    o.store = new_store();
    o.read = [read = o.read, rows = static_cast<std::uint64_t>(o.batch.batch)](Split split, auto sequences, auto tokens,
                                                                               auto targets) {
      read(split, sequences, tokens, targets);
      for (std::size_t i = 0; i < sequences.size(); ++i)
        if (split == Split::training && sequences[i] / rows % 2 == 1) std::ranges::fill(targets.subspan(i * kSeq, kSeq), -1);
      return true;
    };
    const auto common = plan_of(o);
    std::vector<TensorResult> all(2);
    const auto errors = on_threads(2, {std::chrono::seconds(60)}, [&](Rank& rank) {
      all[static_cast<std::size_t>(rank.comm->rank())] = run_rank(o, common, rank.comm.get(), nullptr);
    });
    for (const auto& error : errors) EXPECT_EQ(error, "");
    EXPECT_NE("", first_difference(untrained.weights, all[0].weights));
    EXPECT_EQ("", first_difference(untrained.weights, all[1].weights)) << before_use;
  }
}

TEST(Documents, PiecesEndAtBorders) {
  const std::vector<std::int32_t> begins{0, 0, 2, 3, 3, 3, 0, 1, 1, 1, 1, 1};
  const model::Documents documents(begins, 6);
  using Piece = model::Documents::Piece;
  EXPECT_THAT(documents.pieces(0, {0, 6}), ElementsAre(Piece{0, 2, 0}, Piece{2, 1, 2}, Piece{3, 3, 3}));
  EXPECT_THAT(documents.pieces(0, {1, 3}), ElementsAre(Piece{1, 1, 0}, Piece{2, 1, 2}, Piece{3, 1, 3}));
  EXPECT_THAT(documents.pieces(1, {4, 2}), ElementsAre(Piece{4, 2, 1}));
  EXPECT_THAT(model::Documents().pieces(1, {4, 2}), ElementsAre(Piece{4, 2, 0}));
}

// Two sequences of five tokens. A separator belongs to the document that it ends; a second one in a row is a document of one
// token.
TEST(Documents, ASeparatorEndsItsDocument) {
  const std::vector<std::int32_t> tokens{4, 0, 0, 5, 6, 7, 8, 9, 0, 0};
  std::vector<std::int32_t> numbers(10), begins(10), targets(10, 1);
  training::number_documents(tokens, 5, 0, numbers);
  EXPECT_THAT(numbers, ElementsAre(0, 0, 1, 2, 2, 0, 0, 0, 0, 1));
  training::find_begins(numbers, 5, begins);
  EXPECT_THAT(begins, ElementsAre(0, 0, 2, 3, 3, 0, 0, 0, 0, 4));
  training::end_targets(numbers, 5, targets);
  EXPECT_THAT(targets, ElementsAre(1, -1, -1, 1, 1, 1, 1, 1, -1, 1));
  training::end_targets_at(tokens, 0, targets);
  EXPECT_EQ(-1, targets.back());
  EXPECT_THROW(training::find_begins(numbers, 3, begins), std::logic_error);
}

// Two sequences of six tokens. A target itself is not padding, nor is anything before a target.
TEST(Documents, PaddingIsWhatNoTargetDependsOn) {
  const std::vector<std::int32_t> numbers{3, 3, 3, 3, 2, 2, 5, 5, 5, 5, 5, 6};
  std::vector<std::int32_t> targets{1, 1, -1, -1, -1, -1, -1, -1, 4, -1, -1, -1};
  training::mark_padding(numbers, 6, targets);
  EXPECT_THAT(targets, ElementsAre(1, 1, math::kNoTarget, math::kPadding, math::kPadding, math::kPadding,  //
                                   math::kNoTarget, math::kNoTarget, 4, math::kNoTarget, math::kPadding, math::kPadding));
}

}  // namespace
}  // namespace terrace::test
