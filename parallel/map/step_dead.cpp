// The chunks that are dead after every action, and those that a forward leaves alive for its backward.
#include <terrace/parallel/map/step_map.h>

namespace terrace {

// The dead chunks after one action.
class StepMap::Dead {
 public:
  Dead(const StepMap& map, const Action& action)
      : map_(map), a_(action), skip_(action.layer < map.layers() ? map.skips_.into(action.layer) : kNone) {}

  std::vector<ChunkId> all() && {
    if (has_phases(a_.op)) add(buffers_.scratch(a_));
    if (has_phases(a_.op))
      for (const auto tensor : map_.phases_.ended_work(a_)) add(buffers_.work(a_.layer, mapping::call_of(a_.op), tensor));
    // All other chunks that die in a layer's call are dead after its last phase.
    if (!has_phases(a_.op) || map_.phases_.is_last(a_)) add_what_it_ends();
    return std::move(dead_);
  }

 private:
  void add_what_it_ends() {
    switch (a_.op) {
      case Op::forward: return forward();
      case Op::recompute: return recompute();
      case Op::evaluate: return evaluate();
      case Op::decode: return inputs();
      case Op::backward: skips(); return backward();
      case Op::backward_weight: return backward();
      // If the layer does not train, its input half is the whole backward.
      case Op::backward_input: skips(); return map_.layout_.trains(a_.layer) ? input_half() : backward();
      case Op::norm: return norm();
      case Op::update:
      case Op::prepare: return update();
      case Op::restore: return restore();
      case Op::reduce: return reduce();
      case Op::release: return release();
      case Op::visit: return visit();
      case Op::send: return send();
      case Op::fill:
      case Op::gather:
      case Op::exchange:
      case Op::offload:
      case Op::receive:
      case Op::keep:
      case Op::early:
      case Op::verdict:
      case Op::unify:
      case Op::prefetch: return;
    }
  }

  void forward() {
    if (map_.recomputes(a_.layer) || !map_.has_backward(a_.layer)) add(buffers_.saved(a_.layer, a_.micro_batch));
    if (!map_.keeps_input(a_.layer)) add(buffers_.x(a_.layer, a_.micro_batch));
  }

  void recompute() {
    if (map_.phases_.phase(a_).y && !last_) add(buffers_.spare());
  }

  void evaluate() {
    add(buffers_.saved(a_.layer, a_.micro_batch));
    inputs();
  }

  void backward() {
    if (a_.op == Op::backward) input_half();
    if (map_.keeps_input(a_.layer)) add(buffers_.x(a_.layer, a_.micro_batch));
    add(buffers_.saved(a_.layer, a_.micro_batch));
    if (!last_) add(buffers_.d(a_.layer + 1, a_.micro_batch));
    add(buffers_.carried(a_.layer, a_.micro_batch));
  }

  // If no layer below trains, nothing reads the gradient of the input.
  void input_half() {
    if (a_.layer == map_.layout_.first_trained()) add(buffers_.d(a_.layer, a_.micro_batch));
  }

  // Dead after a forward without a backward: its input, unless a later layer reads it too, and the tensor of its skip.
  void inputs() {
    if (!map_.reads_skip_here(a_.layer, a_.micro_batch)) add(buffers_.x(a_.layer, a_.micro_batch));
    if (skip_ != kNone) add(buffers_.x(skip_, a_.micro_batch));
  }

  // Dead after an input half: a skip's tensor from another rank, and the skip's part of a gradient once it has been added.
  void skips() {
    if (skip_ != kNone && !map_.pipeline().computes(skip_, a_.micro_batch)) add(buffers_.x(skip_, a_.micro_batch));
    if (map_.adds_skip_behind(a_.layer, a_.micro_batch)) add(buffers_.e(a_.layer, a_.micro_batch));
    if (map_.adds_skip_before(a_.layer, a_.micro_batch)) add(buffers_.e(a_.layer + 1, a_.micro_batch));
  }

  void norm() {
    for (const auto i : map_.final_gradients(a_))
      if (map_.layout_.adds_tied(a_.layer, i)) add(map_.tied_gradient(i));
  }

  // If an update has halves, the first half reads the gradient, and the scratch memory is dead after the second.
  void update() {
    if (a_.op == Op::prepare || !map_.halves_updates())
      for (const auto i : map_.updated_by(a_)) add(map_.state(ChunkKind::gradient, a_.layer, i));
    if (a_.op == Op::update && map_.options_.layer_unit) add(map_.update_scratch());
  }

  void restore() {
    for (const auto kind : map_.kinds_)
      for (const auto i : map_.updated_by(a_))
        if (kind != ChunkKind::gradient) add(map_.previous(kind, a_.layer, i));
  }

  void reduce() {
    const auto& data = map_.data();
    const auto [first, into, tied] = map_.reduced(a_.layer, a_.chunk);
    if (data.folds_each()) add(first);
    // If this rank has the whole sum, only the chunks that it updates stay alive.
    const bool has_whole = !data.shards(ChunkKind::gradient) && map_.rounds_.ends_gradient(a_.micro_batch);
    for (std::uint32_t i = 0; data.stage() >= 1 && has_whole && i < data.group(); ++i)
      if (i != data.place()) add(ChunkId(index(into) - data.place() + i));
  }

  void release() {
    if (a_.copy != 0)
      for (std::uint32_t c = 0; c < map_.kept_chunks(a_.layer); ++c) add(ChunkId(index(map_.kept(a_.layer, a_.copy)) + c));
    else
      for (std::uint32_t g = 0; g < map_.layout_.groups_of(a_.layer); ++g) add(map_.gathered(a_.layer, g));
  }

  void visit() {
    for (const auto kind : {ChunkKind::master, ChunkKind::parameter}) {
      const bool used = !map_.visited_in_place(kind, a_.layer) && map_.visits(kind, a_);
      if (used && index(map_.visited(kind)) != kNone) add(map_.visited(kind));
    }
  }

  // A result may go to two ranks, and also be read here, so it is dead only after the last use. This rank keeps weights that it
  // sends.
  void send() {
    if (a_.payload == Payload::weights) return;
    const bool read_here = map_.pipeline().computes(a_.layer, a_.micro_batch) || map_.reads_skip_here(a_.layer, a_.micro_batch);
    if (a_.payload == Payload::activation && (read_here || !map_.is_last_sent(a_))) return;
    for (const auto chunk : map_.carried_by(a_)) add(chunk);
  }

  void add(ChunkId chunk) {
    if (map_.chunks_[chunk].bytes != 0) dead_.push_back(chunk);
  }

  const StepMap& map_;
  const Action& a_;
  const mapping::ActivationBuffers& buffers_ = map_.buffers_;
  const bool last_ = a_.layer + 1 == map_.layers();
  const std::uint32_t skip_;  // the layer whose input is added to this layer's; kNone without one
  std::vector<ChunkId> dead_;
};

std::vector<ChunkId> StepMap::dead_after(const Action& a) const { return Dead(*this, a).all(); }

std::vector<ChunkId> StepMap::left_by_forward(std::uint32_t layer, std::uint32_t micro_batch) const {
  std::vector<ChunkId> left;
  if (!has_backward(layer)) return left;
  const auto add = [&](ChunkId c) {
    if (chunks_[c].bytes != 0) left.push_back(c);
  };
  if (keeps_input(layer)) add(buffers_.x(layer, micro_batch));
  if (!recomputes(layer)) add(buffers_.saved(layer, micro_batch));
  const auto skip = skips_.into(layer);
  if (skip != kNone && pipeline().computes(layer, micro_batch) && !pipeline().computes(skip, micro_batch))
    left.push_back(buffers_.x(skip, micro_batch));
  return left;
}

std::vector<ChunkId> StepMap::offloaded_behind(std::uint32_t layer, std::uint32_t micro_batch) const {
  auto all = left_by_forward(layer, micro_batch);
  const auto skip = skips_.into(layer);
  if (skip != kNone && pipeline().computes(layer, micro_batch) && pipeline().computes(skip, micro_batch))
    all.push_back(buffers_.x(skip, micro_batch));
  return all;
}

}  // namespace terrace
