// Which parameters a run freezes: training only reads them.
//
//   "embed*,layers.0.*,layers.3.mlp"
//
// A pattern is the name of a parameter, or of a layer (all of its parameters), or its end behind a dot; in it * stands for any
// text and ? for any letter. A model may also declare parameters frozen itself (ParamSpec::frozen), as one with adapters does.
//
// Threads: values. Errors: Error(Exit::usage) for a pattern that matches nothing, with the nearest names, and if nothing is
// left to train.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/parallel/layer.h>

namespace terrace {

struct PlanRequest;

// Separated by commas. Empty text: none.
std::vector<std::string> parse_freeze(std::string_view text);

// params[layer]: those of the model. A tied parameter is frozen with the declaration that it repeats.
void apply_freeze(std::span<const std::string> patterns, const Model& model, std::vector<std::vector<ParamSpec>>& params);

// Refuses what frozen parameters have not been proven with.
void check_frozen(const Model& model, const PlanRequest& request);

}  // namespace terrace
