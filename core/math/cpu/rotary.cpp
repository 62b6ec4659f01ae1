#include <cmath>

#include <terrace/core/math/cpu/ops.h>

namespace terrace::cpu {

void rotary(Compute compute, TensorView x, std::int64_t row_elements, std::int64_t seq, std::int64_t first_position,
            const Rotary& angles, bool inverse) {
  for_dtype(x.dtype, [&]<class T>() {
    using A = Acc<T>;
    const std::int64_t rows = x.shape[0], heads = x.shape[1], dim = x.shape[2], half = dim / 2;
    const std::int64_t positions = std::min(seq, rows);
    // The table is computed in fp64 and rounded once. It costs seq·D/2 sines, which is little compared with a layer's products.
    A* const cosine = scratch<A>(Scratch::operation, 2 * positions * half);
    A* const sine = cosine + positions * half;
    blocks(compute.pool, positions, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        for (std::int64_t i = 0; i < half; ++i) {
          const double angle = static_cast<double>(first_position + p) * angles.frequency(i, dim);
          cosine[p * half + i] = static_cast<A>(angles.length * std::cos(angle));
          sine[p * half + i] = static_cast<A>(angles.length * std::sin(angle));
        }
      }
    });
    const auto kernel = kernels_for<T>(compute.kernels).rotate;
    blocks(compute.pool, rows, rows_a_task(heads * dim), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        const std::int64_t p = n % seq;
        for (std::int64_t h = 0; h < heads; ++h) {
          kernel(raw<T>(x) + n * row_elements + h * dim, cosine + p * half, sine + p * half, half, inverse);
        }
      }
    });
  });
}

}  // namespace terrace::cpu
