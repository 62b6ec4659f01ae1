// AdamW against its published formulas, and the promises of optimizer.h. The written specification is docs/optimizers.md.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/core/error.h>
#include <terrace/optimizers/optimizer.h>

namespace terrace {
namespace {

constexpr AdamWSettings kSettings{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

template <class T>
TensorView view_of(std::vector<T>& v) {
  return {reinterpret_cast<std::byte*>(v.data()), dtype_of<T>::value, Shape{static_cast<std::int64_t>(v.size())}};
}
template <class T>
TensorView part(const TensorView& v, std::int64_t begin, std::int64_t end) {
  return {reinterpret_cast<std::byte*>(v.as<T>() + begin), v.dtype, Shape{end - begin}};
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class W, class G>
struct State {
  std::vector<W> weight, first_moment, second_moment;
  std::vector<G> gradient;
  std::vector<bf16> compute;
  bool decay = true;

  State(std::size_t n, unsigned seed, bool copy) : weight(n), first_moment(n), second_moment(n), gradient(n) {
    if (copy) compute.resize(n);
    std::mt19937_64 random(seed);
    for (auto& w : weight) w = static_cast<W>(std::uniform_real_distribution<double>(-1, 1)(random));
    new_gradient(seed + 1);
  }
  // Scales differ by element, as layers' do.
  void new_gradient(unsigned seed) {
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const double g = std::uniform_real_distribution<double>(-1, 1)(random) * std::pow(10.0, -static_cast<double>(i % 6));
      if constexpr (std::is_same_v<G, bf16>) {
        gradient[i] = bf16(static_cast<float>(g));
      } else {
        gradient[i] = static_cast<G>(g);
      }
    }
  }
  UpdateSpans spans() {
    return {.weight = view_of(weight),
            .compute = compute.empty() ? TensorView{} : view_of(compute),
            .gradient = view_of(gradient),
            .first_moment = view_of(first_moment),
            .second_moment = view_of(second_moment),
            .decay = decay};
  }
};

double widened(bf16 g) { return static_cast<float>(g); }
double widened(double g) { return g; }

// Algorithm 2 of "Decoupled weight decay regularization", in more precision than anything under test.
struct Published {
  std::vector<long double> weight, m, v;
  template <class W>
  explicit Published(const std::vector<W>& w) : weight(w.begin(), w.end()), m(w.size()), v(w.size()) {}
  template <class G>
  void update(const AdamWSettings& s, const UpdateStep& step, const std::vector<G>& gradient, bool decay) {
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const long double g = static_cast<long double>(widened(gradient[i])) * step.gradient_scale;
      m[i] = s.beta1 * m[i] + (1.0L - s.beta1) * g;
      v[i] = s.beta2 * v[i] + (1.0L - s.beta2) * g * g;
      const long double m_hat = m[i] / (1.0L - std::pow(static_cast<long double>(s.beta1), step.step));
      const long double v_hat = v[i] / (1.0L - std::pow(static_cast<long double>(s.beta2), step.step));
      const long double lambda = decay ? s.weight_decay : 0.0;
      weight[i] -= step.learning_rate * (m_hat / (std::sqrt(v_hat) + s.eps) + lambda * weight[i]);
    }
  }
};

template <class W, class G>
double worst_error_after_100_steps(bool decay, double gradient_scale) {
  ThreadPool pool(2);
  State<W, G> state(1003, 7, false);
  state.decay = decay;
  Published published(state.weight);
  const auto adamw = make_adamw(kSettings);
  for (unsigned t = 1; t <= 100; ++t) {
    state.new_gradient(1000 + t);
    const UpdateStep step{.step = t, .learning_rate = 1e-3 * t / 100, .gradient_scale = gradient_scale, .first = t == 1};
    adamw->update(pool, step, state.spans());
    published.update(kSettings, step, state.gradient, decay);
  }
  double worst = 0;
  for (std::size_t i = 0; i < state.weight.size(); ++i) {
    worst = std::max(worst, static_cast<double>(std::abs(static_cast<long double>(state.weight[i]) - published.weight[i])));
  }
  return worst;
}

TEST(AdamW, Fp64IsThePublishedFormula) {
  EXPECT_LE((worst_error_after_100_steps<double, double>(true, 1.0)), 1e-14);
  EXPECT_LE((worst_error_after_100_steps<double, double>(false, 0.37)), 1e-14);
}

// A weight below 1 is rounded three times a step (decay's factor, decay's product, the difference): 3 u. The update is at
// most about 2 lr; its relative error is ten rounded operations plus the moment's: each of the last 1/(1−β1) = 10 steps
// leaves 3 u of the largest gradient, which is sqrt(3) of the root mean square: below 64 u.
TEST(AdamW, Fp32StaysWithinItsRoundingOfThePublishedFormula) {
  const double u = std::ldexp(1.0, -24);
  const double bound = 100 * (3 * u + 1e-3 * 64 * u);
  EXPECT_LE((worst_error_after_100_steps<float, float>(true, 1.0)), bound);
  EXPECT_LE((worst_error_after_100_steps<float, float>(false, 0.37)), bound);
  EXPECT_LE((worst_error_after_100_steps<float, bf16>(true, 1.0)), bound);
}

TEST(AdamW, FirstStepMovesByTheRateAgainstTheSign) {
  ThreadPool pool(1);
  State<double, double> state(3, 1, false);
  state.weight = {2.0, -1.0, 0.5};
  state.gradient = {4.0, -0.25, 0.0};
  make_adamw(kSettings)->update(pool, {.step = 1, .learning_rate = 0.01, .first = true}, state.spans());
  EXPECT_NEAR(state.weight[0], 2.0 * 0.999 - 0.01, 1e-9);
  EXPECT_NEAR(state.weight[1], -1.0 * 0.999 + 0.01, 1e-9);
  EXPECT_EQ(state.weight[2], 0.5 * (1.0 - 0.01 * 0.1));
}

TEST(AdamW, FirstUpdateDoesNotReadTheStates) {
  ThreadPool pool(2);
  for (const bool copy : {false, true}) {
    State<float, float> zeroed(70001, 3, copy), poisoned(70001, 3, copy);
    for (auto* states : {&poisoned.first_moment, &poisoned.second_moment}) {
      std::fill(states->begin(), states->end(), std::numeric_limits<float>::quiet_NaN());
    }
    const auto adamw = make_adamw(kSettings);
    adamw->update(pool, {.step = 1, .learning_rate = 1e-3, .first = false}, zeroed.spans());
    adamw->update(pool, {.step = 1, .learning_rate = 1e-3, .first = true}, poisoned.spans());
    EXPECT_TRUE(same_bits(zeroed.weight, poisoned.weight));
    EXPECT_TRUE(same_bits(zeroed.first_moment, poisoned.first_moment));
    EXPECT_TRUE(same_bits(zeroed.second_moment, poisoned.second_moment));
  }
}

// Threads and the packing into chunks may not change a bit: several blocks, several pools, spans cut anywhere.
template <class W, class G>
void expect_no_split_changes_a_bit(bool copy) {
  constexpr std::int64_t n = 3 * 65536 + 1234;
  const auto adamw = make_adamw(kSettings);
  const auto run = [&](int threads, const std::vector<std::int64_t>& cuts) {
    ThreadPool pool(threads);
    State<W, G> state(n, 11, copy);
    for (unsigned t = 1; t <= 3; ++t) {
      state.new_gradient(50 + t);
      const UpdateStep step{.step = t, .learning_rate = 1e-3, .gradient_scale = 0.5, .first = t == 1};
      const UpdateSpans all = state.spans();
      std::int64_t begin = 0;
      for (const auto end : cuts) {
        adamw->update(pool, step,
                      {.weight = part<W>(all.weight, begin, end),
                       .compute = copy ? part<bf16>(all.compute, begin, end) : TensorView{},
                       .gradient = part<G>(all.gradient, begin, end),
                       .first_moment = part<W>(all.first_moment, begin, end),
                       .second_moment = part<W>(all.second_moment, begin, end),
                       .decay = true});
        begin = end;
      }
    }
    return state;
  };
  const auto expected = run(1, {n});
  for (const auto& cuts : {std::vector<std::int64_t>{n}, {1, 2, 77, 65536, 65537, 131071, n}, {65536, 131072, n}}) {
    for (const int threads : {1, 2, 3}) {
      const auto got = run(threads, cuts);
      EXPECT_TRUE(same_bits(expected.weight, got.weight)) << threads << " threads, " << cuts.size() << " spans";
      EXPECT_TRUE(same_bits(expected.first_moment, got.first_moment));
      EXPECT_TRUE(same_bits(expected.second_moment, got.second_moment));
      EXPECT_TRUE(same_bits(expected.compute, got.compute));
    }
  }
}
TEST(AdamW, NoSplitChangesABit) {
  expect_no_split_changes_a_bit<float, float>(false);
  expect_no_split_changes_a_bit<float, float>(true);
  expect_no_split_changes_a_bit<float, bf16>(true);
  expect_no_split_changes_a_bit<double, double>(false);
}

TEST(AdamW, ComputeCopyIsTheRoundedMasterAndChangesNothingElse) {
  ThreadPool pool(2);
  State<float, bf16> plain(4099, 5, false), copied(4099, 5, true);
  const auto adamw = make_adamw(kSettings);
  for (unsigned t = 1; t <= 5; ++t) {
    for (auto* state : {&plain, &copied}) {
      state->new_gradient(t);
      adamw->update(pool, {.step = t, .learning_rate = 1e-2, .first = t == 1}, state->spans());
    }
  }
  EXPECT_TRUE(same_bits(plain.weight, copied.weight));
  EXPECT_TRUE(same_bits(plain.second_moment, copied.second_moment));
  for (std::size_t i = 0; i < copied.weight.size(); ++i) {
    ASSERT_EQ(copied.compute[i].bits, bf16(copied.weight[i]).bits) << "element " << i;
  }
}

TEST(AdamW, Bf16GradientsAreWidenedExactly) {
  ThreadPool pool(1);
  State<float, bf16> narrow(2000, 9, true);
  State<float, float> wide(2000, 9, true);
  wide.weight = narrow.weight;
  for (std::size_t i = 0; i < wide.gradient.size(); ++i) wide.gradient[i] = static_cast<float>(narrow.gradient[i]);
  const auto adamw = make_adamw(kSettings);
  adamw->update(pool, {.step = 3, .learning_rate = 1e-2}, narrow.spans());
  adamw->update(pool, {.step = 3, .learning_rate = 1e-2}, wide.spans());
  EXPECT_TRUE(same_bits(narrow.weight, wide.weight));
  EXPECT_TRUE(same_bits(narrow.compute, wide.compute));
}

TEST(AdamW, ExemptSpansDoNotDecay) {
  ThreadPool pool(1);
  AdamWSettings without = kSettings;
  without.weight_decay = 0;
  State<float, float> exempt(500, 2, false), undecayed(500, 2, false);
  exempt.decay = false;
  make_adamw(kSettings)->update(pool, {.step = 1, .learning_rate = 0.1}, exempt.spans());
  make_adamw(without)->update(pool, {.step = 1, .learning_rate = 0.1}, undecayed.spans());
  EXPECT_TRUE(same_bits(exempt.weight, undecayed.weight));
}

TEST(AdamW, NamesItselfAndItsStates) {
  const auto adamw = make_adamw(kSettings);
  EXPECT_EQ(adamw->name(), "adamw");
  EXPECT_THAT(adamw->states(), testing::ElementsAre(Kind::first_moment, Kind::second_moment));
}

template <class F>
void expect_refused(F&& f, const std::string& words) {
  try {
    f();
    ADD_FAILURE() << "accepted, but should say: " << words;
  } catch (const Error& e) {
    EXPECT_EQ(e.exit(), Exit::usage);
    EXPECT_THAT(e.what(), testing::HasSubstr(words));
  }
}

TEST(AdamW, RefusesSettingsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  const auto with = [](auto change) {
    return [change] {
      AdamWSettings settings;
      change(settings);
      make_adamw(settings);
    };
  };
  for (const double bad : {-0.1, 1.0, 0.99999999999, 2.0, nan}) {
    expect_refused(with([=](AdamWSettings& s) { s.beta1 = bad; }), "beta1");
    expect_refused(with([=](AdamWSettings& s) { s.beta2 = bad; }), "beta2");
  }
  for (const double bad : {0.0, -1e-8, 1e-50, nan, infinity})
    expect_refused(with([=](AdamWSettings& s) { s.eps = bad; }), "eps");
  for (const double bad : {-0.1, nan, infinity}) {
    expect_refused(with([=](AdamWSettings& s) { s.weight_decay = bad; }), "weight decay");
  }
}

TEST(AdamW, RefusesStepsAndSpansThatDoNotMatch) {
  ThreadPool pool(1);
  const auto adamw = make_adamw(kSettings);
  State<float, float> s(8, 1, true);
  std::vector<float> shorter(7);
  std::vector<bf16> narrow(8);
  std::vector<double> wide(8);
  const UpdateStep step{.step = 1, .learning_rate = 1e-3};
  const auto with = [&](auto change) {
    return [&, change] {
      UpdateSpans spans = s.spans();
      change(spans);
      adamw->update(pool, step, spans);
    };
  };
  expect_refused(with([&](UpdateSpans& x) { x.gradient = view_of(shorter); }), "gradient");
  expect_refused(with([&](UpdateSpans& x) { x.gradient = view_of(wide); }), "gradient");
  expect_refused(with([&](UpdateSpans& x) { x.first_moment = view_of(narrow); }), "first moment");
  expect_refused(with([&](UpdateSpans& x) { x.second_moment = view_of(shorter); }), "second moment");
  expect_refused(with([&](UpdateSpans& x) { x.second_moment = TensorView{nullptr, DType::fp32, Shape{8}}; }), "missing");
  expect_refused(with([&](UpdateSpans& x) { x.compute = view_of(shorter); }), "compute weight");
  expect_refused(with([&](UpdateSpans& x) { x.weight = view_of(narrow); }), "the weight is bf16");
  expect_refused(with([&](UpdateSpans& x) { x.weight.shape = Shape{2, 4}; }), "weight");
  State<double, double> d(8, 1, true);
  expect_refused([&] { adamw->update(pool, step, d.spans()); }, "fp32 master");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_refused([&] { adamw->update(pool, {.step = 0, .learning_rate = 1e-3}, s.spans()); }, "count from 1");
  expect_refused([&] { adamw->update(pool, {.step = 1, .learning_rate = -1}, s.spans()); }, "learning rate");
  expect_refused([&] { adamw->update(pool, {.step = 1, .learning_rate = 1, .gradient_scale = nan}, s.spans()); },
                 "gradient scale");
  State<float, float> empty(0, 1, false);
  adamw->update(pool, step, empty.spans());  // nothing to do is not an error
}

}  // namespace
}  // namespace terrace
