// A run that was committed by some ranks resumes on others: the state is the same on every layout of ranks.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include <terrace/offload/io/page_buffer.h>
#include <terrace/offload/store/copy_store.h>
#include <terrace/parallel/state/committed_state.h>
#include <terrace/tests/support/faulty_files.h>

#include <terrace/tests/parallel/zero/data_parallel_run.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

struct Mesh {
  std::uint32_t ranks = 1, zero = 0, shard_group = 0;
};

class Reshard : public test::FolderTest {
 protected:
  [[nodiscard]] toy::RunOptions options(const Mesh& mesh, const std::string& store) const {
    toy::RunOptions o;
    o.shape = {{1, 8}, 12 / mesh.ranks};
    o.data = {.ranks = mesh.ranks, .zero = mesh.zero, .canonical = true, .shard_group = mesh.shard_group};
    o.store = folder_ / store;
    o.steps = 4;
    return o;
  }
  static std::uint64_t hash(const toy::RunOptions& o) { return toy::hash_of_ranks(o); }
  // Two steps with `first` ranks, the other two with `second`.
  std::uint64_t hash(toy::RunOptions first, toy::RunOptions second) {
    first.commit_after = 2;
    hash(first);
    second.resume = true;
    for (std::uint32_t r = 0; r < first.data.ranks * first.pipeline_ranks(); ++r)
      second.reshard_from.push_back(toy::of_rank(first, static_cast<int>(r)).store);
    return hash(second);
  }
};

// Chunks of one-byte formats are rounded up to whole pages, so their size does not tell the number of their elements.
// (Gradients are bf16 here and sums are not canonical, so both runs have the same number of ranks, and one micro-batch on
// each.)
TEST_F(Reshard, AMasterOfOneByteKeepsItsBits) {
  const auto with = [&](const Mesh& mesh, const std::string& store) {
    auto o = options(mesh, store);
    o.data.canonical = false;
    o.shape.micro_batches = 1;
    o.sizes.dtype = DType::bf16;
    o.sizes.width = 72;
    o.recipe = "split24-8bit";
    return o;
  };
  const auto expected = hash(with({2, 0}, "one"));
  EXPECT_EQ(hash(with({2, 3}, "a"), with({2, 0}, "b")), expected);
  EXPECT_EQ(hash(with({2, 0}, "c"), with({2, 3}, "d")), expected);
}

// Weights read from any shards, in pieces, are those read from one rank.
TEST_F(Reshard, WeightsAreReadFromShardsAsFromOneRank) {
  for (const auto& [dtype, recipe] : {std::pair{DType::fp32, "8bit"}, {DType::bf16, "split-8bit"}, {DType::bf16, "fp32"}}) {
    std::vector<std::vector<std::byte>> weights;
    for (const auto& mesh : {Mesh{}, {4, 3}, {3, 1}, {4, 2, 2}}) {
      auto o = options(mesh, fmt::format("{}{}-{}-{}", recipe, name_of(dtype), mesh.ranks, mesh.zero));
      o.sizes.dtype = dtype;
      o.sizes.width = 72;  // tensors end within pages
      o.recipe = recipe;
      o.commit_after = 2;
      hash(o);
      std::vector<ChunkStore::Options> stores;
      for (std::uint32_t r = 0; r < mesh.ranks; ++r)
        stores.push_back({.paths = {toy::of_rank(o, static_cast<int>(r)).store}, .durable = false});
      state::CommittedState state(stores);
      EXPECT_EQ(state.commit().step, 2U);
      auto& all = weights.emplace_back();
      for (const auto& layer : toy::make_model(o.sizes).layers)
        for (const auto& param : layer->params()) {
          if (param.tied) continue;
          const std::int64_t count = param.shape.elements(), piece = 1 + count / 3;
          for (std::int64_t first = 0; first < count; first += piece) {
            const auto n = std::min(piece, count - first);
            all.resize(all.size() + static_cast<std::size_t>(n) * size_of(dtype));
            state.read(param, static_cast<std::uint64_t>(first),
                       {all.data() + all.size() - static_cast<std::size_t>(n) * size_of(dtype), dtype, {n}});
          }
        }
      EXPECT_EQ(all, weights.front()) << recipe << ", " << mesh.ranks << " ranks, ZeRO-" << mesh.zero;
    }
    EXPECT_TRUE(std::ranges::any_of(weights.front(), [](std::byte b) { return b != std::byte{0}; }));
  }
}

// In an earlier version, ranks with different experts had chunks of the same name, so nothing tells which numbers are whose.
TEST_F(Reshard, PackedStateOfAnEarlierVersionIsNotGuessed) {
  const ChunkStore::Options options{.paths = {folder_ / "old"}, .capacity_bytes = 2 * kPageBytes, .durable = false};
  ChunkDescription chunk{.chunk = ChunkId{0},
                         .kind = ChunkKind::second_moment,
                         .dtype = "packed",
                         .bytes = kPageBytes,
                         .ranges = {},
                         .label = "second moment of layers.0.experts, elements 0..2047"};
  io::PageBuffer buffer;
  {
    const auto store = ChunkStore::create(options);
    store::write_chunk(*store, chunk, 0, buffer.of(kPageBytes));
    store->commit(1, "");
  }
  state::CommittedState state(std::array{options});
  chunk.ranges = {{"rows of layers.0.experts.0.w1", 0, 8, 0}};
  EXPECT_THAT(test::refusal_of([&] { state.read(chunk, rules::Format::packed, 0, buffer.of(kPageBytes)); }),
              testing::HasSubstr("an earlier version wrote its stores"));
}

// The ranks copy one after another, which takes longer than ranks wait for each other in a step.
TEST_F(Reshard, RanksWaitForACopyThatTakesLong) {
  const auto expected = hash(options({}, "one"));
  auto first = options({3, 1}, "first"), second = options({2, 3}, "second");
  first.commit_after = 2;
  hash(first);
  second.resume = true;
  for (int r = 0; r < 3; ++r) second.reshard_from.push_back(toy::of_rank(first, r).store);
  using Files = test::FaultyFiles;
  const auto slow = std::make_shared<Files>(
      Files::Fault{.call = Files::Call::rename, .at = 0, .what = Files::What::late, .delay = std::chrono::seconds(4)});
  second.file_ops = slow;
  const auto all = toy::run_ranks(second, {.time_limit = std::chrono::seconds(2)});
  for (const auto& error : all.errors) EXPECT_EQ(error, "");
  EXPECT_TRUE(slow->struck());
  for (const auto& rank : all.ranks) EXPECT_EQ(rank.hash, expected);
}

// If every rank has a copy, a lost store does not matter; if each rank has its own part, the lost store is named.
TEST_F(Reshard, AStoreThatIsMissingIsNamedWhereItIsNeeded) {
  const auto expected = hash(options({}, "one"));
  auto copies = options({4, 0}, "copies");
  copies.commit_after = 2;
  hash(copies);
  auto next = options({2, 3}, "next");
  next.resume = true;
  for (const auto* const rank : {"rank0", "rank3"}) next.reshard_from.push_back(copies.store / rank);
  EXPECT_EQ(hash(next), expected);

  auto shards = options({4, 3}, "shards");
  shards.commit_after = 2;
  hash(shards);
  auto poor = options({2, 3}, "poor");
  poor.resume = true;
  for (const auto* const rank : {"rank0", "rank1", "gone", "rank3"}) poor.reshard_from.push_back(shards.store / rank);
  const auto refused = toy::run_ranks(poor);
  EXPECT_NE(refused.errors[0].find("is in no store"), std::string::npos) << refused.errors[0];
  EXPECT_NE(refused.errors[0].find("gone/store is missing"), std::string::npos) << refused.errors[0];
  EXPECT_NE(refused.errors[1], "");
}

// A rank died after the other ranks' commit and before its own.
TEST_F(Reshard, GoesOnFromTheCommitThatAllStoresHave) {
  const auto expected = hash(options({}, "one"));
  auto o = options({3, 2}, "cut");
  o.steps = 3;
  {
    const auto errors = test::on_threads(3, {std::chrono::seconds(60)}, [&](test::Rank& rank) {
      toy::Training training(toy::of_rank(o, rank.comm->rank()), rank.comm.get());
      for (const std::uint64_t s : {1, 2, 3}) {
        training.step();
        if (s != 1) training.trainer->commit();
      }
    });
    for (const auto& error : errors) ASSERT_EQ(error, "");
  }
  for (const auto* const newest : {"commit.0", "commit.0.copy"})  // number 2, of step 3
    ASSERT_TRUE(std::filesystem::remove(o.store / "rank1" / "store" / newest));
  auto next = options({2, 1}, "next");
  next.resume = true;
  for (const int r : {0, 1, 2}) next.reshard_from.push_back(toy::of_rank(o, r).store);
  EXPECT_EQ(hash(next), expected);
}

TEST_F(Reshard, AnotherRecipeIsRefused) {
  auto a = options({2, 3}, "a"), b = options({4, 3}, "b");
  a.commit_after = 2;
  hash(a);
  b.recipe = "8bit";
  b.resume = true;
  for (const int r : {0, 1}) b.reshard_from.push_back(toy::of_rank(a, r).store);
  const auto refused = toy::run_ranks(b);
  EXPECT_NE(refused.errors[0].find("is stored as fp32, but this run keeps it as dynamic8"), std::string::npos)
      << refused.errors[0];
}

}  // namespace
}  // namespace terrace
