// Softmaxes of rows whose scores lie in parts (core/math/math.h): the scores that a query sees are copied side by side, in the
// arithmetic type, and the results are written back to their places.
#include <terrace/core/math/cpu/attention_rows.h>
#include <terrace/core/math/cpu/ops.h>

namespace terrace::cpu {
namespace {

// Calls f(place of a run of neighbouring keys, its offset from `low`, its length) for the keys [low, high).
template <class F>
void each_run(const ScoreRows& s, std::int64_t matrix, std::int64_t query, std::int64_t low, std::int64_t high, F&& f) {
  for (auto key = low; key < high;) {
    const auto count = std::min(high, (key / s.keys + 1) * s.keys) - key;
    f(s.place(matrix, query, key), key - low, count);
    key += count;
  }
}

template <class T>
class Rows {
 public:
  using A = Acc<T>;
  Rows(Compute compute, const ScoreRows& shape)
      : shape_(shape),
        widen_(convert_kernel(compute.kernels, dtype_of_storage<A>, dtype_of_storage<T>, false)),
        narrow_(convert_kernel(compute.kernels, dtype_of_storage<T>, dtype_of_storage<A>, false)) {}

  void read(A* row, const T* scores, std::int64_t matrix, std::int64_t query) const {
    each_run(shape_, matrix, query, shape_.low(query), shape_.high(query),
             [&](auto place, auto at, auto count) { widen_(row + at, scores + place, count); });
  }
  // Keys that the query does not see get zeros.
  void write(T* scores, const A* row, std::int64_t matrix, std::int64_t query) const {
    const auto low = shape_.low(query), high = shape_.high(query), all = shape_.parts * shape_.keys;
    const auto clear = [&](std::int64_t from, std::int64_t to) {
      each_run(shape_, matrix, query, from, to, [&](auto place, auto, auto count) {
        std::fill_n(reinterpret_cast<std::byte*>(scores + place), count * static_cast<std::int64_t>(sizeof(T)), std::byte{0});
      });
    };
    clear(0, low);
    each_run(shape_, matrix, query, low, high,
             [&](auto place, auto at, auto count) { narrow_(scores + place, row + at, count); });
    clear(high, all);
  }

 private:
  const ScoreRows& shape_;
  const ConvertKernel widen_, narrow_;
};

// Calls f(matrix, query) for every row, on the pool.
template <class F>
void each_row(Compute compute, const ScoreRows& s, F&& f) {
  blocks(compute.pool, s.count_of_matrices * s.count, rows_a_task(s.parts * s.keys), [&](std::int64_t begin, std::int64_t end) {
    for (auto row = begin; row < end; ++row) f(s.first_matrix + row / s.count, row % s.count);
  });
}

}  // namespace

void softmax_rows(Compute compute, const ScoreRows& s, TensorView scores, double scale) {
  for_dtype(scores.dtype, [&]<class T>() {
    using A = Acc<T>;
    const Rows<T> rows(compute, s);
    each_row(compute, s, [&](std::int64_t matrix, std::int64_t query) {
      const auto count = s.high(query) - s.low(query), width = padded(count);
      A* const row = scratch<A>(Scratch::scores, width);
      rows.read(row, raw<const T>(scores), matrix, query);
      softmax_for<A>(compute.kernels).softmax_row(row, count, width, static_cast<A>(scale));
      rows.write(raw<T>(scores), row, matrix, query);
    });
  });
}

void softmax_rows_grad(Compute compute, const ScoreRows& s, TensorView gradient, TensorView probabilities, double scale) {
  for_dtype(gradient.dtype, [&]<class T>() {
    using A = Acc<T>;
    const Rows<T> rows(compute, s);
    each_row(compute, s, [&](std::int64_t matrix, std::int64_t query) {
      const auto count = s.high(query) - s.low(query);
      A* const p = scratch<A>(Scratch::probabilities, padded(count));
      A* const dp = scratch<A>(Scratch::scores, padded(count));
      rows.read(p, raw<const T>(probabilities), matrix, query);
      rows.read(dp, raw<const T>(gradient), matrix, query);
      A inner = 0;
      for (std::int64_t k = 0; k < count; ++k) inner += p[k] * dp[k];
      for (std::int64_t k = 0; k < count; ++k) dp[k] = p[k] * (dp[k] - inner) * static_cast<A>(scale);
      rows.write(raw<T>(gradient), dp, matrix, query);
    });
  });
}

}  // namespace terrace::cpu
