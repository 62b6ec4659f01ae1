// A tensor that a product on a grid of tensor ranks reads or writes: where it lies depends on whether it is exchanged.
//
// Threads: values.
#pragma once

#include <cstdint>

#include <terrace/parallel/layers/parts/views.h>
#include <terrace/parallel/model/layer_context.h>
#include <terrace/parallel/model/phase.h>

namespace terrace::layers {

// A tensor of a call that a phase reads or writes.
struct GridTensor {
  enum class In : std::uint8_t { work, saved, carried } in = In::work;
  std::uint32_t number = 0;

  [[nodiscard]] TensorView view(const LayerTensors& t, Shape shape) const {
    return part((in == In::work ? t.work : in == In::saved ? t.saved : t.carried)[number], 0, shape);
  }
  // Adds this tensor to those that the phase uses. Saved tensors have one access for all of them, `of_all`, and so have carried
  // ones.
  void use(Phase& phase, Access access, Access of_all) const {
    if (in == In::work) phase.work.push_back({number, access});
    if (in == In::saved) phase.saved = of_all;
    if (in == In::carried) phase.carried = of_all;
  }
};

}  // namespace terrace::layers
