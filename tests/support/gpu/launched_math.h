// The CPU's math used like a GPU's: each operation is issued on its CUDA stream and runs later. The bytes that it reads and
// writes are reported to the fake runtime, which looks for operations without an order.
//
// A tensor counts as a whole, even if an operation only uses some of its rows or columns.
//
// Owner: as Math; the fake is shared. Threads: as Math. Errors: those of an operation become complaints of the fake.
#pragma once

#include <exception>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/cuda/cuda_error.h>
#include <terrace/core/cuda/stream.h>
#include <terrace/core/math/math.h>
#include <terrace/tests/support/gpu/fake_cuda.h>
#include <terrace/tests/support/inline_stream.h>

namespace terrace::test {

class LaunchedMath final : public Math {
 public:
  // `greatest_product`: products with more multiplications are skipped.
  LaunchedMath(std::unique_ptr<Math> math, std::shared_ptr<FakeCuda> fake,
               double greatest_product = std::numeric_limits<double>::infinity())
      : math_(std::move(math)), fake_(std::move(fake)), greatest_product_(greatest_product) {}

  void matmul(Stream& s, MatrixView c, MatrixView a, Transpose ta, MatrixView b, Transpose tb, TensorView bias,
              Accumulate accumulate) override {
    launch(s, "matmul", {c.with_gaps()}, {a.with_gaps(), b.with_gaps(), bias}, [=, this](Stream& here, const Reach& at) {
      const auto inner = b.view.shape[tb == Transpose::no ? 0 : 1];
      if (static_cast<double>(c.view.elements()) * static_cast<double>(inner) > greatest_product_) return;
      math_->matmul(here, at(c), at(a), ta, at(b), tb, at(bias), accumulate);
    });
  }
  void bias_grad(Stream& s, TensorView db, TensorView dy, Accumulate accumulate) override {
    launch(s, "bias_grad", {db}, {dy},
           [=, this](Stream& here, const Reach& at) { math_->bias_grad(here, at(db), at(dy), accumulate); });
  }
  void norm(Stream& s, TensorView y, TensorView mean, TensorView rstd, TensorView x, TensorView gain, TensorView bias,
            double eps, double offset, TensorView squares) override {
    launch(s, "norm", {y, mean, rstd}, {x, gain, bias, squares}, [=, this](Stream& here, const Reach& at) {
      math_->norm(here, at(y), at(mean), at(rstd), at(x), at(gain), at(bias), eps, offset, at(squares));
    });
  }
  void norm_input_grad(Stream& s, TensorView dx, TensorView dy, TensorView x, TensorView gain, TensorView mean, TensorView rstd,
                       Accumulate accumulate, double offset, TensorView products) override {
    launch(s, "norm_input_grad", {dx}, {dy, x, gain, mean, rstd, products}, [=, this](Stream& here, const Reach& at) {
      math_->norm_input_grad(here, at(dx), at(dy), at(x), at(gain), at(mean), at(rstd), accumulate, offset, at(products));
    });
  }
  void row_products(Stream& s, TensorView sums, TensorView a, TensorView b, TensorView gain, double factor,
                    double offset) override {
    launch(s, "row_products", {sums}, {a, b, gain}, [=, this](Stream& here, const Reach& at) {
      math_->row_products(here, at(sums), at(a), at(b), at(gain), factor, offset);
    });
  }
  void norm_weight_grad(Stream& s, TensorView dgain, TensorView dbias, TensorView dy, TensorView x, TensorView mean,
                        TensorView rstd, Accumulate accumulate) override {
    launch(s, "norm_weight_grad", {dgain, dbias}, {dy, x, mean, rstd}, [=, this](Stream& here, const Reach& at) {
      math_->norm_weight_grad(here, at(dgain), at(dbias), at(dy), at(x), at(mean), at(rstd), accumulate);
    });
  }
  void rotary(Stream& s, TensorView x, std::int64_t row_elements, std::int64_t seq, std::int64_t first_position,
              const Rotary& angles, bool inverse) override {
    launch(s, "rotary", {x}, {}, [=, this](Stream& here, const Reach& at) {
      math_->rotary(here, at(x), row_elements, seq, first_position, angles, inverse);
    });
  }
  void attention(Stream& s, AttentionShape shape, TensorView out, TensorView lse, TensorView qkv) override {
    launch(s, "attention", {out, lse}, {qkv},
           [=, this](Stream& here, const Reach& at) { math_->attention(here, shape, at(out), at(lse), at(qkv)); });
  }
  void attention_grad(Stream& s, AttentionShape shape, TensorView dqkv, TensorView dout, TensorView out, TensorView lse,
                      TensorView qkv) override {
    launch(s, "attention_grad", {dqkv}, {dout, out, lse, qkv}, [=, this](Stream& here, const Reach& at) {
      math_->attention_grad(here, shape, at(dqkv), at(dout), at(out), at(lse), at(qkv));
    });
  }
  void attention_block(Stream& s, const AttentionBlock& block, TensorView out, TensorView lse, TensorView q, TensorView kv,
                       Accumulate accumulate) override {
    launch(s, "attention_block", {out, lse}, {q, kv}, [=, this](Stream& here, const Reach& at) {
      math_->attention_block(here, block, at(out), at(lse), at(q), at(kv), accumulate);
    });
  }
  void attention_block_grad(Stream& s, const AttentionBlock& block, TensorView dq, TensorView dkv, TensorView dout,
                            TensorView out, TensorView lse, TensorView q, TensorView kv, Accumulate to_dq,
                            Accumulate to_dkv) override {
    launch(s, "attention_block_grad", {dq, dkv}, {dout, out, lse, q, kv}, [=, this](Stream& here, const Reach& at) {
      math_->attention_block_grad(here, block, at(dq), at(dkv), at(dout), at(out), at(lse), at(q), at(kv), to_dq, to_dkv);
    });
  }
  void softmax_rows(Stream& s, const ScoreRows& of, TensorView scores, double scale) override {
    launch(s, "softmax_rows", {scores}, {},
           [=, this](Stream& here, const Reach& at) { math_->softmax_rows(here, of, at(scores), scale); });
  }
  void softmax_rows_grad(Stream& s, const ScoreRows& of, TensorView gradient, TensorView probabilities, double scale) override {
    launch(s, "softmax_rows_grad", {gradient}, {probabilities}, [=, this](Stream& here, const Reach& at) {
      math_->softmax_rows_grad(here, of, at(gradient), at(probabilities), scale);
    });
  }
  void attention_decode(Stream& s, AttentionShape shape, TensorView out, TensorView q, TensorView k_cache, TensorView v_cache,
                        std::int64_t length) override {
    launch(s, "attention_decode", {out}, {q, k_cache, v_cache}, [=, this](Stream& here, const Reach& at) {
      math_->attention_decode(here, shape, at(out), at(q), at(k_cache), at(v_cache), length);
    });
  }
  void activation(Stream& s, Activation kind, TensorView y, TensorView x) override {
    launch(s, "activation", {y}, {x},
           [=, this](Stream& here, const Reach& at) { math_->activation(here, kind, at(y), at(x)); });
  }
  void activation_grad(Stream& s, Activation kind, TensorView dx, TensorView dy, TensorView x) override {
    launch(s, "activation_grad", {dx}, {dy, x},
           [=, this](Stream& here, const Reach& at) { math_->activation_grad(here, kind, at(dx), at(dy), at(x)); });
  }
  void add(Stream& s, TensorView y, TensorView x, TensorView r) override {
    launch(s, "add", {y}, {x, r}, [=, this](Stream& here, const Reach& at) { math_->add(here, at(y), at(x), at(r)); });
  }
  void scale(Stream& s, TensorView y, TensorView x, TensorView gain, Accumulate accumulate) override {
    launch(s, "scale", {y}, {x, gain},
           [=, this](Stream& here, const Reach& at) { math_->scale(here, at(y), at(x), at(gain), accumulate); });
  }
  void multiply(Stream& s, TensorView y, TensorView x, double factor) override {
    launch(s, "multiply", {y}, {x}, [=, this](Stream& here, const Reach& at) { math_->multiply(here, at(y), at(x), factor); });
  }
  void soft_cap(Stream& s, TensorView y, TensorView x, double cap) override {
    launch(s, "soft_cap", {y}, {x}, [=, this](Stream& here, const Reach& at) { math_->soft_cap(here, at(y), at(x), cap); });
  }
  void soft_cap_grad(Stream& s, TensorView dx, TensorView dy, TensorView y, double cap) override {
    launch(s, "soft_cap_grad", {dx}, {dy, y},
           [=, this](Stream& here, const Reach& at) { math_->soft_cap_grad(here, at(dx), at(dy), at(y), cap); });
  }
  void convert(Stream& s, TensorView y, TensorView x, Accumulate accumulate) override {
    launch(s, "convert", {y}, {x},
           [=, this](Stream& here, const Reach& at) { math_->convert(here, at(y), at(x), accumulate); });
  }
  void columns(Stream& s, TensorView y, std::int64_t first_y, TensorView x, std::int64_t first_x, std::int64_t count,
               Accumulate accumulate) override {
    launch(s, "columns", {y}, {x}, [=, this](Stream& here, const Reach& at) {
      math_->columns(here, at(y), first_y, at(x), first_x, count, accumulate);
    });
  }
  void zero(Stream& s, TensorView y) override {
    launch(s, "zero", {y}, {}, [=, this](Stream& here, const Reach& at) { math_->zero(here, at(y)); });
  }
  void embed(Stream& s, TensorView y, TensorView tokens, TensorView table, TensorView positions, std::int64_t seq,
             std::int64_t first_position) override {
    launch_checking(s, "embed", {y}, {tokens, table, positions}, [=, this](Stream& here, const Reach& at) {
      math_->embed(here, at(y), at(tokens), at(table), at(positions), seq, first_position);
    });
  }
  void embed_grad(Stream& s, TensorView dtable, TensorView dpositions, TensorView tokens, TensorView dy, std::int64_t seq,
                  Accumulate accumulate) override {
    launch_checking(s, "embed_grad", {dtable, dpositions}, {tokens, dy}, [=, this](Stream& here, const Reach& at) {
      math_->embed_grad(here, at(dtable), at(dpositions), at(tokens), at(dy), seq, accumulate);
    });
  }
  void ids_in_part(Stream& s, TensorView out, TensorView ids, std::int64_t first, std::int64_t count) override {
    launch(s, "ids_in_part", {out}, {ids},
           [=, this](Stream& here, const Reach& at) { math_->ids_in_part(here, at(out), at(ids), first, count); });
  }
  void route(Stream& s, const Routing& routing, TensorView gates, TensorView experts, TensorView rows, TensorView lse,
             TensorView report, TensorView logits, TensorView targets) override {
    launch(s, "route", {gates, experts, rows, lse, report}, {logits, targets}, [=, this](Stream& here, const Reach& at) {
      math_->route(here, routing, at(gates), at(experts), at(rows), at(lse), at(report), at(logits), at(targets));
    });
  }
  void route_grad(Stream& s, const Routing& routing, TensorView dlogits, TensorView dgates, TensorView logits,
                  TensorView experts, TensorView lse, TensorView report, double balance, double squares) override {
    launch(s, "route_grad", {dlogits}, {dgates, logits, experts, lse, report}, [=, this](Stream& here, const Reach& at) {
      math_->route_grad(here, routing, at(dlogits), at(dgates), at(logits), at(experts), at(lse), at(report), balance, squares);
    });
  }
  void merge_reports(Stream& s, const Routing& routing, TensorView report, TensorView parts) override {
    launch(s, "merge_reports", {report}, {parts},
           [=, this](Stream& here, const Reach& at) { math_->merge_reports(here, routing, at(report), at(parts)); });
  }
  void dispatch(Stream& s, TensorView to, TensorView from, TensorView rows, TensorView gates) override {
    launch(s, "dispatch", {to}, {from, rows, gates},
           [=, this](Stream& here, const Reach& at) { math_->dispatch(here, at(to), at(from), at(rows), at(gates)); });
  }
  void combine(Stream& s, TensorView to, TensorView from, TensorView rows, TensorView gates, Accumulate accumulate) override {
    launch(s, "combine", {to}, {from, rows, gates}, [=, this](Stream& here, const Reach& at) {
      math_->combine(here, at(to), at(from), at(rows), at(gates), accumulate);
    });
  }
  void gate_grad(Stream& s, TensorView dgates, TensorView dy, TensorView from, TensorView rows) override {
    launch(s, "gate_grad", {dgates}, {dy, from, rows},
           [=, this](Stream& here, const Reach& at) { math_->gate_grad(here, at(dgates), at(dy), at(from), at(rows)); });
  }
  void cross_entropy(Stream& s, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets,
                     double scale) override {
    launch_checking(s, "cross_entropy", {loss, dlogits.with_gaps()}, {logits.with_gaps(), targets},
                    [=, this](Stream& here, const Reach& at) {
                      math_->cross_entropy(here, at(loss), at(dlogits), at(logits), at(targets), scale);
                    });
  }
  void log_sum_exp(Stream& s, TensorView lse, MatrixView logits) override {
    launch(s, "log_sum_exp", {lse}, {logits.with_gaps()},
           [=, this](Stream& here, const Reach& at) { math_->log_sum_exp(here, at(lse), at(logits)); });
  }
  void merge_log_sums(Stream& s, TensorView whole, TensorView parts, TensorView targets) override {
    launch_checking(s, "merge_log_sums", {whole}, {parts, targets}, [=, this](Stream& here, const Reach& at) {
      math_->merge_log_sums(here, at(whole), at(parts), at(targets));
    });
  }
  void cross_entropy_part(Stream& s, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets, TensorView lse,
                          double scale) override {
    launch_checking(s, "cross_entropy_part", {loss, dlogits.with_gaps()}, {logits.with_gaps(), targets, lse},
                    [=, this](Stream& here, const Reach& at) {
                      math_->cross_entropy_part(here, at(loss), at(dlogits), at(logits), at(targets), at(lse), scale);
                    });
  }
  void sum(Stream& s, TensorView out, TensorView x, Accumulate accumulate) override {
    launch(s, "sum", {out}, {x}, [=, this](Stream& here, const Reach& at) { math_->sum(here, at(out), at(x), accumulate); });
  }
  void sum_of_squares(Stream& s, TensorView out, TensorView x, std::int64_t first) override {
    launch(s, "sum_of_squares", {out}, {x},
           [=, this](Stream& here, const Reach& at) { math_->sum_of_squares(here, at(out), at(x), first); });
  }
  void pack_block8(Stream& s, TensorView packed, TensorView x) override {
    launch(s, "pack_block8", {packed}, {x},
           [=, this](Stream& here, const Reach& at) { math_->pack_block8(here, at(packed), at(x)); });
  }
  void unpack_block8(Stream& s, TensorView y, TensorView packed) override {
    launch(s, "unpack_block8", {y}, {packed},
           [=, this](Stream& here, const Reach& at) { math_->unpack_block8(here, at(y), at(packed)); });
  }
  void narrow_in_place(Stream& s, TensorView x) override {
    launch(s, "narrow_in_place", {x}, {}, [=, this](Stream& here, const Reach& at) { math_->narrow_in_place(here, at(x)); });
  }

  [[nodiscard]] std::string algorithms() const override { return math_->algorithms(); }

 private:
  // A tensor at the address that the fake's kernels use; without a fake, unchanged.
  struct Reach {
    const FakeCuda* fake = nullptr;
    TensorView operator()(TensorView view) const {
      if (fake) view.data = fake->reach(view.data);
      return view;
    }
    MatrixView operator()(MatrixView matrix) const {
      matrix.view = (*this)(matrix.view);
      return matrix;
    }
  };
  template <class Run>
  void launch(Stream& stream, const char* name, const std::vector<TensorView>& writes, const std::vector<TensorView>& reads,
              Run run) {
    IdleStream nothing;
    run(nothing, Reach{});  // invalid arguments are refused immediately
    FakeCuda::Touched touched{.name = name};
    for (const auto& view : writes) touched.add(view.data, view.bytes(), true);
    for (const auto& view : reads) touched.add(view.data, view.bytes(), false);
    cuda_stream(stream).launch([fake = fake_, touched = std::move(touched), run = std::move(run)](CudaStreamHandle handle) {
      const int code = fake->launch_touching(handle, touched, [fake, run] {
        InlineStream here;
        run(here, Reach{fake.get()});
      });
      if (code) throw CudaError(*fake, code, "cuda:0", "cudaLaunchKernel");
    });
  }
  // For operations that refuse some of their numbers: as on a GPU, the error comes after the operation.
  template <class Run>
  void launch_checking(Stream& stream, const char* name, const std::vector<TensorView>& writes,
                       const std::vector<TensorView>& reads, Run run) {
    const auto refused = std::make_shared<std::exception_ptr>();
    launch(stream, name, writes, reads, [refused, run = std::move(run)](Stream& here, const Reach& at) {
      try {
        run(here, at);
      } catch (const std::out_of_range&) {
        *refused = std::current_exception();
      }
    });
    cuda_stream(stream).expect([refused] {
      if (*refused) std::rethrow_exception(*refused);
    });
  }

  const std::unique_ptr<Math> math_;
  const std::shared_ptr<FakeCuda> fake_;
  const double greatest_product_;
};

}  // namespace terrace::test
