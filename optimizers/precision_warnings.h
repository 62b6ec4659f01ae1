// Settings that are valid, and in a recipe's formats round away what they are to add up.
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/recipe.h>

namespace terrace {

// For the user, a text each. `micro_batches`: whose gradients are added up before an update.
std::vector<std::string> precision_warnings(const Recipe& recipe, std::string_view optimizer, const OptimizerSettings& settings,
                                            std::uint64_t micro_batches);

}  // namespace terrace
