#include <terrace/examples/lm/data/mixture.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>
#include <terrace/core/math/philox.h>

namespace terrace::lm {

bool is_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error != std::errc::invalid_argument && end == text.data() + text.size();
}

namespace {

constexpr std::uint64_t kMostDigits = 1'000'000'000'000'000'000;  // times ten still fits

[[noreturn]] void refuse(std::string_view weight, std::string_view why) {
  throw base::Refused(fmt::format("the weight {}: {}", weight, why));
}
[[noreturn]] void refuse_digits(std::string_view weight) {
  refuse(weight, fmt::format("written as whole numbers, the weights add up to more than {}\n  give fewer digits: shares of all "
                             "sources with six digits always fit",
                             Mixture::kLongestPeriod));
}

// A number as digits · 10^exponent; `digits` has no trailing zeros.
struct Decimal {
  std::uint64_t digits = 0;
  int exponent = 0;
};

Decimal decimal_of(std::string_view text) {
  if (!is_number(text)) refuse(text, "it is no number");
  if (text.find_first_not_of("0123456789.eE+-") != std::string_view::npos || text.front() == '-')
    refuse(text, "it is not a positive number");
  Decimal d;
  const auto e = text.find_first_of("eE");
  bool fraction = false;
  for (const char c : text.substr(0, e)) {
    if (c == '.') {
      fraction = true;
      continue;
    }
    if (d.digits >= kMostDigits) refuse_digits(text);
    d.digits = d.digits * 10 + static_cast<std::uint64_t>(c - '0');
    d.exponent -= fraction ? 1 : 0;
  }
  if (d.digits == 0) refuse(text, "it is not a positive number; leave the source out");
  if (e != std::string_view::npos) {
    auto power = text.substr(e + 1);
    if (power.starts_with('+')) power.remove_prefix(1);
    int ten = 0;
    if (std::from_chars(power.data(), power.data() + power.size(), ten).ec != std::errc{}) refuse_digits(text);
    d.exponent += std::clamp(ten, -1000, 1000);
  }
  for (; d.digits % 10 == 0; ++d.exponent) d.digits /= 10;
  return d;
}

}  // namespace

std::vector<std::uint64_t> whole_weights(const std::vector<std::string>& weights) {
  std::vector<Decimal> decimals;
  for (const auto& weight : weights) decimals.push_back(decimal_of(weight));
  const auto least = std::ranges::min(decimals, {}, &Decimal::exponent).exponent;
  std::vector<std::uint64_t> whole;
  std::uint64_t divisor = 0;
  for (std::size_t s = 0; s < weights.size(); ++s) {
    auto [digits, exponent] = decimals[s];
    for (; exponent > least; --exponent) {
      if (digits >= kMostDigits) refuse_digits(weights[s]);
      digits *= 10;
    }
    whole.push_back(digits);
    divisor = std::gcd(divisor, digits);
  }
  std::uint64_t sum = 0;
  for (std::size_t s = 0; s < weights.size(); ++s) {
    whole[s] /= divisor;
    if (whole[s] > Mixture::kLongestPeriod || (sum += whole[s]) > Mixture::kLongestPeriod) refuse_digits(weights[s]);
  }
  return whole;
}

Mixture::Mixture(std::vector<std::uint64_t> weights, std::uint64_t seed)
    : weights_(std::move(weights)),
      seed_(seed),
      period_(std::accumulate(weights_.begin(), weights_.end(), std::uint64_t{0})),
      taken_(weights_.size()) {
  if (weights_.empty() || std::ranges::min(weights_) == 0 || period_ > kLongestPeriod)
    throw base::Refused("a mixture needs positive weights of a short period");
}

Mixture::Place Mixture::at(std::uint64_t i) {
  go_to(i);
  const auto source = next();
  return {source, i / period_ * weights_[source] + taken_[source]};
}

std::vector<std::uint64_t> Mixture::taken(std::uint64_t n) {
  go_to(n);
  auto all = taken_;
  for (std::size_t s = 0; s < all.size(); ++s) all[s] += n / period_ * weights_[s];
  return all;
}

void Mixture::go_to(std::uint64_t i) {
  if (i < i_ || i / period_ != i_ / period_) {
    std::ranges::fill(taken_, 0);
    i_ = i / period_ * period_;
  }
  for (; i_ < i; ++i_) ++taken_[next()];
}

// The window of a source's next sequence has begun if the source's share exceeds the number of sequences it has had; it ends
// before the place at which the share would exceed that number by one. If windows end together, the smallest random number
// decides.
std::size_t Mixture::next() const {
  const auto place = i_ % period_ + 1;  // the number of sequences in this period, including this one
  std::size_t chosen = weights_.size();
  std::uint64_t first_end = 0;
  std::uint32_t chosen_lot = 0;
  const auto lot_of = [&](std::size_t source) { return math::random_u32(seed_, math::stream_of("mixture") + source, i_); };
  bool drawn = false;
  for (std::size_t s = 0; s < weights_.size(); ++s) {
    if (place * weights_[s] <= taken_[s] * period_) continue;
    const auto end = ((taken_[s] + 1) * period_ + weights_[s] - 1) / weights_[s];
    if (chosen == weights_.size() || end < first_end) {
      chosen = s;
      first_end = end;
      drawn = false;
      continue;
    }
    if (end > first_end) continue;
    if (!std::exchange(drawn, true)) chosen_lot = lot_of(chosen);
    if (const auto lot = lot_of(s); lot < chosen_lot) {
      chosen = s;
      chosen_lot = lot;
    }
  }
  return chosen;
}

}  // namespace terrace::lm
