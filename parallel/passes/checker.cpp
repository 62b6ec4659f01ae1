#include <terrace/parallel/passes/checker.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include <terrace/core/base/error.h>

namespace terrace::passes {
namespace {

// The effects of the program so far. Each action is checked just before it takes effect.
class StepChecker {
 public:
  StepChecker(const Program& program, const StepMap& map, const UpdateTimes& updates)
      : program_(program), map_(map), updates_(updates), content_(map.chunks().size(), false), layers_(program.layers) {
    for (std::uint32_t c = 0; c < map.chunks().size(); ++c) {
      const auto kind = map.chunks()[ChunkId(c)].kind;
      content_[c] = kind != ChunkKind::activation && kind != ChunkKind::gradient;  // state is there from the step before
    }
    for (std::uint32_t l = 0; l < program.layers; ++l)
      if (updates.of(l) == Updates::before_use && map.pipeline().holds(l))
        for (const auto i : map.final_gradients(l)) content_[index(map.state(ChunkKind::gradient, l, i))] = true;
    for (std::uint32_t c = 0; c < map.chunks().size(); ++c)
      if (const auto& chunk = map.chunks()[ChunkId(c)]; chunk.role == mapping::Role::previous)
        content_[c] = updates.of(chunk.layer) == Updates::before_use;
    for (std::uint32_t l = 0; l < program.layers; ++l) {
      layers_[l].forward.resize(program.micro_batches);
      layers_[l].backward.resize(program.micro_batches);
      layers_[l].input_half.resize(program.micro_batches);
      layers_[l].updated.resize(map.updates_of(l));
      layers_[l].early.resize(map.updates_of(l));
      layers_[l].restored.resize(map.updates_of(l));
      layers_[l].exchanged.resize(map.layout().groups_of(l));
      layers_[l].gathered.resize(map.layout().groups_of(l), true);
      layers_[l].version.resize(map.layout().groups_of(l));
      layers_[l].reduced.resize(map.reduced_groups(l));
      layers_[l].kept.resize(map.pipeline().kept_copies(l));
    }
  }

  void run() {
    if (program_.layers != map_.layers() || program_.micro_batches != map_.micro_batches())
      throw Error(fmt::format("the program is for {} layers and {} micro-batches, the model has {} and {}", program_.layers,
                              program_.micro_batches, map_.layers(), map_.micro_batches()),
                  ErrorKind::refused);
    for (position_ = 0; position_ < program_.actions.size(); ++position_) step(program_.actions[position_]);
    finish();
  }

 private:
  struct LayerState {
    std::vector<bool> forward, backward, input_half, updated, early, restored;
    std::vector<bool> exchanged;         // [group], for weights with a copy on another rank: the new content has been exchanged
    std::vector<std::uint32_t> version;  // [group], for sharded weights: the weight version that is gathered
    std::vector<bool> gathered;          // [group]; false: the updated weights have not reached every rank yet
    std::vector<std::uint32_t> reduced;  // [group]: micro-batches whose gradients have been reduced
    std::uint32_t backwards = 0;
    bool norm = false;
    std::uint32_t unified = 0;              // gradients that have been unified
    bool prepared = false, shared = false;  // for a split update: its prepare and its exchange have run
    std::uint32_t made = 0;                 // updates made so far, if the program has several
    std::vector<std::uint32_t> kept;        // [copy]: the weight version that it holds
  };

  [[noreturn]] void fail(const Action& a, const std::string& why) const {
    throw Error(fmt::format("program action {} ({}): {}", position_, to_text(a), why), ErrorKind::refused);
  }

  void step(const Action& a) {
    if (a.op == Op::prefetch) {
      if (a.chunk >= map_.chunks().size()) fail(a, "there is no such chunk");
      return;
    }
    if (a.layer >= program_.layers) fail(a, "there is no such layer");
    if (a.op == Op::offload) return require_micro_batch(a);  // only a hint about where bytes should be
    if (a.op == Op::verdict) return verdict(a);
    if (is_message(a.op)) {
      message(a);
      return take_effect(a);
    }
    require_held(a);
    if (is_layer_action(a.op)) require_computed_here(a);
    if (a.copy > map_.pipeline().kept_copies(a.layer)) fail(a, "there is no such copy of the layer's weights");
    if (is_cut(a.op)) follow_phases(a);
    if (is_cut(a.op) && !map_.phases().is_first(a)) return take_effect(a);
    follow_order(a, layers_[a.layer]);
    if (is_layer_action(a.op)) {
      require_gathered(a);
      require_version(a);
    }
    take_effect(a);
  }

  void require_micro_batch(const Action& a) const {
    if (a.micro_batch >= program_.micro_batches) fail(a, "there is no such micro-batch");
  }
  void require_held(const Action& a) const {
    const bool weights_only = a.op == Op::gather || a.op == Op::release;
    if (!map_.pipeline().holds(a.layer) && !(weights_only && map_.copies(a.layer)))
      fail(a, "another rank of the pipeline holds this layer");
  }
  void require_computed_here(const Action& a) const {
    require_micro_batch(a);
    if (!map_.pipeline().computes(a.layer, a.micro_batch)) fail(a, "another rank computes this micro-batch");
  }

  // Checks that the action's layer has done everything that must come before.
  void follow_order(const Action& a, LayerState& layer) {
    switch (a.op) {
      case Op::forward: return forward(a, layer);
      case Op::recompute: return;
      case Op::backward:
      case Op::backward_weight: return backward(a, layer);
      case Op::backward_input: return backward_input(a, layer);
      case Op::norm: return norm(a, layer);
      case Op::reduce: return reduce(a);
      case Op::unify: return unify(a, layer);
      case Op::gather: return gather(a, layer);
      case Op::keep: return keep(a);
      case Op::release: return release(a);
      case Op::update: return update(a, layer);
      case Op::early: return early(a, layer);
      case Op::restore: return restore(a, layer);
      case Op::prepare: return prepare(a, layer);
      case Op::exchange: return exchange(a, layer);
      default: fail(a, "does not belong in a training step");
    }
  }

  void forward(const Action& a, LayerState& layer) {
    if (a.layer + 1 == program_.layers) fail(a, "the last layer's backward computes its forward too");
    once(a, layer.forward[a.micro_batch], "forward");
    require_updated(a);
  }

  void backward_input(const Action& a, LayerState& layer) {
    if (!map_.has_backward(a.layer)) fail(a, "nothing trains at the layer or below it");
    once(a, layer.input_half[a.micro_batch], "input half");
  }

  void backward(const Action& a, LayerState& layer) {
    if (!map_.layout().trains(a.layer)) fail(a, "all parameters of the layer are frozen");
    if (a.op == Op::backward_weight && !layer.input_half[a.micro_batch]) fail(a, "its input half has not run");
    if (a.op == Op::backward && layer.input_half[a.micro_batch]) fail(a, "its input half has run already");
    if (a.layer + 1 != program_.layers && !layer.forward[a.micro_batch]) fail(a, "its forward has not run");
    once(a, layer.backward[a.micro_batch], "backward");
    if (const auto next = next_micro_batch(a.layer); next != a.micro_batch)
      fail(a, fmt::format("gradients fold in micro-batch order, and m{} is next", next));
    ++layer.backwards;
    if (layer.norm) fail(a, "the layer's norm has been taken already");
    if (asynchronous_ && layer.made != a.micro_batch / map_.rounds().every)
      fail(a, "the layer's previous gradient has not been applied");
    require_updated(a);
  }

  void norm(const Action& a, LayerState& layer) {
    if (map_.layout().trained_chunks(a.layer) == 0) fail(a, "all parameters of the layer are frozen");
    if (a.update != layer.made) fail(a, fmt::format("update {} of the layer is next", layer.made));
    if (layer.backwards != backwards_until_update(layer))
      fail(a, fmt::format("{} of {} backwards have run", layer.backwards, backwards_until_update(layer)));
    if (!all_reduced(a.layer)) fail(a, "the layer's gradient has not been reduced between the ranks");
    if (map_.unifies(a.layer) && layer.unified != layer.made + 1) fail(a, "the tensor ranks' gradients have not been unified");
    once(a, layer.norm, "norm");
  }

  void unify(const Action& a, LayerState& layer) {
    if (!map_.unifies(a.layer)) fail(a, "no other tensor rank holds a parameter of the layer");
    if (layer.backwards != backwards_until_update(layer) || !all_reduced(a.layer))
      fail(a, "the layer's gradient is not complete");
    if (layer.unified++ != layer.made) fail(a, "its gradient has been unified already");
  }

  void gather(const Action& a, LayerState& layer) {
    const auto& data = map_.data();
    if (a.chunk >= layer.gathered.size()) fail(a, fmt::format("the layer has {} groups", layer.gathered.size()));
    if (updates_.of(a.layer) == Updates::before_use && !map_.is_frozen(a.layer, a.chunk) && !updated(a.layer, a.chunk))
      fail(a, "the weights have not been updated");
    if (a.copy != 0 && !data.gathers_before_use()) fail(a, "every rank holds all kept weights");
    if (data.gathers_updates() && layer.gathered[a.chunk]) fail(a, "every rank has these weights already");
    if (!data.gathers_updates() && !data.gathers_before_use()) fail(a, "every rank holds all weights");
    if (data.gathers_before_use() && content_[index(map_.gathered(a.layer, a.chunk))])
      fail(a, "these weights have been gathered already");
    layer.gathered[a.chunk] = true;
    layer.version[a.chunk] = a.copy != 0 ? layer.kept[a.copy - 1] : layer.made + (updated_so_far(layer, a.chunk) ? 1 : 0);
  }

  void release(const Action& a) const {
    if (a.copy == 0 && !map_.data().gathers_before_use()) fail(a, "no weights were gathered that it could release");
    for (const auto c : map_.dead_after(a))
      if (!content_[index(c)]) fail(a, map_.describe(c) + " does not exist and cannot be released");
  }

  void update(const Action& a, LayerState& layer) {
    if (updates_.of(a.layer) == Updates::none) fail(a, "this step must not contain updates of the layer");
    if (a.chunk >= layer.updated.size()) fail(a, fmt::format("the layer has {} updates", layer.updated.size()));
    if (is_early(a.layer) && !layer.restored[a.chunk]) fail(a, "its state from before the early update has not been restored");
    once(a, layer.updated[a.chunk], "update");
    if (map_.halves_updates() && !layer.prepared) fail(a, "its prepare action has not run");
    if (!map_.layer_needs(a.layer).exchanges.empty() && !layer.shared) fail(a, "its exchange action has not run");
    require_complete(a);
    if (map_.data().gathers_updates()) {
      if (map_.options().layer_unit)
        std::fill_n(layer.gathered.begin(), map_.layout().trained_groups(a.layer), false);
      else
        layer.gathered[a.chunk] = false;
    }
    if (asynchronous_ && std::ranges::all_of(layer.updated, [](bool u) { return u; })) begin_next_update(layer);
  }
  // In every step that contains them, in the backward and before the pending update of the same chunk.
  void early(const Action& a, LayerState& layer) {
    if (!is_early(a.layer)) fail(a, "the layer is not updated early");
    if (a.chunk >= layer.early.size()) fail(a, fmt::format("the layer has {} updates", layer.early.size()));
    if (!layer.norm) fail(a, "the layer's gradient is not complete");
    once(a, layer.early[a.chunk], "early update");
  }
  void restore(const Action& a, LayerState& layer) {
    if (!is_early(a.layer) || updates_.of(a.layer) == Updates::none) fail(a, "no early update of the layer is pending");
    if (a.chunk >= layer.restored.size()) fail(a, fmt::format("the layer has {} updates", layer.restored.size()));
    if (layer.updated[a.chunk]) fail(a, "its pending update has run already");
    once(a, layer.restored[a.chunk], "restoration");
  }
  [[nodiscard]] bool is_early(std::uint32_t layer) const { return map_.options().early.contains(layer); }
  static void begin_next_update(LayerState& layer) {
    ++layer.made;
    layer.norm = layer.prepared = layer.shared = false;
    layer.reduced.assign(layer.reduced.size(), 0);
    layer.updated.assign(layer.updated.size(), false);
  }

  void prepare(const Action& a, LayerState& layer) {
    if (updates_.of(a.layer) == Updates::none || !map_.halves_updates())
      fail(a, "no update of this step needs a prepare action");
    once(a, layer.prepared, "preparation");
    require_complete(a);
  }

  void exchange(const Action& a, LayerState& layer) {
    if (map_.layer_needs(a.layer).exchanges.empty()) fail(a, "there is nothing to exchange");
    if (!layer.prepared) fail(a, "its prepare action has not run");
    once(a, layer.shared, "exchange");
  }

  // A call's phases run in their order, without another action of a layer between them.
  void follow_phases(const Action& a) {
    const auto& numbers = map_.phases().numbers(a.op, a.layer);
    const auto at = std::ranges::find(numbers, a.phase);
    if (at == numbers.end()) fail(a, "its call has no such phase");
    auto before = a;
    if (open_ && at != numbers.begin()) before.phase = at[-1];
    if (open_ ? at == numbers.begin() || before != *open_ : at != numbers.begin())
      fail(a, open_ ? "the next phase of '" + to_text(*open_) + "' must run first" : "the first phase of its call has not run");
    open_ = map_.phases().is_last(a) ? std::nullopt : std::optional(a);
  }

  // Backwards that this rank computes for each update: all micro-batches, or those of its direction.
  [[nodiscard]] std::uint32_t backwards_an_update() const { return map_.rounds().every / map_.pipeline().replicas(); }
  [[nodiscard]] std::uint32_t backwards_until_update(const LayerState& layer) const {
    return (layer.made + 1) * backwards_an_update();
  }
  [[nodiscard]] std::uint32_t next_micro_batch(std::uint32_t layer) const {
    const auto& p = map_.pipeline();
    return layers_[layer].backwards * p.replicas() + p.replica(layer) % p.replicas();
  }

  // Copies weights before they are updated.
  void keep(const Action& a) {
    auto& layer = layers_[a.layer];
    if (a.copy == 0) fail(a, "copy k0 is the updated weights; a kept copy is k1 or higher");
    if (a.chunk >= map_.layout().groups_of(a.layer))
      fail(a, fmt::format("the layer has {} groups", map_.layout().groups_of(a.layer)));
    if (layer.updated[map_.options().layer_unit ? 0 : a.chunk]) fail(a, "its weights have been updated already");
    for (const auto& use : map_.uses(a))
      if (writes(use.access) && content_[index(use.chunk)]) fail(a, map_.describe(use.chunk) + " exists already");
    layer.kept[a.copy - 1] = layer.made;
  }
  // Forward and backward of a micro-batch read the version that the order declares.
  void require_version(const Action& a) const {
    if (!asynchronous_) return;
    const auto& layer = layers_[a.layer];
    const auto wanted = map_.pipeline().reads_version(a.layer, a.micro_batch);
    const auto demand = [&](std::uint32_t read) {
      if (read != wanted)
        fail(a, fmt::format("it reads version {} of its weights, but the order requires version {}", read, wanted));
    };
    if (map_.data().gathers_before_use()) {
      std::ranges::for_each(layer.version, demand);
      return;
    }
    if (a.copy == 0 && any(layer.updated)) fail(a, "a part of its weights has been updated");
    demand(a.copy == 0 ? layer.made : layer.kept[a.copy - 1]);
  }
  [[nodiscard]] bool updated_so_far(const LayerState& layer, std::uint32_t group) const {
    const std::uint32_t number = map_.options().layer_unit ? 0 : group;
    return number < layer.updated.size() && layer.updated[number];  // a frozen group never is
  }
  void verdict(const Action& a) {
    if (updates_.others != Updates::after_verdict) fail(a, "the updates of this step need no verdict");
    if (a.update != verdicts_) fail(a, fmt::format("verdict {} is next", verdicts_));
    for (std::uint32_t l = 0; l < program_.layers; ++l)
      if (map_.pipeline().holds(l) && layers_[l].backwards < (a.update + 1) * backwards_an_update())
        fail(a, fmt::format("layer {}'s gradient is not complete", l));
    for (std::uint32_t l = 0; l < program_.layers; ++l)
      if (map_.pipeline().holds(l) && layers_[l].made == a.update && !layers_[l].norm)
        fail(a, fmt::format("layer {} has no norm", l));
    ++verdicts_;
  }

  void take_effect(const Action& a) {
    for (const auto& use : map_.uses(a)) {
      if (needs_content(use.access) && !content_[index(use.chunk)] && !rules::is_optimizer_state(map_.chunks()[use.chunk].kind))
        fail(a, "needs " + map_.describe(use.chunk) + ", which does not exist at this point");
      if (writes(use.access)) content_[index(use.chunk)] = true;
    }
    for (const auto dead : map_.dead_after(a)) content_[index(dead)] = false;
  }

  // An update needs a complete gradient; a deferred one also needs weights that the step has not used yet.
  void require_complete(const Action& a) const {
    const auto& layer = layers_[a.layer];
    const auto time = updates_.of(a.layer);
    if ((asynchronous_ || time == Updates::in_backward) && !layer.norm) fail(a, "the layer's gradient is not complete");
    if (a.update != layer.made) fail(a, fmt::format("update {} of the layer is next", layer.made));
    if (time == Updates::after_verdict && a.update >= verdicts_) fail(a, "its verdict has not run");
    if (time == Updates::before_use && (layer.backwards != 0 || any(layer.forward)))
      fail(a, "the layer has already been used with its old weights");
  }

  // Checks that the message goes between the right ranks, and that the content of a receive does not exist yet.
  // (check_messages() checks that the sends and receives of all ranks match.)
  void message(const Action& a) {
    if (is_per_micro_batch(a.payload) && a.micro_batch >= program_.micro_batches) fail(a, "there is no such micro-batch");
    const auto& p = map_.pipeline();
    const bool sends = a.op == Op::send;
    auto from = p.holder(a.layer, a.micro_batch), to = from;
    switch (a.payload) {
      case Payload::activation:
      case Payload::gradient:
        if (a.layer == 0) fail(a, "the first layer reads tokens and has no input from another rank");
        // The reader at this message's other end: the layer, or the one that skips from its input.
        if (const auto reader = map_.skips().reader(a.layer); reader != model::Skips::kNone) {
          const auto here = sends == (a.payload == Payload::activation) ? a.peer : p.rank;
          if (here == p.holder(reader, a.micro_batch)) from = to = here;
        }
        (a.payload == Payload::activation ? from : to) = p.holder(a.layer - 1, a.micro_batch);
        break;
      case Payload::weights:
      case Payload::tied_gradient: {
        const bool tied = map_.layout().has_tied() && a.layer == map_.layout().tied_home();
        const auto groups = a.payload == Payload::weights ? map_.layout().groups_of(a.layer) : map_.layout().tied_groups();
        if (!tied || a.chunk >= groups) fail(a, "no other layer is tied to these weights");
        (a.payload == Payload::weights ? to : from) = p.holder(map_.layout().tied_layer());
        break;
      }
    }
    if (from == to || (sends ? from : to) != p.rank || (sends ? to : from) != a.peer)
      fail(a, fmt::format("the message must go from rank {} to rank {}", from, to));
    for (const auto chunk : map_.carried_by(a))
      if (map_.awaits(a) && content_[index(chunk)]) fail(a, map_.describe(chunk) + " exists already");
    if (a.payload != Payload::weights) return;
    auto& home = layers_[a.layer];
    if (updates_.of(a.layer) == Updates::none) fail(a, "this step must not contain updates of the layer");
    if (sends && !home.updated[map_.options().layer_unit ? 0 : a.chunk]) fail(a, "these weights have not been updated");
    once(a, home.exchanged[a.chunk], "message");
    if (!sends && map_.data().gathers_updates()) home.gathered[a.chunk] = false;
  }
  // True if the group has been updated; for a copy of weights, true if the new ones have arrived.
  [[nodiscard]] bool updated(std::uint32_t layer, std::uint32_t group) const {
    return map_.copies(layer) ? layers_[layer].exchanged[group] : layers_[layer].updated[map_.options().layer_unit ? 0 : group];
  }

  // Reductions must fold gradients in micro-batch order.
  void reduce(const Action& a) {
    auto& layer = layers_[a.layer];
    if (!reduces_) fail(a, "this run reduces no gradients");
    if (a.chunk >= layer.reduced.size()) fail(a, fmt::format("the layer has {} groups to reduce", layer.reduced.size()));
    const auto each = map_.data().folds_each();
    const auto round = layer.made * backwards_an_update() + (each ? layer.reduced[a.chunk] : backwards_an_update() - 1);
    if (a.micro_batch != (round + 1) * map_.pipeline().replicas() - 1 || (!each && layer.reduced[a.chunk] != 0))
      fail(a, fmt::format("it is out of order: {} of the group's reductions have run", layer.reduced[a.chunk]));
    if (layer.backwards <= round) fail(a, "its backward has not run");
    ++layer.reduced[a.chunk];
  }
  [[nodiscard]] bool all_reduced(std::uint32_t layer) const {
    const auto times = !reduces_ ? 0 : map_.data().folds_each() ? backwards_an_update() : 1;
    return std::ranges::all_of(layers_[layer].reduced, [&](std::uint32_t n) { return n == times; });
  }
  void require_gathered(const Action& a) const {
    const auto complete = [&](std::uint32_t layer) {
      return std::ranges::all_of(layers_[layer].gathered, [](bool g) { return g; });
    };
    if (!complete(a.layer) || (a.layer == map_.layout().tied_layer() && !complete(map_.layout().tied_home())))
      fail(a, "the ranks' updated weights have not been gathered");
  }

  static bool any(const std::vector<bool>& flags) {
    for (const bool f : flags)
      if (f) return true;
    return false;
  }
  template <class Flag>  // a bool, or a vector's reference to one
  void once(const Action& a, Flag&& done, const char* what) {
    if (done) fail(a, fmt::format("its {} has run already", what));
    done = true;
  }
  // If the layer's updates, or those of a tied one of which this rank has a copy, are deferred, they have run.
  void require_updated(const Action& a) const {
    const auto& own = layers_[a.layer].updated;
    for (std::uint32_t c = 0; updates_.of(a.layer) == Updates::before_use && c < own.size(); ++c)
      if (!own[c]) fail(a, fmt::format("its pending update of chunk {} has not run", c));
    const auto home = map_.layout().tied_home();
    if (a.layer != map_.layout().tied_layer() || updates_.of(home) != Updates::before_use || !map_.copies(home)) return;
    for (std::uint32_t g = 0; g < map_.layout().trained_groups(home); ++g)
      if (!updated(home, g)) fail(a, fmt::format("new weights of group {} of the tied layer have not arrived", g));
  }

  void finish() const {
    const auto incomplete = [](const std::string& what) {
      throw Error("the program is incomplete: " + what, ErrorKind::refused);
    };
    if (open_) incomplete("it ends after '" + to_text(*open_) + "'");
    for (std::uint32_t l = 0; l < program_.layers; ++l) {
      const auto& layer = layers_[l];
      for (std::uint32_t c = 0; c < layer.gathered.size(); ++c)
        if (!layer.gathered[c]) incomplete(fmt::format("group {} of layer {} is updated but not gathered", c, l));
      const bool copied = map_.copies(l) || map_.copied_to(l) != map_.pipeline().rank;
      for (std::uint32_t g = 0; copied && updates_.of(l) != Updates::none && g < map_.layout().trained_groups(l); ++g)
        if (!layer.exchanged[g]) incomplete(fmt::format("new weights of group {} of layer {} have not been exchanged", g, l));
      if (!map_.pipeline().holds(l)) continue;
      const auto backwards = map_.rounds().updates() * backwards_an_update();
      if (!map_.layout().trains(l)) {
        const auto halves = std::ranges::count(layer.input_half, true);
        if (map_.has_backward(l) && halves != backwards)
          incomplete(fmt::format("layer {} ran {} of {} input halves", l, halves, backwards));
        continue;
      }
      if (layer.backwards != backwards)
        incomplete(fmt::format("layer {} ran {} of {} backwards", l, layer.backwards, backwards));
      if (asynchronous_) {
        if (layer.made != map_.rounds().updates())
          incomplete(fmt::format("layer {} has {} of {} updates", l, layer.made, map_.rounds().updates()));
        continue;
      }
      if (!layer.norm && map_.layout().trained_chunks(l) != 0) incomplete(fmt::format("layer {} has no norm", l));
      for (std::uint32_t c = 0; updates_.of(l) != Updates::none && c < layer.updated.size(); ++c)
        if (!layer.updated[c]) incomplete(fmt::format("chunk {} of layer {} is never updated", c, l));
      for (std::uint32_t c = 0; is_early(l) && c < layer.early.size(); ++c)
        if (!layer.early[c]) incomplete(fmt::format("chunk {} of layer {} is never updated early", c, l));
    }
    if (map_.layout().has_tied() && map_.copies(map_.layout().tied_home()))
      for (const auto c : map_.final_gradients(map_.layout().tied_home()))
        if (map_.layout().adds_tied(map_.layout().tied_home(), c) && content_[index(map_.tied_gradient(c))])
          incomplete(map_.describe(map_.tied_gradient(c)) + " is never sent");
    for (std::uint32_t c = 0; c < map_.chunks().size(); ++c)
      if (const auto& chunk = map_.chunks()[ChunkId(c)];
          content_[c] && chunk.kind == ChunkKind::activation && chunk.role != mapping::Role::previous)
        incomplete(map_.describe(ChunkId(c)) + " is still alive at the end");
    if (updates_.others == Updates::after_verdict && verdicts_ != map_.rounds().updates())
      incomplete(fmt::format("{} of {} verdicts have run", verdicts_, map_.rounds().updates()));
  }

  const Program& program_;
  const StepMap& map_;
  const UpdateTimes updates_;
  const bool reduces_ = map_.data().reduces() || map_.pipeline().replicas() > 1;
  const bool asynchronous_ = map_.pipeline().asynchronous();
  std::uint32_t verdicts_ = 0;  // verdicts that have run
  std::vector<bool> content_;
  std::vector<LayerState> layers_;
  std::optional<Action> open_;  // the last action of a layer, if phases of its call are still to come
  std::size_t position_ = 0;
};

}  // namespace

void check_step(const Program& program, const StepMap& map, const UpdateTimes& updates) {
  StepChecker(program, map, updates).run();
}

}  // namespace terrace::passes
