// Adapters and frozen parameters on tensor, context and expert ranks train what one rank trains: with every other kind of
// parallelism, and with optimizers that see whole matrices.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <terrace/examples/lm/models/adapters.h>

#include <terrace/tests/optimizers/layer_oracles.h>
#include <terrace/tests/parallel/tensor/tensor_run.h>

namespace terrace::test {
namespace {

lm::ModelConfig adapted(lm::ModelConfig config, const char* targets = "all", std::int64_t rank = 3) {
  config.adapters = lm::adapters_of(config.family, config.experts.count > 0, rank, 5, targets);
  return config;
}
lm::ModelConfig of_family(const char* family) {
  auto config = llama();
  config.family = lm::family_named(family);
  if (config.family.get().tensors.qkv.tensors.size() == 1) config.kv_heads = 4;  // so that every rank has whole key-value heads
  return config;
}
lm::ModelConfig mixture(const char* family, const layers::Experts& experts) {
  auto config = of_family(family);
  config.experts = experts;
  return config;
}
const layers::Experts kFour{.count = 4, .chosen = 2, .balance_loss = 0.05, .square_loss = 0.01};

class AdapterRanks : public TensorRuns {};

// Covers q, k, v in separate tensors and fused in one, in both storage orders. With two key-value heads on four ranks, two
// ranks hold each head.
TEST_F(AdapterRanks, OfTensorParallelismEqualOneRank) {
  for (const auto& config : {adapted(llama()), adapted(gpt2()), adapted(of_family("phi3")), adapted(of_family("qwen3"), "k,o"),
                             adapted(with_norms("gemma3")), adapted(with_norms("olmo2"))})
    for (const std::uint32_t ranks : {2U, 4U}) {
      TensorRun o{.config = config, .tensor_ranks = ranks, .sequence = ranks == 4};
      expect_serial_in_both(o);
    }
  auto odd = llama();
  odd.heads = odd.kv_heads = 6;
  for (const std::int64_t kv_heads : {6, 1})
    for (const bool sequence : {false, true}) {
      odd.kv_heads = kv_heads;
      expect_serial({.config = adapted(odd, "q,v,down", 1), .tensor_ranks = 3, .sequence = sequence, .batch = {3, 16}}, kFp64);
    }
}

TEST_F(AdapterRanks, OfABf16RunAgree) {
  for (const auto* const recipe : {"bf16", "split", "stochastic"}) {
    TensorRun o{.config = adapted(llama()), .tensor_ranks = 2, .sequence = true, .recipe = recipe};
    o.config.dtype = DType::bf16;
    expect_serial(o, 3e-2);
    o.context = 2;
    expect_serial(o, 3e-2);
  }
}

// If one of a branch's two products has no adapter, that product has no gradient to compute.
TEST_F(AdapterRanks, BesideExchangesInPiecesEqualOneRank) {
  for (const auto* const targets : {"all", "q,up", "o", "down"})
    for (const std::uint32_t pieces : {2U, 3U}) {
      TensorRun o{.config = adapted(llama(), targets), .tensor_ranks = 2, .sequence = true, .pieces = pieces};
      o.recompute = pieces == 3;
      expect_serial(o, kFp64);
    }
}

TEST_F(AdapterRanks, OfContextParallelismEqualOneRank) {
  for (const auto& config : {adapted(llama(), "q,v"), adapted(gpt2())})
    for (const auto& [ranks, ring, two_rings] :
         {std::tuple{2U, 1U, false}, {4U, 1U, false}, {2U, 2U, false}, {4U, 2U, false}, {4U, 4U, true}}) {
      TensorRun o{.config = config, .context = ranks};
      o.config.place.ring = ring;
      o.config.place.two_rings = two_rings;
      expect_serial(o, kFp64);
    }
}

TEST_F(AdapterRanks, OfExpertParallelismEqualOneRank) {
  for (const auto* const family : {"mixtral", "qwen3_moe"})
    for (const auto* const targets : {"all", "gate,up", "q,down"})
      for (const std::uint32_t ranks : {2U, 4U}) {
        TensorRun o{.config = adapted(mixture(family, kFour), targets), .experts = ranks, .micro_batches = 1};
        if (ranks == 2) o.config.experts.shared = 1;
        expect_serial(o, kFp64);
        o.tensor_ranks = 2;
        o.sequence = ranks == 2;
        expect_serial(o, kFp64);
      }
  // With 24 experts, some get no row.
  auto many = mixture("mixtral", {.count = 24, .chosen = 2, .balance_loss = 0.05});
  expect_serial({.config = adapted(many, "all", 2), .experts = 3, .batch = {1, 8}, .micro_batches = 2}, kFp64);
}

// All kinds of ranks, drawn at random, in every ZeRO stage; states are sharded, in small budgets, and on disk.
TEST_F(AdapterRanks, OfLayoutsDrawnAtRandomEqualOneRank) {
  constexpr std::uint64_t kSeed = 24;
  std::uint64_t run = 0;
  for (int number = 0; number < (long_form() ? 120 : 24);) {
    ++run;
    std::uint64_t at = 0;
    const auto below = [&](std::uint64_t n) { return math::random_below(kSeed, run, at++, n); };
    const auto degree = [&](std::uint32_t most) { return static_cast<std::uint32_t>(1 + below(most)); };
    const auto one_in = [&](std::uint64_t n) { return below(n) == 0; };
    auto config = one_in(2) ? llama() : one_in(2) ? gpt2() : with_norms(one_in(2) ? "gemma3" : "olmo2");
    config.head_size = 0;
    const bool norms_results = !(*config.family.get().tensors.attention_result_norm).empty();
    config.hidden = 48, config.ffn = 72, config.heads = 12;  // divisible by two, three and four ranks
    config.kv_heads = std::string_view(*config.family.get().name) != "gpt2" ? (one_in(2) ? 3 : 6) : 0;
    config.tied = one_in(2);
    if (!norms_results && one_in(2))
      config.experts = {.count = 12, .chosen = 3, .shared = one_in(3) ? 1 : 0, .balance_loss = 0.05};
    const char* const kTargets[] = {"all", "q,k,v", "o", "gate,up", "down", "q,k,v,o", "up,down"};
    const std::string targets = kTargets[below(7)];
    const bool has_gate = layers::up_results(*config.family.get().activation) == 2;
    if (!has_gate && targets == "gate,up") continue;
    if (config.experts.count > 0 && has_gate && targets == "up,down") continue;  // a gate and its values are one product
    TensorRun o{.config = adapted(config, targets.c_str(), 1 + static_cast<std::int64_t>(below(5))), .batch = {3, 12}};
    o.data = {.ranks = degree(3), .zero = static_cast<std::uint32_t>(below(4))};
    o.tensor_ranks = degree(4);
    if (config.kv_heads == 3 && o.tensor_ranks % 2 == 0) continue;
    if (config.kv_heads == 6 && o.tensor_ranks == 4) continue;
    o.context = degree(3);
    if (o.context > 1 && one_in(2)) o.config.place.ring = o.context;
    if (o.config.place.ring > 1) o.config.place.two_rings = one_in(4);
    if (config.experts.count > 0) o.experts = degree(3);
    if (one_in(3)) o.schedule = one_in(2) ? "1f1b" : "zb-h1";
    if (o.ranks() == 1 || o.ranks() > 12) continue;
    o.sequence = o.tensor_ranks > 1 && one_in(2) && o.batch.tokens() / o.context % o.tensor_ranks == 0;
    if (o.sequence && one_in(2)) o.pieces = 2;
    o.recompute = one_in(2);
    o.squeezed = one_in(2);
    o.disk_tier = o.squeezed && one_in(2);
    SCOPED_TRACE(fmt::format("seed {}, draw {}: {}", kSeed, run, targets));
    expect_serial(o, kFp64);
    ++number;
  }
}

// Settings that only move bytes change no bit on the same mesh.
TEST_F(AdapterRanks, BudgetsOrdersAndStagesChangeNoBit) {
  TensorRun o{.config = adapted(llama()), .tensor_ranks = 4, .sequence = true, .micro_batches = 3};
  o.config.dtype = DType::fp32;
  expect_no_bit_changes_in_little_memory(o);
  auto without_sequence = o;
  without_sequence.sequence = false;
  expect_same(run(o), run(without_sequence), "without sequence parallelism");
  o = {.config = adapted(mixture("mixtral", kFour)), .tensor_ranks = 2, .experts = 2, .batch = {1, 16}};
  o.data = {.ranks = 2, .zero = 2};
  expect_no_bit_changes_in_little_memory(o);
  auto stage = o;
  stage.data.zero = 3;
  expect_same(run(o), run(stage), "ZeRO-3");
}

// Adapters exchange no activations. Each product has two adapter matrices; the gradient of the one that all ranks hold is
// all-reduced.
TEST_F(AdapterRanks, TheLedgerIsTheFormula) {
  const std::uint64_t n = 2, m = 3, ranks = 2, rank = 3, tokens = 32, width = 64, ffn = 4 * width, number = sizeof(double);
  TensorRun o{.config = adapted(gpt2()), .tensor_ranks = ranks, .micro_batches = m};
  o.before_use = false;
  o.chunk_elements = 1 << 20;  // a layer is one chunk
  o.store = new_store();
  // Nothing trains below the first branch, whose input therefore has no gradient.
  const std::uint64_t sums = m * (2 * n + 1) + m * 2 * n;
  // The matrices that all ranks hold: A of q, k, v and of up; B of the output and of down.
  const std::uint64_t held = n * rank * (width + width + width + width);
  static_assert(ffn == 256);
  for (const auto& one : run_all(o)) {
    const auto reduced = one.step.of("tp", comm::Operation::all_reduce);
    EXPECT_EQ(sums + 4 * n, reduced.calls);
    EXPECT_EQ((sums * tokens * width + held) * number, reduced.payload_bytes);
  }
}

TEST_F(AdapterRanks, AStoppedRunGoesOnOnTheSameMeshAndOnAnother) {
  for (const bool experts : {false, true}) {
    TensorRun o{.config = adapted(experts ? mixture("mixtral", kFour) : llama()), .tensor_ranks = 2, .steps = 4};
    if (experts)
      o.experts = 2;
    else
      o.data = {.ranks = 2, .zero = 1};
    const auto whole = end_of(run(o), 2);
    const auto stopped = stopped_after(2, o);
    for (const auto& [tensor, data, dealt] : {std::tuple{1U, 1U, 1U}, {4U, 1U, 1U}, {4U, 2U, 1U}, {1U, 1U, 4U}}) {
      if (dealt > 1 && !experts) continue;
      auto other = stopped;
      other.tensor_ranks = tensor;
      other.experts = dealt;
      other.data = {.ranks = data, .zero = data > 1 ? 3U : 0U};
      other.micro_batches = o.micro_batches * 2 / data / dealt;
      if (other.micro_batches == 0) continue;
      expect_equal(whole, resume_as(other, stopped), kFp64, name_of(other));
    }
    expect_same(whole, run_all(stopped).front(), "the same mesh");
  }
}

// Freezes whole layers and parts of layers; on expert ranks, a layer of a mixture. Trained parameters are clipped as on one
// rank.
TEST_F(AdapterRanks, FrozenParametersEqualThoseOfOneRank) {
  for (const auto& [config, freeze] : {std::pair{llama(), "embedding,layers.0.mlp*,layers.1.attention"},
                                       {llama(), "layers.1.*"},
                                       {llama(), "*norm*,o_proj.weight"},
                                       {with_norms("olmo2"), "*norm*,o_proj.weight"},
                                       {with_norms("olmo2"), "*_proj.weight"}})
    for (const std::uint32_t zero : {0U, 1U, 3U}) {
      TensorRun o{.config = config, .tensor_ranks = 2, .sequence = zero != 0, .pieces = zero == 3 ? 2U : 1U};
      o.freeze = freeze;
      o.data = {.ranks = 2, .zero = zero};
      expect_serial(o, kFp64);
      o.tensor_ranks = o.pieces = 1;
      o.sequence = false;
      o.context = 2;
      if (zero == 1) o.schedule = "1f1b";
      expect_serial(o, kFp64);
    }
  for (const TensorGrid& grid : {TensorGrid{.side = 2}, TensorGrid{.depth = 2, .side = 2, .cube = true}})
    for (const auto& [config, freeze] : {std::pair{gpt2(), "layers.1.*"},
                                         {llama(), "embedding,layers.0.mlp*,layers.1.attention"},
                                         {gpt2(), "*.bias"},
                                         {with_norms("olmo2"), "*norm*,o_proj.weight"}}) {
      TensorRun o{.config = config, .tensor_ranks = grid.depth * 4, .sequence = true, .grid = grid, .batch = {4, 16}};
      if (config.head_size != 0) o.config.head_size = 16;
      o.freeze = freeze;
      expect_serial(o, kFp64);
    }
  TensorRun o{
      .config = mixture("mixtral", kFour), .tensor_ranks = 2, .experts = 2, .freeze = "layers.0.experts,layers.1.attention"};
  expect_serial(o, kFp64);
  // Names of experts on other ranks are found, too.
  o.freeze = "layers.0.block_sparse_moe*,layers.0.post_attention_layernorm.weight";
  const auto named = expect_serial(o, kFp64);
  o.freeze = "layers.0.experts";
  expect_same(named, run(o), "the layer's name");
}

// A step of plain SGD at rate 1 gives the gradients; each optimizer must then update each adapter matrix as its paper says.
// Adapters of rank 1 have a single row or column.
TEST_F(AdapterRanks, OptimizersOfWholeMatricesTakeEachAdapterAsItsOwnMatrix) {
  for (const std::int64_t rank : {4, 1})
    for (const auto& [name, publish] :
         {std::pair{"muon", &publish_muon}, {"lamb", &publish_lamb}, {"adafactor", &publish_adafactor}}) {
      SCOPED_TRACE(fmt::format("{}, rank {}", name, rank));
      TensorRun o{.config = adapted(of_family("phi3"), "all", rank), .before_use = false, .steps = 1};
      const auto with = [&](const char* optimizer, const OptimizerSettings& settings, double rate) {
        auto other = o;
        other.optimizer = optimizer, other.settings = settings, other.rate = rate;
        return run(other).weights;
      };
      const OptimizerSettings plain{.weight_decay = 0, .momentum = 0};
      const auto before = with("sgd", plain, 0), moved = with("sgd", plain, 1);
      const auto after = with(name, o.settings, o.rate);
      const auto model = model_of(o.config);
      int matrices = 0;
      for (const auto& layer : model.layers)
        for (const auto& param : layer->params()) {
          if (param.frozen) {
            EXPECT_EQ(before.at(param.name), after.at(param.name)) << param.name;
            continue;
          }
          LayerOracle oracle({.rows = param.shape[0], .columns = param.shape[1], .hidden = true});
          oracle.w = before.at(param.name);
          auto gradient = oracle.w;
          for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] -= moved.at(param.name)[i];
          publish(o.settings, {.step = 1, .learning_rate = o.rate, .first = true}, oracle, gradient);
          for (std::size_t i = 0; i < gradient.size(); ++i)
            ASSERT_NEAR(oracle.w[i], after.at(param.name)[i], 1e-9) << param.name << ", element " << i;
          ++matrices;
        }
      EXPECT_EQ(2 * 4 * 2, matrices);
    }
}

TEST_F(AdapterRanks, OptimizersOfWholeMatricesComposeWithDataExpertAndPipelineRanks) {
  for (const auto* const name : {"muon", "lamb", "adafactor"})
    for (const std::uint32_t zero : {0U, 1U, 2U, 3U}) {
      TensorRun o{.config = adapted(mixture("mixtral", kFour)), .data = {.ranks = 2, .zero = zero}, .optimizer = name};
      o.config.tied = zero % 2 == 0;
      if (zero == 1) o.schedule = "1f1b";
      if (zero >= 2) o.experts = 2;
      o.squeezed = o.disk_tier = zero == 3;
      expect_serial(o, 1e-9);
      o.config.adapters = {};
      o.freeze = "embedding,layers.0.attention,layers.1.experts";
      expect_serial(o, 1e-9);
    }
}

// A layer behind a skip has a weight of its own, which is frozen beside adapters, and trained or frozen without them.
TEST_F(AdapterRanks, OfBlocksWithSkipsEqualOneRank) {
  for (const char* const schedule : {"", "1f1b", "zb-h1"})
    for (const bool tiles : {false, true}) {
      TensorRun o{.config = adapted(tiles ? gpt2() : llama()), .data = {.ranks = 2, .zero = tiles ? 3U : 1U}};
      o.config.layers = 4;
      o.config.skips = lm::SkipShape::u;
      o.config.attention_tiles = tiles ? 2 : 1;
      o.schedule = schedule;
      o.recompute = !tiles;
      o.disk_tier = o.squeezed = tiles;
      expect_serial(o, kFp64);
      if (tiles) continue;
      o.config.adapters = {};
      for (const char* const freeze : {"embedding,layers.2.attention", "*skip.weight,layers.3.mlp"}) {
        o.freeze = freeze;
        expect_serial(o, kFp64);
      }
      if (HasFailure()) return;
    }
}

// In 2D, 2.5D and 3D; with tiles of rows, too.
TEST_F(AdapterRanks, OfRanksInAGridEqualOneRank) {
  for (const auto& grid : {TensorGrid{.side = 2}, {.depth = 2, .side = 2}, {.depth = 2, .side = 2, .cube = true}})
    for (const auto& [config, schedule, rows] : {std::tuple{adapted(llama()), "", 1U},
                                                 {adapted(gpt2()), "zb-h1", 3U},
                                                 {adapted(of_family("phi3")), "1f1b", 2U},
                                                 {adapted(with_norms("gemma3"), "q,v,down", 1), "", 1U}}) {
      const auto ways = std::int64_t{grid.depth} * grid.side;
      TensorRun o{.config = config,
                  .tensor_ranks = grid.depth * grid.side * grid.side,
                  .sequence = true,
                  .grid = grid,
                  .batch = {ways, 16}};
      o.config.mlp_row_tiles = rows;
      o.schedule = schedule;
      o.recompute = rows == 2;
      o.squeezed = o.disk_tier = rows == 3;
      if (grid.depth == 1) o.data = {.ranks = 2, .zero = rows};
      expect_serial(o, kFp64);
    }
}

TEST_F(AdapterRanks, PartsOfAModelAreFrozenOnAGrid) {
  expect_serial(
      {.config = llama(), .tensor_ranks = 4, .sequence = true, .grid = {.side = 2}, .batch = {2, 16}, .freeze = "layers.0.*"},
      kFp64);
}

}  // namespace
}  // namespace terrace::test
