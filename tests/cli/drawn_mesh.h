// A model drawn from a seed, and meshes that may train it: data, pipeline, tensor, context and expert ranks in any legal
// product, with what belongs to each. One rank trains the same model with the same micro-batches.
//
// Only legal command lines are drawn, so each rule of the documentation stands here once more, in the words of a test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli_test.h"
#include "draw.h"

namespace terrace::test {

struct DrawnMesh {
  std::uint64_t ranks = 1;
  Words words;                              // degrees and what belongs to them
  Words other_way;                          // settings that change no bit of this mesh: they replace those of `words`
  double device_share = 1, host_share = 1;  // of a budget between the least and all
};

struct DrawnModel {
  Words words;  // the model, the optimizer, the data
  std::uint64_t micro_batches = 1;
  bool fp64 = false;
  std::vector<DrawnMesh> meshes;
  Words wrong;        // words that give one rank's line an illegal degree,
  std::string named;  // and the flag that its refusal must name
};
DrawnModel draw_model(std::uint64_t seed, std::uint64_t number);

}  // namespace terrace::test
