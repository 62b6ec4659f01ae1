// A product in fp64, by panels.
// Internal to core/math/cpu/kernels.inl.

namespace terrace::cpu {
namespace {

// As wide as a register: g++ splits wider vectors into registers, but it builds a wider vector of equal elements in memory, one
// by one.
#if defined(__AVX512F__)
typedef double Register __attribute__((vector_size(64)));
#elif defined(__AVX2__)
typedef double Register __attribute__((vector_size(32)));
#else
typedef double Register __attribute__((vector_size(16)));
#endif
constexpr i64 kTileColumns = 16, kAcross = kTileColumns * 8 / sizeof(Register),
              kTileRows = 8 / kAcross;  // eight sums hide an addition's latency

// The columns of c that belong to this part of a panel: n of them, at most kTileColumns.
template <i64 rows>
TERRACE_INLINE void product_of_rows(double* c, i64 ldc, const double* a, i64 a_row, i64 a_column, const double* panel, i64 n,
                                    i64 k) {
  Register sums[rows][kAcross] = {};
  for (i64 l = 0; l < k; ++l) {
    for (i64 i = 0; i < rows; ++i) {
      const double v = a[i * a_row + l * a_column];
      for (i64 j = 0; j < kAcross; ++j) sums[i][j] += load_raw<Register>(panel + l * kPanel + j * (kTileColumns / kAcross)) * v;
    }
  }
  for (i64 i = 0; i < rows; ++i) __builtin_memcpy(c + i * ldc, sums[i], static_cast<std::size_t>(n) * sizeof(double));
}

void product_fp64(double* c, i64 ldc, const double* a, i64 a_row, i64 a_column, const double* panel, i64 m, i64 n, i64 k) {
  for (i64 first = 0; first < n; first += kTileColumns) {
    const i64 width = n - first < kTileColumns ? n - first : kTileColumns;
    i64 i = 0;
    for (; i + kTileRows <= m; i += kTileRows)
      product_of_rows<kTileRows>(c + i * ldc + first, ldc, a + i * a_row, a_row, a_column, panel + first, width, k);
    for (; i < m; ++i) product_of_rows<1>(c + i * ldc + first, ldc, a + i * a_row, a_row, a_column, panel + first, width, k);
  }
}

}  // namespace
}  // namespace terrace::cpu
