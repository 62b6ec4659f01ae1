// An engine of cuDNN, made ready for one graph. The engine and its knobs decide the bits, so they are kept as text and the plan
// can be made again from it.
//
// Owner:   Plan owns its descriptors; the library must outlive it.
// Threads: one at a time.
// Errors:  Error that says for each engine that was tried why it cannot be used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <terrace/core/cuda/cudnn/descriptor.h>

namespace terrace::cuda::cudnn {

struct EngineChoice {
  std::int64_t engine = 0;
  std::vector<std::pair<int, std::int64_t>> knobs = {};  // cudnnBackendKnobType_t and value, ascending
  friend bool operator==(const EngineChoice&, const EngineChoice&) = default;
};
std::string to_string(const EngineChoice& choice);                // "engine 6, knobs 24=26"; "engine 1, knobs none"
std::optional<EngineChoice> parse_choice(std::string_view text);  // nullopt: the text is not a choice

// The target of a plan: a GPU, given by a handle, or an absent device, given by its description.
struct Target {
  void* handle = nullptr;
  const Descriptor* device = nullptr;
};
// Describes a device by the JSON that cuDNN reports for it (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION).
Descriptor describe_device(const Library& library, std::string_view json);

struct Plan {
  std::vector<Descriptor> parts;  // the plan refers to them; they must outlive it
  Descriptor plan;
  EngineChoice choice;
  std::size_t workspace_bytes = 0;
};

// Limits on a plan, so that it sums in one order and fits into the memory.
struct PlanLimits {
  std::size_t least_workspace_bytes = 0;  // an engine that needs less does not compute as the graph describes
  std::size_t most_workspace_bytes = 0;
};

// Returns the first of the library's own proposals within the limits: those of its heuristics, then its fallbacks. Skips
// engines that call themselves nondeterministic. nullopt: none; `why` has the reason for each.
std::optional<Plan> propose_plan(const Descriptor& graph, const Target& target, const PlanLimits& limits, std::string& why);
// Makes the plan of a recorded choice again.
std::optional<Plan> make_plan(const Descriptor& graph, const Target& target, const PlanLimits& limits,
                              const EngineChoice& choice, std::string& why);

}  // namespace terrace::cuda::cudnn
