// What a layer's call does, described once: its phases in order, what each of them computes, and the working tensors between
// them. The plan reads the phases and the tensors, and the engine runs the same steps: nothing about a call is said twice.
//
// Owner:   a value. Its steps refer to the layer that described them, which must outlive it.
// Threads: const after it has been described; run() is called from the rank thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/math/tensor.h>
#include <terrace/parallel/model/layer_context.h>
#include <terrace/parallel/model/phase.h>

namespace terrace {

class CallSteps {
 public:
  using Run = std::function<void(LayerContext&, const LayerTensors&)>;
  struct Step {
    Phase phase;
    Run run;  // empty for an exchange, which the engine carries out
  };

  // A working tensor for several phases, as large as the greatest reserve() for it.
  std::uint32_t room(TensorSpec tensor);
  std::uint32_t room(std::string name, DType dtype) { return room({std::move(name), dtype, {0}}); }
  void reserve(std::uint32_t room, std::int64_t elements);
  // The first elements of a room, or of a saved or carried tensor, with a shape.
  static TensorView view(const LayerTensors& t, PhaseTensor tensor, Shape shape);

  // A call that is not divided has one phase, which uses everything that the call may use.
  void compute(Run run, std::uint64_t scratch_bytes = 0);
  void compute(Phase phase, Run run);
  // Reserves room for what is sent and received, unless an earlier phase tells these sizes.
  void exchange(Half half, PhaseExchange exchange);
  // The same before all other steps.
  void exchange_first(Half half, PhaseExchange exchange);
  // The steps that compute find x, y, dx or dy in this room, and an exchange moves it from there or to there.
  void keep_in(PhaseTensor::Of tensor, std::uint32_t room) { rooms_of_[static_cast<std::size_t>(tensor)] = room; }
  [[nodiscard]] std::optional<std::uint32_t> room_of(PhaseTensor::Of tensor) const {
    return rooms_of_[static_cast<std::size_t>(tensor)];
  }
  // The working tensors that a phase reads, and those that it writes.
  static std::vector<PhaseWork> uses(const std::vector<std::uint32_t>& read, const std::vector<std::uint32_t>& written);
  // Runs before the phase, or the phases, of each run().
  void before(Run check) { check_ = std::move(check); }

  [[nodiscard]] const std::vector<TensorSpec>& work() const { return rooms_; }
  [[nodiscard]] std::vector<Phase> phases() const;    // empty for a call that the layer does not have
  [[nodiscard]] std::uint64_t scratch_bytes() const;  // the largest need of any phase
  [[nodiscard]] std::vector<Step>& steps() { return steps_; }
  // Runs the phase ctx.phase, or all of them with kAllPhases, if it computes one of ctx.half.
  void run(LayerContext& ctx, const LayerTensors& t) const;

 private:
  Step exchange_step(Half half, PhaseExchange exchange);

  std::vector<TensorSpec> rooms_;
  std::array<std::optional<std::uint32_t>, 7> rooms_of_;  // [PhaseTensor::Of]
  std::vector<Step> steps_;
  Run check_;
};

}  // namespace terrace
