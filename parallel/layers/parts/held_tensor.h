// A tensor of a call's products: in the scratch of its phase if only one phase uses it, else a working tensor.
//
// Owner: a value of one description of a call (call_steps.h). Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <terrace/parallel/layers/parts/views.h>
#include <terrace/parallel/model/call_steps.h>

namespace terrace::layers {

class HeldTensor {
 public:
  HeldTensor(CallSteps& steps, const std::string& name, DType dtype, Shape shape, bool several_phases)
      : dtype_(dtype), shape_(shape) {
    if (several_phases && shape.elements() != 0) room_ = steps.room({name, dtype, shape});
  }
  HeldTensor(DType dtype, Shape shape, std::uint32_t room) : dtype_(dtype), shape_(shape), room_(room) {}
  [[nodiscard]] TensorView view(const LayerTensors& t, ScratchArena& arena) const {
    return room_ ? CallSteps::view(t, *room_, shape_) : arena.take(dtype_, shape_);
  }
  [[nodiscard]] std::uint64_t scratch_bytes() const { return room_ ? 0 : scratch_of({{"", dtype_, shape_}}); }
  void use(Phase& phase, Access access) const {
    if (room_) phase.work.push_back({*room_, access});
  }

 private:
  DType dtype_;
  Shape shape_;
  std::optional<std::uint32_t> room_;
};

}  // namespace terrace::layers
