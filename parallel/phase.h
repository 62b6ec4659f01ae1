// What a phase of a layer's call uses.
//
// A layer cuts a call into phases where it needs other weights, or where large tensors are no longer needed: the products of an
// MLP, or the tiles of a vocabulary. The engine leases what a phase uses, and nothing else, while the phase runs. Phases of one
// call run one after the other in every order, and give the bits of the whole call.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <terrace/memory/chunk.h>
#include <terrace/parallel/comm/call.h>
#include <terrace/parallel/members.h>

namespace terrace {

// Which half of the backward: dx from dy, or the weights' gradients. Computing both in one call shares work.
enum class Half : std::uint8_t { input = 1, weight = 2, both = 3 };
constexpr bool has(Half halves, Half which) {
  return (static_cast<std::uint8_t>(halves) & static_cast<std::uint8_t>(which)) != 0;
}

enum class LayerCall : std::uint8_t { forward, backward, survey, decode };
inline constexpr std::size_t kLayerCalls = 4;

inline constexpr std::uint32_t kAllPhases = ~0U;  // of a call that is made at once

// A parameter, by its position in params(); of one in tiles, a tile.
struct PhaseParam {
  std::uint32_t param = 0, tile = 0;
  friend bool operator==(const PhaseParam&, const PhaseParam&) = default;
};

// A tensor of the call's work(), or of the layer's saved() or carried(), by its position there.
struct PhaseTensor {
  enum class Of : std::uint8_t { work, saved, carried };
  constexpr PhaseTensor(std::uint32_t position = 0, Of which = Of::work)
      : number(position), of(which) {}  // NOLINT: mostly work
  std::uint32_t number;
  Of of;
};

// A phase that exchanges instead of computing: a collective of these ranks, from one tensor of the layer into another; an
// all-reduce of a saved or carried tensor may be in place. Sums are made in the order of ranks, in the dtype of `from`.
struct PhaseExchange {
  Members members;
  PhaseTensor from = {}, to = {};
  // Elements, from the beginning of each tensor. Of an all-to-all: to and from each member, in the order of the tensors. Of
  // other operations: of all that the rank gives, and gets.
  std::vector<std::int64_t> sent, received;
  Operation operation = Operation::all_to_all;
  // The member that a broadcast comes from (it reads `from`, the others write `to`), or that a reduction goes to (it alone
  // writes `to`).
  std::uint32_t root = 0;
  std::uint32_t neighbours = 0;  // of an all-to-all: so many of the members exchange with each other; 0: all
  // Of an all-to-all whose sizes are known once a phase before it has run: `sent` and `received` are what is usual, which a
  // plan reckons with, and the true ones are told by the layer's report, from these positions on, for each member. That phase
  // must have waited for them.
  struct Told {
    std::uint32_t sent = 0, received = 0;
  };
  std::optional<Told> told = {};
};

// A tensor of the call's work(), and how a phase uses it. Those of an exchange are used without being named; if they are of
// saved() or carried(), the phase says how it uses these.
struct PhaseWork {
  std::uint32_t tensor = 0;
  Access access = Access::read;
};

struct Phase {
  Half half = Half::both;  // of a backward: what it computes. A phase of one half does not run in a call for the other half.
  std::vector<PhaseParam> weights = {}, gradients = {};  // gradients: written by the weight half
  bool x = false, dy = false;
  // overwrite in the first phase that writes it, update in later ones. The first layer's x and dx, and the last one's y and dy,
  // do not exist and may be named. The phase that writes dx writes the gradient of a skip, too. In generation `saved` is the
  // cache.
  std::optional<Access> y = {}, dx = {}, saved = {}, carried = {};
  std::vector<PhaseWork> work = {};
  std::optional<std::uint64_t> scratch_bytes = {};  // empty: the layer's scratch_bytes()
  double flops = 0;                                 // matrix products only
  // Of the tensors beside weights and gradients that it uses, the bytes that it reads and writes; empty: all of them.
  std::optional<double> touched_bytes = {};
  std::optional<PhaseExchange> exchange = {};
  // A position in the layer's report (Layer::report_size()), which an earlier phase of the call writes: the phase does nothing
  // if the number there is 0. A run then leaves it out and fetches nothing for it; a plan reckons with it always. In generation
  // only: the moves of a training step are those of its plan.
  std::optional<std::uint32_t> unless_zero = {};
};

}  // namespace terrace
