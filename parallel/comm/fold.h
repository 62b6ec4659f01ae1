// Fixed-order reductions: contributions are folded one after the other in the given order, on every backend.
//
//   to[i] = ((from[0][i] ∘ from[1][i]) ∘ from[2][i]) …          and with `onto` the old to[i] comes first
//
// `count` elements, as the reduction counts them. fp32 and fp64 round after every operation; bf16 is widened, folded in fp32
// and rounded once at the end. So every backend and every instruction set gives the same bits.
//
// Owner:   the spans are the caller's. `to` may be exactly one of `from`; any other overlap is not allowed.
// Threads: any; one call computes alone on its thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <terrace/core/math/block8.h>
#include <terrace/core/math/dtype.h>

namespace terrace::comm {

enum class Fold : std::uint8_t { sum, max };  // max: a NaN stays a NaN
// The order in which a communicator adds contributions from several machines: by machine (machines.h), or all ranks in
// ascending order. On one machine both are the same. fold() itself adds in the given order.
enum class SumOrder : std::uint8_t { machines, ranks };

struct Reduction {
  DType from = DType::fp32;
  DType to = DType::fp32;  // as `from`; or fp32 for bf16 `from`, an accumulator wider than the wire dtype; or bf16 for fp32
  Fold fold = Fold::sum;
  bool onto = false;  // folds onto the old content of `to`
  // Messages are packed blocks of fp32 numbers (block8.h), which are summed as fp32: an element of `from` is such a block, and
  // an element of `to` its 256 numbers.
  bool blocks = false;
  SumOrder order = SumOrder::machines;

  [[nodiscard]] std::size_t from_bytes() const { return blocks ? math::kBlock8Bytes : size_of(from); }
  [[nodiscard]] std::size_t to_bytes() const { return blocks ? math::kBlock8Elements * size_of(to) : size_of(to); }
  static Reduction sum(DType dtype) { return {dtype, dtype, Fold::sum}; }
  static Reduction max(DType dtype) { return {dtype, dtype, Fold::max}; }
  static Reduction sum_of_blocks() { return {.blocks = true}; }
  friend bool operator==(const Reduction&, const Reduction&) = default;
};
bool is_supported(const Reduction& reduction);
std::string to_string(const Reduction& reduction);  // "bf16 sum onto fp32"

void fold(const Reduction& reduction, std::byte* to, std::span<const std::byte* const> from, std::int64_t count);
// The same bits, for a result that is not read soon and is not in a cache: non-temporal stores do not first read their line, so
// they move two thirds of the bytes. Ordinary stores are used if `to` cannot be aligned by whole elements, is folded onto, or
// takes blocks.
void fold_past_cache(const Reduction& reduction, std::byte* to, std::span<const std::byte* const> from, std::int64_t count);

}  // namespace terrace::comm
