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
#include <span>
#include <vector>

#include <terrace/core/units.h>
#include <terrace/optimizers/elementwise.h>

namespace terrace {

// Hands out places in a layer's scratch, the same ones when it is counted and when it is used.
class ScratchPlan {
 public:
  template <class T>
  std::uint64_t take(std::int64_t count) {
    const auto at = bytes_;
    bytes_ = round_up(bytes_ + static_cast<std::uint64_t>(count) * sizeof(T), std::uint64_t{64});
    return at;
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
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

// An optimizer over LayerWork: enqueue_in<A>() of `Own` in the arithmetic that the weights ask for.
template <class Own>
class LayerOptimizer : public Optimizer {
 public:
  LayerOptimizer(const OptimizerSettings& settings, Isa isa) : s_(settings), isa_(isa) {}
  [[nodiscard]] std::string name() const final { return Own::kName; }
  [[nodiscard]] std::optional<LayerUnit> layer_unit() const final {
    return LayerUnit{.needs =
                         [](const LayerShape& shape) {
                           return shape.arithmetic == DType::fp64 ? Own::template places<double>(shape).needs
                                                                  : Own::template places<float>(shape).needs;
                         },
                     .packs_second_moment = Own::kPacks};
  }
  void update(ThreadPool&, const UpdateStep&, const ChunkUpdate&) const final {
    refuse(Own::kName, "it sees whole layers, and was given a chunk");
  }
  void enqueue_layer(Stream& stream, const UpdateStep& step, const LayerUpdate& layer) const final {
    if (layer.chunks.empty()) return;
    const auto& own = static_cast<const Own&>(*this);
    if (layer.chunks.front().parameter.format == Format::fp64)
      own.template enqueue_in<double>(stream, step, layer);
    else
      own.template enqueue_in<float>(stream, step, layer);
  }

 protected:
  const OptimizerSettings s_;
  Isa isa_;
};

LayerShape shape_of(const LayerUpdate& layer);

}  // namespace terrace
