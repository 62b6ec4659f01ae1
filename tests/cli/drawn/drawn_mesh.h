// A model drawn from a seed, and meshes that can train it: data, pipeline, tensor, context and expert ranks in any legal
// product, with their settings. One rank trains the same model with the same micro-batches.
//
// Only legal command lines are drawn, so each rule of the documentation is implemented here a second time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <terrace/tests/cli/cli_test.h>
#include <terrace/tests/cli/drawn/draw.h>

namespace terrace::test {

struct DrawnMesh {
  std::uint64_t ranks = 1;
  Words words;                              // the degrees and their settings
  Words other_way;                          // settings that change no bit of this mesh; they replace those in `words`
  double device_share = 1, host_share = 1;  // position of a budget between the least and the whole need
};

struct DrawnModel {
  Words words;  // the model, the optimizer, the data
  std::uint64_t micro_batches = 1;
  bool fp64 = false;
  std::vector<DrawnMesh> meshes;
  Words wrong;        // words that give one rank's command line an illegal degree,
  std::string named;  // and the flag that the refusal must name
};
DrawnModel draw_model(std::uint64_t seed, std::uint64_t number);

}  // namespace terrace::test
