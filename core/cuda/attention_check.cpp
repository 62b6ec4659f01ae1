#include <terrace/core/cuda/attention_check.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include <terrace/core/cuda/cuda_error.h>
#include <terrace/core/error.h>

namespace terrace::cuda {
namespace {

// The bound of each kernel's error in tests with an oracle in fp64, relative to the largest value: two kernels may differ by
// twice it.
constexpr double kOutBound = 2 * 6e-3, kLseBound = 2 * 1e-5;

// Tiles of 128 and 192 queries, the last one not full; up to five tiles of keys, so that each place holds one after another.
AttentionShape shape_of(std::int64_t head_dim) {
  return {.batch = 1, .seq = 521, .heads = 2, .kv_heads = 1, .head_dim = head_dim};
}

struct Results {
  TensorView out, lse;
};

// All of the check's tensors, at the same offsets on the host and on the GPU.
struct Tensors {
  Tensors(const AttentionShape& s, std::byte* data) : data_(data) {
    qkv = place(DType::bf16, {s.batch * s.seq, (s.heads + 2 * s.kv_heads) * s.head_dim});
    results_at = bytes;
    for (auto* const r : {&warps, &first, &second}) {
      r->out = place(DType::bf16, {s.batch * s.seq, s.heads * s.head_dim});
      r->lse = place(DType::fp32, {s.batch, s.heads, s.seq});
    }
  }
  TensorView qkv;
  Results warps, first, second;
  std::size_t results_at = 0, bytes = 0;

 private:
  TensorView place(DType dtype, Shape shape) {
    const TensorView view{data_ == nullptr ? nullptr : data_ + bytes, dtype, shape};
    bytes += (view.bytes() + 255) / 256 * 256;
    return view;
  }
  std::byte* data_;
};

void fill(const TensorView& qkv) {
  std::uint64_t state = 1;
  for (std::int64_t i = 0; i < qkv.elements(); ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;  // Knuth, MMIX
    qkv.as<bf16>()[i] = bf16(static_cast<float>(static_cast<double>(state >> 40) / (1 << 22) - 2));
  }
}

template <class T>
std::string compare(const char* what, const TensorView& got, const TensorView& want, double bound) {
  double largest = 0, distance = 0;
  for (std::int64_t i = 0; i < want.elements(); ++i) {
    const auto w = static_cast<double>(static_cast<float>(want.as<T>()[i]));
    const double apart = std::abs(static_cast<double>(static_cast<float>(got.as<T>()[i])) - w);
    if (std::isnan(apart)) return fmt::format("its {} is NaN at {}", what, i);
    largest = std::max(largest, std::abs(w));
    distance = std::max(distance, apart);
  }
  if (distance <= bound * largest) return {};
  return fmt::format("its {} differs by up to {:.3g} from that of the warps' kernel, where {:.3g} is allowed", what, distance,
                     bound * largest);
}

// Nothing of the check runs any more when its host memory goes.
class Ended {
 public:
  explicit Ended(const CheckPlace& place) : place_(place) {}
  ~Ended() { place_.runtime.synchronize_stream(place_.stream); }
  Ended(const Ended&) = delete;
  Ended& operator=(const Ended&) = delete;

 private:
  const CheckPlace& place_;
};

bool same_bits(const TensorView& a, const TensorView& b) { return std::memcmp(a.data, b.data, a.bytes()) == 0; }

}  // namespace

std::string check_warpgroup_attention(const CheckPlace& place, std::int64_t head_dim, const IssueAttention& warps,
                                      const IssueAttention& warpgroups) {
  const auto shape = shape_of(head_dim);
  const Tensors gpu(shape, place.workspace.data);
  const auto slab = place.host.allocate(gpu.bytes);
  const Tensors host(shape, slab.data());
  const Ended ended(place);
  const auto check = [&](const char* call, int code) {
    if (code != kCudaSuccess) throw CudaError(place.runtime, code, "the check of attention's kernels", call);
  };
  fill(host.qkv);
  std::fill(slab.data() + host.results_at, slab.data() + host.bytes, std::byte{0xff});  // not a number
  check("cudaMemcpyAsync", place.runtime.copy_async(place.workspace.data, slab.data(), gpu.bytes, place.stream));
  warps(shape, gpu.warps.out, gpu.warps.lse, gpu.qkv);
  std::string trouble;
  try {
    for (const auto* const r : {&gpu.first, &gpu.second}) warpgroups(shape, r->out, r->lse, gpu.qkv);
  } catch (const Error& error) {
    trouble = error.what();
  }
  check("cudaMemcpyAsync", place.runtime.copy_async(slab.data() + gpu.results_at, place.workspace.data + gpu.results_at,
                                                    gpu.bytes - gpu.results_at, place.stream));
  check("cudaStreamSynchronize", place.runtime.synchronize_stream(place.stream));
  if (!trouble.empty()) return trouble;
  for (const auto& wrong : {compare<bf16>("output", host.first.out, host.warps.out, kOutBound),
                            compare<float>("logarithm of sums", host.first.lse, host.warps.lse, kLseBound)}) {
    if (!wrong.empty()) return wrong;
  }
  if (!same_bits(host.first.out, host.second.out) || !same_bits(host.first.lse, host.second.lse))
    return "its second run gives other bits";
  return {};
}

void issue_chosen(AttentionChoice& choice, const CheckPlace& place, const AttentionShape& shape, TensorView out, TensorView lse,
                  TensorView qkv, const IssueAttention& warps, const IssueAttention& warpgroups) {
  if (warpgroups_serve(qkv.dtype, shape)) {
    const auto check = [&] { return check_warpgroup_attention(place, shape.head_dim, warps, warpgroups); };
    if (choice.of(shape.head_dim, check) == AttentionKernel::warpgroups) return warpgroups(shape, out, lse, qkv);
  }
  warps(shape, out, lse, qkv);
}

}  // namespace terrace::cuda
