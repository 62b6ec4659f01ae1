// A product in fp64, by panels.
// Internal to core/cpu/kernels.inl.

namespace terrace::cpu {
namespace {

void product_fp64(double* c, i64 ldc, const double* a, i64 a_row, i64 a_column, const double* panel, i64 m, i64 n, i64 k) {
  for (i64 i = 0; i < m; ++i) {
    VecD s0{}, s1{}, s2{}, s3{};
    const double* row = a + i * a_row;
    for (i64 l = 0; l < k; ++l) {
      const double v = row[l * a_column];
      const double* b = panel + l * kPanel;
      s0 += load(b, Full{}) * v;
      s1 += load(b + 8, Full{}) * v;
      s2 += load(b + 16, Full{}) * v;
      s3 += load(b + 24, Full{}) * v;
    }
    double sums[kPanel];
    store(sums, s0, Full{});
    store(sums + 8, s1, Full{});
    store(sums + 16, s2, Full{});
    store(sums + 24, s3, Full{});
    for (i64 j = 0; j < n; ++j) c[i * ldc + j] = sums[j];
  }
}

}  // namespace
}  // namespace terrace::cpu
