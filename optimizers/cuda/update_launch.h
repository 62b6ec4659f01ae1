// Launches the update of a chunk. Launcher: as in core/cuda/kernels/attention_launch.h, so that tests can run it too.
//
// Internal to optimizers/. Errors: as Optimizer::update().
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include <terrace/core/cuda/arithmetic.h>
#include <terrace/optimizers/check_update.h>
#include <terrace/optimizers/cuda/update_kernel.h>
#include <terrace/optimizers/rules/rules.h>

namespace terrace::cuda {

// The maps of 8-bit states, in memory that the kernel can read.
struct UpdateMaps {
  const rules::dynamic8::Map *both = nullptr, *none = nullptr;
  [[nodiscard]] const rules::dynamic8::Map* of(rules::Format format) const {
    return format == rules::Format::dynamic8 ? both : format == rules::Format::dynamic8_unsigned ? none : nullptr;
  }
};

// A launch carries a limited number of parts; launches are split between tiles, so that no split changes a bit. `factors_of(i)`
// are the factors of the chunk's part i.
template <class Rule, class A, class Launcher, class FactorsOf>
void launch_tiles(const Launcher& launcher, const UpdateMaps& maps, const UpdateStep& step, const ChunkUpdate& chunk,
                  A* directions, const FactorsOf& factors_of) {
  using Kernel = UpdateTile<Rule, A>;
  typename Kernel::Args args;
  static_assert(sizeof args <= 4096);
  args.parameter = chunk.parameter;
  args.master = chunk.master;
  args.gradient = chunk.gradient;
  for (std::size_t s = 0; s < 2; ++s) {
    args.states[s] = chunk.states[s];
    args.maps[s] = maps.of(chunk.states[s].format);
  }
  args.seed = rules::random_key(step.seed, step.step);
  args.directions = directions;
  args.first = step.first;

  const auto after = [](const UpdatePart& part) { return part.first + part.count; };
  const auto count = chunk.parts.size();
  const std::int64_t end = args.whole() ? chunk.parameter.elements : count == 0 ? 0 : after(chunk.parts.back());
  const std::int64_t end_tile = ceil_div(end, kUpdateTile);
  std::int64_t tile = args.whole() || count == 0 ? 0 : chunk.parts.front().first / kUpdateTile;
  std::size_t next = 0;
  while (tile < end_tile) {
    while (next < count && after(chunk.parts[next]) <= tile * kUpdateTile) ++next;
    const std::size_t beyond = next + kMaxUpdateParts;  // the first part that does not fit
    const std::int64_t last_tile = beyond < count ? std::min(end_tile, chunk.parts[beyond].first / kUpdateTile) : end_tile;
    if (last_tile <= tile) throw std::logic_error("update on a GPU: more than 32 tensors within 1024 elements of a chunk");
    args.parts = 0;
    for (std::size_t p = next; p < std::min(beyond, count); ++p) {
      const auto& part = chunk.parts[p];
      args.part[args.parts++] = {.first = part.first,
                                 .end = after(part),
                                 .stream = part.stream,
                                 .tensor_element = part.tensor_element,
                                 .factors = factors_of(p)};
    }
    args.first_tile = tile;
    launcher.template run<Kernel>(
        {.blocks = {last_tile - tile, 1, 1}, .threads = Kernel::kThreads, .shared_bytes = Kernel::kSharedBytes}, args);
    tile = last_tile;
  }
}

template <class A, class Launcher, class Rule>
void launch_update(const Launcher& launcher, const UpdateMaps& maps, const Rule& rule, const UpdateStep& step,
                   const ChunkUpdate& chunk) {
  launch_tiles<Rule, A>(launcher, maps, step, chunk, static_cast<A*>(nullptr), [&](std::size_t p) {
    auto own = step;
    own.learning_rate *= chunk.parts[p].rate;
    own.gradient_scale *= chunk.parts[p].gradient_scale;
    return rule.template factors<A>(own, chunk.parts[p].decay);
  });
}

template <class Launcher>
void launch_update(const Launcher& launcher, const UpdateMaps& maps, std::string_view optimizer,
                   const OptimizerSettings& settings, const UpdateStep& step, const ChunkUpdate& chunk) {
  rules::with_rule(optimizer, settings, [&]<class Rule>(const Rule& rule) {
    rules::elementwise::check(Rule::kName, Rule::kStates, step, chunk);
    if (chunk.parameter.format == rules::Format::fp64) {
      launch_update<double>(launcher, maps, rule, step, chunk);
    } else {
      launch_update<float>(launcher, maps, rule, step, chunk);
    }
  });
}

}  // namespace terrace::cuda
