// How a router sends tokens to experts, as sizes and settings of Math's operations.
//
// Each token has slots: one for each expert that the router chooses for it, then one for each shared expert, which takes all
// tokens. The rows of all experts lie behind each other: expert by expert, the shared ones last, and in each of them by token.
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

// What a router reports of the tokens of a call, as fp64 numbers:
struct RoutingReport {
  Routing routing;
  static constexpr std::int64_t kDropped = 0;  // slots without a place in their expert
  static constexpr std::int64_t kBalance = 1;  // E · Σ fₑ · Pₑ: 1 if the experts are chosen equally often
  static constexpr std::int64_t kSquares = 2;  // the mean square of the logits' log-sum-exp
  static constexpr std::int64_t kRows = 3;     // from here on the rows of each expert, the shared ones last
  [[nodiscard]] constexpr std::int64_t asked() const { return kRows + routing.all(); }  // from here on: its choices
  // From here on, behind these: the sum of its probabilities over the tokens.
  [[nodiscard]] constexpr std::int64_t chances() const { return asked() + routing.experts; }
  [[nodiscard]] constexpr std::int64_t size() const { return chances() + routing.experts; }
};

}  // namespace terrace
