// Causal attention and its gradient in fp64, one sum at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include <terrace/core/math/math.h>

namespace terrace::test {

struct AttentionOracle {
  // Arguments are laid out as in core/math/math.h. If `dout` is empty, no gradient is computed.
  AttentionOracle(const AttentionShape& s, const std::vector<double>& qkv, const std::vector<double>& dout)
      : s_(s), qkv_(qkv), dout_(dout) {
    out.resize(size(s.batch * s.seq * s.heads * s.head_dim));
    lse.resize(size(s.batch * s.heads * s.seq));
    if (!dout.empty()) dqkv.resize(qkv.size());
    for (std::int64_t b = 0; b < s.batch; ++b) {
      for (std::int64_t h = 0; h < s.heads; ++h) {
        for (std::int64_t t = 0; t < s.seq; ++t) row(b, h, t);
      }
    }
  }
  std::vector<double> out, lse, dqkv;

 private:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
  [[nodiscard]] std::size_t at(std::int64_t b, std::int64_t t, std::int64_t head) const {
    return size(((b * s_.seq + t) * (s_.heads + 2 * s_.kv_heads) + head) * s_.head_dim);
  }
  void row(std::int64_t b, std::int64_t h, std::int64_t t) {
    const std::int64_t k_head = s_.heads + h / (s_.heads / s_.kv_heads), v_head = k_head + s_.kv_heads;
    const std::size_t dim = size(s_.head_dim), q = at(b, t, h), o = size(((b * s_.seq + t) * s_.heads + h) * s_.head_dim);
    const double scale = s_.scores.scale != 0 ? s_.scores.scale : 1 / std::sqrt(static_cast<double>(s_.head_dim));
    const double cap = s_.scores.cap;
    const auto dot = [&](const std::vector<double>& x, std::size_t i, const std::vector<double>& y, std::size_t j) {
      double sum = 0;
      for (std::size_t d = 0; d < dim; ++d) sum += x[i + d] * y[j + d];
      return sum;
    };
    std::vector<double> p(size(t + 1));
    double highest = -INFINITY, total = 0;
    std::vector<double> slope(size(t + 1), scale);
    for (std::int64_t u = 0; u <= t; ++u) {
      double& score = p[size(u)] = dot(qkv_, q, qkv_, at(b, u, k_head)) * scale;
      if (cap != 0) {
        const double tangent = std::tanh(score / cap);
        score = cap * tangent;
        slope[size(u)] *= 1 - tangent * tangent;
      }
      highest = std::max(highest, score);
    }
    for (auto& x : p) total += x = std::exp(x - highest);
    lse[size((b * s_.heads + h) * s_.seq + t)] = highest + std::log(total);
    for (std::int64_t u = 0; u <= t; ++u) {
      p[size(u)] /= total;
      for (std::size_t d = 0; d < dim; ++d) out[o + d] += p[size(u)] * qkv_[at(b, u, v_head) + d];
    }
    if (dout_.empty()) return;
    const double inner = dot(dout_, o, out, o);
    for (std::int64_t u = 0; u <= t; ++u) {
      const std::size_t k = at(b, u, k_head), v = at(b, u, v_head);
      const double ds = p[size(u)] * (dot(dout_, o, qkv_, v) - inner) * slope[size(u)];
      for (std::size_t d = 0; d < dim; ++d) {
        dqkv[q + d] += ds * qkv_[k + d];
        dqkv[k + d] += ds * qkv_[q + d];
        dqkv[v + d] += p[size(u)] * dout_[o + d];
      }
    }
  }

  AttentionShape s_;
  const std::vector<double>&qkv_, &dout_;
};

}  // namespace terrace::test
