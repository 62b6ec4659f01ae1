// Experts: assigns tokens to rows of experts, moves them there and back.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include <terrace/core/math/cpu/ops.h>

namespace terrace::cpu {
namespace {

// Converts row `r` of a matrix to the type of sums.
template <class T>
void widen_row(Compute compute, Acc<T>* to, const TensorView& from, std::int64_t r) {
  const std::int64_t columns = columns_of(from);
  convert_kernel(compute.kernels, dtype_of<Acc<T>>::value, from.dtype, false)(
      to, from.data + r * columns * static_cast<std::int64_t>(sizeof(T)), columns);
}

// The choices and gates of one token. A NaN is chosen last.
template <class A>
void choose(const Routing& routing, A* gates, std::int32_t* experts, A* lse, const A* logits) {
  A most = logits[0];
  for (std::int64_t e = 1; e < routing.experts; ++e) most = logits[e] > most ? logits[e] : most;
  A sum = 0;
  for (std::int64_t e = 0; e < routing.experts; ++e) sum += std::exp(logits[e] - most);
  *lse = most + std::log(sum);
  const auto taken = [&](std::int64_t e, std::int64_t before) {
    for (std::int64_t j = 0; j < before; ++j)
      if (experts[j] == e) return true;
    return false;
  };
  A of_chosen = 0;
  for (std::int64_t j = 0; j < routing.chosen; ++j) {
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < routing.experts; ++e)
      if (!taken(e, j) && (best < 0 || logits[e] > logits[best])) best = e;
    experts[j] = static_cast<std::int32_t>(best);
    gates[j] = std::exp(logits[best] - most);
    of_chosen += gates[j];
  }
  for (std::int64_t j = 0; j < routing.chosen; ++j) gates[j] /= routing.renormalise ? of_chosen : sum;
  for (std::int64_t j = routing.chosen; j < routing.slots(); ++j) gates[j] = 1;
}

// The choices and gates of a padding token.
template <class A>
void choose_none(const Routing& routing, A* gates, std::int32_t* experts) {
  std::fill(experts, experts + routing.chosen, -1);
  std::fill(gates, gates + routing.chosen, A{0});
}

// Assigns rows by expert, then by token, and fills in the report's numbers about them.
void place_rows(const Routing& routing, std::int64_t tokens, std::int32_t* rows, const std::int32_t* experts, double* report) {
  const RoutingReport at{routing};
  double* const asked = report + at.asked();
  double* const kept = report + RoutingReport::kRows;
  std::fill(asked, asked + routing.experts, 0.0);
  for (std::int64_t i = 0; i < tokens * routing.chosen; ++i)
    if (experts[i] >= 0) ++asked[experts[i]];
  std::vector<std::int64_t> next, end;
  std::int64_t first = 0;
  double dropped = 0;
  for (std::int64_t e = 0; e < routing.all(); ++e) {
    const auto all = e < routing.experts ? static_cast<std::int64_t>(asked[e]) : tokens;
    const auto takes = e < routing.experts && routing.capacity != 0 ? std::min(all, routing.capacity) : all;
    kept[e] = static_cast<double>(takes);
    dropped += static_cast<double>(all - takes);
    next.push_back(first);
    end.push_back(first += takes);
  }
  report[RoutingReport::kDropped] = dropped;
  for (std::int64_t n = 0; n < tokens; ++n)
    for (std::int64_t j = 0; j < routing.slots(); ++j) {
      const auto expert = j < routing.chosen ? experts[n * routing.chosen + j] : routing.experts + j - routing.chosen;
      const auto e = static_cast<std::size_t>(std::max<std::int64_t>(expert, 0));
      rows[n * routing.slots() + j] = expert >= 0 && next[e] < end[e] ? static_cast<std::int32_t>(next[e]++) : -1;
    }
}

// Calls f(token, the rows of its slots, their gates or null) for all tokens.
template <class A, class F>
void for_tokens(Compute compute, std::int64_t columns, const TensorView& rows, const TensorView& gates, F&& f) {
  const std::int64_t slots = rows.shape[1];
  blocks(compute.pool, rows.shape[0], rows_a_task(columns * slots), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n)
      f(n, raw<const std::int32_t>(rows) + n * slots, gates.empty() ? nullptr : raw<A>(gates) + n * slots);
  });
}

}  // namespace

void route(Compute compute, const Routing& routing, TensorView gates, TensorView experts, TensorView rows, TensorView lse,
           TensorView report, TensorView logits, TensorView targets) {
  const std::int64_t n = rows_of(logits), width = routing.experts;
  auto* const numbers = raw<double>(report);
  const auto is_padding = [&](std::int64_t i) {
    return !targets.empty() && raw<const std::int32_t>(targets)[i] == math::kPadding;
  };
  for_dtype(logits.dtype, [&]<class T>() {
    using A = Acc<T>;
    blocks(compute.pool, n, rows_a_task(width * routing.chosen), [&](std::int64_t begin, std::int64_t end) {
      A* const row = scratch<A>(Scratch::tile, width);
      for (std::int64_t i = begin; i < end; ++i) {
        widen_row<T>(compute, row, logits, i);
        auto* const gate = raw<A>(gates) + i * routing.slots();
        auto* const expert = raw<std::int32_t>(experts) + i * routing.chosen;
        choose(routing, gate, expert, raw<A>(lse) + i, row);
        if (is_padding(i)) choose_none(routing, gate, expert);
      }
    });
    place_rows(routing, n, raw<std::int32_t>(rows), raw<const std::int32_t>(experts), numbers);
    // Summed in fp64, token after token.
    A* const row = scratch<A>(Scratch::tile, width);
    std::vector<double> probability(static_cast<std::size_t>(width));
    double squares = 0, tokens = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      if (is_padding(i)) continue;
      widen_row<T>(compute, row, logits, i);
      const A log_sum = raw<A>(lse)[i];
      for (std::int64_t e = 0; e < width; ++e) probability[static_cast<std::size_t>(e)] += std::exp(row[e] - log_sum);
      squares += static_cast<double>(log_sum) * log_sum;
      ++tokens;
    }
    std::ranges::copy(probability, numbers + RoutingReport{routing}.chances());
    numbers[RoutingReport::kTokens] = tokens;
    numbers[RoutingReport::kSquares] = squares;
  });
}

void route_grad(Compute compute, const Routing& routing, TensorView dlogits, TensorView dgates, TensorView logits,
                TensorView experts, TensorView lse, TensorView report, double balance, double squares) {
  const std::int64_t n = rows_of(logits), width = routing.experts;
  const RoutingReport at{routing};
  const auto* const numbers = raw<const double>(report);
  const auto* const asked = numbers + at.asked();
  const double tokens = numbers[RoutingReport::kTokens], of_asked = balance * at.balance_scale(numbers);
  for_dtype(logits.dtype, [&]<class T>() {
    using A = Acc<T>;
    const auto narrow = convert_kernel(compute.kernels, logits.dtype, dtype_of<A>::value, false);
    blocks(compute.pool, n, rows_a_task(width), [&](std::int64_t begin, std::int64_t end) {
      A* const probability = scratch<A>(Scratch::tile, width);
      A* const gradient = scratch<A>(Scratch::panel, width);  // first of the probabilities, then of the logits
      for (std::int64_t i = begin; i < end; ++i) {
        auto* const row = dlogits.data + i * width * static_cast<std::int64_t>(sizeof(T));
        const auto* const expert = raw<const std::int32_t>(experts) + i * routing.chosen;
        if (expert[0] < 0) {  // padding
          std::memset(row, 0, static_cast<std::size_t>(width) * sizeof(T));
          continue;
        }
        widen_row<T>(compute, probability, logits, i);
        const A log_sum = raw<A>(lse)[i];
        for (std::int64_t e = 0; e < width; ++e) probability[e] = std::exp(probability[e] - log_sum);
        for (std::int64_t e = 0; e < width; ++e) gradient[e] = static_cast<A>(of_asked * asked[e]);
        const A* const dgate = raw<A>(dgates) + i * routing.slots();
        A of_chosen = 0, mean = 0;
        for (std::int64_t j = 0; j < routing.chosen; ++j) {
          of_chosen += probability[expert[j]];
          mean += probability[expert[j]] * dgate[j];
        }
        for (std::int64_t j = 0; j < routing.chosen; ++j)
          gradient[expert[j]] += routing.renormalise ? (dgate[j] - mean / of_chosen) / of_chosen : dgate[j];
        A all = 0;
        for (std::int64_t e = 0; e < width; ++e) all += probability[e] * gradient[e];
        const A of_square = static_cast<A>(2 * squares * log_sum / tokens);
        for (std::int64_t e = 0; e < width; ++e) gradient[e] = probability[e] * (gradient[e] - all + of_square);
        narrow(row, gradient, width);
      }
    });
  });
}

void merge_reports(Compute, const Routing& routing, TensorView report, TensorView parts) {
  auto* const sums = raw<double>(report) + RoutingReport{routing}.asked();
  const std::int64_t each = 2 * routing.experts;
  std::fill(sums, sums + each, 0.0);
  for (std::int64_t k = 0; k < rows_of(parts); ++k)
    for (std::int64_t i = 0; i < each; ++i) sums[i] += raw<const double>(parts)[k * each + i];
}

void dispatch(Compute compute, TensorView to, TensorView from, TensorView rows, TensorView gates) {
  const std::int64_t columns = columns_of(from), slots = rows.shape[1];
  for_dtype(from.dtype, [&]<class T>() {
    using A = Acc<T>;
    const auto narrow = convert_kernel(compute.kernels, to.dtype, dtype_of<A>::value, false);
    for_tokens<A>(compute, columns, rows, gates, [&](std::int64_t n, const std::int32_t* row, const A* gate) {
      const T* const token = raw<T>(from) + n * columns;
      for (std::int64_t j = 0; j < slots; ++j) {
        if (row[j] < 0) continue;
        T* const out = raw<T>(to) + row[j] * columns;
        if (!gate) {
          std::memcpy(out, token, static_cast<std::size_t>(columns) * sizeof(T));
          continue;
        }
        A* const scaled = scratch<A>(Scratch::tile, columns);
        std::fill(scaled, scaled + columns, A{0});
        kernels_for<T>(compute.kernels).axpy(scaled, gate[j], token, columns);
        narrow(out, scaled, columns);
      }
    });
  });
}

void combine(Compute compute, TensorView to, TensorView from, TensorView rows, TensorView gates, Accumulate accumulate) {
  const std::int64_t columns = columns_of(to), slots = rows.shape[1];
  for_dtype(to.dtype, [&]<class T>() {
    using A = Acc<T>;
    const auto deliver = convert_kernel(compute.kernels, to.dtype, dtype_of<A>::value, accumulate == Accumulate::yes);
    for_tokens<A>(compute, columns, rows, gates, [&](std::int64_t n, const std::int32_t* row, const A* gate) {
      A* const total = scratch<A>(Scratch::tile, columns);
      std::fill(total, total + columns, A{0});
      for (std::int64_t j = 0; j < slots; ++j)
        if (row[j] >= 0)
          kernels_for<T>(compute.kernels).axpy(total, gate ? gate[j] : A{1}, raw<T>(from) + row[j] * columns, columns);
      deliver(to.data + n * columns * static_cast<std::int64_t>(sizeof(T)), total, columns);
    });
  });
}

void gate_grad(Compute compute, TensorView dgates, TensorView dy, TensorView from, TensorView rows) {
  const std::int64_t columns = columns_of(dy), slots = rows.shape[1];
  for_dtype(dy.dtype, [&]<class T>() {
    using A = Acc<T>;
    for_tokens<A>(compute, columns, rows, dgates, [&](std::int64_t n, const std::int32_t* row, A* dgate) {
      A* const token = scratch<A>(Scratch::tile, columns);
      A* const result = scratch<A>(Scratch::panel, columns);
      widen_row<T>(compute, token, dy, n);
      for (std::int64_t j = 0; j < slots; ++j) {
        dgate[j] = 0;
        if (row[j] < 0) continue;
        widen_row<T>(compute, result, from, row[j]);
        constexpr std::int64_t kSums = 8;  // sum j has the products c with c % 8 == j, so that a vector is added at a time
        std::array<A, kSums> sums{};
        for (std::int64_t c = 0; c < columns; ++c) sums[static_cast<std::size_t>(c % kSums)] += token[c] * result[c];
        for (const A sum : sums) dgate[j] += sum;
      }
    });
  });
}

}  // namespace terrace::cpu
