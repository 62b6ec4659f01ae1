// Matrix products by cuBLASLt. The algorithm of a product is chosen once, by the product's shared key, and kept for the life of
// the device: the first of the library's proposals that sums in one order (no partial results added in the output, no atomics)
// and splits no sum that may not be split.
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

struct ChosenProduct {
  std::array<std::uint64_t, 8> words{};  // cublasLtMatmulAlgo_t
  std::string text;
};

class CublasProducts {
 public:
  // `known`: algorithms that are used again; one is chosen only for other products.
  explicit CublasProducts(KnownAlgorithms known) : known_(std::move(known)) {}
  ~CublasProducts();
  CublasProducts(const CublasProducts&) = delete;
  CublasProducts& operator=(const CublasProducts&) = delete;

  void run(CudaStreamHandle stream, const Workspace& workspace, MatrixView c, MatrixView a, Transpose ta, MatrixView b,
           Transpose tb, TensorView bias, Accumulate accumulate);
  // Of operands of 8 bits: Math::matmul_float8(). The GPU must be of kLeastFloat8Capability.
  void run_float8(CudaStreamHandle stream, const Workspace& workspace, MatrixView c, TensorView a, TensorView b,
                  TensorView a_scale, TensorView b_scale, TensorView bias, Accumulate accumulate);
  [[nodiscard]] std::string algorithms() const;  // Math::algorithms()
  std::string library();                         // the library that chose them; call on an issuing thread

 private:
  class Descriptors;
  // What an operand of 8 bits is multiplied by: one fp32 in device memory each; empty for other operands.
  struct Scales {
    TensorView a = {}, b = {};
  };
  cublasLtContext* handle();
  void run(CudaStreamHandle stream, const Workspace& workspace, const MatrixView& c, const MatrixView& a, Transpose ta,
           const MatrixView& b, Transpose tb, const Scales& scales, const TensorView& bias, Accumulate accumulate);
  void multiply(CudaStreamHandle stream, const Workspace& workspace, const ProductKey& key, const MatrixView& c,
                const MatrixView& a, const MatrixView& b, const Scales& scales, const TensorView& bias);
  // The algorithm for `key`, which `descriptors` describes.
  const ChosenProduct& choose(const ProductKey& key, const Descriptors& descriptors);
  const ChosenProduct& find(const ProductKey& key, const Descriptors& descriptors);
  // What was chosen or recorded for exactly this key; null: nothing.
  const ChosenProduct* known(const ProductKey& key, const Descriptors& descriptors);
  [[nodiscard]] ChosenProduct proposed(const ProductKey& key, const Descriptors& descriptors);

  const KnownAlgorithms known_;
  mutable std::mutex mutex_;
  cublasLtContext* handle_ = nullptr;  // made on an issuing thread, where the device is current
  std::string library_;                // the library to which the algorithms mean something; known with the handle
  std::map<ProductKey, ChosenProduct> chosen_;
  std::map<ProductKey, const ChosenProduct*> found_;  // for every product so far: an element of chosen_
};

}  // namespace terrace::cuda
