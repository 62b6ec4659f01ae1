// An engine of cuDNN's made ready for one graph: which one, and with which knobs, decides the bits, so it is kept in words and
// can be made again from them.
//
// Owner:   Plan owns its descriptors; the library must outlive it.
// Threads: one at a time.
// Errors:  Error that says of every engine that was tried why it does not serve.
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
std::optional<EngineChoice> parse_choice(std::string_view text);  // nullopt: it is not such a text

// The target of a plan: a GPU by its handle, or an absent device by its description.
struct Target {
  void* handle = nullptr;
  const Descriptor* device = nullptr;
};
// A device by the JSON that cuDNN gives of one (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION).
Descriptor describe_device(const Library& library, std::string_view json);

struct Plan {
  std::vector<Descriptor> parts;  // what the plan was made of, and must outlive it
  Descriptor plan;
  EngineChoice choice;
  std::size_t workspace_bytes = 0;
};

// The limits of a plan, so that its sums have one order and its memory suffices.
struct PlanLimits {
  std::size_t least_workspace_bytes = 0;  // an engine that needs less does not compute as the graph describes
  std::size_t most_workspace_bytes = 0;
};

// The first of the library's own proposals within the limits, by its heuristics and then by its fallbacks; engines that call
// themselves nondeterministic are passed over. nullopt: none, and `why` says so of each.
std::optional<Plan> propose_plan(const Descriptor& graph, const Target& target, const PlanLimits& limits, std::string& why);
// The very engine again.
std::optional<Plan> make_plan(const Descriptor& graph, const Target& target, const PlanLimits& limits,
                              const EngineChoice& choice, std::string& why);

}  // namespace terrace::cuda::cudnn
