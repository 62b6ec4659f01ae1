// Warns of settings that are valid, but with which a recipe's formats round away the numbers to be added.
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/recipe.h>

namespace terrace::rules {

// Texts for the user. `micro_batches`: how many gradients are added up before an update.
std::vector<std::string> precision_warnings(const Recipe& recipe, std::string_view optimizer, const OptimizerSettings& settings,
                                            std::uint64_t micro_batches);

}  // namespace terrace::rules
