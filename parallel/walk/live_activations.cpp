#include <terrace/parallel/walk/live_activations.h>

#include <algorithm>

namespace terrace::walk {

LiveActivations::LiveActivations(const StepMap& map) : map_(map) {
  const auto& pipeline = map.pipeline();
  std::uint32_t stages = 0;
  for (std::uint32_t l = 0; l < map.layers(); ++l) stages = std::max(stages, pipeline.stage(l) + 1);
  layers_of_.resize(stages);
  for (std::uint32_t l = 0; l < map.layers(); ++l)
    if (map.pipeline().holds(l)) ++layers_of_[pipeline.stage(l)];
  begin();
}

void LiveActivations::begin() {
  left_.assign(layers_of_.size() * map_.micro_batches(), 0);
  layer_bytes_.assign(std::size_t{map_.layers()} * map_.micro_batches(), 0);
  now_ = peak_ = {};
}

// The last layer has no forward action, so its activation starts with its backward.
void LiveActivations::start(const Action& a) {
  const bool backward = a.op == Op::backward || a.op == Op::backward_input;
  if (a.op != Op::forward && !(backward && a.layer + 1 == map_.layers())) return;
  if (!map_.phases().is_first(a)) return;
  const auto stage = map_.pipeline().stage(a.layer);
  auto& left = left_[place(stage, a.micro_batch)];
  if (left == 0) {
    left = layers_of_[stage];
    ++now_.activations;
  }
  auto& bytes = layer_bytes_[place(a.layer, a.micro_batch)];
  for (const auto chunk : map_.left_by_forward(a.layer, a.micro_batch)) bytes += map_.chunks()[chunk].bytes;
  now_.bytes += bytes;
  peak_.activations = std::max(peak_.activations, now_.activations);
  peak_.bytes = std::max(peak_.bytes, now_.bytes);
}

void LiveActivations::end(const Action& a) {
  if ((a.op != Op::backward && a.op != Op::backward_weight) || !map_.phases().is_last(a)) return;
  auto& bytes = layer_bytes_[place(a.layer, a.micro_batch)];
  now_.bytes -= bytes;
  bytes = 0;
  auto& left = left_[place(map_.pipeline().stage(a.layer), a.micro_batch)];
  if (left != 0 && --left == 0) --now_.activations;
}

}  // namespace terrace::walk
