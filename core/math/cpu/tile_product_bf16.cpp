// Products of bf16: oneDNN's own where it has them (processors with AVX-512), otherwise widened to fp32.
#include <array>
#include <map>
#include <mutex>

#include <terrace/core/math/cpu/onednn/matmul_description.h>
#include <terrace/core/math/cpu/onednn/one_thread.h>
#include <terrace/core/math/cpu/tile_product_widened.h>

namespace terrace::cpu {
namespace {

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

// One product's shape, strides and primitive. A thread makes it once and then reuses it.
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

// Only one thread at a time may make a primitive: the library's own cache of primitives has a data race when two are made at
// once (oneDNN 2.6, found by ThreadSanitizer; making one in advance does not help). Running them is safe.
Primitive make_primitive(const Key& key) {
  static std::mutex making;
  const std::lock_guard lock(making);
  const auto [m, n, k, lda, ldb, ldc, ta, tb] = key;
  using type = dnnl::memory::data_type;
  const auto a = layout(m, k, lda, ta != 0, type::bf16), b = layout(k, n, ldb, tb != 0, type::bf16);
  const auto c = layout(m, n, ldc, false, type::f32);
  return {dnnl::matmul(describe_matmul(engine(), a, b, c)), dnnl::memory(a, engine(), nullptr),
          dnnl::memory(b, engine(), nullptr), dnnl::memory(c, engine(), nullptr), dnnl::stream(engine())};
}

}  // namespace

// The library answers for the processor, or for a smaller one named by DNNL_MAX_CPU_ISA. Without AVX-512 it has no bf16
// product.
bool library_multiplies_bf16() {
  hold_one_thread();
  static const bool answer = [] {
    try {
      make_primitive({16, 16, 16, 16, 16, 16, 0, 0});
      return true;
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
      return false;
    }
  }();
  return answer;
}

void tile_product(const Kernels& kernels, float* c, std::int64_t ldc, Operand<std::uint16_t> a, Operand<std::uint16_t> b,
                  std::int64_t m, std::int64_t n, std::int64_t k) {
  if (!library_multiplies_bf16()) return widened_product(kernels, c, ldc, a, b, m, n, k);
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

}  // namespace terrace::cpu
