#include <terrace/parallel/checker.h>

#include <fmt/format.h>

#include <vector>

#include <terrace/core/error.h>

namespace terrace {
namespace {

// What a correct program has done so far; every question is asked of an action just before it takes effect.
class StepChecker {
 public:
  StepChecker(const Program& program, const StepMap& map, Updates updates)
      : program_(program), map_(map), updates_(updates), content_(map.chunks(), false), layers_(program.layers) {
    for (std::uint32_t c = 0; c < map.chunks(); ++c) {
      const auto kind = map.chunk_kind(ChunkId(c));
      content_[c] = kind != Kind::activation && kind != Kind::gradient;  // state is there from the step before
      if (kind == Kind::gradient && updates == Updates::before_use) content_[c] = true;
    }
    if (updates == Updates::before_use && map.has_tied_gradient())
      for (const auto& use : map.uses({.op = Op::norm, .layer = map.home(map.tied_layer(), tied_param()).layer}))
        if (index(use.chunk) >= index(map.tied_gradient())) content_[index(use.chunk)] = false;
    for (std::uint32_t l = 0; l < program.layers; ++l) {
      layers_[l].forward.resize(program.micro_batches);
      layers_[l].backward.resize(program.micro_batches);
      layers_[l].input_half.resize(program.micro_batches);
      layers_[l].updated.resize(map.layout().chunks_of(l));
    }
  }

  void run() {
    if (program_.layers != map_.layers() || program_.micro_batches != map_.micro_batches())
      throw Error(fmt::format("the program is for {} layers and {} micro-batches, the model has {} and {}", program_.layers,
                              program_.micro_batches, map_.layers(), map_.micro_batches()),
                  Exit::usage);
    for (position_ = 0; position_ < program_.actions.size(); ++position_) step(program_.actions[position_]);
    finish();
  }

 private:
  struct LayerState {
    std::vector<bool> forward, backward, input_half, updated;
    std::uint32_t backwards = 0;
    bool norm = false;
  };

  [[noreturn]] void fail(const Action& a, const std::string& why) const {
    throw Error(fmt::format("program action {} ({}): {}", position_, to_text(a), why), Exit::usage);
  }

  std::uint32_t tied_param() const {
    const auto& params = map_.params(map_.tied_layer());
    for (std::uint32_t p = 0; p < params.size(); ++p)
      if (params[p].tied) return p;
    return 0;
  }

  void step(const Action& a) {
    if (a.op == Op::prefetch) {
      if (a.chunk >= map_.chunks()) fail(a, "there is no such chunk");
      return;
    }
    if (a.layer >= program_.layers) fail(a, "there is no such layer");
    const bool per_micro_batch = a.op <= Op::backward_weight;
    if (per_micro_batch && a.micro_batch >= program_.micro_batches) fail(a, "there is no such micro-batch");
    auto& layer = layers_[a.layer];
    switch (a.op) {
      case Op::forward:
        if (a.layer + 1 == program_.layers) fail(a, "the last layer's backward computes its forward too");
        once(a, layer.forward[a.micro_batch], "forward");
        if (updates_ == Updates::before_use) require_updated(a);
        break;
      case Op::recompute: break;
      case Op::backward:
      case Op::backward_weight:
        if (a.op == Op::backward_weight && !layer.input_half[a.micro_batch]) fail(a, "its input half has not run");
        if (a.op == Op::backward && layer.input_half[a.micro_batch]) fail(a, "its input half has run already");
        once(a, layer.backward[a.micro_batch], "backward");
        if (layer.backwards != a.micro_batch)
          fail(a, fmt::format("gradients fold in micro-batch order, and m{} is next", layer.backwards));
        ++layer.backwards;
        if (layer.norm) fail(a, "the layer's norm has been taken already");
        if (updates_ == Updates::before_use) require_updated(a);
        break;
      case Op::backward_input: once(a, layer.input_half[a.micro_batch], "input half"); break;
      case Op::norm:
        if (layer.backwards != program_.micro_batches)
          fail(a, fmt::format("{} of {} backwards have run", layer.backwards, program_.micro_batches));
        once(a, layer.norm, "norm");
        break;
      case Op::update: {
        if (updates_ == Updates::none) fail(a, "this step updates nothing");
        if (a.chunk >= layer.updated.size()) fail(a, fmt::format("the layer has {} chunks", layer.updated.size()));
        once(a, layer.updated[a.chunk], "update");
        if (updates_ == Updates::in_backward && !layer.norm) fail(a, "the layer's gradient is not complete");
        if (updates_ == Updates::before_use && (layer.backwards != 0 || any(layer.forward)))
          fail(a, "the layer has been used with its old weights");
        break;
      }
      default: fail(a, "does not belong in a training step");
    }
    for (const auto& use : map_.uses(a)) {
      if (needs_content(use.access) && !content_[index(use.chunk)] && !is_optimizer_state(map_.chunk_kind(use.chunk)))
        fail(a, "needs " + map_.describe(use.chunk) + ", which does not exist at this point");
      if (writes(use.access)) content_[index(use.chunk)] = true;
    }
    for (const auto dead : map_.dead_after(a)) content_[index(dead)] = false;
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
  void require_updated(const Action& a) {
    for (std::uint32_t c = 0; c < layers_[a.layer].updated.size(); ++c)
      if (!layers_[a.layer].updated[c]) fail(a, fmt::format("its pending update of chunk {} has not run", c));
  }

  void finish() const {
    const auto incomplete = [](const std::string& what) { throw Error("the program is incomplete: " + what, Exit::usage); };
    for (std::uint32_t l = 0; l < program_.layers; ++l) {
      const auto& layer = layers_[l];
      if (layer.backwards != program_.micro_batches)
        incomplete(fmt::format("layer {} ran {} of {} backwards", l, layer.backwards, program_.micro_batches));
      if (!layer.norm) incomplete(fmt::format("layer {} has no norm", l));
      for (std::uint32_t c = 0; updates_ != Updates::none && c < layer.updated.size(); ++c)
        if (!layer.updated[c]) incomplete(fmt::format("chunk {} of layer {} is never updated", c, l));
    }
    for (std::uint32_t c = 0; c < map_.chunks(); ++c)
      if (content_[c] && map_.chunk_kind(ChunkId(c)) == Kind::activation)
        incomplete(map_.describe(ChunkId(c)) + " is never used up");
  }

  const Program& program_;
  const StepMap& map_;
  Updates updates_;
  std::vector<bool> content_;
  std::vector<LayerState> layers_;
  std::size_t position_ = 0;
};

}  // namespace

void check_step(const Program& program, const StepMap& map, Updates updates) { StepChecker(program, map, updates).run(); }

}  // namespace terrace
