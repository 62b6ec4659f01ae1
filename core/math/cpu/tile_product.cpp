#include <terrace/core/math/cpu/tile_product.h>

#include <stdexcept>
#include <string>

#include <oneapi/dnnl/dnnl.h>

#include <terrace/core/math/cpu/onednn/one_thread.h>

namespace terrace::cpu {

void tile_product(const Kernels&, float* c, std::int64_t ldc, Operand<float> a, Operand<float> b, std::int64_t m,
                  std::int64_t n, std::int64_t k, bool add) {
  hold_one_thread();
  const auto status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0F, a.data, a.stride, b.data,
                                 b.stride, add ? 1.0F : 0.0F, c, ldc);
  if (status != dnnl_success) throw std::runtime_error("oneDNN sgemm: status " + std::to_string(static_cast<int>(status)));
}

void tile_product(const Kernels& kernels, double* c, std::int64_t ldc, Operand<double> a, Operand<double> b, std::int64_t m,
                  std::int64_t n, std::int64_t k, bool add) {
  double* const panel = scratch<double>(Scratch::panel, k * kPanel + m * kPanel);
  double* const sums = panel + k * kPanel;
  for (std::int64_t first = 0; first < n; first += kPanel) {
    const std::int64_t width = std::min(kPanel, n - first);
    for (std::int64_t l = 0; l < k; ++l) {
      for (std::int64_t j = 0; j < kPanel; ++j) {
        panel[l * kPanel + j] = j >= width     ? 0.0
                                : b.transposed ? b.data[(first + j) * b.stride + l]
                                               : b.data[l * b.stride + first + j];
      }
    }
    const std::int64_t row = a.transposed ? 1 : a.stride, column = a.transposed ? a.stride : 1;
    if (!add) {
      kernels.product_fp64(c + first, ldc, a.data, row, column, panel, m, width, k);
      continue;
    }
    kernels.product_fp64(sums, kPanel, a.data, row, column, panel, m, width, k);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < width; ++j) c[i * ldc + first + j] += sums[i * kPanel + j];
    }
  }
}

}  // namespace terrace::cpu
