// What updates the weights: pure arithmetic on the bytes of one chunk. The arithmetic is written down in docs/optimizers.md, to
// the order and rounding of every operation, so that every implementation gives the same bits.
//
// Owner:   main owns the optimizer; bytes belong to the caller's leases.
// Threads: update() from one thread; it uses the pool. No split into threads, chunks or parts changes a bit.
// Errors:  Error(Exit::usage) for an unknown name, settings out of range, or arrays that do not match; from enqueue() in the
//          stream's events.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/core/device.h>
#include <terrace/core/thread_pool.h>
#include <terrace/memory/chunk.h>
#include <terrace/optimizers/format.h>
#include <terrace/optimizers/isa.h>

namespace terrace {

// Of all optimizers; each one uses, and checks, what it needs.
struct OptimizerSettings {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double momentum = 0.9;
  bool nesterov = false;
};

// One update's scalars.
struct UpdateStep {
  std::uint64_t step = 1;  // counts from 1: the bias correction's exponent
  double learning_rate = 0;
  double gradient_scale = 1;  // multiplies every gradient: clip factor, unscaling
  std::uint64_t seed = 0;     // of stochastic rounding
  bool first = false;         // states hold no content yet and are taken as zero
};

// One chunk's array of one kind.
struct Stored {
  std::byte* data = nullptr;
  Format format = Format::none;
  std::int64_t elements = 0;
};

// The part of one tensor that the chunk holds; what is between parts is padding.
struct UpdatePart {
  std::int64_t first = 0, count = 0;  // elements of the chunk
  double rate = 1, decay = 1;         // multiply the learning rate and the weight decay; 0: exempt
  // Names an element's random numbers, so that they do not depend on where it lies: the tensor, and its element `first`.
  std::uint64_t stream = 0, tensor_element = 0;
};

// One chunk. The weight is
//   parameter fp32 or fp64, no master:  the parameter
//   parameter bf16, master fp32:        the master; every update writes the parameter anew as its copy
//   parameter bf16, master low16:       the fp32 number that the two are together
//   parameter bf16, no master:          the parameter, rounded stochastically
struct ChunkUpdate {
  Stored parameter, master, gradient;
  std::array<Stored, 2> states = {};       // in the order of Optimizer::states()
  std::span<const UpdatePart> parts = {};  // in ascending order, without overlap
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::vector<Kind> states() const = 0;  // which state chunks it needs beside the weight
  virtual void update(ThreadPool& pool, const UpdateStep& step, const ChunkUpdate& chunk) const = 0;
  // The same update in the order of a stream, by whatever computes there: the host, unless an optimizer knows the stream's
  // device. Bytes and optimizer must live until the stream has passed; the parts are copied.
  virtual void enqueue(Stream& stream, const UpdateStep& step, const ChunkUpdate& chunk) const;
};

struct OptimizerName {
  std::string_view name, help;
};
std::span<const OptimizerName> optimizers();
// `isa`: which loops it runs; they give the same bits.
std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const OptimizerSettings& settings, Isa isa = best_isa());
// One that computes what is enqueued on the device's streams on the device. Errors: Error(Exit::hardware_missing) where the
// module that can is absent.
std::unique_ptr<Optimizer> make_optimizer_for(const Device& device, std::string_view name, const OptimizerSettings& settings);

}  // namespace terrace
