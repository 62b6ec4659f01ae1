// The contract of every optimizer under every recipe. A new optimizer needs an oracle (oracles.h) and a line in kOptimizers; a
// new recipe is found by its name.
#include <algorithm>
#include <functional>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <terrace/tests/optimizers/oracles.h>
#include <terrace/tests/optimizers/recipe_cases.h>
#include <terrace/tests/optimizers/test_chunk.h>

namespace terrace::test {
namespace {

struct Case {
  std::string label;
  const char* optimizer;
  OptimizerSettings settings;
  template <class A>
  using Specified = void(const OptimizerSettings&, const UpdateStep&, double, A&, A, A&, A&);
  Specified<float>* in_fp32;
  Specified<double>* in_fp64;
  Specified<Real>* published;
};
template <class Oracle>
Case of(const char* optimizer, OptimizerSettings settings = {}, const char* variant = "") {
  return {std::string(optimizer) + variant,   optimizer,        settings, Oracle::template specified<float>,
          Oracle::template specified<double>, Oracle::published};
}
const std::vector<Case> kOptimizers{
    of<AdamWOracle>("adamw"),
    of<AdamOracle>("adam"),
    of<SgdOracle>("sgd", {.momentum = 0}, "_plain"),
    of<SgdOracle>("sgd", {.momentum = 0.9}, "_momentum"),
    of<SgdOracle>("sgd", {.momentum = 0.8, .nesterov = true}, "_nesterov"),
    of<LionOracle>("lion", {.beta2 = 0.99}),
    of<AdagradOracle>("adagrad", {.eps = 1e-10}),
};

using Param = std::tuple<std::size_t, RecipeCase>;
std::string name_of(const testing::TestParamInfo<Param>& info) {
  const auto& [optimizer, recipe] = info.param;
  auto name = fmt::format("{}_{}_{}", kOptimizers[optimizer].label, recipe.name, terrace::name_of(recipe.dtype));
  std::ranges::replace(name, '-', '_');
  return name;
}

class OptimizerContract : public testing::TestWithParam<Param> {
 protected:
  [[nodiscard]] const Case& optimizer() const { return kOptimizers[std::get<0>(GetParam())]; }
  [[nodiscard]] std::unique_ptr<Optimizer> make(rules::Isa isa = rules::best_isa()) const {
    return make_optimizer(optimizer().optimizer, optimizer().settings, isa);
  }
  [[nodiscard]] TestChunk chunk(std::int64_t elements) const {
    const auto& recipe = std::get<1>(GetParam());
    return {rules::Recipe::of(recipe.dtype, recipe.name, make()->states()), elements};
  }
  [[nodiscard]] static UpdateStep step_of(std::uint64_t t) {
    return {.step = t,
            .learning_rate = 1e-3 * static_cast<double>(t % 7),
            .gradient_scale = t % 2 == 0 ? 0.37 : 1.0,
            .seed = 5,
            .first = t == 1};
  }
  ThreadPool pool_{2};
};

template <class A>
void specify(const Case& optimizer, const UpdateStep& step, double decay, A& w, A g, A& s0, A& s1) {
  if constexpr (std::is_same_v<A, double>)
    optimizer.in_fp64(optimizer.settings, step, decay, w, g, s0, s1);
  else
    optimizer.in_fp32(optimizer.settings, step, decay, w, g, s0, s1);
}

// Checks steps on a chunk against docs/internals/optimizers.md. The second part of the chunk begins at `tensor_element` of its
// tensor. Numbers are read and compared in their stored format.
template <class A>
void expect_specified_steps(const Case& optimizer, const Optimizer& tested, ThreadPool& pool, TestChunk chunk, unsigned steps,
                            const std::function<UpdateStep(std::uint64_t)>& step_of, std::uint64_t tensor_element = 0) {
  draw_weights(chunk, 7);
  const auto n = chunk.elements();
  chunk.parts = {{.first = 0, .count = 64, .gradient_scale = 0.3, .stream = 77, .tensor_element = 1003},
                 {.first = 64, .count = n - 80, .decay = 0, .stream = 78, .tensor_element = tensor_element},
                 {.first = n - 13, .count = 13, .rate = 0.5, .stream = 79, .tensor_element = 6}};
  const auto states = chunk.recipe().states;
  for (unsigned t = 1; t <= steps; ++t) {
    draw_hostile_gradients(chunk, t);
    TestChunk expected = chunk;
    const auto step = step_of(t);
    std::array<std::vector<double>, 2> new_states;
    for (std::size_t k = 0; k < states.size(); ++k)
      for (std::int64_t i = 0; i < n; ++i) new_states[k].push_back(chunk.number(states[k], i));
    for (const auto& part : chunk.parts) {
      auto own = step;
      own.learning_rate *= part.rate;
      own.gradient_scale *= part.gradient_scale;
      for (std::int64_t i = part.first; i < part.first + part.count; ++i) {
        A w = static_cast<A>(chunk.weight(i)), s[2] = {};
        for (std::size_t k = 0; k < states.size() && !step.first; ++k) s[k] = static_cast<A>(chunk.number(states[k], i));
        specify<A>(optimizer, own, part.decay, w, static_cast<A>(chunk.gradient(i)), s[0], s[1]);
        expected.set_updated_weight(i, w, step, part);
        for (std::size_t k = 0; k < states.size(); ++k) new_states[k][static_cast<std::size_t>(i)] = s[k];
      }
    }
    for (std::size_t k = 0; k < states.size(); ++k) expected.set_states(states[k], new_states[k]);
    // The gap between the second and the third part. Only in a copy of the master is it written, because a copy is written
    // whole.
    for (std::int64_t i = n - 16; i < n - 13 && chunk.recipe().copies_master(); ++i) expected.set(ChunkKind::parameter, i, 0);
    tested.update(pool, step, chunk.update());
    for (std::int64_t i = 0; i < n; ++i) {
      const auto same_number = [&](ChunkKind kind) { return same(chunk.number(kind, i), expected.number(kind, i)); };
      for (const auto kind : chunk.recipe().kinds())
        ASSERT_TRUE(same_number(kind)) << "step " << t << ", element " << i << ", " << name_of(kind) << " is "
                                       << chunk.number(kind, i) << " and not " << expected.number(kind, i) << " with gradient "
                                       << chunk.gradient(i);
    }
  }
}

TEST_P(OptimizerContract, HundredStepsGiveTheBitsOfTheSpecificationOnEveryInstructionSet) {
  for (const auto isa : rules::kAllIsas) {
    if (!rules::runs(isa)) continue;
    SCOPED_TRACE(std::string(rules::name_of(isa)));
    const auto tested = make(isa);
    const auto c = chunk(1003);
    if (c.fp64())
      expect_specified_steps<double>(optimizer(), *tested, pool_, c, 100, step_of);
    else
      expect_specified_steps<float>(optimizer(), *tested, pool_, c, 100, step_of);
  }
}

// Tests block numbers of random bits that need more than 32 bits.
TEST_P(OptimizerContract, StepsWithinAGiganticTensorAreTheSpecifiedOnes) {
  for (const auto isa : rules::kAllIsas) {
    if (!rules::runs(isa)) continue;
    const auto c = chunk(1003);
    if (!c.fp64()) expect_specified_steps<float>(optimizer(), *make(isa), pool_, c, 3, step_of, (1ULL << 35) - 512);
  }
}

// Lengths around vector widths and their tails, starting from every kind of state.
TEST_P(OptimizerContract, EveryLengthAndEveryInstructionSetGivesTheSameBits) {
  for (std::int64_t n = 0; n < 140; ++n) {
    std::vector<TestChunk> results;
    for (const auto isa : rules::kAllIsas) {
      if (!rules::runs(isa)) continue;
      auto c = chunk(n);
      draw_weights(c, static_cast<std::uint64_t>(n));
      for (std::uint64_t t = 1; t <= 3; ++t) {
        draw_hostile_gradients(c, t);
        make(isa)->update(pool_, step_of(t), c.update());
      }
      results.push_back(c);
    }
    for (const auto& r : results)
      for (const auto kind : r.recipe().kinds())
        for (std::int64_t i = 0; i < n; ++i)
          ASSERT_TRUE(same(r.number(kind, i), results[0].number(kind, i))) << name_of(kind) << " " << i << " of " << n;
  }
}

// Many consecutive blocks of 8-bit states, as a loop over them processes them: one with an infinity, one with only zeros, and
// parts that begin inside a block or at any position of the random numbers.
TEST_P(OptimizerContract, BlocksInARowGiveTheSameBitsOnEveryInstructionSet) {
  constexpr std::int64_t kBlock = 256, kElements = 11 * kBlock + 100;
  for (const std::uint64_t tensor_element : {0, 64, 7}) {
    std::vector<TestChunk> results;
    std::vector<rules::Isa> isas;
    for (const auto isa : rules::kAllIsas) {
      if (!rules::runs(isa)) continue;
      isas.push_back(isa);
      auto c = chunk(kElements);
      c.parts = {{.first = 0, .count = 5 * kBlock + 64, .stream = 3, .tensor_element = tensor_element},
                 {.first = 5 * kBlock + 64, .count = 6 * kBlock, .decay = 0, .stream = 4}};
      draw_weights(c, 21);
      for (std::uint64_t t = 1; t <= 4; ++t) {
        draw_gradients(c, t);
        for (std::int64_t i = 3 * kBlock; i < 4 * kBlock; ++i) c.set_gradient(i, 0);
        if (t >= 2) c.set_gradient(kBlock + 9, std::numeric_limits<float>::infinity());
        if (t == 3) {  // NaNs that rounding up could turn into zeros
          c.set_gradient(8 * kBlock - 1, std::bit_cast<float>(0x7fffffffU));
          c.set_gradient(8 * kBlock - 5, std::bit_cast<float>(0xffffffffU));
        }
        make(isa)->update(pool_, step_of(t), c.update());
      }
      results.push_back(c);
    }
    for (std::size_t r = 1; r < results.size(); ++r)
      for (const auto kind : results[r].recipe().kinds())
        for (std::int64_t i = 0; i < kElements; ++i)
          ASSERT_TRUE(same(results[r].number(kind, i), results[0].number(kind, i)))
              << rules::name_of(isas.at(r)) << " " << name_of(kind) << " " << i << " of a tensor from " << tensor_element;
  }
}

// Neither threads nor chunk boundaries may change a bit: several blocks, several pools, chunks cut anywhere.
TEST_P(OptimizerContract, NeitherThreadsNorChunksChangeABit) {
  constexpr std::int64_t kElements = 3 * 65536 + 2048;
  const auto whole = [&](int threads) {
    ThreadPool pool(threads);
    auto c = chunk(kElements);
    draw_weights(c, 11);
    for (std::uint64_t t = 1; t <= 2; ++t) {
      draw_gradients(c, t);
      make()->update(pool, step_of(t), c.update());
    }
    return c;
  };
  const auto expected = whole(1);
  for (const int threads : {2, 3}) {
    const auto got = whole(threads);
    for (const auto kind : expected.recipe().kinds()) EXPECT_EQ(got.bytes(kind), expected.bytes(kind)) << threads << " threads";
  }
  for (const std::int64_t size : {2048, 6144, 67584}) {
    std::int64_t at = 0;
    auto rest = chunk(kElements);  // the source of the weights and gradients
    draw_weights(rest, 11);
    std::vector<TestChunk> pieces;
    for (; at < kElements; at += size) {
      pieces.push_back(chunk(size));
      for (std::int64_t i = 0; i < std::min(size, kElements - at); ++i) pieces.back().set_weight(i, rest.weight(at + i));
    }
    for (std::uint64_t t = 1; t <= 2; ++t) {
      draw_gradients(rest, t);
      at = 0;
      for (auto& piece : pieces) {
        const auto count = std::min(size, kElements - at);
        piece.parts = {{.first = 0, .count = count, .tensor_element = static_cast<std::uint64_t>(at)}};
        for (std::int64_t i = 0; i < count; ++i) piece.set_gradient(i, rest.gradient(at + i));
        make()->update(pool_, step_of(t), piece.update());
        at += size;
      }
    }
    for (std::int64_t i = 0; i < kElements; ++i) {
      const auto& piece = pieces[static_cast<std::size_t>(i / size)];
      for (const auto kind : expected.recipe().kinds())
        ASSERT_TRUE(same(piece.number(kind, i % size), expected.number(kind, i)))
            << "chunks of " << size << ", element " << i << ", " << name_of(kind);
    }
  }
}

TEST_P(OptimizerContract, FirstUpdateDoesNotReadTheStates) {
  auto zeroed = chunk(3000), poisoned = chunk(3000);
  for (auto* c : {&zeroed, &poisoned}) {
    draw_weights(*c, 3);
    draw_gradients(*c, 4);
    for (const auto kind : c->recipe().states) std::ranges::fill(c->bytes(kind), c == &zeroed ? std::byte{0} : std::byte{0xff});
    make()->update(pool_, {.step = 1, .learning_rate = 1e-3, .first = true}, c->update());
  }
  for (const auto kind : zeroed.recipe().kinds()) EXPECT_EQ(zeroed.bytes(kind), poisoned.bytes(kind)) << name_of(kind);
}

// Including padding: chunks are written to disk whole, so their bytes must depend only on the updates.
TEST_P(OptimizerContract, FirstUpdateLeavesNothingOfTheStatesMemory) {
  auto zeroed = chunk(70001), poisoned = chunk(70001);
  for (auto* c : {&zeroed, &poisoned}) {
    c->parts = {{.first = 64, .count = 1000}, {.first = 3000, .count = 100}};
    draw_weights(*c, 3);
    draw_gradients(*c, 4);
    for (const auto kind : c->recipe().states) std::ranges::fill(c->bytes(kind), c == &zeroed ? std::byte{0} : std::byte{0xff});
    make()->update(pool_, {.step = 1, .learning_rate = 1e-3, .first = true}, c->update());
  }
  for (const auto kind : zeroed.recipe().states)
    for (std::int64_t i = 0; i < zeroed.elements(); ++i)
      ASSERT_TRUE(same(poisoned.number(kind, i), zeroed.number(kind, i))) << name_of(kind) << ", element " << i;
}

// The memory for the bf16 copy of a master weight may contain anything before an update, so the update must write it
// completely, including padding.
TEST_P(OptimizerContract, CopyOfTheMasterIsWrittenWhole) {
  auto c = chunk(70001);
  if (!c.recipe().copies_master()) return;  // otherwise the parameter is read, and its padding stays
  const auto rounded = [&](float master) {
    return c.recipe().compute == DType::fp16 ? widened_fp16(nearest_fp16(master)) : widened(nearest_ties_away(master));
  };
  for (const auto& parts : {std::vector<UpdatePart>{{.first = 64, .count = 1000}, {.first = 3000, .count = 100}},
                            std::vector<UpdatePart>{{.first = 65500, .count = 100}}, std::vector<UpdatePart>{}})
    for (const bool first : {true, false}) {
      c.parts = parts;
      draw_weights(c, 3);
      draw_gradients(c, 4);
      std::ranges::fill(c.bytes(ChunkKind::parameter), std::byte{0xff});
      make()->update(pool_, {.step = 1, .learning_rate = 1e-3, .first = first}, c.update());
      auto part = parts.begin();
      for (std::int64_t i = 0; i < c.elements(); ++i) {
        while (part != parts.end() && part->first + part->count <= i) ++part;
        const bool padding = part == parts.end() || i < part->first;
        const float expected = padding ? 0.0F : rounded(static_cast<float>(c.weight(i)));
        ASSERT_EQ(c.number(ChunkKind::parameter, i), expected) << "element " << i << (padding ? ", of the padding" : "");
      }
    }
}

// Elements between parts are unused: their gradients may be anything, and their weights do not change.
TEST_P(OptimizerContract, PaddingIsLeftAlone) {
  auto a = chunk(1024), b = chunk(1024);
  for (auto* c : {&a, &b}) {
    draw_weights(*c, 5);
    draw_gradients(*c, 6);
    c->parts = {{.first = 64, .count = 100}, {.first = 192, .count = 300}};
  }
  for (std::int64_t i = 0; i < 1024; ++i)
    if (i < 64 || (i >= 164 && i < 192) || i >= 492) b.set_gradient(i, std::numeric_limits<double>::quiet_NaN());
  const auto before = a;
  for (auto* c : {&a, &b}) make()->update(pool_, {.learning_rate = 1, .first = true}, c->update());
  for (const auto kind : a.recipe().kinds())
    if (kind != ChunkKind::gradient) {
      EXPECT_EQ(a.bytes(kind), b.bytes(kind)) << name_of(kind);
    }
  EXPECT_TRUE(same(a.weight(170), before.weight(170)));
  EXPECT_FALSE(same(a.weight(70), before.weight(70)));
}

// With a stream, the caller's `parts` may be gone before the update runs.
TEST_P(OptimizerContract, EnqueuedUpdatesGiveTheSameBitsInTheStreamsOrder) {
  const auto device = make_cpu_device(pool_);
  const auto stream = device->make_stream("test");
  auto enqueued = chunk(2000), updated = chunk(2000);
  const auto tested = make();
  for (auto* c : {&enqueued, &updated}) {
    draw_weights(*c, 21);
    draw_gradients(*c, 22);
    c->parts = {{.first = 0, .count = 700, .stream = 5}, {.first = 704, .count = 1200, .decay = 0, .tensor_element = 9}};
  }
  for (std::uint64_t t = 1; t <= 2; ++t) {
    tested->update(pool_, step_of(t), updated.update());
    auto chunk = enqueued.update();
    auto parts = enqueued.parts;
    chunk.parts = parts;
    tested->enqueue(*stream, step_of(t), chunk);
    parts.assign(parts.size(), {});
  }
  stream->synchronize();
  for (const auto kind : updated.recipe().kinds()) EXPECT_EQ(enqueued.bytes(kind), updated.bytes(kind)) << name_of(kind);
}

TEST_P(OptimizerContract, NamesItself) {
  EXPECT_EQ(make()->name(), optimizer().optimizer);
  EXPECT_LE(make()->states().size(), 2U);
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerContract,
                         testing::Combine(testing::Range<std::size_t>(0, kOptimizers.size()),
                                          testing::ValuesIn(recipe_cases())),
                         name_of);

// Each update is an eighth of the last unit of a weight of 1 with 24 or 16 bits, so rounding to nearest would never change the
// weight. After 64 steps the mean of 65,536 weights has moved by 8 units, plus or minus sqrt(7 / 65,536) = 0.01.
TEST(StochasticRounding, KeepsSmallUpdatesInTheMean) {
  for (const auto& [recipe, unit] : {std::pair{"split24-8bit", 0x1p-16}, {"stochastic", 0x1p-8}, {"all-bf16", 0x1p-8}}) {
    constexpr std::int64_t kWeights = 65'536;
    const auto sgd = make_optimizer("sgd", {.weight_decay = 0, .momentum = 0});
    TestChunk c(rules::Recipe::of(DType::bf16, recipe, sgd->states()), kWeights);
    for (std::int64_t i = 0; i < kWeights; ++i) {
      c.set_weight(i, 1);
      c.set_gradient(i, 1);
    }
    ThreadPool pool(1);
    for (std::uint64_t t = 1; t <= 64; ++t)
      sgd->update(pool, {.step = t, .learning_rate = unit / 8, .seed = 3, .first = t == 1}, c.update());
    double moved = 0;
    for (std::int64_t i = 0; i < kWeights; ++i) moved += (1 - c.weight(i)) / unit;
    EXPECT_NEAR(moved / kWeights, 8, 0.05) << recipe;
  }
}

// From the known-answer file of Random123, philox4x32 with 7 rounds.
TEST(RandomHalves, KnownAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  constexpr std::uint32_t kAll = 0xffffffff;
  EXPECT_EQ(philox7({0, 0, 0, 0}, {0, 0}), (Words{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
  EXPECT_EQ(philox7({kAll, kAll, kAll, kAll}, {kAll, kAll}), (Words{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}));
  EXPECT_EQ(philox7({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}));
}

// The suites above skip instruction sets that this processor does not have; this test makes that visible.
class InstructionSet : public testing::TestWithParam<rules::Isa> {};
TEST_P(InstructionSet, RunsHere) {
  if (!rules::runs(GetParam())) GTEST_SKIP() << "this processor does not run " << rules::name_of(GetParam());
  EXPECT_GE(rules::best_isa(), GetParam());
}
INSTANTIATE_TEST_SUITE_P(All, InstructionSet, testing::ValuesIn(rules::kAllIsas),
                         [](const auto& test) { return std::string(rules::name_of(test.param)); });

// The specification agrees with the published formula.
class Published : public testing::TestWithParam<std::size_t> {};

// The largest deviation of a weight from the published formula after 100 steps.
double worst_error(const Case& c, DType dtype) {
  ThreadPool pool(2);
  const auto tested = make_optimizer(c.optimizer, c.settings);
  TestChunk chunk(rules::Recipe::of(dtype, "fp32", tested->states()), 1003);
  draw_weights(chunk, 7);
  std::vector<Real> w(1003), m(1003), v(1003);
  for (std::int64_t i = 0; i < 1003; ++i) w[static_cast<std::size_t>(i)] = chunk.weight(i);
  for (unsigned t = 1; t <= 100; ++t) {
    draw_gradients(chunk, 1000 + t);
    const UpdateStep step{.step = t, .learning_rate = 1e-3 * t / 100, .gradient_scale = 0.37, .first = t == 1};
    tested->update(pool, step, chunk.update());
    for (std::size_t i = 0; i < w.size(); ++i)
      c.published(c.settings, step, 1, w[i], chunk.gradient(static_cast<std::int64_t>(i)), m[i], v[i]);
  }
  Real worst = 0;
  for (std::size_t i = 0; i < w.size(); ++i)
    worst = std::max(worst, std::abs(w[i] - static_cast<Real>(chunk.weight(static_cast<std::int64_t>(i)))));
  return static_cast<double>(worst);
}

// A weight below 1 is rounded three times per step (the decay factor, its product, the difference): 3 u. The update is at most
// about 2 lr. Its relative error comes from ten rounded operations and the state: each of the last 1/(1−β1) = 10 steps leaves 3
// u of the largest gradient, which is sqrt(3) times the root mean square; in total below 64 u.
TEST_P(Published, IsWhatTheSpecificationComputes) {
  const auto& c = kOptimizers[GetParam()];
  const auto bound = [](double u) { return 100 * (3 * u + 1e-3 * 64 * u); };
  EXPECT_LE(worst_error(c, DType::fp64), bound(std::ldexp(1.0, -53)));
  EXPECT_LE(worst_error(c, DType::fp32), bound(std::ldexp(1.0, -24)));
}
INSTANTIATE_TEST_SUITE_P(All, Published, testing::Range<std::size_t>(0, kOptimizers.size()),
                         [](const auto& test) { return kOptimizers[test.param].label; });

}  // namespace
}  // namespace terrace::test
