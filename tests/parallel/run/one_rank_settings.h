// A table of the settings of a toy model's run: their names, the values each is tested with, and which may be combined.
//
// A setting either reaches the bits, and then both compared runs have it, or it must change no bit. A new setting is a line in
// dimensions(). If it cannot be combined with all others, add a rule: asks() if the product refuses the combination, because()
// with the reason if only this test cannot run it.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include <terrace/parallel/plan/check_request.h>
#include <terrace/tests/support/covering_rows.h>

#include <terrace/tests/parallel/pipeline/pipeline_run.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {

struct Settings {
  static constexpr std::uint32_t kMicroBatches = 12;  // of all data ranks

  toy::RunOptions run = [] {
    toy::RunOptions o;
    o.steps = 3;
    o.shape = {{1, 8}, kMicroBatches};
    o.group = 2;
    return o;
  }();
  std::string optimizer = "adamw";
  std::string schedule = "none";
  std::uint32_t pipeline_ranks = 1;
  std::string stages = "even", activations = "kept", tiers = "device", begins = "here";
  CommunicatorOptions ranks{.time_limit = std::chrono::seconds(60)};
  CommunicationFaults messages;

  // Sets those parts of `run` that follow from several settings.
  void settle();
};

// Writes each order once for each of its degrees. Throws what write_order() throws.
inline const pipeline::Schedule& schedule_of(const std::string& name, std::uint32_t ranks, std::uint32_t micro_batches) {
  static std::map<std::string, std::variant<pipeline::Schedule, Error>> written;
  const auto key = fmt::format("{} on {}, {}", name, ranks, micro_batches);
  if (!written.contains(key)) {
    const auto at = name.find(" x");
    const auto chunks = at == std::string::npos ? 2 : static_cast<std::uint32_t>(std::stoul(name.substr(at + 2)));
    try {
      written.emplace(
          key, pipeline::write_order(name.substr(0, at), {.ranks = ranks, .micro_batches = micro_batches, .chunks = chunks}));
    } catch (const Error& e) {
      written.emplace(key, e);
    }
  }
  if (const auto* const refused = std::get_if<Error>(&written.at(key))) throw Error(*refused);
  return std::get<pipeline::Schedule>(written.at(key));
}

inline void Settings::settle() {
  run.shape.micro_batches = kMicroBatches / run.data.ranks;
  run.make_optimizer = [name = optimizer] { return make_optimizer(name, {}); };
  const auto layers = static_cast<std::size_t>(run.sizes.blocks) + 2;
  run.recompute = activations == "recomputed" || activations == "both";
  run.offload = activations == "offloaded" || activations == "both";
  if (activations == "mixed")
    for (std::size_t l = 0; l < layers; ++l) run.activations.push_back({.recompute = l % 2 == 1, .offload = l % 3 == 1});
  if (schedule == "none") return;
  const auto& order = schedule_of(schedule, pipeline_ranks, run.shape.micro_batches);
  std::vector<double> costs(layers, 1.0);
  if (stages == "uneven")
    for (std::size_t l = 0; l < layers; ++l) costs[l] = 1.0 + 2.0 * static_cast<double>(l % 3);
  run.pipeline = pipeline::Pipeline{order, pipeline::balance(costs, order.placement.stages)};
}

struct Dimension {
  std::string name;
  bool reaches_bits = false;
  std::vector<std::string> values;
  std::function<void(Settings&, std::size_t)> put;  // sets the value with this number
};

template <typename T, typename Put>
Dimension dimension(const char* name, bool reaches_bits, std::initializer_list<T> values, Put put) {
  Dimension d{.name = name, .reaches_bits = reaches_bits, .values = {}, .put = {}};
  for (const auto& value : values) d.values.push_back(fmt::format("{}", value));
  d.put = [all = std::vector<T>(values), put](Settings& s, std::size_t i) { put(s, all[i]); };
  return d;
}
template <typename T, typename Put>
Dimension reaches_bits(const char* name, std::initializer_list<T> values, Put put) {
  return dimension(name, true, values, put);
}
template <typename T, typename Put>
Dimension changes_no_bit(const char* name, std::initializer_list<T> values, Put put) {
  return dimension(name, false, values, put);
}

// The dtype and the recipe; fp8: with products of 8 bits, whose scales are those of a micro-batch's tensors on a rank.
inline void put_numbers(Settings& s, std::string_view numbers) {
  const auto space = numbers.find(' ');
  s.run.sizes.float8 = numbers.ends_with(" fp8");
  if (s.run.sizes.float8) numbers.remove_suffix(std::string_view(" fp8").size());
  s.run.sizes.dtype = parse_dtype(numbers.substr(0, space));
  s.run.recipe = numbers.substr(space + 1);
}
inline void put_clip(Settings& s, std::string_view clip) {
  s.run.greatest_norm = clip == "none" ? 0 : toy::kGreatestNorm;
  if (clip == "groups") s.run.param_groups = "\\.a$:clip=0.01; bias|scale:clip=0.02";  // these span several layers
}
inline void put_update_place(Settings& s, std::string_view place) {
  if (place == "host") s.run.update = Tier::host;
  if (place == "device") s.run.update = Tier::device;
  if (place == "half") s.run.update = UpdatePlace(0.5);
}
inline Travel travel_named(std::string_view name) {
  return name == "bf16" ? Travel::bf16 : name == "int8" ? Travel::int8 : Travel::whole;
}
inline void put_waiting(Settings& s, std::string_view which) {
  s.run.before_use = which.starts_with("for the norm");
  s.run.early = which.ends_with("less 2 layers") ? 2 : which.ends_with("less all layers") ? kAllLayers : 0;
  s.run.deferred = which == "of 2 layers" ? 2 : which == "of every layer" ? kAllLayers : 0;
}
inline Order order_named(std::string_view name) {
  return name == "vertical" ? Order::vertical : name == "groups of 2" ? Order::group_vertical : Order::horizontal;
}

// clang-format off
inline const std::vector<Dimension>& dimensions() {
  using S = Settings;
  using Word = const char*;
  static const std::vector<Dimension> all{
      reaches_bits("numbers", {"fp32 fp32", "bf16 fp32", "fp64 fp32", "fp16 fp32", "fp32 8bit", "bf16 bf16", "bf16 split fp8", "bf16 split-8bit", "bf16 stochastic"}, put_numbers),
      reaches_bits("optimizer", {"adamw", "adam", "sgd", "lion", "adagrad", "lamb", "adafactor", "muon"}, [](S& s, Word v) { s.optimizer = v; }),
      reaches_bits("blocks", {1, 4, 7}, [](S& s, int v) { s.run.sizes.blocks = v; }),
      reaches_bits("width", {64, 72}, [](S& s, int v) { s.run.sizes.width = v; }),  // with 72, tensors end within pages
      reaches_bits("tied", {true, false}, [](S& s, bool v) { s.run.sizes.tied = v; }),
      reaches_bits("skips", {false, true}, [](S& s, bool v) { s.run.sizes.skips = v; }),
      reaches_bits("clip", {"none", "global", "groups"}, put_clip),
      reaches_bits("loss scale", {"off", "1024", "dynamic"}, [](S& s, Word v) { s.run.loss_scale = v; }),
      reaches_bits("step that is not finite", {0, 2}, [](S& s, int v) { s.run.not_finite_step = static_cast<std::uint64_t>(v); }),
      reaches_bits("evaluated micro-batches", {0, 5}, [](S& s, int v) { s.run.evaluate_between = v != 0; s.run.evaluate_in_all = static_cast<std::uint64_t>(v); }),
      // Rounded before they are added, one micro-batch at a time.
      reaches_bits("gradients travel as", {"whole", "bf16", "int8"}, [](S& s, Word v) { s.run.data.gradients = travel_named(v); s.run.data.canonical = s.run.data.gradients != Travel::whole; }),

      changes_no_bit("data ranks", {1U, 2U, 3U, 4U, 6U, 12U}, [](S& s, std::uint32_t v) { s.run.data.ranks = v; }),
      changes_no_bit("ZeRO", {0U, 1U, 2U, 3U}, [](S& s, std::uint32_t v) { s.run.data.zero = v; }),
      changes_no_bit("shard group", {0U, 1U, 2U, 3U, 6U}, [](S& s, std::uint32_t v) { s.run.data.shard_group = v; }),
      changes_no_bit("canonical", {false, true}, [](S& s, bool v) { s.run.data.canonical = v; }),
      changes_no_bit("schedule", {"none", "layerwise", "gpipe", "1f1b", "interleaved x2", "interleaved x3", "zb-h1", "zb-v", "dualpipe-v", "chimera"}, [](S& s, Word v) { s.schedule = v; }),
      changes_no_bit("pipeline ranks", {1U, 2U, 3U, 4U}, [](S& s, std::uint32_t v) { s.pipeline_ranks = v; }),
      changes_no_bit("stages", {"even", "uneven"}, [](S& s, Word v) { s.stages = v; }),
      changes_no_bit("order", {"horizontal", "vertical", "groups of 2"}, [](S& s, Word v) { s.run.order = order_named(v); }),
      changes_no_bit("phases", {false, true}, [](S& s, bool v) { s.run.sizes.phases = v; }),
      changes_no_bit("activations", {"kept", "recomputed", "offloaded", "both", "mixed"}, [](S& s, Word v) { s.activations = v; }),
      changes_no_bit("tiers", {"device", "host", "disk"}, [](S& s, Word v) { s.tiers = v; }),
      changes_no_bit("chunk elements", {0, 1, 6'000, 20'000}, [](S& s, int v) { s.run.chunk_elements = static_cast<std::uint64_t>(v); }),
      changes_no_bit("update place", {"planned", "host", "device", "half"}, put_update_place),
      changes_no_bit("updates wait", {"for the norm", "for the norm less 2 layers", "for the norm less all layers", "never", "of 2 layers", "of every layer"}, put_waiting),
      changes_no_bit("prefetch depth", {kAutoDepth, 0U, 1U, 4U}, [](S& s, std::uint32_t v) { s.run.depth = v; }),
      changes_no_bit("gather ahead", {kAutoDepth, 0U, 1U, 2U}, [](S& s, std::uint32_t v) { s.run.gather_ahead = v; }),
      changes_no_bit("threads", {1, 2, 3}, [](S& s, int v) { s.run.threads = v; }),
      changes_no_bit("ranks a machine", {0, 2, 3}, [](S& s, int v) { s.ranks.ranks_per_machine = v; s.run.profile.links.ranks_per_node = static_cast<std::uint32_t>(v); }),
      changes_no_bit("messages late by us", {0, 300}, [](S& s, int v) { s.messages = {.seed = 1, .longest_delay = std::chrono::microseconds(v)}; }),
      changes_no_bit("begins", {"here", "here, stopped", "on one rank", "on three ranks", "here, ends on one rank"}, [](S& s, Word v) { s.begins = v; }),
  };
  return all;
}
// clang-format on

inline std::size_t number_of(std::string_view name) {
  for (std::size_t d = 0; d < dimensions().size(); ++d)
    if (dimensions()[d].name == name) return d;
  throw std::logic_error(fmt::format("there is no dimension '{}'", name));
}

// The product's refusal of these settings; empty if it accepts them.
inline std::string refusal_of(Settings s) {
  return error_of([&] {
    s.settle();
    if (s.run.pipeline) static_cast<void>(pipeline::placement_of(*s.run.pipeline));
    planning::check_request(toy::make_model(s.run.sizes), toy::request_of(s.run));
  });
}

using Names = std::initializer_list<const char*>;
inline CoveringRule rule(Names names, const std::function<bool(const Settings&)>& allows) {
  CoveringRule r;
  for (const auto* const name : names) r.factors.push_back(number_of(name));
  r.allows = [factors = r.factors, allows](std::span<const int> levels) {
    Settings s;
    for (std::size_t i = 0; i < factors.size(); ++i) dimensions()[factors[i]].put(s, static_cast<std::size_t>(levels[i]));
    return allows(s);
  };
  return r;
}
// Tries a pipeline of two ranks, unless the rule names their number.
inline CoveringRule asks(Names names) {
  const bool names_ranks = std::ranges::any_of(names, [](std::string_view name) { return name == "pipeline ranks"; });
  return rule(names, [names_ranks](Settings s) {
    if (!names_ranks && s.schedule != "none") s.pipeline_ranks = 2;
    return refusal_of(s).empty();
  });
}
inline CoveringRule because(const char* /*reason*/, Names names, bool (*allows)(const Settings&)) {
  return rule(names, allows);
}

inline std::vector<CoveringRule> rules() {
  return {
      asks({"data ranks", "ZeRO", "shard group", "canonical"}),
      asks({"gradients travel as", "canonical"}),
      asks({"gradients travel as", "numbers"}),
      asks({"gradients travel as", "schedule"}),
      asks({"schedule", "pipeline ranks", "data ranks"}),
      asks({"tied", "blocks", "schedule", "pipeline ranks", "stages"}),
      asks({"schedule", "data ranks", "ZeRO", "shard group"}),
      because("only canonical sums of several ranks are those of one rank", {"canonical", "data ranks", "schedule"},
              [](const Settings& s) { return s.run.data.canonical || (s.run.data.ranks == 1 && s.schedule != "chimera"); }),
      because("without a schedule there is no pipeline, and a schedule is the order of its ranks",
              {"schedule", "pipeline ranks", "stages", "order"},
              [](const Settings& s) {
                return s.schedule == "none" ? s.pipeline_ranks == 1 && s.stages == "even" : s.run.order == Order::horizontal;
              }),
      because("more threads would take too long on two cores", {"pipeline ranks", "data ranks"},
              [](const Settings& s) { return s.pipeline_ranks * s.run.data.ranks <= 16; }),
      because("the trainer refuses updates that do not wait for a norm that it needs", {"updates wait", "clip", "loss scale"},
              [](const Settings& s) {
                return s.run.before_use ||
                       !Trainer::needs_norm(*s.run.greatest_norm, NonFinite::stop, LossScale::parse(s.run.loss_scale),
                                            parse_param_groups(s.run.param_groups));
              }),
      asks({"updates wait", "optimizer", "schedule", "ZeRO", "data ranks"}),
      because("an update that did not wait cannot be skipped", {"updates wait", "step that is not finite"},
              [](const Settings& s) { return s.run.before_use || s.run.not_finite_step == 0; }),
  };
}

inline CoveringRows covering_rows(std::uint64_t seed) {
  std::vector<int> levels;
  for (const auto& d : dimensions()) levels.push_back(static_cast<int>(d.values.size()));
  return {levels, 2, rules(), seed};
}

// With `bits_alone`, sets only what reaches the bits: this is the reference run, on one rank with everything in memory.
inline Settings settings_of(const Row& row, bool bits_alone) {
  Settings s;
  for (std::size_t d = 0; d < row.size(); ++d)
    if (row[d] != kUnset && (dimensions()[d].reaches_bits || !bits_alone))
      dimensions()[d].put(s, static_cast<std::size_t>(row[d]));
  s.settle();
  return s;
}

// "numbers fp32 fp32, optimizer muon, …": the settings that have a value.
inline std::string in_words(const Row& row) {
  std::string text;
  for (std::size_t d = 0; d < row.size(); ++d)
    if (row[d] != kUnset)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", dimensions()[d].name,
                          dimensions()[d].values[static_cast<std::size_t>(row[d])]);
  return text;
}

}  // namespace terrace::test
