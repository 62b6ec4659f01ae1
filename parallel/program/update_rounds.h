// The micro-batches of a step that each update of a layer covers.
//
// In an order in two directions, each replica of a stage computes every other micro-batch, so each has its own first and last
// gradient of an update.
//
// Threads: values.
#pragma once

#include <cstdint>

namespace terrace::orders {

struct UpdateRounds {
  std::uint32_t micro_batches = 1;  // of a step
  std::uint32_t every = 1;          // micro-batches that an update covers
  std::uint32_t replicas = 1;

  [[nodiscard]] std::uint32_t updates() const { return micro_batches / every; }  // of a layer, in a step
  // True if the micro-batch's gradient is the first, or the last, of its update on the rank that computes it.
  [[nodiscard]] bool begins_gradient(std::uint32_t micro_batch) const { return micro_batch % every < replicas; }
  [[nodiscard]] bool ends_gradient(std::uint32_t micro_batch) const { return micro_batch % every + replicas >= every; }
};

}  // namespace terrace::orders
