// Optimizers: pure arithmetic on the bytes of one chunk. docs/internals/optimizers.md specifies the arithmetic, including the
// order and rounding of every operation, so that every implementation gives the same bits.
//
// Owner:   main owns the optimizer; bytes belong to the caller's leases.
// Threads: update() from one thread; it uses the pool. No split into threads, chunks or parts changes a bit.
// Errors:  Error(ErrorKind::refused) for an unknown name, settings out of range, or arrays that do not match; from enqueue() in
//          the stream's events.
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

#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/memory/chunk.h>
#include <terrace/optimizers/formats/format.h>
#include <terrace/optimizers/formats/isa.h>

namespace terrace {

// The settings of all optimizers; each one uses and checks those that it needs.
struct OptimizerSettings {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double momentum = 0.9;
  bool nesterov = false;
};

// One update's scalars.
struct UpdateStep {
  static constexpr std::uint64_t kNone = 0;  // value of `step` for which an engine updates nothing
  std::uint64_t step = 1;                    // counts from 1: the bias correction's exponent
  double learning_rate = 0;
  double gradient_scale = 1;  // multiplies every gradient: clip factor, unscaling
  std::uint64_t seed = 0;     // of stochastic rounding
  bool first = false;         // states have no content yet and count as zero
};

// One chunk's array of one kind.
struct Stored {
  std::byte* data = nullptr;
  rules::Format format = rules::Format::none;
  std::int64_t elements = 0;
};

// The part of one tensor that the chunk holds; between parts is padding.
struct UpdatePart {
  std::int64_t first = 0, count = 0;  // elements of the chunk
  double rate = 1, decay = 1;         // multiply the learning rate and the weight decay; 0: exempt
  double gradient_scale = 1;          // multiplies that of the step
  // Key of the random numbers, so that they do not depend on the layout: the tensor, and the index of element `first` in it.
  std::uint64_t stream = 0, tensor_element = 0;
};

// One chunk. The weight is
//   parameter fp32 or fp64, no master:  the parameter
//   parameter bf16 or fp16, master fp32: the master; every update rewrites the parameter as its copy
//   parameter bf16, master low16:       the fp32 number that the two form together
//   parameter bf16, master low8:        the 24 bits that the two form together, rounded stochastically
//   parameter bf16, no master:          the parameter, rounded stochastically
struct ChunkUpdate {
  Stored parameter, master, gradient;
  std::array<Stored, 2> states = {};       // in the order of Optimizer::states()
  std::span<const UpdatePart> parts = {};  // in ascending order, without overlap
  // Places that receive weights and states as they were before the update; null: they are not kept. Only on the host.
  struct Previous {
    std::byte *parameter = nullptr, *master = nullptr;
    std::array<std::byte*, 2> states = {};
  } previous = {};
};

// A tensor of a layer, for optimizers that need more than one element at a time.
struct UpdateTensor {
  std::int64_t first = 0;              // its first element in the layer's run; the others follow
  std::int64_t rows = 1, columns = 0;  // more than two dimensions: the leading ones are rows; a vector is one row
  bool hidden = false;                 // in a layer other than the first and the last (embedding, head)
  double rate = 1, decay = 1;          // as in UpdatePart
  double gradient_scale = 1;
  std::uint64_t stream = 0;
  [[nodiscard]] std::int64_t elements() const { return rows * columns; }
  [[nodiscard]] bool is_matrix() const { return rows > 1 && columns > 1; }
};

// If ranks share a layer: this rank has the chunks i of the layer's run with i % ranks == rank.
struct LayerShare {
  std::int64_t ranks = 1, rank = 0;
};

// A part of a layer's scratch that the ranks exchange, in place, between the halves of its update.
struct ScratchExchange {
  enum class Way : std::uint8_t {
    sum,     // fp64 numbers, each nonzero on one rank only
    gather,  // equal parts, in the order of ranks
  };
  Way way{};
  std::uint64_t offset = 0, bytes = 0;  // of the whole exchange
  friend bool operator==(const ScratchExchange&, const ScratchExchange&) = default;
};

// Adjacent numbers of a packed state, and what they belong to in the layer: elements of a tensor, or its rows or columns, from
// `first` on.
struct PackedRange {
  enum class Of : std::uint8_t { elements, rows, columns };
  std::size_t tensor = 0;
  Of of{};
  std::int64_t first = 0, count = 0;
};

// What an optimizer of whole layers needs in addition to the layer's chunks.
struct LayerNeeds {
  std::uint64_t scratch_bytes = 0;       // while it updates the layer
  std::uint64_t packed_numbers = 0;      // of its packed state (Format::packed), on each rank
  std::vector<PackedRange> packed = {};  // what this rank's numbers belong to, in their order; no more than packed_numbers
  std::vector<ScratchExchange> exchanges = {};  // between ranks; the same on all ranks
};
struct LayerShape {
  DType arithmetic = DType::fp32;
  std::int64_t run_elements = 0;  // of all its chunks, on all ranks
  std::vector<UpdateTensor> tensors = {};
  LayerShare share = {};
  std::int64_t chunk_elements = 0;  // if ranks share the layer; whole blocks of 4,096
};
// How ranks share a second moment that is not one number per element; the optimizer decides how many numbers it has.
enum class Packed : std::uint8_t {
  none,
  own,    // of this rank's chunks; the first half of the update changes it
  whole,  // of the layer, the same on all ranks that share it; the second half changes it
};
struct LayerUnit {
  std::function<LayerNeeds(const LayerShape&)> needs;
  Packed second_moment = Packed::none;
  bool bits_of_device = false;  // it multiplies matrices: a GPU gives other bits than the host
  bool hidden_only = false;     // only UpdateTensor::hidden tensors must be whole; it updates others element by element
};

// One rank alone updates a layer in one call. Ranks that share it update it in two halves and exchange scratch in between.
enum class UpdateHalf : std::uint8_t {
  both,
  prepare,  // reads weights and gradients, changes states except a Packed::whole one, writes scratch
  finish,   // reads scratch, changes a Packed::whole state, writes weights
};

// A layer: this rank's chunks of its run, in order and of equal size. `tensors` is used instead of the chunks' parts. A packed
// state's numbers are spread over its chunks, `packed[c].elements` in each. Arrays that a half does not use have no data.
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
  [[nodiscard]] virtual std::vector<ChunkKind> states() const = 0;  // the state chunks that it needs in addition to the weight
  // Empty: update() and enqueue() update single chunks, in any order. Else enqueue_layer() updates a whole layer.
  [[nodiscard]] virtual std::optional<LayerUnit> layer_unit() const { return {}; }
  virtual void update(ThreadPool& pool, const UpdateStep& step, const ChunkUpdate& chunk) const = 0;
  // In stream order, like enqueue(). Bytes and optimizer must live until the stream has passed; spans' contents are copied.
  virtual void enqueue_layer(Stream& stream, const UpdateStep& step, const LayerUpdate& layer) const;
  // The same update in stream order. It runs on the host, unless the optimizer is made for the stream's device. Bytes and
  // optimizer must live until the stream has passed; the parts are copied.
  virtual void enqueue(Stream& stream, const UpdateStep& step, const ChunkUpdate& chunk) const;
};

struct OptimizerName {
  std::string_view name, help;
};
std::span<const OptimizerName> optimizers();
// `isa`: the instruction set of its loops; all sets give the same bits.
std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const OptimizerSettings& settings,
                                          rules::Isa isa = rules::best_isa());
// An optimizer that runs updates enqueued on the device's streams on the device. Errors: Error(ErrorKind::missing) if the
// device's module is absent.
std::unique_ptr<Optimizer> make_optimizer_for(const Device& device, std::string_view name, const OptimizerSettings& settings);

}  // namespace terrace
