#include <terrace/core/cuda/cudnn/plan.h>

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

namespace terrace::cuda::cudnn {
namespace {

constexpr std::int64_t kMostNotes = 16, kMostKnobs = 64;  // for one engine; cuDNN 9.26 has 10 and 46 kinds

// An unsupported engine is skipped. A failure of the library is not skipped, because another engine would give other bits.
bool is_taken(const Library& library, int status, const char* call) {
  if (!is_unsupported(status)) library.check(status, call);
  return status == kSuccess;
}

std::vector<Descriptor> several(const Library& library, Kind kind, std::int64_t count) {
  std::vector<Descriptor> made;
  made.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) made.emplace_back(library, kind);
  return made;
}

void aim(Descriptor& descriptor, const Target& target, Name device) {
  if (target.device) descriptor.set(device, *target.device);
}

EngineChoice choice_of(const Descriptor& config, const Descriptor& engine) {
  EngineChoice choice{.engine = engine.get_int(Name::engine_index)};
  // If asked for zero knobs, the library reports that none exist.
  const auto knobs = several(config.library(), Kind::knob_choice, kMostKnobs);
  const auto given = config.get(Name::config_knobs, knobs);
  for (std::int64_t i = 0; i < given; ++i) {
    const auto& knob = knobs[static_cast<std::size_t>(i)];
    int type = 0;
    knob.get(Name::knob_type, Type::knob, 1, &type);
    choice.knobs.emplace_back(type, knob.get_int(Name::knob_value));
  }
  std::ranges::sort(choice.knobs);
  return choice;
}

bool is_nondeterministic(const Descriptor& engine) {
  std::array<int, kMostNotes> notes{};
  const auto count = engine.get(Name::engine_notes, Type::numerical_note, kMostNotes, notes.data());
  return std::find(notes.begin(), notes.begin() + std::min(count, kMostNotes), kNondeterministic) !=
         notes.begin() + std::min(count, kMostNotes);
}

// The plan for a configuration, or nothing if the configuration cannot be used.
std::optional<Plan> plan_of(const Descriptor& config, const Descriptor& engine, EngineChoice choice, const Target& target,
                            const PlanLimits& limits, std::string& why) {
  const auto& library = config.library();
  const auto refuse = [&](const std::string& reason) {
    why += fmt::format("\n  {}: {}", to_string(choice), reason);
    return std::nullopt;
  };
  if (is_nondeterministic(engine)) return refuse("it is marked as nondeterministic");
  Descriptor plan(library, Kind::plan);
  plan.set(Name::plan_config, config);
  aim(plan, target, Name::plan_device);
  if (const int status = plan.try_finalize(); !is_taken(library, status, "cudnnBackendFinalize of an execution plan"))
    return refuse(library.describe(status, "cudnnBackendFinalize of its execution plan"));
  const auto bytes = static_cast<std::size_t>(plan.get_int(Name::plan_workspace_bytes));
  if (bytes > limits.most_workspace_bytes)
    return refuse(fmt::format("it needs {} bytes of workspace, more than {}", bytes, limits.most_workspace_bytes));
  if (bytes < limits.least_workspace_bytes)
    return refuse(
        fmt::format("it needs {} bytes of workspace, too few for sums in one order ({})", bytes, limits.least_workspace_bytes));
  return Plan{{}, std::move(plan), std::move(choice), bytes};
}

std::optional<Plan> first_of(Heuristic mode, const Descriptor& graph, const Target& target, const PlanLimits& limits,
                             std::string& why) {
  const auto& library = graph.library();
  Descriptor heuristics(library, Kind::heuristics);
  heuristics.set(Name::heuristics_graph, graph).set(Name::heuristics_mode, mode);
  aim(heuristics, target, Name::heuristics_device);
  if (const int status = heuristics.try_finalize(); !is_taken(library, status, "cudnnBackendFinalize of heuristics")) {
    why += "\n  " + library.describe(status, "heuristics");
    return std::nullopt;
  }
  auto configs = several(library, Kind::engine_config, heuristics.count(Name::heuristics_results, Type::object));
  const auto given = configs.empty() ? 0 : heuristics.get(Name::heuristics_results, configs);
  for (std::int64_t i = 0; i < given; ++i) {
    auto& config = configs[static_cast<std::size_t>(i)];
    auto engine = several(library, Kind::engine, 1);
    config.get(Name::config_engine, engine);
    auto plan = plan_of(config, engine.front(), choice_of(config, engine.front()), target, limits, why);
    if (!plan) continue;
    plan->parts.push_back(std::move(engine.front()));
    plan->parts.push_back(std::move(config));
    return plan;
  }
  return std::nullopt;
}

}  // namespace

std::string to_string(const EngineChoice& choice) {
  std::string knobs;
  for (const auto& [type, value] : choice.knobs) knobs += fmt::format(" {}={}", type, value);
  return fmt::format("engine {}, knobs{}", choice.engine, knobs.empty() ? " none" : knobs);
}

std::optional<EngineChoice> parse_choice(std::string_view text) {
  const auto drop = [&](std::string_view begin) {
    const bool there = text.starts_with(begin);
    if (there) text.remove_prefix(begin.size());
    return there;
  };
  const auto number = [&](auto& into) {
    const auto [next, error] = std::from_chars(text.data(), text.data() + text.size(), into);
    if (error != std::errc{}) return false;
    text.remove_prefix(static_cast<std::size_t>(next - text.data()));
    return true;
  };
  EngineChoice choice;
  if (!drop("engine ") || !number(choice.engine) || !drop(", knobs")) return std::nullopt;
  if (text == " none") return choice;
  while (drop(" ")) {
    auto& [type, value] = choice.knobs.emplace_back();
    if (!number(type) || !drop("=") || !number(value)) return std::nullopt;
  }
  return text.empty() && !choice.knobs.empty() ? std::optional(choice) : std::nullopt;
}

Descriptor describe_device(const Library& library, std::string_view json) {
  Descriptor device(library, Kind::device);
  device.set(Name::device_json, Type::character, static_cast<std::int64_t>(json.size()), json.data()).finalize();
  return device;
}

std::optional<Plan> propose_plan(const Descriptor& graph, const Target& target, const PlanLimits& limits, std::string& why) {
  for (const auto mode : {Heuristic::instant, Heuristic::fallback})
    if (auto plan = first_of(mode, graph, target, limits, why)) return plan;
  if (why.empty()) why = "\n  the library proposes no engine";
  return std::nullopt;
}

std::optional<Plan> make_plan(const Descriptor& graph, const Target& target, const PlanLimits& limits,
                              const EngineChoice& choice, std::string& why) {
  const auto& library = graph.library();
  Descriptor engine(library, Kind::engine);
  engine.set(Name::engine_graph, graph).set(Name::engine_index, choice.engine);
  aim(engine, target, Name::engine_device);
  if (const int status = engine.try_finalize(); !is_taken(library, status, "cudnnBackendFinalize of an engine")) {
    why += fmt::format("\n  {}: {}", to_string(choice), library.describe(status, "cudnnBackendFinalize of the engine"));
    return std::nullopt;
  }
  std::vector<Descriptor> knobs;
  std::vector<const Descriptor*> places;
  knobs.reserve(choice.knobs.size());
  for (const auto& [type, value] : choice.knobs) {
    auto& knob = knobs.emplace_back(library, Kind::knob_choice);
    places.push_back(&knob.set(Name::knob_type, Type::knob, 1, &type).set(Name::knob_value, value).finalize());
  }
  Descriptor config(library, Kind::engine_config);
  config.set(Name::config_engine, engine);
  if (!places.empty()) config.set(Name::config_knobs, places);
  if (const int status = config.try_finalize(); !is_taken(library, status, "cudnnBackendFinalize of a configuration")) {
    why += fmt::format("\n  {}: {}", to_string(choice), library.describe(status, "cudnnBackendFinalize of the configuration"));
    return std::nullopt;
  }
  auto plan = plan_of(config, engine, choice, target, limits, why);
  if (!plan) return std::nullopt;
  plan->parts = std::move(knobs);
  plan->parts.push_back(std::move(engine));
  plan->parts.push_back(std::move(config));
  return plan;
}

}  // namespace terrace::cuda::cudnn
