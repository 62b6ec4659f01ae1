// Chooses in how many tiles a transformer uses its layers: the fewest with which the largest phase fits into the device budget.
//
// Tiles change the rounding of sums, so they are chosen once, and ranks agree on them before they plan.
//
// Pure. Threads: any. Errors: those of make_transformer() and plan().
#pragma once

#include <cstdint>
#include <functional>

#include <terrace/core/machine/machine.h>
#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/plan/plan_request.h>

namespace terrace {

// The numbers of a Transformer that only change how much of a layer is on the device at once. Where one is to be chosen, it is
// 0; the head's rows are chosen only for a GPU, and are 64 MiB of logits otherwise.
struct Tiling {
  std::uint32_t vocab = 1, mlp = 1, mlp_rows = 1, attention = 1;
  std::int64_t head_rows = 0;
  [[nodiscard]] bool is_whole() const { return vocab == 1 && mlp == 1 && mlp_rows == 1 && attention == 1; }
  friend bool operator==(const Tiling&, const Tiling&) = default;
};
layers::Transformer in_tiles(layers::Transformer transformer, const Tiling& tiling);

struct TiledRun {
  const PlanRequest& request;  // of the rank that the transformer's place is of; without a pipeline
  const MachineProfile& profile;
  // Where a resumed run began with other tiles: it keeps these, and gets more only if they no longer fit.
  const Tiling* resumed = nullptr;
};
// Returns `given` with numbers instead of zeros. If no number of tiles is enough, it returns the largest that help, and the
// plan's refusal then says what is missing. On a GPU, the head has up to 4,096 rows, or fewer if a plan would not fit.
Tiling choose_tiles(const layers::Transformer& transformer, Tiling given, const TiledRun& run);
// The same for a transformer whose tiles may all be chosen: it stays whole if a plan then fits, or if no tiles can help.
Tiling choose_tiles_if_needed(const layers::Transformer& transformer, Tiling given, const TiledRun& run);

// Replaces the numbers of tiles by the largest of all ranks, and the head's rows by the smallest. `largest` exchanges one
// number: it takes this rank's and returns the largest of all ranks.
void agree_on_tiles(Tiling& tiling, const std::function<std::uint64_t(std::uint64_t)>& largest);

}  // namespace terrace
