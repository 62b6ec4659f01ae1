// A fake cuBLASLt for machines without a GPU: the calls of core/cuda/math/cublas_products.cpp, as documented in NVIDIA's header
// and manual. Products are computed on the host, as kernels of the fake GPU (fake_cuda.h), in the order of the stream.
//
// What it detects:
//   - invalid arguments get the documented error code: destroyed descriptors, attributes of a wrong size, inconsistent shapes
//     and leading dimensions, dtypes or epilogues that are not in the table of supported ones, too little workspace;
//   - use of the heuristic's first answers, which are unusable (another state; parts added in the output, if the mask allows
//     them); the next ones add in different orders, depending on the promised alignment, so that a wrong choice changes bits;
//   - an operand that is less aligned than its algorithm requires is refused; such a bias becomes a later, permanent fault of
//     the device, because the heuristic takes the alignment from the bias's address, as the real one does;
//   - wrong workspace and beta: the needed workspace is overwritten; C is not read if beta is 0.
//   - a split sum is as wrong as those of the real library: it may leave out the last terms, and rounds before it adds a bias.
//     It is proposed for long sums; with TERRACE_FAKE_SPLIT=forced always, also to callers that allow no split; with hidden, it
//     does not say that it is one.
//   - operands of 8 bits outside the manual's rules (the first transposed, the second not; sizes of whole 16; sums in fp32).
// TERRACE_FAKE_EPILOGUE=no_bias|bias_twice|bias_by_columns|forgets_c|rounds_before_bias makes it wrong, to show that tests
// detect it. With starts_from_c it rounds differently, as some kernels of the real library do.
//
// Owner: the program. Threads: any; calls belong to the current GPU of their thread (On).
#pragma once

namespace terrace::test {

class FakeCuda;

namespace fake_cublaslt {

// Sets the GPU of the calling thread, as cudaSetDevice() does for a real one.
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
