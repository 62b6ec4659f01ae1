// The sequences that a rank computes in a step.
//
// Threads: values.
#pragma once

#include <cstdint>

#include <terrace/parallel/model/layer.h>

namespace terrace {

struct StepShape {
  BatchShape batch = {};
  std::uint32_t micro_batches = 1;
};

}  // namespace terrace
