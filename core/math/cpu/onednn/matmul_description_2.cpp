#include <terrace/core/math/cpu/onednn/matmul_description.h>

namespace terrace::cpu {

dnnl::matmul::primitive_desc describe_matmul(const dnnl::engine& engine, const dnnl::memory::desc& a,
                                             const dnnl::memory::desc& b, const dnnl::memory::desc& c) {
  return {dnnl::matmul::desc(a, b, c), engine};
}

}  // namespace terrace::cpu
