// Buffers of one dtype with reproducible contents, and a second implementation of the reduction's specification: one element
// and one operation at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include <terrace/parallel/comm/call.h>

namespace terrace::test {

using Buffer = std::vector<std::byte>;

template <class T>
T element(const Buffer& buffer, std::size_t i) {
  T value;
  std::memcpy(&value, buffer.data() + i * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void set_element(Buffer& buffer, std::size_t i, T value) {
  std::memcpy(buffer.data() + i * sizeof(T), &value, sizeof(T));
}

inline double value_at(const Buffer& buffer, DType dtype, std::size_t i) {
  switch (dtype) {
    case DType::fp64: return element<double>(buffer, i);
    case DType::bf16: return static_cast<double>(static_cast<float>(element<bf16>(buffer, i)));
    default: return static_cast<double>(element<float>(buffer, i));
  }
}

// Magnitudes over many powers of two, so that another order of the sum gives other bits.
inline Buffer random_elements(DType dtype, std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> mantissa(-2, 2);
  Buffer buffer(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const double x = std::ldexp(mantissa(random), static_cast<int>(random() % 24) - 12);
    switch (dtype) {
      case DType::fp64: set_element(buffer, i, x); break;
      case DType::bf16: set_element(buffer, i, bf16(static_cast<float>(x))); break;
      default: set_element(buffer, i, static_cast<float>(x));
    }
  }
  return buffer;
}

inline Buffer random_bytes(std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Buffer buffer(bytes);
  for (auto& b : buffer) b = static_cast<std::byte>(random());
  return buffer;
}

template <class A>
A folded(comm::Fold fold, A a, A b) {
  if (fold == comm::Fold::sum) return a + b;
  if (std::isnan(a)) return a;
  return a > b ? a : b;
}

// How many ranks each machine has; empty: all are on one.
using MachineSizes = std::vector<std::size_t>;
inline MachineSizes machine_sizes(std::size_t ranks, int ranks_per_machine) {
  const auto each = ranks_per_machine > 0 ? static_cast<std::size_t>(ranks_per_machine) : ranks;
  MachineSizes sizes;
  for (std::size_t r = 0; r < ranks; r += each) sizes.push_back(std::min(each, ranks - r));
  return sizes;
}

// The sum of machines [first, first + count): the left part has the greatest power of two that leaves at least one machine for
// the right part.
template <class A, class OfMachine>
A tree_oracle(comm::Fold fold, std::size_t first, std::size_t count, const OfMachine& of_machine) {
  if (count == 1) return of_machine(first);
  std::size_t left = 1;
  while (2 * left < count) left *= 2;
  return folded(fold, tree_oracle<A>(fold, first, left, of_machine),
                tree_oracle<A>(fold, first + left, count - left, of_machine));
}

// One element in the order of its machines: x(s) is contribution s, widened.
template <class A, class X>
A element_oracle(comm::Fold fold, const MachineSizes& sizes, std::size_t ranks, const A* old, const X& x) {
  if (sizes.size() <= 1) {
    A sum = old ? folded(fold, *old, x(0)) : x(0);
    for (std::size_t s = 1; s < ranks; ++s) sum = folded(fold, sum, x(s));
    return sum;
  }
  const auto sum = tree_oracle<A>(fold, 0, sizes.size(), [&](std::size_t machine) {
    std::size_t first = 0;
    for (std::size_t m = 0; m < machine; ++m) first += sizes[m];
    A part = x(first);
    for (std::size_t s = first + 1; s < first + sizes[machine]; ++s) part = folded(fold, part, x(s));
    return part;
  });
  return old ? folded(fold, *old, sum) : sum;
}

// Folds elements [begin, begin + count) of all contributions.
inline Buffer fold_oracle(const comm::Reduction& r, const std::vector<Buffer>& from, std::size_t begin, std::size_t count,
                          const Buffer& onto = {}, const MachineSizes& machines = {}) {
  const auto sizes = r.order == comm::SumOrder::ranks ? MachineSizes{} : machines;
  Buffer to(count * size_of(r.to));
  for (std::size_t i = 0; i < count; ++i) {
    if (r.from == DType::fp64) {
      const double old = r.onto ? element<double>(onto, i) : 0;
      set_element(to, i, element_oracle<double>(r.fold, sizes, from.size(), r.onto ? &old : nullptr, [&](std::size_t s) {
                    return element<double>(from[s], begin + i);
                  }));
      continue;
    }
    const auto narrow = [](const Buffer& b, DType dtype, std::size_t at) { return static_cast<float>(value_at(b, dtype, at)); };
    const float old = r.onto ? narrow(onto, r.to, i) : 0;
    const auto sum = element_oracle<float>(r.fold, sizes, from.size(), r.onto ? &old : nullptr,
                                           [&](std::size_t s) { return narrow(from[s], r.from, begin + i); });
    if (r.to == DType::bf16) {
      set_element(to, i, bf16(sum));
    } else {
      set_element(to, i, sum);
    }
  }
  return to;
}

// Blocks of a scale and 256 codes, as block8.h specifies them, element by element.
constexpr std::size_t kOracleBlock = 256, kOracleBlockBytes = 260;
inline Buffer pack_oracle(const std::vector<float>& x) {
  Buffer out(x.size() / kOracleBlock * kOracleBlockBytes);
  for (std::size_t b = 0; b < x.size() / kOracleBlock; ++b) {
    const float* const block = x.data() + b * kOracleBlock;
    float m = 0;
    bool finite = true;
    for (std::size_t i = 0; i < kOracleBlock; ++i) {
      m = std::fmax(m, std::fabs(block[i]));
      finite = finite && std::abs(block[i]) < std::ldexp(1.0F, 127);
    }
    const bool zero = finite && m < std::ldexp(1.0F, -119);
    const float scale = !finite ? std::numeric_limits<float>::quiet_NaN() : zero ? 0 : m / 127;
    std::byte* const to = out.data() + b * kOracleBlockBytes;
    std::memcpy(to, &scale, sizeof scale);
    for (std::size_t i = 0; i < kOracleBlock; ++i)
      to[sizeof scale + i] =
          static_cast<std::byte>(!finite || zero ? 0 : static_cast<std::int8_t>(std::nearbyint(block[i] * (127 / m))));
  }
  return out;
}
inline std::vector<float> unpack_oracle(const Buffer& packed) {
  std::vector<float> x;
  for (std::size_t b = 0; b < packed.size() / kOracleBlockBytes; ++b) {
    float scale;
    std::memcpy(&scale, packed.data() + b * kOracleBlockBytes, sizeof scale);
    for (std::size_t i = 0; i < kOracleBlock; ++i)
      x.push_back(static_cast<float>(static_cast<std::int8_t>(packed[b * kOracleBlockBytes + sizeof scale + i])) * scale);
  }
  return x;
}
inline std::vector<float> random_floats(std::size_t count, std::uint64_t seed) {
  const auto bytes = random_elements(DType::fp32, count, seed);
  std::vector<float> x(count);
  std::ranges::copy(bytes, std::as_writable_bytes(std::span(x)).begin());  // also if there are none
  return x;
}
// Folds whole blocks of all contributions, from block `begin` on.
inline std::vector<float> fold_blocks_oracle(const std::vector<Buffer>& from, std::size_t begin, std::size_t blocks,
                                             const std::vector<float>& onto = {}, const MachineSizes& machines = {}) {
  std::vector<std::vector<float>> unpacked;
  for (const auto& contribution : from)
    unpacked.push_back(
        unpack_oracle({contribution.begin() + static_cast<std::ptrdiff_t>(begin * kOracleBlockBytes),
                       contribution.begin() + static_cast<std::ptrdiff_t>((begin + blocks) * kOracleBlockBytes)}));
  std::vector<float> sum(blocks * kOracleBlock);
  for (std::size_t i = 0; i < sum.size(); ++i)
    sum[i] = element_oracle<float>(comm::Fold::sum, machines, from.size(), onto.empty() ? nullptr : &onto[i],
                                   [&](std::size_t s) { return unpacked[s][i]; });
  return sum;
}

}  // namespace terrace::test
