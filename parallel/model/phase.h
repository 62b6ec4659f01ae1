// Phases: the parts of a layer's call, and what each of them uses.
//
// A layer cuts a call into phases where it needs other weights, or where large tensors are no longer needed: for example the
// products of an MLP, or the tiles of a vocabulary. While a phase runs, the engine leases only what the phase uses. In every
// order, the phases of one call run one after the other, and give the same bits as the whole call.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <terrace/memory/chunk.h>
#include <terrace/parallel/comm/call.h>
#include <terrace/parallel/mesh/members.h>

namespace terrace {

// A half of the backward: dx from dy, or the weights' gradients. Computing both in one call shares work.
enum class Half : std::uint8_t { input = 1, weight = 2, both = 3 };
constexpr bool has(Half halves, Half which) {
  return (static_cast<std::uint8_t>(halves) & static_cast<std::uint8_t>(which)) != 0;
}

enum class LayerCall : std::uint8_t { forward, backward, decode };
inline constexpr std::size_t kLayerCalls = 3;

inline constexpr std::uint32_t kAllPhases = ~0U;  // the call is not divided

// A parameter, by its position in params(), and which of its tiles.
struct PhaseParam {
  std::uint32_t param = 0, tile = 0;
  friend bool operator==(const PhaseParam&, const PhaseParam&) = default;
};

// A tensor of CallSteps::work(), LayerFacts::saved or LayerFacts::carried, by its position there; or x, y, dx or dy.
struct PhaseTensor {
  enum class Of : std::uint8_t { work, saved, carried, x, y, dx, dy };
  constexpr PhaseTensor(std::uint32_t position = 0, Of which = Of::work)
      : number(position), of(which) {}  // NOLINT: mostly work
  std::uint32_t number;
  Of of;
};

// A phase that exchanges instead of computing: a collective of `members`, from one tensor of the layer into another; an
// all-reduce of another tensor than one of work() may be in place. Sums are made in rank order, in the dtype of `from`.
struct PhaseExchange {
  mesh::Members members;
  PhaseTensor from = {}, to = {};
  // Counts of elements, from the beginning of each tensor. For an all-to-all, one entry for each member, in the order of the
  // tensors. For other operations, one entry: everything that the rank gives, and gets.
  std::vector<std::int64_t> sent, received;
  comm::Operation operation = comm::Operation::all_to_all;
  // The member that sends a broadcast (it reads `from`, the others write `to`) or receives a reduction (only it writes `to`).
  std::uint32_t root = 0;
  std::uint32_t neighbours = 0;  // of an all-to-all: members that exchange with each other; 0: all
  // For an all-to-all whose sizes an earlier phase computes. A plan uses `sent` and `received` above as estimates; a run reads
  // the real sizes, one for each member, from the layer's report, beginning at these positions. The earlier phase must have
  // waited for them.
  struct Told {
    std::uint32_t sent = 0, received = 0;
  };
  std::optional<Told> told = {};
};

// Of whole tensors, `each` elements of a member after those of the one before it.
inline PhaseExchange all_gather(const mesh::Members& members, PhaseTensor from, PhaseTensor to, std::int64_t each,
                                std::int64_t ranks) {
  return {members, from, to, {each}, {each * ranks}, comm::Operation::all_gather};
}
inline PhaseExchange reduce_scatter(const mesh::Members& members, PhaseTensor from, PhaseTensor to, std::int64_t each,
                                    std::int64_t ranks) {
  return {members, from, to, {each * ranks}, {each}, comm::Operation::reduce_scatter};
}
inline PhaseExchange all_reduce(const mesh::Members& members, PhaseTensor from, PhaseTensor to, std::int64_t elements) {
  return {members, from, to, {elements}, {elements}, comm::Operation::all_reduce};
}

inline PhaseExchange broadcast(const mesh::Members& members, PhaseTensor from, PhaseTensor to, std::int64_t elements,
                               std::uint32_t root) {
  return {members, from, to, {elements}, {elements}, comm::Operation::broadcast, root};
}
inline PhaseExchange reduce(const mesh::Members& members, PhaseTensor from, PhaseTensor to, std::int64_t elements,
                            std::uint32_t root) {
  return {members, from, to, {elements}, {elements}, comm::Operation::reduce, root};
}

// A tensor of the call's work(), and how a phase uses it. The tensors of an exchange need no entry: CallSteps::exchange() sets
// what its phase uses.
struct PhaseWork {
  std::uint32_t tensor = 0;
  Access access = Access::read;
};

struct Phase {
  bool undivided = false;  // the only one that computes: it uses all that the call may use; only scratch_bytes is set, too
  Half half = Half::both;  // in a backward: the half it computes. It does not run in a call for the other half only.
  std::vector<PhaseParam> weights = {}, gradients = {};  // gradients: written by the weight half
  bool x = false, dy = false;
  // Access::overwrite in the first phase that writes it, Access::update in later ones. The first layer's x and dx, and the last
  // one's y and dy, do not exist, but may be set. The phase that writes dx also writes the gradient of a skip. In generation,
  // `saved` is the cache.
  std::optional<Access> y = {}, dx = {}, saved = {}, carried = {};
  std::vector<PhaseWork> work = {};
  std::uint64_t scratch_bytes = 0;
  double flops = 0;         // matrix products only
  double float8_flops = 0;  // those of them whose operands are rounded to 8 bits
  // What rounding moves outside scratch, less the bytes of carried codes, which count as carried tensors but are not all used.
  double float8_bytes = 0;
  // The bytes that it reads and writes in its tensors other than weights and gradients; empty: all their bytes.
  std::optional<double> touched_bytes = {};
  std::optional<PhaseExchange> exchange = {};
  // A position in the layer's report (LayerFacts::report_size), which an earlier phase of the call writes. If the number there
  // is 0, the phase does nothing: a run leaves it out and fetches nothing for it, while a plan always includes it. Only in
  // generation, because a training step must make the moves of its plan.
  std::optional<std::uint32_t> unless_zero = {};

  // Adds a tensor to those that the phase uses; all saved tensors have one access, and so have all carried ones.
  void use(const PhaseTensor& tensor, Access access) {
    switch (tensor.of) {
      case PhaseTensor::Of::work: work.push_back({tensor.number, access}); break;
      case PhaseTensor::Of::saved: saved = access; break;
      case PhaseTensor::Of::carried: carried = access; break;
      case PhaseTensor::Of::x: x = true; break;
      case PhaseTensor::Of::y: y = access; break;
      case PhaseTensor::Of::dx: dx = access; break;
      case PhaseTensor::Of::dy: dy = true; break;
    }
  }
};

}  // namespace terrace
