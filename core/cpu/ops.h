// The CPU operations as plain functions: arguments are already checked, work runs on the calling thread and the pool.
// The meaning of each is in core/math/math.h.
#pragma once

#include <terrace/core/cpu/compute.h>
#include <terrace/core/math/math_arguments.h>

namespace terrace::cpu {

void matmul(Compute, MatrixView c, MatrixView a, Transpose ta, MatrixView b, Transpose tb, TensorView bias, Accumulate);
void bias_grad(Compute, TensorView db, TensorView dy, Accumulate);

void norm(Compute, TensorView y, TensorView mean, TensorView rstd, TensorView x, TensorView gain, TensorView bias, double eps,
          double offset, TensorView squares);
void norm_input_grad(Compute, TensorView dx, TensorView dy, TensorView x, TensorView gain, TensorView mean, TensorView rstd,
                     Accumulate, double offset, TensorView products);
void row_products(Compute, TensorView sums, TensorView a, TensorView b, TensorView gain, double factor, double offset);
void norm_weight_grad(Compute, TensorView dgain, TensorView dbias, TensorView dy, TensorView x, TensorView mean,
                      TensorView rstd, Accumulate);

void rotary(Compute, TensorView x, std::int64_t row_elements, std::int64_t seq, std::int64_t first_position,
            const Rotary& angles, bool inverse);

void attention(Compute, AttentionShape, TensorView out, TensorView lse, TensorView qkv);
void attention_grad(Compute, AttentionShape, TensorView dqkv, TensorView dout, TensorView out, TensorView lse, TensorView qkv);
void attention_block(Compute, const AttentionBlock&, TensorView out, TensorView lse, TensorView q, TensorView kv, Accumulate);
void attention_block_grad(Compute, const AttentionBlock&, TensorView dq, TensorView dkv, TensorView dout, TensorView out,
                          TensorView lse, TensorView q, TensorView kv, Accumulate to_dq, Accumulate to_dkv);
void softmax_rows(Compute, const ScoreRows&, TensorView scores, double scale);
void softmax_rows_grad(Compute, const ScoreRows&, TensorView gradient, TensorView probabilities, double scale);
void attention_decode(Compute, AttentionShape, TensorView out, TensorView q, TensorView k_cache, TensorView v_cache,
                      std::int64_t length);

void activation(Compute, Activation, TensorView y, TensorView x);
void activation_grad(Compute, Activation, TensorView dx, TensorView dy, TensorView x);

void add(Compute, TensorView y, TensorView x, TensorView r);
void scale(Compute, TensorView y, TensorView x, TensorView gain, Accumulate);
void multiply(Compute, TensorView y, TensorView x, double factor);
void soft_cap(Compute, TensorView y, TensorView x, double cap);
void soft_cap_grad(Compute, TensorView dx, TensorView dy, TensorView y, double cap);
void convert(Compute, TensorView y, TensorView x, Accumulate);
void columns(Compute, TensorView y, std::int64_t first_y, TensorView x, std::int64_t first_x, std::int64_t count, Accumulate);
void zero(Compute, TensorView y);

void embed(Compute, TensorView y, TensorView tokens, TensorView table, TensorView positions, std::int64_t seq,
           std::int64_t first_position);
void embed_grad(Compute, TensorView dtable, TensorView dpositions, TensorView tokens, TensorView dy, std::int64_t seq,
                Accumulate);
void ids_in_part(Compute, TensorView out, TensorView ids, std::int64_t first, std::int64_t count);

void route(Compute, const Routing&, TensorView gates, TensorView experts, TensorView rows, TensorView lse, TensorView report,
           TensorView logits, TensorView targets);
void route_grad(Compute, const Routing&, TensorView dlogits, TensorView dgates, TensorView logits, TensorView experts,
                TensorView lse, TensorView report, double balance, double squares);
void merge_reports(Compute, const Routing&, TensorView report, TensorView parts);
void dispatch(Compute, TensorView to, TensorView from, TensorView rows, TensorView gates);
void combine(Compute, TensorView to, TensorView from, TensorView rows, TensorView gates, Accumulate);
void gate_grad(Compute, TensorView dgates, TensorView dy, TensorView from, TensorView rows);

void cross_entropy(Compute, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets, double scale);
void log_sum_exp(Compute, TensorView lse, MatrixView logits);
void merge_log_sums(Compute, TensorView whole, TensorView parts, TensorView targets);
void cross_entropy_part(Compute, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets, TensorView lse,
                        double scale);
void sum(Compute, TensorView out, TensorView x, Accumulate);
void sum_of_squares(Compute, TensorView out, TensorView x, std::int64_t first);

}  // namespace terrace::cpu
