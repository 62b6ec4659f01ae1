// Counts the activations that are alive while a program runs, as its computations begin and end. An activation of a stage (of
// the whole model without a pipeline) for a micro-batch lives from the start of its forward to the end of its backward's last
// half, in whichever tier its bytes are. The orders' formulas and their simulator count in the same way.
//
// Owner:   an executor. Threads: begin() before a program; start() and end() from its computations, one at a time.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/map/step_map.h>

namespace terrace::walk {

struct PeakLive {
  std::uint32_t activations = 0;  // one for each stage and micro-batch
  std::uint64_t bytes = 0;        // inputs of their layers, and the tensors that their forwards saved
};

class LiveActivations {
 public:
  explicit LiveActivations(const StepMap& map);
  void begin();
  void start(const Action& action);
  void end(const Action& action);
  [[nodiscard]] PeakLive peak() const { return peak_; }

 private:
  [[nodiscard]] std::size_t place(std::uint32_t row, std::uint32_t micro_batch) const {
    return std::size_t{row} * map_.micro_batches() + micro_batch;
  }

  const StepMap& map_;
  std::vector<std::uint32_t> layers_of_;    // [stage]: its layers on this rank
  std::vector<std::uint32_t> left_;         // [stage][micro-batch]: layers whose backward has not ended; 0: not alive
  std::vector<std::uint64_t> layer_bytes_;  // [layer][micro-batch]: bytes alive
  PeakLive now_, peak_;
};

}  // namespace terrace::walk
