// A chunk in memory in a recipe's formats, with access to its plain numbers. The conversions here work on one element at a time
// and share no code with those under test.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/recipe.h>

namespace terrace::test {

// The sign and payload of a NaN are not guaranteed: they depend on which operand of a sum the compiler loads first.
template <class A>
bool same(A a, A b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

inline float widened(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
// Rounds to nearest, ties to the greater magnitude.
inline std::uint16_t nearest_ties_away(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits >> 16) + ((bits & 0xffffU) >= 0x8000U ? 1 : 0));
}

// Rounds to nearest, ties to even.
inline std::uint16_t nearest_ties_even(float x) {
  const auto away = nearest_ties_away(x);
  const bool tie = (std::bit_cast<std::uint32_t>(x) & 0xffffU) == 0x8000U && !std::isnan(x);
  return tie && away % 2 == 1 ? static_cast<std::uint16_t>(away - 1) : away;
}
// Rounds to the nearest fp16, ties to even: computes the number of units in the last place.
inline std::uint16_t nearest_fp16(float x) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000 : 0);
  if (std::isnan(x)) return sign | 0x7e00;
  const double magnitude = std::abs(static_cast<double>(x));
  const int exponent = magnitude == 0 ? -14 : std::max(-14, std::min(16, std::ilogb(magnitude)));
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(std::min(magnitude, 131072.0), 10 - exponent)));
  if (std::ldexp(units, exponent - 10) >= 65536) return sign | 0x7c00;
  return static_cast<std::uint16_t>(sign + (exponent + 14) * 1024 + units);  // 1,024 units reach the next exponent
}
inline float widened_fp16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
  if (exponent == 31) value = fraction == 0 ? HUGE_VAL : std::nan("");
  return static_cast<float>(bits >= 0x8000 ? -value : value);
}
// Philox4x32 with seven rounds, as Random123 writes it.
inline std::array<std::uint32_t, 4> philox7(std::array<std::uint32_t, 4> x, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 7; ++round) {
    const std::uint64_t p = std::uint64_t{0xD2511F53} * x[0], q = std::uint64_t{0xCD9E8D57} * x[2];
    x = {static_cast<std::uint32_t>(q >> 32) ^ x[1] ^ key[0], static_cast<std::uint32_t>(q),
         static_cast<std::uint32_t>(p >> 32) ^ x[3] ^ key[1], static_cast<std::uint32_t>(p)};
    key = {key[0] + 0x9E3779B9U, key[1] + 0xBB67AE85U};
  }
  return x;
}
inline std::uint32_t random_half_of(std::uint64_t seed, std::uint64_t stream, std::uint64_t element) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto block = element / 64 * 8 + element % 32 / 4;
  const auto words = philox7({low(block), low(block >> 32), low(stream), low(stream >> 32)}, {low(seed), low(seed >> 32)});
  const auto word = words.at(std::array{1U, 0U, 3U, 2U}.at(element % 64 / 32 * 2 + element % 4 / 2));
  return element % 2 == 0 ? word & 0xffffU : word >> 16;
}
// Rounds up with the probability of the part that is cut off.
inline std::uint16_t stochastic(float x, std::uint32_t random_half) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return nearest_ties_away(x);
  return static_cast<std::uint16_t>((bits >> 16) + ((bits & 0xffffU) >= 0x10000U - random_half ? 1 : 0));
}
// The fp32 number with this lower half whose upper half rounds to `high`.
inline float joined(std::uint16_t high, std::uint16_t low) {
  const auto with = [&](std::uint32_t upper) { return std::bit_cast<float>(upper << 16 | low); };
  return nearest_ties_away(with(high)) == high ? with(high) : with(high - 1U);
}

// A weight with 24 bits as a bf16 weight and the 8 bits below it. Rounds up if the last 8 bits of x are at least `up_from`.
struct Split24 {
  std::uint16_t high = 0;
  std::uint8_t low = 0;
};
inline Split24 split24(float x, std::uint32_t up_from) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto units = (bits >> 8) + ((bits & 0xffU) >= up_from ? 1 : 0);
  const auto rounded = std::bit_cast<float>(std::isnan(x) ? (bits | 0x400000U) & 0xffffff00U : units << 8);
  return {nearest_ties_away(rounded), static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(rounded) >> 8 & 0xffU)};
}

// bitsandbytes' create_dynamic_map, sorted.
inline std::vector<double> dynamic_map(bool is_signed) {
  std::vector<double> map{0, 1};
  for (int i = 0; i < 7; ++i) {
    const int items = (is_signed ? 1 : 2) << i;
    for (int j = 0; j < items; ++j) {
      const double low = 0.1 + 0.9 * j / items, high = 0.1 + 0.9 * (j + 1) / items;
      const double mean = static_cast<float>(std::pow(10.0, i - 6) * ((low + high) / 2));
      map.push_back(mean);
      if (is_signed) map.push_back(-mean);
    }
  }
  std::ranges::sort(map);
  return map;
}
// The nearest code, found by comparing all of them; ties to the smaller magnitude.
inline std::uint8_t nearest_code(const std::vector<double>& map, float value, float scale) {
  const double x = value * (1.0F / scale);
  std::size_t best = 0;
  for (std::size_t c = 1; c < map.size(); ++c) {
    const double better = std::abs(x - map[best]) - std::abs(x - map[c]);
    if (better > 0 || (better == 0 && std::abs(map[c]) < std::abs(map[best]))) best = c;
  }
  const bool is_signed = map[0] < 0;
  return static_cast<std::uint8_t>(!is_signed && value != 0 ? std::max<std::size_t>(best, 1) : best);
}

class TestChunk {
 public:
  TestChunk(rules::Recipe recipe, std::int64_t elements) : recipe_(std::move(recipe)), elements_(elements) {
    for (const auto kind : recipe_.kinds())
      bytes_[index(kind)].resize(rules::bytes_of(recipe_.format_of(kind), static_cast<std::uint64_t>(elements)));
    parts = {{.first = 0, .count = elements}};
  }
  [[nodiscard]] const rules::Recipe& recipe() const { return recipe_; }
  [[nodiscard]] std::int64_t elements() const { return elements_; }

  std::vector<UpdatePart> parts;

  ChunkUpdate update() {
    ChunkUpdate u{.parameter = stored(ChunkKind::parameter),
                  .master = stored(ChunkKind::master),
                  .gradient = stored(ChunkKind::gradient)};
    for (std::size_t i = 0; i < recipe_.states.size(); ++i) u.states.at(i) = stored(recipe_.states[i]);
    u.parts = parts;
    return u;
  }
  Stored stored(ChunkKind kind) {
    const auto kinds = recipe_.kinds();
    if (std::ranges::find(kinds, kind) == kinds.end()) return {};
    return {bytes_[index(kind)].data(), recipe_.format_of(kind), elements_};
  }
  [[nodiscard]] const std::vector<std::byte>& bytes(ChunkKind kind) const { return bytes_[index(kind)]; }
  std::vector<std::byte>& bytes(ChunkKind kind) { return bytes_[index(kind)]; }

  [[nodiscard]] bool fp64() const { return recipe_.compute == DType::fp64; }
  // The weight from which an update starts.
  [[nodiscard]] double weight(std::int64_t i) const {
    if (recipe_.master == rules::Format::low16)
      return joined(at<std::uint16_t>(ChunkKind::parameter, i), at<std::uint16_t>(ChunkKind::master, i));
    if (recipe_.master == rules::Format::low8)
      return joined(at<std::uint16_t>(ChunkKind::parameter, i),
                    static_cast<std::uint16_t>(at<std::uint8_t>(ChunkKind::master, i) * 256));
    return recipe_.has_master() ? number(ChunkKind::master, i) : number(ChunkKind::parameter, i);
  }
  void set_weight(std::int64_t i, double value) {
    if (recipe_.master == rules::Format::fp32) {
      set(ChunkKind::master, i, value);
      const auto w = static_cast<float>(value);
      at<std::uint16_t>(ChunkKind::parameter, i) = recipe_.compute == DType::fp16 ? nearest_fp16(w) : nearest_ties_away(w);
    } else if (recipe_.master == rules::Format::low16) {
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
      at<std::uint16_t>(ChunkKind::parameter, i) = nearest_ties_away(static_cast<float>(value));
      at<std::uint16_t>(ChunkKind::master, i) = static_cast<std::uint16_t>(bits);
    } else if (recipe_.master == rules::Format::low8) {
      set_split24(i, split24(static_cast<float>(value), 0x80));
    } else {
      set(ChunkKind::parameter, i, value);
    }
  }
  // Stores a weight as an update does.
  void set_updated_weight(std::int64_t i, double value, const UpdateStep& step, const UpdatePart& part) {
    if (recipe_.compute != DType::bf16 || (recipe_.has_master() && recipe_.master != rules::Format::low8))
      return set_weight(i, value);
    const auto element = part.tensor_element + static_cast<std::uint64_t>(i - part.first);
    const auto half = random_half_of(step.seed + step.step * 0x9E3779B97F4A7C15U, part.stream, element);
    if (recipe_.master == rules::Format::low8) return set_split24(i, split24(static_cast<float>(value), 256 - half / 256));
    at<std::uint16_t>(ChunkKind::parameter, i) = stochastic(static_cast<float>(value), half);
  }
  void set_states(ChunkKind kind, const std::vector<double>& values) {
    if (!rules::is_dynamic8(recipe_.format_of(kind))) {
      for (std::int64_t i = 0; i < elements_; ++i) set(kind, i, values[static_cast<std::size_t>(i)]);
      return;
    }
    const auto map = dynamic_map(recipe_.format_of(kind) == rules::Format::dynamic8);
    const auto zero = static_cast<std::uint8_t>(std::ranges::find(map, 0.0) - map.begin());
    for (std::int64_t first = 0; first < elements_; first += 256) {
      float scale = 0;
      for (std::int64_t i = first; i < std::min(first + 256, elements_); ++i) {
        const auto magnitude = std::abs(static_cast<float>(values[static_cast<std::size_t>(i)]));
        if (!std::isfinite(magnitude)) scale = std::numeric_limits<float>::quiet_NaN();
        if (magnitude > scale) scale = magnitude;
      }
      if (scale > 0) scale = std::max(scale, std::numeric_limits<float>::min());
      this->scale(kind, first) = scale;
      for (std::int64_t i = first; i < std::min(first + 256, elements_); ++i)
        at<std::uint8_t>(kind, i) =
            scale > 0 ? nearest_code(map, static_cast<float>(values[static_cast<std::size_t>(i)]), scale) : zero;
    }
  }
  [[nodiscard]] double gradient(std::int64_t i) const { return number(ChunkKind::gradient, i); }
  void set_gradient(std::int64_t i, double value) { set(ChunkKind::gradient, i, value); }

  [[nodiscard]] double number(ChunkKind kind, std::int64_t i) const {
    switch (recipe_.format_of(kind)) {
      case rules::Format::fp32: return at<float>(kind, i);
      case rules::Format::fp64: return at<double>(kind, i);
      case rules::Format::bf16: return widened(at<std::uint16_t>(kind, i));
      case rules::Format::fp16: return widened_fp16(at<std::uint16_t>(kind, i));
      // The lower bits of a NaN are its payload, which is not compared.
      case rules::Format::low16: return std::isnan(weight(i)) ? weight(i) : at<std::uint16_t>(kind, i);
      case rules::Format::low8: return std::isnan(weight(i)) ? weight(i) : at<std::uint8_t>(kind, i);
      case rules::Format::dynamic8:
      case rules::Format::dynamic8_unsigned: {
        static const auto both = dynamic_map(true), none = dynamic_map(false);
        const auto& map = recipe_.format_of(kind) == rules::Format::dynamic8 ? both : none;
        return static_cast<float>(map[at<std::uint8_t>(kind, i)]) * scale(kind, i);
      }
      default: throw std::logic_error("TestChunk: no single number");
    }
  }
  void set(ChunkKind kind, std::int64_t i, double value) {
    switch (recipe_.format_of(kind)) {
      case rules::Format::fp32: at<float>(kind, i) = static_cast<float>(value); break;
      case rules::Format::fp64: at<double>(kind, i) = value; break;
      case rules::Format::bf16:
        at<std::uint16_t>(kind, i) = rules::is_optimizer_state(kind) ? nearest_ties_even(static_cast<float>(value))
                                                                     : nearest_ties_away(static_cast<float>(value));
        break;
      case rules::Format::fp16: at<std::uint16_t>(kind, i) = nearest_fp16(static_cast<float>(value)); break;
      default: throw std::logic_error("TestChunk: no single number");
    }
  }

 private:
  void set_split24(std::int64_t i, Split24 weight) {
    at<std::uint16_t>(ChunkKind::parameter, i) = weight.high;
    at<std::uint8_t>(ChunkKind::master, i) = weight.low;
  }
  static std::size_t index(ChunkKind kind) { return static_cast<std::size_t>(kind); }
  template <class T>
  T& at(ChunkKind kind, std::int64_t i) {
    return reinterpret_cast<T*>(bytes_[index(kind)].data())[i];
  }
  // Scales follow the codes of all blocks.
  float& scale(ChunkKind kind, std::int64_t i) { return at<float>(kind, (elements_ + 255) / 256 * 64 + i / 256); }
  [[nodiscard]] const float& scale(ChunkKind kind, std::int64_t i) const {
    return at<float>(kind, (elements_ + 255) / 256 * 64 + i / 256);
  }
  template <class T>
  const T& at(ChunkKind kind, std::int64_t i) const {
    return reinterpret_cast<const T*>(bytes_[index(kind)].data())[i];
  }

  rules::Recipe recipe_;
  std::int64_t elements_;
  std::vector<std::byte> bytes_[kChunkKinds];
};

// Extreme numbers that an update must handle.
template <class A>
std::vector<A> hostile_numbers() {
  using L = std::numeric_limits<A>;
  std::vector<A> numbers{A{0},
                         L::denorm_min(),
                         L::denorm_min() * 3,
                         L::min() / 2,
                         L::min(),
                         L::epsilon(),
                         A{1} - L::epsilon(),
                         A{1},
                         A{3},
                         A(1e-20),
                         A(1e20),
                         L::max() / 2,
                         L::max(),
                         L::infinity(),
                         L::quiet_NaN()};
  for (std::size_t i = 0, n = numbers.size(); i < n; ++i) numbers.push_back(-numbers[i]);
  return numbers;
}

// Ordinary gradients: their scales differ by element, as those of layers do.
inline void draw_gradients(TestChunk& chunk, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::int64_t i = 0; i < chunk.elements(); ++i)
    chunk.set_gradient(i, std::uniform_real_distribution<double>(-1, 1)(random) * std::pow(10.0, -static_cast<double>(i % 6)));
}
inline void draw_weights(TestChunk& chunk, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::int64_t i = 0; i < chunk.elements(); ++i)
    chunk.set_weight(i, std::uniform_real_distribution<double>(-1, 1)(random));
}

// Ordinary elements, and from time to time every hostile gradient in its own element: at the chunk's beginning, and the finite
// ones again within a whole block of 8-bit states, where loops use whole vectors.
inline void draw_hostile_gradients(TestChunk& chunk, std::uint64_t t) {
  constexpr std::int64_t kWithinABlock = 300;
  draw_gradients(chunk, 1000 + t);
  const auto put = [&](std::int64_t i, double value) {
    // Finite ones come at every third step, the others once.
    if (std::isfinite(value) ? t % 3 == 1 : t == 50) chunk.set_gradient(i, value);
    if (std::isfinite(value) && t % 3 == 2) chunk.set_gradient(i, 0);
  };
  const auto put_all = [&](const auto& hostile) {
    const auto n = static_cast<std::int64_t>(hostile.size());
    for (std::int64_t i = 0; i < n; ++i) {
      const auto value = static_cast<double>(hostile[static_cast<std::size_t>(i)]);
      if (i < chunk.elements()) put(i, value);
      if (std::isfinite(value) && kWithinABlock + i < chunk.elements()) put(kWithinABlock + i, value);
    }
  };
  chunk.fp64() ? put_all(hostile_numbers<double>()) : put_all(hostile_numbers<float>());
}

}  // namespace terrace::test
