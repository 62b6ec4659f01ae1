// How a router sends tokens to experts: the sizes and settings of Math's operations for it.
//
// Each token has slots: one for each expert that the router chooses for it, then one for each shared expert, which takes all
// tokens. The rows are ordered by expert (shared experts last), then by token.
//
// Padding (core/math/targets.h) is routed nowhere: it chooses no expert and is not counted in a report. Shared experts are an
// exception: they take all tokens.
//
// Threads: values.
#pragma once

#include <cstdint>

namespace terrace {

struct Routing {
  std::int64_t experts = 1, chosen = 1;  // how many experts; how many of them take a token
  std::int64_t shared = 0;
  std::int64_t capacity = 0;  // most rows of an expert; the first tokens get them; 0: no limit. Shared experts have no limit.
  bool renormalise = true;    // the gates of a token's chosen experts add up to 1

  [[nodiscard]] constexpr std::int64_t slots() const { return chosen + shared; }
  [[nodiscard]] constexpr std::int64_t all() const { return experts + shared; }
  friend bool operator==(const Routing&, const Routing&) = default;
};

// What a router reports about the tokens of a call, as fp64 numbers. Reports are added over micro-batches and ranks.
struct RoutingReport {
  Routing routing;
  static constexpr std::int64_t kDropped = 0;  // slots that got no row, because their expert was full
  static constexpr std::int64_t kTokens = 1;   // number of tokens, without padding
  static constexpr std::int64_t kSquares = 2;  // sum of the squares of the logits' log-sum-exp
  static constexpr std::int64_t kRows = 3;     // first of the numbers of rows per expert, the shared ones last
  [[nodiscard]] constexpr std::int64_t asked() const { return kRows + routing.all(); }  // from here on: its choices
  // After these, for each expert: the sum of its probabilities over the tokens.
  [[nodiscard]] constexpr std::int64_t chances() const { return asked() + routing.experts; }
  [[nodiscard]] constexpr std::int64_t size() const { return chances() + routing.experts; }

  // E · Σ fₑ · Pₑ: 1 if the experts are chosen equally often. 0 without tokens.
  [[nodiscard]] constexpr double balance(const double* report) const {
    double sum = 0;
    for (std::int64_t e = 0; e < routing.experts; ++e) sum += report[asked() + e] * report[chances() + e];
    return sum * balance_scale(report);
  }
  // How many choices the report counts: `chosen` for each token but padding; after merge_reports(), those of all parts.
  [[nodiscard]] constexpr double choices(const double* report) const {
    double sum = 0;
    for (std::int64_t e = 0; e < routing.experts; ++e) sum += report[asked() + e];
    return sum;
  }
  // E ÷ (T² · chosen), where T is the number of tokens that made the report's choices.
  [[nodiscard]] constexpr double balance_scale(const double* report) const {
    const double all = choices(report);
    return all == 0 ? 0 : static_cast<double>(routing.experts * routing.chosen) / (all * all);
  }
};

}  // namespace terrace
