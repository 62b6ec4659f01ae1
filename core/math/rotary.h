// The angles of rotary positions (Su et al. 2021): pair i of a head of D elements turns by `position · frequency(i, D)`.
//
// Models that were trained further on longer sequences change the frequencies. The kinds and their parameters are those of
// `rope_scaling` in a Hugging Face config.json:
//
//   linear   every frequency is divided by `factor` (position interpolation, Chen et al. 2023)
//   llama3   pairs with waves longer than original / low are divided by `factor`; pairs with waves shorter than
//            original / high stay; between them the two are blended (Llama 3.1)
//   dynamic  in sequences longer than `original` the base grows with their length
//   longrope each pair has its own divisor, from one list for sequences of at most `original` positions and from
//            another for longer ones; rotated vectors are multiplied by `length` (Ding et al. 2024)
//   yarn     pairs that turn at least `fast` times in `original` positions stay, those that turn at most `slow` times
//            are divided, the rest are blended; rotated vectors are multiplied by `length` (Peng et al. 2023)
//
// Threads: values; pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <vector>

namespace terrace {

enum class RotaryScaling : std::uint8_t { none, linear, dynamic, llama3, yarn, longrope };

struct Rotary {
  double base = 10000;
  RotaryScaling scaling = RotaryScaling::none;
  double factor = 1;
  double original = 0;                      // all but linear: sequence length of the first training
  double positions = 0;                     // dynamic, longrope: sequence length of the run
  double low = 1, high = 4;                 // llama3
  double fast = 32, slow = 1;               // yarn
  bool whole = true;                        // yarn: the blend begins and ends at whole pairs
  double length = 1;                        // factor for the length of rotated vectors
  std::vector<double> near = {}, far = {};  // longrope: divisors of the pairs, for shorter and for longer sequences

  Rotary() = default;
  Rotary(double theta) : base(theta) {}  // NOLINT: a base alone is what most models have

  [[nodiscard]] double frequency(std::int64_t pair, std::int64_t dim) const {
    const double plain = std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(dim));
    switch (scaling) {
      case RotaryScaling::linear: return plain / factor;
      case RotaryScaling::dynamic: return dynamic(plain, pair, dim);
      case RotaryScaling::llama3: return llama3(plain);
      case RotaryScaling::yarn: return yarn(plain, pair, dim);
      case RotaryScaling::longrope: return plain / (positions > original ? far : near).at(static_cast<std::size_t>(pair));
      default: return plain;
    }
  }
  friend bool operator==(const Rotary&, const Rotary&) = default;

 private:
  // The base times s^(D / (D − 2)), where s is 1 at `original` positions.
  [[nodiscard]] double dynamic(double plain, std::int64_t pair, std::int64_t dim) const {
    if (positions <= original || dim <= 2) return plain;
    const double s = factor * positions / original - (factor - 1), d = static_cast<double>(dim);
    return plain * std::pow(s, -2.0 * static_cast<double>(pair) / (d - 2));
  }
  [[nodiscard]] double llama3(double plain) const {
    const double wave = 2 * std::numbers::pi_v<double> / plain;
    if (wave > original / low) return plain / factor;
    if (wave < original / high) return plain;
    const double blend = (original / wave - low) / (high - low);
    return (1 - blend) * plain / factor + blend * plain;
  }
  // The pair that turns `turns` times in `original` positions (a fraction in general).
  [[nodiscard]] double pair_of(double turns, std::int64_t dim) const {
    return static_cast<double>(dim) * std::log(original / (turns * 2 * std::numbers::pi_v<double>)) / (2 * std::log(base));
  }
  [[nodiscard]] double yarn(double plain, std::int64_t pair, std::int64_t dim) const {
    double first = pair_of(fast, dim), last = pair_of(slow, dim);
    if (whole) first = std::floor(first), last = std::ceil(last);
    first = std::max(first, 0.0);
    last = std::min(last, static_cast<double>(dim - 1));
    if (first == last) last += 0.001;
    const double divided = std::clamp((static_cast<double>(pair) - first) / (last - first), 0.0, 1.0);
    return plain / factor * divided + plain * (1 - divided);
  }
};

}  // namespace terrace
