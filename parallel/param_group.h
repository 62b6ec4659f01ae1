// Parameters that a user gives a rate, a decay or a clip norm of their own.
//
//   "embed:rate=0.1,clip=0.5; norm|bias:decay=1; layers\.0\.:rate=0.5,decay=0"
//
// A group is all parameters in whose name the regular expression (ECMAScript) is found. Its numbers take the place of the
// layer's own, which are 1, and no decay for norms and biases; where groups overlap, the last one that says a number counts.
// The gradients of those that have a group's clip norm are clipped together, by their own norm, and count in no other one.
//
// Threads: values. Errors: Error(Exit::usage) for text that is no group, and for a group without parameters.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/parallel/layer.h>

namespace terrace {

struct ParamGroup {
  std::string pattern;
  std::optional<double> rate, decay;  // multiply the learning rate and the weight decay
  std::optional<double> clip = {};    // greatest norm of their gradients; 0: not clipped
};
bool any_clips(std::span<const ParamGroup> groups);

// Separated by ';'. Empty text: none.
std::vector<ParamGroup> parse_param_groups(std::string_view text);

// By layer, tied parameters too: they go with the declaration that they repeat.
void apply_groups(std::span<const ParamGroup> groups, std::vector<std::vector<ParamSpec>>& params);

}  // namespace terrace
