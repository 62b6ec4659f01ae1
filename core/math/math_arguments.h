// The first steps of every implementation of Math: arguments' shapes as rows and columns, and the checks that core/math/math.h
// promises.
//
// Threads: any; only the views are read, not their data.
// Errors:  a shape or dtype that does not match throws std::logic_error that names the operation and the rule.
#pragma once

#include <terrace/core/math/math.h>

namespace terrace {

// The last dimension, and the product of all others.
inline std::int64_t columns_of(const TensorView& v) { return v.shape.rank() == 0 ? 1 : v.shape[v.shape.rank() - 1]; }
inline std::int64_t rows_of(const TensorView& v) {
  std::int64_t n = 1;
  for (std::size_t i = 0; i + 1 < v.shape.rank(); ++i) n *= v.shape[i];
  return n;
}
inline std::int64_t columns_of(const MatrixView& m) { return columns_of(m.view); }
inline std::int64_t rows_of(const MatrixView& m) { return rows_of(m.view); }

namespace math_arguments {

void check_matmul(const MatrixView& c, const MatrixView& a, Transpose ta, const MatrixView& b, Transpose tb,
                  const TensorView& bias);
void check_bias_grad(const TensorView& db, const TensorView& dy);

void check_norm(const TensorView& y, const TensorView& mean, const TensorView& rstd, const TensorView& x,
                const TensorView& gain, const TensorView& bias, const TensorView& squares);
void check_norm_input_grad(const TensorView& dx, const TensorView& dy, const TensorView& x, const TensorView& gain,
                           const TensorView& mean, const TensorView& rstd, const TensorView& products);
void check_row_products(const TensorView& sums, const TensorView& a, const TensorView& b, const TensorView& gain);
void check_norm_weight_grad(const TensorView& dgain, const TensorView& dbias, const TensorView& dy, const TensorView& x,
                            const TensorView& mean, const TensorView& rstd);

void check_columns(const TensorView& y, std::int64_t first_y, const TensorView& x, std::int64_t first_x, std::int64_t count);
void check_route(const Routing&, const TensorView& gates, const TensorView& experts, const TensorView& rows,
                 const TensorView& lse, const TensorView& report, const TensorView& logits, const TensorView& targets);
void check_route_grad(const Routing&, const TensorView& dlogits, const TensorView& dgates, const TensorView& logits,
                      const TensorView& experts, const TensorView& lse, const TensorView& report);
void check_merge_reports(const Routing&, const TensorView& report, const TensorView& parts);
// Checks the operands of dispatch(), combine() and gate_grad(): the tokens, the rows of the experts, and the row of each slot.
void check_slots(const char* operation, const TensorView& tokens, const TensorView& of_experts, const TensorView& rows,
                 const TensorView& gates);
void check_rotary(const TensorView& x, std::int64_t row_elements, std::int64_t seq);

void check_attention(const AttentionShape&, const TensorView& out, const TensorView& lse, const TensorView& qkv);
void check_attention_grad(const AttentionShape&, const TensorView& dqkv, const TensorView& dout, const TensorView& out,
                          const TensorView& lse, const TensorView& qkv);
void check_attention_block(const AttentionBlock&, const TensorView& out, const TensorView& lse, const TensorView& q,
                           const TensorView& kv);
void check_attention_block_grad(const AttentionBlock&, const TensorView& dq, const TensorView& dkv, const TensorView& dout,
                                const TensorView& out, const TensorView& lse, const TensorView& q, const TensorView& kv);
void check_softmax_rows(const char* operation, const ScoreRows& rows, const TensorView& scores);
void check_attention_decode(const AttentionShape&, const TensorView& out, const TensorView& q, const TensorView& k_cache,
                            const TensorView& v_cache, std::int64_t length);

void check_activation(Activation, const TensorView& y, const TensorView& x);
void check_activation_grad(Activation, const TensorView& dx, const TensorView& dy, const TensorView& x);

void check_add(const TensorView& y, const TensorView& x, const TensorView& r);
void check_scale(const TensorView& y, const TensorView& x, const TensorView& gain);
void check_multiply(const TensorView& y, const TensorView& x);
void check_soft_cap(const TensorView& y, const TensorView& x, double cap);
void check_soft_cap_grad(const TensorView& dx, const TensorView& dy, const TensorView& y, double cap);
void check_convert(const TensorView& y, const TensorView& x);

void check_embed(const TensorView& y, const TensorView& tokens, const TensorView& table, const TensorView& positions,
                 std::int64_t seq, std::int64_t first_position);
void check_embed_grad(const TensorView& dtable, const TensorView& dpositions, const TensorView& tokens, const TensorView& dy,
                      std::int64_t seq);
void check_ids_in_part(const TensorView& out, const TensorView& ids, std::int64_t first, std::int64_t count);

void check_cross_entropy(const TensorView& loss, const MatrixView& dlogits, const MatrixView& logits,
                         const TensorView& targets);
void check_log_sum_exp(const TensorView& lse, const MatrixView& logits);
void check_merge_log_sums(const TensorView& whole, const TensorView& parts, const TensorView& targets);
void check_cross_entropy_part(const TensorView& loss, const MatrixView& dlogits, const MatrixView& logits,
                              const TensorView& targets, const TensorView& lse);
void check_sum(const TensorView& out, const TensorView& x);
void check_sum_of_squares(const TensorView& out, const TensorView& x, std::int64_t first);

void check_pack_block8(const TensorView& packed, const TensorView& x);
void check_unpack_block8(const TensorView& y, const TensorView& packed);
void check_narrow_in_place(const TensorView& x);

}  // namespace math_arguments
}  // namespace terrace
