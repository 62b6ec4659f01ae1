// --vocab-tiles 0, --mlp-tiles 0, --mlp-row-tiles 0 and --attention-tiles 0: the fewest tiles with which the largest phase of
// the model fits into the device budget. --head-rows 0 on a GPU: 4,096 rows, or fewer where a plan would not fit.
//
// Tiles change the rounding of sums, so they are chosen once: a run that goes on keeps its tiles if they still fit.
//
// Pure, but for the settings of a run that goes on, which it reads. Threads: any. Errors: those of make_model().
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

// The config with numbers instead of zeros. If no number of tiles is enough, the largest that help: the plan refuses them with
// what is missing.
RunConfig with_chosen_tiles(RunConfig config);
// The numbers of tiles that ranks chose, replaced by the largest of all ranks, and those of the head's rows by the smallest:
// `largest` is given this rank's and returns that.
void agree_on_tiles(RunConfig& config, const std::function<std::uint64_t(std::uint64_t)>& largest);
// " in tiles (vocabulary 4, MLP 8)"; empty without tiles.
std::string tiles_in_words(const RunConfig& config);

}  // namespace terrace::cli
