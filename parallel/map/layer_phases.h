// The calls of all layers on one rank, each described once: which phase of them an action runs, and which runs of weights and
// gradients each phase uses.
//
// Owner:   a StepMap. The model must outlive it. Pure. Threads: const after construction.
// Errors:  std::logic_error for a phase that names a parameter or a tile that its layer does not have.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <terrace/memory/layout.h>
#include <terrace/parallel/map/parameter_layout.h>
#include <terrace/parallel/model/layer.h>
#include <terrace/parallel/program/program.h>

namespace terrace::mapping {

class LayerPhases {
 public:
  LayerPhases(const Model& model, const BatchShape& shape, const ParameterLayout& layout);

  [[nodiscard]] const LayerFacts& facts(std::uint32_t layer) const { return facts_[layer]; }
  // The description of a layer's call, and the phase of it that a layer action runs.
  [[nodiscard]] const CallSteps& steps(std::uint32_t layer, LayerCall call) const {
    return steps_[layer][static_cast<std::size_t>(call)];
  }
  [[nodiscard]] const Phase& phase(const Action& action) const { return at(action).phase; }
  // The numbers of the phases that an action of this kind runs, in order; for a norm, the numbers of the layout's runs. A
  // recomputation ends with the last phase that saves a tensor.
  [[nodiscard]] const std::vector<std::uint32_t>& numbers(Op op, std::uint32_t layer) const {
    return numbers_[layer][static_cast<std::size_t>(op)];
  }
  [[nodiscard]] bool is_first(const Action& a) const { return numbers(a.op, a.layer).front() == a.phase; }
  [[nodiscard]] bool is_last(const Action& a) const { return numbers(a.op, a.layer).back() == a.phase; }
  // The tensors of the layer's work() that no later phase of the action uses.
  [[nodiscard]] std::vector<std::uint32_t> ended_work(const Action& action) const;
  // True if the action exchanges instead of computing.
  [[nodiscard]] bool exchanges(const Action& action) const { return any_exchange_ && at(action).phase.exchange.has_value(); }
  // True if a run may leave out the action (Phase::unless_zero).
  [[nodiscard]] bool is_optional(const Action& action) const {
    return action.op == Op::decode && at(action).phase.unless_zero.has_value();
  }
  // The value for LayerContext::phase: kAllPhases if the call has only one phase.
  [[nodiscard]] std::uint32_t number_for_layer(const Action& action) const;
  [[nodiscard]] double flops(const Action& action) const;
  [[nodiscard]] double float8_flops(const Action& action) const;  // of these: with operands of 8 bits
  [[nodiscard]] double float8_bytes(const Action& action) const;  // Phase::float8_bytes
  // The distinct scratch sizes that a layer's phases need, and the index in them of an action's size.
  [[nodiscard]] const std::vector<std::uint64_t>& scratch_bytes(std::uint32_t layer) const { return scratch_bytes_[layer]; }
  [[nodiscard]] std::uint32_t scratch(const Action& action) const { return at(action).scratch; }

  // A run in the layout of the layer `home`, which declares the parameters.
  struct Runs {
    std::uint32_t home = 0;
    memory::LayoutRun run;
    bool first = true;  // no earlier phase of the call uses it
  };
  [[nodiscard]] const std::vector<Runs>& weights(const Action& action) const { return at(action).weights; }
  [[nodiscard]] const std::vector<Runs>& gradients(const Action& action) const { return at(action).gradients; }

 private:
  [[nodiscard]] double part_of_half(const Action& action) const;
  struct OfPhase {
    Phase phase;
    std::vector<Runs> weights, gradients;
    std::uint32_t scratch = 0;
    bool idle = false;  // it would compute gradients of frozen parameters, and nothing else
  };
  using OfCall = std::vector<OfPhase>;

  void add_call(const Model& model, const BatchShape& shape, const ParameterLayout& layout, std::uint32_t layer,
                LayerCall call);
  std::uint32_t scratch_of(std::uint32_t layer, std::uint64_t bytes);
  [[nodiscard]] static std::vector<std::uint32_t> numbers_of(Op op, const Layer& layer,
                                                             const std::array<OfCall, kLayerCalls>& calls);
  [[nodiscard]] const OfPhase& at(const Action& action) const;
  [[nodiscard]] static std::vector<Runs> runs_of(const ParameterLayout& layout, std::uint32_t layer,
                                                 const std::vector<PhaseParam>& params, std::vector<Runs>& used);

  std::vector<LayerFacts> facts_;                                      // [layer]
  std::vector<std::array<CallSteps, kLayerCalls>> steps_;              // [layer]
  std::vector<std::array<OfCall, kLayerCalls>> calls_;                 // [layer]
  bool any_exchange_ = false;                                          // exchanges() reads it for every action of a program
  std::vector<std::vector<std::uint64_t>> scratch_bytes_;              // [layer]
  std::vector<std::array<std::vector<std::uint32_t>, kOps>> numbers_;  // [layer][op]
};

// The call that an action of a layer makes.
LayerCall call_of(Op op);
// The halves of the backward that an action computes; both halves for other actions.
Half halves_of(Op op);

}  // namespace terrace::mapping
