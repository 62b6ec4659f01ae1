// GPT-2 and Llama written a second time, as plain loops over fp64 after Hugging Face's modeling files: the oracle of the
// layers.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <terrace/examples/lm/model_config.h>

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
      at(x, i) = gpt2() ? at(w("transformer.wte.weight"), token * c + column) +
                              at(w("transformer.wpe.weight"), i / c % seq * c + column)
                        : at(w("model.embed_tokens.weight"), token * c + column);
    }
    std::vector<Values> results;  // of the blocks
    for (std::int64_t block = 0; block < c_.layers; ++block) {
      // A U: the last block reads the first one's result, and so on; not its own input a second time.
      const std::int64_t mirrored = c_.layers - 1 - block;
      if (c_.skips == lm::SkipShape::u && mirrored < block - 1) {
        const Values& gain = w((gpt2() ? "transformer.h." : "model.layers.") + std::to_string(block) + ".skip.weight");
        for (std::int64_t i = 0; i < n * c; ++i)
          at(x, i) += at(gain, i % c) * at(results[static_cast<std::size_t>(mirrored)], i);
      }
      add(x, attention_block(x, n, seq, block));
      add(x, mlp_block(x, n, block));
      results.push_back(x);
    }
    const Values h = norm(x, n, gpt2() ? "transformer.ln_f" : "model.norm");
    const char* const tied = gpt2() ? "transformer.wte.weight" : "model.embed_tokens.weight";
    return product(h, n, c, w(c_.tied ? tied : "lm_head.weight"), c_.vocab, true);
  }

  // Sum of token losses; −1 is no target.
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
  [[nodiscard]] bool gpt2() const { return c_.family == lm::Family::gpt2; }
  [[nodiscard]] const Values& w(const std::string& name) const { return w_.at(name); }
  static double& at(Values& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; }
  static double at(const Values& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; }
  static void add(Values& x, const Values& r) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += r[i];
  }

  [[nodiscard]] Values norm(const Values& x, std::int64_t n, const std::string& name) const {
    const std::int64_t c = c_.hidden;
    Values y(x.size());
    for (std::int64_t i = 0; i < n; ++i) {
      double mean = 0, square = 0;
      for (std::int64_t j = 0; gpt2() && j < c; ++j) mean += at(x, i * c + j) / static_cast<double>(c);
      for (std::int64_t j = 0; j < c; ++j) square += std::pow(at(x, i * c + j) - mean, 2) / static_cast<double>(c);
      for (std::int64_t j = 0; j < c; ++j) {
        at(y, i * c + j) = (at(x, i * c + j) - mean) / std::sqrt(square + c_.norm_eps) * at(w(name + ".weight"), j) +
                           (gpt2() ? at(w(name + ".bias"), j) : 0);
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
  // nn.Linear without bias for llama, Conv1D with bias for gpt2.
  [[nodiscard]] Values linear(const Values& x, std::int64_t n, std::int64_t in, const std::string& name,
                              std::int64_t out) const {
    Values y = product(x, n, in, w(name + ".weight"), out, !gpt2());
    for (std::int64_t i = 0; gpt2() && i < n * out; ++i) at(y, i) += at(w(name + ".bias"), i % out);
    return y;
  }

  // q [N, H·D], k and v [N, G·D].
  struct Heads {
    Values q, k, v;
  };
  [[nodiscard]] Heads heads(const Values& h, std::int64_t n, std::int64_t block) const {
    const std::int64_t c = c_.hidden, kv = c_.kv_heads * c_.head_dim();
    if (!gpt2()) {
      const std::string at_block = "model.layers." + std::to_string(block) + ".self_attn.";
      return {linear(h, n, c, at_block + "q_proj", c), linear(h, n, c, at_block + "k_proj", kv),
              linear(h, n, c, at_block + "v_proj", kv)};
    }
    const Values all = linear(h, n, c, "transformer.h." + std::to_string(block) + ".attn.c_attn", 3 * c);
    Heads heads;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto row = all.begin() + i * 3 * c;
      heads.q.insert(heads.q.end(), row, row + c);
      heads.k.insert(heads.k.end(), row + c, row + 2 * c);
      heads.v.insert(heads.v.end(), row + 2 * c, row + 3 * c);
    }
    return heads;
  }

  void rotate(Values& x, std::int64_t n, std::int64_t seq, std::int64_t count) const {
    const std::int64_t d = c_.head_dim();
    for (std::int64_t i = 0; i < n * count; ++i) {
      for (std::int64_t j = 0; j < d / 2; ++j) {
        const double angle =
            static_cast<double>(i / count % seq) / std::pow(c_.rope_theta, 2 * static_cast<double>(j) / static_cast<double>(d));
        const double a = at(x, i * d + j), b = at(x, i * d + j + d / 2);
        at(x, i * d + j) = a * std::cos(angle) - b * std::sin(angle);
        at(x, i * d + j + d / 2) = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }

  [[nodiscard]] Values attention_block(const Values& x, std::int64_t n, std::int64_t seq, std::int64_t block) const {
    const std::int64_t c = c_.hidden, d = c_.head_dim(), groups = c_.kv_heads;
    const std::string prefix = gpt2() ? "transformer.h." : "model.layers.", b = std::to_string(block);
    Heads h = heads(norm(x, n, prefix + b + (gpt2() ? ".ln_1" : ".input_layernorm")), n, block);
    if (!gpt2()) rotate(h.q, n, seq, c_.heads), rotate(h.k, n, seq, groups);
    Values out(x.size());
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t head = 0; head < c_.heads; ++head) {
        const std::int64_t group = head / (c_.heads / groups);
        Values p;
        double sum = 0;
        for (std::int64_t j = i / seq * seq; j <= i; ++j) {
          double score = 0;
          for (std::int64_t e = 0; e < d; ++e) score += at(h.q, i * c + head * d + e) * at(h.k, (j * groups + group) * d + e);
          p.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
          sum += p.back();
        }
        for (std::int64_t e = 0; e < d; ++e) {
          for (std::size_t j = 0; j < p.size(); ++j) {
            const std::int64_t key = i / seq * seq + static_cast<std::int64_t>(j);
            at(out, i * c + head * d + e) += p[j] / sum * at(h.v, (key * groups + group) * d + e);
          }
        }
      }
    }
    return linear(out, n, c, prefix + b + (gpt2() ? ".attn.c_proj" : ".self_attn.o_proj"), c);
  }

  [[nodiscard]] Values mlp_block(const Values& x, std::int64_t n, std::int64_t block) const {
    const std::int64_t c = c_.hidden, f = c_.ffn;
    if (gpt2()) {
      const std::string prefix = "transformer.h." + std::to_string(block) + ".";
      Values up = linear(norm(x, n, prefix + "ln_2"), n, c, prefix + "mlp.c_fc", f);
      for (double& u : up) u *= 0.5 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (u + 0.044715 * u * u * u)));
      return linear(up, n, f, prefix + "mlp.c_proj", c);
    }
    const std::string prefix = "model.layers." + std::to_string(block) + ".";
    const Values h = norm(x, n, prefix + "post_attention_layernorm");
    Values gate = linear(h, n, c, prefix + "mlp.gate_proj", f);
    const Values up = linear(h, n, c, prefix + "mlp.up_proj", f);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    return linear(gate, n, f, prefix + "mlp.down_proj", c);
  }

  const lm::ModelConfig c_;
  const Weights& w_;
};

}  // namespace terrace::test
