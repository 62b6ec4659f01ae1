// A cuBLASLt for machines without a GPU: the calls that core/cuda/math/cublas_products.cpp makes, with what NVIDIA's header and
// manual say of each. Products are computed on the host, as kernels of the fake GPU (fake_cuda.h), in the stream's order.
//
// What it makes visible:
//   - bad arguments get the documented code: descriptors that are gone, attributes of another size, shapes and leading
//   dimensions
//     that do not go together, dtypes or epilogues that are not in the table of supported ones, too little workspace;
//   - the heuristic's first answers cannot be used (another state; parts added in the output, if the mask allows them); the
//   next
//     ones add in different orders, by what alignment was promised, so that a wrong choice changes bits;
//   - an operand that is less aligned than its algorithm needs is refused; a bias like that is the device's fault, later, and
//   for
//     good: the heuristic takes its alignment from its address, as the real one does;
//   - the needed workspace is overwritten; C is not read if beta is 0.
// TERRACE_FAKE_EPILOGUE=no_bias|bias_twice|bias_by_columns|forgets_c makes it wrong, to show that tests find it; with
// rounds_before_bias or starts_from_c it is another library, whose roundings the real one has in some of its kernels.
//
// Owner: the program. Threads: any; calls belong to the GPU of their thread (On).
#pragma once

namespace terrace::test {

class FakeCuda;

namespace fake_cublaslt {

// The GPU of the calling thread, as cudaSetDevice() says it of a real one.
class On {
 public:
  explicit On(FakeCuda& gpu);
  ~On();
  On(const On&) = delete;
  On& operator=(const On&) = delete;
};
FakeCuda& gpu_of_thread();

int live_objects();  // handles and descriptors that were not destroyed

}  // namespace fake_cublaslt
}  // namespace terrace::test
