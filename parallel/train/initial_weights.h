// Initial weights of a model, from a seed.
//
// Pure. Threads: any.
#pragma once

#include <cstdint>

#include <terrace/parallel/run/compute.h>

namespace terrace {

// Each parameter's Init, drawn by (seed, name, index): the same values for every layout, order and number of ranks.
WeightRange random_weights(std::uint64_t seed);

}  // namespace terrace
