// How a router sends tokens to experts, as sizes and settings of Math's operations.
//
// Each token has slots: one for each expert that the router chooses for it, then one for each shared expert, which takes all
// tokens. The rows of all experts lie behind each other: expert by expert, the shared ones last, and in each of them by token.
//
// Padding (core/targets.h) is routed nowhere: it chooses no expert and is in no number of a report, except that shared experts
// take all tokens.
//
// Threads: values.
#pragma once

#include <cstdint>

namespace terrace {

struct Routing {
  std::int64_t experts = 1, chosen = 1;  // of which so many take a token
  std::int64_t shared = 0;
  std::int64_t capacity = 0;  // rows that an expert takes, those of the first tokens; 0: all. Shared experts take all.
  bool renormalise = true;    // the gates of a token's chosen experts add up to 1

  [[nodiscard]] constexpr std::int64_t slots() const { return chosen + shared; }
  [[nodiscard]] constexpr std::int64_t all() const { return experts + shared; }
  friend bool operator==(const Routing&, const Routing&) = default;
};

// What a router reports of the tokens of a call, as fp64 numbers. They add up over micro-batches and ranks.
struct RoutingReport {
  Routing routing;
  static constexpr std::int64_t kDropped = 0;  // slots without a place in their expert
  static constexpr std::int64_t kTokens = 1;   // without padding
  static constexpr std::int64_t kSquares = 2;  // the squares of the logits' log-sum-exp
  static constexpr std::int64_t kRows = 3;     // from here on the rows of each expert, the shared ones last
  [[nodiscard]] constexpr std::int64_t asked() const { return kRows + routing.all(); }  // from here on: its choices
  // From here on, behind these: the sum of its probabilities over the tokens.
  [[nodiscard]] constexpr std::int64_t chances() const { return asked() + routing.experts; }
  [[nodiscard]] constexpr std::int64_t size() const { return chances() + routing.experts; }

  // E · Σ fₑ · Pₑ: 1 if the experts are chosen equally often. 0 without tokens.
  [[nodiscard]] constexpr double balance(const double* report) const {
    double sum = 0;
    for (std::int64_t e = 0; e < routing.experts; ++e) sum += report[asked() + e] * report[chances() + e];
    return sum * balance_scale(report);
  }
  // For each token but padding `chosen` of them: of all parts after merge_reports().
  [[nodiscard]] constexpr double choices(const double* report) const {
    double sum = 0;
    for (std::int64_t e = 0; e < routing.experts; ++e) sum += report[asked() + e];
    return sum;
  }
  // E ÷ (T² · chosen), for the tokens of all the report's choices.
  [[nodiscard]] constexpr double balance_scale(const double* report) const {
    const double all = choices(report);
    return all == 0 ? 0 : static_cast<double>(routing.experts * routing.chosen) / (all * all);
  }
};

}  // namespace terrace
