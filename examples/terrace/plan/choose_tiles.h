// Replaces 0 in --vocab-tiles, --mlp-tiles, --mlp-row-tiles and --attention-tiles by the fewest tiles with which the largest
// phase of the model fits into the device budget. On a GPU, replaces --head-rows 0 by up to 4,096 rows, or fewer if a plan
// would not fit.
//
// Tiles change the rounding of sums, so they are chosen once: a resumed run keeps its tiles, and gets more only if they no
// longer fit.
//
// Pure, except that it reads the settings of a resumed run. Threads: any. Errors: those of make_model().
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

// Returns the config with numbers instead of zeros. If no number of tiles is enough, it returns the largest that help, and the
// plan's refusal then says what is missing.
RunConfig with_chosen_tiles(RunConfig config);
// Replaces the chosen numbers of tiles by the largest of all ranks, and the head's rows by the smallest. `largest` exchanges
// one number: it takes this rank's and returns the largest of all ranks.
void agree_on_tiles(RunConfig& config, const std::function<std::uint64_t(std::uint64_t)>& largest);
// " in tiles (vocabulary 4, MLP 8)"; empty without tiles.
std::string tiles_in_words(const RunConfig& config);

}  // namespace terrace::cli
