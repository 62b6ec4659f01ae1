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
#include <functional>
#include <memory>
#include <optional>
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
  double gradient_scale = 1;          // multiplies the step's
  // Names an element's random numbers, so that they do not depend on where it lies: the tensor, and its element `first`.
  std::uint64_t stream = 0, tensor_element = 0;
};

// One chunk. The weight is
//   parameter fp32 or fp64, no master:  the parameter
//   parameter bf16 or fp16, master fp32: the master; every update writes the parameter anew as its copy
//   parameter bf16, master low16:       the fp32 number that the two are together
//   parameter bf16, master low8:        likewise, and its 24 bits are rounded stochastically
//   parameter bf16, no master:          the parameter, rounded stochastically
struct ChunkUpdate {
  Stored parameter, master, gradient;
  std::array<Stored, 2> states = {};       // in the order of Optimizer::states()
  std::span<const UpdatePart> parts = {};  // in ascending order, without overlap
};

// A tensor of a layer, as an optimizer sees it that looks at more than one element.
struct UpdateTensor {
  std::int64_t first = 0;              // of its elements in the layer's run, and so it goes on
  std::int64_t rows = 1, columns = 0;  // more than two dimensions: the leading ones are rows; a vector is one row
  bool hidden = false;                 // of a layer between the first and the last, which embed and read out
  double rate = 1, decay = 1;          // as UpdatePart's
  double gradient_scale = 1;
  std::uint64_t stream = 0;
  [[nodiscard]] std::int64_t elements() const { return rows * columns; }
  [[nodiscard]] bool is_matrix() const { return rows > 1 && columns > 1; }
};

// Between ranks that share a layer out: chunk i of its run is here where i % ranks == rank.
struct LayerShare {
  std::int64_t ranks = 1, rank = 0;
};

// What the ranks exchange of a layer's scratch, in place, between the halves of its update.
struct ScratchExchange {
  enum class Way : std::uint8_t {
    sum,     // fp64 numbers, each of them one rank's, and zero on all others
    gather,  // equal parts, in the order of ranks
  };
  Way way{};
  std::uint64_t offset = 0, bytes = 0;  // of the whole
  friend bool operator==(const ScratchExchange&, const ScratchExchange&) = default;
};

// What an optimizer that sees whole layers wants beside the layer's chunks.
struct LayerNeeds {
  std::uint64_t scratch_bytes = 0;              // while it updates the layer
  std::uint64_t packed_numbers = 0;             // of its packed state (Format::packed), on each rank
  std::vector<ScratchExchange> exchanges = {};  // between ranks; all ranks' are the same
};
struct LayerShape {
  DType arithmetic = DType::fp32;
  std::int64_t run_elements = 0;  // of all its chunks, on all ranks
  std::vector<UpdateTensor> tensors = {};
  LayerShare share = {};
  std::int64_t chunk_elements = 0;  // where ranks share; whole blocks of 4,096
};
// A second moment that is no number an element; the optimizer says how many there are.
enum class Packed : std::uint8_t {
  none,
  own,    // of what is here; its first half moves it
  whole,  // of the layer, the same on all ranks that share it; its second half moves it
};
struct LayerUnit {
  std::function<LayerNeeds(const LayerShape&)> needs;
  Packed second_moment = Packed::none;
  bool bits_of_device = false;  // it multiplies matrices: a GPU's bits are not the host's
};

// Alone, a rank updates a layer at once. Ranks that share it do so in halves, with the exchanges of their scratch between them.
enum class UpdateHalf : std::uint8_t {
  both,
  prepare,  // reads weights and gradients, moves states other than a Packed::whole one, writes scratch
  finish,   // reads scratch, moves a Packed::whole state, writes weights
};

// A layer: the chunks of its run that are here, in order and of the same number of elements. Their parts are not looked at,
// `tensors` is; a packed state's numbers are spread over its chunks, `packed[c].elements` in each. Arrays that a half does not
// use have no data.
struct LayerUpdate {
  std::span<const ChunkUpdate> chunks = {};
  std::span<const Stored> packed = {};
  std::span<const UpdateTensor> tensors = {};
  std::byte* scratch = nullptr;  // LayerNeeds::scratch_bytes, whole pages
  LayerShare share = {};
  UpdateHalf half = UpdateHalf::both;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::vector<Kind> states() const = 0;  // which state chunks it needs beside the weight
  // Empty: chunks are updated one by one, in any order, by update() and enqueue(). Else a layer at once, by enqueue_layer().
  [[nodiscard]] virtual std::optional<LayerUnit> layer_unit() const { return {}; }
  virtual void update(ThreadPool& pool, const UpdateStep& step, const ChunkUpdate& chunk) const = 0;
  // In the order of a stream, as enqueue(). Bytes and optimizer must live until it has passed; the spans' contents are copied.
  virtual void enqueue_layer(Stream& stream, const UpdateStep& step, const LayerUpdate& layer) const;
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
