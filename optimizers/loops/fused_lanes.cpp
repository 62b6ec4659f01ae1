#include <terrace/optimizers/loops/fused_lanes.h>

#include <cstdint>

namespace terrace::rules {

typedef double Wide __attribute__((vector_size(32)));
typedef std::int64_t Bits __attribute__((vector_size(32)));

// The product is exact in fp64. The sum is rounded to odd there: truncated, and made odd if anything was cut off. Rounding it
// once more, to fp32, then gives the same number as rounding the exact sum (Boldo, Melquiond: "Emulation of FMA and correctly
// rounded sums: proved algorithms using rounding to odd", IEEE Transactions on Computers, 2008).
FourNumbers fused_in_fp64(FourNumbers a, FourNumbers b, FourNumbers c) {
  const Wide product = __builtin_convertvector(a, Wide) * __builtin_convertvector(b, Wide);
  const Wide other = __builtin_convertvector(c, Wide), sum = product + other;
  const Wide part = sum - product, error = (product - (sum - part)) + (other - part);  // Knuth's two-sum: exact
  const Bits inexact = (error < 0) | (error > 0);                                      // false for infinities and NaNs
  const Bits outwards = (error < 0) ^ (sum < 0);
  const auto cut = reinterpret_cast<Bits>(sum) + (inexact & outwards);
  return __builtin_convertvector(reinterpret_cast<Wide>(cut | (inexact & 1)), FourNumbers);
}

}  // namespace terrace::rules
