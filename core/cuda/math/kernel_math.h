// Math by kernels: every call checks its arguments, as on the CPU, and lets its stream (a CudaStream) issue the operation of
// ops.h. The Backend defines launches and matrix products:
//
//   auto launcher(const char* operation, CudaStreamHandle, const Workspace&);  // launcher.h
//   void matmul(Stream&, const Workspace&, c, a, ta, b, tb, bias, accumulate);
//   void attention(const auto& launcher, shape, out, lse, qkv);  // issues it by the kernels that it chooses
//   void attention_grad(const auto& launcher, shape, dqkv, dout, out, lse, qkv);
//   std::string algorithms() const;
//   cudnn::Attention& cudnn();  // optional: it may compute attention instead of our kernels
//
// Owner:   the device. Threads, errors: as Math; a token or target outside the vocabulary poisons the stream, as on the CPU.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <terrace/core/cuda/cudnn/attention.h>
#include <terrace/core/cuda/math/ops.h>
#include <terrace/core/cuda/stream.h>
#include <terrace/core/cuda/workspace.h>
#include <terrace/core/math/math_arguments.h>

namespace terrace::cuda {

template <class Backend>
class KernelMath final : public Math {
 public:
  template <class... Args>
  explicit KernelMath(Device& device, Args&&... args)
      : backend_(std::forward<Args>(args)...), workspaces_(device, room_bytes()) {}

  void matmul(Stream& stream, MatrixView c, MatrixView a, Transpose ta, MatrixView b, Transpose tb, TensorView bias,
              Accumulate accumulate) override {
    math_arguments::check_matmul(c, a, ta, b, tb, bias);
    backend_.matmul(stream, workspaces_.of(stream), c, a, ta, b, tb, bias, accumulate);
  }

  void bias_grad(Stream& stream, TensorView db, TensorView dy, Accumulate accumulate) override {
    math_arguments::check_bias_grad(db, dy);
    enqueue("bias_grad", stream, [=](const auto& launcher) { ops::bias_grad(launcher, db, dy, accumulate); });
  }

  void norm(Stream& stream, TensorView y, TensorView mean, TensorView rstd, TensorView x, TensorView gain, TensorView bias,
            double eps, double offset, TensorView squares) override {
    math_arguments::check_norm(y, mean, rstd, x, gain, bias, squares);
    enqueue("norm", stream,
            [=](const auto& launcher) { ops::norm(launcher, y, mean, rstd, x, gain, bias, eps, offset, squares); });
  }
  void norm_input_grad(Stream& stream, TensorView dx, TensorView dy, TensorView x, TensorView gain, TensorView mean,
                       TensorView rstd, Accumulate accumulate, double offset, TensorView products) override {
    math_arguments::check_norm_input_grad(dx, dy, x, gain, mean, rstd, products);
    enqueue("norm_input_grad", stream, [=](const auto& launcher) {
      ops::norm_input_grad(launcher, dx, dy, x, gain, mean, rstd, accumulate, offset, products);
    });
  }
  void row_products(Stream& stream, TensorView sums, TensorView a, TensorView b, TensorView gain, double factor,
                    double offset) override {
    math_arguments::check_row_products(sums, a, b, gain);
    enqueue("row_products", stream,
            [=](const auto& launcher) { ops::row_products(launcher, sums, a, b, gain, factor, offset); });
  }
  void norm_weight_grad(Stream& stream, TensorView dgain, TensorView dbias, TensorView dy, TensorView x, TensorView mean,
                        TensorView rstd, Accumulate accumulate) override {
    math_arguments::check_norm_weight_grad(dgain, dbias, dy, x, mean, rstd);
    enqueue("norm_weight_grad", stream,
            [=](const auto& launcher) { ops::norm_weight_grad(launcher, dgain, dbias, dy, x, mean, rstd, accumulate); });
  }

  void rotary(Stream& stream, TensorView x, std::int64_t row_elements, std::int64_t seq, std::int64_t first_position,
              const Rotary& angles, bool inverse) override {
    math_arguments::check_rotary(x, row_elements, seq);
    enqueue("rotary", stream,
            [=](const auto& launcher) { ops::rotary(launcher, x, row_elements, seq, first_position, angles, inverse); });
  }

  void attention(Stream& stream, AttentionShape shape, TensorView out, TensorView lse, TensorView qkv) override {
    math_arguments::check_attention(shape, out, lse, qkv);
    attend("attention", stream, {.shape = shape, .out = out, .lse = lse, .qkv = qkv},
           [=, this](const auto& launcher) { backend_.attention(launcher, shape, out, lse, qkv); });
  }
  void attention_grad(Stream& stream, AttentionShape shape, TensorView dqkv, TensorView dout, TensorView out, TensorView lse,
                      TensorView qkv) override {
    math_arguments::check_attention_grad(shape, dqkv, dout, out, lse, qkv);
    attend("attention_grad", stream,
           {.gradient = true, .shape = shape, .out = out, .lse = lse, .qkv = qkv, .dqkv = dqkv, .dout = dout},
           [=, this](const auto& launcher) { backend_.attention_grad(launcher, shape, dqkv, dout, out, lse, qkv); });
  }
  void attention_block(Stream& stream, const AttentionBlock& block, TensorView out, TensorView lse, TensorView q, TensorView kv,
                       Accumulate accumulate) override {
    math_arguments::check_attention_block(block, out, lse, q, kv);
    enqueue("attention_block", stream,
            [=](const auto& launcher) { ops::attention_block(launcher, block, out, lse, q, kv, accumulate); });
  }
  void attention_block_grad(Stream& stream, const AttentionBlock& block, TensorView dq, TensorView dkv, TensorView dout,
                            TensorView out, TensorView lse, TensorView q, TensorView kv, Accumulate to_dq,
                            Accumulate to_dkv) override {
    math_arguments::check_attention_block_grad(block, dq, dkv, dout, out, lse, q, kv);
    enqueue("attention_block_grad", stream, [=](const auto& launcher) {
      ops::attention_block_grad(launcher, block, dq, dkv, dout, out, lse, q, kv, to_dq, to_dkv);
    });
  }
  void softmax_rows(Stream& stream, const ScoreRows& rows, TensorView scores, double scale) override {
    math_arguments::check_softmax_rows("softmax_rows", rows, scores);
    enqueue("softmax_rows", stream, [=](const auto& launcher) { ops::softmax_rows(launcher, rows, scores, scale); });
  }
  void softmax_rows_grad(Stream& stream, const ScoreRows& rows, TensorView gradient, TensorView probabilities,
                         double scale) override {
    for (const auto& view : {gradient, probabilities}) math_arguments::check_softmax_rows("softmax_rows_grad", rows, view);
    enqueue("softmax_rows_grad", stream,
            [=](const auto& launcher) { ops::softmax_rows_grad(launcher, rows, gradient, probabilities, scale); });
  }
  void attention_decode(Stream& stream, AttentionShape shape, TensorView out, TensorView q, TensorView k_cache,
                        TensorView v_cache, std::int64_t length) override {
    math_arguments::check_attention_decode(shape, out, q, k_cache, v_cache, length);
    enqueue("attention_decode", stream,
            [=](const auto& launcher) { ops::attention_decode(launcher, shape, out, q, k_cache, v_cache, length); });
  }

  void activation(Stream& stream, Activation kind, TensorView y, TensorView x) override {
    math_arguments::check_activation(kind, y, x);
    enqueue("activation", stream, [=](const auto& launcher) { ops::activation(launcher, kind, y, x); });
  }
  void activation_grad(Stream& stream, Activation kind, TensorView dx, TensorView dy, TensorView x) override {
    math_arguments::check_activation_grad(kind, dx, dy, x);
    enqueue("activation_grad", stream, [=](const auto& launcher) { ops::activation_grad(launcher, kind, dx, dy, x); });
  }

  void add(Stream& stream, TensorView y, TensorView x, TensorView r) override {
    math_arguments::check_add(y, x, r);
    enqueue("add", stream, [=](const auto& launcher) { ops::add(launcher, y, x, r); });
  }
  void scale(Stream& stream, TensorView y, TensorView x, TensorView gain, Accumulate accumulate) override {
    math_arguments::check_scale(y, x, gain);
    enqueue("scale", stream, [=](const auto& launcher) { ops::scale(launcher, y, x, gain, accumulate); });
  }
  void multiply(Stream& stream, TensorView y, TensorView x, double factor) override {
    math_arguments::check_multiply(y, x);
    enqueue("multiply", stream, [=](const auto& launcher) { ops::multiply(launcher, y, x, factor); });
  }
  void soft_cap(Stream& stream, TensorView y, TensorView x, double cap) override {
    math_arguments::check_soft_cap(y, x, cap);
    enqueue("soft_cap", stream, [=](const auto& launcher) { ops::soft_cap(launcher, y, x, cap); });
  }
  void soft_cap_grad(Stream& stream, TensorView dx, TensorView dy, TensorView y, double cap) override {
    math_arguments::check_soft_cap_grad(dx, dy, y, cap);
    enqueue("soft_cap_grad", stream, [=](const auto& launcher) { ops::soft_cap_grad(launcher, dx, dy, y, cap); });
  }
  void convert(Stream& stream, TensorView y, TensorView x, Accumulate accumulate) override {
    math_arguments::check_convert(y, x);
    enqueue("convert", stream, [=](const auto& launcher) { ops::convert(launcher, y, x, accumulate); });
  }
  void columns(Stream& stream, TensorView y, std::int64_t first_y, TensorView x, std::int64_t first_x, std::int64_t count,
               Accumulate accumulate) override {
    math_arguments::check_columns(y, first_y, x, first_x, count);
    enqueue("columns", stream,
            [=](const auto& launcher) { ops::columns(launcher, y, first_y, x, first_x, count, accumulate); });
  }
  void zero(Stream& stream, TensorView y) override {
    enqueue("zero", stream, [=](const auto& launcher) { ops::zero(launcher, y); });
  }

  void embed(Stream& stream, TensorView y, TensorView tokens, TensorView table, TensorView positions, std::int64_t seq,
             std::int64_t first_position) override {
    math_arguments::check_embed(y, tokens, table, positions, seq, first_position);
    enqueue("embed", stream,
            [=](const auto& launcher) { ops::embed(launcher, y, tokens, table, positions, seq, first_position); });
    expect_no_fault(stream, Fault::token, "embed: token", table.shape[0]);
  }
  void embed_grad(Stream& stream, TensorView dtable, TensorView dpositions, TensorView tokens, TensorView dy, std::int64_t seq,
                  Accumulate accumulate) override {
    math_arguments::check_embed_grad(dtable, dpositions, tokens, dy, seq);
    enqueue("embed_grad", stream,
            [=](const auto& launcher) { ops::embed_grad(launcher, dtable, dpositions, tokens, dy, seq, accumulate); });
    expect_no_fault(stream, Fault::token, "embed: token", dtable.shape[0]);
  }

  void ids_in_part(Stream& stream, TensorView out, TensorView ids, std::int64_t first, std::int64_t count) override {
    math_arguments::check_ids_in_part(out, ids, first, count);
    enqueue("ids_in_part", stream, [=](const auto& launcher) { ops::ids_in_part(launcher, out, ids, first, count); });
  }

  void route(Stream& stream, const Routing& routing, TensorView gates, TensorView experts, TensorView rows, TensorView lse,
             TensorView report, TensorView logits, TensorView targets) override {
    math_arguments::check_route(routing, gates, experts, rows, lse, report, logits, targets);
    enqueue("route", stream,
            [=](const auto& launcher) { ops::route(launcher, routing, gates, experts, rows, lse, report, logits, targets); });
  }
  void route_grad(Stream& stream, const Routing& routing, TensorView dlogits, TensorView dgates, TensorView logits,
                  TensorView experts, TensorView lse, TensorView report, double balance, double squares) override {
    math_arguments::check_route_grad(routing, dlogits, dgates, logits, experts, lse, report);
    enqueue("route_grad", stream, [=](const auto& launcher) {
      ops::route_grad(launcher, routing, dlogits, dgates, logits, experts, lse, report, balance, squares);
    });
  }
  void merge_reports(Stream& stream, const Routing& routing, TensorView report, TensorView parts) override {
    math_arguments::check_merge_reports(routing, report, parts);
    enqueue("merge_reports", stream, [=](const auto& launcher) { ops::merge_reports(launcher, routing, report, parts); });
  }
  void dispatch(Stream& stream, TensorView to, TensorView from, TensorView rows, TensorView gates) override {
    math_arguments::check_slots("dispatch", from, to, rows, gates);
    enqueue("dispatch", stream, [=](const auto& launcher) { ops::dispatch(launcher, to, from, rows, gates); });
  }
  void combine(Stream& stream, TensorView to, TensorView from, TensorView rows, TensorView gates,
               Accumulate accumulate) override {
    math_arguments::check_slots("combine", to, from, rows, gates);
    enqueue("combine", stream, [=](const auto& launcher) { ops::combine(launcher, to, from, rows, gates, accumulate); });
  }
  void gate_grad(Stream& stream, TensorView dgates, TensorView dy, TensorView from, TensorView rows) override {
    math_arguments::check_slots("gate_grad", dy, from, rows, dgates);
    enqueue("gate_grad", stream, [=](const auto& launcher) { ops::gate_grad(launcher, dgates, dy, from, rows); });
  }

  void cross_entropy(Stream& stream, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets,
                     double scale) override {
    math_arguments::check_cross_entropy(loss, dlogits, logits, targets);
    enqueue("cross_entropy", stream,
            [=](const auto& launcher) { ops::cross_entropy(launcher, loss, dlogits, logits, targets, scale); });
    expect_no_fault(stream, Fault::target, "cross_entropy: target", columns_of(logits));
  }
  void log_sum_exp(Stream& stream, TensorView lse, MatrixView logits) override {
    math_arguments::check_log_sum_exp(lse, logits);
    enqueue("log_sum_exp", stream, [=](const auto& launcher) { ops::log_sum_exp(launcher, lse, logits); });
  }
  void merge_log_sums(Stream& stream, TensorView whole, TensorView parts, TensorView targets) override {
    math_arguments::check_merge_log_sums(whole, parts, targets);
    enqueue("merge_log_sums", stream, [=](const auto& launcher) { ops::merge_log_sums(launcher, whole, parts, targets); });
  }
  void cross_entropy_part(Stream& stream, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets,
                          TensorView lse, double scale) override {
    math_arguments::check_cross_entropy_part(loss, dlogits, logits, targets, lse);
    enqueue("cross_entropy_part", stream,
            [=](const auto& launcher) { ops::cross_entropy_part(launcher, loss, dlogits, logits, targets, lse, scale); });
    expect_no_fault(stream, Fault::target, "cross_entropy_part: target", columns_of(logits));
  }
  void sum(Stream& stream, TensorView out, TensorView x, Accumulate accumulate) override {
    math_arguments::check_sum(out, x);
    enqueue("sum", stream, [=](const auto& launcher) { ops::sum(launcher, out, x, accumulate); });
  }
  void sum_of_squares(Stream& stream, TensorView out, TensorView x, std::int64_t first) override {
    math_arguments::check_sum_of_squares(out, x, first);
    enqueue("sum_of_squares", stream, [=](const auto& launcher) { ops::sum_of_squares(launcher, out, x, first); });
  }

  void pack_block8(Stream& stream, TensorView packed, TensorView x) override {
    math_arguments::check_pack_block8(packed, x);
    enqueue("pack_block8", stream, [=](const auto& launcher) { ops::pack_block8(launcher, packed, x); });
  }
  void unpack_block8(Stream& stream, TensorView y, TensorView packed) override {
    math_arguments::check_unpack_block8(y, packed);
    enqueue("unpack_block8", stream, [=](const auto& launcher) { ops::unpack_block8(launcher, y, packed); });
  }
  void narrow_in_place(Stream& stream, TensorView x) override {
    math_arguments::check_narrow_in_place(x);
    enqueue("narrow_in_place", stream, [=](const auto& launcher) { ops::narrow_in_place(launcher, x); });
  }

  std::string algorithms() const override { return backend_.algorithms(); }

 private:
  static constexpr bool kMayUseCudnn = requires(Backend & backend) { backend.cudnn(); };
  std::size_t room_bytes() {
    if constexpr (kMayUseCudnn) return backend_.cudnn().room_bytes();
    return 0;
  }

  template <class Issue>
  void attend(const char* operation, Stream& stream, const cudnn::AttentionCall& call, Issue issue) {
    if constexpr (kMayUseCudnn) {
      cuda_stream(stream).launch(
          [this, operation, call, workspace = workspaces_.of(stream), issue = std::move(issue)](CudaStreamHandle handle) {
            backend_.cudnn().run(call, handle, workspace.room, [&] { issue(backend_.launcher(operation, handle, workspace)); });
          });
    } else {
      enqueue(operation, stream, std::move(issue));
    }
  }

  template <class Issue>
  void enqueue(const char* operation, Stream& stream, Issue issue) {
    cuda_stream(stream).launch([this, operation, workspace = workspaces_.of(stream), issue = std::move(issue)](
                                   CudaStreamHandle handle) { issue(backend_.launcher(operation, handle, workspace)); });
  }

  // Checks when the kernels have ended. Until then, the rows of invalid indices are NaN.
  void expect_no_fault(Stream& stream, Fault fault, const char* what, std::int64_t vocabulary) {
    cuda_stream(stream).expect([word = workspaces_.of(stream).fault(fault), what, vocabulary] {
      const FaultWord found = std::exchange(*static_cast<volatile FaultWord*>(word), FaultWord{0});
      if (found == 0) return;
      throw std::out_of_range(std::string(what) + " " + std::to_string(fault_value(found)) + " at " +
                              std::to_string(fault_place(found)) + " is outside a vocabulary of " + std::to_string(vocabulary));
    });
  }

  Backend backend_;
  StreamWorkspaces workspaces_;
};

}  // namespace terrace::cuda
