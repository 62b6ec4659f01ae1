#include <terrace/parallel/passes.h>

#include <algorithm>
#include <map>
#include <vector>

namespace terrace {
namespace {

bool is_backward(Op op) { return op == Op::backward || op == Op::backward_weight || op == Op::backward_input; }
bool is_chunk_action(Op op) { return op == Op::update || op == Op::fill || op == Op::visit; }

}  // namespace

Program with_recompute(const Program& program, const StepMap& map) {
  Program out{program.layers, program.micro_batches, {}};
  for (const auto& a : program.actions) {
    const bool needs_saved = a.op == Op::backward || a.op == Op::backward_input;
    if (needs_saved && a.layer + 1 != program.layers && map.saved_pack(a.layer).bytes != 0)
      out.actions.push_back({.op = Op::recompute, .layer = a.layer, .micro_batch = a.micro_batch});
    out.actions.push_back(a);
  }
  return out;
}

Program with_norms(Program program) {
  std::vector<std::size_t> last(program.layers, 0);
  for (std::size_t i = 0; i < program.actions.size(); ++i)
    if (is_backward(program.actions[i].op)) last[program.actions[i].layer] = i;
  Program out{program.layers, program.micro_batches, {}};
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const auto& a = program.actions[i];
    out.actions.push_back(a);
    if (is_backward(a.op) && last[a.layer] == i) out.actions.push_back({.op = Op::norm, .layer = a.layer});
  }
  return out;
}

Program with_updates(Program program, const StepMap& map, Updates updates) {
  if (updates == Updates::none) return program;
  Program out{program.layers, program.micro_batches, {}};
  std::vector<bool> seen(program.layers, false);
  const auto add_updates = [&](std::uint32_t layer) {
    for (std::uint32_t c = 0; c < map.layout().chunks_of(layer); ++c)
      out.actions.push_back({.op = Op::update, .layer = layer, .chunk = c});
  };
  for (const auto& a : program.actions) {
    if (updates == Updates::before_use && !seen[a.layer]) add_updates(a.layer);
    seen[a.layer] = true;
    out.actions.push_back(a);
    if (updates == Updates::in_backward && a.op == Op::norm) add_updates(a.layer);
  }
  return out;
}

Program with_prefetches(Program program, const StepMap& map, std::uint32_t depth) {
  if (depth == 0) return program;
  const auto& actions = program.actions;
  // Stages: one layer action each, with the chunk actions before it.
  std::vector<std::size_t> stage_of(actions.size()), stage_begin{0};
  const bool only_chunks = std::ranges::all_of(actions, [](const Action& a) { return is_chunk_action(a.op); });
  std::size_t stage = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    stage_of[i] = stage;
    if (only_chunks || !is_chunk_action(actions[i].op)) {
      ++stage;
      stage_begin.push_back(i + 1);
    }
  }
  // Where each prefetch goes: `depth` stages ahead, but after the last write of the chunk and after its last use on that tier.
  std::map<std::uint32_t, std::size_t> last_write;
  std::map<std::pair<std::uint32_t, Tier>, std::size_t> last_use;
  std::vector<std::vector<Action>> before(actions.size() + 1);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const auto tier = map.tier_of(actions[i]);
    const auto uses = map.uses(actions[i]);
    const auto earliest = stage_begin[stage_of[i] >= depth ? stage_of[i] - depth : 0];
    for (const auto& use : uses) {
      if (!needs_content(use.access)) continue;
      std::size_t at = earliest;
      if (const auto w = last_write.find(index(use.chunk)); w != last_write.end()) at = std::max(at, w->second + 1);
      if (const auto u = last_use.find({index(use.chunk), tier}); u != last_use.end()) at = std::max(at, u->second + 1);
      if (at < i) before[at].push_back({.op = Op::prefetch, .chunk = index(use.chunk), .tier = tier});
    }
    for (const auto& use : uses) {
      if (writes(use.access)) last_write[index(use.chunk)] = i;
      last_use[{index(use.chunk), tier}] = i;
    }
    for (const auto dead : map.dead_after(actions[i])) last_write[index(dead)] = i;
  }
  Program out{program.layers, program.micro_batches, {}};
  for (std::size_t i = 0; i < actions.size(); ++i) {
    out.actions.insert(out.actions.end(), before[i].begin(), before[i].end());
    out.actions.push_back(actions[i]);
  }
  return out;
}

}  // namespace terrace
