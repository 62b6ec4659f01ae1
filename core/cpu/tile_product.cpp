#include <terrace/core/cpu/tile_product.h>

#include <array>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>

namespace terrace::cpu {
namespace {

// The library would start its own pool in each of our threads.
void hold_one_thread() {
  thread_local const bool held = (omp_set_num_threads(1), true);
  static_cast<void>(held);
}

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

// A bf16 product of one shape and one set of strides, made once a thread and used again.
struct Primitive {
  dnnl::matmul product;
  dnnl::memory a, b, c;
  dnnl::stream stream;
};
using Key = std::array<std::int64_t, 8>;  // m, n, k, strides of a, b, c, transposes

dnnl::memory::desc layout(std::int64_t rows, std::int64_t columns, std::int64_t stride, bool transposed,
                          dnnl::memory::data_type type) {
  const dnnl::memory::dims strides = transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1};
  return {dnnl::memory::dims{rows, columns}, type, strides};
}

// One thread at a time: the library's own cache of primitives races when two are made at once (oneDNN 2.6, seen by
// ThreadSanitizer; to make one first of all does not help). Running them is safe.
Primitive make_primitive(const Key& key) {
  static std::mutex making;
  const std::lock_guard lock(making);
  const auto [m, n, k, lda, ldb, ldc, ta, tb] = key;
  using type = dnnl::memory::data_type;
  const auto a = layout(m, k, lda, ta != 0, type::bf16), b = layout(k, n, ldb, tb != 0, type::bf16);
  const auto c = layout(m, n, ldc, false, type::f32);
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), engine());
  return {dnnl::matmul(description), dnnl::memory(a, engine(), nullptr), dnnl::memory(b, engine(), nullptr),
          dnnl::memory(c, engine(), nullptr), dnnl::stream(engine())};
}

}  // namespace

void tile_product(const Kernels&, float* c, std::int64_t ldc, Operand<float> a, Operand<float> b, std::int64_t m,
                  std::int64_t n, std::int64_t k, bool add) {
  hold_one_thread();
  const auto status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0F, a.data, a.stride, b.data,
                                 b.stride, add ? 1.0F : 0.0F, c, ldc);
  if (status != dnnl_success) throw std::runtime_error("oneDNN sgemm: status " + std::to_string(static_cast<int>(status)));
}

void tile_product(const Kernels&, float* c, std::int64_t ldc, Operand<std::uint16_t> a, Operand<std::uint16_t> b,
                  std::int64_t m, std::int64_t n, std::int64_t k) {
  hold_one_thread();
  thread_local std::map<Key, Primitive> primitives;
  const Key key{m, n, k, a.stride, b.stride, ldc, a.transposed ? 1 : 0, b.transposed ? 1 : 0};
  auto found = primitives.find(key);
  if (found == primitives.end()) found = primitives.emplace(key, make_primitive(key)).first;
  Primitive& p = found->second;
  p.a.set_data_handle(const_cast<std::uint16_t*>(a.data));
  p.b.set_data_handle(const_cast<std::uint16_t*>(b.data));
  p.c.set_data_handle(c);
  p.product.execute(p.stream, {{DNNL_ARG_SRC, p.a}, {DNNL_ARG_WEIGHTS, p.b}, {DNNL_ARG_DST, p.c}});
  p.stream.wait();
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
