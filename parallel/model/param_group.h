// Groups of parameters with their own rate, decay or clip norm.
//
//   "embed:rate=0.1,clip=0.5; norm|bias:decay=1; layers\.0\.:rate=0.5,decay=0"
//
// A group contains all parameters whose name contains a match of the regular expression (ECMAScript). Its numbers replace the
// layer's own, which are 1, and 0 for the decay of norms and biases. If groups overlap, the last one that gives a number wins.
// The gradients of a group with a clip norm are clipped together, by their own norm, and count in no other norm.
//
// Threads: values. Errors: Error(ErrorKind::refused) for text that is not a group, and for a group without parameters.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/parallel/model/layer.h>

namespace terrace {

struct ParamGroup {
  std::string pattern;
  std::optional<double> rate, decay;  // multiply the learning rate and the weight decay
  std::optional<double> clip = {};    // greatest norm of their gradients; 0: not clipped
};
bool any_clips(std::span<const ParamGroup> groups);

// Separated by ';'. Empty text: none.
std::vector<ParamGroup> parse_param_groups(std::string_view text);

// params[layer] includes tied parameters; they get the numbers of the declaration that they repeat.
void apply_groups(std::span<const ParamGroup> groups, std::vector<std::vector<ParamSpec>>& params);

}  // namespace terrace
