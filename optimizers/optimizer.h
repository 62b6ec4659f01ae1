// What updates the weights: pure arithmetic on spans of one chunk. The arithmetic is written down in docs/optimizers.md, to the
// order and rounding of every operation, so that every implementation gives the same bits.
//
// Owner:   main owns the optimizer; spans belong to the caller's leases.
// Threads: update() from one thread; it uses the pool. Elementwise, so no split changes a bit.
// Errors:  Error(Exit::usage) for settings out of range or spans that do not match.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <terrace/core/tensor.h>
#include <terrace/core/thread_pool.h>
#include <terrace/memory/chunk.h>

namespace terrace {

struct AdamWSettings {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};

// One update's scalars.
struct UpdateStep {
  std::uint64_t step = 1;  // counts from 1: the bias correction's exponent
  double learning_rate = 0;
  double gradient_scale = 1;  // multiplies every gradient: clip factor, unscaling
  bool first = false;         // states hold no content yet and are taken as zero
};

// A span of elements that share their decay. 1-D views of equal length.
//   weight:  fp32, fp64: the master itself. With `compute` set: the fp32 master.
//   compute: empty, or the bf16 weight that is written from the new master (round to nearest even).
struct UpdateSpans {
  TensorView weight, compute, gradient;
  TensorView first_moment, second_moment;
  bool decay = true;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::vector<Kind> states() const = 0;  // which state chunks it needs beside the weight
  virtual void update(ThreadPool& pool, const UpdateStep& step, const UpdateSpans& spans) const = 0;
};

std::unique_ptr<Optimizer> make_adamw(const AdamWSettings& settings);

}  // namespace terrace
