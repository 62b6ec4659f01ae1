#include <terrace/parallel/passes/passes.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace terrace::passes {

Program without_frozen(const Program& program, const StepMap& map) {
  if (!map.layout().has_frozen()) return program;
  Program out{program.layers, program.micro_batches, {}};
  const auto first = map.layout().first_trained();
  for (auto a : program.actions) {
    const bool trains = map.layout().trains(a.layer);
    if (is_backward(a.op) && a.layer < first) continue;
    if (is_message(a.op) && a.payload == Payload::gradient && a.layer <= first) continue;  // of the input of layer `first`
    if ((a.op == Op::backward_weight || a.op == Op::reduce) && !trains) continue;
    if (a.op == Op::backward && !trains) a.op = Op::backward_input;
    out.actions.push_back(a);
  }
  return out;
}

Program with_recompute(const Program& program, const StepMap& map) {
  Program out{program.layers, program.micro_batches, {}};
  for (const auto& a : program.actions) {
    const bool needs_saved = a.op == Op::backward || a.op == Op::backward_input;
    if (needs_saved && map.recomputes(a.layer))
      out.actions.push_back({.op = Op::recompute, .layer = a.layer, .micro_batch = a.micro_batch});
    out.actions.push_back(a);
  }
  return out;
}

Program with_offloads(const Program& program, const StepMap& map) {
  Program out{program.layers, program.micro_batches, {}};
  using Place = std::pair<std::uint32_t, std::uint32_t>;  // layer, micro-batch
  std::map<Place, std::size_t> behind;                    // the forward, or the last send of its input to the reader of a skip
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const auto& a = program.actions[i];
    const bool sends_input = a.op == Op::send && a.payload == Payload::activation && behind.contains({a.layer, a.micro_batch});
    if (sends_input || (a.op == Op::forward && map.offloads(a.layer))) behind[{a.layer, a.micro_batch}] = i;
  }
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const auto& a = program.actions[i];
    out.actions.push_back(a);
    const auto at = behind.find({a.layer, a.micro_batch});
    if (at != behind.end() && at->second == i && !map.offloaded_behind(a.layer, a.micro_batch).empty())
      out.actions.push_back({.op = Op::offload, .layer = a.layer, .micro_batch = a.micro_batch});
  }
  return out;
}

Program with_reductions(const Program& program, const StepMap& map, bool beside_next) {
  const auto& data = map.data();
  Program out{program.layers, program.micro_batches, {}};
  if (map.pipeline().replicas() > 1) {
    for (const auto& a : program.actions)
      for (std::uint32_t g = 0; g < (a.op == Op::reduce ? map.reduced_groups(a.layer) : 1); ++g) {
        out.actions.push_back(a);
        if (a.op == Op::reduce) out.actions.back().chunk = g;
      }
    return out;
  }
  if (!data.reduces()) return program;
  std::vector<Action> later;  // the delayed reductions of one backward
  const auto add_later = [&] {
    out.actions.insert(out.actions.end(), later.begin(), later.end());
    later.clear();
  };
  for (const auto& a : program.actions) {
    const bool gradients = is_backward(a.op) && a.op != Op::backward_input;
    if (gradients && !later.empty() && later.front().layer == a.layer)
      add_later();  // this backward overwrites the gradient that they read
    out.actions.push_back(a);
    if (!gradients) continue;
    add_later();
    if (!data.folds_each() && !map.rounds().ends_gradient(a.micro_batch)) continue;
    for (std::uint32_t g = 0; g < map.reduced_groups(a.layer); ++g)
      later.push_back({.op = Op::reduce, .layer = a.layer, .micro_batch = a.micro_batch, .chunk = g});
    if (!beside_next) add_later();
  }
  add_later();
  return out;
}

Program with_norms(Program program, const StepMap& map) {
  const auto completes = [](Op op) { return is_backward(op) || op == Op::reduce; };
  std::vector<std::size_t> last(program.layers, 0);
  for (std::size_t i = 0; i < program.actions.size(); ++i)
    if (completes(program.actions[i].op)) last[program.actions[i].layer] = i;
  Program out{program.layers, program.micro_batches, {}};
  // While a layer's gradient is reduced, the next layer computes. In a pipeline, other ranks wait for this rank's results, so
  // its norms, which wait for reductions, come after all its backwards.
  const bool at_end = map.pipeline().ranks > 1;
  std::vector<Action> later;
  const auto add_later = [&] {
    out.actions.insert(out.actions.end(), later.begin(), later.end());
    later.clear();
  };
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const auto& a = program.actions[i];
    out.actions.push_back(a);
    if (is_backward(a.op) && !at_end) add_later();
    if (!completes(a.op) || last[a.layer] != i || map.layout().trained_chunks(a.layer) == 0) continue;
    (a.op == Op::reduce ? later : out.actions).push_back({.op = Op::norm, .layer = a.layer});
  }
  add_later();
  return out;
}

Program with_unions(const Program& program, const StepMap& map) {
  if (map.parts().ranks() == 1) return program;
  Program out{program.layers, program.micro_batches, {}};
  for (const auto& a : program.actions) {
    if (a.op == Op::norm && map.unifies(a.layer))
      out.actions.push_back({.op = Op::unify, .layer = a.layer, .update = a.update});
    out.actions.push_back(a);
  }
  return out;
}

Program with_tied_gradients(const Program& program, const StepMap& map) {
  if (!map.layout().has_tied() ||
      map.pipeline().holds(map.layout().tied_home()) == map.pipeline().holds(map.layout().tied_layer()))
    return program;
  const auto home = map.layout().tied_home();
  const bool sends = map.pipeline().holds(map.layout().tied_layer());
  const auto peer = map.pipeline().holder(sends ? home : map.layout().tied_layer());
  Program out{program.layers, program.micro_batches, {}};
  const auto exchange = [&] {
    for (std::uint32_t g = 0; g < map.layout().tied_groups(); ++g)
      out.actions.push_back(
          {.op = sends ? Op::send : Op::receive, .layer = home, .chunk = g, .payload = Payload::tied_gradient, .peer = peer});
  };
  for (const auto& a : program.actions) {
    if (!sends && a.op == Op::norm && a.layer == home) exchange();
    out.actions.push_back(a);
  }
  if (sends) exchange();  // last, so that the exchange delays no backward for which another rank waits
  return out;
}

namespace {

// A stretch: consecutive layer actions that use the same gathered weights (one layer, one weight version).
struct Stretch {
  std::uint32_t layer = 0, copy = 0;
  std::size_t first = 0, last = 0;  // numbers of layer actions in the program
  std::size_t not_before = 0;       // the first layer action at which these weights exist
};

std::vector<Stretch> stretches(const Program& program, const StepMap& map) {
  std::vector<Stretch> all;
  std::map<std::uint32_t, std::size_t> latest;   // by layer: its stretch so far
  std::map<std::uint32_t, std::size_t> updated;  // by layer: the first layer action after its last update
  const auto use = [&](std::uint32_t layer, std::uint32_t copy, std::size_t at) {
    const auto known = latest.find(layer);
    if (known != latest.end()) {
      auto& s = all[known->second];
      if (s.last + 1 >= at && s.copy == copy && updated[layer] <= s.last) {
        s.last = at;
        return;
      }
    }
    latest[layer] = all.size();
    all.push_back({layer, copy, at, at, updated[layer]});
  };
  std::size_t at = 0;
  for (const auto& a : program.actions) {
    if (a.op == Op::update) updated[a.layer] = at;
    if (!is_layer_action(a.op)) continue;
    use(a.layer, a.copy, at);
    if (a.layer == map.layout().tied_layer()) use(map.layout().tied_home(), 0, at);
    ++at;
  }
  return all;
}

}  // namespace

Program with_gathers(const Program& program, const StepMap& map, std::uint32_t ahead) {
  if (!map.data().gathers_before_use()) return program;
  const auto layer_actions =
      static_cast<std::size_t>(std::ranges::count_if(program.actions, [](const Action& a) { return is_layer_action(a.op); }));
  std::vector<std::vector<Stretch>> gathers(layer_actions), releases(layer_actions);
  std::map<std::uint32_t, std::size_t> free_from;  // a layer's gathered weights exist only once at any time
  for (const auto& s : stretches(program, map)) {
    const auto early = s.first >= ahead ? s.first - ahead : 0;
    gathers[std::max({early, s.not_before, free_from[s.layer]})].push_back(s);
    releases[s.last].push_back(s);
    free_from[s.layer] = s.last + 1;
  }

  Program out{program.layers, program.micro_batches, {}};
  std::size_t at = 0;
  for (const auto& a : program.actions) {
    if (!is_layer_action(a.op)) {
      out.actions.push_back(a);
      continue;
    }
    for (const auto& s : gathers[at])
      for (std::uint32_t c = 0; c < map.layout().groups_of(s.layer); ++c)
        out.actions.push_back({.op = Op::gather, .layer = s.layer, .chunk = c, .copy = s.copy});
    out.actions.push_back(a);
    for (const auto& s : releases[at]) out.actions.push_back({.op = Op::release, .layer = s.layer});
    ++at;
  }
  return out;
}

void add_weight_messages(Program& program, const StepMap& map, const Action& after) {
  const bool copies = map.copies(after.layer);
  const auto peer = copies ? map.pipeline().holder(after.layer) : map.copied_to(after.layer);
  if (peer == map.pipeline().rank) return;
  const auto groups = map.layout().trained_groups(after.layer);
  const bool whole = after.op == Op::update && map.updates_of(after.layer) != groups;
  for (auto g = whole ? 0 : after.chunk; g < (whole ? groups : after.chunk + 1); ++g)
    program.actions.push_back(
        {.op = copies ? Op::receive : Op::send, .layer = after.layer, .chunk = g, .payload = Payload::weights, .peer = peer});
}

void add_update(Program& program, const StepMap& map, const Action& update) {
  const auto layer = update.layer;
  const bool whole = map.options().layer_unit.has_value();
  if (!map.copies(layer)) {
    if (map.halves_updates()) program.actions.push_back({.op = Op::prepare, .layer = layer, .update = update.update});
    if (!map.layer_needs(layer).exchanges.empty())
      program.actions.push_back({.op = Op::exchange, .layer = layer, .update = update.update});
    program.actions.push_back(update);
  }
  add_weight_messages(program, map, update);
  for (auto g = whole ? 0 : update.chunk;
       map.data().gathers_updates() && g < (whole ? map.layout().trained_groups(layer) : update.chunk + 1); ++g)
    program.actions.push_back({.op = Op::gather, .layer = layer, .chunk = g});
}

namespace {

// A stage is one layer action with the chunk actions before it. of: the stage of each action; begin: where each stage begins.
struct Stages {
  std::vector<std::size_t> of, begin{0};
};
Stages stages_of(const std::vector<Action>& actions) {
  Stages stages;
  stages.of.reserve(actions.size());
  const bool only_chunks = std::ranges::all_of(actions, [](const Action& a) { return is_chunk_action(a.op); });
  for (const auto& a : actions) {
    stages.of.push_back(stages.begin.size() - 1);
    if (only_chunks || !(is_chunk_action(a.op) || is_placement(a.op))) stages.begin.push_back(stages.of.size());
  }
  return stages;
}

}  // namespace

Program with_updates(Program program, const StepMap& map, Updates updates, std::uint32_t ahead, const LayerSet& layers) {
  if (updates == Updates::none) return program;
  Program out{program.layers, program.micro_batches, {}};
  std::vector<std::uint32_t> updated(program.layers, 0);  // groups
  const auto add_update = [&](std::uint32_t layer, std::uint32_t number = 0) {
    terrace::passes::add_update(out, map, {.op = Op::update, .layer = layer, .chunk = updated[layer]++, .update = number});
  };
  const auto add_updates = [&](std::uint32_t layer, std::uint32_t number = 0) {
    while (updated[layer] < map.updates_of(layer)) add_update(layer, number);
  };
  const auto add_copies = [&] {
    for (std::uint32_t l = 0; l < program.layers; ++l)
      if (map.copies(l) && layers.contains(l)) add_updates(l);
  };
  const auto add_before = [&](const Action& use) {
    if (is_message(use.op) || use.op == Op::unify || !layers.contains(use.layer)) return;  // these do not use the weights
    if (use.op != Op::gather) return add_updates(use.layer);
    if (use.chunk == updated[use.layer] && use.chunk < map.updates_of(use.layer))
      add_update(use.layer);  // the next group is updated while this one is gathered
  };
  if (updates == Updates::before_use) add_copies();  // early, so that the other rank need not wait for them
  const auto stages = ahead > 0 ? stages_of(program.actions) : Stages{};
  std::size_t soon = 0;  // the first action whose layer may still have to be updated
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const auto& a = program.actions[i];
    const auto is_near = [&](std::size_t use) { return ahead > 0 ? stages.of[use] <= stages.of[i] + ahead : use <= i; };
    for (; updates == Updates::before_use && soon < program.actions.size() && is_near(soon); ++soon)
      add_before(program.actions[soon]);
    out.actions.push_back(a);
    if (a.op != Op::norm || !layers.contains(a.layer)) continue;
    for (; updates == Updates::early && updated[a.layer] < map.updates_of(a.layer); ++updated[a.layer])
      out.actions.push_back({.op = Op::early, .layer = a.layer, .chunk = updated[a.layer]});
    if (updates != Updates::in_backward) continue;
    if (a.update != 0) updated[a.layer] = 0;
    add_updates(a.layer, a.update);
  }
  for (std::uint32_t l = 0; updates == Updates::all && l < program.layers; ++l)
    if (layers.contains(l) && (map.pipeline().holds(l) || map.copies(l))) add_updates(l);
  if (updates == Updates::in_backward) add_copies();
  return out;
}

Program with_restores(const Program& program, const StepMap& map) {
  if (map.options().early.empty()) return program;
  Program out{program.layers, program.micro_batches, {}};
  for (const auto& a : program.actions) {
    if (a.op == Op::update && map.options().early.contains(a.layer))
      out.actions.push_back({.op = Op::restore, .layer = a.layer, .chunk = a.chunk});
    out.actions.push_back(a);
  }
  return out;
}

// With a larger distance, places that are not used yet would evict chunks that are needed earlier.
constexpr std::uint32_t kPlacesAhead = 4;

Program with_prefetches(Program program, const StepMap& map, std::uint32_t depth) {
  if (depth == 0) return program;
  const auto& actions = program.actions;
  const auto stages = stages_of(actions);
  // With several ranks, a collective may still use a place that is reserved early.
  const bool alone = map.data().all() == 1 && map.pipeline().ranks == 1 && map.parts().ranks() == 1;
  const auto ahead = [&](std::size_t of, std::size_t distance) { return stages.begin[of - std::min(of, distance)]; };
  // Each prefetch goes `depth` stages ahead (at most four if it only reserves a place on the device), but after the chunk's
  // last write and its last use on that tier. [chunk]: the first position after them; 0: none.
  std::vector<std::size_t> after_write(map.chunks().size());
  PerTier<std::vector<std::size_t>> after_use;
  for (auto& places : after_use) places.resize(map.chunks().size());
  struct Placed {
    std::size_t before = 0;
    Action action;
  };
  std::vector<Placed> prefetches;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const auto tier = map.places().tier_of(actions[i]);
    const auto uses = map.uses(actions[i]);
    const auto earliest = ahead(stages.of[i], depth), earliest_place = ahead(stages.of[i], std::min(depth, kPlacesAhead));
    const bool may_need_nothing =
        has_phases(actions[i].op)
            ? map.phases().is_optional(actions[i])
            : actions[i].op == Op::restore || (actions[i].op == Op::update && map.options().early.contains(actions[i].layer));
    for (const auto& use : uses) {
      if (may_need_nothing) break;
      const bool content = needs_content(use.access);
      if (!content && (!alone || tier != Tier::device || is_chunk_action(actions[i].op) || !map.chunks().leads_run(use.chunk)))
        continue;
      const auto at =
          std::max({content ? earliest : earliest_place, after_write[index(use.chunk)], after_use[tier][index(use.chunk)]});
      if (at < i) prefetches.push_back({at, {.op = Op::prefetch, .chunk = index(use.chunk), .tier = tier}});
    }
    for (const auto& use : uses) {
      if (writes(use.access)) after_write[index(use.chunk)] = i + 1;
      after_use[tier][index(use.chunk)] = i + 1;
    }
    if (actions[i].op == Op::offload)  // prefetches of these chunks must come after it
      for (const auto chunk : map.offloaded_behind(actions[i].layer, actions[i].micro_batch))
        after_use[Tier::device][index(chunk)] = i + 1;
    for (const auto dead : map.dead_after(actions[i])) after_write[index(dead)] = i + 1;
  }
  std::ranges::stable_sort(prefetches, {}, &Placed::before);
  Program out{program.layers, program.micro_batches, {}};
  out.actions.reserve(actions.size() + prefetches.size());
  auto next = prefetches.begin();
  for (std::size_t i = 0; i < actions.size(); ++i) {
    for (; next != prefetches.end() && next->before == i; ++next) out.actions.push_back(next->action);
    out.actions.push_back(actions[i]);
  }
  return out;
}

}  // namespace terrace::passes
