// Embeddings and the loss against oracles.
#include "math_fixture.h"

namespace terrace::test {
namespace {

class EmbedTest : public MathTest {};
class LossTest : public MathTest {};

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
    for (std::int64_t i = 0; i < n; i += 3) tokens.set(i, 1024);  // many uses of one token
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
  for (const double bad : {-1.0, 5.0}) {
    Machine fresh;
    Tensor tokens(DType::i32, {2}), y(DType::fp32, {2, 3});
    tokens.set(0, 0), tokens.set(1, bad);
    fresh.math.embed(*fresh.stream, y, tokens, table, {}, 2);
    EXPECT_THROW(fresh.sync(), std::out_of_range);
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
      std::vector<double> want_loss, want_grad;
      for (std::int64_t i = 0; i < r; ++i) {
        double total = 0;
        for (std::int64_t j = 0; j < v; ++j) total += std::exp(logits.get(i * v + j));
        const auto target = static_cast<std::int64_t>(targets.get(i));
        want_loss.push_back(target < 0 ? 0 : std::log(total) - logits.get(i * v + target));
        for (std::int64_t j = 0; j < v; ++j) {
          const double p = std::exp(logits.get(i * v + j)) / total;
          want_grad.push_back(target < 0 ? 0 : (p - (j == target ? 1 : 0)) * scale);
        }
      }
      Tensor loss(DType::fp64, {r}), alone(DType::fp64, {r}), dlogits(dtype, shape);
      math.cross_entropy(stream, alone, {}, logits, targets, scale);
      math.cross_entropy(stream, loss, dlogits, logits, targets, scale);
      machine.sync();
      EXPECT_EQ(loss.bits(), alone.bits());
      expect_near(loss, want_loss, dtype == DType::fp64 ? 1e-12 : 2e-6, "loss");
      expect_near(dlogits, want_grad, tolerance(dtype), "dlogits");
      math.cross_entropy(stream, loss, logits, logits, targets, scale);  // in place
      machine.sync();
      EXPECT_EQ(logits.bits(), dlogits.bits());
    }
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
