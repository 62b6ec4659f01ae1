// Tensor parallelism in a grid (2D, 2.5D, 3D) computes what one rank computes: losses, gradient norms, held-out loss and
// weights, in any composition; it exchanges and holds what the formulas say.
#include <gmock/gmock.h>

#include <xxhash.h>

#include <terrace/tests/parallel/tensor/tensor_plans.h>

namespace terrace::test {
namespace {

using testing::HasSubstr;

constexpr TensorGrid k2d{.depth = 1, .side = 2}, k3By3{.depth = 1, .side = 3}, k25d{.depth = 2, .side = 2},
    k3d{.depth = 2, .side = 2, .cube = true};

class TensorGridTest : public TensorRuns {
 protected:
  static TensorRun on(const TensorGrid& grid, const lm::ModelConfig& config) {
    const std::int64_t ways = grid.depth * grid.side;
    return {.config = config,
            .tensor_ranks = grid.depth * grid.side * grid.side,
            .sequence = true,
            .grid = grid,
            .batch = {ways, 16}};
  }
  static lm::ModelConfig threes() {
    auto config = llama();
    config.hidden = 72;
    config.heads = 6;
    config.kv_heads = 3;
    return config;
  }
};

TEST_F(TensorGridTest, EqualsTheSerialModelInEveryMode) {
  OneIn chosen(2);
  for (const auto& grid : {k2d, k25d, k3d})
    for (const auto& config : {gpt2(), llama()})
      for (const bool tied : {true, false}) {
        if (!chosen()) continue;
        auto o = on(grid, config);
        o.config.tied = tied;
        expect_serial(o, kFp64);
      }
  auto o = on(k3By3, threes());
  o.batch.seq = 15;
  expect_serial(o, kFp64);
}

// A micro-batch may have more sequences than the grid has rows; a rank's rows then end within a sequence.
TEST_F(TensorGridTest, RowsOfRanksHaveSeveralSequences) {
  auto o = on(k2d, gpt2());
  o.batch = {6, 10};
  expect_serial(o, kFp64);
  o = on(k3d, llama());
  o.batch = {8, 6};
  o.recompute = true;
  expect_serial(o, kFp64);
}

TEST_F(TensorGridTest, ComposesWithDataAndPipelineParallelismInEveryStageOnDisk) {
  for (const auto& [data, schedule] : {std::pair{2U, ""}, {1U, "1f1b"}, {1U, "zb-h1"}})
    for (const std::uint32_t zero : {0U, 1U, 3U}) {
      if (data == 1 && zero != 0) continue;
      auto o = on(k2d, zero == 1 ? gpt2() : llama());
      o.data = {.ranks = data, .zero = zero};
      o.schedule = schedule;
      o.squeezed = o.disk_tier = true;
      expect_serial(o, kFp64);
    }
  for (const auto& grid : {k25d, k3d}) {
    auto o = on(grid, llama());
    o.squeezed = o.disk_tier = true;
    expect_serial(o, kFp64);
  }
}

TEST_F(TensorGridTest, HasWindows) {
  OneIn chosen(2);
  for (const auto& grid : {k2d, k25d, k3d})
    for (const auto& config : {gpt2(), llama()})
      for (const std::int64_t window : {1, 5}) {
        if (!chosen()) continue;
        auto o = on(grid, config);
        o.config.window = window;
        expect_serial(o, kFp64);
      }
}

// Norms of q and k of each head and of all heads together, which the ranks along an axis share; norms of the blocks' results.
TEST_F(TensorGridTest, HasNormsOfQueriesKeysAndResults) {
  for (const auto& grid : {k2d, k25d, k3d})
    for (const char* const family : {"qwen3", "gemma2", "gemma3", "olmo2"}) {
      auto o = on(grid, with_norms(family));
      if (grid.cube) o.config.head_size = 16;
      o.recompute = grid.depth == 2;
      o.schedule = std::string_view(family) == "olmo2" && !grid.cube ? "zb-h1" : "";
      o.squeezed = o.disk_tier = std::string_view(family) == "gemma2";
      expect_serial(o, kFp64);
    }
  auto o = on(k3By3, with_norms("olmo2"));
  o.config.hidden = 72, o.config.heads = 6, o.config.kv_heads = 3;
  o.batch.seq = 15;
  expect_serial(o, kFp64);
}

// Tiles of 16 rows, which 3 does not divide.
TEST_F(TensorGridTest, HasTilesOfTheRowsOfMlps) {
  for (const auto& grid : {k2d, k25d, k3d})
    for (const auto& [config, rows, schedule] :
         {std::tuple{gpt2(), 3U, ""}, {llama(), 2U, "zb-h1"}, {with_norms("gemma2"), 3U, "1f1b"}}) {
      auto o = on(grid, config);
      o.config.mlp_row_tiles = rows;
      o.schedule = schedule;
      o.recompute = rows == 2;
      o.squeezed = o.disk_tier = grid.depth == 1;
      expect_serial(o, kFp64);
    }
}

// A rank has the inner activations of one tile: gate and up, their gradients, and the product.
TEST_F(TensorGridTest, TilesOfRowsNeedTheActivationsOfATileWithTheSameBits) {
  auto o = on(k2d, llama());
  o.config.dtype = DType::fp32;
  o.config.layers = 1;
  o.config.hidden = 16;
  o.config.ffn = 2048;
  o.config.seq_len = o.batch.seq = 256;
  const std::uint64_t inner = 256 * (2048 / 2) * 4;  // of the rows and features of a rank
  const auto whole = run(o);
  EXPECT_GT(whole.smallest[Tier::device], 3 * inner);
  o.config.mlp_row_tiles = 16;
  const auto tiles = run(o);
  expect_equal(whole, tiles, kFp32, "tiles of rows");
  EXPECT_LT(tiles.smallest[Tier::device], inner);
  o.squeezed = o.disk_tier = true;
  expect_same(tiles, run(o), "on disk");
}

// A rank attends with its heads to slices of the sequences that its row of ranks has.
TEST_F(TensorGridTest, ComposesWithContextParallelism) {
  for (const auto& grid : {k2d, k25d, k3d})
    for (const auto& [ranks, ring, two_rings] : {std::tuple{2U, 1U, false}, {2U, 2U, false}, {4U, 2U, false}, {2U, 2U, true}}) {
      if (grid.depth == 2 && ranks == 4) continue;
      auto o = on(grid, ring == 2 && !two_rings ? with_norms("olmo2") : ring == 1 ? gpt2() : llama());
      if (ring == 2 && !two_rings) o.config.head_size = 16;
      o.config.hidden = 64;
      o.context = ranks;
      o.config.place.ring = ring;
      o.config.place.two_rings = two_rings;
      o.batch.batch = 2 * grid.depth * grid.side;
      o.recompute = ring == 2;
      expect_serial(o, kFp64);
    }
}

// Settings that only move bytes change no bit on the same mesh.
TEST_F(TensorGridTest, BudgetsOrdersStagesAndRepeatsChangeNoBit) {
  for (const auto& grid : {k2d, k25d, k3d}) {
    auto plain = on(grid, llama());
    plain.config.dtype = DType::fp32;
    plain.micro_batches = 3;
    const auto expected = run(plain);
    expect_equal(serial(plain), expected, kFp32, "fp32");
    const auto expect_bits = [&](const TensorRun& o, const char* what) { expect_same(expected, run(o), what); };
    expect_bits(plain, "again");
    auto o = plain;
    o.squeezed = o.disk_tier = true;
    expect_bits(o, "on disk");
    o.recompute = true;
    expect_bits(o, "recomputed");
    o = plain;
    o.order = Order::vertical;
    expect_bits(o, "vertical");
  }
  auto data = on(k2d, gpt2());
  data.data = {.ranks = 2, .zero = 0, .canonical = true};
  data.config.dtype = DType::fp32;
  const auto expected = run(data);
  for (const std::uint32_t zero : {1U, 3U}) {
    data.data.zero = zero;
    expect_same(expected, run(data), fmt::format("ZeRO-{}", zero));
  }
}

TEST_F(TensorGridTest, RanksOfABf16RunAgree) {
  for (const auto& [grid, recipe] : {std::pair{k2d, "bf16"}, {k3d, "bf16"}, {k25d, "stochastic"}, {k2d, "split"}}) {
    auto o = on(grid, gpt2());
    o.recipe = recipe;
    o.config.dtype = DType::bf16;
    expect_serial(o, 3e-2);
  }
}

// n blocks, m micro-batches of `tokens` tokens, width c, f features of the MLP, q × q × d ranks; p elements of a block's
// matrices.
TEST_F(TensorGridTest, TheLedgerIsTheFormula) {
  const std::uint64_t n = 2, m = 3, q = 2, c = 64, f = 256, number = sizeof(double), p = 4 * c * c + 2 * c * f;
  for (const auto& grid : {k2d, k25d, k3d}) {
    auto o = on(grid, gpt2());
    o.micro_batches = m;
    o.before_use = false;
    o.chunk_elements = 1 << 20;  // a layer is one chunk
    o.store = new_store();
    const std::uint64_t d = grid.depth, tokens = static_cast<std::uint64_t>(o.batch.tokens());
    for (const auto& rank : run_all(o)) {
      using Entry = std::pair<std::uint64_t, std::uint64_t>;
      const auto of = [&](const char* axis, comm::Operation operation) {
        const auto e = rank.step.of(axis, operation);
        return Entry{e.calls, e.payload_bytes / number};
      };
      // From the layers' to the grid's layout or back: for each branch twice in the forward and twice in the backward.
      const auto share = tokens * c / o.tensor_ranks;
      EXPECT_EQ((Entry{8 * n * m, 8 * n * m * share}), of("col", comm::Operation::all_to_all));
      // As with sequence parallelism in a row of ranks, but for the first and the last layer only.
      EXPECT_EQ((Entry{2 * m, 2 * m * tokens * c}), of("tp", comm::Operation::reduce_scatter));
      EXPECT_EQ((Entry{3 * m, m * (2 * tokens * c + tokens * o.tensor_ranks)}), of("tp", comm::Operation::all_gather));
      EXPECT_EQ((Entry{4 * n + 3, (4 * n + 2 + 16) * c}), of("tp", comm::Operation::all_reduce));  // norms, positions
      const auto x = tokens * (3 * c + f) / d;  // the inputs of a block's products on a grid
      if (!grid.cube) {
        EXPECT_EQ((Entry{8 * q * n * m, 2 * m * n * x / q}), of("col", comm::Operation::broadcast));
        EXPECT_EQ((Entry{8 * q * n * m, 2 * m * n * p / q}), of("row", comm::Operation::broadcast));
        EXPECT_EQ((Entry{4 * q * n * m, m * n * x / q}), of("col", comm::Operation::reduce));
        EXPECT_EQ((Entry{4 * q * n * m, m * n * p / q}), of("row", comm::Operation::reduce));
        // Biases, of which a row of ranks has the same part; with several grids, matrices, too.
        EXPECT_EQ((Entry{4 * n, n * (3 * c + c + f + c) / q}), of(d == 1 ? "row" : "depth+row", comm::Operation::all_reduce));
        EXPECT_EQ(d == 1 ? Entry{} : (Entry{4 * n, n * p / q / q}), of("depth", comm::Operation::all_reduce));
      } else {
        // The first inputs and second results of the products are laid out by column, the others by row.
        const auto by_row = tokens / q * (2 * c + 2 * c) / q, by_col = tokens / q * (3 * c + c + f + f) / q;
        EXPECT_EQ((Entry{8 * n * m, 2 * n * m * by_row}), of("row", comm::Operation::all_gather));
        EXPECT_EQ((Entry{8 * n * m, 2 * n * m * by_col}), of("col", comm::Operation::all_gather));
        EXPECT_EQ((Entry{8 * n * m, 2 * n * m * p / q / q}), of("depth", comm::Operation::all_gather));
        EXPECT_EQ((Entry{4 * n * m, n * m * by_row}), of("row", comm::Operation::reduce_scatter));
        EXPECT_EQ((Entry{4 * n * m, n * m * by_col}), of("col", comm::Operation::reduce_scatter));
        EXPECT_EQ((Entry{4 * n * m, n * m * p / q / q}), of("depth", comm::Operation::reduce_scatter));
        EXPECT_EQ((Entry{2 * n, n * (3 * c + f) / q}), of("depth+col", comm::Operation::all_reduce));
        EXPECT_EQ((Entry{2 * n, n * 2 * c / q}), of("depth+row", comm::Operation::all_reduce));
      }
      if (HasFailure()) {
        ADD_FAILURE() << "depth " << d << (grid.cube ? ", 3D\n" : "\n") << to_string(rank.step);
        return;
      }
    }
  }
}

// A plan counts the bytes that a rank receives in a broadcast; with a side of two, these are the bytes that it sends.
TEST_F(TensorGridTest, APlanKnowsTheBytes) {
  for (const auto& grid : {k2d, k25d, k3d}) {
    auto o = on(grid, llama());
    o.before_use = false;
    o.store = new_store();
    double bytes = 0;
    for (const auto& [operation, planned] : planned_bytes(o)) bytes += planned;
    const auto sent = run_all(o).front().step;
    std::uint64_t expected = 0;
    for (const auto& [key, entry] : sent.entries())
      if (key.first != "world") expected += entry.sent_bytes;
    EXPECT_NEAR(static_cast<double>(expected), bytes, 1e-3 * bytes) << to_string(sent);
  }
}

// A rank holds 1 / q² of each matrix (in 3D 1 / q³), and 1 / ranks of the saved activations and of a layer's input.
TEST_F(TensorGridTest, ARankHoldsWhatTheFormulaSays) {
  for (const auto& grid : {k2d, k25d, k3d}) {
    auto o = on(grid, gpt2());
    const std::int64_t c = 64, f = 256, heads = 8, q = grid.side, ranks = o.tensor_ranks, tokens = o.batch.tokens();
    for (std::uint32_t rank = 0; rank < o.tensor_ranks; ++rank) {
      const auto model = model_of(config_of(o, rank));
      const auto elements = [](const auto& specs) {
        std::int64_t all = 0;
        for (const auto& s : specs) all += s.shape.elements();
        return all;
      };
      const std::int64_t blocks = grid.cube ? q * q * q : q * q;
      EXPECT_EQ(4 * c * c / blocks + 4 * c / q + 2 * c, elements(model.layers[1]->params()));
      EXPECT_EQ(2 * c * f / blocks + (f + c) / q + 2 * c, elements(model.layers[2]->params()));
      EXPECT_EQ(tokens * (2 + c + 3 * c + c + heads) / ranks, elements(model.layers[1]->facts(o.batch).saved));
      EXPECT_EQ(tokens * (2 + c + f) / ranks, elements(model.layers[2]->facts(o.batch).saved));
    }
  }
}

// Records what each rank's broadcasts carry, in order.
class Overhears final : public Communicator {
 public:
  using Heard = std::map<std::string, std::vector<std::uint64_t>>;  // by axis
  Overhears(std::unique_ptr<Communicator> inner, Heard& heard) : inner_(std::move(inner)), heard_(heard) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  const comm::Machines& machines() const override { return inner_->machines(); }
  void issue(Stream& stream, comm::Call call) override {
    const bool broadcast = call.operation == comm::Operation::broadcast;
    const auto bytes = broadcast ? call.to.front() : comm::Bytes{};
    inner_->issue(stream, std::move(call));
    if (broadcast) stream.submit([&all = heard_[name()], bytes] { all.push_back(XXH3_64bits(bytes.data(), bytes.size())); });
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    auto part = inner_->split(color, key, name);
    return part ? std::make_unique<Overhears>(std::move(part), heard_) : nullptr;
  }

 private:
  const std::unique_ptr<Communicator> inner_;
  Heard& heard_;
};

TEST_F(TensorGridTest, DepthSlicesHaveTheSameWeightsAndOtherSequences) {
  auto o = on(k25d, llama());
  o.steps = 1;
  o.store = new_store();
  const auto common = plan_of(o);
  std::vector<Overhears::Heard> heard(o.ranks());
  const auto errors = on_threads(static_cast<int>(o.ranks()), {std::chrono::seconds(60)}, [&](Rank& rank) {
    auto& mine = heard[static_cast<std::size_t>(rank.comm->rank())];
    const auto comm = std::make_unique<Overhears>(std::move(rank.comm), mine);
    run_rank(o, common, comm.get(), nullptr);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  const std::size_t grid = 4;
  for (std::size_t rank = 0; rank < grid; ++rank) {
    auto &one = heard[rank], &other = heard[grid + rank];
    // The weights before the first update.
    ASSERT_FALSE(one["row"].empty());
    EXPECT_EQ(one["row"], other["row"]);
    ASSERT_EQ(one["col"].size(), other["col"].size());
    for (std::size_t i = 0; i < one["col"].size(); ++i)
      EXPECT_NE(one["col"][i], other["col"][i]) << "rank " << rank << ", " << i;
  }
}

TEST_F(TensorGridTest, AStoppedRunGoesOnInAnotherMode) {
  auto o = on(k2d, llama());
  o.batch = {4, 16};
  o.steps = 4;
  const auto whole = end_of(run(o), 2);
  const auto stopped = stopped_after(2, o);
  for (const auto& grid : {k25d, k3d, TensorGrid{}}) {
    auto other = stopped;
    other.grid = grid;
    other.tensor_ranks = grid.side == 1 ? 2 : 8;
    expect_equal(whole, resume_as(other, stopped), kFp64, name_of(other));
  }
  expect_same(whole, run_all(stopped).front(), "the same mode");
}

// Each would write its part of the logits, and nobody would add them up.
TEST_F(TensorGridTest, RanksDoNotGenerateNeitherInAGridNorInALine) {
  for (const bool grid : {true, false}) {
    auto o = on(k2d, llama());
    if (!grid) o.grid = {}, o.sequence = false;
    o.batch = {1, 1};
    const auto model = model_of(config_of(o, 0));
    const auto optimizer = make_optimizer(o.optimizer, {});
    auto request = request_of(o, *optimizer, 0);
    request.decode_positions = 8;
    EXPECT_THAT([&] { plan(model, request, {}); }, testing::ThrowsMessage<Error>(HasSubstr("generation has no tensor ranks")));
  }
}

TEST_F(TensorGridTest, WhatItCannotDoIsRefusedWithTheNearest) {
  const auto why = [](const auto& change) {
    auto o = on(k2d, llama());
    change(o);
    return refusal_of(o);
  };
  EXPECT_EQ("", why([](TensorRun&) {}));
  EXPECT_THAT(why([](TensorRun& o) { o.grid.depth = 3, o.grid.cube = true; }),
              HasSubstr("12 tensor ranks are not a grid of 3 × 2 × 2"));
  EXPECT_THAT(why([](TensorRun& o) { o.sequence = false; }), HasSubstr("sequence parallelism"));
  EXPECT_THAT(why([](TensorRun& o) { o.config.kv_heads = 1; }),
              HasSubstr("`tp` 4: in 2D it must be a square whose side divides 8 heads, 1 key-value heads"));
  EXPECT_THAT(why([](TensorRun& o) { o.batch = {3, 16}; }), HasSubstr("3 sequences of a micro-batch out to 2 rows of ranks"));
  EXPECT_EQ("", why([](TensorRun& o) { o.context = 2; }));
  EXPECT_THAT(why([](TensorRun& o) { o.config.layers = 4, o.config.skips = lm::SkipShape::u; }), HasSubstr("skips"));
  EXPECT_THAT(why([](TensorRun& o) {
                o.grid = k3d, o.tensor_ranks = 8, o.batch.batch = 4;
                o.config.ffn = 74;
              }),
              HasSubstr("and its square 48 columns and 74 ffn columns"));
}

}  // namespace
}  // namespace terrace::test
