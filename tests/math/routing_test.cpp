// Experts: the router's choices, dispatch and combine compared with oracles; gradients compared with central differences.
#include <numeric>

#include <terrace/tests/math/math_fixture.h>

namespace terrace::test {
namespace {

struct Routed {
  Routed(const Routing& r, DType dtype, std::int64_t tokens)
      : gates(accumulator(dtype), {tokens, r.slots()}),
        experts(DType::i32, {tokens, r.chosen}),
        rows(DType::i32, {tokens, r.slots()}),
        lse(accumulator(dtype), {tokens}),
        report(DType::fp64, {RoutingReport{r}.size()}) {}
  Tensor gates, experts, rows, lse, report;
};

class RoutingTest : public MathTest {
 protected:
  Routed route(const Routing& r, const Tensor& logits, TensorView targets = {}) {
    Routed routed(r, logits.dtype(), logits.size() / r.experts);
    math.route(stream, r, routed.gates, routed.experts, routed.rows, routed.lse, routed.report, logits, targets);
    machine.sync();
    return routed;
  }
  static double balance_of(const Routing& r, const Tensor& report) { return RoutingReport{r}.balance(report.values().data()); }
  const std::vector<Routing> routings{{.experts = 1, .chosen = 1},
                                      {.experts = 5, .chosen = 1, .renormalise = false},
                                      {.experts = 8, .chosen = 2},
                                      {.experts = 8, .chosen = 2, .shared = 2, .capacity = 3},
                                      {.experts = 70, .chosen = 7, .shared = 1, .renormalise = false},
                                      {.experts = 3, .chosen = 3, .capacity = 4, .renormalise = true}};
};

// Computed here expert by expert and token by token; a full expert takes no further token.
TEST_F(RoutingTest, TokensGetTheRowsThatAnOracleGivesThem) {
  for (const auto& r : routings)
    for (const auto dtype : kDtypes)
      for (const std::int64_t tokens : {1, 2, 37, 150}) {
        auto logits = random(dtype, {tokens, r.experts}, -3, 3);
        if (r.experts > 1) logits.set(0, logits.get(1));  // of equal experts the first is chosen
        const auto got = route(r, logits);
        std::vector<std::vector<std::int64_t>> takes(static_cast<std::size_t>(r.all()));  // slots, by expert
        std::vector<double> asked(static_cast<std::size_t>(r.experts)), probability(asked);
        std::vector<double> gates, lse;
        double dropped = 0, squares = 0;
        for (std::int64_t n = 0; n < tokens; ++n) {
          std::vector<std::int64_t> order(static_cast<std::size_t>(r.experts));
          std::iota(order.begin(), order.end(), 0);
          const auto logit = [&](std::int64_t e) { return logits.get(n * r.experts + e); };
          std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) { return logit(a) > logit(b); });
          double sum = 0, of_chosen = 0;
          for (const auto e : order) sum += std::exp(logit(e));
          lse.push_back(std::log(sum));
          squares += lse.back() * lse.back();
          for (const auto e : order) probability[static_cast<std::size_t>(e)] += std::exp(logit(e)) / sum;
          for (std::int64_t j = 0; j < r.chosen; ++j) of_chosen += std::exp(logit(order[static_cast<std::size_t>(j)]));
          for (std::int64_t j = 0; j < r.slots(); ++j) {
            const auto e = j < r.chosen ? order[static_cast<std::size_t>(j)] : r.experts + j - r.chosen;
            gates.push_back(j < r.chosen ? std::exp(logit(e)) / (r.renormalise ? of_chosen : sum) : 1);
            if (j < r.chosen) {
              ASSERT_EQ(got.experts.get(n * r.chosen + j), static_cast<double>(e)) << "token " << n << ", choice " << j;
              ++asked[static_cast<std::size_t>(e)];
            }
            auto& of_expert = takes[static_cast<std::size_t>(e)];
            if (j < r.chosen && r.capacity != 0 && std::ssize(of_expert) == r.capacity)
              ++dropped;
            else
              of_expert.push_back(n * r.slots() + j);
          }
        }
        std::vector<double> rows(static_cast<std::size_t>(tokens * r.slots()), -1);
        double next = 0, balance = 0;
        for (std::size_t e = 0; e < takes.size(); ++e) {
          for (const auto slot : takes[e]) rows[static_cast<std::size_t>(slot)] = next++;
          EXPECT_EQ(got.report.get(RoutingReport::kRows + static_cast<std::int64_t>(e)), static_cast<double>(takes[e].size()));
        }
        const auto all = static_cast<double>(tokens);
        for (std::size_t e = 0; e < asked.size(); ++e) {
          EXPECT_EQ(got.report.get(RoutingReport{r}.asked() + static_cast<std::int64_t>(e)), asked[e]);
          balance += static_cast<double>(r.experts) * asked[e] / (all * static_cast<double>(r.chosen)) * probability[e] / all;
        }
        EXPECT_EQ(got.rows.values(), rows);
        EXPECT_EQ(got.report.get(RoutingReport::kDropped), dropped);
        EXPECT_EQ(got.report.get(RoutingReport::kTokens), all);
        EXPECT_NEAR(balance_of(r, got.report), balance, 1e-5);
        EXPECT_NEAR(got.report.get(RoutingReport::kSquares), squares, 1e-5 * (1 + squares));
        expect_near(got.gates, gates, tolerance(accumulator(dtype)), "gates");
        expect_near(got.lse, lse, tolerance(accumulator(dtype)), "lse");
      }
}

TEST_F(RoutingTest, WithOneExpertEveryGateIsExactlyOne) {
  for (const bool renormalise : {false, true})
    for (const auto dtype : kDtypes) {
      const Routing r{.renormalise = renormalise};
      const auto got = route(r, random(dtype, {41, 1}, -20, 20));
      for (const double gate : got.gates.values()) EXPECT_EQ(gate, 1.0);
    }
}

// Dispatch, then combine with gates 1: each token comes back once for each of its rows.
TEST_F(RoutingTest, CombineBringsBackWhatDispatchTookAway) {
  const std::int64_t tokens = 29;
  for (const auto dtype : kDtypes)
    for (const std::int64_t columns : {1, 8, 37}) {
      const auto x = random(dtype, {tokens, columns});
      const Routing one{.experts = 4, .chosen = 1};
      const auto routed = route(one, random(dtype, {tokens, 4}));
      Tensor rows(dtype, {tokens, columns}), back(dtype, {tokens, columns});
      math.dispatch(stream, rows, x, routed.rows);
      math.combine(stream, back, rows, routed.rows);
      machine.sync();
      EXPECT_EQ(back.bits(), x.bits()) << name_of(dtype);
      EXPECT_NE(rows.bits(), x.bits());
    }
}

TEST_F(RoutingTest, GatesWeighRowsBothWays) {
  const std::int64_t tokens = 31, columns = 19;
  for (const auto& r : routings)
    for (const auto dtype : kDtypes)
      for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
        const auto routed = route(r, random(dtype, {tokens, r.experts}, -3, 3));
        const std::int64_t places = tokens * r.slots();
        const auto x = random(dtype, {tokens, columns}), results = random(dtype, {places, columns}),
                   before = random(dtype, {tokens, columns});
        auto y = before;
        Tensor rows(dtype, {places, columns}), dgates(accumulator(dtype), {tokens, r.slots()});
        math.dispatch(stream, rows, x, routed.rows, routed.gates);
        math.combine(stream, y, results, routed.rows, routed.gates, accumulate);
        math.gate_grad(stream, dgates, x, results, routed.rows);
        machine.sync();
        std::vector<double> sums, products;
        for (std::int64_t n = 0; n < tokens; ++n) {
          std::vector<double> sum(static_cast<std::size_t>(columns));
          for (std::int64_t j = 0; j < r.slots(); ++j) {
            const auto slot = n * r.slots() + j, row = static_cast<std::int64_t>(routed.rows.get(slot));
            double product = 0;
            for (std::int64_t c = 0; row >= 0 && c < columns; ++c) {
              const double gate = routed.gates.get(slot);
              sum[static_cast<std::size_t>(c)] += gate * results.get(row * columns + c);
              product += x.get(n * columns + c) * results.get(row * columns + c);
              EXPECT_NEAR(rows.get(row * columns + c), gate * x.get(n * columns + c), tolerance(dtype));
            }
            products.push_back(product);
          }
          for (std::int64_t c = 0; c < columns; ++c)
            sums.push_back(sum[static_cast<std::size_t>(c)] +
                           (accumulate == Accumulate::yes ? before.get(n * columns + c) : 0));
        }
        expect_near(y, sums, tolerance(dtype), "combined");
        expect_near(dgates, products, tolerance(accumulator(dtype)), "gates' gradient");
      }
}

// Gradient of Σ weights · gates + balance · B + squares · (mean square); the counts of choices have no gradient.
TEST_F(RoutingTest, RouterGradientEqualsCentralDifferences) {
  const std::int64_t tokens = 7;
  const double balance = 0.7, squares = 0.3, step = 1e-5;
  for (const auto& r : routings) {
    auto logits = random(DType::fp64, {tokens, r.experts}, -2, 2);
    const auto weights = random(DType::fp64, {tokens, r.slots()});
    const auto routed = route(r, logits);
    Tensor got(DType::fp64, {tokens, r.experts});
    math.route_grad(stream, r, got, weights, logits, routed.experts, routed.lse, routed.report, balance, squares);
    machine.sync();
    const auto objective = [&] {
      const auto now = route(r, logits);
      double sum =
          balance * balance_of(r, now.report) + squares * now.report.get(RoutingReport::kSquares) / static_cast<double>(tokens);
      for (std::int64_t i = 0; i < weights.size(); ++i) sum += weights.get(i) * now.gates.get(i);
      return sum;
    };
    std::vector<double> want;
    for (std::int64_t i = 0; i < logits.size(); ++i) {
      const double at = logits.get(i);
      logits.set(i, at + step);
      const double above = objective();
      logits.set(i, at - step);
      want.push_back((above - objective()) / (2 * step));
      logits.set(i, at);
    }
    expect_near(got, want, 1e-7, "dlogits");
  }
}

// Three slices of the tokens, each routed separately.
TEST_F(RoutingTest, ReportsOfSlicesMergeIntoThatOfTheWhole) {
  const std::int64_t slice = 11;
  for (const auto& r : routings) {
    const RoutingReport at{r};
    const auto all = random(DType::fp64, {3 * slice, r.experts}, -2, 2);
    const auto whole = route(r, all);
    Tensor parts(DType::fp64, {3, 2 * r.experts});
    std::vector<Tensor> reports;
    for (std::int64_t k = 0; k < 3; ++k) {
      Tensor logits(DType::fp64, {slice, r.experts});
      for (std::int64_t i = 0; i < logits.size(); ++i) logits.set(i, all.get(k * logits.size() + i));
      reports.push_back(route(r, logits).report);
      for (std::int64_t i = 0; i < 2 * r.experts; ++i) parts.set(k * 2 * r.experts + i, reports.back().get(at.asked() + i));
    }
    for (auto& report : reports) {
      const double kept = report.get(RoutingReport::kRows);
      math.merge_reports(stream, r, report, parts);
      machine.sync();
      EXPECT_EQ(report.get(RoutingReport::kRows), kept) << "a slice's rows are its own";
      EXPECT_NEAR(balance_of(r, report), balance_of(r, whole.report), 1e-12);
      for (std::int64_t i = 0; i < 2 * r.experts; ++i)
        EXPECT_NEAR(report.get(at.asked() + i), whole.report.get(at.asked() + i), 1e-12);
    }
  }
}

// Tokens with padding between them are routed like the tokens alone; padding gets no row and no gradient.
TEST_F(RoutingTest, PaddingIsRoutedNowhere) {
  const std::int64_t tokens = 23;
  for (const auto& r : routings)
    for (const auto dtype : kDtypes) {
      const auto alone = random(dtype, {tokens, r.experts}, -2, 2);
      auto padded = random(dtype, {2 * tokens, r.experts}, -2, 2);
      Tensor targets(DType::i32, {2 * tokens});
      for (std::int64_t n = 0; n < 2 * tokens; ++n) {
        targets.set(n, n % 2 == 1   ? static_cast<double>(math::kPadding)
                       : n % 4 == 0 ? static_cast<double>(math::kNoTarget)
                                    : 3.0);
        for (std::int64_t e = 0; n % 2 == 0 && e < r.experts; ++e)
          padded.set(n * r.experts + e, alone.get(n / 2 * r.experts + e));
      }
      const auto want = route(r, alone), got = route(r, padded, targets);
      const auto dgates = random(accumulator(dtype), {2 * tokens, r.slots()});
      Tensor dgates_alone(accumulator(dtype), {tokens, r.slots()}), dlogits(dtype, {2 * tokens, r.experts}),
          dlogits_alone(dtype, {tokens, r.experts});
      for (std::int64_t i = 0; i < dgates_alone.size(); ++i)
        dgates_alone.set(i, dgates.get(i / r.slots() * 2 * r.slots() + i % r.slots()));
      math.route_grad(stream, r, dlogits, dgates, padded, got.experts, got.lse, got.report, 0.7, 0.3);
      math.route_grad(stream, r, dlogits_alone, dgates_alone, alone, want.experts, want.lse, want.report, 0.7, 0.3);
      machine.sync();
      const RoutingReport at{r};
      for (std::int64_t i = 0; i < at.size(); ++i) {
        if (i >= RoutingReport::kRows + r.experts && i < at.asked()) continue;  // shared experts take all tokens
        EXPECT_NEAR(got.report.get(i), want.report.get(i), 1e-12 * (1 + want.report.get(i))) << "number " << i;
      }
      const auto chosen = [&](std::int64_t n, std::int64_t j, const Routed& of) { return of.rows.get(n * r.slots() + j); };
      for (std::int64_t n = 0; n < 2 * tokens; ++n) {
        for (std::int64_t j = 0; j < r.chosen; ++j) {
          EXPECT_EQ(chosen(n, j, got), n % 2 == 1 ? -1 : chosen(n / 2, j, want)) << "token " << n;
          EXPECT_EQ(got.gates.get(n * r.slots() + j), n % 2 == 1 ? 0 : want.gates.get(n / 2 * r.slots() + j));
        }
        for (std::int64_t e = 0; e < r.experts; ++e)
          EXPECT_EQ(dlogits.get(n * r.experts + e), n % 2 == 1 ? 0 : dlogits_alone.get(n / 2 * r.experts + e));
      }
    }
}

TEST_F(RoutingTest, PaddingAloneHasNoBalance) {
  for (const auto& r : routings) {
    Tensor targets(DType::i32, {5}), dlogits(DType::fp64, {5, r.experts});
    for (std::int64_t n = 0; n < 5; ++n) targets.set(n, static_cast<double>(math::kPadding));
    const auto logits = random(DType::fp64, {5, r.experts}), dgates = random(DType::fp64, {5, r.slots()});
    const auto got = route(r, logits, targets);
    math.route_grad(stream, r, dlogits, dgates, logits, got.experts, got.lse, got.report, 1, 1);
    machine.sync();
    EXPECT_EQ(0, balance_of(r, got.report));
    for (const double gradient : dlogits.values()) EXPECT_EQ(0, gradient);
  }
}

TEST_F(RoutingTest, RefusesShapesThatDoNotMatch) {
  const Routing r{.experts = 4, .chosen = 2};
  Routed routed(r, DType::fp32, 3);
  const Tensor logits(DType::fp32, {3, 4}), fewer(DType::fp32, {3, 3}), to(DType::fp32, {6, 5}), from(DType::fp32, {3, 5});
  const auto with = [&](const Routing& routing, const Tensor& scores) {
    math.route(stream, routing, routed.gates, routed.experts, routed.rows, routed.lse, routed.report, scores);
  };
  EXPECT_THROW(with(r, fewer), std::logic_error);
  EXPECT_THROW(with({.experts = 4, .chosen = 5}, logits), std::logic_error);
  EXPECT_THROW(with({.experts = 4, .chosen = 2, .shared = 1}, logits), std::logic_error);
  EXPECT_THROW(math.dispatch(stream, to, Tensor(DType::fp32, {2, 5}), routed.rows), std::logic_error);
  EXPECT_THROW(math.combine(stream, Tensor(DType::fp32, {3, 4}), to, routed.rows), std::logic_error);
  EXPECT_THROW(math.gate_grad(stream, Tensor(DType::fp32, {3, 1}), from, to, routed.rows), std::logic_error);
}

}  // namespace
}  // namespace terrace::test
