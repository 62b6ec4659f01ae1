#include <terrace/core/cuda/math/cublas_products.h>

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include <terrace/core/cuda/math/ops.h>
#include <terrace/core/error.h>

namespace terrace::cuda {
namespace {

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

bool sums_in_one_order(const cublasLtMatmulAlgo_t& algorithm) {
  const int reduction = attribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
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

// What the library chooses by, of the calling thread's GPU.
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

// A descriptor of the library's, given back.
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

// The description of one product for the library.
class CublasProducts::Descriptors {
 public:
  Descriptors(const ProductKey& key, const TensorView& bias, bool tf32) {
    const auto p = by_columns(key);
    const bool wide = key.in == DType::fp64;
    const auto compute = wide                            ? CUBLAS_COMPUTE_64F
                         : tf32 && key.in == DType::fp32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                         : CUBLAS_COMPUTE_32F;
    check(key, "cublasLtMatmulDescCreate",
          cublasLtMatmulDescCreate(operation.place(), compute, wide ? CUDA_R_64F : CUDA_R_32F));
    set(key, CUBLASLT_MATMUL_DESC_TRANSA, p.first_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(key, CUBLASLT_MATMUL_DESC_TRANSB, p.second_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (!bias.empty()) {
      set(key, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(key, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(bias.dtype));
      set(key, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.data));
    }
    describe(key, first, key.in, p.first);
    describe(key, second, key.in, p.second);
    describe(key, result, key.out, p.result);
  }

  Operation operation;
  Layout first, second, result;

 private:
  template <class T>
  void set(const ProductKey& key, cublasLtMatmulDescAttributes_t name, T value) {
    check(key, "cublasLtMatmulDescSetAttribute", cublasLtMatmulDescSetAttribute(operation, name, &value, sizeof value));
  }
  static void describe(const ProductKey& key, Layout& layout, DType dtype, const ColumnMajor& m) {
    check(key, "cublasLtMatrixLayoutCreate",
          cublasLtMatrixLayoutCreate(layout.place(), type_of(dtype), static_cast<std::uint64_t>(m.rows),
                                     static_cast<std::uint64_t>(m.columns), m.stride));
  }
};

CublasProducts::~CublasProducts() {
  if (handle_) cublasLtDestroy(handle_);
}

cublasLtContext* CublasProducts::handle() {
  if (handle_) return handle_;
  check({}, "cublasLtCreate", cublasLtCreate(&handle_));
  library_ = fmt::format("cuBLASLt {} on {}{}", cublasLtGetVersion(), gpu_at_hand(), tf32_ ? ", tf32" : "");
  return handle_;
}

const CublasProducts::Chosen& CublasProducts::choose(const ProductKey& key, const Descriptors& d) {
  handle();
  if (const auto known = chosen_.find(key); known != chosen_.end()) return known->second;
  const auto keep = [&](const cublasLtMatmulHeuristicResult_t& found) -> const Chosen& {
    Chosen chosen{.words = {}, .workspace_bytes = found.workspaceSize, .text = describe(found)};
    static_assert(sizeof chosen.words == sizeof found.algo);
    std::memcpy(chosen.words.data(), &found.algo, sizeof found.algo);
    return chosen_.emplace(key, std::move(chosen)).first->second;
  };
  if (const auto words = known_.of(key, library_)) {
    cublasLtMatmulHeuristicResult_t recorded{};
    cublasLtMatmulAlgo_t algorithm;
    std::memcpy(&algorithm, words->data(), sizeof algorithm);
    // Another version of the library, or another GPU, may not have it.
    check(key, "cublasLtMatmulAlgoCheck, of the algorithm that is recorded for it,",
          cublasLtMatmulAlgoCheck(handle(), d.operation, d.first, d.second, d.result, d.result, &algorithm, &recorded));
    recorded.algo = algorithm;
    return keep(recorded);
  }
  Preference preference;
  check(key, "cublasLtMatmulPreferenceCreate", cublasLtMatmulPreferenceCreate(preference.place()));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
    check(key, "cublasLtMatmulPreferenceSetAttribute",
          cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof value));
  };
  const auto aligned = static_cast<std::uint32_t>(key.aligned_bytes);
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(kWorkspaceBytes));
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned);

  constexpr int kProposals = 16;
  std::array<cublasLtMatmulHeuristicResult_t, kProposals> proposals{};
  int count = 0;
  check(key, "cublasLtMatmulAlgoGetHeuristic",
        cublasLtMatmulAlgoGetHeuristic(handle(), d.operation, d.first, d.second, d.result, d.result, preference, kProposals,
                                       proposals.data(), &count));
  for (int i = 0; i < count; ++i) {
    const auto& found = proposals[static_cast<std::size_t>(i)];
    if (found.state != CUBLAS_STATUS_SUCCESS || found.workspaceSize > kWorkspaceBytes || !sums_in_one_order(found.algo))
      continue;
    return keep(found);
  }
  throw Error(fmt::format("matmul {}: cuBLASLt has no algorithm that sums in one order within {} bytes of workspace",
                          to_string(key), kWorkspaceBytes));
}

void CublasProducts::run(CudaStreamHandle stream, const Workspace& workspace, TensorView c, TensorView a, Transpose ta,
                         TensorView b, Transpose tb, TensorView bias, Accumulate accumulate) {
  if (c.elements() == 0) return;
  const CudaLauncher launcher("matmul", stream, workspace);
  const bool empty_sum = (ta == Transpose::yes ? rows_of(a) : columns_of(a)) == 0;
  // The library adds a bias of the result's dtype in its epilogue, and none in fp64; any other one is put into c before.
  if (!bias.empty() && (empty_sum || bias.dtype != c.dtype || c.dtype == DType::fp64)) {
    ops::add_bias(launcher, c, bias, accumulate);
    bias = {};
    accumulate = Accumulate::yes;
  }
  if (empty_sum) {
    if (accumulate == Accumulate::no) ops::zero(launcher, c);
    return;
  }

  const auto key = key_of(c, a, ta, b, tb, !bias.empty(), accumulate == Accumulate::yes);
  const Descriptors d(key, bias, tf32_);
  const std::lock_guard lock(mutex_);
  const Chosen& chosen = choose(key, d);
  cublasLtMatmulAlgo_t algorithm;
  std::memcpy(&algorithm, chosen.words.data(), sizeof algorithm);
  const bool wide = key.in == DType::fp64;
  const float one = 1, add = key.accumulate ? 1.0F : 0.0F;
  const double wide_one = 1, wide_add = key.accumulate ? 1.0 : 0.0;
  check(key, "cublasLtMatmul",
        cublasLtMatmul(handle(), d.operation, wide ? static_cast<const void*>(&wide_one) : &one, b.data, d.first, a.data,
                       d.second, wide ? static_cast<const void*>(&wide_add) : &add, c.data, d.result, c.data, d.result,
                       &algorithm, workspace.data, kWorkspaceBytes, stream));
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
