// The shared parts of optimizers that need whole layers: a direction for every element, sums over a tensor, and the last step
//
//     p = weight · decay
//     weight = p − (rate · direction)
//
// with a rate and a decay for each tensor. Directions and sums are in scratch; weights, gradients and states have the recipe's
// formats, which elementwise.h converts.
//
// An update has two halves. The first one changes the states of this rank's chunks, and writes directions and sums of squares;
// the second one changes the weights, using the scratch of all ranks. Ranks that share a layer exchange scratch in between.
//
// Sums are fp64: each block of 4,096 elements of the layer's run has one partial sum per tensor in it, in eight lanes (to which
// the tensor's elements are added in turn). Lanes, and then a tensor's blocks, are folded in ascending order. So threads,
// chunks and ranks change no bit.
//
// Internal to optimizers/. Threads: one; it uses the pool. Errors: Error(ErrorKind::refused) for arrays that do not match.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/optimizers/check_update.h>
#include <terrace/optimizers/formats/each_isa.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/settings.h>

namespace terrace::rules {

namespace elementwise {
template <class A>
struct Tile;  // tile.h
}

// Allocates parts of a layer's scratch in the same order twice: without a base to count the bytes (the spans then have a size
// but no data), and with a base to use them.
class ScratchPlan {
 public:
  explicit ScratchPlan(std::byte* base = nullptr) : base_(base) {}
  template <class T>
  std::span<T> take(std::int64_t count) {
    auto* const at = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ = round_up(bytes_ + static_cast<std::uint64_t>(count) * sizeof(T), std::uint64_t{64});
    return {at, static_cast<std::size_t>(count)};
  }
  // Likewise takes fp64 sums that the ranks add up: each rank has the sums of its own chunks, and zeros.
  std::span<double> take_sums(std::int64_t count) {
    exchanges_.push_back({ScratchExchange::Way::sum, bytes_, static_cast<std::uint64_t>(count) * sizeof(double)});
    return take<double>(count);
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  std::vector<ScratchExchange>& exchanges() { return exchanges_; }

 private:
  std::byte* base_;
  std::uint64_t bytes_ = 0;
  std::vector<ScratchExchange> exchanges_;
};

// Number of sum blocks: of one tensor, or of all.
[[nodiscard]] std::int64_t blocks_of(const UpdateTensor& tensor);
[[nodiscard]] std::int64_t blocks_of(std::span<const UpdateTensor> tensors);
// Adds up a tensor's blocks, which are the first ones of `blocks`.
[[nodiscard]] double folded(std::span<const double> blocks, const UpdateTensor& tensor);

template <class A>
class LayerWork {
 public:
  // `states`: of each chunk, except the packed one. The layer's spans are copied. `directions` are in its scratch: with
  // `all_directions` those of the layer's whole run, else those of this rank's chunks. `half`: prepare or finish.
  LayerWork(const char* name, std::span<const ChunkKind> states, Isa isa, const UpdateStep& step, const LayerUpdate& layer,
            A* directions, bool all_directions, UpdateHalf half);
  LayerWork(const LayerWork&) = delete;
  LayerWork& operator=(const LayerWork&) = delete;

  [[nodiscard]] const std::vector<UpdateTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const UpdateStep& step() const { return step_; }
  [[nodiscard]] Isa isa() const { return isa_; }
  // Only with all_directions.
  [[nodiscard]] A* directions(std::size_t tensor) const { return directions_ + tensors_[tensor].first; }

  // The part of a tensor in one of this rank's chunks.
  struct Piece {
    std::size_t tensor = 0;
    std::size_t chunk = 0, part = 0;  // index of this rank's chunk, and of its part
    A* directions = nullptr;          // of the tile's elements
    std::int64_t element = 0;         // the tile's first element, counted in the piece
  };
  // Calls `each` for all elements, with their weights, gradients and states.
  using Each = std::function<void(const Piece& piece, const elementwise::Tile<A>& tile)>;
  void each_tile(ThreadPool& pool, const Each& each) const;
  [[nodiscard]] const std::vector<UpdatePart>& parts(std::size_t chunk) const { return parts_[chunk]; }
  [[nodiscard]] std::size_t chunks() const { return chunks_.size(); }
  [[nodiscard]] std::size_t tensor_of(std::size_t chunk, std::size_t part) const { return part_tensor_[chunk][part]; }
  // The chunk with the arrays and parts that this half uses.
  [[nodiscard]] const ChunkUpdate& chunk(std::size_t chunk) const { return chunks_[chunk]; }
  [[nodiscard]] const std::vector<Stored>& packed() const { return packed_; }
  [[nodiscard]] const LayerShare& share() const { return share_; }
  [[nodiscard]] std::int64_t chunk_elements() const { return chunk_elements_; }
  [[nodiscard]] std::int64_t first_block(std::size_t tensor) const { return first_block_[tensor]; }
  [[nodiscard]] A* directions_of(std::size_t chunk) const {
    return directions_ + (all_directions_ ? position(chunk) : static_cast<std::int64_t>(chunk)) * chunk_elements_;
  }

  // Both write the sums of this rank's chunks, and zeros elsewhere; folded() adds up a tensor's blocks of all ranks.
  void sum_weights(ThreadPool& pool, std::span<double> blocks) const;
  void sum_directions(ThreadPool& pool, std::span<double> blocks) const;
  [[nodiscard]] double folded(std::span<const double> blocks, std::size_t tensor) const;
  // Only with all_directions.
  [[nodiscard]] double direction_squares(ThreadPool& pool, std::size_t tensor) const;
  void sum_tensor(ThreadPool& pool, std::size_t tensor, std::span<double> blocks) const;  // its blocks, from blocks[0] on

  struct Descent {
    double rate = 0, decay = 1;
  };
  void descend(ThreadPool& pool, std::span<const Descent> of_tensors) const;

  // Copies the packed state's numbers from their chunks, and back. Before the first update they are zeros.
  void load_packed(std::span<A> numbers) const;
  void store_packed(std::span<const A> numbers) const;

 private:
  template <class Sum>
  void sum_blocks(ThreadPool& pool, std::span<double> blocks, const Sum& sum) const;
  [[nodiscard]] std::int64_t position(std::size_t chunk) const {  // in the layer's run
    return static_cast<std::int64_t>(chunk) * share_.ranks + share_.rank;
  }

  std::vector<ChunkUpdate> chunks_;
  std::vector<Stored> packed_;
  std::vector<UpdateTensor> tensors_;
  std::vector<std::vector<UpdatePart>> parts_;         // by chunk
  std::vector<std::vector<std::size_t>> part_tensor_;  // by chunk and part
  std::vector<std::int64_t> first_block_;              // by tensor
  LayerShare share_;
  Isa isa_;
  UpdateStep step_;
  A* directions_;
  bool all_directions_;
  std::int64_t chunk_elements_ = 0;
};

// The last step, for one element.
template <class A>
TERRACE_INLINE void descend_by(A rate, A decay, A& weight, A direction) {
  const A p = weight * decay;
  weight = p - rate * direction;
}

LayerShape shape_of(const LayerUpdate& layer);

// The scratch of an optimizer of whole layers, for the host's implementation and the GPU's. `Layer` has
//
//   static constexpr const char* kName;
//   static constexpr Packed kSecondMoment;    // if packed, it is the last of kStates
//   static constexpr bool kAllDirections;     // its second half reads all of a layer's directions
//   static constexpr bool kBitsOfDevice;      // LayerUnit::bits_of_device
//   static constexpr bool kHiddenOnly;        // LayerUnit::hidden_only
//   static constexpr std::array<Kind, N> kStates;
//   static bool needs_all(const UpdateTensor&);  // with kAllDirections: whether this tensor needs them
//   static std::vector<PackedRange> packed(const LayerShape&);  // if packed: the ranges of this rank
//   template <class A> struct Scratch;        // its scratch beside the directions; `packed` is the packed state
//   template <class A> static Scratch<A> scratch(const LayerShape&, ScratchPlan&);
template <class Layer>
std::int64_t directions_of(const LayerShape& shape) {
  return Layer::kAllDirections ? shape.run_elements : shape.run_elements / shape.share.ranks;
}

// The halves of a layer's update that this call runs; a half that it does not run is null. Refuses arguments that do not match.
template <class Layer, class A>
struct LayerHalves {
  typename Layer::template Scratch<A> scratch;
  std::shared_ptr<LayerWork<A>> prepare, finish;
};
template <class Layer, class A>
LayerHalves<Layer, A> halves_of(Isa isa, const UpdateStep& step, const LayerUpdate& layer) {
  const auto shape = shape_of(layer);
  ScratchPlan plan(layer.scratch);
  auto* const directions = plan.take<A>(directions_of<Layer>(shape)).data();
  LayerHalves<Layer, A> halves{.scratch = Layer::template scratch<A>(shape, plan), .prepare = nullptr, .finish = nullptr};
  const auto kept = Layer::kStates.size() - (Layer::kSecondMoment == Packed::none ? 0 : 1);
  const auto states = std::span<const ChunkKind>(Layer::kStates).first(kept);  // of each chunk, beside the packed one
  const auto work = [&](UpdateHalf half) {
    return std::make_shared<LayerWork<A>>(Layer::kName, states, isa, step, layer, directions, Layer::kAllDirections, half);
  };
  const auto other = Layer::kSecondMoment == Packed::own ? UpdateHalf::finish : UpdateHalf::prepare;
  const auto numbers = layer.half == other ? 0 : halves.scratch.packed.size();
  elementwise::check_layer(Layer::kName, shape, layer, plan.bytes(), numbers);
  if (layer.half != UpdateHalf::finish) halves.prepare = work(UpdateHalf::prepare);
  if (layer.half != UpdateHalf::prepare) halves.finish = work(UpdateHalf::finish);
  return halves;
}

// The host's implementation, in fp64 or fp32 according to the weights. `Own` is a Layer, and has
//
//   template <class A> void prepare(Stream&, const std::shared_ptr<LayerWork<A>>&, const Scratch<A>&) const;
//   template <class A> void finish(Stream&, const std::shared_ptr<LayerWork<A>>&, const Scratch<A>&) const;
template <class Own>
class LayerOptimizer : public Optimizer {
 public:
  LayerOptimizer(const OptimizerSettings& settings, Isa isa) : s_(settings), isa_(isa) {}
  [[nodiscard]] std::string name() const final { return Own::kName; }
  [[nodiscard]] std::vector<ChunkKind> states() const final { return {Own::kStates.begin(), Own::kStates.end()}; }
  [[nodiscard]] std::optional<LayerUnit> layer_unit() const final {
    return LayerUnit{.needs =
                         [](const LayerShape& shape) {
                           return shape.arithmetic == DType::fp64 ? needs<double>(shape) : needs<float>(shape);
                         },
                     .second_moment = Own::kSecondMoment,
                     .bits_of_device = Own::kBitsOfDevice,
                     .hidden_only = Own::kHiddenOnly};
  }
  void update(ThreadPool&, const UpdateStep&, const ChunkUpdate&) const final {
    refuse(Own::kName, "it updates whole layers, but was given a chunk");
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
    plan.take<A>(directions_of<Own>(shape));
    const auto scratch = Own::template scratch<A>(shape, plan);
    if (Own::kAllDirections) gather_directions(plan.exchanges(), shape, sizeof(A));
    if (shape.share.ranks == 1) plan.exchanges().clear();
    LayerNeeds needs{.scratch_bytes = plan.bytes(), .packed_numbers = scratch.packed.size(), .packed = {}, .exchanges = {}};
    if constexpr (Own::kSecondMoment != Packed::none) needs.packed = Own::packed(shape);
    needs.exchanges = std::move(plan.exchanges());
    return needs;
  }
  // Adds a gather for each group of chunks, one of each rank, that has a part of a tensor which needs all directions.
  static void gather_directions(std::vector<ScratchExchange>& exchanges, const LayerShape& shape, std::uint64_t number_bytes) {
    const auto group = shape.share.ranks * shape.chunk_elements;
    for (std::int64_t first = 0; shape.share.ranks > 1 && first < shape.run_elements; first += group) {
      const auto wanted = [&](const UpdateTensor& t) {
        return t.first < first + group && t.first + t.elements() > first && Own::needs_all(t);
      };
      if (std::ranges::any_of(shape.tensors, wanted))
        exchanges.push_back({ScratchExchange::Way::gather, static_cast<std::uint64_t>(first) * number_bytes,
                             static_cast<std::uint64_t>(group) * number_bytes});
    }
  }
  template <class A>
  void enqueue_as(Stream& stream, const UpdateStep& step, const LayerUpdate& layer) const {
    const auto [scratch, first, second] = halves_of<Own, A>(isa_, step, layer);
    const auto& own = static_cast<const Own&>(*this);
    if (first) own.template prepare<A>(stream, first, scratch);
    if (second) own.template finish<A>(stream, second, scratch);
  }
};

}  // namespace terrace::rules
