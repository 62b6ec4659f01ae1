// Experts: the choices of a router, one thread per token; the rows of all experts, one thread of a single block per expert; and
// the copy of rows to experts and back, one block per token.
#pragma once

#include <terrace/core/cuda/kernels/block_sums.h>
#include <terrace/core/cuda/kernels/vectors.h>
#include <terrace/core/math/routing.h>
#include <terrace/core/math/targets.h>

namespace terrace::cuda {

template <class T>
struct ChooseArgs {
  Routing routing;
  Acc<T>*gates, *lse;
  std::int32_t* experts;
  const T* logits;
  const std::int32_t* targets;  // may be null: no token is padding
  std::int64_t tokens;
};
// The same as choose() of core/math/cpu/routing.cpp.
template <class T>
struct ChooseExperts {
  static constexpr int kThreads = 128;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const ChooseArgs<T>& a) const {
    using A = Acc<T>;
    const auto& r = a.routing;
    const std::int64_t n = lane.block_x() * std::int64_t{kThreads} + lane.thread();
    if (n >= a.tokens) return;
    const T* const logits = a.logits + n * r.experts;
    std::int32_t* const experts = a.experts + n * r.chosen;
    A* const gates = a.gates + n * r.slots();
    A most = widen(logits[0]), sum = 0;
    for (std::int64_t e = 1; e < r.experts; ++e) most = widen(logits[e]) > most ? widen(logits[e]) : most;
    for (std::int64_t e = 0; e < r.experts; ++e) sum += exp_of(widen(logits[e]) - most);
    a.lse[n] = most + static_cast<A>(std::log(static_cast<double>(sum)));
    A of_chosen = 0;
    for (std::int64_t j = 0; j < r.chosen; ++j) {
      std::int64_t best = -1;
      A best_logit = 0;
      for (std::int64_t e = 0; e < r.experts; ++e) {
        bool taken = false;
        for (std::int64_t i = 0; i < j; ++i) taken = taken || experts[i] == e;
        const A logit = widen(logits[e]);
        if (taken || (best >= 0 && !(logit > best_logit))) continue;
        best = e, best_logit = logit;
      }
      experts[j] = static_cast<std::int32_t>(best);
      gates[j] = exp_of(best_logit - most);
      of_chosen += gates[j];
    }
    for (std::int64_t j = 0; j < r.chosen; ++j) gates[j] /= r.renormalise ? of_chosen : sum;
    for (std::int64_t j = r.chosen; j < r.slots(); ++j) gates[j] = A(1);
    if (a.targets == nullptr || a.targets[n] != math::kPadding) return;
    for (std::int64_t j = 0; j < r.chosen; ++j) experts[j] = -1, gates[j] = A(0);
  }
};

template <class T>
struct PlaceRowsArgs {
  Routing routing;
  std::int32_t* rows;
  double* report;
  const std::int32_t* experts;
  const Acc<T>* lse;
  const T* logits;
  std::int64_t tokens;
};
// One block. Each thread handles every threads()-th expert, and adds up its numbers in the order of tokens.
template <class T>
struct PlaceRows {
  static constexpr int kThreads = 256;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const PlaceRowsArgs<T>& a) const {
    const auto& r = a.routing;
    const RoutingReport at{r};
    double* const room = shared_as<double>(lane);
    const auto is_padding = [&](std::int64_t n) { return a.experts[n * r.chosen] < 0; };
    double dropped = 0;
    for (std::int64_t e = lane.thread(); e < r.all(); e += lane.threads()) {
      double asked = static_cast<double>(a.tokens), probability = 0;
      if (e < r.experts) {
        asked = 0;
        for (std::int64_t i = 0; i < a.tokens * r.chosen; ++i) asked += a.experts[i] == e ? 1 : 0;
        for (std::int64_t n = 0; n < a.tokens; ++n)
          if (!is_padding(n)) probability += static_cast<double>(exp_of(widen(a.logits[n * r.experts + e]) - a.lse[n]));
        a.report[at.asked() + e] = asked;
        a.report[at.chances() + e] = probability;
      }
      const auto most = static_cast<double>(r.capacity);
      const double takes = e < r.experts && r.capacity != 0 && asked > most ? most : asked;
      a.report[RoutingReport::kRows + e] = takes;
      dropped += asked - takes;
    }
    double squares = 0, tokens = 0;
    for (std::int64_t n = lane.thread(); n < a.tokens; n += lane.threads())
      if (!is_padding(n)) squares += static_cast<double>(a.lse[n]) * static_cast<double>(a.lse[n]), ++tokens;
    dropped = block_sum(lane, dropped, room);
    squares = block_sum(lane, squares, room);
    tokens = block_sum(lane, tokens, room);
    if (lane.thread() == 0) {
      a.report[RoutingReport::kDropped] = dropped;
      a.report[RoutingReport::kTokens] = tokens;
      a.report[RoutingReport::kSquares] = squares;
    }
    for (std::int64_t e = lane.thread(); e < r.all(); e += lane.threads()) {
      std::int64_t next = 0;
      for (std::int64_t b = 0; b < e; ++b) next += static_cast<std::int64_t>(a.report[RoutingReport::kRows + b]);
      const auto end = next + static_cast<std::int64_t>(a.report[RoutingReport::kRows + e]);
      if (e >= r.experts) {
        for (std::int64_t n = 0; n < a.tokens; ++n)
          a.rows[n * r.slots() + r.chosen + e - r.experts] = static_cast<std::int32_t>(next + n);
        continue;
      }
      // A padding token has no row: the thread of expert 0 writes the -1.
      for (std::int64_t n = 0; n < a.tokens; ++n)
        for (std::int64_t j = 0; j < r.chosen; ++j)
          if (e == 0 && is_padding(n))
            a.rows[n * r.slots() + j] = -1;
          else if (a.experts[n * r.chosen + j] == e)
            a.rows[n * r.slots() + j] = next < end ? static_cast<std::int32_t>(next++) : -1;
    }
  }
};

struct MergeReportsArgs {
  Routing routing;
  double* report;
  const double* parts;
  std::int64_t count;
};
// One block; each thread handles every threads()-th expert.
struct MergeReports {
  static constexpr int kThreads = 256;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const MergeReportsArgs& a) const {
    const std::int64_t experts = a.routing.experts;
    double* const sums = a.report + RoutingReport{a.routing}.asked();
    for (std::int64_t e = lane.thread(); e < experts; e += lane.threads()) {
      double asked = 0, chance = 0;
      for (std::int64_t k = 0; k < a.count; ++k) {
        asked += a.parts[k * 2 * experts + e];
        chance += a.parts[k * 2 * experts + experts + e];
      }
      sums[e] = asked, sums[experts + e] = chance;
    }
  }
};

template <class T>
struct RouteGradArgs {
  Routing routing;
  T* dlogits;
  const Acc<T>*dgates, *lse;
  const T* logits;
  const std::int32_t* experts;
  const double* report;
  std::int64_t tokens;
  double balance, squares;
};
// One thread per token. The gradient of a probability is recomputed where it is needed, so no memory for a row of them is used.
template <class T>
struct RouteGrad {
  static constexpr int kThreads = 128;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const RouteGradArgs<T>& a) const {
    using A = Acc<T>;
    const auto& r = a.routing;
    const std::int64_t n = lane.block_x() * std::int64_t{kThreads} + lane.thread();
    if (n >= a.tokens) return;
    const T* const logits = a.logits + n * r.experts;
    const std::int32_t* const experts = a.experts + n * r.chosen;
    const A* const dgates = a.dgates + n * r.slots();
    if (experts[0] < 0) {  // padding
      for (std::int64_t e = 0; e < r.experts; ++e) a.dlogits[n * r.experts + e] = narrow<T>(A(0));
      return;
    }
    const A log_sum = a.lse[n];
    const RoutingReport at{r};
    const double* const asked = a.report + at.asked();
    const double tokens = a.report[RoutingReport::kTokens], of_asked = a.balance * at.balance_scale(a.report);
    const auto probability = [&](std::int64_t e) { return exp_of(widen(logits[e]) - log_sum); };
    A of_chosen = 0, mean = 0;
    for (std::int64_t j = 0; j < r.chosen; ++j) {
      of_chosen += probability(experts[j]);
      mean += probability(experts[j]) * dgates[j];
    }
    const auto gradient = [&](std::int64_t e) {
      A sum = static_cast<A>(of_asked * asked[e]);
      for (std::int64_t j = 0; j < r.chosen; ++j)
        if (experts[j] == e) sum += r.renormalise ? (dgates[j] - mean / of_chosen) / of_chosen : dgates[j];
      return sum;
    };
    A all = 0;
    for (std::int64_t e = 0; e < r.experts; ++e) all += probability(e) * gradient(e);
    const A of_square = static_cast<A>(2 * a.squares * static_cast<double>(log_sum) / tokens);
    for (std::int64_t e = 0; e < r.experts; ++e)
      a.dlogits[n * r.experts + e] = narrow<T>(probability(e) * (gradient(e) - all + of_square));
  }
};

template <class T>
struct SlotsArgs {
  T* to;
  const T* from;
  const std::int32_t* rows;
  const Acc<T>* gates;  // may be null: all are 1
  std::int64_t slots, columns;
  bool accumulate, whole;
};
template <class T>
struct DispatchRows {
  static constexpr int kThreads = 256, kW = kWidth<T>;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const SlotsArgs<T>& a) const {
    const std::int64_t column = (static_cast<std::int64_t>(lane.block_y()) * lane.threads() + lane.thread()) * kW;
    const std::int64_t left = a.columns - column, n = lane.block_x();
    if (left <= 0) return;
    Acc<T> v[kW], scaled[kW];
    load(v, a.from + n * a.columns + column, left, a.whole);
    for (std::int64_t j = 0; j < a.slots; ++j) {
      const std::int64_t row = a.rows[n * a.slots + j];
      if (row < 0) continue;
      const Acc<T> gate = a.gates ? a.gates[n * a.slots + j] : Acc<T>(1);
      TERRACE_UNROLL
      for (int k = 0; k < kW; ++k) scaled[k] = v[k] * gate;
      store(a.to + row * a.columns + column, scaled, left, a.whole);
    }
  }
};
template <class T>
struct CombineRows {
  static constexpr int kThreads = 256, kW = kWidth<T>;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const SlotsArgs<T>& a) const {
    const std::int64_t column = (static_cast<std::int64_t>(lane.block_y()) * lane.threads() + lane.thread()) * kW;
    const std::int64_t left = a.columns - column, n = lane.block_x();
    if (left <= 0) return;
    Acc<T> sum[kW] = {}, v[kW];
    for (std::int64_t j = 0; j < a.slots; ++j) {
      const std::int64_t row = a.rows[n * a.slots + j];
      if (row < 0) continue;
      const Acc<T> gate = a.gates ? a.gates[n * a.slots + j] : Acc<T>(1);
      load(v, a.from + row * a.columns + column, left, a.whole);
      TERRACE_UNROLL
      for (int k = 0; k < kW; ++k) sum[k] += v[k] * gate;
    }
    deliver(a.to + n * a.columns + column, sum, left, a.whole, a.accumulate);
  }
};

template <class T>
struct GateGradArgs {
  Acc<T>* dgates;
  const T *dy, *from;
  const std::int32_t* rows;
  std::int64_t slots, columns;
  bool whole;
};
// One block per slot.
template <class T>
struct GateGrad {
  static constexpr int kThreads = 256;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const GateGradArgs<T>& a) const {
    constexpr int W = kWidth<T>;
    const std::int64_t slot = lane.block_x(), n = slot / a.slots, row = a.rows[slot];
    Acc<T> sum = 0;
    if (row >= 0)
      for_vectors<W>(lane, a.columns, [&](std::int64_t i, std::int64_t left) {
        Acc<T> u[W], v[W];
        load(u, a.dy + n * a.columns + i, left, a.whole);
        load(v, a.from + row * a.columns + i, left, a.whole);
        TERRACE_UNROLL
        for (int k = 0; k < W; ++k) sum += u[k] * v[k];
      });
    sum = block_sum(lane, sum, shared_as<Acc<T>>(lane));
    if (lane.thread() == 0) a.dgates[slot] = sum;
  }
};

}  // namespace terrace::cuda
