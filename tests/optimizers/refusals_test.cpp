// Invalid settings, steps and arrays give typed errors that explain the fault.
#include <functional>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/core/base/error.h>
#include <terrace/optimizers/precision_warnings.h>
#include <terrace/tests/optimizers/test_chunk.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

void expect_refused(const std::function<void()>& f, const std::string& words) {
  EXPECT_THAT(refusal_of(f), testing::HasSubstr(words));
}

class Refuses : public testing::TestWithParam<std::string> {
 protected:
  void expect_setting_refused(double OptimizerSettings::*field, double value, const char* words) const {
    OptimizerSettings settings;
    settings.*field = value;
    expect_refused([&] { make_optimizer(GetParam(), settings); }, words);
    expect_refused([&] { make_optimizer(GetParam(), settings); }, GetParam());
  }
  ThreadPool pool_{1};
};

TEST_P(Refuses, StepsAndRatesOutOfRange) {
  const auto optimizer = make_optimizer(GetParam(), {});
  TestChunk chunk(rules::Recipe::of(DType::fp32, "fp32", optimizer->states()), 8);
  const auto update = [&](UpdateStep step) { return [&, step] { optimizer->update(pool_, step, chunk.update()); }; };
  expect_refused(update({.step = 0, .learning_rate = 1e-3}), "count from 1");
  for (const double bad : {-1.0, kNan, kInfinity}) expect_refused(update({.learning_rate = bad}), "learning rate");
  for (const double bad : {kNan, kInfinity})
    expect_refused(update({.learning_rate = 1, .gradient_scale = bad}), "gradient scale");
  for (const double bad : {-0.1, kNan, kInfinity}) {
    expect_setting_refused(&OptimizerSettings::weight_decay, bad, "weight decay");
    chunk.parts = {{.first = 0, .count = 8, .rate = bad}};
    expect_refused(update({.learning_rate = 1}), "rate of a part");
    chunk.parts = {{.first = 0, .count = 8, .decay = bad}};
    expect_refused(update({.learning_rate = 1}), "decay of a part");
  }
}

TEST_P(Refuses, ArraysThatDoNotMatch) {
  const auto optimizer = make_optimizer(GetParam(), {});
  TestChunk plain(rules::Recipe::of(DType::fp32, "fp32", optimizer->states()), 8);
  TestChunk mixed(rules::Recipe::of(DType::bf16, "fp32", optimizer->states()), 8);
  TestChunk wide(rules::Recipe::of(DType::fp64, "fp32", optimizer->states()), 8);
  const auto with = [&](TestChunk& chunk, auto change) {
    return [&, change] {
      auto update = chunk.update();
      change(update);
      optimizer->update(pool_, {.learning_rate = 1e-3}, update);
    };
  };
  expect_refused(with(plain, [&](ChunkUpdate& u) { u.gradient.elements = 7; }), "gradient has 7 elements");
  expect_refused(with(plain, [&](ChunkUpdate& u) { u.gradient.data = nullptr; }), "gradient is missing");
  expect_refused(with(plain, [&](ChunkUpdate& u) { u.gradient = wide.stored(ChunkKind::gradient); }), "gradient is fp64");
  expect_refused(with(wide, [&](ChunkUpdate& u) { u.gradient = plain.stored(ChunkKind::gradient); }), "gradient is fp32");
  expect_refused(with(plain, [&](ChunkUpdate& u) { u.parameter = {}; }), "weight is none");
  expect_refused(with(plain, [&](ChunkUpdate& u) { u.master = plain.stored(ChunkKind::parameter); }), "master weight is fp32");
  expect_refused(with(mixed, [&](ChunkUpdate& u) { u.master.elements = 9; }), "master weight has 9 elements");
  const std::size_t states = optimizer->states().size();
  for (std::size_t i = 0; i < 2; ++i) {
    const auto* const name = i == 0 ? "first state" : "second state";
    if (i < states) {
      expect_refused(with(plain, [&](ChunkUpdate& u) { u.states[i] = {}; }), std::string(name) + " is none");
      expect_refused(with(plain, [&](ChunkUpdate& u) { u.states[i].format = rules::Format::fp64; }),
                     std::string(name) + " is fp64");
      expect_refused(with(plain, [&](ChunkUpdate& u) { u.states[i].elements = 7; }), std::string(name) + " has 7 elements");
      // Unsigned codes would lose the sign of a first moment; with signed codes, a small second moment could become zero.
      const bool has_sign = optimizer->states()[i] == ChunkKind::first_moment;
      expect_refused(with(plain,
                          [&](ChunkUpdate& u) {
                            u.states[i].format = has_sign ? rules::Format::dynamic8_unsigned : rules::Format::dynamic8;
                          }),
                     std::string(name) + " is dynamic8" + (has_sign ? "-unsigned" : ""));
    } else {
      expect_refused(with(plain, [&](ChunkUpdate& u) { u.states[i] = plain.stored(ChunkKind::parameter); }), std::string(name));
    }
  }
  plain.parts = {{.first = 0, .count = 9}};
  expect_refused(with(plain, [](ChunkUpdate&) {}), "ascending order");
  plain.parts = {{.first = 0, .count = 4}, {.first = 3, .count = 4}};
  expect_refused(with(plain, [](ChunkUpdate&) {}), "ascending order");
  TestChunk empty(rules::Recipe::of(DType::fp32, "fp32", optimizer->states()), 8);
  empty.parts.clear();
  const auto before = empty.bytes(ChunkKind::parameter);
  optimizer->update(pool_, {.learning_rate = 1e-3}, empty.update());  // an empty update is not an error
  EXPECT_EQ(empty.bytes(ChunkKind::parameter), before);
}

std::vector<std::string> all_optimizers() {
  std::vector<std::string> names;
  for (const auto& optimizer : optimizers())
    if (!make_optimizer(optimizer.name, {})->layer_unit()) names.emplace_back(optimizer.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, Refuses, testing::ValuesIn(all_optimizers()), [](const auto& test) { return test.param; });

void expect_refused(const char* optimizer, double OptimizerSettings::*field, std::initializer_list<double> values,
                    const char* words) {
  for (const double value : values) {
    OptimizerSettings settings;
    settings.*field = value;
    expect_refused([&] { make_optimizer(optimizer, settings); }, words);
  }
}

TEST(OptimizerSettings, OutOfRangeAreRefused) {
  using S = OptimizerSettings;
  const std::initializer_list<double> no_fraction{-0.1, 1.0, 0.99999999999, 2.0, kNan},
      no_eps{0.0, -1e-8, 1e-50, kNan, kInfinity};
  for (const auto* name : {"adamw", "adam", "lion"}) {
    expect_refused(name, &S::beta1, no_fraction, "beta1");
    expect_refused(name, &S::beta2, no_fraction, "beta2");
  }
  for (const auto* name : {"adamw", "adam", "adagrad"}) expect_refused(name, &S::eps, no_eps, "eps");
  expect_refused("sgd", &S::momentum, no_fraction, "momentum");
  expect_refused([] { make_optimizer("sgd", {.momentum = 0, .nesterov = true}); }, "Nesterov");
}

TEST(Recipes, ThatDoNotGoWithADtypeAreRefused) {
  for (const auto* name : {"split", "split-8bit", "split24-8bit", "stochastic", "all-bf16"})
    for (const auto dtype : {DType::fp32, DType::fp16})
      expect_refused([&] { (void)rules::Recipe::of(dtype, name); }, "`dtype` bf16");
  for (const auto* name : {"bf16", "8bit", "split", "stochastic"})
    expect_refused([&] { (void)rules::Recipe::of(DType::fp64, name); }, std::string("recipe ") + name);
}

TEST(Recipes, SayTheirBytes) {
  const auto bytes = [](DType dtype, const char* name) {
    const auto r = rules::Recipe::of(dtype, name);
    std::uint64_t sum = 0;
    for (const auto kind : r.kinds()) sum += r.chunk_bytes(kind, 1 << 20);
    return sum;
  };
  constexpr std::uint64_t n = 1 << 20;
  EXPECT_EQ(bytes(DType::fp32, "fp32"), 16 * n);
  EXPECT_EQ(bytes(DType::bf16, "fp32"), 18 * n);
  EXPECT_EQ(bytes(DType::bf16, "bf16"), 14 * n);
  EXPECT_EQ(bytes(DType::fp16, "fp32"), 18 * n);
  EXPECT_EQ(bytes(DType::fp16, "bf16"), 14 * n);
  EXPECT_EQ(bytes(DType::bf16, "8bit"), 10 * n + 2 * (n + n / 64));
  EXPECT_EQ(bytes(DType::bf16, "split"), 16 * n);
  EXPECT_EQ(bytes(DType::bf16, "split-8bit"), 8 * n + 2 * (n + n / 64));
  EXPECT_EQ(bytes(DType::bf16, "split24-8bit"), 2 * n + 3 * n + 2 * (n + n / 64));
  EXPECT_EQ(bytes(DType::bf16, "stochastic"), 10 * n);
  EXPECT_EQ(bytes(DType::bf16, "all-bf16"), 8 * n);
  EXPECT_EQ(rules::Recipe::of(DType::fp32, "8bit").chunk_bytes(ChunkKind::first_moment, 2048), 4096U);  // whole pages
}

// Settings whose changes are rounded away by a recipe's formats are accepted with a warning.
TEST(PrecisionWarnings, NameWhatIsRoundedAway) {
  const auto warnings = [](const char* recipe, const char* optimizer, double beta2, std::uint64_t micro_batches) {
    const auto states = make_optimizer(optimizer, {})->states();
    return rules::precision_warnings(rules::Recipe::of(DType::bf16, recipe, states), optimizer, {.beta2 = beta2},
                                     micro_batches);
  };
  using testing::ElementsAre, testing::HasSubstr, testing::IsEmpty;
  for (const auto* const optimizer : {"adam", "adamw", "lamb", "lion"})
    EXPECT_THAT(warnings("bf16", optimizer, 0.999, 1),
                ElementsAre(HasSubstr("`beta2` 0.999 changes a moment by a fraction of 0.001")));
  for (const auto* const recipe : {"bf16", "stochastic", "all-bf16"}) {
    EXPECT_THAT(warnings(recipe, "adamw", 0.95, 1), IsEmpty());
    EXPECT_THAT(warnings(recipe, "adamw", 0.996, 1), IsEmpty());
    EXPECT_THAT(warnings(recipe, "adamw", 0.9962, 1), ElementsAre(HasSubstr(recipe)));
    EXPECT_THAT(warnings(recipe, "sgd", 0.999, 1), IsEmpty());
    EXPECT_THAT(warnings(recipe, "adagrad", 0.95, 1), ElementsAre(HasSubstr("sum of squares")));
  }
  for (const auto* const recipe : {"fp32", "split", "8bit"}) EXPECT_THAT(warnings(recipe, "adamw", 0.999, 1000), IsEmpty());
  for (const auto* const recipe : {"fp32", "8bit"}) EXPECT_THAT(warnings(recipe, "adagrad", 0.95, 1), IsEmpty());
  for (const auto* const recipe : {"all-bf16", "split24-8bit"}) {
    EXPECT_THAT(warnings(recipe, "adamw", 0.95, 64), IsEmpty());
    EXPECT_THAT(warnings(recipe, "adamw", 0.95, 65), ElementsAre(HasSubstr("65 micro-batches")));
  }
  EXPECT_THAT(warnings("stochastic", "adamw", 0.95, 65), IsEmpty());
}

// The warnings about bf16 are true: a moment stops falling, and sums stop growing.
TEST(PrecisionWarnings, AreTrue) {
  ThreadPool pool(1);
  const auto after = [&](const char* optimizer, const char* recipe, double beta2, int steps, double gradient, double begin) {
    const auto tested = make_optimizer(optimizer, {.beta2 = beta2});
    TestChunk chunk(rules::Recipe::of(DType::bf16, recipe, tested->states()), 300);
    chunk.parts = {{.first = 0, .count = 300}};
    for (int t = 1; t <= steps; ++t) {
      for (std::int64_t i = 0; i < 300; ++i) chunk.set_gradient(i, t == 1 ? begin : gradient);
      tested->update(pool, {.step = static_cast<std::uint64_t>(t), .learning_rate = 1e-6, .first = t == 1}, chunk.update());
    }
    return chunk.number(ChunkKind::second_moment, 0);
  };
  const auto kept = [&](double beta2) {
    return after("adamw", "bf16", beta2, 3000, 0, 1) / after("adamw", "bf16", beta2, 1, 0, 1);
  };
  EXPECT_EQ(kept(0.999), 1);
  EXPECT_LT(kept(0.995), 0.01);
  EXPECT_EQ(after("adagrad", "bf16", 0, 1000, 1, 1), 256);
  EXPECT_NEAR(after("adagrad", "fp32", 0, 1000, 1, 1), 1000, 0.1);
  EXPECT_NEAR(after("adagrad", "8bit", 0, 1000, 1, 1), 1000, 1) << "a block's greatest number is exact to its scale";
}

TEST(OptimizerNames, UnknownOnesAreRefusedWithTheKnown) {
  expect_refused([] { make_optimizer("adamv", {}); }, "unknown optimizer \"adamv\"");
  expect_refused([] { make_optimizer("adamv", {}); }, "adamw");
  expect_refused([] { (void)rules::Recipe::of(DType::fp32, "fp23"); }, "unknown recipe \"fp23\"");
}

}  // namespace
}  // namespace terrace::test
