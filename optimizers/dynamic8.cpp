#include <terrace/optimizers/dynamic8.h>

#include <bit>

#include <terrace/optimizers/each_isa.h>

namespace terrace::dynamic8 {
namespace {

// A normalised magnitude x in [0, 1] is looked up by the upper 16 bits of its fp32: between two such numbers lies one boundary
// between codes at most, so an entry holds the rank below it and where, in the lower 16 bits, the next rank begins.
constexpr std::int32_t kFirst = 0x3400, kLast = 0x3f80;  // 2^-23, below every boundary, and 1
constexpr std::int32_t kNever = 0x10000;

struct Map {
  std::array<float, 256> values{};
  std::array<std::int32_t, kLast - kFirst + 1> steps{};  // rank << 17 | first lower half of the next rank
};

// Magnitudes in ascending order: 0; then for each decade from 1e-6 on twice as many means of an even split of [0.1, 1] as for
// the one before, beginning with one (or two, without a sign); then 1.
template <Sign kSign>
constexpr auto make_magnitudes() {
  std::array<float, kSign == Sign::both ? 129 : 256> all{};
  constexpr double decades[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  std::size_t at = 1;
  for (std::size_t i = 0; i < 7; ++i) {
    const std::size_t count = std::size_t{kSign == Sign::both ? 1U : 2U} << i;
    for (std::size_t j = 0; j < count; ++j)
      all[at++] = static_cast<float>(decades[i] * (0.1 + 0.9 * (static_cast<double>(j) + 0.5) / static_cast<double>(count)));
  }
  all[at] = 1.0F;
  return all;
}

template <Sign kSign>
constexpr Map make_map() {
  constexpr auto magnitudes = make_magnitudes<kSign>();
  Map map;
  for (std::size_t i = 0; i < 256; ++i) {
    if (kSign == Sign::none)
      map.values[i] = magnitudes[i];
    else
      map.values[i] = i < 127 ? -magnitudes[127 - i] : magnitudes[i - 127];
  }
  std::int32_t rank = 0;
  // The first fp32 above the middle between two magnitudes: the tie belongs to the smaller.
  const auto begins = [&](std::size_t next) {
    const double middle = (static_cast<double>(magnitudes[next - 1]) + static_cast<double>(magnitudes[next])) / 2;
    const auto nearest = static_cast<float>(middle);
    return std::bit_cast<std::uint32_t>(nearest) + (static_cast<double>(nearest) <= middle ? 1 : 0);
  };
  for (std::int32_t i = 0; i <= kLast - kFirst; ++i) {
    const bool last = rank + 1 == static_cast<std::int32_t>(magnitudes.size());
    const std::uint32_t next = last ? ~0U : begins(static_cast<std::size_t>(rank) + 1);
    const bool here = next >> 16 == static_cast<std::uint32_t>(kFirst + i);
    map.steps[static_cast<std::size_t>(i)] = rank << 17 | (here ? static_cast<std::int32_t>(next & 0xffffU) : kNever);
    if (here) ++rank;
  }
  return map;
}

constexpr Map kSigned = make_map<Sign::both>(), kUnsigned = make_map<Sign::none>();
// Every boundary was met, so no interval held two.
static_assert(kSigned.steps.back() >> 17 == 128 && kUnsigned.steps.back() >> 17 == 255);
// What lies below the first interval is looked up there, and finds rank 0.
static_assert(kSigned.steps[0] == kNever && kUnsigned.steps[0] == kNever);

template <Sign kSign>
constexpr const Map& map_of() {
  return kSign == Sign::both ? kSigned : kUnsigned;
}

template <Sign kSign>
TERRACE_INLINE void decode_blocks(float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks) {
  const float* const values = map_of<kSign>().values.data();
  for (std::int64_t b = 0; b < blocks; ++b) {
    float* __restrict out = to + b * kBlockElements;
    const std::uint8_t* __restrict in = codes + b * kBlockElements;
    const float scale = scales[b];
    for (std::int64_t i = 0; i < kBlockElements; ++i) out[i] = values[in[i]] * scale;
  }
}

// One simple loop after the other, so that all vectorise but the look-up, which gathers would slow down.
template <Sign kSign>
TERRACE_INLINE void encode_block(std::uint8_t* __restrict codes, float* __restrict scale, const float* __restrict from) {
  std::uint32_t greatest = 0;
  for (std::int64_t i = 0; i < kBlockElements; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(from[i]) & 0x7fffffffU;
    greatest = greatest < magnitude ? magnitude : greatest;
  }
  if (greatest == 0 || greatest >= 0x7f800000U) {  // nothing, or what no scale can hold: then the whole block shows it
    for (std::int64_t i = 0; i < kBlockElements; ++i) codes[i] = kSign == Sign::both ? 127 : 0;
    *scale = greatest == 0 ? 0.0F : std::bit_cast<float>(0x7fc00000U);
    return;
  }
  const auto maximum = std::bit_cast<float>(greatest);
  *scale = maximum;
  alignas(64) std::int32_t lower[kBlockElements], step[kBlockElements];
  alignas(64) std::uint16_t interval[kBlockElements];
  for (std::int64_t i = 0; i < kBlockElements; ++i) {
    const auto magnitude = std::bit_cast<float>(std::bit_cast<std::uint32_t>(from[i]) & 0x7fffffffU);
    const auto x = std::bit_cast<std::int32_t>(magnitude / maximum);
    const std::int32_t upper = (x >> 16) - kFirst;
    interval[i] = static_cast<std::uint16_t>(upper < 0 ? 0 : upper);
    lower[i] = x & 0xffff;
  }
  const std::int32_t* const steps = map_of<kSign>().steps.data();
  for (std::int64_t i = 0; i < kBlockElements; ++i) step[i] = steps[interval[i]];
  for (std::int64_t i = 0; i < kBlockElements; ++i) {
    const auto bits = std::bit_cast<std::int32_t>(from[i]);
    const std::int32_t rank = (step[i] >> 17) + static_cast<std::int32_t>(lower[i] >= (step[i] & 0x1ffff));
    if (kSign == Sign::both) {
      const std::int32_t below = rank < 127 ? rank : 127;
      codes[i] = static_cast<std::uint8_t>(127 + (bits < 0 ? -below : rank));
    } else {
      const std::int32_t least = (bits & 0x7fffffff) != 0 ? 1 : 0;
      codes[i] = static_cast<std::uint8_t>(rank < least ? least : rank);
    }
  }
}

template <Sign kSign>
TERRACE_INLINE void encode_blocks(std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks) {
  for (std::int64_t b = 0; b < blocks; ++b)
    encode_block<kSign>(codes + b * kBlockElements, scales + b, from + b * kBlockElements);
}

#define TERRACE_EACH_ISA(name, parameters, arguments)                \
  template <Sign kSign>                                              \
  void name##_baseline parameters {                                  \
    name<kSign> arguments;                                           \
  }                                                                  \
  template <Sign kSign>                                              \
  TERRACE_AVX2 void name##_avx2 parameters {                         \
    name<kSign> arguments;                                           \
  }                                                                  \
  template <Sign kSign>                                              \
  TERRACE_AVX512 void name##_avx512 parameters {                     \
    name<kSign> arguments;                                           \
  }                                                                  \
  template <Sign kSign>                                              \
  constexpr EachIsa<void parameters> k_##name {                      \
    name##_baseline<kSign>, name##_avx2<kSign>, name##_avx512<kSign> \
  }

TERRACE_EACH_ISA(decode_blocks, (float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks),
                 (to, codes, scales, blocks));
TERRACE_EACH_ISA(encode_blocks, (std::uint8_t * codes, float* scales, const float* from, std::int64_t blocks),
                 (codes, scales, from, blocks));

}  // namespace

const std::array<float, 256>& values(Sign sign) { return sign == Sign::both ? kSigned.values : kUnsigned.values; }

void decode(Isa isa, Sign sign, float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks) {
  const auto& each = sign == Sign::both ? k_decode_blocks<Sign::both> : k_decode_blocks<Sign::none>;
  each.of(isa)(to, codes, scales, blocks);
}

void encode(Isa isa, Sign sign, std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks) {
  const auto& each = sign == Sign::both ? k_encode_blocks<Sign::both> : k_encode_blocks<Sign::none>;
  each.of(isa)(codes, scales, from, blocks);
}

}  // namespace terrace::dynamic8
