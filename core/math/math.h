// The math that a layer needs, as operations enqueued on a stream. Each device has one implementation. (The CUDA implementation
// is a module loaded at run time; therefore this is an interface and not a set of free functions.) Each operation checks its
// operands (math.cpp) and passes the call as one value (math_call.h) to the device's enqueue(). operation_list.inl lists all.
//
// Owner:   the device. Buffers belong to the caller and must live until the stream has finished the call.
// Threads: as Stream. Operands of one call must not overlap unless the operation allows it.
// Errors:  a shape or dtype that does not match throws std::logic_error at the call; a failure inside travels in events.
// Bits:    every result depends only on operand values and logical shapes, never on threads, budgets or chunk sizes. Where a
//          library chooses the algorithms of products (algorithms()), their results also depend on the operands' alignment, up
//          to 16 bytes.
// Dtypes:  "compute dtype" is fp32, bf16, fp16 or fp64, the same for all activations and weights of a call. Statistics, sums
//          and 16-bit arithmetic are fp32 inside (fp64 for fp64). Gradients of weights may be wider than the compute dtype:
//          fp32 for bf16 and fp16. `accumulate`: false overwrites; true adds the whole, finished result to the old content.
// Order:   the tensors that an operation writes come before those that it only reads.
// Shapes:  N tokens = B sequences × S positions, row-major; H heads of D, G key-value heads (G divides H).
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include <terrace/core/device/device.h>
#include <terrace/core/math/rotary.h>
#include <terrace/core/math/routing.h>
#include <terrace/core/math/targets.h>
#include <terrace/core/math/tensor.h>

namespace terrace::math {
struct MathCall;
}  // namespace terrace::math

namespace terrace {

enum class Transpose : bool { no, yes };
enum class Accumulate : bool { no, yes };
enum class Activation : std::uint8_t { gelu_tanh, swiglu, geglu_tanh, gelu_erf, geglu_erf };
// How many input numbers make one result.
constexpr std::int64_t inputs_of(Activation kind) {
  return kind == Activation::gelu_tanh || kind == Activation::gelu_erf ? 1 : 2;
}

// How many elements one fp64 partial sum covers.
inline constexpr std::int64_t kSumBlock = 4096;
// The number of blocks that sum_of_squares() makes of this many elements.
constexpr std::int64_t square_blocks(std::int64_t elements, std::int64_t first) {
  return elements <= first ? 1 : 1 + (elements - first + kSumBlock - 1) / kSumBlock;
}

// What is done to a query-key product before the softmax: s = factor · q·k; with a cap, then cap · tanh(s / cap) (Gemma 2).
struct ScoreRule {
  double scale = 0;  // the factor; 0: 1/sqrt(D)
  double cap = 0;    // 0: none

  [[nodiscard]] double factor(std::int64_t head_dim) const {
    return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(head_dim));
  }
  friend bool operator==(const ScoreRule&, const ScoreRule&) = default;
};

struct AttentionShape {
  std::int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool one_of_many = false;  // calls will have very many lengths: nothing is prepared, tried or recorded for this one
  ScoreRule scores = {};
};

// Some queries of each sequence against some of its keys. Query i sees key j if j <= i + offset and, with a window, j > i +
// offset - window.
struct AttentionBlock {
  // Rows [b · every + first, b · every + first + count) of a tensor, for sequence b.
  struct Rows {
    std::int64_t first = 0, count = 0, every = 0;
  };
  std::int64_t batch = 0, heads = 0, kv_heads = 0, head_dim = 0;
  Rows queries = {}, keys = {};
  std::int64_t offset = 0;  // position of the first query minus position of the first key
  std::int64_t window = 0;  // how many positions a query sees, its own included; 0: all
  ScoreRule scores = {};
  // The keys that a query sees: [low, high).
  [[nodiscard]] constexpr std::int64_t low(std::int64_t query) const {
    const auto first = window == 0 ? 0 : query + offset - window + 1;
    return first < 0 ? 0 : first < high(query) ? first : high(query);
  }
  [[nodiscard]] constexpr std::int64_t high(std::int64_t query) const {
    const auto end = query + offset + 1;
    return end < 0 ? 0 : end < keys.count ? end : keys.count;
  }
  // The number of (query, key) pairs in a sequence where the query sees the key.
  [[nodiscard]] constexpr std::int64_t pairs() const {
    std::int64_t all = 0;
    for (std::int64_t i = 0; i < queries.count; ++i) all += high(i) - low(i);
    return all;
  }
};

// Rows of scores, one for each query. A row is split into parts by its keys. For one matrix (a sequence and a head), the score
// of query i and key k · keys + j, both counted within the sequence's keys, is element [k, matrix, i, j] of [parts, matrices,
// every, keys].
struct ScoreRows {
  std::int64_t parts = 1, matrices = 1, every = 1, keys = 1;
  // Which rows: queries [first, first + count) of some matrices. The first query is at `position` in its sequence.
  std::int64_t first_matrix = 0, count_of_matrices = 1, first = 0, count = 1;
  std::int64_t position = 0;
  std::int64_t begin = 0;   // the queries see no key before this one
  std::int64_t window = 0;  // how many keys a query sees, its own included; 0: all from `begin` on
  // The keys that query `first` + `query` sees: [low, high).
  [[nodiscard]] constexpr std::int64_t low(std::int64_t query) const {
    const auto from = window == 0 ? begin : position + query - window + 1;
    return from < begin ? begin : from;
  }
  [[nodiscard]] constexpr std::int64_t high(std::int64_t query) const { return position + query + 1; }
  [[nodiscard]] constexpr std::int64_t place(std::int64_t matrix, std::int64_t query, std::int64_t key) const {
    return ((key / keys * matrices + matrix) * every + first + query) * keys + key % keys;
  }
};

class Math {
 public:
  virtual ~Math() = default;

  // c[M,N] (+)= op(a) · op(b) (+ bias[N], when not empty). op(a) is [M,K], op(b) is [K,N]; a transposed operand is stored
  // transposed: ta=yes means a is stored [K,M], tb=yes means b is stored [N,K]. c may be fp32 when a, b and bias are bf16 or
  // fp16. `a`, `b` and `c` may have rank > 2: leading dimensions are flattened. The result is (c + product) + bias, computed in
  // the dtype of sums and rounded once to the dtype of c. With a bias, c must have no gaps.
  void matmul(Stream&, MatrixView c, MatrixView a, Transpose ta, MatrixView b, Transpose tb, TensorView bias = {},
              Accumulate accumulate = Accumulate::no);
  // Operands of products with operands of 8 bits (float8.h): codes [R, C'] are the elements of x [R, C] divided by scale [1],
  // and turned [C, R'] those of the transposed x. C' is C rounded up to a multiple of 128, with zeros in the further columns,
  // and so is R'. One of the two may be empty. codes and turned: e4m3 or e5m2, both the same; x: fp32, bf16 or fp16; scale:
  // fp32.
  void quantise(Stream&, TensorView codes, TensorView turned, TensorView scale, MatrixView x);
  // c[M,N] (+)= a_scale · b_scale · a[M,K'] · bᵀ (+ bias[N], when not empty), with b [N,K'] and both operands from quantise().
  // c and bias: fp32 or bf16; sums, scales and bias in fp32, rounded once.
  void matmul_float8(Stream&, MatrixView c, TensorView a, TensorView b, TensorView a_scale, TensorView b_scale,
                     TensorView bias = {}, Accumulate accumulate = Accumulate::no);
  // db[C] (+)= sum over rows of dy[N,C].
  void bias_grad(Stream&, TensorView db, TensorView dy, Accumulate accumulate);

  // y[N,C] = (x − mean) · rstd · (offset + gain) + bias, statistics per row. `bias` and `mean` empty: RMSNorm (no mean
  // removed). mean, rstd: [N] fp32 (fp64 for fp64). offset: 0, or 1 if the stored weights are gain − 1 (Gemma).
  //
  // For an RMSNorm, each rank may have only some columns of the rows. `squares` and `products` [N], in the dtype of rstd, then
  // give the means over whole rows: that of x², and that of dy · (offset + gain) · x. Empty: the rows are whole.
  void norm(Stream&, TensorView y, TensorView mean, TensorView rstd, TensorView x, TensorView gain, TensorView bias, double eps,
            double offset = 0, TensorView squares = {});
  // dx[N,C] (+)= input gradient.
  void norm_input_grad(Stream&, TensorView dx, TensorView dy, TensorView x, TensorView gain, TensorView mean, TensorView rstd,
                       Accumulate accumulate, double offset = 0, TensorView products = {});
  // sums[N] = factor · Σ a · b over each row; with a gain, factor · Σ a · (offset + gain) · b: a rank's part of `squares` or
  // `products`.
  void row_products(Stream&, TensorView sums, TensorView a, TensorView b, TensorView gain, double factor, double offset = 0);
  // dgain[C], dbias[C] (empty for RMSNorm) (+)= weight gradients. If mean and rstd are empty, dgain is that of scale().
  void norm_weight_grad(Stream&, TensorView dgain, TensorView dbias, TensorView dy, TensorView x, TensorView mean,
                        TensorView rstd, Accumulate accumulate);

  // Rotary positions in place on `x` [N, heads, D] with row stride `row_elements` (so that q and k can be rotated inside a
  // fused qkv buffer). Pairs are (i, i + D/2), as in Hugging Face's Llama. inverse: rotates back (the gradient); it scales
  // vectors by the same factor as the forward rotation. `first_position` is the position of the first row of every sequence.
  void rotary(Stream&, TensorView x, std::int64_t row_elements, std::int64_t seq, std::int64_t first_position,
              const Rotary& angles, bool inverse);

  // Causal attention. qkv [N, (H + 2G)·D]: q heads, then k heads, then v heads. out [N, H·D]. lse [B, H, S] in fp32 (fp64 for
  // fp64): log-sum-exp of the scores (ScoreRule), kept for the backward. The probabilities are never stored whole.
  void attention(Stream&, AttentionShape, TensorView out, TensorView lse, TensorView qkv);
  // Overwrites dqkv with the gradient from dout; recomputes the probabilities by blocks. The implementation owns its scratch.
  void attention_grad(Stream&, AttentionShape, TensorView dqkv, TensorView dout, TensorView out, TensorView lse,
                      TensorView qkv);
  // One block of attention. q: rows that begin with the H query heads. kv: rows that end with the G key heads and then the G
  // value heads; rows of both may be longer, so that a qkv tensor can serve as either. out [·, H·D], in the compute dtype or
  // that of sums; lse [B, H, queries.every]. Rows outside the block keep their content. Queries that see no key get zeros and
  // -∞. accumulate: out and lse hold the result over other keys, and become the result over both sets, merged in the dtype of
  // sums.
  void attention_block(Stream&, const AttentionBlock&, TensorView out, TensorView lse, TensorView q, TensorView kv,
                       Accumulate accumulate);
  // Takes out and lse of all keys; computes the part of the gradients that belongs to these keys. The parts of all blocks add
  // up to the whole gradient. The heads of dq begin its rows and those of dkv end its rows, as in q and kv; both have the
  // compute dtype or that of sums. dq and dkv accumulate separately.
  void attention_block_grad(Stream&, const AttentionBlock&, TensorView dq, TensorView dkv, TensorView dout, TensorView out,
                            TensorView lse, TensorView q, TensorView kv, Accumulate to_dq, Accumulate to_dkv);
  // For attention whose scores are stored: each row becomes the softmax of its scores times `scale`, and 0 where its query does
  // not see the key. Scores of such keys are not read.
  void softmax_rows(Stream&, const ScoreRows&, TensorView scores, double scale);
  // The gradient of softmax_rows(): `gradient` holds that of the probabilities and becomes that of the scores; 0 where the
  // query does not see the key.
  void softmax_rows_grad(Stream&, const ScoreRows&, TensorView gradient, TensorView probabilities, double scale);
  // One new position for generation: q is the last row's first H·D elements (a row of qkv is allowed); k_cache, v_cache [G,
  // capacity, D]; `length` positions are valid.
  void attention_decode(Stream&, AttentionShape, TensorView out, TensorView q, TensorView k_cache, TensorView v_cache,
                        std::int64_t length);

  // gelu_tanh: y[N,F] from x[N,F]. swiglu: y[N,F] = silu(x[:, :F]) · x[:, F:] from x[N,2F]. geglu_tanh: as swiglu, with
  // gelu_tanh in place of silu. gelu_erf, geglu_erf: the same with x · Φ(x), which gelu_tanh approximates.
  void activation(Stream&, Activation, TensorView y, TensorView x);
  void activation_grad(Stream&, Activation, TensorView dx, TensorView dy, TensorView x);

  // y[N,C] = x + r. y may be x or r.
  void add(Stream&, TensorView y, TensorView x, TensorView r);
  // y[N,C] (+)= x · gain[C], one gain per column.
  void scale(Stream&, TensorView y, TensorView x, TensorView gain, Accumulate accumulate);
  // y[·] = x · factor. y may be x.
  void multiply(Stream&, TensorView y, TensorView x, double factor);
  // y[·] = cap · tanh(x / cap). y may be x.
  void soft_cap(Stream&, TensorView y, TensorView x, double cap);
  // dx[·] = dy · (1 − (y / cap)²), where y is the result of soft_cap(). dx may be dy.
  void soft_cap_grad(Stream&, TensorView dx, TensorView dy, TensorView y, double cap);
  // y (+)= x elementwise with conversion between dtypes.
  void convert(Stream&, TensorView y, TensorView x, Accumulate accumulate = Accumulate::no);
  // The columns [first_y, first_y + count) of y[R,·] (+)= the columns [first_x, first_x + count) of x[R,·]. One dtype.
  void columns(Stream&, TensorView y, std::int64_t first_y, TensorView x, std::int64_t first_x, std::int64_t count,
               Accumulate accumulate = Accumulate::no);
  void zero(Stream&, TensorView y);

  // y[N,C] = table[token] (+ positions[n mod seq + first_position], when not empty). tokens [N] i32; −1: the token is not in
  // this part of the table, and its row of the table is zeros.
  void embed(Stream&, TensorView y, TensorView tokens, TensorView table, TensorView positions, std::int64_t seq,
             std::int64_t first_position = 0);
  // dtable[V,C] (+)=, dpositions[P,C] (+)= (may be empty): rows are summed in ascending n, for any number of threads. The row
  // of a token −1 is added only to dpositions.
  void embed_grad(Stream&, TensorView dtable, TensorView dpositions, TensorView tokens, TensorView dy, std::int64_t seq,
                  Accumulate accumulate);
  // Converts ids of the whole vocabulary to positions in a part of it, `count` ids from `first`; −1: not in this part. ids,
  // out: i32. out may be ids.
  void ids_in_part(Stream&, TensorView out, TensorView ids, std::int64_t first, std::int64_t count);

  // Experts (routing.h), for N tokens of K slots. logits [N,E]; gates [N,K] and lse [N] fp32 (fp64 for fp64); experts
  // [N,chosen] and rows [N,K] i32. Probabilities are the softmax of the logits. A token chooses its most probable experts; of
  // equally probable ones, the first. experts[n,j] is the j-th of them. gates[n,j] is its probability, divided by the sum over
  // the chosen ones if Routing::renormalise. The gate of a shared expert is 1. rows[n,j] is the slot's row among the rows of
  // all experts; −1: its expert was full. lse: the log-sum-exp of the logits. report: RoutingReport's numbers, fp64. targets
  // [N] i32, may be empty: a token whose target is kPadding has experts −1 and gates 0.
  void route(Stream&, const Routing&, TensorView gates, TensorView experts, TensorView rows, TensorView lse, TensorView report,
             TensorView logits, TensorView targets = {});
  // dlogits[N,E] (0 for rows of padding) is the sum of three gradients: through the gates, from dgates [N,K]; of balance · B,
  // where B is the report's balance; and of squares · the mean of lse² over the report's tokens.
  void route_grad(Stream&, const Routing&, TensorView dlogits, TensorView dgates, TensorView logits, TensorView experts,
                  TensorView lse, TensorView report, double balance, double squares);
  // For tokens in K parts of equal size, each routed separately: parts [K, 2E] fp64 has the numbers of each part's report from
  // asked() on. The report's own numbers become their sums, in ascending k, so that its balance is that of all tokens.
  void merge_reports(Stream&, const Routing&, TensorView report, TensorView parts);
  // to[rows[n,j],C] = from[n,C] (· gates[n,j], when not empty), for each slot that has a row.
  void dispatch(Stream&, TensorView to, TensorView from, TensorView rows, TensorView gates = {});
  // to[n,C] (+)= Σ from[rows[n,j],C] (· gates[n,j]) over the token's slots that have a row, in their order.
  void combine(Stream&, TensorView to, TensorView from, TensorView rows, TensorView gates = {},
               Accumulate accumulate = Accumulate::no);
  // dgates[n,j] = dy[n,C] · from[rows[n,j],C]; 0 for a slot without a row.
  void gate_grad(Stream&, TensorView dgates, TensorView dy, TensorView from, TensorView rows);

  // Softmax cross-entropy of a slice of rows. logits [R,V]; targets [R] i32; kNoTarget and kPadding mean no target. loss [R]
  // fp64: each row's loss (0 without a target). When dlogits is not empty (it may be logits itself, and has its stride):
  // dlogits = (softmax − onehot) · scale.
  void cross_entropy(Stream&, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets, double scale);
  // The same for logits whose columns are split over K ranks: each rank computes log_sum_exp() of its part, the ranks gather
  // these, and each rank merges them and computes the loss and the gradient of its part. Rounding a log-sum-exp L to fp32 is an
  // error of up to |L|·2⁻²⁴; it becomes a relative error of that size in every probability computed from L.
  //
  // lse[R] = log Σ exp of each row of logits[R,V], fp32 (fp64 for fp64). A row of −∞ gives −∞; a NaN or +∞ in it gives NaN.
  void log_sum_exp(Stream&, TensorView lse, MatrixView logits);
  // whole[N] = log Σₖ exp(parts[k,n]) of parts[K,N], summed in ascending k, so that every rank gets the same bits. +∞ where
  // targets[n] (i32, ids of the whole vocabulary) is negative: cross_entropy_part() makes the row's gradient zero.
  void merge_log_sums(Stream&, TensorView whole, TensorView parts, TensorView targets);
  // lse[R]: the whole row's log-sum-exp; +∞: the row has no target in any part. targets[R] i32: a position in this part, or −1,
  // not in this part. loss[R] fp64 = lse − logits[target], 0 for −1: the parts' losses add up to cross_entropy()'s. When
  // dlogits is not empty (it may be logits itself): dlogits = (exp(logits − lse) − onehot) · scale.
  void cross_entropy_part(Stream&, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets, TensorView lse,
                          double scale);
  // out[0] (fp64) = the sum of loss[R] in fixed blocks of logical indices, added to out[0] when accumulating.
  void sum(Stream&, TensorView out, TensorView x, Accumulate accumulate);
  // out[i] (fp64) = the sum of squares of block i of x: the first block has `first` elements, every other kSumBlock, the last
  // one the rest. If blocks begin at fixed places of a tensor, their sums do not depend on how the tensor is split between
  // calls or ranks.
  void sum_of_squares(Stream&, TensorView out, TensorView x, std::int64_t first = kSumBlock);

  // Compression for data sent between ranks. packed [blocks, 65] i32: the blocks of x[blocks · 256], fp32 or bf16, as specified
  // in block8.h. Packed blocks may begin where x begins, and may be the last bytes of y.
  void pack_block8(Stream&, TensorView packed, TensorView x);
  void unpack_block8(Stream&, TensorView y, TensorView packed);
  // Each fp32 of x[n] becomes a bf16; the results fill the first half of x's bytes (narrow.h).
  void narrow_in_place(Stream&, TensorView x);

  // Enqueues a call whose operands are already checked. All operations end here; a wrapper of another Math forwards calls to
  // it.
  virtual void enqueue(Stream&, const math::MathCall&) = 0;

  // Whether it has quantise()'s products. Without them, matmul_float8() fails.
  [[nodiscard]] virtual bool has_float8() const { return true; }

  // The algorithms chosen so far that affect the bits, one per line in a fixed order, to be recorded with a run. Empty if they
  // depend only on shapes.
  [[nodiscard]] virtual std::string algorithms() const { return {}; }
};

// The CPU implementation: SIMD chosen at run time, fixed tiles run on the pool, oneDNN for the matrix products of tiles (fp32,
// bf16; fp16 is widened, one part of the inner sum at a time), plain loops for fp64. Enqueued work runs on the stream's thread
// and on the pool.
std::unique_ptr<Math> make_cpu_math(ThreadPool& pool);

}  // namespace terrace
