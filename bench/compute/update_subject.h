// The subject of the optimizer bench: the arrays of a recipe, and their update.
//
// Owner: the caller; pool, memory and optimizer must outlive it. Threads: one; it uses the pool. Errors: those of the
//        optimizer.
#pragma once

#include <cstdint>
#include <memory>

#include <terrace/core/device/memory_resource.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/recipe.h>

namespace terrace::bench {

class UpdateSubject {
 public:
  virtual ~UpdateSubject() = default;
  [[nodiscard]] virtual std::int64_t elements() const = 0;
  [[nodiscard]] virtual double bytes_per_element() const = 0;  // that an update reads and writes
  virtual void update(const UpdateStep& step) const = 0;
};

// A chunk with that many elements; for an optimizer that sees whole layers, a layer of square matrices, with at most 8 Mi
// elements. Its states are already filled.
std::unique_ptr<UpdateSubject> make_update_subject(MemoryResource& memory, ThreadPool& pool, const Optimizer& optimizer,
                                                   rules::Recipe recipe, std::int64_t elements);

}  // namespace terrace::bench
