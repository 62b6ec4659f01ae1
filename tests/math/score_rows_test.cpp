// Softmaxes of rows whose scores are split into parts, and their gradients, compared with the definition in fp64: causal, with
// windows, and with a document that begins inside.
#include <terrace/tests/math/math_fixture.h>

namespace terrace::test {
namespace {

class ScoreRowsTest : public MathTest {};

// Three parts of six keys; three matrices of six queries, whose positions are those of the last part.
constexpr ScoreRows kAll{.parts = 3, .matrices = 3, .every = 6, .keys = 6, .count_of_matrices = 3, .count = 6, .position = 12};

std::vector<ScoreRows> cases() {
  auto some = kAll;  // of a document that begins in the second part
  some.first_matrix = 1;
  some.count_of_matrices = 2;
  some.first = 2;
  some.count = 3;
  some.position = 14;
  some.begin = 8;
  std::vector<ScoreRows> all{kAll, some};
  for (const std::int64_t window : {1, 5, 9, 40})
    for (auto rows : {kAll, some}) {
      rows.window = window;
      all.push_back(rows);
    }
  all.push_back(
      {.parts = 2, .matrices = 2, .every = 40, .keys = 40, .count_of_matrices = 2, .count = 40});  // queries of the first part
  return all;
}

TEST_F(ScoreRowsTest, AreTheSoftmaxOfWhatAQuerySees) {
  constexpr double kScale = 0.7;
  for (const auto dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16})
    for (const auto& s : cases()) {
      SCOPED_TRACE(testing::Message() << "window " << s.window << " begin " << s.begin << ' ' << name_of(dtype));
      const Shape shape{s.parts, s.matrices * s.every, s.keys};
      auto p = random(dtype, shape, -3, 3);
      const auto scores = p.values();
      const auto bound = dtype == DType::fp64 ? 1e-13 : dtype == DType::fp32 ? 1e-6 : 1e-2;
      math.softmax_rows(stream, s, p, kScale);
      stream.synchronize();
      auto expected = scores;
      const auto each_row = [&](auto f) {
        for (auto m = s.first_matrix; m < s.first_matrix + s.count_of_matrices; ++m)
          for (std::int64_t i = 0; i < s.count; ++i) f(m, i);
      };
      const auto at = [&](std::int64_t m, std::int64_t i, std::int64_t key) {
        return static_cast<std::size_t>(s.place(m, i, key));
      };
      const auto sees = [&](std::int64_t i, std::int64_t key) {
        const auto position = s.position + i;
        return key <= position && key >= s.begin && (s.window == 0 || key > position - s.window);
      };
      each_row([&](auto m, auto i) {
        double sum = 0;
        for (std::int64_t k = 0; k < s.parts * s.keys; ++k)
          if (sees(i, k)) sum += std::exp(kScale * scores[at(m, i, k)]);
        for (std::int64_t k = 0; k < s.parts * s.keys; ++k)
          expected[at(m, i, k)] = sees(i, k) ? std::exp(kScale * scores[at(m, i, k)]) / sum : 0;
      });
      const auto found = p.values();
      for (std::size_t e = 0; e < found.size(); ++e) ASSERT_NEAR(expected[e], found[e], bound) << e;

      auto gradient = random(dtype, shape, -2, 2);
      const auto given = gradient.values();
      math.softmax_rows_grad(stream, s, gradient, p, kScale);
      stream.synchronize();
      expected = given;
      each_row([&](auto m, auto i) {
        double inner = 0;
        for (std::int64_t k = 0; k < s.parts * s.keys; ++k)
          if (sees(i, k)) inner += found[at(m, i, k)] * given[at(m, i, k)];
        for (std::int64_t k = 0; k < s.parts * s.keys; ++k)
          expected[at(m, i, k)] = sees(i, k) ? found[at(m, i, k)] * (given[at(m, i, k)] - inner) * kScale : 0;
      });
      const auto got = gradient.values();
      for (std::size_t e = 0; e < got.size(); ++e) ASSERT_NEAR(expected[e], got[e], 2 * bound) << e;
    }
}

TEST_F(ScoreRowsTest, RowsOutsideTheScoresAreRefused) {
  auto p = random(DType::fp32, {3, 18, 6}, -3, 3);
  for (const auto change : std::vector<void (*)(ScoreRows&)>{
           [](ScoreRows& s) { s.first = 1; }, [](ScoreRows& s) { s.first_matrix = 1; }, [](ScoreRows& s) { s.position = 13; },
           [](ScoreRows& s) { s.begin = 13; }, [](ScoreRows& s) { s.parts = 2; }}) {
    auto s = kAll;
    change(s);
    EXPECT_THROW(math.softmax_rows(stream, s, p, 1), std::logic_error);
  }
}

}  // namespace
}  // namespace terrace::test
