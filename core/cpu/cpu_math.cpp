// Math on the CPU: each call checks its operands, then enqueues the operation of core/cpu/ops.h.
#include <terrace/core/cpu/ops.h>
#include <terrace/core/math/block8.h>
#include <terrace/core/math/math.h>
#include <terrace/core/math/math_arguments.h>
#include <terrace/core/math/narrow.h>

namespace terrace {
namespace {

using namespace math_arguments;

class CpuMath final : public Math {
 public:
  explicit CpuMath(ThreadPool& pool) : compute_{pool, cpu::select_kernels()} {}

  void matmul(Stream& stream, MatrixView c, MatrixView a, Transpose ta, MatrixView b, Transpose tb, TensorView bias,
              Accumulate accumulate) override {
    check_matmul(c, a, ta, b, tb, bias);
    stream.submit([=, compute = compute_] { cpu::matmul(compute, c, a, ta, b, tb, bias, accumulate); });
  }

  void bias_grad(Stream& stream, TensorView db, TensorView dy, Accumulate accumulate) override {
    check_bias_grad(db, dy);
    stream.submit([=, compute = compute_] { cpu::bias_grad(compute, db, dy, accumulate); });
  }

  void norm(Stream& stream, TensorView y, TensorView mean, TensorView rstd, TensorView x, TensorView gain, TensorView bias,
            double eps, double offset, TensorView squares) override {
    check_norm(y, mean, rstd, x, gain, bias, squares);
    stream.submit([=, compute = compute_] { cpu::norm(compute, y, mean, rstd, x, gain, bias, eps, offset, squares); });
  }

  void norm_input_grad(Stream& stream, TensorView dx, TensorView dy, TensorView x, TensorView gain, TensorView mean,
                       TensorView rstd, Accumulate accumulate, double offset, TensorView products) override {
    check_norm_input_grad(dx, dy, x, gain, mean, rstd, products);
    stream.submit(
        [=, compute = compute_] { cpu::norm_input_grad(compute, dx, dy, x, gain, mean, rstd, accumulate, offset, products); });
  }

  void row_products(Stream& stream, TensorView sums, TensorView a, TensorView b, TensorView gain, double factor,
                    double offset) override {
    check_row_products(sums, a, b, gain);
    stream.submit([=, compute = compute_] { cpu::row_products(compute, sums, a, b, gain, factor, offset); });
  }

  void norm_weight_grad(Stream& stream, TensorView dgain, TensorView dbias, TensorView dy, TensorView x, TensorView mean,
                        TensorView rstd, Accumulate accumulate) override {
    check_norm_weight_grad(dgain, dbias, dy, x, mean, rstd);
    stream.submit([=, compute = compute_] { cpu::norm_weight_grad(compute, dgain, dbias, dy, x, mean, rstd, accumulate); });
  }

  void rotary(Stream& stream, TensorView x, std::int64_t row_elements, std::int64_t seq, std::int64_t first_position,
              const Rotary& angles, bool inverse) override {
    check_rotary(x, row_elements, seq);
    stream.submit([=, compute = compute_] { cpu::rotary(compute, x, row_elements, seq, first_position, angles, inverse); });
  }

  void attention(Stream& stream, AttentionShape shape, TensorView out, TensorView lse, TensorView qkv) override {
    check_attention(shape, out, lse, qkv);
    stream.submit([=, compute = compute_] { cpu::attention(compute, shape, out, lse, qkv); });
  }

  void attention_grad(Stream& stream, AttentionShape shape, TensorView dqkv, TensorView dout, TensorView out, TensorView lse,
                      TensorView qkv) override {
    check_attention_grad(shape, dqkv, dout, out, lse, qkv);
    stream.submit([=, compute = compute_] { cpu::attention_grad(compute, shape, dqkv, dout, out, lse, qkv); });
  }

  void attention_block(Stream& stream, const AttentionBlock& block, TensorView out, TensorView lse, TensorView q, TensorView kv,
                       Accumulate accumulate) override {
    check_attention_block(block, out, lse, q, kv);
    stream.submit([=, compute = compute_] { cpu::attention_block(compute, block, out, lse, q, kv, accumulate); });
  }

  void attention_block_grad(Stream& stream, const AttentionBlock& block, TensorView dq, TensorView dkv, TensorView dout,
                            TensorView out, TensorView lse, TensorView q, TensorView kv, Accumulate to_dq,
                            Accumulate to_dkv) override {
    check_attention_block_grad(block, dq, dkv, dout, out, lse, q, kv);
    stream.submit(
        [=, compute = compute_] { cpu::attention_block_grad(compute, block, dq, dkv, dout, out, lse, q, kv, to_dq, to_dkv); });
  }

  void softmax_rows(Stream& stream, const ScoreRows& rows, TensorView scores, double scale) override {
    check_softmax_rows("softmax_rows", rows, scores);
    stream.submit([=, compute = compute_] { cpu::softmax_rows(compute, rows, scores, scale); });
  }

  void softmax_rows_grad(Stream& stream, const ScoreRows& rows, TensorView gradient, TensorView probabilities,
                         double scale) override {
    check_softmax_rows("softmax_rows_grad", rows, gradient);
    check_softmax_rows("softmax_rows_grad", rows, probabilities);
    stream.submit([=, compute = compute_] { cpu::softmax_rows_grad(compute, rows, gradient, probabilities, scale); });
  }

  void attention_decode(Stream& stream, AttentionShape shape, TensorView out, TensorView q, TensorView k_cache,
                        TensorView v_cache, std::int64_t length) override {
    check_attention_decode(shape, out, q, k_cache, v_cache, length);
    stream.submit([=, compute = compute_] { cpu::attention_decode(compute, shape, out, q, k_cache, v_cache, length); });
  }

  void activation(Stream& stream, Activation kind, TensorView y, TensorView x) override {
    check_activation(kind, y, x);
    stream.submit([=, compute = compute_] { cpu::activation(compute, kind, y, x); });
  }

  void activation_grad(Stream& stream, Activation kind, TensorView dx, TensorView dy, TensorView x) override {
    check_activation_grad(kind, dx, dy, x);
    stream.submit([=, compute = compute_] { cpu::activation_grad(compute, kind, dx, dy, x); });
  }

  void add(Stream& stream, TensorView y, TensorView x, TensorView r) override {
    check_add(y, x, r);
    stream.submit([=, compute = compute_] { cpu::add(compute, y, x, r); });
  }

  void scale(Stream& stream, TensorView y, TensorView x, TensorView gain, Accumulate accumulate) override {
    check_scale(y, x, gain);
    stream.submit([=, compute = compute_] { cpu::scale(compute, y, x, gain, accumulate); });
  }

  void multiply(Stream& stream, TensorView y, TensorView x, double factor) override {
    check_multiply(y, x);
    stream.submit([=, compute = compute_] { cpu::multiply(compute, y, x, factor); });
  }

  void soft_cap(Stream& stream, TensorView y, TensorView x, double cap) override {
    check_soft_cap(y, x, cap);
    stream.submit([=, compute = compute_] { cpu::soft_cap(compute, y, x, cap); });
  }

  void soft_cap_grad(Stream& stream, TensorView dx, TensorView dy, TensorView y, double cap) override {
    check_soft_cap_grad(dx, dy, y, cap);
    stream.submit([=, compute = compute_] { cpu::soft_cap_grad(compute, dx, dy, y, cap); });
  }

  void convert(Stream& stream, TensorView y, TensorView x, Accumulate accumulate) override {
    check_convert(y, x);
    stream.submit([=, compute = compute_] { cpu::convert(compute, y, x, accumulate); });
  }

  void columns(Stream& stream, TensorView y, std::int64_t first_y, TensorView x, std::int64_t first_x, std::int64_t count,
               Accumulate accumulate) override {
    check_columns(y, first_y, x, first_x, count);
    stream.submit([=, compute = compute_] { cpu::columns(compute, y, first_y, x, first_x, count, accumulate); });
  }

  void zero(Stream& stream, TensorView y) override {
    stream.submit([=, compute = compute_] { cpu::zero(compute, y); });
  }

  void embed(Stream& stream, TensorView y, TensorView tokens, TensorView table, TensorView positions, std::int64_t seq,
             std::int64_t first_position) override {
    check_embed(y, tokens, table, positions, seq, first_position);
    stream.submit([=, compute = compute_] { cpu::embed(compute, y, tokens, table, positions, seq, first_position); });
  }

  void embed_grad(Stream& stream, TensorView dtable, TensorView dpositions, TensorView tokens, TensorView dy, std::int64_t seq,
                  Accumulate accumulate) override {
    check_embed_grad(dtable, dpositions, tokens, dy, seq);
    stream.submit([=, compute = compute_] { cpu::embed_grad(compute, dtable, dpositions, tokens, dy, seq, accumulate); });
  }

  void ids_in_part(Stream& stream, TensorView out, TensorView ids, std::int64_t first, std::int64_t count) override {
    check_ids_in_part(out, ids, first, count);
    stream.submit([=, compute = compute_] { cpu::ids_in_part(compute, out, ids, first, count); });
  }

  void route(Stream& stream, const Routing& routing, TensorView gates, TensorView experts, TensorView rows, TensorView lse,
             TensorView report, TensorView logits, TensorView targets) override {
    check_route(routing, gates, experts, rows, lse, report, logits, targets);
    stream.submit(
        [=, compute = compute_] { cpu::route(compute, routing, gates, experts, rows, lse, report, logits, targets); });
  }
  void route_grad(Stream& stream, const Routing& routing, TensorView dlogits, TensorView dgates, TensorView logits,
                  TensorView experts, TensorView lse, TensorView report, double balance, double squares) override {
    check_route_grad(routing, dlogits, dgates, logits, experts, lse, report);
    stream.submit([=, compute = compute_] {
      cpu::route_grad(compute, routing, dlogits, dgates, logits, experts, lse, report, balance, squares);
    });
  }
  void merge_reports(Stream& stream, const Routing& routing, TensorView report, TensorView parts) override {
    check_merge_reports(routing, report, parts);
    stream.submit([=, compute = compute_] { cpu::merge_reports(compute, routing, report, parts); });
  }
  void dispatch(Stream& stream, TensorView to, TensorView from, TensorView rows, TensorView gates) override {
    check_slots("dispatch", from, to, rows, gates);
    stream.submit([=, compute = compute_] { cpu::dispatch(compute, to, from, rows, gates); });
  }
  void combine(Stream& stream, TensorView to, TensorView from, TensorView rows, TensorView gates,
               Accumulate accumulate) override {
    check_slots("combine", to, from, rows, gates);
    stream.submit([=, compute = compute_] { cpu::combine(compute, to, from, rows, gates, accumulate); });
  }
  void gate_grad(Stream& stream, TensorView dgates, TensorView dy, TensorView from, TensorView rows) override {
    check_slots("gate_grad", dy, from, rows, dgates);
    stream.submit([=, compute = compute_] { cpu::gate_grad(compute, dgates, dy, from, rows); });
  }

  void cross_entropy(Stream& stream, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets,
                     double scale) override {
    check_cross_entropy(loss, dlogits, logits, targets);
    stream.submit([=, compute = compute_] { cpu::cross_entropy(compute, loss, dlogits, logits, targets, scale); });
  }

  void log_sum_exp(Stream& stream, TensorView lse, MatrixView logits) override {
    check_log_sum_exp(lse, logits);
    stream.submit([=, compute = compute_] { cpu::log_sum_exp(compute, lse, logits); });
  }

  void merge_log_sums(Stream& stream, TensorView whole, TensorView parts, TensorView targets) override {
    check_merge_log_sums(whole, parts, targets);
    stream.submit([=, compute = compute_] { cpu::merge_log_sums(compute, whole, parts, targets); });
  }

  void cross_entropy_part(Stream& stream, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets,
                          TensorView lse, double scale) override {
    check_cross_entropy_part(loss, dlogits, logits, targets, lse);
    stream.submit([=, compute = compute_] { cpu::cross_entropy_part(compute, loss, dlogits, logits, targets, lse, scale); });
  }

  void sum(Stream& stream, TensorView out, TensorView x, Accumulate accumulate) override {
    check_sum(out, x);
    stream.submit([=, compute = compute_] { cpu::sum(compute, out, x, accumulate); });
  }

  void sum_of_squares(Stream& stream, TensorView out, TensorView x, std::int64_t first) override {
    check_sum_of_squares(out, x, first);
    stream.submit([=, compute = compute_] { cpu::sum_of_squares(compute, out, x, first); });
  }

  void pack_block8(Stream& stream, TensorView packed, TensorView x) override {
    check_pack_block8(packed, x);
    stream.submit([=] { terrace::pack_block8(packed.data, x.dtype, x.data, x.elements() / kBlock8Elements); });
  }

  void unpack_block8(Stream& stream, TensorView y, TensorView packed) override {
    check_unpack_block8(y, packed);
    stream.submit([=] { terrace::unpack_block8(y.dtype, y.data, packed.data, y.elements() / kBlock8Elements); });
  }

  void narrow_in_place(Stream& stream, TensorView x) override {
    check_narrow_in_place(x);
    stream.submit([=] { terrace::narrow_in_place(x.data, x.elements()); });
  }

 private:
  cpu::Compute compute_;
};

}  // namespace

std::unique_ptr<Math> make_cpu_math(ThreadPool& pool) { return std::make_unique<CpuMath>(pool); }

}  // namespace terrace
