#include <terrace/core/cuda/math/cublas_products.h>

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include <terrace/core/base/error.h>
#include <terrace/core/cuda/math/compiled_ops.h>

namespace terrace::cuda {
namespace {

using Elementwise = ops::Elementwise<CudaLauncher>;

void check(const ProductKey& key, const char* call, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(fmt::format("matmul {}: {}: {} ({})", to_string(key), call, cublasLtGetStatusString(status),
                          cublasLtGetStatusName(status)));
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::bf16: return CUDA_R_16BF;
    case DType::fp64: return CUDA_R_64F;
    case DType::fp16: return CUDA_R_16F;
    case DType::e4m3: return CUDA_R_8F_E4M3;
    case DType::e5m2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
  }
}

// An attribute of the algorithm, for the record.
int attribute(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name) {
  std::uint32_t value = 0;  // some are narrower: the rest stays zero
  std::size_t written = 0;
  if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm, name, &value, sizeof value, &written) == CUBLAS_STATUS_SUCCESS) {
    return static_cast<int>(value);
  }
  std::uint16_t narrow = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algorithm, name, &narrow, sizeof narrow, &written);
  return narrow;
}

// Whether the sums are those of one order, which no split has that the library gets wrong.
bool sums_in_one_order(const ProductKey& key, const cublasLtMatmulAlgo_t& algorithm) {
  const int reduction = attribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
  const int parts = attribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  if (parts != 0 && parts != 1 && !may_split(key)) return false;
  return reduction == CUBLASLT_REDUCTION_SCHEME_NONE || reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

std::string describe(const cublasLtMatmulHeuristicResult_t& result) {
  const auto& a = result.algo;
  return fmt::format(
      "algorithm {}, tile {}, stages {}, split {}, reduction {}, swizzle {}, custom {}, inner {}, cluster {}, workspace {} "
      "bytes, "
      "words {:016x}",
      attribute(a, CUBLASLT_ALGO_CONFIG_ID), attribute(a, CUBLASLT_ALGO_CONFIG_TILE_ID),
      attribute(a, CUBLASLT_ALGO_CONFIG_STAGES_ID), attribute(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
      attribute(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME), attribute(a, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
      attribute(a, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION), attribute(a, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID),
      attribute(a, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID), result.workspaceSize, fmt::join(a.data, " "));
}

ChosenProduct chosen_from(const cublasLtMatmulHeuristicResult_t& found) {
  ChosenProduct chosen{.words = {}, .text = describe(found)};
  static_assert(sizeof chosen.words == sizeof found.algo);
  std::memcpy(chosen.words.data(), &found.algo, sizeof found.algo);
  return chosen;
}
cublasLtMatmulAlgo_t algorithm_of(const std::array<std::uint64_t, 8>& words) {
  cublasLtMatmulAlgo_t algorithm;
  std::memcpy(&algorithm, words.data(), sizeof algorithm);
  return algorithm;
}

// The properties of the calling thread's GPU by which the library chooses.
std::string gpu_at_hand() {
  int device = 0, major = 0, minor = 0, multiprocessors = 0;
  const auto ask = [&](int& value, cudaDeviceAttr attribute) {
    if (const auto error = cudaDeviceGetAttribute(&value, attribute, device); error != cudaSuccess)
      throw Error(fmt::format("cuda:{}: cudaDeviceGetAttribute: {}", device, cudaGetErrorString(error)));
  };
  if (const auto error = cudaGetDevice(&device); error != cudaSuccess)
    throw Error(fmt::format("cudaGetDevice: {}", cudaGetErrorString(error)));
  ask(major, cudaDevAttrComputeCapabilityMajor);
  ask(minor, cudaDevAttrComputeCapabilityMinor);
  ask(multiprocessors, cudaDevAttrMultiProcessorCount);
  return fmt::format("a GPU of compute capability {}.{} with {} multiprocessors", major, minor, multiprocessors);
}

// The library's part of the workspace. The rest is for a copy of a bias.
constexpr std::size_t kBiasBytes = std::size_t{1} << 20, kLibraryBytes = kWorkspaceBytes - kBiasBytes;
// The library's kernels read a bias in words of 16 bytes, whatever alignment A, B, C and D have: the preferences have no field
// for the bias (github.com/pytorch/pytorch, #194497). At another address, the kernel faults, and the process can no longer use
// the GPU.
constexpr std::uintptr_t kBiasAlignment = 16;

// The bias where the epilogue can read it, in the dtype of the result.
TensorView for_epilogue(const CudaLauncher& launcher, const TensorView& bias, DType dtype) {
  if (bias.empty()) return bias;
  if (bias.dtype == dtype && reinterpret_cast<std::uintptr_t>(bias.data) % kBiasAlignment == 0) return bias;
  const TensorView copy{launcher.workspace.data + kLibraryBytes, dtype, {bias.elements()}};
  if (copy.bytes() > kBiasBytes)
    throw Error(fmt::format("matmul: a bias of {} elements in {} is larger than the {} bytes that the workspace has for it",
                            bias.elements(), name_of(dtype), kBiasBytes));
  Elementwise::convert(launcher, copy, bias, Accumulate::no);
  return copy;
}

// Owns a descriptor of the library and destroys it.
template <class T, cublasStatus_t (*destroy)(T)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (value_) destroy(value_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T* place() { return &value_; }
  operator T() const { return value_; }

 private:
  T value_ = nullptr;
};
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

}  // namespace

// Describes one product to the library.
class CublasProducts::Descriptors {
 public:
  explicit Descriptors(const ProductKey& key) : key_(key) {
    const auto p = by_columns(key);
    const bool wide = key.in == DType::fp64;
    const auto compute = wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
    check(key, "cublasLtMatmulDescCreate",
          cublasLtMatmulDescCreate(operation.place(), compute, wide ? CUDA_R_64F : CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.first_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.second_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (key.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(key.out));
      // The heuristic takes the alignment of the bias from its address; the first bias of a product must not decide for all
      // later ones.
      set_bias(reinterpret_cast<const void*>(kBiasAlignment));
    }
    describe(first, key.b_in.value_or(key.in), p.first);
    describe(second, key.in, p.second);
    describe(result, key.out, p.result);
  }
  void set_bias(const void* address) { set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, address); }
  // b is the library's first operand.
  void set_scales(const void* of_a, const void* of_b) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_b);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_a);
  }

  Operation operation;
  Layout first, second, result;

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t name, T value) {
    check(key_, "cublasLtMatmulDescSetAttribute", cublasLtMatmulDescSetAttribute(operation, name, &value, sizeof value));
  }
  void describe(Layout& layout, DType dtype, const ColumnMajor& m) const {
    check(key_, "cublasLtMatrixLayoutCreate",
          cublasLtMatrixLayoutCreate(layout.place(), type_of(dtype), static_cast<std::uint64_t>(m.rows),
                                     static_cast<std::uint64_t>(m.columns), m.stride));
  }

  const ProductKey key_;
};

CublasProducts::~CublasProducts() {
  if (handle_) cublasLtDestroy(handle_);
}

cublasLtContext* CublasProducts::handle() {
  if (handle_) return handle_;
  check({}, "cublasLtCreate", cublasLtCreate(&handle_));
  // Before, any product could be split: what a machine's profile recorded then means nothing now.
  library_ = fmt::format("cuBLASLt {} on {}, sums split where that is safe", cublasLtGetVersion(), gpu_at_hand());
  return handle_;
}

const ChosenProduct* CublasProducts::known(const ProductKey& key, const Descriptors& d) {
  if (const auto at = chosen_.find(key); at != chosen_.end()) return &at->second;
  const auto words = known_.of(key, library_);
  if (!words) return nullptr;
  cublasLtMatmulHeuristicResult_t recorded{};
  recorded.algo = algorithm_of(*words);
  const auto algorithm = recorded.algo;
  // Another version of the library, or another GPU, may not have the algorithm.
  check(key, "cublasLtMatmulAlgoCheck, of the algorithm that is recorded for it,",
        cublasLtMatmulAlgoCheck(handle_, d.operation, d.first, d.second, d.result, d.result, &algorithm, &recorded));
  recorded.algo = algorithm;
  if (!sums_in_one_order(key, algorithm))
    throw Error(fmt::format("matmul {}: the algorithm that the run has recorded for it splits the sum, and cuBLASLt leaves out "
                            "terms of some such sums\n  remove algorithms.txt from the run's directory: then algorithms are "
                            "chosen again, and from here on the run has other bits",
                            to_string(key)),
                ErrorKind::refused);
  return &chosen_.emplace(key, chosen_from(recorded)).first->second;
}

const ChosenProduct& CublasProducts::choose(const ProductKey& key, const Descriptors& d) {
  handle();
  auto& found = found_[key];
  if (!found) found = &find(key, d);
  return *found;
}

const ChosenProduct& CublasProducts::find(const ProductKey& key, const Descriptors& d) {
  if (const auto* const exact = known(key, d)) return *exact;
  const auto shared = shared_key(key);
  if (shared == key) return chosen_.emplace(key, proposed(key, d)).first->second;
  const Descriptors of_shared(shared);
  const auto* chosen = known(shared, of_shared);
  if (!chosen) chosen = &chosen_.emplace(shared, proposed(shared, of_shared)).first->second;
  const auto algorithm = algorithm_of(chosen->words);
  cublasLtMatmulHeuristicResult_t checked{};
  if (cublasLtMatmulAlgoCheck(handle_, d.operation, d.first, d.second, d.result, d.result, &algorithm, &checked) ==
          CUBLAS_STATUS_SUCCESS &&
      checked.workspaceSize <= kLibraryBytes)
    return *chosen;
  return chosen_.emplace(key, proposed(key, d)).first->second;
}

// The library's first proposal that is allowed. Those with a split come first only if they are worth it.
ChosenProduct CublasProducts::proposed(const ProductKey& key, const Descriptors& d) {
  Preference preference;
  check(key, "cublasLtMatmulPreferenceCreate", cublasLtMatmulPreferenceCreate(preference.place()));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
    check(key, "cublasLtMatmulPreferenceSetAttribute",
          cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof value));
  };
  const auto aligned = static_cast<std::uint32_t>(key.aligned_bytes);
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(kLibraryBytes));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned);

  constexpr auto kWhole = CUBLASLT_REDUCTION_SCHEME_NONE, kSplit = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  std::array schemes{kWhole, kSplit};  // the second mask permits what the first one does, too
  if (may_split(key) && has_few_tiles(key)) std::ranges::reverse(schemes);
  for (const auto scheme : schemes) {
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(scheme));
    constexpr int kProposals = 16;
    std::array<cublasLtMatmulHeuristicResult_t, kProposals> proposals{};
    int count = 0;
    const auto status = cublasLtMatmulAlgoGetHeuristic(handle_, d.operation, d.first, d.second, d.result, d.result, preference,
                                                       kProposals, proposals.data(), &count);
    if (status != CUBLAS_STATUS_SUCCESS && scheme == schemes.front()) continue;
    check(key, "cublasLtMatmulAlgoGetHeuristic", status);
    for (const auto& found : std::span(proposals).first(static_cast<std::size_t>(count)))
      if (found.state == CUBLAS_STATUS_SUCCESS && found.workspaceSize <= kLibraryBytes && sums_in_one_order(key, found.algo))
        return chosen_from(found);
  }
  throw Error(fmt::format("matmul {}: cuBLASLt has no algorithm that sums in one order within {} bytes of workspace",
                          to_string(key), kLibraryBytes));
}

void CublasProducts::run(CudaStreamHandle stream, const Workspace& workspace, MatrixView c, MatrixView a, Transpose ta,
                         MatrixView b, Transpose tb, TensorView bias, Accumulate accumulate) {
  run(stream, workspace, c, a, ta, b, tb, Scales(), bias, accumulate);
}

void CublasProducts::run_float8(CudaStreamHandle stream, const Workspace& workspace, MatrixView c, TensorView a, TensorView b,
                                TensorView a_scale, TensorView b_scale, TensorView bias, Accumulate accumulate) {
  run(stream, workspace, c, a, Transpose::no, b, Transpose::yes, {a_scale, b_scale}, bias, accumulate);
}

void CublasProducts::run(CudaStreamHandle stream, const Workspace& workspace, const MatrixView& c, const MatrixView& a,
                         Transpose ta, const MatrixView& b, Transpose tb, const Scales& scales, const TensorView& bias,
                         Accumulate accumulate) {
  if (c.view.elements() == 0) return;
  const CudaLauncher launcher("matmul", stream, workspace);
  if ((ta == Transpose::yes ? rows_of(a) : columns_of(a)) == 0) {
    if (!bias.empty()) return Elementwise::add_bias(launcher, c.view, bias, accumulate);
    if (accumulate == Accumulate::no) Elementwise::zero(launcher, c.with_gaps());
    return;
  }
  // The library has no bias epilogue for fp64, nor one in fp32 for operands of 8 bits, so a kernel adds the bias.
  const bool has_epilogue = c.view.dtype != DType::fp64 && !(is_float8(a.view.dtype) && c.view.dtype == DType::fp32);
  const bool adds_bias_behind = !bias.empty() && !has_epilogue;
  const TensorView epilogue = adds_bias_behind ? TensorView{} : for_epilogue(launcher, bias, c.view.dtype);
  const auto key = key_of(c, a, ta, b, tb, !epilogue.empty(), accumulate == Accumulate::yes);
  multiply(stream, workspace, key, c, a, b, scales, epilogue);
  if (adds_bias_behind) Elementwise::add_bias(launcher, c.view, bias, Accumulate::yes);
}

void CublasProducts::multiply(CudaStreamHandle stream, const Workspace& workspace, const ProductKey& key, const MatrixView& c,
                              const MatrixView& a, const MatrixView& b, const Scales& scales, const TensorView& bias) {
  Descriptors d(key);
  const std::lock_guard lock(mutex_);
  const auto algorithm = algorithm_of(choose(key, d).words);
  if (key.bias) d.set_bias(bias.data);
  if (!scales.a.empty()) d.set_scales(scales.a.data, scales.b.data);
  const bool wide = key.in == DType::fp64;
  const float one = 1, add = key.accumulate ? 1.0F : 0.0F;
  const double wide_one = 1, wide_add = key.accumulate ? 1.0 : 0.0;
  check(key, "cublasLtMatmul",
        cublasLtMatmul(handle(), d.operation, wide ? static_cast<const void*>(&wide_one) : &one, b.view.data, d.first,
                       a.view.data, d.second, wide ? static_cast<const void*>(&wide_add) : &add, c.view.data, d.result,
                       c.view.data, d.result, &algorithm, workspace.data, kLibraryBytes, stream));
}

std::string CublasProducts::library() {
  const std::lock_guard lock(mutex_);
  handle();
  return library_;
}

std::string CublasProducts::algorithms() const {
  const std::lock_guard lock(mutex_);
  std::string text = chosen_.empty() ? "" : fmt::format("library {}\n", library_);
  for (const auto& [key, chosen] : chosen_) text += fmt::format("matmul {}: {}\n", to_string(key), chosen.text);
  return text;
}

}  // namespace terrace::cuda
