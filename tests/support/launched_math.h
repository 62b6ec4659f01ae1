// The CPU's math as a GPU's: each operation is issued on its CUDA stream and runs there later, with the bytes that it reads and
// writes told to the fake runtime, which looks for operations that nothing orders.
//
// A tensor counts as a whole, also where an operation uses some of its rows or columns.
//
// Owner: as Math; the fake is shared. Threads: as Math. Errors: those of an operation become complaints of the fake.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/cuda/cuda_error.h>
#include <terrace/core/cuda/stream.h>
#include <terrace/core/math.h>
#include <terrace/tests/support/fake_cuda.h>

namespace terrace::test {

// Runs what it is given where it is given it.
class InlineStream final : public Stream {
 public:
  void submit(std::function<void()> work) override { work(); }
  void then(Told) override { fail(); }
  void wait(const Event&) override { fail(); }
  Event record() override { fail(); }
  void copy(std::byte*, const std::byte*, std::size_t) override { fail(); }
  Device& device() override { fail(); }

 private:
  [[noreturn]] static void fail() { throw std::logic_error("InlineStream: math only submits"); }
};

class LaunchedMath final : public Math {
 public:
  LaunchedMath(std::unique_ptr<Math> math, std::shared_ptr<FakeCuda> fake) : math_(std::move(math)), fake_(std::move(fake)) {}

  void matmul(Stream& s, MatrixView c, MatrixView a, Transpose ta, MatrixView b, Transpose tb, TensorView bias,
              Accumulate accumulate) override {
    launch(s, "matmul", {c.with_gaps()}, {a.with_gaps(), b.with_gaps(), bias},
           [=, this](Stream& here) { math_->matmul(here, c, a, ta, b, tb, bias, accumulate); });
  }
  void bias_grad(Stream& s, TensorView db, TensorView dy, Accumulate accumulate) override {
    launch(s, "bias_grad", {db}, {dy}, [=, this](Stream& here) { math_->bias_grad(here, db, dy, accumulate); });
  }
  void norm(Stream& s, TensorView y, TensorView mean, TensorView rstd, TensorView x, TensorView gain, TensorView bias,
            double eps, double offset) override {
    launch(s, "norm", {y, mean, rstd}, {x, gain, bias},
           [=, this](Stream& here) { math_->norm(here, y, mean, rstd, x, gain, bias, eps, offset); });
  }
  void norm_input_grad(Stream& s, TensorView dx, TensorView dy, TensorView x, TensorView gain, TensorView mean, TensorView rstd,
                       Accumulate accumulate, double offset) override {
    launch(s, "norm_input_grad", {dx}, {dy, x, gain, mean, rstd},
           [=, this](Stream& here) { math_->norm_input_grad(here, dx, dy, x, gain, mean, rstd, accumulate, offset); });
  }
  void norm_weight_grad(Stream& s, TensorView dgain, TensorView dbias, TensorView dy, TensorView x, TensorView mean,
                        TensorView rstd, Accumulate accumulate) override {
    launch(s, "norm_weight_grad", {dgain, dbias}, {dy, x, mean, rstd},
           [=, this](Stream& here) { math_->norm_weight_grad(here, dgain, dbias, dy, x, mean, rstd, accumulate); });
  }
  void rotary(Stream& s, TensorView x, std::int64_t row_elements, std::int64_t seq, std::int64_t first_position,
              const Rotary& angles, bool inverse) override {
    launch(s, "rotary", {x}, {},
           [=, this](Stream& here) { math_->rotary(here, x, row_elements, seq, first_position, angles, inverse); });
  }
  void attention(Stream& s, AttentionShape shape, TensorView out, TensorView lse, TensorView qkv) override {
    launch(s, "attention", {out, lse}, {qkv}, [=, this](Stream& here) { math_->attention(here, shape, out, lse, qkv); });
  }
  void attention_grad(Stream& s, AttentionShape shape, TensorView dqkv, TensorView dout, TensorView out, TensorView lse,
                      TensorView qkv) override {
    launch(s, "attention_grad", {dqkv}, {dout, out, lse, qkv},
           [=, this](Stream& here) { math_->attention_grad(here, shape, dqkv, dout, out, lse, qkv); });
  }
  void attention_block(Stream& s, const AttentionBlock& block, TensorView out, TensorView lse, TensorView q, TensorView kv,
                       Accumulate accumulate) override {
    launch(s, "attention_block", {out, lse}, {q, kv},
           [=, this](Stream& here) { math_->attention_block(here, block, out, lse, q, kv, accumulate); });
  }
  void attention_block_grad(Stream& s, const AttentionBlock& block, TensorView dq, TensorView dkv, TensorView dout,
                            TensorView out, TensorView lse, TensorView q, TensorView kv, Accumulate to_dq,
                            Accumulate to_dkv) override {
    launch(s, "attention_block_grad", {dq, dkv}, {dout, out, lse, q, kv}, [=, this](Stream& here) {
      math_->attention_block_grad(here, block, dq, dkv, dout, out, lse, q, kv, to_dq, to_dkv);
    });
  }
  void softmax_rows(Stream& s, const ScoreRows& of, TensorView scores, double scale) override {
    launch(s, "softmax_rows", {scores}, {}, [=, this](Stream& here) { math_->softmax_rows(here, of, scores, scale); });
  }
  void softmax_rows_grad(Stream& s, const ScoreRows& of, TensorView gradient, TensorView probabilities, double scale) override {
    launch(s, "softmax_rows_grad", {gradient}, {probabilities},
           [=, this](Stream& here) { math_->softmax_rows_grad(here, of, gradient, probabilities, scale); });
  }
  void attention_decode(Stream& s, AttentionShape shape, TensorView out, TensorView q, TensorView k_cache, TensorView v_cache,
                        std::int64_t length) override {
    launch(s, "attention_decode", {out}, {q, k_cache, v_cache},
           [=, this](Stream& here) { math_->attention_decode(here, shape, out, q, k_cache, v_cache, length); });
  }
  void activation(Stream& s, Activation kind, TensorView y, TensorView x) override {
    launch(s, "activation", {y}, {x}, [=, this](Stream& here) { math_->activation(here, kind, y, x); });
  }
  void activation_grad(Stream& s, Activation kind, TensorView dx, TensorView dy, TensorView x) override {
    launch(s, "activation_grad", {dx}, {dy, x}, [=, this](Stream& here) { math_->activation_grad(here, kind, dx, dy, x); });
  }
  void add(Stream& s, TensorView y, TensorView x, TensorView r) override {
    launch(s, "add", {y}, {x, r}, [=, this](Stream& here) { math_->add(here, y, x, r); });
  }
  void scale(Stream& s, TensorView y, TensorView x, TensorView gain, Accumulate accumulate) override {
    launch(s, "scale", {y}, {x, gain}, [=, this](Stream& here) { math_->scale(here, y, x, gain, accumulate); });
  }
  void multiply(Stream& s, TensorView y, TensorView x, double factor) override {
    launch(s, "multiply", {y}, {x}, [=, this](Stream& here) { math_->multiply(here, y, x, factor); });
  }
  void soft_cap(Stream& s, TensorView y, TensorView x, double cap) override {
    launch(s, "soft_cap", {y}, {x}, [=, this](Stream& here) { math_->soft_cap(here, y, x, cap); });
  }
  void soft_cap_grad(Stream& s, TensorView dx, TensorView dy, TensorView y, double cap) override {
    launch(s, "soft_cap_grad", {dx}, {dy, y}, [=, this](Stream& here) { math_->soft_cap_grad(here, dx, dy, y, cap); });
  }
  void convert(Stream& s, TensorView y, TensorView x, Accumulate accumulate) override {
    launch(s, "convert", {y}, {x}, [=, this](Stream& here) { math_->convert(here, y, x, accumulate); });
  }
  void columns(Stream& s, TensorView y, std::int64_t first_y, TensorView x, std::int64_t first_x, std::int64_t count,
               Accumulate accumulate) override {
    launch(s, "columns", {y}, {x},
           [=, this](Stream& here) { math_->columns(here, y, first_y, x, first_x, count, accumulate); });
  }
  void zero(Stream& s, TensorView y) override {
    launch(s, "zero", {y}, {}, [=, this](Stream& here) { math_->zero(here, y); });
  }
  void embed(Stream& s, TensorView y, TensorView tokens, TensorView table, TensorView positions, std::int64_t seq,
             std::int64_t first_position) override {
    launch(s, "embed", {y}, {tokens, table, positions},
           [=, this](Stream& here) { math_->embed(here, y, tokens, table, positions, seq, first_position); });
  }
  void embed_grad(Stream& s, TensorView dtable, TensorView dpositions, TensorView tokens, TensorView dy, std::int64_t seq,
                  Accumulate accumulate) override {
    launch(s, "embed_grad", {dtable, dpositions}, {tokens, dy},
           [=, this](Stream& here) { math_->embed_grad(here, dtable, dpositions, tokens, dy, seq, accumulate); });
  }
  void ids_in_part(Stream& s, TensorView out, TensorView ids, std::int64_t first, std::int64_t count) override {
    launch(s, "ids_in_part", {out}, {ids}, [=, this](Stream& here) { math_->ids_in_part(here, out, ids, first, count); });
  }
  void route(Stream& s, const Routing& routing, TensorView gates, TensorView experts, TensorView rows, TensorView lse,
             TensorView report, TensorView logits) override {
    launch(s, "route", {gates, experts, rows, lse, report}, {logits},
           [=, this](Stream& here) { math_->route(here, routing, gates, experts, rows, lse, report, logits); });
  }
  void route_grad(Stream& s, const Routing& routing, TensorView dlogits, TensorView dgates, TensorView logits,
                  TensorView experts, TensorView lse, TensorView report, double balance, double squares) override {
    launch(s, "route_grad", {dlogits}, {dgates, logits, experts, lse, report}, [=, this](Stream& here) {
      math_->route_grad(here, routing, dlogits, dgates, logits, experts, lse, report, balance, squares);
    });
  }
  void merge_reports(Stream& s, const Routing& routing, TensorView report, TensorView parts) override {
    launch(s, "merge_reports", {report}, {parts},
           [=, this](Stream& here) { math_->merge_reports(here, routing, report, parts); });
  }
  void dispatch(Stream& s, TensorView to, TensorView from, TensorView rows, TensorView gates) override {
    launch(s, "dispatch", {to}, {from, rows, gates}, [=, this](Stream& here) { math_->dispatch(here, to, from, rows, gates); });
  }
  void combine(Stream& s, TensorView to, TensorView from, TensorView rows, TensorView gates, Accumulate accumulate) override {
    launch(s, "combine", {to}, {from, rows, gates},
           [=, this](Stream& here) { math_->combine(here, to, from, rows, gates, accumulate); });
  }
  void gate_grad(Stream& s, TensorView dgates, TensorView dy, TensorView from, TensorView rows) override {
    launch(s, "gate_grad", {dgates}, {dy, from, rows},
           [=, this](Stream& here) { math_->gate_grad(here, dgates, dy, from, rows); });
  }
  void cross_entropy(Stream& s, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets,
                     double scale) override {
    launch(s, "cross_entropy", {loss, dlogits.with_gaps()}, {logits.with_gaps(), targets},
           [=, this](Stream& here) { math_->cross_entropy(here, loss, dlogits, logits, targets, scale); });
  }
  void log_sum_exp(Stream& s, TensorView lse, MatrixView logits) override {
    launch(s, "log_sum_exp", {lse}, {logits.with_gaps()}, [=, this](Stream& here) { math_->log_sum_exp(here, lse, logits); });
  }
  void merge_log_sums(Stream& s, TensorView whole, TensorView parts, TensorView targets) override {
    launch(s, "merge_log_sums", {whole}, {parts, targets},
           [=, this](Stream& here) { math_->merge_log_sums(here, whole, parts, targets); });
  }
  void cross_entropy_part(Stream& s, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets, TensorView lse,
                          double scale) override {
    launch(s, "cross_entropy_part", {loss, dlogits.with_gaps()}, {logits.with_gaps(), targets, lse},
           [=, this](Stream& here) { math_->cross_entropy_part(here, loss, dlogits, logits, targets, lse, scale); });
  }
  void sum(Stream& s, TensorView out, TensorView x, Accumulate accumulate) override {
    launch(s, "sum", {out}, {x}, [=, this](Stream& here) { math_->sum(here, out, x, accumulate); });
  }
  void sum_of_squares(Stream& s, TensorView out, TensorView x, std::int64_t first) override {
    launch(s, "sum_of_squares", {out}, {x}, [=, this](Stream& here) { math_->sum_of_squares(here, out, x, first); });
  }
  void pack_block8(Stream& s, TensorView packed, TensorView x) override {
    launch(s, "pack_block8", {packed}, {x}, [=, this](Stream& here) { math_->pack_block8(here, packed, x); });
  }
  void unpack_block8(Stream& s, TensorView y, TensorView packed) override {
    launch(s, "unpack_block8", {y}, {packed}, [=, this](Stream& here) { math_->unpack_block8(here, y, packed); });
  }
  void narrow_in_place(Stream& s, TensorView x) override {
    launch(s, "narrow_in_place", {x}, {}, [=, this](Stream& here) { math_->narrow_in_place(here, x); });
  }

 private:
  template <class Run>
  void launch(Stream& stream, const char* name, const std::vector<TensorView>& writes, const std::vector<TensorView>& reads,
              Run run) {
    FakeCuda::Touched touched{.name = name};
    for (const auto& view : writes) touched.add(view.data, view.bytes(), true);
    for (const auto& view : reads) touched.add(view.data, view.bytes(), false);
    cuda_stream(stream).launch([fake = fake_, touched = std::move(touched), run = std::move(run)](CudaStreamHandle handle) {
      const int code = fake->launch_touching(handle, touched, [run] {
        InlineStream here;
        run(here);
      });
      if (code) throw CudaError(*fake, code, "cuda:0", "cudaLaunchKernel");
    });
  }

  const std::unique_ptr<Math> math_;
  const std::shared_ptr<FakeCuda> fake_;
};

}  // namespace terrace::test
