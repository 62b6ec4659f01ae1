#include <terrace/tests/support/gpu/fake_cublaslt.h>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string_view>
#include <vector>

#include <terrace/core/math/dtype.h>
#include <terrace/core/math/float8.h>
#include <terrace/tests/support/gpu/fake_cuda.h>

namespace terrace::test::fake_cublaslt {
namespace {

thread_local FakeCuda* gpu = nullptr;

// ---- descriptors: opaque pointers for the caller ----

using Attributes = std::map<int, std::vector<std::byte>>;
struct Object {
  Attributes attributes = {};
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;  // for an operation
  cudaDataType_t type = CUDA_R_32F;                  // for a layout; the scale type for an operation
  std::uint64_t rows = 0, columns = 0;
  std::int64_t stride = 0;

  template <class T>
  [[nodiscard]] T value(int name, T otherwise) const {
    const auto at = attributes.find(name);
    if (at != attributes.end()) std::memcpy(&otherwise, at->second.data(), sizeof otherwise);
    return otherwise;
  }
};

std::mutex mutex;
std::set<const void*> alive;

template <class Handle>
cublasStatus_t make(Handle* handle, Object object) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  auto* const made = new Object(std::move(object));
  const std::lock_guard lock(mutex);
  alive.insert(made);
  *handle = reinterpret_cast<Handle>(made);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy(const void* handle) {
  const std::lock_guard lock(mutex);
  if (alive.erase(handle) == 0) return CUBLAS_STATUS_INVALID_VALUE;
  delete static_cast<const Object*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
Object* known(const void* handle) {
  const std::lock_guard lock(mutex);
  return alive.contains(handle) ? static_cast<Object*>(const_cast<void*>(handle)) : nullptr;
}
cublasStatus_t set(const void* handle, const std::map<int, std::size_t>& sizes, int name, const void* from, std::size_t bytes) {
  auto* const object = known(handle);
  const auto size = sizes.find(name);
  if (!object || !from || size == sizes.end() || size->second != bytes) return CUBLAS_STATUS_INVALID_VALUE;
  const auto* const first = static_cast<const std::byte*>(from);
  object->attributes[name].assign(first, first + bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// ---- product requests ----

struct Matrix {
  cudaDataType_t type;
  std::int64_t rows, columns, stride;
  friend bool operator==(const Matrix&, const Matrix&) = default;
};
struct Problem {
  Matrix a, b, c, d;
  cublasComputeType_t compute;
  cudaDataType_t scale;
  bool a_transposed, b_transposed, bias;
  cudaDataType_t bias_type;
  const void* bias_data;
  const float *a_scale, *b_scale;  // of operands of 8 bits
  bool fast;                       // sums in fewer bits
  std::int64_t m, n, k;
};

std::size_t size_of_type(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_64F: return 8;
    case CUDA_R_32F: return 4;
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2: return 1;
    default: return 2;
  }
}

// The manual's rules for 8 bits: the first operand transposed and the second not, not both e5m2, all sizes and strides in whole
// words of 16 bytes; the bias is bf16.
bool supports_float8(const Problem& p) {
  const auto in_words = [](const Matrix& m) { return m.stride * static_cast<std::int64_t>(size_of_type(m.type)) % 16 == 0; };
  const bool both_wide = p.a.type == CUDA_R_8F_E5M2 && p.b.type == CUDA_R_8F_E5M2;
  return size_of_type(p.b.type) == 1 && !both_wide && p.a_transposed && !p.b_transposed && !p.fast && p.m % 16 == 0 &&
         p.k % 16 == 0 && in_words(p.a) && in_words(p.b) && in_words(p.d) &&
         (p.d.type == CUDA_R_16BF || p.d.type == CUDA_R_32F) && (!p.bias || p.bias_type == CUDA_R_16BF);
}

bool supported(const Problem& p) {
  const auto all = [&](cudaDataType_t type) { return p.a.type == type && p.b.type == type && p.d.type == type; };
  if (p.c.type != p.d.type) return false;
  if (p.compute == CUBLAS_COMPUTE_64F) return p.scale == CUDA_R_64F && all(CUDA_R_64F) && !p.bias;
  if (p.compute != CUBLAS_COMPUTE_32F) return false;
  if (size_of_type(p.a.type) == 1) return p.scale == CUDA_R_32F && supports_float8(p);
  if (p.scale != CUDA_R_32F || (p.bias && p.bias_type != p.d.type)) return false;
  if (p.a.type == CUDA_R_32F) return all(CUDA_R_32F);
  const bool half = p.a.type == CUDA_R_16BF || p.a.type == CUDA_R_16F;
  return half && p.b.type == p.a.type && (p.d.type == p.a.type || p.d.type == CUDA_R_32F);
}

cublasStatus_t read(Problem* problem, const void* operation, const void* a, const void* b, const void* c, const void* d) {
  const auto *const o = known(operation), *const as = known(a), *const bs = known(b), *const cs = known(c),
                    *const ds = known(d);
  if (!o || !as || !bs || !cs || !ds) return CUBLAS_STATUS_INVALID_VALUE;
  const auto matrix = [](const Object& l) {
    return Matrix{l.type, static_cast<std::int64_t>(l.rows), static_cast<std::int64_t>(l.columns), l.stride};
  };
  Problem p{.a = matrix(*as),
            .b = matrix(*bs),
            .c = matrix(*cs),
            .d = matrix(*ds),
            .compute = o->compute,
            .scale = o->type,
            .a_transposed = o->value(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_T,
            .b_transposed = o->value(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_T,
            .bias = o->value(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT) == CUBLASLT_EPILOGUE_BIAS,
            .bias_type = o->value(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, ds->type),
            .bias_data = o->value<const void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr),
            .a_scale = o->value<const float*>(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, nullptr),
            .b_scale = o->value<const float*>(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, nullptr),
            .fast = o->value<std::int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 0) != 0,
            .m = 0,
            .n = 0,
            .k = 0};
  p.m = p.d.rows, p.n = p.d.columns, p.k = p.a_transposed ? p.a.rows : p.a.columns;
  for (const auto& one : {p.a, p.b, p.c, p.d})
    if (one.rows <= 0 || one.columns <= 0 || one.stride < one.rows) return CUBLAS_STATUS_INVALID_VALUE;
  if ((p.a_transposed ? p.a.columns : p.a.rows) != p.m || (p.b_transposed ? p.b.columns : p.b.rows) != p.k ||
      (p.b_transposed ? p.b.rows : p.b.columns) != p.n || p.c.rows != p.m || p.c.columns != p.n)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!supported(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
  *problem = p;
  return CUBLAS_STATUS_SUCCESS;
}

// ---- algorithms ----

constexpr std::uint64_t kMagic = 0x6d61646520757020;
// An algorithm that sums `parts` ranges of k, each ascending, then adds these sums. The other fields are its requirements.
struct Algorithm {
  std::uint64_t magic = kMagic, id = 0, parts = 1, scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  std::uint64_t alignment = 1, bias_alignment = 1, types = 0, told_parts = 1;
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
constexpr std::uint64_t kNarrow = 21, kWide = 66, kSplit = 67;
constexpr std::int64_t kLongEnoughToSplit = 1024;

std::uint64_t types_of(const Problem& p) {
  return static_cast<std::uint64_t>(p.a.type) << 24 | static_cast<std::uint64_t>(p.b.type) << 16 |
         static_cast<std::uint64_t>(p.d.type) << 8 | static_cast<std::uint64_t>(p.bias);
}
std::size_t workspace_of(const Algorithm& a, const Problem& p) {
  if (a.scheme != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) return 0;
  return a.parts * static_cast<std::size_t>(p.m * p.n) * size_of_type(p.scale);
}
std::uint64_t alignment_of(std::uint64_t number) { return number == 0 ? 256 : std::min<std::uint64_t>(256, number & -number); }
std::uint64_t alignment_of(const void* address) { return alignment_of(reinterpret_cast<std::uintptr_t>(address)); }
// The alignment of a matrix whose buffer has the alignment `buffer`: "for buffer pointer, leading dimension".
std::uint64_t alignment_of(const Matrix& m, std::uint64_t buffer) {
  return std::min(buffer, alignment_of(static_cast<std::uint64_t>(m.stride) * size_of_type(m.type)));
}

// ---- the kernel ----

constexpr std::array<std::string_view, 7> kEpilogues = {
    "", "no_bias", "bias_twice", "bias_by_columns", "forgets_c", "rounds_before_bias", "starts_from_c"};
enum class Epilogue : std::uint8_t {
  right,
  no_bias,
  bias_twice,
  bias_by_columns,
  forgets_c,
  rounds_before_bias,
  starts_from_c
};
Epilogue planted_epilogue() {
  const char* const name = std::getenv("TERRACE_FAKE_EPILOGUE");
  const auto* const at = std::ranges::find(kEpilogues, name ? name : "");
  if (at == kEpilogues.end()) throw std::invalid_argument("TERRACE_FAKE_EPILOGUE");
  return static_cast<Epilogue>(at - kEpilogues.begin());
}
const Epilogue epilogue = planted_epilogue();

enum class Split : std::uint8_t { long_sums, forced, hidden };
Split planted_split() {
  const char* const name = std::getenv("TERRACE_FAKE_SPLIT");
  const std::string_view given = name ? name : "";
  if (given == "forced") return Split::forced;
  if (given == "hidden") return Split::hidden;
  if (!given.empty()) throw std::invalid_argument("TERRACE_FAKE_SPLIT");
  return Split::long_sums;
}
const Split split = planted_split();

// How many of k terms a split sum has: all, or without those that cuBLASLt 13.1.1 drops.
std::int64_t terms_of(std::int64_t k, std::int64_t parts) {
  const auto rest = k % 64;
  return rest != 0 && k / 64 % parts == 0 && parts > rest ? k - rest : k;
}

struct Work {
  Problem problem;
  const void *a, *b, *c, *bias;
  void* d;
  std::byte* workspace;
  std::size_t workspace_bytes;
  double alpha, beta;
  std::uint64_t parts, bias_alignment;
  bool split;
  FakeCuda* gpu;
};

template <class Number>
Number load(cudaDataType_t type, const void* from, std::int64_t at) {
  switch (type) {
    case CUDA_R_64F: return static_cast<Number>(static_cast<const double*>(from)[at]);
    case CUDA_R_32F: return static_cast<Number>(static_cast<const float*>(from)[at]);
    case CUDA_R_16BF: return static_cast<Number>(static_cast<float>(static_cast<const bf16*>(from)[at]));
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
      return static_cast<Number>(math::float8_value(static_cast<const std::uint8_t*>(from)[at],
                                                    math::float8_format(type == CUDA_R_8F_E4M3 ? DType::e4m3 : DType::e5m2)));
    default: return static_cast<Number>(static_cast<float>(static_cast<const fp16*>(from)[at]));
  }
}
template <class Number>
Number rounded_to(cudaDataType_t type, Number x) {
  switch (type) {
    case CUDA_R_16BF: return static_cast<Number>(static_cast<float>(bf16(static_cast<float>(x))));
    case CUDA_R_16F: return static_cast<Number>(static_cast<float>(fp16(static_cast<float>(x))));
    default: return x;
  }
}
template <class Number>
void store(cudaDataType_t type, void* to, std::int64_t at, Number x) {
  switch (type) {
    case CUDA_R_64F: static_cast<double*>(to)[at] = static_cast<double>(x); break;
    case CUDA_R_32F: static_cast<float*>(to)[at] = static_cast<float>(x); break;
    case CUDA_R_16BF: static_cast<bf16*>(to)[at] = bf16(static_cast<float>(x)); break;
    default: static_cast<fp16*>(to)[at] = fp16(static_cast<float>(x));
  }
}
template <class Number>
void compute(const Work& w) {
  const auto& p = w.problem;
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  std::vector<Number> a(size(p.k * p.m)), b(size(p.n * p.k));  // [k, m] and [n, k]
  const auto operand = [&](const Matrix& m, const void* from, std::int64_t at) { return load<Number>(m.type, from, at); };
  for (std::int64_t l = 0; l < p.k; ++l) {
    for (std::int64_t i = 0; i < p.m; ++i)
      a[size(l * p.m + i)] = operand(p.a, w.a, p.a_transposed ? i * p.a.stride + l : l * p.a.stride + i);
    for (std::int64_t j = 0; j < p.n; ++j)
      b[size(j * p.k + l)] = operand(p.b, w.b, p.b_transposed ? l * p.b.stride + j : j * p.b.stride + l);
  }
  const auto parts = static_cast<std::int64_t>(w.parts);
  const auto terms = w.split ? terms_of(p.k, parts) : p.k;
  // Of operands of 8 bits: a power of two, so a sum that starts from c can begin with c ÷ scale.
  const auto scale = size_of_type(p.a.type) == 1
                         ? static_cast<Number>((p.a_scale ? *p.a_scale : 1) * (p.b_scale ? *p.b_scale : 1))
                         : Number{1};
  std::vector<Number> whole(size(p.m)), part(size(p.m));
  for (std::int64_t j = 0; j < p.n; ++j) {
    const auto added = [&](std::int64_t i) {
      return static_cast<Number>(w.beta) * load<Number>(p.c.type, w.c, j * p.c.stride + i);
    };
    const bool adds = w.beta != 0 && epilogue != Epilogue::forgets_c, adds_first = epilogue == Epilogue::starts_from_c;
    for (std::int64_t s = 0; s < parts; ++s) {
      for (std::int64_t i = 0; i < p.m; ++i) part[size(i)] = adds && adds_first && s == 0 ? added(i) / scale : Number{0};
      for (std::int64_t l = terms * s / parts; l < terms * (s + 1) / parts; ++l) {
        const Number by = b[size(j * p.k + l)];
        const Number* const row = a.data() + l * p.m;
        for (std::int64_t i = 0; i < p.m; ++i) part[size(i)] += row[i] * by;
      }
      for (std::int64_t i = 0; i < p.m; ++i) whole[size(i)] = s == 0 ? part[size(i)] : whole[size(i)] + part[size(i)];
    }
    for (std::int64_t i = 0; i < p.m; ++i) {
      Number x = static_cast<Number>(w.alpha) * whole[size(i)];
      x *= scale;
      if (adds && !adds_first) x = added(i) + x;
      if (p.bias && epilogue != Epilogue::no_bias) {
        const auto bias = load<Number>(p.bias_type, w.bias, epilogue == Epilogue::bias_by_columns ? j % p.m : i);
        if (w.split || epilogue == Epilogue::rounds_before_bias) x = rounded_to(p.d.type, x);
        x += epilogue == Epilogue::bias_twice ? 2 * bias : bias;
      }
      store(p.d.type, w.d, j * p.d.stride + i, x);
    }
  }
}

void run(const cuda::CudaLaunch& launch) {
  const auto& w = *static_cast<const Work*>(launch.arguments);
  if (w.problem.bias && alignment_of(w.bias) < w.bias_alignment) return w.gpu->fault(716);  // cudaErrorMisalignedAddress
  std::memset(w.workspace, 0xff, w.workspace_bytes);
  if (w.problem.scale == CUDA_R_64F) {
    compute<double>(w);
  } else {
    compute<float>(w);
  }
}

double number(cudaDataType_t scale, const void* from) { return load<double>(scale, from, 0); }

}  // namespace

On::On(FakeCuda& on) { gpu = &on; }
On::~On() { gpu = nullptr; }
FakeCuda& gpu_of_thread() {
  if (!gpu) throw std::logic_error("cuBLASLt or a kernel was called by a thread without a GPU");
  return *gpu;
}
int live_objects() {
  const std::lock_guard lock(mutex);
  return static_cast<int>(alive.size());
}

}  // namespace terrace::test::fake_cublaslt

// ---- the library's own functions ----

using namespace terrace::test::fake_cublaslt;

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  gpu_of_thread();
  return make(handle, {});
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }
std::size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS of another number";
  }
}
const char* cublasLtGetStatusString(cublasStatus_t /*status*/) { return "made up"; }

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t stride) {
  return make(layout, {.type = type, .rows = rows, .columns = columns, .stride = stride});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
  return make(desc, {.compute = compute, .type = scale});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, const void* from,
                                              std::size_t bytes) {
  static const std::map<int, std::size_t> sizes = {
      {CUBLASLT_MATMUL_DESC_TRANSA, 4},          {CUBLASLT_MATMUL_DESC_TRANSB, 4},
      {CUBLASLT_MATMUL_DESC_EPILOGUE, 4},        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, 4},
      {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, 8}, {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, 8},
      {CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1},      {CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8}};
  return set(desc, sizes, name, from, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) { return make(preference, {}); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name, const void* from,
                                                    std::size_t bytes) {
  static const std::map<int, std::size_t> sizes = {
      {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 8},   {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 4},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 4}, {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 4},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 4}, {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 4}};
  return set(preference, sizes, name, from, bytes);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo, cublasLtMatmulAlgoConfigAttributes_t name,
                                                    void* to, std::size_t bytes, std::size_t* written) {
  const bool narrow = name == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || name == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
  if (!algo || !to || bytes != (narrow ? sizeof(std::uint16_t) : sizeof(std::uint32_t))) return CUBLAS_STATUS_INVALID_VALUE;
  const auto a = std::bit_cast<Algorithm>(*algo);
  const std::uint64_t value = name == CUBLASLT_ALGO_CONFIG_ID                 ? a.id
                              : name == CUBLASLT_ALGO_CONFIG_SPLITK_NUM       ? a.told_parts
                              : name == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME ? a.scheme
                                                                              : 0;
  std::memcpy(to, &value, bytes);  // copies the lower bytes
  if (written) *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  Problem problem{};
  if (!known(handle) || !algo || !result) return CUBLAS_STATUS_INVALID_VALUE;
  if (const auto status = read(&problem, operation, a, b, c, d)) return status;
  const auto algorithm = std::bit_cast<Algorithm>(*algo);
  if (algorithm.magic != kMagic || algorithm.types != types_of(problem)) return CUBLAS_STATUS_INVALID_VALUE;
  result->workspaceSize = workspace_of(algorithm, problem);
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
  Problem p{};
  const auto* const wishes = known(preference);
  if (!known(handle) || !wishes || requested <= 0 || !results || !count) return CUBLAS_STATUS_INVALID_VALUE;
  if (const auto status = read(&p, operation, a, b, c, d)) return status;
  const auto buffer = [&](int name) { return std::uint64_t{wishes->value<std::uint32_t>(name, 256)}; };
  const auto aligned = std::min({alignment_of(p.a, buffer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)),
                                 alignment_of(p.b, buffer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES)),
                                 alignment_of(p.c, buffer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES)),
                                 alignment_of(p.d, buffer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES))});
  const auto room = wishes->value<std::uint64_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 0);
  const auto mask = wishes->value<std::uint32_t>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_MASK);
  *count = 0;
  const auto propose = [&](Algorithm algorithm, cublasStatus_t state) {
    if (*count == requested || algorithm.alignment > aligned || workspace_of(algorithm, p) > room ||
        (split == Split::long_sums && (algorithm.scheme & ~std::uint64_t{mask}) != 0))
      return;
    // The bias is read in vectors of 16 bytes, or larger ones if its address is aligned further.
    algorithm.bias_alignment = std::max<std::uint64_t>(16, alignment_of(p.bias_data));
    algorithm.types = types_of(p);
    algorithm.told_parts = algorithm.id == kSplit && split != Split::hidden ? algorithm.parts : 1;
    auto& result = results[(*count)++];
    result = {.algo = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm),
              .workspaceSize = workspace_of(algorithm, p),
              .state = state,
              .wavesCount = 1,
              .reserved = {}};
  };
  propose({.id = kWide, .parts = 5}, CUBLAS_STATUS_NOT_SUPPORTED);
  if (split != Split::hidden)
    propose({.id = kSplit, .parts = 4, .scheme = CUBLASLT_REDUCTION_SCHEME_INPLACE}, CUBLAS_STATUS_SUCCESS);
  if (p.k >= kLongEnoughToSplit || split != Split::long_sums)
    propose({.id = kSplit, .parts = 10, .scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}, CUBLAS_STATUS_SUCCESS);
  propose({.id = kWide, .parts = 2, .alignment = 16}, CUBLAS_STATUS_SUCCESS);
  propose({.id = kNarrow, .alignment = size_of_type(p.a.type) == 1 ? 16 : size_of_type(p.a.type)}, CUBLAS_STATUS_SUCCESS);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t stream) {
  cublasLtMatmulHeuristicResult_t found{};
  if (const auto status = cublasLtMatmulAlgoCheck(handle, operation, a_layout, b_layout, c_layout, d_layout, algo, &found))
    return status;
  Problem p{};
  if (const auto status = read(&p, operation, a_layout, b_layout, c_layout, d_layout)) return status;
  const auto algorithm = std::bit_cast<Algorithm>(*algo);
  if (!alpha || !beta || !a || !b || !d || (c == d && p.c != p.d) || (p.bias && !p.bias_data) ||
      found.workspaceSize > workspace_bytes || (found.workspaceSize > 0 && alignment_of(workspace) < 256))
    return CUBLAS_STATUS_INVALID_VALUE;
  const double beta_value = number(p.scale, beta);
  if (beta_value != 0 && !c) return CUBLAS_STATUS_INVALID_VALUE;
  const auto aligned = [&](const Matrix& m, const void* data) {
    return alignment_of(m, alignment_of(data)) >= algorithm.alignment;
  };
  if (!aligned(p.a, a) || !aligned(p.b, b) || !aligned(p.c, c) || !aligned(p.d, d)) return CUBLAS_STATUS_NOT_SUPPORTED;

  auto& on = gpu_of_thread();
  const Work work{.problem = p,
                  .a = a,
                  .b = b,
                  .c = c,
                  .bias = p.bias_data,
                  .d = d,
                  .workspace = static_cast<std::byte*>(workspace),
                  .workspace_bytes = found.workspaceSize,
                  .alpha = number(p.scale, alpha),
                  .beta = beta_value,
                  .parts = algorithm.parts,
                  .bias_alignment = algorithm.bias_alignment,
                  .split = algorithm.id == kSplit,
                  .gpu = &on};
  const terrace::cuda::CudaLaunch launch{
      .kernel = reinterpret_cast<const void*>(&run), .arguments = &work, .argument_bytes = sizeof work};
  return on.launch(launch, stream) == terrace::cuda::kCudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

// ---- CUDA runtime functions for the GPU's entry in a product's record ----

cudaError_t cudaGetDevice(int* device) {
  gpu_of_thread();
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  terrace::cuda::CudaProperties found;
  if (const int code = gpu_of_thread().properties(device, &found)) return static_cast<cudaError_t>(code);
  *value = attribute == cudaDevAttrComputeCapabilityMajor   ? found.compute_major
           : attribute == cudaDevAttrComputeCapabilityMinor ? found.compute_minor
                                                            : found.multiprocessors;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t /*error*/) { return "made up"; }
