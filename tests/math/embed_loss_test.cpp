// Embeddings and the loss, compared with oracles.
#include <terrace/tests/math/math_fixture.h>

namespace terrace::test {
namespace {

// The first indexes of the parts of a vocabulary, and its end; the parts are as equal as possible.
std::vector<std::int64_t> cuts(std::int64_t vocabulary, std::int64_t parts) {
  std::vector<std::int64_t> at;
  for (std::int64_t k = 0; k <= parts; ++k) at.push_back(k * vocabulary / parts);
  return at;
}
constexpr std::int64_t kParts[] = {1, 2, 3, 4, 8};

class EmbedTest : public MathTest {};

class LossTest : public MathTest {
 protected:
  // Loss, gradient and log-sum-exp of every row in fp64.
  struct Oracle {
    std::vector<double> loss, gradient, lse;

    Oracle(const Tensor& logits, const Tensor& targets, double scale) {
      const std::int64_t r = targets.size(), v = logits.size() / r;
      for (std::int64_t i = 0; i < r; ++i) {
        double most = -std::numeric_limits<double>::infinity(), total = 0;
        for (std::int64_t j = 0; j < v; ++j) most = std::max(most, logits.get(i * v + j));
        for (std::int64_t j = 0; j < v; ++j) total += std::exp(logits.get(i * v + j) - most);
        lse.push_back(most + std::log(total));
        const auto target = static_cast<std::int64_t>(targets.get(i));
        loss.push_back(target < 0 ? 0 : lse.back() - logits.get(i * v + target));
        for (std::int64_t j = 0; j < v; ++j) {
          const double p = std::exp(logits.get(i * v + j) - lse.back());
          gradient.push_back(target < 0 ? 0 : (p - (j == target ? 1 : 0)) * scale);
        }
      }
    }
  };

  // The results of K ranks, each with its columns: the sum of their losses, and their gradients side by side.
  struct Together {
    Tensor loss, dlogits, lse;
  };
  Together by_parts(const Tensor& logits, const Tensor& targets, std::int64_t parts, double scale) {
    const DType dtype = logits.dtype(), wide = accumulator(dtype);
    const std::int64_t r = targets.size(), v = logits.size() / r;
    const auto cut = cuts(v, parts);
    std::vector<Tensor> columns;
    Tensor gathered(wide, {parts, r});
    for (std::int64_t k = 0; k < parts; ++k) {
      const std::int64_t first = cut[static_cast<std::size_t>(k)], count = cut[static_cast<std::size_t>(k) + 1] - first;
      auto& part = columns.emplace_back(dtype, Shape{r, count});
      for (std::int64_t i = 0; i < r * count; ++i) part.set(i, logits.get(i / count * v + first + i % count));
      math.log_sum_exp(stream, {gathered.view().data + static_cast<std::size_t>(k * r) * size_of(wide), wide, {r}}, part);
    }
    Together all{Tensor(DType::fp64, {r}), Tensor(dtype, {r, v}), Tensor(wide, {r})};
    math.merge_log_sums(stream, all.lse, gathered, targets);
    std::vector<double> losses(static_cast<std::size_t>(r));
    for (std::int64_t k = 0; k < parts; ++k) {
      const std::int64_t first = cut[static_cast<std::size_t>(k)], count = cut[static_cast<std::size_t>(k) + 1] - first;
      auto& part = columns[static_cast<std::size_t>(k)];
      Tensor local(DType::i32, {r}), loss(DType::fp64, {r}), alone(DType::fp64, {r}), dlogits(dtype, {r, count});
      math.ids_in_part(stream, local, targets, first, count);
      math.cross_entropy_part(stream, alone, {}, part, local, all.lse, scale);
      math.cross_entropy_part(stream, loss, dlogits, part, local, all.lse, scale);
      math.cross_entropy_part(stream, loss, part, part, local, all.lse, scale);  // in place
      machine.sync();
      EXPECT_EQ(loss.bits(), alone.bits());
      EXPECT_EQ(part.bits(), dlogits.bits());
      for (std::int64_t i = 0; i < r; ++i) losses[static_cast<std::size_t>(i)] += loss.get(i);
      for (std::int64_t i = 0; i < r * count; ++i) all.dlogits.set(i / count * v + first + i % count, dlogits.get(i));
    }
    for (std::int64_t i = 0; i < r; ++i) all.loss.set(i, losses[static_cast<std::size_t>(i)]);
    return all;
  }
};

TEST_F(EmbedTest, TakesRowsAndAddsPositions) {
  for (const auto dtype : kDtypes) {
    const std::int64_t n = 35, seq = 7, c = 77, vocabulary = 41, first = 3;
    const auto tokens = random(DType::i32, {n}, 0, vocabulary), table = random(dtype, {vocabulary, c});
    const auto positions = random(dtype, {seq + first, c});
    Tensor plain(dtype, {n, c}), with(dtype, {n, c});
    math.embed(stream, plain, tokens, table, {}, seq);
    math.embed(stream, with, tokens, table, positions, seq, first);
    machine.sync();
    for (std::int64_t i = 0; i < n * c; ++i) {
      const double row = table.get(static_cast<std::int64_t>(tokens.get(i / c)) * c + i % c);
      ASSERT_EQ(plain.get(i), row);
      ASSERT_NEAR(with.get(i), row + positions.get((i / c % seq + first) * c + i % c), 2 * tolerance(dtype));
    }
  }
}

TEST_F(EmbedTest, GradientSumsUsesInAscendingOrder) {
  for (const auto dtype : kDtypes) {
    const std::int64_t n = 300, seq = 50, c = 33, vocabulary = 2100, rows = 64;
    auto tokens = random(DType::i32, {n}, 0, vocabulary);
    for (std::int64_t i = 0; i < n; i += 3) tokens.set(i, 1024);  // one token occurs often
    const auto dy = random(dtype, {n, c});
    const DType wide = accumulator(dtype);
    Tensor dtable(wide, {vocabulary, c}), dpositions(wide, {rows, c});
    const auto start = random(wide, {vocabulary, c}), start_p = random(wide, {rows, c});
    auto total = start, total_p = start_p;
    math.embed_grad(stream, dtable, dpositions, tokens, dy, seq, Accumulate::no);
    math.embed_grad(stream, total, total_p, tokens, dy, seq, Accumulate::yes);
    machine.sync();
    const auto round = [&](double v) { return wide == DType::fp64 ? v : static_cast<double>(static_cast<float>(v)); };
    std::vector<double> table(static_cast<std::size_t>(vocabulary * c)), position(static_cast<std::size_t>(rows * c));
    for (std::int64_t i = 0; i < n * c; ++i) {
      double& t = table[static_cast<std::size_t>(static_cast<std::int64_t>(tokens.get(i / c)) * c + i % c)];
      double& p = position[static_cast<std::size_t>(i / c % seq * c + i % c)];
      t = round(t + dy.get(i));
      p = round(p + dy.get(i));
    }
    for (std::size_t i = 0; i < table.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      ASSERT_EQ(dtable.get(at), table[i]) << i;
      ASSERT_EQ(total.get(at), round(start.get(at) + table[i])) << i;
    }
    for (std::size_t i = 0; i < position.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      ASSERT_EQ(dpositions.get(at), position[i]) << i;
      ASSERT_EQ(total_p.get(at), round(start_p.get(at) + position[i])) << i;
    }
  }
}

TEST_F(EmbedTest, ATokenOutsideTheVocabularyIsAnError) {
  const auto table = random(DType::fp32, {5, 3});
  for (const double bad : {math::kPadding - 1.0, 5.0}) {
    Tensor tokens(DType::i32, {2}), y(DType::fp32, {2, 3});
    tokens.set(0, 0), tokens.set(1, bad);
    Machine forward, backward;
    forward.math.embed(*forward.stream, y, tokens, table, {}, 2);
    EXPECT_THROW(forward.sync(), std::out_of_range);
    backward.math.embed_grad(*backward.stream, table, {}, tokens, y, 2, Accumulate::no);
    EXPECT_THROW(backward.sync(), std::out_of_range);
  }
}

TEST_F(EmbedTest, IdsBecomePositionsInAPart) {
  const std::int64_t first = 1'000'000'007, count = 6;
  const std::pair<std::int64_t, double> cases[] = {{first, 0}, {first + 5, 5}, {first - 1, -1},     {first + 6, -1}, {0, -1},
                                                   {-1, -1},   {-first, -1},   {2'147'483'647, -1}, {first + 3, 3}};
  const auto n = static_cast<std::int64_t>(std::size(cases));
  Tensor ids(DType::i32, {n}), out(DType::i32, {n});
  for (std::int64_t i = 0; i < n; ++i) ids.set(i, static_cast<double>(cases[i].first));
  math.ids_in_part(stream, out, ids, first, count);
  math.ids_in_part(stream, ids, ids, first, count);
  machine.sync();
  for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(out.get(i), cases[i].second) << cases[i].first;
  EXPECT_EQ(ids.bits(), out.bits()) << "in place";

  const auto many = random(DType::i32, {40003}, -1, 100);
  Tensor places(DType::i32, {40003});
  math.ids_in_part(stream, places, many, 33, 34);
  machine.sync();
  for (std::int64_t i = 0; i < many.size(); ++i) {
    const double id = many.get(i);
    ASSERT_EQ(places.get(i), id >= 33 && id < 67 ? id - 33 : -1) << id;
  }
}

// Each token's row comes from one part, the others give zeros; the gradients of the parts are rows of the whole gradient.
TEST_F(EmbedTest, PartsOfTheTableMakeTheWhole) {
  for (const auto dtype : kDtypes) {
    const std::int64_t n = 60, seq = 20, c = 33, vocabulary = 41;
    const DType wide = accumulator(dtype);
    const auto tokens = random(DType::i32, {n}, 0, vocabulary), table = random(dtype, {vocabulary, c});
    const auto positions = random(dtype, {seq, c}), dy = random(dtype, {n, c});
    const auto start = random(wide, {vocabulary, c}), start_p = random(wide, {seq, c});
    Tensor y(dtype, {n, c}), with(dtype, {n, c});
    auto dtable = start, dpositions = start_p;
    math.embed(stream, y, tokens, table, {}, seq);
    math.embed(stream, with, tokens, table, positions, seq);
    math.embed_grad(stream, dtable, dpositions, tokens, dy, seq, Accumulate::yes);
    machine.sync();
    for (const auto parts : kParts) {
      const auto cut = cuts(vocabulary, parts);
      for (std::size_t k = 0; k < static_cast<std::size_t>(parts); ++k) {
        const std::int64_t first = cut[k], count = cut[k + 1] - first;
        const auto rows = [&](const Tensor& t) {
          return TensorView{t.view().data + static_cast<std::size_t>(first * c) * size_of(t.dtype()), t.dtype(), {count, c}};
        };
        Tensor local(DType::i32, {n}), part(dtype, {n, c}), part_with(dtype, {n, c}), fresh(wide, {count, c});
        auto grown = start, grown_p = start_p;
        math.ids_in_part(stream, local, tokens, first, count);
        math.embed(stream, part, local, rows(table), {}, seq);
        math.embed(stream, part_with, local, rows(table), positions, seq);
        math.embed_grad(stream, rows(grown), grown_p, local, dy, seq, Accumulate::yes);
        math.embed_grad(stream, fresh, {}, local, dy, seq, Accumulate::no);
        machine.sync();
        for (std::int64_t i = 0; i < n * c; ++i) {
          const bool here = local.get(i / c) >= 0;
          ASSERT_EQ(part.get(i), here ? y.get(i) : 0) << i;
          ASSERT_EQ(part_with.get(i), here ? with.get(i) : positions.get(i % (seq * c))) << i;
        }
        for (std::int64_t i = 0; i < vocabulary * c; ++i) {
          const bool here = i >= first * c && i < (first + count) * c;
          ASSERT_EQ(grown.get(i), (here ? dtable : start).get(i)) << i;
        }
        EXPECT_EQ(grown_p.bits(), dpositions.bits());
        Tensor whole(wide, {vocabulary, c});
        math.embed_grad(stream, whole, {}, tokens, dy, seq, Accumulate::no);
        machine.sync();
        for (std::int64_t i = 0; i < count * c; ++i) ASSERT_EQ(fresh.get(i), whole.get(first * c + i)) << i;
      }
    }
  }
}

TEST_F(LossTest, EqualsTheOracleAndItsGradient) {
  for (const auto dtype : kDtypes) {
    for (const auto shape : {Shape{1, 1}, Shape{9, 5}, Shape{40, 1037}, Shape{3, 50257}}) {
      const std::int64_t r = shape[0], v = shape[1];
      const double scale = 0.125;
      auto logits = random(dtype, shape, -8, 8);
      auto targets = random(DType::i32, {r}, 0, static_cast<double>(v));
      if (r > 2) targets.set(1, -1);
      const Oracle want(logits, targets, scale);
      Tensor loss(DType::fp64, {r}), alone(DType::fp64, {r}), dlogits(dtype, shape);
      math.cross_entropy(stream, alone, {}, logits, targets, scale);
      math.cross_entropy(stream, loss, dlogits, logits, targets, scale);
      machine.sync();
      EXPECT_EQ(loss.bits(), alone.bits());
      expect_near(loss, want.loss, dtype == DType::fp64 ? 1e-12 : 2e-6, "loss");
      expect_near(dlogits, want.gradient, tolerance(dtype), "dlogits");
      math.cross_entropy(stream, loss, logits, logits, targets, scale);  // in place
      machine.sync();
      EXPECT_EQ(logits.bits(), dlogits.bits());
    }
  }
}

// Rows with gaps give the same bits as rows without gaps, also in place, and the gaps are neither read nor written.
TEST_F(LossTest, GapsBehindRowsChangeNoBit) {
  const std::int64_t r = 5, v = 1037, stride = 1088;
  for (const auto dtype : kDtypes) {
    const auto logits = random(dtype, {r, v}, -8, 8);
    auto targets = random(DType::i32, {r}, 0, v);
    targets.set(1, -1);
    const DType wide = accumulator(dtype);
    Tensor loss(DType::fp64, {r}), dlogits(dtype, {r, v}), lse(wide, {r});
    Tensor part_loss(DType::fp64, {r}), part_dlogits(dtype, {r, v});
    math.cross_entropy(stream, loss, dlogits, logits, targets, 0.125);
    math.log_sum_exp(stream, lse, logits);
    math.cross_entropy_part(stream, part_loss, part_dlogits, logits, targets, lse, 0.125);
    machine.sync();
    const auto padded = [&](const Tensor& dense) {
      Tensor rows(dtype, {r, stride});  // NaN after each row
      for (std::int64_t i = 0; i < dense.size(); ++i) rows.set(i / v * stride + i % v, dense.get(i));
      return rows;
    };
    const auto view = [&](const Tensor& rows) { return MatrixView({rows.view().data, dtype, {r, v}}, stride); };
    const auto from = padded(logits), in_place = padded(logits), part_in_place = padded(logits);
    const Tensor to(dtype, {r, stride});
    Tensor loss_of_rows(DType::fp64, {r}), lse_of_rows(wide, {r}), part_loss_of_rows(DType::fp64, {r});
    math.cross_entropy(stream, loss_of_rows, view(to), view(from), targets, 0.125);
    math.cross_entropy(stream, loss_of_rows, view(in_place), view(in_place), targets, 0.125);
    math.log_sum_exp(stream, lse_of_rows, view(from));
    math.cross_entropy_part(stream, part_loss_of_rows, view(part_in_place), view(part_in_place), targets, lse_of_rows, 0.125);
    machine.sync();
    EXPECT_TRUE(loss.bits() == loss_of_rows.bits()) << name_of(dtype);
    EXPECT_TRUE(lse.bits() == lse_of_rows.bits()) << name_of(dtype);
    EXPECT_TRUE(part_loss.bits() == part_loss_of_rows.bits()) << name_of(dtype);
    for (const auto* const got : {&to, &in_place}) EXPECT_TRUE(padded(dlogits).bits() == got->bits()) << name_of(dtype);
    EXPECT_TRUE(padded(part_dlogits).bits() == part_in_place.bits()) << name_of(dtype);
    EXPECT_THROW(math.cross_entropy(stream, loss, dlogits, view(from), targets, 1), std::logic_error) << "two strides";
  }
}

TEST_F(LossTest, GradientEqualsCentralDifferences) {
  const std::int64_t r = 4, v = 21;
  auto logits = random(DType::fp64, {r, v}, -3, 3);
  const auto targets = random(DType::i32, {r}, 0, v);
  Tensor loss(DType::fp64, {r}), dlogits(DType::fp64, {r, v}), total(DType::fp64, {1});
  math.cross_entropy(stream, loss, dlogits, logits, targets, 0.5);
  machine.sync();
  expect_gradient(
      logits, dlogits,
      [&] {
        math.cross_entropy(stream, loss, {}, logits, targets, 0.5);
        math.sum(stream, total, loss, Accumulate::no);
        machine.sync();
        return 0.5 * total.get(0);
      },
      "dlogits");
}

TEST_F(LossTest, NonFiniteLogitsGiveANonFiniteLoss) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const auto dtype : kDtypes) {
      auto logits = random(dtype, {1, 100});
      logits.set(63, bad);
      Tensor targets(DType::i32, {1}), loss(DType::fp64, {1});
      targets.set(0, 3);
      math.cross_entropy(stream, loss, {}, logits, targets, 1);
      machine.sync();
      EXPECT_FALSE(std::isfinite(loss.get(0))) << bad << ' ' << name_of(dtype);
    }
  }
}

TEST_F(LossTest, PartsOfTheColumnsMakeTheWhole) {
  for (const auto dtype : kDtypes) {
    for (const auto shape : {Shape{9, 9}, Shape{40, 1037}, Shape{2, 20011}}) {
      for (const double most : {8.0, 300.0, 10000.0}) {  // exp of the larger ones overflows in every dtype
        const std::int64_t r = shape[0], v = shape[1];
        const double scale = 0.125;
        const auto logits = random(dtype, shape, -most, most);
        auto targets = random(DType::i32, {r}, 0, static_cast<double>(v));
        if (r > 3) targets.set(1, -1), targets.set(2, 0), targets.set(3, static_cast<double>(v - 1));
        if (r > 4) targets.set(4, math::kPadding);
        const Oracle want(logits, targets, scale);
        Tensor loss(DType::fp64, {r}), dlogits(dtype, shape);
        math.cross_entropy(stream, loss, dlogits, logits, targets, scale);
        machine.sync();
        // Each part's log-sum-exp is rounded, then the combined one; the error of the probabilities is the sum of both.
        const double rounding = most * (dtype == DType::fp64 ? 1e-15 : 3e-7);
        for (const auto parts : kParts) {
          SCOPED_TRACE(std::string(name_of(dtype)) + ", " + std::to_string(v) + " columns in " + std::to_string(parts) +
                       " parts, logits up to " + std::to_string(most));
          const auto got = by_parts(logits, targets, parts, scale);
          for (std::int64_t i = 0; i < r; ++i) {
            const double lse = want.lse[static_cast<std::size_t>(i)];
            if (targets.get(i) < 0) {
              EXPECT_EQ(got.lse.get(i), std::numeric_limits<double>::infinity()) << i;
              EXPECT_EQ(got.loss.get(i), 0) << i;
              for (std::int64_t j = 0; j < v; ++j) ASSERT_EQ(got.dlogits.get(i * v + j), 0) << i << ' ' << j;
            } else {
              EXPECT_NEAR(got.lse.get(i), lse, 1e-14 + rounding) << i;
            }
          }
          expect_near(got.loss, want.loss, dtype == DType::fp64 ? 1e-12 : 2e-6, "the sum of the losses");
          expect_near(got.dlogits, want.gradient, tolerance(dtype) + rounding, "the gradients side by side");
          expect_near(got.loss, loss.values(), dtype == DType::fp64 ? 1e-12 : 2e-6, "beside cross_entropy's loss");
          expect_near(got.dlogits, dlogits.values(), 2 * tolerance(dtype) + rounding, "beside cross_entropy's gradient");
        }
      }
    }
  }
}

TEST_F(LossTest, OnePartIsMergedToItself) {
  for (const auto dtype : {DType::fp32, DType::fp64}) {
    const auto parts = random(dtype, {1, 77}, -500, 500);
    Tensor targets(DType::i32, {77}), whole(dtype, {77});
    for (std::int64_t i = 0; i < 77; ++i) targets.set(i, static_cast<double>(i));
    math.merge_log_sums(stream, whole, parts, targets);
    machine.sync();
    EXPECT_EQ(whole.bits(), parts.bits());
  }
}

// A part that is masked completely adds nothing to the sum; a logit that is NaN or infinite is not hidden.
TEST_F(LossTest, PartsOfNonFiniteLogits) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const auto dtype : kDtypes) {
    auto logits = random(dtype, {2, 100}, -8, 8);
    for (std::int64_t j = 50; j < 100; ++j) logits.set(j, -kInfinity);
    Tensor targets(DType::i32, {2});
    targets.set(0, 3), targets.set(1, 77);
    const Oracle want(logits, targets, 1);
    const auto masked = by_parts(logits, targets, 4, 1);
    expect_near(masked.loss, want.loss, 2e-6, "loss");
    expect_near(masked.dlogits, want.gradient, tolerance(dtype), "dlogits");

    for (const double bad : {std::numeric_limits<double>::quiet_NaN(), kInfinity}) {
      auto worse = logits;
      worse.set(63, bad), worse.set(163, bad);
      const auto got = by_parts(worse, targets, 4, 1);
      for (std::int64_t i = 0; i < 2; ++i) {
        EXPECT_TRUE(std::isnan(got.lse.get(i))) << bad << ' ' << name_of(dtype);
        EXPECT_TRUE(std::isnan(got.loss.get(i))) << bad << ' ' << name_of(dtype);
        EXPECT_TRUE(std::isnan(got.dlogits.get(i * 100))) << bad << ' ' << name_of(dtype);
      }
    }
    for (std::int64_t j = 0; j < 50; ++j) logits.set(j, -kInfinity);
    Tensor lse(accumulator(dtype), {2});
    math.log_sum_exp(stream, lse, logits);
    machine.sync();
    EXPECT_EQ(lse.get(0), -kInfinity);
  }
}

TEST_F(LossTest, ATargetOutsideThePartIsAnError) {
  const auto logits = random(DType::fp32, {1, 5}), lse = random(DType::fp32, {1});
  for (const double bad : {-3.0, 5.0}) {
    Machine fresh;
    Tensor targets(DType::i32, {1}), loss(DType::fp64, {1});
    targets.set(0, bad);
    fresh.math.cross_entropy_part(*fresh.stream, loss, {}, logits, targets, lse, 1);
    EXPECT_THROW(fresh.sync(), std::out_of_range);
  }
}

TEST_F(LossTest, OperandsOfPartsThatDoNotMatchAreRefused) {
  Tensor logits(DType::bf16, {4, 5}), wide(DType::fp32, {4}), narrow(DType::bf16, {4}), loss(DType::fp64, {4});
  Tensor targets(DType::i32, {4}), few(DType::i32, {3}), parts(DType::fp32, {2, 4}), askew(DType::fp32, {4, 2});
  EXPECT_THROW(math.log_sum_exp(stream, narrow, logits), std::logic_error);
  EXPECT_THROW(math.log_sum_exp(stream, parts, logits), std::logic_error);
  EXPECT_THROW(math.merge_log_sums(stream, wide, askew, targets), std::logic_error);
  EXPECT_THROW(math.merge_log_sums(stream, wide, parts, few), std::logic_error);
  EXPECT_THROW(math.merge_log_sums(stream, narrow, narrow, targets), std::logic_error);
  EXPECT_THROW(math.cross_entropy_part(stream, loss, {}, logits, targets, narrow, 1), std::logic_error);
  EXPECT_THROW(math.cross_entropy_part(stream, wide, {}, logits, targets, wide, 1), std::logic_error);
  EXPECT_THROW(math.cross_entropy_part(stream, loss, parts, logits, targets, wide, 1), std::logic_error);
  EXPECT_THROW(math.ids_in_part(stream, few, targets, 0, 4), std::logic_error);
  EXPECT_THROW(math.ids_in_part(stream, targets, targets, -1, 4), std::logic_error);
  EXPECT_THROW(math.ids_in_part(stream, wide, wide, 0, 4), std::logic_error);
}

TEST_F(LossTest, ATargetOutsideTheVocabularyIsAnError) {
  const auto logits = random(DType::fp32, {1, 5});
  Tensor targets(DType::i32, {1}), loss(DType::fp64, {1});
  targets.set(0, 5);
  math.cross_entropy(stream, loss, {}, logits, targets, 1);
  EXPECT_THROW(machine.sync(), std::out_of_range);
  machine.stream = machine.device->make_stream("after the error");
}

}  // namespace
}  // namespace terrace::test
