#include <terrace/examples/lm/weights/low_rank_sum.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include <terrace/core/base/units.h>
#include <terrace/core/math/dtype.h>
#include <terrace/optimizers/formats/each_isa.h>

namespace terrace::lm {
namespace {

constexpr std::int64_t kWidth = 32;              // columns whose sums are in registers
constexpr std::int64_t kTaskElements = 1 << 14;  // per pool task

template <class T>
double wide(T x) {
  if constexpr (std::is_same_v<T, bf16>)
    return static_cast<float>(x);
  else
    return static_cast<double>(x);
}
template <class T>
T narrow(double x) {
  if constexpr (std::is_same_v<T, bf16>)
    return bf16(static_cast<float>(x));
  else
    return static_cast<T>(x);
}

template <class F>
void with_numbers(const TensorView& view, F&& use) {
  switch (view.dtype) {
    case DType::fp64: return use(view.as<double>());
    case DType::bf16: return use(view.as<bf16>());
    default: return use(view.as<float>());
  }
}

// sums[j] = Σ left[k] · right[k, j]
struct Products {
  typedef double Eight __attribute__((vector_size(64)));

  TERRACE_INLINE static Eight eight(const double* at) {
    Eight numbers;
    __builtin_memcpy(&numbers, at, sizeof numbers);
    return numbers;
  }
  TERRACE_INLINE static void loop(double* sums, const double* left, const double* right, std::int64_t rank,
                                  std::int64_t columns, std::int64_t count) {
    if (count < kWidth) {
      for (std::int64_t j = 0; j < count; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < rank; ++k) sum += left[k] * right[k * columns + j];
        sums[j] = sum;
      }
      return;
    }
    Eight a{}, b{}, c{}, d{};
    for (std::int64_t k = 0; k < rank; ++k) {
      const double* const row = right + k * columns;
      a += left[k] * eight(row);
      b += left[k] * eight(row + 8);
      c += left[k] * eight(row + 16);
      d += left[k] * eight(row + 24);
    }
    const Eight all[] = {a, b, c, d};
    static_assert(sizeof all == kWidth * sizeof(double));
    __builtin_memcpy(sums, all, sizeof all);
  }
};

// Elements [first, last) of the matrix; `numbers` are those from `first` on.
template <class T>
void add(rules::Isa isa, T* numbers, std::int64_t first, std::int64_t last, const LowRank& sum) {
  std::array<double, kWidth> sums;
  for (auto at = first; at < last;) {
    const auto row = at / sum.columns, column = at % sum.columns;
    const auto count = std::min({kWidth, sum.columns - column, last - at});
    rules::run_loop<Products>(isa, sums.data(), sum.left.data() + row * sum.rank, sum.right.data() + column, sum.rank,
                              sum.columns, count);
    for (std::int64_t j = 0; j < count; ++j) {
      auto& number = numbers[at - first + j];
      number = narrow<T>(wide(number) + sum.scale * sums[static_cast<std::size_t>(j)]);
    }
    at += count;
  }
}

}  // namespace

void add_low_rank(ThreadPool& pool, const TensorView& range, std::int64_t first, const LowRank& sum) {
  const auto isa = rules::best_isa();
  const auto count = range.elements();
  const auto tasks = static_cast<std::int64_t>(ceil_div(static_cast<std::uint64_t>(count), kTaskElements));
  pool.parallel_for(tasks, [&](std::int64_t task) {
    const auto begin = task * kTaskElements, end = std::min(begin + kTaskElements, count);
    with_numbers(range, [&](auto* numbers) { add(isa, numbers + begin, first + begin, first + end, sum); });
  });
}

void widen(std::span<double> to, const TensorView& from) {
  with_numbers(from, [&](const auto* numbers) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = wide(numbers[i]);
  });
}

std::vector<double> transposed(std::span<const double> matrix, std::int64_t columns) {
  const auto rows = std::ssize(matrix) / columns;
  std::vector<double> out(matrix.size());
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      out[static_cast<std::size_t>(j * rows + i)] = matrix[static_cast<std::size_t>(i * columns + j)];
  return out;
}

}  // namespace terrace::lm
