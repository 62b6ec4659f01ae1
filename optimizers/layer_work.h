// What optimizers share that look at whole layers: a direction for every element, sums over a tensor, and the last step
//
//     p = weight · decay
//     weight = p − (rate · direction)
//
// with a rate and a decay for each tensor. Directions lie in scratch, in the arithmetic's type, as the layer's run does;
// weights, gradients and states are kept as the recipe says, and elementwise.h brings them.
//
// Sums are fp64: partial sums over fixed blocks of 4,096 elements of a tensor, in eight lanes (element e adds to lane e mod 8),
// lanes and blocks folded in ascending order. So neither threads nor chunks change a bit.
//
// Internal to optimizers/. Threads: one; it uses the pool. Errors: Error(Exit::usage) for arrays that do not go together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <terrace/core/units.h>
#include <terrace/optimizers/elementwise.h>

namespace terrace {

// Hands out places in a layer's scratch, the same ones when it is counted (without a base; the places have a size and no bytes)
// and when it is used.
class ScratchPlan {
 public:
  explicit ScratchPlan(std::byte* base = nullptr) : base_(base) {}
  template <class T>
  std::span<T> take(std::int64_t count) {
    auto* const at = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ = round_up(bytes_ + static_cast<std::uint64_t>(count) * sizeof(T), std::uint64_t{64});
    return {at, static_cast<std::size_t>(count)};
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::uint64_t bytes_ = 0;
};

template <class A>
class LayerWork {
 public:
  // `states`: of each chunk, beside the packed one. The layer's spans are copied. `directions` lies in its scratch.
  LayerWork(const char* name, std::size_t states, Isa isa, const UpdateStep& step, const LayerUpdate& layer, A* directions);
  LayerWork(const LayerWork&) = delete;
  LayerWork& operator=(const LayerWork&) = delete;

  [[nodiscard]] const std::vector<UpdateTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const UpdateStep& step() const { return step_; }
  [[nodiscard]] Isa isa() const { return isa_; }
  [[nodiscard]] A* directions(std::size_t tensor) const { return directions_ + tensors_[tensor].first; }

  // Every element with its weight, gradient and states; `element` is the tile's first one, of the tensor.
  using Each = std::function<void(std::size_t tensor, std::int64_t element, const elementwise::Tile<A>& tile)>;
  void each_tile(ThreadPool& pool, const Each& each) const;

  [[nodiscard]] double weight_squares(ThreadPool& pool, std::size_t tensor) const;
  [[nodiscard]] double direction_squares(ThreadPool& pool, std::size_t tensor) const;

  struct Descent {
    double rate = 0, decay = 1;
  };
  void descend(ThreadPool& pool, std::span<const Descent> of_tensors) const;

  // The packed state's numbers out of their chunks, and back. There are none before the first update: zeros.
  void load_packed(std::span<A> numbers) const;
  void store_packed(std::span<const A> numbers) const;

 private:
  std::vector<ChunkUpdate> chunks_;
  std::vector<Stored> packed_;
  std::vector<UpdateTensor> tensors_;
  std::vector<std::vector<UpdatePart>> parts_;         // by chunk
  std::vector<std::vector<std::size_t>> part_tensor_;  // by chunk and part
  Isa isa_;
  UpdateStep step_;
  A* directions_;
  std::int64_t chunk_elements_ = 0;
};

// The sum of the squares of `count` contiguous numbers, as above.
template <class A>
double sum_of_squares(ThreadPool& pool, const A* numbers, std::int64_t count);

LayerShape shape_of(const LayerUpdate& layer);

// An optimizer over LayerWork, in the arithmetic that the weights ask for. `Own` has
//
//   static constexpr const char* kName;
//   static constexpr bool kPacks;             // its second moment is packed; it is the last of its states
//   template <class A> struct Scratch;        // what it computes in beside the directions; `packed`: the packed state's
//   numbers template <class A> static Scratch<A> scratch(const LayerShape&, ScratchPlan&); template <class A> void
//   enqueue_in(Stream&, const std::shared_ptr<LayerWork<A>>&, const Scratch<A>&) const;
template <class Own>
class LayerOptimizer : public Optimizer {
 public:
  LayerOptimizer(const OptimizerSettings& settings, Isa isa) : s_(settings), isa_(isa) {}
  [[nodiscard]] std::string name() const final { return Own::kName; }
  [[nodiscard]] std::optional<LayerUnit> layer_unit() const final {
    return LayerUnit{.needs =
                         [](const LayerShape& shape) {
                           return shape.arithmetic == DType::fp64 ? needs<double>(shape) : needs<float>(shape);
                         },
                     .packs_second_moment = Own::kPacks};
  }
  void update(ThreadPool&, const UpdateStep&, const ChunkUpdate&) const final {
    refuse(Own::kName, "it sees whole layers, and was given a chunk");
  }
  void enqueue_layer(Stream& stream, const UpdateStep& step, const LayerUpdate& layer) const final {
    if (layer.chunks.empty()) return;
    if (layer.chunks.front().parameter.format == Format::fp64)
      enqueue_as<double>(stream, step, layer);
    else
      enqueue_as<float>(stream, step, layer);
  }

 protected:
  const OptimizerSettings s_;
  Isa isa_;

 private:
  template <class A>
  static LayerNeeds needs(const LayerShape& shape) {
    ScratchPlan plan;
    plan.take<A>(shape.run_elements);
    const auto scratch = Own::template scratch<A>(shape, plan);
    return {.scratch_bytes = plan.bytes(), .packed_numbers = scratch.packed.size()};
  }
  template <class A>
  void enqueue_as(Stream& stream, const UpdateStep& step, const LayerUpdate& layer) const {
    const auto shape = shape_of(layer);
    ScratchPlan plan(layer.scratch);
    auto* const directions = plan.take<A>(shape.run_elements).data();
    const auto scratch = Own::template scratch<A>(shape, plan);
    const auto work =
        std::make_shared<LayerWork<A>>(Own::kName, states().size() - (Own::kPacks ? 1 : 0), isa_, step, layer, directions);
    static_cast<const Own&>(*this).template enqueue_in<A>(stream, work, scratch);
  }
};

}  // namespace terrace
