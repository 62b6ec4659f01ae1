// The arguments of the attention kernels, and the positions of heads in the fused buffers (core/math/math.h).
#pragma once

#include <cstdint>

#include <terrace/core/cuda/arithmetic.h>
#include <terrace/core/cuda/kernels/functions.h>
#include <terrace/core/math/math.h>

namespace terrace::cuda {

// Turns the product of a query and a key into a score (ScoreRule); slope() is the derivative of the score by the product.
template <class A>
struct Scores {
  A factor = 0, cap = 0;  // cap 0: none
  TERRACE_HD A of(A product) const { return cap == 0 ? product * factor : capped(product * factor, cap); }
  TERRACE_HD A slope(A score) const { return cap == 0 ? factor : cap_slope(score, cap) * factor; }
};
template <class A>
Scores<A> scores_of(const ScoreRule& rule, std::int64_t head_dim) {
  return {static_cast<A>(rule.factor(head_dim)), static_cast<A>(rule.cap)};
}

template <class T>
struct AttentionArgs {
  T* out = nullptr;         // [B·S, H·D]
  Acc<T>* lse = nullptr;    // [B, H, S]
  const T* qkv = nullptr;   // [B·S, (H + 2G)·D]
  T* dqkv = nullptr;        // as qkv; only for the backward, as the next one
  const T* dout = nullptr;  // as out
  int seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  Scores<Acc<T>> scores = {};

  TERRACE_HD int group_of(int head) const { return head / (heads / kv_heads); }
  // Elements from one position to the next.
  TERRACE_HD std::int64_t qkv_stride() const { return static_cast<std::int64_t>(heads + 2 * kv_heads) * head_dim; }
  TERRACE_HD std::int64_t out_stride() const { return static_cast<std::int64_t>(heads) * head_dim; }
  // The first element of a head at a position.
  TERRACE_HD std::int64_t q_at(int batch, int position, int head) const {
    return (static_cast<std::int64_t>(batch) * seq + position) * qkv_stride() + static_cast<std::int64_t>(head) * head_dim;
  }
  TERRACE_HD std::int64_t k_at(int batch, int position, int group) const { return q_at(batch, position, heads + group); }
  TERRACE_HD std::int64_t v_at(int batch, int position, int group) const {
    return q_at(batch, position, heads + kv_heads + group);
  }
  TERRACE_HD std::int64_t out_at(int batch, int position, int head) const {
    return (static_cast<std::int64_t>(batch) * seq + position) * out_stride() + static_cast<std::int64_t>(head) * head_dim;
  }
  TERRACE_HD std::int64_t lse_at(int batch, int position, int head) const {
    return (static_cast<std::int64_t>(batch) * heads + head) * seq + position;
  }
};

inline constexpr float kLog2E = 1.44269504088896340736F, kLn2 = 0.69314718055994530942F;

}  // namespace terrace::cuda
