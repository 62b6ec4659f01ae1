#include <terrace/parallel/passes/asynchronous_passes.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <terrace/parallel/passes/passes.h>

namespace terrace::passes {
namespace {

bool has_weight_half(Op op) { return op == Op::backward || op == Op::backward_weight; }

}  // namespace

Program with_norm_of_each_update(const Program& program, const StepMap& map) {
  Program out{program.layers, program.micro_batches, {}};
  const auto completes = [&](const Action& a) {
    if (map.data().reduces()) return a.op == Op::reduce && a.chunk + 1 == map.reduced_groups(a.layer);
    return has_weight_half(a.op);
  };
  for (const auto& a : program.actions) {
    out.actions.push_back(a);
    if (completes(a) && map.rounds().ends_gradient(a.micro_batch))
      out.actions.push_back({.op = Op::norm, .layer = a.layer, .update = a.micro_batch / map.rounds().every});
  }
  return out;
}

Program with_updates_after_verdicts(const Program& program, const StepMap& map) {
  Program out{program.layers, program.micro_batches, {}};
  std::vector<std::optional<std::uint32_t>> pending(program.layers);
  std::uint32_t layers_here = 0, norms = 0;
  for (std::uint32_t l = 0; l < program.layers; ++l) layers_here += map.pipeline().holds(l) ? 1 : 0;
  const auto apply = [&](std::uint32_t layer) {
    for (std::uint32_t c = 0; pending[layer] && c < map.updates_of(layer); ++c)
      add_update(out, map, {.op = Op::update, .layer = layer, .chunk = c, .update = *pending[layer]});
    pending[layer].reset();
  };
  for (const auto& a : program.actions) {
    if (has_weight_half(a.op) && map.rounds().begins_gradient(a.micro_batch)) apply(a.layer);
    out.actions.push_back(a);
    if (a.op != Op::norm) continue;
    pending[a.layer] = a.update;
    if (++norms % layers_here == 0) out.actions.push_back({.op = Op::verdict, .update = a.update});
  }
  for (std::uint32_t l = 0; l < program.layers; ++l) apply(l);
  for (std::uint32_t u = 0; layers_here == 0 && u < map.rounds().updates(); ++u)  // the other ranks wait for this rank too
    out.actions.push_back({.op = Op::verdict, .update = u});
  return out;
}

Program with_versions(const Program& program, const StepMap& map) {
  if (!map.pipeline().asynchronous()) return program;
  const auto& pipeline = map.pipeline();
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> last_use;  // layer, version
  for (std::size_t i = 0; i < program.actions.size(); ++i)
    if (const auto& a = program.actions[i]; is_layer_action(a.op))
      last_use[{a.layer, pipeline.reads_version(a.layer, a.micro_batch)}] = i;
  struct LayerCopies {
    std::uint32_t made = 0;                           // updates so far
    std::vector<std::optional<std::uint32_t>> holds;  // [copy]: the weight version in it
  };
  std::vector<LayerCopies> layers(program.layers);
  for (std::uint32_t l = 0; l < program.layers; ++l) layers[l].holds.resize(pipeline.kept_copies(l));

  Program out{program.layers, program.micro_batches, {}};
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    auto a = program.actions[i];
    auto& [made, holds] = layers[a.layer];
    const auto copy_of = [&holds = holds](std::optional<std::uint32_t> version) {
      return static_cast<std::uint32_t>(std::ranges::find(holds, version) - holds.begin()) + 1;
    };
    if (a.op == Op::update) {
      const auto last = last_use.find({a.layer, made});
      if (last != last_use.end() && last->second > i) {
        if (a.chunk == 0) holds.at(copy_of(std::nullopt) - 1) = made;
        const auto groups = map.updates_of(a.layer) == map.layout().groups_of(a.layer) ? 1 : map.layout().groups_of(a.layer);
        for (std::uint32_t g = 0; g < groups; ++g)
          out.actions.push_back({.op = Op::keep, .layer = a.layer, .chunk = a.chunk + g, .copy = copy_of(made)});
      }
      if (a.chunk + 1 == map.updates_of(a.layer)) ++made;
    }
    if (!is_layer_action(a.op)) {
      out.actions.push_back(a);
      continue;
    }
    const auto version = pipeline.reads_version(a.layer, a.micro_batch);
    a.copy = version == made ? 0 : copy_of(version);
    out.actions.push_back(a);
    if (a.copy == 0 || last_use.at({a.layer, version}) != i) continue;
    out.actions.push_back({.op = Op::release, .layer = a.layer, .copy = a.copy});
    holds.at(a.copy - 1).reset();
  }
  return out;
}

}  // namespace terrace::passes
