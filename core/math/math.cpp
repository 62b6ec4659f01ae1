// Every operation checks its operands here, once for all devices, and is then enqueued as one MathCall.
#include <terrace/core/math/math_call.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include <terrace/core/math/block8.h>
#include <terrace/core/math/float8.h>

namespace terrace {
namespace {

void require(bool met, const char* operation, const char* rule) {
  if (!met) throw std::logic_error(std::string(operation) + ": " + rule);
}
void require_compute(DType dtype, const char* operation) {
  require(dtype != DType::i32 && !is_float8(dtype), operation, "the compute dtype must be fp32, bf16, fp16 or fp64");
}
bool same(const TensorView& a, const TensorView& b) { return a.dtype == b.dtype && a.elements() == b.elements(); }
// A vector of `n` elements in `dtype`, or nothing at all.
bool vector_or_empty(const TensorView& v, std::int64_t n, DType dtype) {
  return v.empty() || (v.elements() == n && v.dtype == dtype);
}
// A weight's gradient has the compute dtype or the dtype of sums.
bool gradient_dtype(DType gradient, DType compute) { return gradient == compute || gradient == accumulator_of(compute); }

void require_statistics(const char* operation, const TensorView& mean, const TensorView& rstd, const TensorView& rows) {
  const DType dtype = accumulator_of(rows.dtype);
  require(vector_or_empty(mean, rows_of(rows), dtype) && rstd.dtype == dtype && rstd.elements() == rows_of(rows), operation,
          "mean and rstd must have one entry a row, fp32 or (for fp64) fp64");
}
// Statistics of whole rows, for calls where each rank has only some of their columns.
void require_row_means(const char* operation, const TensorView& means, const TensorView& mean, const TensorView& rows) {
  require(means.empty() || (mean.empty() && means.dtype == accumulator_of(rows.dtype) && means.elements() == rows_of(rows)),
          operation, "means of whole rows are an RMSNorm's, one a row, fp32 or (for fp64) fp64");
}
void require_heads(const char* operation, const AttentionShape& s) {
  require(s.batch > 0 && s.seq > 0 && s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0 && s.heads % s.kv_heads == 0, operation,
          "the sizes must be positive and the key-value heads must divide the heads");
}
void require_attention(const char* operation, const AttentionShape& s, const TensorView& out, const TensorView& lse,
                       const TensorView& qkv) {
  require_compute(qkv.dtype, operation);
  require_heads(operation, s);
  const std::int64_t tokens = s.batch * s.seq;
  require(qkv.elements() == tokens * (s.heads + 2 * s.kv_heads) * s.head_dim && out.dtype == qkv.dtype &&
              out.elements() == tokens * s.heads * s.head_dim && lse.dtype == accumulator_of(qkv.dtype) &&
              lse.elements() == tokens * s.heads,
          operation, "out, lse and qkv do not match the shape");
}
void require_block(const char* operation, const AttentionBlock& s, const TensorView& out, const TensorView& lse,
                   const TensorView& q, const TensorView& kv) {
  require_compute(q.dtype, operation);
  const auto fits = [&](const AttentionBlock::Rows& rows, const TensorView& view) {
    return rows.first >= 0 && rows.count > 0 && rows.first + rows.count <= rows.every && rows_of(view) == s.batch * rows.every;
  };
  require(s.batch > 0 && s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0 && s.heads % s.kv_heads == 0 && s.window >= 0,
          operation, "the sizes must be positive and the key-value heads must divide the heads");
  const auto width = s.heads * s.head_dim;
  require(fits(s.queries, q) && fits(s.keys, kv) && kv.dtype == q.dtype && columns_of(q) >= width &&
              columns_of(kv) >= 2 * s.kv_heads * s.head_dim,
          operation, "q and kv do not match the block");
  require(gradient_dtype(out.dtype, q.dtype) && out.elements() == rows_of(q) * width && columns_of(out) == width &&
              lse.dtype == accumulator_of(q.dtype) && lse.elements() == rows_of(q) * s.heads,
          operation, "out and lse do not match the block");
}
void require_score_rows(const char* operation, const ScoreRows& r, const TensorView& scores) {
  require_compute(scores.dtype, operation);
  require(r.parts > 0 && r.matrices > 0 && r.keys > 0 && r.count > 0 && r.count_of_matrices > 0 && r.first_matrix >= 0 &&
              r.first_matrix + r.count_of_matrices <= r.matrices && r.first >= 0 && r.first + r.count <= r.every &&
              scores.elements() == r.parts * r.matrices * r.every * r.keys,
          operation, "the rows must lie within the scores");
  require(r.begin >= 0 && r.begin <= r.position && r.window >= 0 && r.position + r.count <= r.parts * r.keys, operation,
          "a query must see its own key");
}
void require_activation(const char* operation, Activation kind, const TensorView& y, const TensorView& x) {
  require_compute(y.dtype, operation);
  require(y.dtype == x.dtype && rows_of(y) == rows_of(x) && columns_of(x) == columns_of(y) * inputs_of(kind), operation,
          "x and y do not match");
}

void require_blocks(const char* operation, const TensorView& packed, const TensorView& numbers) {
  require(numbers.dtype == DType::fp32 || numbers.dtype == DType::bf16, operation, "blocks support fp32 and bf16 only");
  require(packed.dtype == DType::i32 && numbers.elements() % math::kBlock8Elements == 0 &&
              packed.elements() == numbers.elements() / math::kBlock8Elements * math::kBlock8Words,
          operation, "packed must have 65 words for each 256 numbers");
}
// The two do not overlap, or the given edges coincide.
bool apart_or_meet(const TensorView& packed, const TensorView& numbers, const std::byte* packed_edge,
                   const std::byte* numbers_edge) {
  return packed_edge == numbers_edge || packed.data + packed.bytes() <= numbers.data ||
         numbers.data + numbers.bytes() <= packed.data;
}

void require_routing(const Routing& r, const TensorView& gates, const TensorView& experts, const TensorView& rows,
                     const TensorView& lse, const TensorView& report, const TensorView& logits, const TensorView& targets) {
  require_compute(logits.dtype, "route");
  require(r.chosen >= 1 && r.chosen <= r.experts && r.shared >= 0 && r.capacity >= 0, "route",
          "a token chooses 1 to all experts, and no number is negative");
  const std::int64_t n = rows_of(logits);
  require(columns_of(logits) == r.experts && experts.dtype == DType::i32 && experts.elements() == n * r.chosen &&
              rows.dtype == DType::i32 && rows.elements() == n * r.slots(),
          "route", "logits must have a column for each expert; experts and rows must be i32, one for each slot");
  require(gates.dtype == accumulator_of(logits.dtype) && gates.elements() == n * r.slots() && lse.dtype == gates.dtype &&
              lse.elements() == n,
          "route", "gates and lse must be fp32 or (for fp64) fp64, one for each slot and one for each token");
  require(report.dtype == DType::fp64 && report.elements() == RoutingReport{r}.size(), "route",
          "report must be RoutingReport's");
  require(targets.empty() || (targets.dtype == DType::i32 && targets.elements() == n), "route",
          "targets must be i32, one for each token");
}
// The operands of dispatch(), combine() and gate_grad(): the tokens, the rows of the experts, and the row of each slot.
void require_slots(const char* operation, const TensorView& tokens, const TensorView& of_experts, const TensorView& rows,
                   const TensorView& gates) {
  require_compute(tokens.dtype, operation);
  require(of_experts.dtype == tokens.dtype && columns_of(of_experts) == columns_of(tokens), operation,
          "the rows of tokens and of experts must have one width and one dtype");
  require(rows.dtype == DType::i32 && rows.shape.rank() == 2 && rows.shape[0] == rows_of(tokens), operation,
          "rows must be i32, some slots for each token");
  require(vector_or_empty(gates, rows.elements(), accumulator_of(tokens.dtype)), operation,
          "gates must be fp32 or (for fp64) fp64, one for each slot");
}

void require_stride(const char* operation, const MatrixView& m) {
  require(m.stride >= columns_of(m), operation, "rows overlap: the stride is less than the columns");
}
void require_loss(const char* operation, const TensorView& loss, const MatrixView& dlogits, const MatrixView& logits,
                  const TensorView& targets) {
  require_compute(logits.view.dtype, operation);
  require_stride(operation, logits);
  require(loss.dtype == DType::fp64 && targets.dtype == DType::i32 && loss.elements() == rows_of(logits) &&
              targets.elements() == rows_of(logits) &&
              (dlogits.empty() || (same(dlogits.view, logits.view) && dlogits.stride == logits.stride)),
          operation, "loss, dlogits, logits and targets do not match");
}
void require_log_sums(const char* operation, const TensorView& lse, const MatrixView& logits) {
  require(lse.dtype == accumulator_of(logits.view.dtype) && lse.elements() == rows_of(logits), operation,
          "lse must have one entry a row, fp32 or (for fp64) fp64");
}

}  // namespace

void Math::matmul(Stream& stream, MatrixView c, MatrixView a, Transpose ta, MatrixView b, Transpose tb, TensorView bias,
                  Accumulate accumulate) {
  const auto op_rows = [](const MatrixView& v, Transpose t) { return t == Transpose::yes ? columns_of(v) : rows_of(v); };
  const auto op_columns = [](const MatrixView& v, Transpose t) { return t == Transpose::yes ? rows_of(v) : columns_of(v); };
  const DType dtype = a.view.dtype;
  require_compute(dtype, "matmul");
  require(dtype == b.view.dtype && gradient_dtype(c.view.dtype, dtype), "matmul", "the dtypes of a, b and c do not match");
  for (const auto* const m : {&c, &a, &b}) require_stride("matmul", *m);
  require(op_columns(a, ta) == op_rows(b, tb) && rows_of(c) == op_rows(a, ta) && columns_of(c) == op_columns(b, tb), "matmul",
          "the shapes of a, b and c do not match");
  require(bias.empty() || (bias.elements() == columns_of(c) && bias.dtype == dtype), "matmul",
          "bias must have c's columns and the compute dtype");
  require(bias.empty() || c.stride == columns_of(c), "matmul", "with a bias, c's rows must lie side by side");
  enqueue(stream, math::CallOf<&Math::matmul>(c, a, ta, b, tb, bias, accumulate));
}

void Math::quantise(Stream& stream, TensorView codes, TensorView turned, TensorView scale, MatrixView x) {
  require_compute(x.view.dtype, "quantise");
  require_stride("quantise", x);
  const auto rows = rows_of(x), columns = columns_of(x);
  require(!codes.empty() || !turned.empty(), "quantise", "codes, turned or both must be given");
  for (const auto& [to, shape] : {std::pair{codes, Shape{rows, math::float8_columns(columns)}},
                                  std::pair{turned, Shape{columns, math::float8_columns(rows)}}}) {
    if (to.empty()) continue;
    require(x.view.dtype != DType::fp64 && is_float8(to.dtype), "quantise", "x must be fp32, bf16 or fp16, codes e4m3 or e5m2");
    require(to.shape == shape, "quantise", "codes must have rows of whole 128 codes");
  }
  require(codes.empty() || turned.empty() || codes.dtype == turned.dtype, "quantise", "codes and turned must have one dtype");
  require(scale.dtype == DType::fp32 && scale.elements() == 1, "quantise", "scale must be one fp32");
  enqueue(stream, math::CallOf<&Math::quantise>(codes, turned, scale, x));
}

void Math::matmul_float8(Stream& stream, MatrixView c, TensorView a, TensorView b, TensorView a_scale, TensorView b_scale,
                         TensorView bias, Accumulate accumulate) {
  const auto* const operation = "matmul_float8";
  const auto result = [](DType dtype) { return dtype == DType::fp32 || dtype == DType::bf16; };
  require(is_float8(a.dtype) && is_float8(b.dtype) && result(c.view.dtype), operation,
          "a and b must be e4m3 or e5m2, c fp32 or bf16");
  require_stride(operation, c);
  require(a.shape.rank() == 2 && b.shape.rank() == 2 && a.shape[1] == b.shape[1] &&
              a.shape[1] == math::float8_columns(a.shape[1]) && rows_of(c) == a.shape[0] && columns_of(c) == b.shape[0],
          operation, "the shapes of a, b and c do not match");
  for (const auto& scale : {a_scale, b_scale})
    require(scale.dtype == DType::fp32 && scale.elements() == 1, operation, "a scale must be one fp32");
  require(bias.empty() || (bias.elements() == columns_of(c) && result(bias.dtype) && c.stride == columns_of(c)), operation,
          "bias must have c's columns, in fp32 or bf16, and c no gaps");
  enqueue(stream, math::CallOf<&Math::matmul_float8>(c, a, b, a_scale, b_scale, bias, accumulate));
}

void Math::bias_grad(Stream& stream, TensorView db, TensorView dy, Accumulate accumulate) {
  require_compute(dy.dtype, "bias_grad");
  require(db.elements() == columns_of(dy) && gradient_dtype(db.dtype, dy.dtype), "bias_grad",
          "db must have dy's columns, and its dtype or fp32");
  enqueue(stream, math::CallOf<&Math::bias_grad>(db, dy, accumulate));
}

void Math::norm(Stream& stream, TensorView y, TensorView mean, TensorView rstd, TensorView x, TensorView gain, TensorView bias,
                double eps, double offset, TensorView squares) {
  require_compute(y.dtype, "norm");
  require(same(x, y) && columns_of(x) == columns_of(y), "norm", "x and y differ");
  require(gain.dtype == y.dtype && gain.elements() == columns_of(y) && vector_or_empty(bias, columns_of(y), y.dtype), "norm",
          "gain and bias must have y's columns and dtype");
  require_statistics("norm", mean, rstd, y);
  require_row_means("norm", squares, mean, y);
  enqueue(stream, math::CallOf<&Math::norm>(y, mean, rstd, x, gain, bias, eps, offset, squares));
}

void Math::norm_input_grad(Stream& stream, TensorView dx, TensorView dy, TensorView x, TensorView gain, TensorView mean,
                           TensorView rstd, Accumulate accumulate, double offset, TensorView products) {
  require_compute(dx.dtype, "norm_input_grad");
  require(same(dx, dy) && same(dx, x) && gain.dtype == dx.dtype && gain.elements() == columns_of(dx), "norm_input_grad",
          "dx, dy, x and gain do not match");
  require_statistics("norm_input_grad", mean, rstd, dx);
  require_row_means("norm_input_grad", products, mean, dx);
  enqueue(stream, math::CallOf<&Math::norm_input_grad>(dx, dy, x, gain, mean, rstd, accumulate, offset, products));
}

void Math::row_products(Stream& stream, TensorView sums, TensorView a, TensorView b, TensorView gain, double factor,
                        double offset) {
  require_compute(a.dtype, "row_products");
  require(same(a, b) && columns_of(a) == columns_of(b) && vector_or_empty(gain, columns_of(a), a.dtype), "row_products",
          "a, b and gain do not match");
  require(sums.dtype == accumulator_of(a.dtype) && sums.elements() == rows_of(a), "row_products",
          "sums must have one entry a row, fp32 or (for fp64) fp64");
  enqueue(stream, math::CallOf<&Math::row_products>(sums, a, b, gain, factor, offset));
}

void Math::norm_weight_grad(Stream& stream, TensorView dgain, TensorView dbias, TensorView dy, TensorView x, TensorView mean,
                            TensorView rstd, Accumulate accumulate) {
  require_compute(dy.dtype, "norm_weight_grad");
  require(same(dy, x), "norm_weight_grad", "dy and x differ");
  const std::int64_t c = columns_of(dy);
  require(dgain.elements() == c && gradient_dtype(dgain.dtype, dy.dtype) &&
              (dbias.empty() || (dbias.elements() == c && gradient_dtype(dbias.dtype, dy.dtype))),
          "norm_weight_grad", "dgain and dbias must have dy's columns, and its dtype or fp32");
  if (!mean.empty() || !rstd.empty()) require_statistics("norm_weight_grad", mean, rstd, dy);
  enqueue(stream, math::CallOf<&Math::norm_weight_grad>(dgain, dbias, dy, x, mean, rstd, accumulate));
}

void Math::rotary(Stream& stream, TensorView x, std::int64_t row_elements, std::int64_t seq, std::int64_t first_position,
                  const Rotary& angles, bool inverse) {
  require_compute(x.dtype, "rotary");
  require(x.shape.rank() == 3 && x.shape[2] % 2 == 0 && x.shape[1] * x.shape[2] <= row_elements && seq > 0, "rotary",
          "x must be [N, heads, D] with D even, within its row");
  enqueue(stream, math::CallOf<&Math::rotary>(x, row_elements, seq, first_position, angles, inverse));
}

void Math::attention(Stream& stream, AttentionShape shape, TensorView out, TensorView lse, TensorView qkv) {
  require_attention("attention", shape, out, lse, qkv);
  enqueue(stream, math::CallOf<&Math::attention>(shape, out, lse, qkv));
}

void Math::attention_grad(Stream& stream, AttentionShape shape, TensorView dqkv, TensorView dout, TensorView out,
                          TensorView lse, TensorView qkv) {
  require_attention("attention_grad", shape, out, lse, qkv);
  require(same(dqkv, qkv) && same(dout, out), "attention_grad", "a gradient differs from its tensor");
  enqueue(stream, math::CallOf<&Math::attention_grad>(shape, dqkv, dout, out, lse, qkv));
}

void Math::attention_block(Stream& stream, const AttentionBlock& block, TensorView out, TensorView lse, TensorView q,
                           TensorView kv, Accumulate accumulate) {
  require_block("attention_block", block, out, lse, q, kv);
  enqueue(stream, math::CallOf<&Math::attention_block>(block, out, lse, q, kv, accumulate));
}

void Math::attention_block_grad(Stream& stream, const AttentionBlock& block, TensorView dq, TensorView dkv, TensorView dout,
                                TensorView out, TensorView lse, TensorView q, TensorView kv, Accumulate to_dq,
                                Accumulate to_dkv) {
  const auto* const operation = "attention_block_grad";
  require_block(operation, block, out, lse, q, kv);
  require(same(dout, out) && out.dtype == q.dtype, operation, "dout differs from out, or out from q's dtype");
  require(gradient_dtype(dq.dtype, q.dtype) && rows_of(dq) == rows_of(q) && columns_of(dq) >= columns_of(out), operation,
          "dq does not match q");
  require(gradient_dtype(dkv.dtype, q.dtype) && rows_of(dkv) == rows_of(kv) &&
              columns_of(dkv) >= 2 * block.kv_heads * block.head_dim,
          operation, "dkv does not match kv");
  enqueue(stream, math::CallOf<&Math::attention_block_grad>(block, dq, dkv, dout, out, lse, q, kv, to_dq, to_dkv));
}

void Math::softmax_rows(Stream& stream, const ScoreRows& rows, TensorView scores, double scale) {
  require_score_rows("softmax_rows", rows, scores);
  enqueue(stream, math::CallOf<&Math::softmax_rows>(rows, scores, scale));
}

void Math::softmax_rows_grad(Stream& stream, const ScoreRows& rows, TensorView gradient, TensorView probabilities,
                             double scale) {
  for (const auto& view : {gradient, probabilities}) require_score_rows("softmax_rows_grad", rows, view);
  enqueue(stream, math::CallOf<&Math::softmax_rows_grad>(rows, gradient, probabilities, scale));
}

void Math::attention_decode(Stream& stream, AttentionShape shape, TensorView out, TensorView q, TensorView k_cache,
                            TensorView v_cache, std::int64_t length) {
  require_compute(out.dtype, "attention_decode");
  require_heads("attention_decode", shape);
  require(shape.batch == 1 && q.dtype == out.dtype && columns_of(q) >= shape.heads * shape.head_dim &&
              out.elements() == shape.heads * shape.head_dim,
          "attention_decode", "q and out must hold one position of one sequence");
  require(k_cache.dtype == out.dtype && same(k_cache, v_cache) && k_cache.shape.rank() == 3 &&
              k_cache.shape[0] == shape.kv_heads && k_cache.shape[2] == shape.head_dim && length > 0 &&
              length <= k_cache.shape[1],
          "attention_decode", "the caches must be [G, capacity, D] with 0 < length <= capacity");
  enqueue(stream, math::CallOf<&Math::attention_decode>(shape, out, q, k_cache, v_cache, length));
}

void Math::activation(Stream& stream, Activation kind, TensorView y, TensorView x) {
  require_activation("activation", kind, y, x);
  enqueue(stream, math::CallOf<&Math::activation>(kind, y, x));
}

void Math::activation_grad(Stream& stream, Activation kind, TensorView dx, TensorView dy, TensorView x) {
  require_activation("activation_grad", kind, dy, x);
  require(same(dx, x), "activation_grad", "dx and x differ");
  enqueue(stream, math::CallOf<&Math::activation_grad>(kind, dx, dy, x));
}

void Math::add(Stream& stream, TensorView y, TensorView x, TensorView r) {
  require_compute(y.dtype, "add");
  require(same(y, x) && same(y, r), "add", "y, x and r differ");
  enqueue(stream, math::CallOf<&Math::add>(y, x, r));
}

void Math::scale(Stream& stream, TensorView y, TensorView x, TensorView gain, Accumulate accumulate) {
  require_compute(y.dtype, "scale");
  require(same(y, x) && gain.dtype == y.dtype && gain.elements() == columns_of(y), "scale", "y, x and gain do not match");
  enqueue(stream, math::CallOf<&Math::scale>(y, x, gain, accumulate));
}

void Math::multiply(Stream& stream, TensorView y, TensorView x, double factor) {
  require_compute(y.dtype, "multiply");
  require(same(x, y), "multiply", "x and y differ");
  enqueue(stream, math::CallOf<&Math::multiply>(y, x, factor));
}

void Math::soft_cap(Stream& stream, TensorView y, TensorView x, double cap) {
  require_compute(y.dtype, "soft_cap");
  require(same(x, y) && cap > 0, "soft_cap", "x and y differ, or the cap is not positive");
  enqueue(stream, math::CallOf<&Math::soft_cap>(y, x, cap));
}

void Math::soft_cap_grad(Stream& stream, TensorView dx, TensorView dy, TensorView y, double cap) {
  require_compute(y.dtype, "soft_cap_grad");
  require(same(dx, y) && same(dy, y) && cap > 0, "soft_cap_grad", "dx, dy and y differ, or the cap is not positive");
  enqueue(stream, math::CallOf<&Math::soft_cap_grad>(dx, dy, y, cap));
}

void Math::convert(Stream& stream, TensorView y, TensorView x, Accumulate accumulate) {
  require_compute(y.dtype, "convert");
  require_compute(x.dtype, "convert");
  require(y.elements() == x.elements(), "convert", "y and x differ in size");
  enqueue(stream, math::CallOf<&Math::convert>(y, x, accumulate));
}

void Math::columns(Stream& stream, TensorView y, std::int64_t first_y, TensorView x, std::int64_t first_x, std::int64_t count,
                   Accumulate accumulate) {
  require_compute(y.dtype, "columns");
  require(y.dtype == x.dtype && y.shape.rank() == 2 && x.shape.rank() == 2 && y.shape[0] == x.shape[0], "columns",
          "y and x must be matrices of one dtype with equally many rows");
  require(count >= 0 && first_y >= 0 && first_y + count <= y.shape[1] && first_x >= 0 && first_x + count <= x.shape[1],
          "columns", "the columns must lie within y and x");
  enqueue(stream, math::CallOf<&Math::columns>(y, first_y, x, first_x, count, accumulate));
}

void Math::zero(Stream& stream, TensorView y) { enqueue(stream, math::CallOf<&Math::zero>(y)); }

void Math::embed(Stream& stream, TensorView y, TensorView tokens, TensorView table, TensorView positions, std::int64_t seq,
                 std::int64_t first_position) {
  require_compute(y.dtype, "embed");
  require(tokens.dtype == DType::i32 && rows_of(y) == tokens.elements() && table.dtype == y.dtype && table.shape.rank() == 2 &&
              columns_of(table) == columns_of(y) && seq > 0,
          "embed", "y, tokens and table do not match");
  require(positions.empty() || (positions.dtype == y.dtype && columns_of(positions) == columns_of(y) && first_position >= 0 &&
                                rows_of(positions) >= first_position + std::min(seq, tokens.elements())),
          "embed", "positions must cover every position and have y's columns and dtype");
  enqueue(stream, math::CallOf<&Math::embed>(y, tokens, table, positions, seq, first_position));
}

void Math::embed_grad(Stream& stream, TensorView dtable, TensorView dpositions, TensorView tokens, TensorView dy,
                      std::int64_t seq, Accumulate accumulate) {
  require_compute(dy.dtype, "embed_grad");
  require(tokens.dtype == DType::i32 && rows_of(dy) == tokens.elements() && gradient_dtype(dtable.dtype, dy.dtype) &&
              dtable.shape.rank() == 2 && columns_of(dtable) == columns_of(dy) && seq > 0,
          "embed_grad", "dtable, tokens and dy do not match");
  require(dpositions.empty() || (gradient_dtype(dpositions.dtype, dy.dtype) && columns_of(dpositions) == columns_of(dy) &&
                                 rows_of(dpositions) >= std::min(seq, tokens.elements())),
          "embed_grad", "dpositions must cover every position and have dy's columns");
  enqueue(stream, math::CallOf<&Math::embed_grad>(dtable, dpositions, tokens, dy, seq, accumulate));
}

void Math::ids_in_part(Stream& stream, TensorView out, TensorView ids, std::int64_t first, std::int64_t count) {
  require(ids.dtype == DType::i32 && same(out, ids), "ids_in_part", "out and ids must be i32, of one size");
  require(first >= 0 && count >= 0, "ids_in_part", "a part's first id and its count cannot be negative");
  enqueue(stream, math::CallOf<&Math::ids_in_part>(out, ids, first, count));
}

void Math::route(Stream& stream, const Routing& r, TensorView gates, TensorView experts, TensorView rows, TensorView lse,
                 TensorView report, TensorView logits, TensorView targets) {
  require_routing(r, gates, experts, rows, lse, report, logits, targets);
  enqueue(stream, math::CallOf<&Math::route>(r, gates, experts, rows, lse, report, logits, targets));
}

void Math::route_grad(Stream& stream, const Routing& r, TensorView dlogits, TensorView dgates, TensorView logits,
                      TensorView experts, TensorView lse, TensorView report, double balance, double squares) {
  require(same(dlogits, logits), "route_grad", "dlogits and logits must have one size and one dtype");
  const TensorView rows{nullptr, DType::i32, {rows_of(logits), r.slots()}};
  require_routing(r, dgates, experts, rows, lse, report, logits, {});
  enqueue(stream, math::CallOf<&Math::route_grad>(r, dlogits, dgates, logits, experts, lse, report, balance, squares));
}

void Math::merge_reports(Stream& stream, const Routing& r, TensorView report, TensorView parts) {
  require(report.dtype == DType::fp64 && report.elements() == RoutingReport{r}.size(), "merge_reports",
          "report must be RoutingReport's");
  require(parts.dtype == DType::fp64 && columns_of(parts) == 2 * r.experts, "merge_reports", "parts must be fp64, [K, 2 E]");
  enqueue(stream, math::CallOf<&Math::merge_reports>(r, report, parts));
}

void Math::dispatch(Stream& stream, TensorView to, TensorView from, TensorView rows, TensorView gates) {
  require_slots("dispatch", from, to, rows, gates);
  enqueue(stream, math::CallOf<&Math::dispatch>(to, from, rows, gates));
}

void Math::combine(Stream& stream, TensorView to, TensorView from, TensorView rows, TensorView gates, Accumulate accumulate) {
  require_slots("combine", to, from, rows, gates);
  enqueue(stream, math::CallOf<&Math::combine>(to, from, rows, gates, accumulate));
}

void Math::gate_grad(Stream& stream, TensorView dgates, TensorView dy, TensorView from, TensorView rows) {
  require_slots("gate_grad", dy, from, rows, dgates);
  enqueue(stream, math::CallOf<&Math::gate_grad>(dgates, dy, from, rows));
}

void Math::cross_entropy(Stream& stream, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets,
                         double scale) {
  require_loss("cross_entropy", loss, dlogits, logits, targets);
  enqueue(stream, math::CallOf<&Math::cross_entropy>(loss, dlogits, logits, targets, scale));
}

void Math::log_sum_exp(Stream& stream, TensorView lse, MatrixView logits) {
  require_compute(logits.view.dtype, "log_sum_exp");
  require_stride("log_sum_exp", logits);
  require_log_sums("log_sum_exp", lse, logits);
  enqueue(stream, math::CallOf<&Math::log_sum_exp>(lse, logits));
}

void Math::merge_log_sums(Stream& stream, TensorView whole, TensorView parts, TensorView targets) {
  require((whole.dtype == DType::fp32 || whole.dtype == DType::fp64) && parts.dtype == whole.dtype, "merge_log_sums",
          "whole and parts must both be fp32 or fp64");
  require(targets.dtype == DType::i32 && targets.elements() == whole.elements() && columns_of(parts) == whole.elements(),
          "merge_log_sums", "parts must be [K, N] for N entries of whole and i32 targets");
  enqueue(stream, math::CallOf<&Math::merge_log_sums>(whole, parts, targets));
}

void Math::cross_entropy_part(Stream& stream, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets,
                              TensorView lse, double scale) {
  require_loss("cross_entropy_part", loss, dlogits, logits, targets);
  require_log_sums("cross_entropy_part", lse, logits);
  enqueue(stream, math::CallOf<&Math::cross_entropy_part>(loss, dlogits, logits, targets, lse, scale));
}

void Math::sum(Stream& stream, TensorView out, TensorView x, Accumulate accumulate) {
  require_compute(x.dtype, "sum");
  require(out.dtype == DType::fp64 && out.elements() >= 1, "sum", "out must be fp64");
  enqueue(stream, math::CallOf<&Math::sum>(out, x, accumulate));
}

void Math::sum_of_squares(Stream& stream, TensorView out, TensorView x, std::int64_t first) {
  require_compute(x.dtype, "sum_of_squares");
  require(first > 0 && first <= kSumBlock, "sum_of_squares", "the first block has 1 to 4,096 elements");
  require(out.dtype == DType::fp64 && out.elements() == square_blocks(x.elements(), first), "sum_of_squares",
          "out must be fp64, one a block");
  enqueue(stream, math::CallOf<&Math::sum_of_squares>(out, x, first));
}

void Math::pack_block8(Stream& stream, TensorView packed, TensorView x) {
  require_blocks("pack_block8", packed, x);
  require(apart_or_meet(packed, x, packed.data, x.data), "pack_block8", "packed overlaps x but does not begin where x begins");
  enqueue(stream, math::CallOf<&Math::pack_block8>(packed, x));
}

void Math::unpack_block8(Stream& stream, TensorView y, TensorView packed) {
  require_blocks("unpack_block8", packed, y);
  require(apart_or_meet(packed, y, packed.data + packed.bytes(), y.data + y.bytes()), "unpack_block8",
          "packed overlaps y but does not end where y ends");
  enqueue(stream, math::CallOf<&Math::unpack_block8>(y, packed));
}

void Math::narrow_in_place(Stream& stream, TensorView x) {
  require(x.dtype == DType::fp32, "narrow_in_place", "x must be fp32");
  enqueue(stream, math::CallOf<&Math::narrow_in_place>(x));
}

}  // namespace terrace
