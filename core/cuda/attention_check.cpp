#include <terrace/core/cuda/attention_check.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/cuda/cuda_error.h>

namespace terrace::cuda {
namespace {

// Twice the bound that tests set for each kernel's error, relative to the largest value, against an fp64 oracle: two kernels
// may differ by the sum of their errors.
constexpr double kOutBound = 2 * 6e-3, kLseBound = 2 * 1e-5, kGradientBound = 2 * 12e-3;

// 521 positions leave the last tile incomplete for tiles of 64, 96, 128 and 192 positions. Up to nine tiles pass, so each place
// in shared memory holds several tiles, one after another.
AttentionShape shape_of(std::int64_t head_dim) {
  return {.batch = 1, .seq = 521, .heads = 2, .kv_heads = 1, .head_dim = head_dim};
}

struct Results {
  TensorView out, lse, dqkv;  // forward: the first two; backward: the last
};

// All of the check's tensors, at the same offsets on the host and on the GPU.
struct Tensors {
  Tensors(const AttentionShape& s, bool backward, std::byte* data) : data_(data) {
    const Shape fused = {s.batch * s.seq, (s.heads + 2 * s.kv_heads) * s.head_dim};
    qkv = place(DType::bf16, fused);
    if (backward) dout = place(DType::bf16, {s.batch * s.seq, s.heads * s.head_dim});
    results_at = bytes;
    const auto place_forward = [&](Results& r) {
      r.out = place(DType::bf16, {s.batch * s.seq, s.heads * s.head_dim});
      r.lse = place(DType::fp32, {s.batch, s.heads, s.seq});
    };
    if (backward) place_forward(given);
    for (auto* const r : {&warps, &first, &second}) {
      if (backward) {
        r->dqkv = place(DType::bf16, fused);
      } else {
        place_forward(*r);
      }
    }
  }
  TensorView qkv, dout;  // only for the backward: dout and given
  Results given, warps, first, second;
  std::size_t results_at = 0, bytes = 0;

 private:
  TensorView place(DType dtype, Shape shape) {
    const TensorView view{data_ == nullptr ? nullptr : data_ + bytes, dtype, shape};
    bytes += (view.bytes() + 255) / 256 * 256;
    return view;
  }
  std::byte* data_;
};

void fill(const TensorView& x) {
  std::uint64_t state = 1;
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;  // Knuth, MMIX
    x.as<bf16>()[i] = bf16(static_cast<float>(static_cast<double>(state >> 40) / (1 << 22) - 2));
  }
}

// Compares only the columns [begin, end) of each row.
struct Columns {
  std::int64_t begin, end;
};
template <class T>
std::string compare(const char* what, const TensorView& got, const TensorView& want, double bound, Columns of) {
  const std::int64_t row = want.shape[want.shape.rank() - 1];
  double largest = 0, distance = 0;
  for (std::int64_t i = 0; i < want.elements(); ++i) {
    if (i % row < of.begin || i % row >= of.end) continue;
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

// Compares each part of the gradient relative to its own largest value.
std::string compare(const AttentionShape& s, const Results& got, const Results& want, bool backward) {
  const std::int64_t q = s.heads * s.head_dim, k = q + s.kv_heads * s.head_dim, v = k + s.kv_heads * s.head_dim;
  std::string wrong;
  const auto add = [&](const std::string& one) {
    if (wrong.empty()) wrong = one;
  };
  if (backward) {
    add(compare<bf16>("gradient of queries", got.dqkv, want.dqkv, kGradientBound, {0, q}));
    add(compare<bf16>("gradient of keys", got.dqkv, want.dqkv, kGradientBound, {q, k}));
    add(compare<bf16>("gradient of values", got.dqkv, want.dqkv, kGradientBound, {k, v}));
  } else {
    add(compare<bf16>("output", got.out, want.out, kOutBound, {0, q}));
    add(compare<float>("logarithm of sums", got.lse, want.lse, kLseBound, {0, s.seq}));
  }
  return wrong;
}

// Makes sure that no work of the check still runs when its host memory is freed.
class Ended {
 public:
  explicit Ended(const CheckPlace& place) : place_(place) {}
  ~Ended() { place_.runtime.synchronize_stream(place_.stream); }
  Ended(const Ended&) = delete;
  Ended& operator=(const Ended&) = delete;

 private:
  const CheckPlace& place_;
};

bool same_bits(const TensorView& a, const TensorView& b) {
  return a.data == nullptr || std::memcmp(a.data, b.data, a.bytes()) == 0;
}

}  // namespace

std::string check_warpgroup_attention(const CheckPlace& place, const AttentionSubject& subject, const AttentionIssuers& warps,
                                      const AttentionIssuers& warpgroups) {
  const auto shape = shape_of(subject.head_dim);
  const Tensors gpu(shape, subject.backward, place.workspace.data);
  const auto slab = place.host.allocate(gpu.bytes);
  const Tensors host(shape, subject.backward, slab.data());
  const Ended ended(place);
  const auto check = [&](const char* call, int code) {
    if (code != kCudaSuccess) throw CudaError(place.runtime, code, "the check of attention's kernels", call);
  };
  const auto issue = [&](const AttentionIssuers& by, const Results& to) {
    if (subject.backward) {
      by.backward(shape, to.dqkv, gpu.dout, gpu.given.out, gpu.given.lse, gpu.qkv);
    } else {
      by.forward(shape, to.out, to.lse, gpu.qkv);
    }
  };
  fill(host.qkv);
  if (subject.backward) fill(host.dout);
  std::fill(slab.data() + host.results_at, slab.data() + host.bytes, std::byte{0xff});  // NaN
  check("cudaMemcpyAsync", place.runtime.copy_async(place.workspace.data, slab.data(), gpu.bytes, place.stream));
  if (subject.backward) warps.forward(shape, gpu.given.out, gpu.given.lse, gpu.qkv);
  issue(warps, gpu.warps);
  std::string trouble;
  try {
    for (const auto* const r : {&gpu.first, &gpu.second}) issue(warpgroups, *r);
  } catch (const Error& error) {
    trouble = error.what();
  }
  check("cudaMemcpyAsync", place.runtime.copy_async(slab.data() + gpu.results_at, place.workspace.data + gpu.results_at,
                                                    gpu.bytes - gpu.results_at, place.stream));
  check("cudaStreamSynchronize", place.runtime.synchronize_stream(place.stream));
  if (!trouble.empty()) return trouble;
  if (auto wrong = compare(shape, host.first, host.warps, subject.backward); !wrong.empty()) return wrong;
  if (!same_bits(host.first.out, host.second.out) || !same_bits(host.first.lse, host.second.lse) ||
      !same_bits(host.first.dqkv, host.second.dqkv))
    return "its second run gives other bits";
  return {};
}

namespace {

bool by_warpgroups(AttentionChoice& choice, const CheckPlace& place, const AttentionShape& shape, DType dtype, bool backward,
                   const AttentionIssuers& warps, const AttentionIssuers& warpgroups) {
  if (!warpgroups_serve(dtype, shape)) return false;
  const AttentionSubject subject{backward, shape.head_dim};
  const auto check = [&] { return check_warpgroup_attention(place, subject, warps, warpgroups); };
  return choice.of(subject, check) == AttentionKernel::warpgroups;
}

}  // namespace

void issue_chosen(AttentionChoice& choice, const CheckPlace& place, const AttentionShape& shape, TensorView out, TensorView lse,
                  TensorView qkv, const AttentionIssuers& warps, const AttentionIssuers& warpgroups) {
  const auto& by = by_warpgroups(choice, place, shape, qkv.dtype, false, warps, warpgroups) ? warpgroups : warps;
  by.forward(shape, out, lse, qkv);
}
void issue_chosen_grad(AttentionChoice& choice, const CheckPlace& place, const AttentionShape& shape, TensorView dqkv,
                       TensorView dout, TensorView out, TensorView lse, TensorView qkv, const AttentionIssuers& warps,
                       const AttentionIssuers& warpgroups) {
  const auto& by = by_warpgroups(choice, place, shape, qkv.dtype, true, warps, warpgroups) ? warpgroups : warps;
  by.backward(shape, dqkv, dout, out, lse, qkv);
}

}  // namespace terrace::cuda
