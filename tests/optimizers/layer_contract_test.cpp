// The contract of every optimizer that sees whole layers. A new one needs an oracle (layer_oracles.h) and a line in
// kOptimizers.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/core/base/error.h>
#include <terrace/tests/optimizers/layer_oracles.h>
#include <terrace/tests/optimizers/layer_specification.h>
#include <terrace/tests/optimizers/recipe_cases.h>
#include <terrace/tests/optimizers/test_layer.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

struct Case {
  const char* label;
  const char* optimizer;
  OptimizerSettings settings;
  void (*publish)(const OptimizerSettings&, const UpdateStep&, LayerOracle&, Numbers);
};
const std::vector<Case> kOptimizers{
    {"lamb", "lamb", {}, publish_lamb},
    {"adafactor", "adafactor", {}, publish_adafactor},
    {"muon", "muon", {.momentum = 0.95}, publish_muon},
    {"muon_nesterov", "muon", {.momentum = 0.95, .nesterov = true}, publish_muon},
};

// Matrices of both orientations, one of them spanning many blocks of 4,096, vectors, an embedding, and parameters with their
// own rates.
std::vector<UpdateTensor> all_tensors() {
  return {{.rows = 7, .columns = 40, .hidden = true, .stream = 1},
          {.rows = 1, .columns = 65, .hidden = true, .decay = 0, .stream = 2},
          {.rows = 66, .columns = 70, .hidden = true, .stream = 3},
          {.rows = 61, .columns = 9, .hidden = true, .rate = 0.5, .stream = 4},
          {.rows = 30, .columns = 20, .rate = 2, .decay = 0.5, .stream = 5},
          {.rows = 1, .columns = 5000, .stream = 6}};
}

class LayerContract : public testing::TestWithParam<std::size_t> {
 protected:
  [[nodiscard]] const Case& optimizer() const { return kOptimizers[GetParam()]; }
  [[nodiscard]] std::unique_ptr<Optimizer> make(rules::Isa isa = rules::best_isa()) const {
    return make_optimizer(optimizer().optimizer, optimizer().settings, isa);
  }
  [[nodiscard]] TestLayer layer(DType dtype, std::string_view recipe = "fp32", std::int64_t chunk = 4096,
                                std::int64_t ranks = 1) const {
    return {*make(), dtype, recipe, all_tensors(), chunk, ranks};
  }
  [[nodiscard]] static UpdateStep step_of(std::uint64_t t) {
    return {.step = t, .learning_rate = 1e-3 * (1 + t % 3), .gradient_scale = 0.37, .seed = 5, .first = t == 1};
  }
  struct Machine {
    explicit Machine(int threads) : pool(threads), device(make_cpu_device(pool)), stream(device->make_stream("test")) {}
    ThreadPool pool;
    std::unique_ptr<Device> device;
    std::unique_ptr<Stream> stream;
  };
  // Runs `steps` steps. The other arguments, except dtype and recipe, must not change the result.
  [[nodiscard]] TestLayer run(DType dtype, std::string_view recipe, std::int64_t chunk, int threads, rules::Isa isa,
                              std::int64_t ranks = 1, unsigned steps = 4) const {
    Machine machine(threads);
    auto l = layer(dtype, recipe, chunk, ranks);
    draw_layer_weights(l, 7);
    for (unsigned t = 1; t <= steps; ++t) {
      draw_layer_gradients(l, t);
      l.update(*make(isa), *machine.stream, step_of(t));
    }
    return l;
  }
  Machine machine_{2};
};

void expect_same_weights(const TestLayer& got, const TestLayer& expected, const std::string& what) {
  for (std::size_t t = 0; t < expected.tensors.size(); ++t)
    for (std::int64_t i = 0; i < expected.tensors[t].elements(); ++i)
      ASSERT_TRUE(same(got.weight(t, i), expected.weight(t, i))) << what << ": tensor " << t << ", element " << i << " is "
                                                                 << got.weight(t, i) << " and not " << expected.weight(t, i);
}

// The largest deviation of a weight from the published formula after 100 steps, relative to the largest change of any weight.
double worst_error(const Case& c, const Optimizer& tested, Stream& stream, TestLayer l) {
  draw_layer_weights(l, 7);
  std::vector<LayerOracle> oracles;
  std::vector<Numbers> first;
  for (std::size_t t = 0; t < l.tensors.size(); ++t) {
    auto& o = oracles.emplace_back(l.tensors[t]);
    for (std::size_t i = 0; i < o.w.size(); ++i) o.w[i] = l.weight(t, static_cast<std::int64_t>(i));
    first.push_back(o.w);
  }
  for (unsigned k = 1; k <= 100; ++k) {
    draw_layer_gradients(l, k);
    const UpdateStep step{.step = k, .learning_rate = 2e-3, .gradient_scale = 0.37, .first = k == 1};
    l.update(tested, stream, step);
    for (std::size_t t = 0; t < oracles.size(); ++t) {
      Numbers g(oracles[t].w.size());
      for (std::size_t i = 0; i < g.size(); ++i) g[i] = step.gradient_scale * l.gradient(t, static_cast<std::int64_t>(i));
      c.publish(c.settings, step, oracles[t], g);
    }
  }
  double worst = 0, furthest = 0;
  for (std::size_t t = 0; t < oracles.size(); ++t)
    for (std::size_t i = 0; i < oracles[t].w.size(); ++i) {
      worst = std::max(worst, std::abs(oracles[t].w[i] - l.weight(t, static_cast<std::int64_t>(i))));
      furthest = std::max(furthest, std::abs(oracles[t].w[i] - first[t][i]));
    }
  EXPECT_GT(furthest, 0.01) << "nothing was updated that could be wrong";
  return worst / furthest;
}

// Five iterations of the polynomial enlarge the smallest singular values, and with them rounding errors, by up to 3.4445⁵ =
// 485.
TEST_P(LayerContract, HundredStepsAreThoseOfThePublishedFormula) {
  const auto tested = make();
  EXPECT_LE(worst_error(optimizer(), *tested, *machine_.stream, layer(DType::fp64)), 1e-11);
  EXPECT_LE(worst_error(optimizer(), *tested, *machine_.stream, layer(DType::fp32)), 2e-4);
}

// Checks steps on a layer against docs/internals/optimizers.md. Numbers are read and compared in their stored format.
template <class A>
void expect_specified_steps(const Case& c, const Optimizer& tested, Device& device, Stream& stream, TestLayer l,
                            const std::function<UpdateStep(std::uint64_t)>& step_of) {
  LayerSpecification<A> specification(c.optimizer, c.settings, device.math(), stream);
  draw_layer_weights(l, 7);
  std::vector<std::vector<A>> packed(l.tensors.size());
  const auto chunk_elements = l.shape().chunk_elements;
  std::vector<ChunkKind> states;  // states with one number per element
  for (const auto kind : l.recipe().states)
    if (!rules::is_packed(l.recipe().format_of(kind))) states.push_back(kind);
  for (std::uint64_t t = 1; t <= 14; ++t) {
    draw_layer_gradients(l, t);
    draw_hostile_layer_gradients<A>(l, t);
    const auto step = step_of(t);
    auto expected = l;
    std::map<std::pair<ChunkKind, std::size_t>, std::vector<double>> moved;  // changed states of a chunk
    for (const auto kind : states)
      for (std::size_t chunk = 0; chunk < l.chunks().size(); ++chunk)
        moved[{kind, chunk}].resize(static_cast<std::size_t>(chunk_elements));
    for (std::size_t k = 0; k < l.tensors.size(); ++k) {
      const auto& tensor = l.tensors[k];
      const auto n = static_cast<std::size_t>(tensor.elements());
      SpecifiedTensor<A> x{tensor, std::vector<A>(n), std::vector<A>(n), std::vector<A>(n), std::vector<A>(n), packed[k]};
      const auto each = [&](auto&& use) {
        for (std::size_t i = 0; i < n; ++i) {
          const auto at = tensor.first + static_cast<std::int64_t>(i);
          use(i, static_cast<std::size_t>(at / chunk_elements), at % chunk_elements);
        }
      };
      const auto moments = [&](ChunkKind kind) -> std::vector<A>& { return kind == ChunkKind::first_moment ? x.m : x.v; };
      each([&](std::size_t i, std::size_t chunk, std::int64_t at) {
        x.w[i] = static_cast<A>(l.chunks()[chunk].weight(at));
        x.g[i] = static_cast<A>(l.chunks()[chunk].gradient(at));
        for (const auto kind : states)
          if (!step.first) moments(kind)[i] = static_cast<A>(l.chunks()[chunk].number(kind, at));
      });
      specification.step(step, x);
      packed[k] = x.packed;
      each([&](std::size_t i, std::size_t chunk, std::int64_t at) {
        expected.chunks()[chunk].set_updated_weight(at, x.w[i], step,
                                                    {.first = at, .count = 1, .stream = tensor.stream, .tensor_element = i});
        for (const auto kind : states) moved[{kind, chunk}][static_cast<std::size_t>(at)] = moments(kind)[i];
      });
    }
    for (const auto& [of, numbers] : moved) expected.chunks()[of.second].set_states(of.first, numbers);
    l.update(tested, stream, step);
    expect_same_weights(l, expected, fmt::format("step {}", t));
    for (const auto kind : states)
      for (const auto& tensor : l.tensors)
        for (auto at = tensor.first; at < tensor.first + tensor.elements(); ++at) {
          const auto chunk = static_cast<std::size_t>(at / chunk_elements);
          const double got = l.chunks()[chunk].number(kind, at % chunk_elements),
                       wanted = expected.chunks()[chunk].number(kind, at % chunk_elements);
          ASSERT_TRUE(same(got, wanted)) << "step " << t << ", " << name_of(kind) << " " << at << " is " << got << " and not "
                                         << wanted;
        }
  }
}

TEST_P(LayerContract, StepsGiveTheBitsOfTheSpecification) {
  for (const auto& kept : recipe_cases()) {
    SCOPED_TRACE(fmt::format("{} {}", terrace::name_of(kept.dtype), kept.name));
    if (kept.dtype == DType::fp64)
      expect_specified_steps<double>(optimizer(), *make(), *machine_.device, *machine_.stream, layer(kept.dtype, kept.name),
                                     step_of);
    else
      expect_specified_steps<float>(optimizer(), *make(), *machine_.device, *machine_.stream, layer(kept.dtype, kept.name),
                                    step_of);
    if (HasFatalFailure()) return;
  }
}

TEST_P(LayerContract, NeitherThreadsNorChunksNorInstructionSetsChangeABit) {
  for (const auto& kept : recipe_cases()) {
    SCOPED_TRACE(fmt::format("{} {}", terrace::name_of(kept.dtype), kept.name));
    const auto expected = run(kept.dtype, kept.name, 1 << 16, 1, rules::best_isa());
    for (const int threads : {1, 2, 3})
      expect_same_weights(run(kept.dtype, kept.name, 2048, threads, rules::best_isa()), expected,
                          fmt::format("{} threads", threads));
    expect_same_weights(run(kept.dtype, kept.name, 6144, 2, rules::best_isa()), expected, "chunks of 6144");
    for (const auto isa : rules::kAllIsas)
      if (rules::runs(isa)) expect_same_weights(run(kept.dtype, kept.name, 4096, 2, isa), expected, std::string(name_of(isa)));
  }
}

TEST_P(LayerContract, RanksThatShareALayerGiveTheBitsOfOne) {
  for (const auto& kept : recipe_cases()) {
    const auto expected = run(kept.dtype, kept.name, 1 << 16, 1, rules::best_isa());
    for (const std::int64_t ranks : {2, 3, 4, 5})
      for (const std::int64_t chunk : {4096, 8192})
        expect_same_weights(
            run(kept.dtype, kept.name, chunk, 2, rules::best_isa(), ranks), expected,
            fmt::format("{} {}, {} ranks, chunks of {}", terrace::name_of(kept.dtype), kept.name, ranks, chunk));
  }
}

// One rank exchanges nothing; several ranks exchange the same places, all inside the scratch.
TEST_P(LayerContract, ExchangesLieInTheScratchOfEveryRank) {
  EXPECT_TRUE(make()->layer_unit()->needs(layer(DType::fp32).shape()).exchanges.empty());
  const auto l = layer(DType::fp32, "fp32", 4096, 3);
  const auto needs = make()->layer_unit()->needs(l.shape());
  EXPECT_FALSE(needs.exchanges.empty());
  std::uint64_t end = 0;
  auto ascending = needs.exchanges;
  std::ranges::sort(ascending, {}, &ScratchExchange::offset);
  for (const auto& e : ascending) {
    EXPECT_GE(e.offset, end);
    end = e.offset + e.bytes;
    if (e.way == ScratchExchange::Way::gather) {
      EXPECT_EQ(e.bytes, 3U * 4096 * sizeof(float));
    }
  }
  EXPECT_LE(end, needs.scratch_bytes);
  for (const std::int64_t rank : {1, 2}) {
    const auto other = make()->layer_unit()->needs(l.shape(rank));
    EXPECT_EQ(other.exchanges, needs.exchanges);
    EXPECT_EQ(other.scratch_bytes, needs.scratch_bytes);
    EXPECT_EQ(other.packed_numbers, needs.packed_numbers);
  }
}

// For any number of ranks, each number of the packed state belongs to the same element, row or column, and none is missing.
TEST_P(LayerContract, EveryPackedNumberHasAMeaning) {
  using Number = std::tuple<std::size_t, PackedRange::Of, std::int64_t>;
  const auto numbers_of = [&](std::int64_t ranks) {
    std::map<Number, int> all;
    const auto l = layer(DType::fp32, "fp32", 4096, ranks);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto needs = make()->layer_unit()->needs(l.shape(rank));
      std::uint64_t here = 0;
      for (const auto& range : needs.packed) {
        for (std::int64_t i = 0; i < range.count; ++i) ++all[{range.tensor, range.of, range.first + i}];
        here += static_cast<std::uint64_t>(range.count);
      }
      EXPECT_LE(here, needs.packed_numbers);
    }
    return all;
  };
  const bool whole = make()->layer_unit()->second_moment == Packed::whole;
  const auto one = numbers_of(1);
  EXPECT_EQ(one.empty(), make()->layer_unit()->second_moment == Packed::none);
  for (const auto& [number, count] : one) EXPECT_EQ(count, 1);
  for (const std::int64_t ranks : {2, 3}) {
    const auto shared = numbers_of(ranks);
    EXPECT_EQ(one.size(), shared.size());
    for (const auto& [number, count] : shared) {
      EXPECT_TRUE(one.contains(number));
      EXPECT_EQ(count, whole ? ranks : 1);
    }
  }
}

// With a recipe of smaller states, the weights after a few steps are close to those with fp32 states.
TEST_P(LayerContract, RecipesAgreeWithPlainStates) {
  const auto plain = run(DType::bf16, "fp32", 4096, 2, rules::best_isa());
  expect_same_weights(run(DType::bf16, "split", 4096, 2, rules::best_isa()), plain, "split");
  for (const auto* recipe : {"bf16", "8bit"}) {
    const auto other = run(DType::bf16, recipe, 4096, 2, rules::best_isa());
    double difference = 0, all = 0;
    for (std::size_t t = 0; t < plain.tensors.size(); ++t)
      for (std::int64_t i = 0; i < plain.tensors[t].elements(); ++i) {
        difference += std::abs(other.weight(t, i) - plain.weight(t, i));
        all += std::abs(plain.weight(t, i));
      }
    EXPECT_LE(difference, 2e-3 * all) << recipe;
  }
}

TEST_P(LayerContract, FirstUpdateDoesNotReadTheStates) {
  auto zeroed = layer(DType::fp32), poisoned = layer(DType::fp32);
  for (auto* l : {&zeroed, &poisoned}) {
    draw_layer_weights(*l, 3);
    for (auto& chunk : l->chunks())
      for (const auto kind : l->recipe().states)
        std::ranges::fill(chunk.bytes(kind), l == &zeroed ? std::byte{0} : std::byte{0xff});
    for (std::uint64_t t = 1; t <= 2; ++t) {
      draw_layer_gradients(*l, t);
      l->update(*make(), *machine_.stream, step_of(t));
    }
  }
  expect_same_weights(poisoned, zeroed, "states of NaN");
}

// Finite gradients give finite weights; non-finite ones only affect their own tensor.
TEST_P(LayerContract, HostileGradientsStayWhereTheyAre) {
  std::vector<std::pair<DType, double>> all{{DType::fp64, 1e200}};
  for (const auto value : hostile_numbers<float>()) all.emplace_back(DType::fp32, value);
  for (const auto& [dtype, value] : all) {
    SCOPED_TRACE(fmt::format("gradient {}", value));
    auto l = layer(dtype), calm = layer(dtype);
    for (auto* each : {&l, &calm}) {
      draw_layer_weights(*each, 7);
      for (std::uint64_t t = 1; t <= 3; ++t) {
        draw_layer_gradients(*each, t);
        if (each == &l && t == 2)
          for (const std::int64_t i : {0, 11, 70}) each->set_gradient(2, i, value);
        auto step = step_of(t);
        step.gradient_scale = 0.25;  // so that a momentum of the greatest number does not overflow
        each->update(*make(), *machine_.stream, step);
      }
    }
    for (std::size_t t = 0; t < l.tensors.size(); ++t)
      for (std::int64_t i = 0; i < l.tensors[t].elements(); ++i) {
        if (t != 2) {
          ASSERT_TRUE(same(l.weight(t, i), calm.weight(t, i))) << "tensor " << t << ", element " << i;
        } else if (std::isfinite(value)) {
          ASSERT_TRUE(std::isfinite(l.weight(t, i))) << "element " << i;
        }
      }
  }
}

TEST_P(LayerContract, ATensorThatIsZeroWithoutGradientStays) {
  auto l = layer(DType::fp32);
  draw_layer_weights(l, 7);
  for (std::int64_t i = 0; i < l.tensors[2].elements(); ++i) l.set_weight(2, i, 0);
  for (std::uint64_t t = 1; t <= 3; ++t) {
    draw_layer_gradients(l, t);
    for (std::int64_t i = 0; i < l.tensors[2].elements(); ++i) l.set_gradient(2, i, 0);
    l.update(*make(), *machine_.stream, step_of(t));
  }
  for (std::int64_t i = 0; i < l.tensors[2].elements(); ++i) ASSERT_EQ(l.weight(2, i), 0) << i;
}

TEST_P(LayerContract, NeedsCoverWhatIsUsedAndNotMuchMore) {
  const auto l = layer(DType::fp32);
  const auto needs = make()->layer_unit()->needs(l.shape());
  const auto run = static_cast<std::uint64_t>(l.shape().run_elements) * 4;
  EXPECT_GE(needs.scratch_bytes, run);
  EXPECT_LE(needs.scratch_bytes, 4 * run);
  EXPECT_EQ(make()->layer_unit()->second_moment != Packed::none, needs.packed_numbers != 0);
}

TEST_P(LayerContract, RefusesWhatDoesNotGoTogether) {
  const auto refused = [&](auto change, const char* words) {
    auto l = layer(DType::fp32);
    UpdateStep step{.step = 1, .learning_rate = 1e-3, .first = true};
    change(l, step);
    EXPECT_THAT(refusal_of([&] { l.update(*make(), *machine_.stream, step); }),
                testing::AllOf(testing::HasSubstr(words), testing::HasSubstr(optimizer().optimizer)));
  };
  refused([](TestLayer&, UpdateStep& s) { s.step = 0; }, "count from 1");
  refused([](TestLayer&, UpdateStep& s) { s.learning_rate = -1; }, "learning rate");
  refused([](TestLayer& l, UpdateStep&) { l.tensors[1].rate = -1; }, "rate of a part");
  refused([](TestLayer& l, UpdateStep&) { l.tensors[1].first = 3; }, "ascending order");
  refused([](TestLayer& l, UpdateStep&) { l.chunks().back() = TestChunk(l.recipe(), 64); }, "64 elements");
  refused([](TestLayer& l, UpdateStep&) { l.tensors.back().rows += 100; }, "is not within the");
  refused([](TestLayer& l, UpdateStep&) { l.tensors.front().first = -64; }, "is not within the");
  refused([](TestLayer& l, UpdateStep&) { l.tensors[1].gradient_scale = std::nan(""); }, "gradient scale of a tensor is nan");
  using Packing = std::vector<Stored>;
  refused([](TestLayer& l, UpdateStep&) { l.spoil = [](LayerUpdate& u, Packing&) { u.scratch = nullptr; }; }, "is missing");
  if (make()->layer_unit()->second_moment != Packed::none) {
    refused([](TestLayer& l, UpdateStep&) { l.offer_packed(1); }, "packed state");
    refused([](TestLayer& l,
               UpdateStep&) { l.spoil = [](LayerUpdate&, Packing& p) { p.back().format = rules::Format::packed64; }; },
            "packed state is packed64");
    refused([](TestLayer& l, UpdateStep&) { l.spoil = [](LayerUpdate&, Packing& p) { p.back().data = nullptr; }; },
            "packed state is missing");
  }
  auto shared = layer(DType::fp32, "fp32", 2048, 2);
  EXPECT_THROW(shared.update(*make(), *machine_.stream, {.step = 1, .learning_rate = 1e-3, .first = true}), Error);
  TestChunk chunk(rules::Recipe::of(DType::fp32, "fp32", make()->states()), 8);
  EXPECT_THROW(make()->update(machine_.pool, {}, chunk.update()), Error);
  OptimizerSettings settings;
  settings.weight_decay = -1;
  EXPECT_THROW(make_optimizer(optimizer().optimizer, settings), Error);
}

INSTANTIATE_TEST_SUITE_P(All, LayerContract, testing::Range<std::size_t>(0, kOptimizers.size()),
                         [](const auto& test) { return std::string(kOptimizers[test.param].label); });

TEST(LayerOptimizers, EachHasAnOracle) {
  for (const auto& known : optimizers()) {
    const bool tested = std::ranges::any_of(kOptimizers, [&](const Case& c) { return c.optimizer == known.name; });
    EXPECT_EQ(make_optimizer(known.name, {})->layer_unit().has_value(), tested) << known.name;
  }
}

// After orthogonalisation all singular values are near 1, so the matrix of directions has about the norm of an orthogonal
// matrix.
TEST(Muon, MovesAMatrixByAnOrthogonalOne) {
  ThreadPool pool(2);
  const auto device = make_cpu_device(pool);
  const auto stream = device->make_stream("test");
  const auto muon = make_optimizer("muon", {.weight_decay = 0});
  TestLayer l(*muon, DType::fp32, "fp32", {{.rows = 48, .columns = 96, .hidden = true}}, 2048);
  draw_layer_gradients(l, 1);
  l.update(*muon, *stream, {.step = 1, .learning_rate = 1, .first = true});
  double squares = 0;
  for (std::int64_t i = 0; i < 48 * 96; ++i) squares += l.weight(0, i) * l.weight(0, i);
  const double mean_singular = std::sqrt(squares / 48) / (0.2 * std::sqrt(96.0));
  EXPECT_GT(mean_singular, 0.7);
  EXPECT_LT(mean_singular, 1.25);
}

}  // namespace
}  // namespace terrace::test
