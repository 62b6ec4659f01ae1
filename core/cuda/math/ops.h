// The operations of core/math/math.h as kernel launches: their meaning is described there, and their arguments are already
// checked. They are defined in the files beside this one, one per family, and instantiated for CudaLauncher in their .cu files.
//
// Threads: the stream's issuing thread. The functions only issue work.
#pragma once

#include <terrace/core/math/math.h>

namespace terrace::cuda::ops {

// c[N,C] (+)= bias[C]; a matrix product then adds to it.
template <class Launcher>
void add_bias(const Launcher&, TensorView c, TensorView bias, Accumulate);
template <class Launcher>
void bias_grad(const Launcher&, TensorView db, TensorView dy, Accumulate);
template <class Launcher>
void norm(const Launcher&, TensorView y, TensorView mean, TensorView rstd, TensorView x, TensorView gain, TensorView bias,
          double eps, double offset, TensorView squares);
template <class Launcher>
void norm_input_grad(const Launcher&, TensorView dx, TensorView dy, TensorView x, TensorView gain, TensorView mean,
                     TensorView rstd, Accumulate, double offset, TensorView products);
template <class Launcher>
void row_products(const Launcher&, TensorView sums, TensorView a, TensorView b, TensorView gain, double factor, double offset);
template <class Launcher>
void norm_weight_grad(const Launcher&, TensorView dgain, TensorView dbias, TensorView dy, TensorView x, TensorView mean,
                      TensorView rstd, Accumulate);
template <class Launcher>
void rotary(const Launcher&, TensorView x, std::int64_t row_elements, std::int64_t seq, std::int64_t first_position,
            const Rotary& angles, bool inverse);

template <class Launcher>
void attention(const Launcher&, AttentionShape, TensorView out, TensorView lse, TensorView qkv);
template <class Launcher>
void attention_grad(const Launcher&, AttentionShape, TensorView dqkv, TensorView dout, TensorView out, TensorView lse,
                    TensorView qkv);
template <class Launcher>
void attention_block(const Launcher&, const AttentionBlock&, TensorView out, TensorView lse, TensorView q, TensorView kv,
                     Accumulate);
template <class Launcher>
void attention_block_grad(const Launcher&, const AttentionBlock&, TensorView dq, TensorView dkv, TensorView dout,
                          TensorView out, TensorView lse, TensorView q, TensorView kv, Accumulate to_dq, Accumulate to_dkv);
template <class Launcher>
void softmax_rows(const Launcher&, const ScoreRows&, TensorView scores, double scale);
template <class Launcher>
void softmax_rows_grad(const Launcher&, const ScoreRows&, TensorView gradient, TensorView probabilities, double scale);
template <class Launcher>
void attention_decode(const Launcher&, AttentionShape, TensorView out, TensorView q, TensorView k_cache, TensorView v_cache,
                      std::int64_t length);

template <class Launcher>
void activation(const Launcher&, Activation, TensorView y, TensorView x);
template <class Launcher>
void activation_grad(const Launcher&, Activation, TensorView dx, TensorView dy, TensorView x);

template <class Launcher>
void add(const Launcher&, TensorView y, TensorView x, TensorView r);
template <class Launcher>
void scale(const Launcher&, TensorView y, TensorView x, TensorView gain, Accumulate);
template <class Launcher>
void multiply(const Launcher&, TensorView y, TensorView x, double factor);
template <class Launcher>
void soft_cap(const Launcher&, TensorView y, TensorView x, double cap);
template <class Launcher>
void soft_cap_grad(const Launcher&, TensorView dx, TensorView dy, TensorView y, double cap);
template <class Launcher>
void convert(const Launcher&, TensorView y, TensorView x, Accumulate);
template <class Launcher>
void columns(const Launcher&, TensorView y, std::int64_t first_y, TensorView x, std::int64_t first_x, std::int64_t count,
             Accumulate);
template <class Launcher>
void zero(const Launcher&, TensorView y);

template <class Launcher>
void embed(const Launcher&, TensorView y, TensorView tokens, TensorView table, TensorView positions, std::int64_t seq,
           std::int64_t first_position);
template <class Launcher>
void embed_grad(const Launcher&, TensorView dtable, TensorView dpositions, TensorView tokens, TensorView dy, std::int64_t seq,
                Accumulate);
template <class Launcher>
void ids_in_part(const Launcher&, TensorView out, TensorView ids, std::int64_t first, std::int64_t count);

template <class Launcher>
void route(const Launcher&, const Routing&, TensorView gates, TensorView experts, TensorView rows, TensorView lse,
           TensorView report, TensorView logits, TensorView targets);
template <class Launcher>
void route_grad(const Launcher&, const Routing&, TensorView dlogits, TensorView dgates, TensorView logits, TensorView experts,
                TensorView lse, TensorView report, double balance, double squares);
template <class Launcher>
void merge_reports(const Launcher&, const Routing&, TensorView report, TensorView parts);
template <class Launcher>
void dispatch(const Launcher&, TensorView to, TensorView from, TensorView rows, TensorView gates);
template <class Launcher>
void combine(const Launcher&, TensorView to, TensorView from, TensorView rows, TensorView gates, Accumulate);
template <class Launcher>
void gate_grad(const Launcher&, TensorView dgates, TensorView dy, TensorView from, TensorView rows);

template <class Launcher>
void cross_entropy(const Launcher&, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets, double scale);
template <class Launcher>
void log_sum_exp(const Launcher&, TensorView lse, MatrixView logits);
template <class Launcher>
void merge_log_sums(const Launcher&, TensorView whole, TensorView parts, TensorView targets);
template <class Launcher>
void cross_entropy_part(const Launcher&, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets,
                        TensorView lse, double scale);
template <class Launcher>
void sum(const Launcher&, TensorView out, TensorView x, Accumulate);
template <class Launcher>
void sum_of_squares(const Launcher&, TensorView out, TensorView x, std::int64_t first);

template <class Launcher>
void pack_block8(const Launcher&, TensorView packed, TensorView x);
template <class Launcher>
void unpack_block8(const Launcher&, TensorView y, TensorView packed);
template <class Launcher>
void narrow_in_place(const Launcher&, TensorView x);

}  // namespace terrace::cuda::ops
