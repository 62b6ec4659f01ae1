// Prints a checksum of matrix products for each dtype. If two processors print equal lines, training gives the same bits on
// both: products are the only operation computed by a library; all others have one source for every instruction set
// (core/math/cpu/kernels.h).
//
// product_bits               one line per dtype: "fp32 0123456789abcdef"

#include <fmt/format.h>
#include <xxhash.h>

#include <terrace/tests/math/math_fixture.h>

namespace {

using namespace terrace;
using namespace terrace::test;

// Every transposition; inner dimensions from one vector to many blocks of the library; less than one tile, and many tiles.
std::uint64_t hash_of_products(DType dtype) {
  Machine machine(1);
  std::mt19937_64 generator(1);
  XXH64_state_t* const state = XXH64_createState();
  XXH64_reset(state, 0);
  struct Sizes {
    std::int64_t m, n, k;
  };
  for (const auto [m, n, k] :
       {Sizes{3, 5, 7}, Sizes{64, 64, 64}, Sizes{130, 96, 700}, Sizes{257, 400, 384}, Sizes{64, 50, 3072}}) {
    for (int variant = 0; variant < 4; ++variant) {
      const bool ta = variant & 1, tb = variant & 2;
      Tensor a(dtype, ta ? Shape{k, m} : Shape{m, k}), b(dtype, tb ? Shape{n, k} : Shape{k, n}), c(accumulator(dtype), {m, n});
      a.random(generator);
      b.random(generator);
      machine.math.matmul(*machine.stream, c, a, ta ? Transpose::yes : Transpose::no, b, tb ? Transpose::yes : Transpose::no,
                          {}, Accumulate::no);
      machine.sync();
      const auto bits = c.bits();
      XXH64_update(state, bits.data(), bits.size());
    }
  }
  const auto hash = XXH64_digest(state);
  XXH64_freeState(state);
  return hash;
}

}  // namespace

int main() {
  for (const auto dtype : {DType::fp32, DType::bf16, DType::fp16, DType::fp64})
    fmt::print("{} {:016x}\n", name_of(dtype), hash_of_products(dtype));
}
