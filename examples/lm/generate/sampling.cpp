#include <terrace/examples/lm/generate/sampling.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <terrace/core/base/error.h>
#include <terrace/core/math/philox.h>

namespace terrace::lm {
namespace {

constexpr std::uint64_t kSamplingStream = 0x73616d706c65;  // "sample"

void demand_distribution(std::span<const double> logits) {
  const bool numbers = std::ranges::none_of(logits, [](double l) { return std::isnan(l) || l == HUGE_VAL; });
  if (numbers && std::ranges::any_of(logits, [](double l) { return std::isfinite(l); })) return;
  throw Error(
      "the model computes logits that are not finite, so no token can be drawn\n  the run has diverged, or its --dtype is too "
      "narrow: generate from an earlier copy of it");
}

// Keskar and others, "CTRL" (2019), section 4.1. As in Hugging Face's library, a negative logit is multiplied, because dividing
// it would make its token likelier.
void penalise(std::span<double> logits, std::span<const std::int32_t> seen, double penalty) {
  std::vector<std::int32_t> once(seen.begin(), seen.end());
  std::ranges::sort(once);
  const auto repeated = std::ranges::unique(once);
  once.erase(repeated.begin(), repeated.end());
  for (const auto token : once) {
    if (token < 0 || static_cast<std::size_t>(token) >= logits.size()) continue;
    auto& logit = logits[static_cast<std::size_t>(token)];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
}

// The `most` likeliest tokens in order; 0: all. A full sort of a vocabulary costs more than its softmax.
std::vector<std::int32_t> likeliest(std::span<const double> logits, std::size_t most) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](std::int32_t a, std::int32_t b) {
    const auto of_a = logits[static_cast<std::size_t>(a)], of_b = logits[static_cast<std::size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  };
  if (most == 0 || most >= order.size()) {
    std::ranges::sort(order, before);
    return order;
  }
  std::ranges::partial_sort(order, order.begin() + static_cast<std::ptrdiff_t>(most), before);
  order.resize(most);
  return order;
}

// Holtzman and others, "The curious case of neural text degeneration" (2020): the fewest tokens whose shares reach p.
void keep_nucleus(std::vector<Candidate>& tokens, double top_p) {
  double reached = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    reached += tokens[i].probability;
    if (reached >= top_p) return tokens.resize(i + 1);
  }
}

void normalise(std::vector<Candidate>& tokens) {
  double total = 0;
  for (const auto& token : tokens) total += token.probability;
  for (auto& token : tokens) token.probability /= total;
}

}  // namespace

std::vector<Candidate> candidates(std::vector<double> logits, const Sampling& sampling, std::span<const std::int32_t> seen) {
  demand_distribution(logits);
  if (sampling.repetition_penalty != 1) penalise(logits, seen, sampling.repetition_penalty);
  const bool greedy = sampling.temperature <= 0;
  std::vector<Candidate> tokens;
  const auto order = likeliest(logits, greedy ? 1 : static_cast<std::size_t>(sampling.top_k));
  const double most = logits[static_cast<std::size_t>(order.front())];
  for (const auto token : order) {
    const auto below = logits[static_cast<std::size_t>(token)] - most;
    tokens.push_back({token, greedy ? 1.0 : std::exp(below / sampling.temperature)});
  }
  normalise(tokens);
  if (sampling.top_p < 1) {
    keep_nucleus(tokens, sampling.top_p);
    normalise(tokens);
  }
  return tokens;
}

std::int32_t sample(std::vector<double> logits, const Sampling& sampling, std::span<const std::int32_t> seen,
                    std::uint64_t position) {
  const auto tokens = candidates(std::move(logits), sampling, seen);
  double draw = math::random_uniform(sampling.seed, kSamplingStream, position);
  for (const auto& token : tokens) {
    draw -= token.probability;
    if (draw < 0) return token.token;
  }
  return tokens.front().token;  // rounding made the shares sum to less than 1
}

}  // namespace terrace::lm
