// Describes a matrix product to oneDNN. Versions 2 and 3 differ only in this call; CMake chooses the source file.
//
// Threads: any. Errors: dnnl::error, with dnnl_unimplemented where the library has no such product on this processor.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>

namespace terrace::cpu {

// c = a · b; the strides say whether each is row-major or transposed.
dnnl::matmul::primitive_desc describe_matmul(const dnnl::engine& engine, const dnnl::memory::desc& a,
                                             const dnnl::memory::desc& b, const dnnl::memory::desc& c);

}  // namespace terrace::cpu
