// Replaces 0 in --vocab-tiles, --mlp-tiles, --mlp-row-tiles, --attention-tiles and --head-rows by numbers that fit into the
// device budget (parallel/plan/choose_tiles.h). A resumed run keeps its tiles, and gets more only if they no longer fit.
//
// Pure, except that it reads the settings of a resumed run. Threads: any. Errors: those of make_model().
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/parallel/plan/choose_tiles.h>

namespace terrace::cli {

Tiling tiling_of(const lm::ModelConfig& model);
// Returns the config with numbers instead of zeros, and with --tiles auto in tiles if nothing else fits.
RunConfig with_chosen_tiles(RunConfig config);
void agree_on_tiles(RunConfig& config, const std::function<std::uint64_t(std::uint64_t)>& largest);
// " in tiles (vocabulary 4, MLP 8)"; empty without tiles.
std::string tiles_in_words(const RunConfig& config);

}  // namespace terrace::cli
