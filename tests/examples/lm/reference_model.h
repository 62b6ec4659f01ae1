// The models of all families implemented a second time, as plain loops over fp64 after Hugging Face's modeling files: the
// oracle of the layers. It reads the properties of a family, but shares no code with the layers.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <terrace/examples/lm/models/model_config.h>

namespace terrace::test {

using Values = std::vector<double>;
using Weights = std::map<std::string, Values>;  // by Hugging Face's name

class ReferenceModel {
 public:
  ReferenceModel(const lm::ModelConfig& config, const Weights& weights) : c_(config), w_(weights) {}

  // [N, V], for sequences of `seq` tokens.
  [[nodiscard]] Values logits(const std::vector<int>& tokens, std::int64_t seq) const {
    const auto n = static_cast<std::int64_t>(tokens.size()), c = c_.hidden;
    Values x(static_cast<std::size_t>(n * c));
    for (std::int64_t i = 0; i < n * c; ++i) {
      const std::int64_t token = tokens[static_cast<std::size_t>(i / c)], column = i % c;
      at(x, i) = at(weight(names_.embedding), token * c + column);
      if (*family_.scales.embedding_by_root) at(x, i) *= std::sqrt(static_cast<double>(c));
      if (const auto* const learned = std::get_if<lm::LearnedPositions>(&*family_.positions)) {
        at(x, i) += at(weight(learned->tensor), i / c % seq * c + column);
      }
    }
    std::vector<Values> results;  // of the blocks
    for (std::int64_t block = 0; block < c_.layers; ++block) {
      // A U: the last block reads the first block's result, and so on; no block reads its own input a second time.
      const std::int64_t mirrored = c_.layers - 1 - block;
      if (c_.skips == lm::SkipShape::u && mirrored < block - 1) {
        const Values& gain = w_.at(in_block(block, "skip.weight"));
        for (std::int64_t i = 0; i < n * c; ++i)
          at(x, i) += at(gain, i % c) * at(results[static_cast<std::size_t>(mirrored)], i);
      }
      add(x, result_norm(attention_block(x, n, seq, block), n, block, *names_.attention_result_norm));
      add(x, result_norm(c_.experts.count > 0 ? experts_block(x, n, block) : mlp_block(x, n, block), n, block,
                         *names_.mlp_result_norm));
      results.push_back(x);
    }
    const Values h = norm(x, n, std::string(*names_.final_norm));
    Values all = product(h, n, c, weight(c_.tied ? names_.embedding : names_.head), c_.vocab, true);
    for (double& logit : all) logit = capped(logit, *c_.logit_cap);
    return all;
  }

  // The sum of the tokens' losses; a target of −1 does not count.
  [[nodiscard]] double loss(const std::vector<int>& tokens, const std::vector<int>& targets, std::int64_t seq) const {
    const Values l = logits(tokens, seq);
    double total = 0;
    for (std::size_t n = 0; n < tokens.size(); ++n) {
      if (targets[n] < 0) continue;
      const auto row = static_cast<std::int64_t>(n) * c_.vocab;
      double sum = 0;
      for (std::int64_t v = 0; v < c_.vocab; ++v) sum += std::exp(at(l, row + v));
      total += std::log(sum) - at(l, row + targets[n]);
    }
    return total;
  }

 private:
  [[nodiscard]] const Values& weight(lm::Stated<std::string_view> name) const { return w_.at(std::string(*name) + ".weight"); }
  [[nodiscard]] std::string in_block(std::int64_t block, std::string_view name) const {
    return std::string(*names_.block) + std::to_string(block) + "." + std::string(name);
  }
  static double& at(Values& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; }
  static double at(const Values& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; }
  static void add(Values& x, const Values& r) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += r[i];
  }

  // The norm before a half of a block, if the family has one, and the norm of the half's result, likewise.
  [[nodiscard]] Values norm_before(const Values& x, std::int64_t n, std::int64_t block, std::string_view name) const {
    return name.empty() ? x : norm(x, n, in_block(block, name));
  }
  [[nodiscard]] Values result_norm(const Values& x, std::int64_t n, std::int64_t block, std::string_view name) const {
    return norm_before(x, n, block, name);
  }
  // The norm over all heads of q or k, or over each head by itself.
  void norm_heads(Values& x, std::int64_t n, std::int64_t heads, std::int64_t block, std::string_view name) const {
    if (*family_.query_key_norms == lm::QueryKeyNorms::none) return;
    const bool whole = *family_.query_key_norms == lm::QueryKeyNorms::whole;
    const Values& gain = w_.at(in_block(block, std::string(name) + ".weight"));
    const std::int64_t each = whole ? heads * c_.head_dim() : c_.head_dim();
    for (std::int64_t i = 0; i < n * heads * c_.head_dim(); i += each) {
      double square = 0;
      for (std::int64_t j = 0; j < each; ++j) square += at(x, i + j) * at(x, i + j) / static_cast<double>(each);
      for (std::int64_t j = 0; j < each; ++j) at(x, i + j) *= gain_of(at(gain, j)) / std::sqrt(square + c_.norm_eps);
    }
  }

  [[nodiscard]] double gain_of(double weight) const { return *family_.scales.norm_offset + weight; }
  static double capped(double x, double cap) { return cap == 0 ? x : cap * std::tanh(x / cap); }

  [[nodiscard]] Values norm(const Values& x, std::int64_t n, const std::string& name) const {
    const std::int64_t c = c_.hidden;
    const bool layer_norm = *family_.norm == lm::NormKind::layer;
    Values y(x.size());
    for (std::int64_t i = 0; i < n; ++i) {
      double mean = 0, square = 0;
      for (std::int64_t j = 0; layer_norm && j < c; ++j) mean += at(x, i * c + j) / static_cast<double>(c);
      for (std::int64_t j = 0; j < c; ++j) square += std::pow(at(x, i * c + j) - mean, 2) / static_cast<double>(c);
      for (std::int64_t j = 0; j < c; ++j) {
        at(y, i * c + j) =
            (at(x, i * c + j) - mean) / std::sqrt(square + c_.norm_eps) * gain_of(at(w_.at(name + ".weight"), j)) +
            (layer_norm ? at(w_.at(name + ".bias"), j) : 0);
      }
    }
    return y;
  }

  [[nodiscard]] static Values product(const Values& x, std::int64_t n, std::int64_t in, const Values& matrix, std::int64_t out,
                                      bool out_in) {
    Values y(static_cast<std::size_t>(n * out));
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t o = 0; o < out; ++o) {
        for (std::int64_t k = 0; k < in; ++k) {
          at(y, i * out + o) += at(x, i * in + k) * at(matrix, out_in ? o * in + k : k * out + o);
        }
      }
    }
    return y;
  }
  // nn.Linear or Conv1D.
  [[nodiscard]] Values linear(const Values& x, std::int64_t n, std::int64_t in, const std::string& name, bool bias,
                              std::int64_t out) const {
    Values y = product(x, n, in, w_.at(name + ".weight"), out, *family_.matrices == lm::MatrixOrder::out_in);
    for (std::int64_t i = 0; bias && i < n * out; ++i) at(y, i) += at(w_.at(name + ".bias"), i % out);
    return y;
  }
  // Each result by itself, whether the results have tensors of their own or share one.
  [[nodiscard]] std::vector<Values> results(const Values& x, std::int64_t n, std::int64_t in, std::int64_t block,
                                            const lm::ProjectionParts& parts, const std::vector<std::int64_t>& widths) const {
    std::vector<Values> all;
    if (parts.tensors.size() == widths.size()) {
      for (std::size_t r = 0; r < widths.size(); ++r) {
        all.push_back(linear(x, n, in, in_block(block, parts.tensors[r]), *parts.bias, widths[r]));
      }
      return all;
    }
    const std::int64_t out = std::accumulate(widths.begin(), widths.end(), std::int64_t{0});
    const Values one = linear(x, n, in, in_block(block, parts.tensors[0]), *parts.bias, out);
    for (std::int64_t first = 0; const std::int64_t width : widths) {
      Values& result = all.emplace_back();
      for (std::int64_t i = 0; i < n; ++i) {
        const auto begin = one.begin() + i * out + first;
        result.insert(result.end(), begin, begin + width);
      }
      first += width;
    }
    return all;
  }

  void rotate(Values& x, std::int64_t n, std::int64_t seq, std::int64_t count, double base) const {
    const std::int64_t d = c_.head_dim();
    const auto turned = static_cast<std::int64_t>(static_cast<double>(d) * c_.rope_fraction);
    for (std::int64_t i = 0; i < n * count; ++i) {
      for (std::int64_t j = 0; j < turned / 2; ++j) {
        const double angle =
            static_cast<double>(i / count % seq) / std::pow(base, 2 * static_cast<double>(j) / static_cast<double>(turned));
        const double a = at(x, i * d + j), b = at(x, i * d + j + turned / 2);
        at(x, i * d + j) = a * std::cos(angle) - b * std::sin(angle);
        at(x, i * d + j + turned / 2) = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }

  [[nodiscard]] Values attention_block(const Values& x, std::int64_t n, std::int64_t seq, std::int64_t block) const {
    const std::int64_t c = c_.hidden, d = c_.head_dim(), groups = c_.kv_heads, w = c_.heads * d;
    const Values h = norm_before(x, n, block, *names_.attention_norm);
    auto qkv = results(h, n, c, block, names_.qkv, {w, groups * d, groups * d});
    Values &q = qkv[0], &k = qkv[1], &v = qkv[2];
    const std::int64_t window = c_.window.of(block);
    const double base = window != 0 && c_.window_rope_theta != 0 ? c_.window_rope_theta : c_.rope_theta;
    const double divisor = std::sqrt(c_.query_scalar != 0 ? c_.query_scalar : static_cast<double>(d));
    norm_heads(q, n, c_.heads, block, *names_.q_norm), norm_heads(k, n, groups, block, *names_.k_norm);
    if (std::holds_alternative<lm::RotaryPositions>(*family_.positions) && c_.rotated_blocks->of(block))
      rotate(q, n, seq, c_.heads, base), rotate(k, n, seq, groups, base);
    Values out(static_cast<std::size_t>(n * w));
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t head = 0; head < c_.heads; ++head) {
        const std::int64_t group = head / (c_.heads / groups);
        Values p;
        double sum = 0;
        const std::int64_t first = window == 0 ? i / seq * seq : std::max(i / seq * seq, i - window + 1);
        for (std::int64_t j = first; j <= i; ++j) {
          double score = 0;
          for (std::int64_t e = 0; e < d; ++e) score += at(q, i * w + head * d + e) * at(k, (j * groups + group) * d + e);
          p.push_back(std::exp(capped(score / divisor, *c_.attention_cap)));
          sum += p.back();
        }
        for (std::int64_t e = 0; e < d; ++e) {
          for (std::size_t j = 0; j < p.size(); ++j) {
            const std::int64_t key = first + static_cast<std::int64_t>(j);
            at(out, i * w + head * d + e) += p[j] / sum * at(v, (key * groups + group) * d + e);
          }
        }
      }
    }
    return results(out, n, w, block, names_.attention_output, {c})[0];
  }

  [[nodiscard]] Values mlp_block(const Values& x, std::int64_t n, std::int64_t block) const {
    const std::int64_t c = c_.hidden, f = c_.ffn;
    const Values h = norm_before(x, n, block, *names_.mlp_norm);
    const bool gated = *family_.activation != Activation::gelu_tanh;
    auto up = results(h, n, c, block, names_.up, gated ? std::vector{f, f} : std::vector{f});
    Values& a = up[0];
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] *= factor(a[i]) * (gated ? up[1][i] : 1);
    }
    return results(a, n, f, block, names_.down, {c})[0];
  }

  // Without a capacity: each token goes to all its chosen experts, one token after the other.
  [[nodiscard]] Values experts_block(const Values& x, std::int64_t n, std::int64_t block) const {
    const std::int64_t c = c_.hidden, f = c_.ffn, count = c_.experts.count;
    const auto& named = names_.experts;
    const Values h = norm_before(x, n, block, *names_.mlp_norm);
    const Values logits = linear(h, n, c, in_block(block, *named.router), false, count);
    const bool gated = *family_.activation != Activation::gelu_tanh;
    Values y(x.size());
    for (std::int64_t i = 0; i < n; ++i) {
      const Values token(h.begin() + i * c, h.begin() + (i + 1) * c);
      std::vector<std::pair<std::string, double>> experts;  // names and gates
      std::vector<std::int64_t> order(static_cast<std::size_t>(count));
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](auto a, auto b) { return at(logits, i * count + a) > at(logits, i * count + b); });
      double sum = 0, of_chosen = 0;
      for (std::size_t j = 0; j < order.size(); ++j) {
        const double e = std::exp(at(logits, i * count + order[j]));
        sum += e;
        if (static_cast<std::int64_t>(j) >= c_.experts.chosen) continue;
        of_chosen += e;
        experts.emplace_back(in_block(block, *named.experts) + std::to_string(order[j]) + ".", e);
      }
      for (auto& [name, gate] : experts) gate /= c_.experts.renormalise ? of_chosen : sum;
      for (std::int64_t s = 0; s < c_.experts.shared; ++s)
        experts.emplace_back(in_block(block, "block_sparse_moe.shared_experts.") + std::to_string(s) + ".", 1.0);
      for (const auto& [name, gate] : experts) {
        Values a = linear(token, 1, c, name + std::string(named.up[0]), false, f);
        const Values up = gated ? linear(token, 1, c, name + std::string(named.up[1]), false, f) : Values{};
        for (std::size_t k = 0; k < a.size(); ++k) a[k] *= factor(a[k]) * (gated ? up[k] : 1);
        const Values result = linear(a, 1, f, name + std::string(named.down[0]), false, c);
        for (std::int64_t k = 0; k < c; ++k) at(y, i * c + k) += gate * at(result, k);
      }
    }
    return y;
  }
  [[nodiscard]] double factor(double a) const {
    if (*family_.activation == Activation::swiglu) return 1 / (1 + std::exp(-a));
    return 0.5 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (a + 0.044715 * a * a * a)));
  }

  const lm::ModelConfig c_;
  const lm::Family& family_ = c_.family;
  const lm::TensorNames& names_ = family_.tensors;
  const Weights& w_;
};

}  // namespace terrace::test
