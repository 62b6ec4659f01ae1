// The parameters that a run freezes: training only reads them.
//
//   "embed*,layers.0.*,layers.3.mlp"
//
// A pattern is the name of a parameter or of a layer (all of its parameters), or the part of such a name after a dot. In it, *
// matches any text and ? any character. A model may also declare parameters frozen itself (ParamSpec::frozen), as a model with
// adapters does.
//
// Threads: values. Errors: Error(ErrorKind::refused) for a pattern that matches nothing, with the nearest names, and if nothing
// is left to train.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/parallel/model/layer.h>

namespace terrace::model {

// The patterns, separated by commas, in `text`. Empty text: none.
std::vector<std::string> parse_freeze(std::string_view text);

// params[layer]: the model's parameters. A tied parameter is frozen if the declaration that it repeats is.
void apply_freeze(std::span<const std::string> patterns, const Model& model, std::vector<std::vector<ParamSpec>>& params);

}  // namespace terrace::model
