#include <terrace/core/cuda/cudnn/attention_graph.h>

#include <fmt/format.h>

namespace terrace::cuda::cudnn {
namespace {

using Tensor = Graph::Tensor;

// Shapes and strides of the tensors of core/math/math.h: rows of (H + 2G)·D and of H·D elements; lse [B, H, S].
struct Shapes {
  explicit Shapes(const AttentionKey& key) : k(key) {}
  const AttentionKey& k;

  [[nodiscard]] TensorShape rows(std::int64_t heads, std::int64_t row_elements) const {
    return {{k.batch, heads, k.seq, k.head_dim}, {k.seq * row_elements, k.head_dim, row_elements, 1}};
  }
  [[nodiscard]] std::int64_t qkv_row() const { return (k.all_heads + 2 * k.all_kv_heads) * k.head_dim; }
  [[nodiscard]] TensorShape q() const { return rows(k.heads, qkv_row()); }
  [[nodiscard]] TensorShape kv() const { return rows(k.kv_heads, qkv_row()); }
  [[nodiscard]] TensorShape out() const { return rows(k.heads, k.all_heads * k.head_dim); }
  [[nodiscard]] TensorShape lse() const { return {{k.batch, k.heads, k.seq, 1}, {k.all_heads * k.seq, k.seq, 1, 1}}; }
  [[nodiscard]] TensorShape row_sums() const { return contiguous({k.batch, k.heads, k.seq, 1}); }
  [[nodiscard]] TensorShape scores() const { return contiguous({k.batch, k.heads, k.seq, k.seq}); }
  [[nodiscard]] TensorShape every_head() const { return contiguous({k.batch, k.heads, k.seq, k.head_dim}); }
};

class Builder {
 public:
  Builder(const Library& library, const AttentionKey& key) : graph_(library), key_(key), shape_(key_) {}

  Graph forward() && {
    const auto q = memory(Place::q, shape_.q()), kt = memory(Place::k, transposed(shape_.kv()));
    const auto v = memory(Place::v, shape_.kv()), out = memory(Place::out, shape_.out());
    const auto lse = log_sums();
    const auto scores = only_the_past(scaled(graph_.matmul(q, kt, score())));
    const auto largest = graph_.reduce(Reduction::max, scores, row());
    const auto exponentials =
        graph_.pointwise(Pointwise::exp, graph_.pointwise(Pointwise::sub, scores, largest, score()), score());
    const auto sum = graph_.reduce(Reduction::add, exponentials, row());
    graph_.pointwise(Pointwise::add, largest, graph_.pointwise(Pointwise::log, sum, row()), lse);
    const auto probabilities = graph_.pointwise(Pointwise::div, exponentials, sum, score(DataType::bf16));
    graph_.matmul(probabilities, v, out);
    return std::move(graph_);
  }

  Graph gradient() && {
    const auto q = memory(Place::q, shape_.q()), kt = memory(Place::k, transposed(shape_.kv()));
    const auto vt = memory(Place::v, transposed(shape_.kv())), out = memory(Place::out, shape_.out());
    const auto lse = log_sums(), dout = memory(Place::dout, shape_.out());
    const auto dq = memory(Place::dq, shape_.q()), dk = memory(Place::dk, shape_.kv()), dv = memory(Place::dv, shape_.kv());

    // Δ = rowsum(dout · out)
    const auto product = graph_.pointwise(Pointwise::mul, dout, out, graph_.between(shape_.every_head()));
    const auto inner = graph_.pointwise(Pointwise::mul, graph_.reduce(Reduction::add, product, row()), value(Place::one),
                                        memory(Place::inner, shape_.row_sums(), DataType::fp32));
    // P = exp(scale · q·kᵀ − lse), and dv = Pᵀ·dout
    const auto scores = graph_.pointwise(Pointwise::sub, scaled(graph_.matmul(q, kt, score())), lse, score());
    const auto p = graph_.pointwise(Pointwise::exp, only_the_past(scores), score());
    sum_of_heads(graph_.reshape(p, turned_score()), dout, dv);
    // dS = P · (dout·vᵀ − Δ) · scale, dk = dSᵀ·q and dq = dS·k
    const auto dp = graph_.pointwise(Pointwise::sub, graph_.matmul(dout, vt, score()), inner, score());
    const auto ds = scaled(graph_.pointwise(Pointwise::mul, dp, p, score()));
    sum_of_heads(graph_.reshape(ds, turned_score()), q, dk);
    graph_.matmul(ds, graph_.reshape(kt, graph_.between(shape_.kv())), dq);
    return std::move(graph_);
  }

 private:
  Tensor memory(Place place, const TensorShape& shape, DataType type = DataType::bf16) {
    return graph_.memory(static_cast<std::int64_t>(place), shape, type);
  }
  // Aligned only to one float: with an odd length, the part of a later head may begin at any element.
  Tensor log_sums() {
    return graph_.memory(static_cast<std::int64_t>(Place::lse), shape_.lse(), DataType::fp32, sizeof(float));
  }
  Tensor value(Place place) { return graph_.value(static_cast<std::int64_t>(place)); }
  Tensor score(DataType type = DataType::fp32) { return graph_.between(shape_.scores(), type); }
  Tensor turned_score() { return graph_.between(transposed(shape_.scores()), DataType::bf16); }
  Tensor row() { return graph_.between(shape_.row_sums()); }

  Tensor scaled(Tensor scores) {
    if (!scale_) scale_ = value(Place::scale);
    return graph_.pointwise(Pointwise::mul, scores, scale_, score());
  }
  // Hides the keys after each query's own position.
  Tensor only_the_past(Tensor scores) {
    const auto query = graph_.index(scores, 2, score(DataType::int32)), key = graph_.index(scores, 3, score(DataType::int32));
    const auto seen = graph_.pointwise(Pointwise::is_at_least, query, key, score(DataType::boolean));
    return graph_.select(seen, scores, value(Place::hidden), score());
  }
  // to = turned · x, where the results of the heads of a group are added up.
  void sum_of_heads(Tensor turned, Tensor x, Tensor to) {
    if (key_.heads == key_.kv_heads) {
      graph_.matmul(turned, x, to);
    } else {
      graph_.reduce(Reduction::add, graph_.matmul(turned, x, graph_.between(shape_.every_head(), DataType::bf16)), to);
    }
  }

  Graph graph_;
  const AttentionKey key_;
  const Shapes shape_;
  Tensor scale_ = nullptr;
};

}  // namespace

std::string to_string(const AttentionKey& k) {
  return fmt::format("[batch {}, seq {}, {} of {} heads, {} of {} kv heads, dim {}] {}", k.batch, k.seq, k.heads, k.all_heads,
                     k.kv_heads, k.all_kv_heads, k.head_dim, k.gradient ? "gradient" : "forward");
}

Graph attention_graph(const Library& library, const AttentionKey& key) {
  Builder builder(library, key);
  return key.gradient ? std::move(builder).gradient() : std::move(builder).forward();
}

}  // namespace terrace::cuda::cudnn
