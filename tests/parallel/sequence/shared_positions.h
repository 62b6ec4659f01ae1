// The ways in which the context ranks of a sequence share its positions, and runs of them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <terrace/tests/parallel/tensor/tensor_plans.h>

namespace terrace::test {

enum class Sharing : std::uint8_t { heads, ring, two_rings };

// 2, 3, 4 and 8 ranks divide the positions evenly; those of a ring, which are dealt in zigzag, twice.
constexpr std::int64_t positions_of(Sharing sharing) { return sharing == Sharing::ring ? 48 : 24; }

inline TensorRun shared(Sharing sharing, lm::ModelConfig config, std::uint32_t ranks, std::int64_t window = 0) {
  config.seq_len = positions_of(sharing);
  config.window = window;
  if (sharing != Sharing::heads) config.place.ring = ranks;
  config.place.two_rings = sharing == Sharing::two_rings;
  TensorRun o{.config = std::move(config), .context = ranks};
  o.batch = {2, positions_of(sharing)};
  return o;
}

}  // namespace terrace::test
