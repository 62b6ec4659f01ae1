// Every layer of every family: gradients against central differences, halves, accumulation, scratch, generation. Whole models
// are compared with a second implementation.
#include <terrace/tests/examples/families/mixed.h>
#include <terrace/tests/examples/lm/layer_harness.h>

#include <cstring>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/models/adapters.h>
#include <terrace/parallel/layers/ends/head.h>
#include <terrace/tests/support/environment.h>
#include <terrace/tests/support/one_in.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

using lm::Family;
using lm::ModelConfig;
const Family& gpt2 = lm::family_named("gpt2");
const Family& llama = lm::family_named("llama");

struct Case {
  std::string name;
  ModelConfig config;
  BatchShape shape;
  bool float8 = false;  // also with operands of 8 bits
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Sizes are odd on purpose: vocabularies without a common factor, joined projections that are adjacent in memory or not
// (element counts that are no multiples of 64), one token a sequence.
std::vector<Case> cases() {
  const auto of = [](const Family& family, std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads, std::int64_t ffn,
                     std::int64_t vocab, bool tied, std::int64_t skipping = 0) {
    return lm::complete({.family = family,
                         .layers = skipping != 0 ? skipping : 2,
                         .hidden = hidden,
                         .heads = heads,
                         .kv_heads = kv_heads,
                         .ffn = ffn,
                         .seq_len = 11,
                         .vocab = vocab,
                         .tied = tied,
                         .skips = skipping != 0 ? lm::SkipShape::u : lm::SkipShape::none,
                         .dtype = DType::fp64});
  };
  auto of_a_file = of(llama, 24, 4, 2, 17, 300, false);
  of_a_file.rope_theta = 500, of_a_file.norm_eps = 1e-2;
  std::vector<Case> cases{{"LlamaOtherBaseAndEpsilon", of_a_file, {2, 7}},
                          {"Gpt2Tied", of(gpt2, 12, 3, 0, 20, 257, true), {2, 5}},
                          {"Gpt2Untied", of(gpt2, 16, 2, 0, 0, 259, false), {1, 11}},
                          {"Gpt2OddHead", of(gpt2, 15, 3, 0, 7, 256, true), {3, 1}},
                          {"LlamaTied", of(llama, 32, 4, 0, 34, 257, true), {1, 9}},
                          {"LlamaGroupedSplit", of(llama, 24, 4, 2, 17, 300, false), {2, 7}},
                          {"LlamaOneGroupOdd", of(llama, 30, 5, 1, 13, 257, true), {2, 3}},
                          {"LlamaGroupedAdjacent", of(llama, 64, 8, 2, 0, 257, false), {2, 4}},
                          {"Gpt2SkipsOdd", of(gpt2, 12, 3, 0, 20, 257, true, 3), {2, 5}},
                          {"LlamaSkips", of(llama, 24, 4, 2, 17, 257, false, 6), {2, 3}},
                          {"MixedSplit", of(test::kMixed, 24, 4, 2, 0, 257, false), {2, 5}},
                          {"MixedAdjacentSkips", of(test::kMixed, 128, 2, 1, 20, 257, true, 3), {1, 4}},
                          {"FusedGrouped", of(test::kFused, 20, 4, 2, 0, 257, true), {2, 5}},
                          {"FusedSkips", of(test::kFused, 15, 3, 1, 7, 259, false, 3), {1, 6}}};
  // Mixtures of experts: with more experts than tokens, with GELU and one tensor [inputs, outputs], with a shared expert, with
  // gates that do not add up to 1, and with the router's own losses (which only the layer's own test counts).
  const auto mixture = [&](ModelConfig config, const layers::Experts& experts) {
    config.experts = experts;
    return config;
  };
  cases.push_back({"LlamaExperts", mixture(of(llama, 24, 4, 2, 17, 257, false), {.count = 4}), {2, 5}});
  cases.push_back(
      {"LlamaManyExperts", mixture(of(llama, 32, 4, 0, 32, 257, true), {.count = 9, .chosen = 3, .shared = 1}), {1, 3}});
  cases.push_back({"LlamaAllExperts", mixture(of(llama, 24, 4, 2, 16, 257, true), {.count = 3, .chosen = 3}), {2, 5}});
  cases.push_back(
      {"Gpt2Experts", mixture(of(gpt2, 12, 3, 0, 20, 257, true), {.count = 3, .chosen = 1, .renormalise = false}), {2, 5}});
  // Heads with a width of their own, wider and narrower than hidden ÷ heads; heads that rotate in part, and blocks that do not
  // rotate.
  const auto with = [](ModelConfig config, auto change) {
    config.head_size = 0, config.rotated_blocks.reset();
    change(config);
    return lm::complete(config);
  };
  const Family &qwen3 = lm::family_named("qwen3"), &olmo2 = lm::family_named("olmo2"), &phi3 = lm::family_named("phi3");
  cases.push_back({"LlamaWideHeads", with(of(llama, 24, 4, 2, 17, 257, false), [](auto& c) { c.head_size = 10; }), {2, 5}});
  cases.push_back({"LlamaNarrowHeads", with(of(llama, 32, 4, 4, 17, 257, true), [](auto& c) { c.head_size = 6; }), {1, 7}});
  cases.push_back({"Qwen3Grouped", with(of(qwen3, 24, 4, 2, 17, 257, true), [](auto& c) { c.head_size = 8; }), {2, 5}});
  cases.push_back({"Qwen3Adjacent", with(of(qwen3, 64, 4, 1, 0, 257, false), [](auto& c) { c.head_size = 64; }), {1, 4}});
  cases.push_back({"Olmo2Grouped", with(of(olmo2, 24, 4, 2, 17, 257, false), [](auto& c) { c.head_size = 10; }), {2, 5}});
  cases.push_back(
      {"Phi3PartOfAHead", with(of(phi3, 32, 4, 2, 17, 257, true), [](auto& c) { c.rope_fraction = 0.75; }), {2, 5}});
  cases.push_back({"LlamaSomeBlocksRotate",
                   with(of(llama, 24, 4, 2, 17, 257, true, 3),
                        [](auto& c) {
                          c.rotated_blocks = layers::RotatedBlocks({false, true});
                        }),
                   {2, 4}});
  // Gemma: capped scores and logits, another divisor of scores, windows with a base of their own.
  const Family &gemma2 = lm::family_named("gemma2"), &gemma3 = lm::family_named("gemma3");
  const auto like_gemma = [](auto& c) {
    c.head_size = 10, c.window = layers::Windows({3, 0}), c.query_scalar = 7, c.attention_cap = 1.5, c.logit_cap = 2;
  };
  cases.push_back({"Gemma2Capped", with(of(gemma2, 24, 4, 2, 17, 257, true), like_gemma), {2, 7}});
  cases.push_back({"Gemma3Windows", with(of(gemma3, 24, 4, 2, 17, 257, true), like_gemma), {2, 7}});
  cases.push_back({"Gemma3WindowsNotCapped",
                   with(of(gemma3, 32, 4, 1, 17, 257, false), [](auto& c) { c.window = 4, c.window_rope_theta = 3; }),
                   {1, 9}});
  cases.push_back(
      {"Olmo2Experts", mixture(of(olmo2, 24, 4, 2, 17, 257, false), {.count = 4, .chosen = 2, .shared = 1}), {2, 5}});
  cases.push_back({"Gemma2Experts", mixture(with(of(gemma2, 24, 4, 2, 17, 257, true), like_gemma), {.count = 3}), {2, 7}});
  // Several biases of a product.
  static const Family biased = [] {
    auto family = llama;
    family.tensors.up.bias = family.tensors.down.bias = true;
    return family;
  }();
  cases.push_back({"LlamaBiases", of(biased, 24, 4, 2, 17, 257, false), {2, 5}});
  // Adapters of some products and of all: with results in one tensor, with matrices [inputs, outputs], and behind a norm.
  const auto adapted = [&](ModelConfig config, std::int64_t rank, const char* targets) {
    config.adapters = lm::adapters_of(config.family, config.experts.count > 0, rank, 5, targets);
    return config;
  };
  cases.push_back({"ExpertsAdapters", adapted(mixture(of(llama, 24, 4, 2, 17, 257, false), {.count = 4}), 2, "all"), {2, 5}});
  cases.push_back(
      {"ExpertsAttentionAdapters", adapted(mixture(of(llama, 24, 4, 2, 17, 257, true), {.count = 3}), 3, "q,v"), {2, 5}});
  cases.push_back({"Gpt2ExpertsAdapters",
                   adapted(mixture(of(gpt2, 12, 3, 0, 20, 257, true), {.count = 3, .chosen = 2, .shared = 1}), 2, "up,down"),
                   {1, 5}});
  const Family& qwen2 = lm::family_named("qwen2");
  cases.push_back({"LlamaAdapters", adapted(of(llama, 24, 4, 2, 17, 300, false), 3, "q,v"), {2, 7}});
  cases.push_back({"LlamaAllAdapters", adapted(of(llama, 24, 4, 2, 17, 257, true), 2, "all"), {2, 5}});
  cases.push_back({"LlamaAdaptersOfOne", adapted(of(llama, 64, 8, 2, 0, 257, false), 4, "down,o"), {2, 4}});
  cases.push_back({"Qwen2Adapters", adapted(of(qwen2, 24, 4, 2, 17, 257, false), 2, "k,gate"), {2, 5}});
  cases.push_back({"Gpt2Adapters", adapted(of(gpt2, 12, 3, 0, 20, 257, true), 2, "all"), {2, 5}});
  cases.push_back({"Phi3Adapters", adapted(of(phi3, 32, 4, 2, 17, 257, true), 2, "q,k,v,down"), {2, 5}});
  cases.push_back({"Olmo2Adapters", adapted(of(olmo2, 24, 4, 2, 17, 257, false), 3, "all"), {2, 5}});
  cases.push_back({"Gemma3Adapters", adapted(of(gemma3, 24, 4, 2, 17, 257, true), 2, "all"), {2, 5}});
  // Operands of 8 bits: adjacent results and biases, matrices [inputs, outputs], experts, adapters.
  const auto float8 = [&](std::string name, const ModelConfig& config, BatchShape shape) {
    cases.push_back({std::move(name), config, shape, true});
  };
  float8("LlamaFloat8", of(llama, 32, 2, 1, 48, 257, false), {2, 9});
  float8("Gpt2Float8", of(gpt2, 32, 2, 0, 48, 257, true), {1, 11});
  float8("ExpertsFloat8", mixture(of(llama, 32, 2, 1, 16, 257, false), {.count = 3, .chosen = 3}), {2, 5});
  float8("AdaptersFloat8", adapted(of(llama, 32, 2, 1, 16, 257, false), 3, "all"), {2, 5});
  // A new family is tested without a new line here.
  for (const Family* const family : lm::families()) {
    cases.push_back({std::string("Family") + std::string(*family->name), of(*family, 24, 4, 0, 0, 257, false), {2, 5}});
  }
  return cases;
}

// The weights of a model without adapters that computes the same.
Weights merged(const ModelConfig& config, Weights weights) {
  const auto& [rank, alpha, tensors] = config.adapters;
  const bool out_in = *config.family.get().matrices == layers::MatrixOrder::out_in;
  const auto& experts = config.family.get().tensors.experts;
  for (auto& [name, w] : weights) {
    auto tensor = name.substr(0, name.rfind('.'));
    // In an expert, the results of its first product are side by side in one tensor, and have one adapter.
    std::size_t part = 0, parts = 1;
    const auto module = tensor.rfind('.') + 1;
    if (config.experts.count > 0 && tensor.find("experts.") != std::string::npos && !layers::is_adapter(name)) {
      const auto own = tensor.substr(module);
      const auto at = static_cast<std::size_t>(std::ranges::find(experts.up, own) - experts.up.begin());
      const bool is_up = at < experts.up.size();
      if (is_up) part = at, parts = experts.up.size();
      tensor = tensor.substr(0, module) + (is_up ? "gate_up_proj" : "down_proj");
    }
    const auto a = weights.find(layers::weight_name(tensor + ".lora_A")),
               b = weights.find(layers::weight_name(tensor + ".lora_B"));
    if (a == weights.end() || !name.ends_with(".weight")) continue;
    const auto r = static_cast<std::size_t>(rank), inputs = a->second.size() / r, outputs = b->second.size() / r / parts;
    const auto first = part * outputs;
    for (std::size_t o = 0; o < outputs; ++o)
      for (std::size_t i = 0; i < inputs; ++i)
        for (std::size_t k = 0; k < r; ++k)
          w[out_in ? o * inputs + i : i * outputs + o] +=
              alpha / static_cast<double>(rank) * b->second[(first + o) * r + k] * a->second[k * inputs + i];
  }
  return weights;
}

ModelConfig without_adapters(ModelConfig config) {
  config.adapters = {};
  return config;
}

bool chooses(const ModelConfig& config) { return config.experts.count > config.experts.chosen; }

struct LayersTest : testing::TestWithParam<Case> {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 generator{seed};
  testing::ScopedTrace trace{__FILE__, __LINE__, "TERRACE_TEST_SEED=" + std::to_string(seed)};
  Machine machine;

  void SetUp() override {
    if (!test_skip_reason.empty()) GTEST_SKIP() << test_skip_reason;
  }

  Values normal(std::int64_t n, double std, double mean = 0) {
    std::normal_distribution<double> draw(mean, std);
    Values v(static_cast<std::size_t>(n));
    for (double& e : v) e = draw(generator);
    return v;
  }
  std::vector<int> ids(std::int64_t n, std::int64_t vocab) {
    std::vector<int> v;
    for (std::int64_t i = 0; i < n; ++i) v.push_back(static_cast<int>(generator() % static_cast<std::uint64_t>(vocab)));
    return v;
  }
  std::vector<int> targets(std::int64_t n, std::int64_t vocab) {
    auto v = ids(n, vocab);
    if (n > 2) v[static_cast<std::size_t>(generator() % static_cast<std::uint64_t>(n))] = -1;
    return v;
  }
  Values weights_of(const ParamSpec& p) {
    return p.init.kind == InitKind::normal ? normal(p.shape.elements(), p.shape[1] < 16 ? 0.4 : 0.25)
                                           : normal(p.shape.elements(), 0.2, p.init.kind == InitKind::ones ? 1 : 0);
  }
  Weights weights_of(const Model& model) {
    Weights w;
    for (const auto& layer : model.layers) {
      for (const auto& p : layer->params()) {
        if (!p.tied) w[p.name] = weights_of(p);
      }
    }
    return w;
  }
  // Random inputs for one layer; runs its forward.
  void prepare(LayerRun& run, std::int64_t vocab) {
    for (std::size_t p = 0; p < run.params.size(); ++p) set(run.weights.views[p], weights_of(run.params[p]));
    for (Packed* p : {&run.x, &run.dy, &run.skip}) {
      for (const auto& view : p->views) set(view, normal(view.elements(), 1));
    }
    const auto t = ids(run.shape.tokens(), vocab), goal = targets(run.shape.tokens(), vocab);
    set(run.tokens(), Values(t.begin(), t.end()));
    set(run.targets(), Values(goal.begin(), goal.end()));
    run.loss_scale = 0.37;
    run.token_scale = 0.21;
    run.forward();
  }
  // Runs `body` for a layer of each kind.
  template <class F>
  void each_kind(const ModelConfig& config, BatchShape shape, F&& body) {
    const Model model = lm::make_model(config);
    // Embedding, attention, MLP, an attention with or without a skip before it, head.
    for (const std::size_t l :
         {std::size_t{0}, std::size_t{1}, std::size_t{2}, model.layers.size() - 3, model.layers.size() - 1}) {
      SCOPED_TRACE(model.layers[l]->name() + ", " + std::string(terrace::name_of(config.dtype)));
      LayerRun run(machine, *model.layers[l], config.dtype, config.hidden, shape, l == 0, l + 1 == model.layers.size());
      prepare(run, config.vocab);
      body(run);
    }
  }
  template <class F>
  void each_dtype(const ModelConfig& config, F&& body) {
    for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16}) {
      ModelConfig c = config;
      c.dtype = dtype;
      body(c);
    }
    if (GetParam().float8) body(in_float8(config));
  }
  static ModelConfig in_float8(ModelConfig config) {
    config.dtype = DType::bf16;
    config.products = layers::Products::fp8;
    return config;
  }
  // Central differences of Σ y·dy (of the scaled loss, for the head) by some elements of `at`.
  void check_differences(LayerRun& run, const TensorView& at, const Values& gradient, const std::string& name,
                         const layers::Experts& experts = {}) {
    const auto objective = [&] {
      run.forward();
      if (run.y.views.empty()) return run.loss() * run.loss_scale;
      const Values y = get(run.y.views[0]), dy = get(run.dy.views[0]);
      double sum = 0;
      if (run.facts.report_size > 0) {  // the router's own losses
        const Values report = get(run.report.views[0]);
        const RoutingReport routed{*run.facts.routing};
        sum =
            run.token_scale * (experts.balance_loss * static_cast<double>(run.shape.tokens()) * routed.balance(report.data()) +
                               experts.square_loss * report[RoutingReport::kSquares]);
      }
      for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
      return sum;
    };
    const double step = 1e-5;
    for (int i = 0; i < (long_form() ? 12 : 5); ++i) {
      const std::size_t e = generator() % gradient.size();
      std::byte* const place = at.data + e * sizeof(double);
      const auto kept = bytes_at(place, sizeof(double));
      const auto with = [&](double change) {
        double value = 0;
        std::memcpy(&value, kept.data(), sizeof value);
        value += change;
        put_bytes(place, reinterpret_cast<const std::byte*>(&value), sizeof value);
        return objective();
      };
      const double above = with(step), below = with(-step);
      put_bytes(place, kept.data(), kept.size());
      EXPECT_NEAR(gradient[e], (above - below) / (2 * step), 1e-6 * std::max(1.0, std::abs(gradient[e])))
          << name << ", element " << e;
    }
  }
};

// Decodes one position.
void decode(const Layer& layer, LayerContext ctx, std::span<const TensorView> weights, TensorView x, TensorView y,
            std::span<const TensorView> cache, std::int64_t position) {
  ctx.position = position;
  layer.described(LayerCall::decode, ctx.shape)
      .run(ctx, {.weights = weights, .gradients = {}, .x = x, .y = y, .saved = cache, .dy = {}, .dx = {}, .carried = {}});
}

TEST_P(LayersTest, GradientsMatchCentralDifferences) {
  each_kind(GetParam().config, GetParam().shape, [&](LayerRun& run) {
    run.backward(Half::both);
    std::vector<Values> gradients;
    for (const auto& g : run.gradients.views) gradients.push_back(get(g));
    if (!run.x.views.empty()) check_differences(run, run.x.views[0], get(run.dx.views[0]), "x");
    if (!run.skip.views.empty()) check_differences(run, run.skip.views[0], get(run.dskip.views[0]), "skip");
    for (std::size_t p = 0; p < run.params.size(); ++p) {
      check_differences(run, run.weights.views[p], gradients[p], run.params[p].name);
    }
  });
}

TEST_P(LayersTest, HalvesApartGiveTheBitsOfBothTogether) {
  each_dtype(GetParam().config, [&](const ModelConfig& config) {
    each_kind(config, GetParam().shape, [&](LayerRun& run) {
      run.backward(Half::both);
      const double loss = run.loss();
      const std::string dx = run.dx.buffer.bits(), gradients = run.gradients.buffer.bits(), dskip = run.dskip.buffer.bits();
      for (Packed* p : {&run.dx, &run.dskip, &run.gradients, &run.carried}) p->buffer.poison();
      if (!run.y.views.empty()) run.y.buffer.poison();
      run.backward(Half::input);
      EXPECT_TRUE(dx == run.dx.buffer.bits());
      EXPECT_TRUE(dskip == run.dskip.buffer.bits());
      if (run.y.views.empty()) {
        EXPECT_EQ(loss, run.loss());
      }
      run.backward(Half::weight);
      EXPECT_TRUE(gradients == run.gradients.buffer.bits());
    });
  });
}

// Recomputation needs this: a forward leaves the same bits each time, whatever its tensors held before.
TEST_P(LayersTest, ForwardsAgainGiveTheSameBits) {
  each_dtype(GetParam().config, [&](const ModelConfig& config) {
    each_kind(config, GetParam().shape, [&](LayerRun& run) {
      const std::string saved = run.saved.buffer.bits(), y = run.y.buffer.bits();
      const double loss = run.loss();
      if (!run.y.views.empty()) run.y.buffer.poison();
      run.backward(Half::both);
      run.forward();  // into poisoned saved tensors
      EXPECT_TRUE(saved == run.saved.buffer.bits());
      EXPECT_TRUE(y == run.y.buffer.bits());
      if (run.y.views.empty()) {
        EXPECT_EQ(loss, run.loss());
      }
    });
  });
}

TEST_P(LayersTest, AccumulatingAddsTheWholeGradient) {
  each_dtype(GetParam().config, [&](const ModelConfig& config) {
    each_kind(config, GetParam().shape, [&](LayerRun& run) {
      run.backward(Half::both);
      std::vector<Values> expected;
      for (const auto& g : run.gradients.views) {
        Values whole = get(g);
        set(g, normal(g.elements(), 1));
        const Values before = get(g);
        for (std::size_t i = 0; i < whole.size(); ++i) {
          // One rounding, in the gradient's dtype.
          whole[i] = g.dtype == DType::fp32 ? static_cast<double>(static_cast<float>(before[i]) + static_cast<float>(whole[i]))
                                            : before[i] + whole[i];
        }
        expected.push_back(whole);
      }
      run.backward(Half::both, Accumulate::yes);
      for (std::size_t p = 0; p < expected.size(); ++p) {
        const auto& g = run.gradients.views[p];
        if (products_by_library(machine.device->math())) {
          expect_near(expected[p], get(g), g.dtype == DType::fp64 ? 1e-12 : 1e-5, run.params[p].name);
        } else {
          EXPECT_EQ(expected[p], get(g)) << run.params[p].name;
        }
      }
    });
  });
}

TEST_P(LayersTest, ScratchIsNoLargerThanNeeded) {
  const auto config = GetParam().float8 ? in_float8(GetParam().config) : GetParam().config;
  each_kind(config, GetParam().shape, [&](LayerRun& run) {
    if (run.scratch_bytes == 0) return;
    if (chooses(config) && run.facts.report_size > 0) return;  // it is enough for all tokens at one expert
    run.scratch_bytes -= layers::ScratchArena::kAlignBytes;
    const bool last = run.y.views.empty();
    Packed row({{"x", config.dtype, {1, config.hidden}}, {"y", config.dtype, {1, last ? config.vocab : config.hidden}}}, 64);
    const auto& layer = lm::generative(run.layer);
    Packed cache(layer.cache(1), 64);
    const auto every_call = [&] {
      run.forward();
      run.backward(Half::both);
      auto ctx = run.context();
      ctx.shape = {1, 1};
      decode(layer, ctx, run.weights.views, row.views[0], row.views[1], cache.views, 0);
    };
    EXPECT_THROW(every_call(), std::logic_error);  // one of the calls needs all of it
    machine.stream->synchronize();
  });
}

TEST_P(LayersTest, WrongViewsAreRefused) {
  each_kind(GetParam().config, GetParam().shape, [&](LayerRun& run) {
    const auto weights = run.weights.views;
    run.weights.views.pop_back();
    EXPECT_THROW(run.forward(), std::logic_error);
    run.weights.views = weights;
    run.weights.views.back().dtype = DType::fp32;
    EXPECT_THROW(run.forward(), std::logic_error);
    run.weights.views = weights;
    if (!run.saved.views.empty()) {
      run.saved.views.pop_back();
      EXPECT_THROW(run.backward(Half::input), std::logic_error);
    }
  });
}

TEST_P(LayersTest, WholeModelMatchesTheReference) {
  const auto& [name, config, shape, in_8_bits] = GetParam();
  Chain chain(machine, config, shape);
  Weights weights = weights_of(chain.model);
  const auto tokens = ids(shape.tokens(), config.vocab), goal = targets(shape.tokens(), config.vocab);
  chain.set_weights(weights);
  chain.set_ids(tokens, goal);
  const auto reference_loss = [&] {
    const Weights whole = merged(config, weights);
    return ReferenceModel(without_adapters(config), whole).loss(tokens, goal, shape.seq);
  };
  const double loss = reference_loss();
  EXPECT_NEAR(chain.loss(), loss, 1e-11 * loss);
  const double scale = 0.25;
  EXPECT_NEAR(chain.backward(scale), loss, 1e-11 * loss);
  for (const auto& [param, gradient] : chain.gradients()) {
    for (int i = 0; i < 4; ++i) {
      const std::size_t e = generator() % gradient.size();
      double& value = weights.at(param)[e];
      const double kept = value, step = 1e-5;
      value = kept + step;
      const double above = reference_loss();
      value = kept - step;
      const double below = reference_loss();
      value = kept;
      const double expected = scale * (above - below) / (2 * step);
      EXPECT_NEAR(gradient[e], expected, 1e-6 * std::max(1.0, std::abs(expected))) << param << ", element " << e;
    }
  }
}

// Weights that all dtypes can hold. The tolerances are for the loss and for the L2 norm of each gradient.
TEST_P(LayersTest, NarrowDtypesStayClose) {
  const auto& [name, config, shape, in_8_bits] = GetParam();
  if (chooses(config)) return;  // other rounding may let the router choose other experts
  Weights weights = weights_of(lm::make_model(config));
  for (auto& [param, values] : weights) {
    // Smaller than elsewhere: a saturated softmax makes the gradients of q and k differences of nearly equal numbers.
    const double shrink = param.find("norm") == std::string::npos && param.find("ln_") == std::string::npos ? 0.5 : 1;
    for (double& v : values) v = static_cast<float>(bf16(static_cast<float>(shrink * v)));
  }
  const auto tokens = ids(shape.tokens(), config.vocab), goal = targets(shape.tokens(), config.vocab);
  double exact_loss = 0;
  Weights exact;
  each_dtype(config, [&](const ModelConfig& c) {
    Chain chain(machine, c, shape);
    chain.set_weights(weights);
    chain.set_ids(tokens, goal);
    const double loss = chain.backward(0.25);
    if (c.dtype == DType::fp64) {
      exact_loss = loss;
      exact = chain.gradients();
      return;
    }
    SCOPED_TRACE(terrace::name_of(c.dtype));
    const bool float8 = c.products == layers::Products::fp8;
    EXPECT_NEAR(loss, exact_loss,
                (float8                   ? 5e-2
                 : c.dtype == DType::fp32 ? 1e-5
                 : c.dtype == DType::fp16 ? 2.5e-3
                                          : 2e-2) *
                    exact_loss);
    for (const auto& [param, gradient] : chain.gradients()) {
      double error = 0, norm = 0;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        error += std::pow(gradient[i] - exact[param][i], 2);
        norm += std::pow(exact[param][i], 2);
      }
      // The bias of k changes all scores of a query alike except for their angles, so its gradient is small beside its terms.
      // The gradient of a router is made of differences between experts' results.
      // In a sequence of one token all attention weights are exactly one: only rounding errors reach q and k.
      EXPECT_LE(std::sqrt(error), (float8                   ? (param.ends_with("moe.gate.weight") ? 0.6 : 0.3)
                                   : c.dtype == DType::fp32 ? 3e-5
                                   : c.dtype == DType::fp16 ? 1.25e-2
                                                            : (param.ends_with("k.bias") ? 0.2 : 0.1)) *
                                          std::sqrt(norm) +
                                      1e-7)
          << param;
    }
  });
}

TEST_P(LayersTest, GenerationGivesTheLogitsOfTheForward) {
  const auto& [name, given, shape, in_8_bits] = GetParam();
  each_dtype(given, [&](const ModelConfig& config) {
    if (chooses(config) && size_of(config.dtype) == 2) return;  // other rounding may let the router choose other experts
    SCOPED_TRACE(terrace::name_of(config.dtype));
    Chain chain(machine, config, {1, 1});
    Weights weights = weights_of(chain.model);
    chain.set_weights(weights);
    for (auto& run : chain.runs) {
      for (std::size_t p = 0; p < run->params.size(); ++p)
        weights[run->params[p].name] = get(run->weights.views[p]);  // rounded to the dtype
    }
    const auto tokens = ids(config.seq_len, config.vocab);
    const Weights whole = merged(config, weights);
    const Values expected = ReferenceModel(without_adapters(config), whole).logits(tokens, config.seq_len);
    const std::int64_t capacity = config.seq_len + 2;
    std::vector<Packed> caches;
    for (const auto& layer : chain.model.layers) caches.emplace_back(lm::generative(*layer).cache(capacity), 64);
    Packed logits({{"logits", config.dtype, {1, config.vocab}}}, 64);
    double largest = 0, error = 0;
    for (std::int64_t position = 0; position < config.seq_len; ++position) {
      const int token = tokens[static_cast<std::size_t>(position)];
      for (std::size_t l = 0; l < chain.runs.size(); ++l) {
        auto& run = *chain.runs[l];
        const bool last = l + 1 == chain.runs.size();
        set(run.tokens(), {static_cast<double>(token)});
        auto ctx = run.context();
        decode(run.layer, ctx, run.weights.views, LayerRun::only(run.x), last ? logits.views[0] : run.y.views[0],
               caches[l].views, position);
        run.finish();
        EXPECT_TRUE(caches[l].buffer.canaries_live());
        if (!last) chain.hand_on(l);
      }
      const Values row = get(logits.views[0]);
      for (std::int64_t v = 0; v < config.vocab; ++v) {
        const double e = expected[static_cast<std::size_t>(position * config.vocab + v)];
        largest = std::max(largest, std::abs(e));
        error = std::max(error, std::abs(row[static_cast<std::size_t>(v)] - e));
      }
    }
    const bool float8 = config.products == layers::Products::fp8;
    const double tolerance = config.dtype == DType::fp64 ? 1e-12 : config.dtype == DType::fp32 ? 1e-5 : float8 ? 0.3 : 0.1;
    EXPECT_LE(error, tolerance * largest);
    auto ctx = chain.runs[1]->context();
    EXPECT_THROW(decode(*chain.model.layers[1], ctx, chain.runs[1]->weights.views, chain.runs[1]->x.views[0],
                        chain.runs[1]->y.views[0], caches[1].views, config.seq_len),
                 std::logic_error);
  });
}

INSTANTIATE_TEST_SUITE_P(Models, LayersTest, testing::ValuesIn(cases()), [](const auto& made) { return made.param.name; });

struct ExpertsTest : LayersTest {
  const BatchShape shape{2, 9};
  ModelConfig config_of(const layers::Experts& experts, DType dtype = DType::fp64) {
    return lm::complete({.family = llama,
                         .layers = 1,
                         .hidden = 24,
                         .heads = 4,
                         .ffn = 17,
                         .seq_len = 9,
                         .vocab = 257,
                         .experts = experts,
                         .dtype = dtype});
  }
  static constexpr std::size_t kLayer = 2;  // behind the embedding and the attention
  // One layer, its model, and random inputs; its forward has run.
  struct Made {
    Model model;
    LayerRun run;
    Made(Machine& machine, const ModelConfig& config, BatchShape shape)
        : model(lm::make_model(config)),
          run(machine, *model.layers[kLayer], config.dtype, config.hidden, shape, false, false) {}
  };
  static double reported(const LayerRun& run, std::int64_t number) {
    return get(run.report.views[0])[static_cast<std::size_t>(number)];
  }
};

// Choices and drops do not change within a step of the differences.
TEST_F(ExpertsTest, GradientsWithDropsAndTheRoutersLossesMatchCentralDifferences) {
  for (const layers::Experts& experts :
       {layers::Experts{.count = 5, .chosen = 2, .balance_loss = 0.7, .square_loss = 0.3},
        layers::Experts{.count = 4, .chosen = 2, .shared = 1, .capacity_factor = 0.5, .balance_loss = 0.2},
        layers::Experts{.count = 4, .chosen = 1, .capacity_factor = 1, .renormalise = false, .square_loss = 0.4}}) {
    Made made(machine, config_of(experts), shape);
    auto& run = made.run;
    prepare(run, 257);
    EXPECT_EQ(reported(run, RoutingReport::kDropped) > 0, experts.capacity_factor > 0);
    run.backward(Half::both);
    std::vector<Values> gradients;
    for (const auto& g : run.gradients.views) gradients.push_back(get(g));
    check_differences(run, run.x.views[0], get(run.dx.views[0]), "x", experts);
    for (std::size_t p = 0; p < run.params.size(); ++p)
      check_differences(run, run.weights.views[p], gradients[p], run.params[p].name, experts);
  }
}

TEST_F(ExpertsTest, OneExpertIsTheMlpToTheBit) {
  for (const DType dtype : {DType::fp64, DType::fp32}) {
    Made mixture(machine, config_of({.count = 1, .chosen = 1}, dtype), shape), plain(machine, config_of({}, dtype), shape);
    prepare(mixture.run, 257);
    auto &one = mixture.run, &mlp = plain.run;
    // The norm; then the router, which the MLP does not have; then gate, up and down.
    const auto of_mixture = [](std::size_t p) { return p == 0 ? p : p + 1; };
    for (std::size_t p = 0; p < mlp.params.size(); ++p) set(mlp.weights.views[p], get(one.weights.views[of_mixture(p)]));
    set(mlp.x.views[0], get(one.x.views[0]));
    set(mlp.dy.views[0], get(one.dy.views[0]));
    for (auto* const run : {&one, &mlp}) run->forward(), run->backward(Half::both);
    EXPECT_EQ(get(one.y.views[0]), get(mlp.y.views[0]));
    EXPECT_EQ(get(one.dx.views[0]), get(mlp.dx.views[0]));
    for (std::size_t p = 0; p < mlp.params.size(); ++p)
      EXPECT_EQ(get(one.gradients.views[of_mixture(p)]), get(mlp.gradients.views[p])) << mlp.params[p].name;
  }
}

TEST_F(ExpertsTest, ExpertsWithoutTokensHaveAGradientOfZero) {
  Made made(machine, config_of({.count = 4, .chosen = 2}), shape);
  auto& run = made.run;
  prepare(run, 257);
  const auto is_router = [](const ParamSpec& p) { return p.name.ends_with("moe.gate.weight"); };
  for (std::size_t p = 0; p < run.params.size(); ++p)
    if (is_router(run.params[p])) set(run.weights.views[p], Values(static_cast<std::size_t>(run.params[p].shape.elements())));
  run.gradients.buffer.poison();
  run.forward();  // equal probabilities: all tokens choose the first two experts
  run.backward(Half::both);
  for (std::size_t p = 0; p < run.params.size(); ++p) {
    const auto gradient = get(run.gradients.views[p]);
    const bool idle = run.params[p].name.find("experts.2.") != std::string::npos ||
                      run.params[p].name.find("experts.3.") != std::string::npos;
    EXPECT_EQ(std::ranges::all_of(gradient, [](double g) { return g == 0; }), idle) << run.params[p].name;
  }
  for (const double dx : get(run.dx.views[0])) EXPECT_TRUE(std::isfinite(dx));
}

struct HeadTest : LayersTest {};

TEST_F(HeadTest, SlicesOfRowsGiveTheGradientsOfTheWhole) {
  const ModelConfig config = lm::complete({.family = llama,
                                           .layers = 1,
                                           .hidden = 8,
                                           .heads = 2,
                                           .seq_len = 600,
                                           .vocab = 257,
                                           .tied = false,
                                           .dtype = DType::fp64});
  const layers::Head head(lm::transformer_of(config));
  const BatchShape shape{2, 300};
  ASSERT_LT(head.slice_rows(), shape.tokens());
  ASSERT_NE(shape.tokens() % head.slice_rows(), 0);
  LayerRun run(machine, head, DType::fp64, config.hidden, shape, false, true);
  prepare(run, config.vocab);
  const double loss = run.loss();
  run.backward(Half::both);
  EXPECT_EQ(loss, run.loss());
  const std::string both = run.gradients.buffer.bits();
  const Values dx = get(run.dx.views[0]), dgain = get(run.gradients.views[0]), dw = get(run.gradients.views[1]);
  run.backward(Half::input);
  run.gradients.buffer.poison();
  run.backward(Half::weight);
  EXPECT_TRUE(both == run.gradients.buffer.bits());
  run.backward(Half::both, Accumulate::yes);
  const Values twice = get(run.gradients.views[1]);
  for (std::size_t i = 0; i < dw.size(); ++i) ASSERT_NEAR(twice[i], 2 * dw[i], 1e-13);
  check_differences(run, run.x.views[0], dx, "x");
  check_differences(run, run.weights.views[0], dgain, "gain");
  check_differences(run, run.weights.views[1], dw, "table");
}

TEST_F(HeadTest, SliceRowsFollowFromTheVocabularyAlone) {
  const auto rows = [](std::int64_t vocab) {
    return layers::Head(lm::transformer_of(lm::complete(
                            {.family = llama, .layers = 1, .hidden = 8, .heads = 2, .seq_len = 8, .vocab = vocab})))
        .slice_rows();
  };
  EXPECT_EQ(rows(256), 512);
  EXPECT_EQ(rows(50257), 320);
  EXPECT_EQ(rows(128256), 128);
  EXPECT_EQ(rows(1 << 20), 64);
}

// With any vocabulary, so that a library's fast kernels can compute the head's three products.
TEST_F(HeadTest, RowsOfLogitsBeginAtMultiplesOf128Bytes) {
  const auto head_of = [](std::int64_t vocab) {
    return layers::Head(lm::transformer_of(lm::complete(
        {.family = llama, .layers = 1, .hidden = 8, .heads = 2, .seq_len = 640, .vocab = vocab, .dtype = DType::bf16})));
  };
  // For 640 rows: losses and 1 ÷ rms; for a slice: the normed rows, and logits of 50,257 columns in 50,304 places.
  EXPECT_EQ(head_of(50257).described(LayerCall::backward, {1, 640}).scratch_bytes(), 640 * (8 + 4) + 320 * (8 + 50304) * 2);
  EXPECT_EQ(head_of(50304).described(LayerCall::backward, {1, 640}).scratch_bytes(), 640 * (8 + 4) + 320 * (8 + 50304) * 2);

  const auto head = head_of(257);
  LayerRun run(machine, head, DType::bf16, 8, {1, 16}, false, true);
  prepare(run, 257);
  run.backward(Half::both);
  const auto chosen = machine.device->math().algorithms();
  if (chosen.find("matmul ") == std::string::npos) return;  // no library: shapes alone decide
  for (const std::string product : {"[16, 257] = bf16 [16, 8] · [257, 8]ᵀ, to bf16, aligned to 16, rows of c every 320:",
                                    "[16, 8] = bf16 [16, 257] · [257, 8], to bf16, aligned to 16, rows of a every 320:",
                                    "[257, 8] = bf16 [16, 257]ᵀ · [16, 8], to fp32, aligned to 16, rows of a every 320:"})
    EXPECT_NE(chosen.find(product), std::string::npos) << product << "\nin\n" << chosen;
}

TEST_F(HeadTest, EvaluationOnlyMakesTheLoss) {
  const ModelConfig config = lm::complete({.family = llama, .layers = 1, .hidden = 8, .heads = 2, .seq_len = 8, .vocab = 257});
  const layers::Head head(lm::transformer_of(config));
  LayerRun run(machine, head, DType::fp32, config.hidden, {1, 8}, false, true);
  prepare(run, config.vocab);
  const double loss = run.loss();
  set(run.io.views[2], {0});
  auto ctx = run.context();
  ctx.evaluate = true;
  head.backward(ctx,
                {.weights = run.weights.views,
                 .gradients = {},
                 .x = run.x.views[0],
                 .y = {},
                 .saved = {},
                 .dy = {},
                 .dx = {},
                 .carried = {}},
                Half::both);
  run.finish();
  EXPECT_EQ(loss, run.loss());
}

ModelConfig gpt2_124m() { return {.family = gpt2, .layers = 12, .hidden = 768, .heads = 12, .seq_len = 1024, .vocab = 50257}; }

TEST(Model, Gpt2HasTheParametersOfThePublishedModel) {
  EXPECT_EQ(lm::parameter_count(gpt2_124m()), 124439808U);
  auto untied = gpt2_124m();
  untied.tied = false;
  EXPECT_EQ(lm::parameter_count(untied), 124439808U + 50257U * 768U);
}

TEST(Model, LlamaHasTheParametersOfThePublishedModel) {
  EXPECT_EQ(lm::parameter_count({.family = llama,
                                 .layers = 32,
                                 .hidden = 4096,
                                 .heads = 32,
                                 .ffn = 11008,
                                 .seq_len = 4096,
                                 .vocab = 32000,
                                 .tied = false}),
            6738415616U);  // Llama 2 7B
}

TEST(Model, NamesAndShapesAreHuggingFaces) {
  std::map<std::string, std::string> shapes;
  const auto collect = [&](const ModelConfig& config) {
    shapes.clear();
    for (const auto& layer : lm::make_model(config).layers) {
      for (const auto& p : layer->params()) {
        EXPECT_EQ(p.decay, p.shape.rank() > 1) << p.name;
        if (p.tied) continue;
        EXPECT_TRUE(shapes.emplace(p.name, to_string(p.shape)).second) << p.name << " is declared twice";
      }
    }
  };
  auto one_block = gpt2_124m();
  one_block.layers = 1;
  collect(one_block);
  EXPECT_EQ(shapes, (std::map<std::string, std::string>{{"transformer.wte.weight", "[50257, 768]"},
                                                        {"transformer.wpe.weight", "[1024, 768]"},
                                                        {"transformer.h.0.ln_1.weight", "[768]"},
                                                        {"transformer.h.0.ln_1.bias", "[768]"},
                                                        {"transformer.h.0.attn.c_attn.weight", "[768, 2304]"},
                                                        {"transformer.h.0.attn.c_attn.bias", "[2304]"},
                                                        {"transformer.h.0.attn.c_proj.weight", "[768, 768]"},
                                                        {"transformer.h.0.attn.c_proj.bias", "[768]"},
                                                        {"transformer.h.0.ln_2.weight", "[768]"},
                                                        {"transformer.h.0.ln_2.bias", "[768]"},
                                                        {"transformer.h.0.mlp.c_fc.weight", "[768, 3072]"},
                                                        {"transformer.h.0.mlp.c_fc.bias", "[3072]"},
                                                        {"transformer.h.0.mlp.c_proj.weight", "[3072, 768]"},
                                                        {"transformer.h.0.mlp.c_proj.bias", "[768]"},
                                                        {"transformer.ln_f.weight", "[768]"},
                                                        {"transformer.ln_f.bias", "[768]"}}));
  collect({.family = llama, .layers = 1, .hidden = 256, .heads = 8, .kv_heads = 2, .seq_len = 8, .vocab = 300, .tied = false});
  EXPECT_EQ(shapes, (std::map<std::string, std::string>{{"model.embed_tokens.weight", "[300, 256]"},
                                                        {"model.layers.0.input_layernorm.weight", "[256]"},
                                                        {"model.layers.0.self_attn.q_proj.weight", "[256, 256]"},
                                                        {"model.layers.0.self_attn.k_proj.weight", "[64, 256]"},
                                                        {"model.layers.0.self_attn.v_proj.weight", "[64, 256]"},
                                                        {"model.layers.0.self_attn.o_proj.weight", "[256, 256]"},
                                                        {"model.layers.0.post_attention_layernorm.weight", "[256]"},
                                                        {"model.layers.0.mlp.gate_proj.weight", "[704, 256]"},
                                                        {"model.layers.0.mlp.up_proj.weight", "[704, 256]"},
                                                        {"model.layers.0.mlp.down_proj.weight", "[256, 704]"},
                                                        {"model.norm.weight", "[256]"},
                                                        {"lm_head.weight", "[300, 256]"}}));
}

TEST(Model, ResidualProjectionsStartSmaller) {
  const auto model = lm::make_model(gpt2_124m());
  for (const auto& layer : model.layers) {
    for (const auto& p : layer->params()) {
      if (p.init.kind != InitKind::normal) continue;
      const bool residual = p.name.ends_with("c_proj.weight");
      EXPECT_DOUBLE_EQ(p.init.std, residual ? 0.02 / std::sqrt(24.0) : 0.02) << p.name;
    }
  }
}

TEST(ModelConfig, RefusesWhatCannotBeAndNamesTheNearest) {
  const ModelConfig good{.family = llama, .layers = 2, .hidden = 64, .heads = 8, .kv_heads = 4, .seq_len = 16, .vocab = 256};
  EXPECT_NO_THROW(lm::complete(good));
  const auto refusal = [&](auto change) -> std::string {
    ModelConfig config = good;
    change(config);
    return refusal_of([&] { lm::make_model(config); });
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal([](auto& c) { c.heads = 7; }),
              HasSubstr("heads (7) do not divide hidden (64): the nearest are heads 8, or hidden 63 or 70"));
  EXPECT_THAT(refusal([](auto& c) { c.kv_heads = 3; }), HasSubstr("the nearest is kv_heads 2"));
  EXPECT_THAT(refusal([](auto& c) { c.hidden = 72, c.heads = 8; }),
              HasSubstr("72 / heads 8 = 9: the nearest is hidden 64 or 80"));
  EXPECT_THAT(refusal([](auto& c) { c.vocab = 0; }), HasSubstr("vocab must be at least 1"));
  EXPECT_THAT(refusal([](auto& c) { c.layers = 0; }), HasSubstr("layers must be at least 1, not 0"));
  EXPECT_THAT(refusal([](auto& c) { c.hidden = -64; }), HasSubstr("hidden must be at least 1, not -64"));
  EXPECT_THAT(refusal([](auto& c) { c.heads = 0; }), HasSubstr("heads must be at least 1"));
  EXPECT_THAT(refusal([](auto& c) { c.kv_heads = -1; }), HasSubstr("kv_heads must be at least 1"));
  EXPECT_THAT(refusal([](auto& c) { c.ffn = -5; }), HasSubstr("ffn must be at least 1"));
  EXPECT_THAT(refusal([](auto& c) { c.seq_len = 0; }), HasSubstr("seq_len must be at least 1"));
  EXPECT_THAT(refusal([](auto& c) { c.hidden = std::int64_t{1} << 60; }), HasSubstr("hidden must be at most"));
  EXPECT_THAT(refusal([](auto& c) { c.norm_eps = -1; }), HasSubstr("norm_eps"));
  EXPECT_THAT(refusal([](auto& c) { c.rope_theta = -1; }), HasSubstr("rope_theta"));
  EXPECT_THAT(refusal([](auto& c) { c.dtype = DType::i32; }), HasSubstr("dtype"));
  EXPECT_THAT(refusal([](auto& c) { c.family = gpt2; }),
              HasSubstr("kv_heads must be 8, not 4 (grouped heads: model gemma, gemma2, gemma3, llama, mistral, mixtral, "
                        "olmo2, phi3, qwen2, qwen3, "
                        "qwen3_moe or smollm3)"));
  EXPECT_THAT(refusal([](auto& c) { c.family = gpt2, c.kv_heads = 0, c.rope_theta = 10000; }),
              HasSubstr("gpt2 rotates nothing: rope_theta must be 0, not 10000 (rotary positions: model gemma, gemma2, gemma3, "
                        "llama, mistral, mixtral, olmo2, "
                        "phi3, qwen2, qwen3, qwen3_moe or smollm3)"));
}

}  // namespace
}  // namespace terrace::test
