// The norm of a branch's result in y = x + norm(result), as some transformers have it. The result is saved as the norm's input;
// tensor ranks add up their parts of it before the norm.
//
// Owner, threads, errors: as norm.h.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/parallel/layers/parts/norm.h>
#include <terrace/parallel/model/call_steps.h>

namespace terrace::layers {

class ResultNorm {
 public:
  ResultNorm(std::vector<ParamSpec>& params, std::string_view prefix, const Transformer& config);
  explicit operator bool() const { return bool{norm_}; }
  void name_params(std::vector<PhaseParam>& of_phase) const { norm_.name_params(of_phase); }  // appends its parameters

  // What it saves, and the gradient of its input.
  struct Saved {
    TensorView result, statistics;
  };
  static constexpr std::size_t kSaved = 2;  // tensors, in the order of Saved
  [[nodiscard]] std::vector<TensorSpec> saved(std::int64_t rows) const;
  [[nodiscard]] TensorSpec carried(std::int64_t rows) const;

  void forward(LayerContext& ctx, Tensors weights, TensorView y, TensorView x, const Saved& saved) const;
  // Of some rows, from `first_row` on.
  void input_grad(LayerContext& ctx, Tensors weights, TensorView dresult, TensorView dy, const Saved& saved,
                  std::int64_t first_row) const;
  // `counts`: false on a rank whose part of the gradient is zero, because another one has computed all of it.
  void weight_grad(LayerContext& ctx, Tensors gradients, TensorView dy, const Saved& saved, Accumulate accumulate,
                   bool counts) const;
  // The last phases of a forward on tensor ranks: they add up the result, which is the tensor `position` of saved(), and norm
  // it. With sequence parallelism y is a part of a sum: the rank that leads has all of it, the others zeros.
  using Find = std::function<Saved(const LayerTensors&)>;
  void describe_sum(CallSteps& steps, const TensorParallel& tensor, std::int64_t rows, std::uint32_t position,
                    const Find& find) const;

 private:
  Norm norm_;
  DType dtype_;
  std::int64_t width_;
};

}  // namespace terrace::layers
