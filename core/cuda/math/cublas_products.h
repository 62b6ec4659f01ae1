// Matrix products by cuBLASLt. The algorithm of a product is chosen once, by the product's key, and kept for the life of the
// device: the first of the library's proposals that sums in one order (no partial results added in the output, no atomics).
//
// Owner:   the math.
// Threads: run() on streams' issuing threads; algorithms() from any.
// Errors:  Error that names the product, the call and cuBLAS's reason.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <terrace/core/cuda/math/launcher.h>
#include <terrace/core/cuda/product.h>
#include <terrace/core/cuda/recorded_algorithms.h>

struct cublasLtContext;

namespace terrace::cuda {

class CublasProducts {
 public:
  // `known`: algorithms that are used again; one is chosen only for other products.
  explicit CublasProducts(KnownAlgorithms known) : known_(std::move(known)) {}
  ~CublasProducts();
  CublasProducts(const CublasProducts&) = delete;
  CublasProducts& operator=(const CublasProducts&) = delete;

  void run(CudaStreamHandle stream, const Workspace& workspace, MatrixView c, MatrixView a, Transpose ta, MatrixView b,
           Transpose tb, TensorView bias, Accumulate accumulate);
  [[nodiscard]] std::string algorithms() const;  // Math::algorithms()
  std::string library();                         // the library that chose them; call on an issuing thread

 private:
  struct Chosen {
    std::array<std::uint64_t, 8> words{};  // cublasLtMatmulAlgo_t
    std::size_t workspace_bytes = 0;
    std::string text;
  };
  class Descriptors;
  cublasLtContext* handle();
  void multiply(CudaStreamHandle stream, const Workspace& workspace, const ProductKey& key, const MatrixView& c,
                const MatrixView& a, const MatrixView& b, const TensorView& bias);
  const Chosen& choose(const ProductKey& key, const Descriptors& descriptors);

  const KnownAlgorithms known_;
  mutable std::mutex mutex_;
  cublasLtContext* handle_ = nullptr;  // made on an issuing thread, where the device is current
  std::string library_;                // the library to which the algorithms mean something; known with the handle
  std::map<ProductKey, Chosen> chosen_;
};

}  // namespace terrace::cuda
