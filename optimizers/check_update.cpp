#include <terrace/optimizers/check_update.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include <terrace/optimizers/formats/dynamic8.h>
#include <terrace/optimizers/settings.h>

namespace terrace::rules::elementwise {
namespace {

struct Checker {
  const char* name;
  const ChunkUpdate& chunk;

  void array(const char* what, const Stored& stored, std::initializer_list<Format> formats) const {
    const auto& weight = chunk.parameter;
    if (std::ranges::find(formats, stored.format) == formats.end()) {
      std::vector<std::string_view> wanted;
      for (const auto format : formats) wanted.push_back(name_of(format));
      refuse(name, fmt::format("the {} is {}, but {} weights need {}", what, name_of(stored.format), name_of(weight.format),
                               fmt::join(wanted, " or ")));
    }
    if (stored.format == Format::none) return;
    if (stored.elements != weight.elements)
      refuse(name, fmt::format("the {} has {} elements, but the weight {}", what, stored.elements, weight.elements));
    if (stored.data == nullptr && weight.elements > 0) refuse(name, fmt::format("the {} is missing", what));
  }

  void weights() const {
    const auto format = chunk.parameter.format;
    array("weight", chunk.parameter, {Format::fp32, Format::bf16, Format::fp64, Format::fp16});
    if (format == Format::fp16)
      array("master weight", chunk.master, {Format::fp32});
    else if (format == Format::bf16)
      array("master weight", chunk.master, {Format::fp32, Format::low16, Format::low8, Format::none});
    else
      array("master weight", chunk.master, {Format::none});
    if (format == Format::fp64)
      array("gradient", chunk.gradient, {Format::fp64});
    else
      array("gradient", chunk.gradient, {Format::fp32, Format::bf16});
  }

  void states(std::span<const ChunkKind> kinds) const {
    constexpr const char* kNames[] = {"first state", "second state"};
    for (std::size_t i = 0; i < chunk.states.size(); ++i) {
      if (i >= kinds.size())
        array(kNames[i], chunk.states[i], {Format::none});
      else if (chunk.parameter.format == Format::fp64)
        array(kNames[i], chunk.states[i], {Format::fp64});
      else
        array(kNames[i], chunk.states[i], {Format::fp32, Format::bf16, dynamic8::format_of(dynamic8::sign_of(kinds[i]))});
    }
  }

  void parts() const {
    std::int64_t end = 0;
    for (const auto& part : chunk.parts) {
      if (part.first < end || part.count < 0 || part.first + part.count > chunk.parameter.elements)
        refuse(name, fmt::format("elements {}..{} are not in ascending order within the chunk's {}", part.first,
                                 part.first + part.count, chunk.parameter.elements));
      end = part.first + part.count;
      require_rate(name, "the rate of a part", part.rate);
      require_rate(name, "the decay of a part", part.decay);
      if (!std::isfinite(part.gradient_scale))
        refuse(name, fmt::format("the gradient scale of a part is {}; it must be finite", part.gradient_scale));
    }
  }
};

}  // namespace

void check(const char* name, std::span<const ChunkKind> states, const UpdateStep& step, const ChunkUpdate& chunk) {
  if (step.step == 0) refuse(name, "steps count from 1");
  require_rate(name, "the learning rate", step.learning_rate);
  if (!std::isfinite(step.gradient_scale))
    refuse(name, fmt::format("the gradient scale is {}; it must be finite", step.gradient_scale));
  const Checker checker{name, chunk};
  checker.weights();
  checker.states(states);
  checker.parts();
}

void check_layer(const char* name, const LayerShape& shape, const LayerUpdate& layer, std::uint64_t scratch_bytes,
                 std::uint64_t numbers) {
  for (const auto& t : shape.tensors) {
    if (t.first < 0 || t.rows < 0 || t.columns < 0 || t.first + t.elements() > shape.run_elements)
      refuse(name, fmt::format("a tensor of {} x {} elements from {} on is not within the {} of the layer's run", t.rows,
                               t.columns, t.first, shape.run_elements));
    if (!std::isfinite(t.gradient_scale))
      refuse(name, fmt::format("the gradient scale of a tensor is {}; it must be finite", t.gradient_scale));
  }
  if (layer.scratch == nullptr && scratch_bytes > 0)
    refuse(name, fmt::format("the layer's scratch of {} bytes is missing", scratch_bytes));
  if (numbers == 0) return;
  const auto packed = shape.arithmetic == DType::fp64 ? Format::packed64 : Format::packed;
  std::uint64_t room = 0;
  for (const auto& chunk : layer.packed) {
    if (chunk.format != packed)
      refuse(name, fmt::format("the packed state is {}, but it must be {}", name_of(chunk.format), name_of(packed)));
    if (chunk.data == nullptr && chunk.elements > 0) refuse(name, "a chunk of the packed state is missing");
    room += static_cast<std::uint64_t>(chunk.elements);
  }
  if (room < numbers)
    refuse(name, fmt::format("the chunks of its packed state have room for {} numbers, but it has {}", room, numbers));
}

}  // namespace terrace::rules::elementwise
