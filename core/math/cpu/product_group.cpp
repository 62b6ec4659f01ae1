#include <terrace/core/math/product_group.h>

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>

#include <terrace/core/math/cpu/tile_product.h>

namespace terrace::math {
namespace {

// Whether the library uses `set`: a set of this processor, unless DNNL_MAX_CPU_ISA names a smaller one.
bool has(dnnl_cpu_isa_t set) {
  const auto bits = static_cast<unsigned>(set);
  return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & bits) == bits;
}

const char* fp32_group() {
  if (has(dnnl_cpu_isa_avx512_core)) return "AVX-512";
  if (has(dnnl_cpu_isa_avx2)) return "AVX2";
  return has(dnnl_cpu_isa_avx) ? "AVX" : "SSE4.1";
}

const char* bf16_group() {
  if (has(dnnl_cpu_isa_avx512_core_amx)) return "AMX";
  if (has(dnnl_cpu_isa_avx512_core_bf16)) return "AVX512_BF16";
  const bool as_fp32 = has(dnnl_cpu_isa_avx512_core) || !cpu::library_multiplies_bf16();
  return as_fp32 ? fp32_group() : "AVX2 with bf16";
}

}  // namespace

std::string product_group(DType dtype) {
  if (dtype == DType::fp64) return "fp64 products on any processor";
  const auto* const version = dnnl_version();
  return fmt::format("{} products of oneDNN {}.{}.{} with {}", name_of(dtype), version->major, version->minor, version->patch,
                     dtype == DType::bf16 ? bf16_group() : fp32_group());
}

}  // namespace terrace::math
