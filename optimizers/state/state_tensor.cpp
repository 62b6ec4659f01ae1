#include <terrace/optimizers/state/state_tensor.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/units.h>
#include <terrace/core/math/philox.h>
#include <terrace/optimizers/settings.h>

namespace terrace::rules {
namespace {

[[noreturn]] void refuse_tensor(const std::string& name, const std::string& why) {
  throw Error(fmt::format("tensor {}: {}", base::printable(name), why), ErrorKind::refused, {.object = name});
}

void check_views(const std::string& name, const TensorView& weight, const TensorView& gradient) {
  if (name.empty()) refuse_tensor(name, "it has no name\n  give it one: it is how a later process finds its states again");
  if (weight.shape != gradient.shape)
    refuse_tensor(name, fmt::format("the gradient has the shape {}, but the weight {}\n  give views of the same shape",
                                    to_string(gradient.shape), to_string(weight.shape)));
  if (weight.elements() > 0 && (weight.data == nullptr || gradient.data == nullptr))
    refuse_tensor(name, "the weight or the gradient has no address");
  const bool wide = weight.dtype == DType::fp64;
  const bool matches = wide ? gradient.dtype == DType::fp64 : gradient.dtype == DType::fp32 || gradient.dtype == DType::bf16;
  if (!matches)
    refuse_tensor(name, fmt::format("the gradient is {}, but {} weights need {}", terrace::name_of(gradient.dtype),
                                    terrace::name_of(weight.dtype), wide ? "fp64" : "fp32 or bf16"));
}

class Maker {
 public:
  Maker(const StateTensor& tensor, const MakeChunk& make) : tensor_(tensor), make_(make) {}

  [[nodiscard]] ChunkId chunk(const StatePiece& piece, ChunkKind kind, Format format, std::uint64_t bytes) const {
    ChunkDescription d{.chunk = {},
                       .kind = kind,
                       .dtype = std::string(name_of(format)),
                       .bytes = round_up(bytes, kPageBytes),
                       .ranges = {},
                       .label = fmt::format("{} of {}, from element {}", terrace::name_of(kind), tensor_.name, piece.first)};
    if (!is_packed(format))
      d.ranges = {{.tensor = tensor_.name,
                   .first_element = static_cast<std::uint64_t>(piece.first),
                   .elements = static_cast<std::uint64_t>(piece.count)}};
    return make_(std::move(d));
  }
  [[nodiscard]] StatePiece::Array array(const StatePiece& piece, ChunkKind kind, Format format, std::int64_t elements) const {
    StatePiece::Array array{.kind = kind, .format = format, .elements = elements};
    array.chunk = chunk(piece, kind, format, array.bytes());
    return array;
  }

 private:
  const StateTensor& tensor_;
  const MakeChunk& make_;
};

}  // namespace

std::uint64_t StatePiece::state_bytes() const {
  std::uint64_t bytes = master ? round_up(master->bytes(), kPageBytes) : 0;
  for (const auto& state : states) bytes += round_up(state.bytes(), kPageBytes);
  return bytes;
}

UpdateTensor StateTensor::as_layer() const {
  return {.first = 0,
          .rows = rows_of(weight),
          .columns = columns_of(weight),
          .hidden = set.hidden,
          .rate = set.rate,
          .decay = set.decay,
          .gradient_scale = 1,
          .stream = stream};
}

LayerShape StateTensor::layer_shape() const {
  return {.arithmetic = weight.dtype == DType::fp64 ? DType::fp64 : DType::fp32,
          .run_elements = weight.elements(),
          .tensors = {as_layer()},
          .share = {},
          .chunk_elements = weight.elements()};
}

StateTensor make_state_tensor(const Optimizer& optimizer, const std::string& recipe_name, std::uint64_t chunk_elements,
                              const std::string& name, const TensorView& weight, const TensorView& gradient,
                              const OptimizerTensor& set, bool keeps_weights, const MakeChunk& make) {
  check_views(name, weight, gradient);
  require_rate(optimizer.name().c_str(), "the rate of a tensor", set.rate);
  require_rate(optimizer.name().c_str(), "the decay of a tensor", set.decay);
  StateTensor tensor{.name = name, .weight = weight, .gradient = gradient, .set = set, .stream = math::stream_of(name.c_str())};
  const auto recipe = Recipe::of(weight.dtype, recipe_name, optimizer.states());
  const auto unit = optimizer.layer_unit();
  const auto elements = weight.elements();
  const auto step = unit ? elements : static_cast<std::int64_t>(chunk_elements);
  const Maker maker(tensor, make);
  for (std::int64_t first = 0; first < elements; first += step) {
    StatePiece piece{.first = first, .count = std::min(step, elements - first)};
    if (recipe.has_master()) piece.master = maker.array(piece, ChunkKind::master, recipe.master, piece.count);
    for (const auto kind : recipe.states) {
      if (unit && unit->second_moment != Packed::none && kind == ChunkKind::second_moment) {
        const auto format = weight.dtype == DType::fp64 ? Format::packed64 : Format::packed;
        const auto numbers = static_cast<std::int64_t>(unit->needs(tensor.layer_shape()).packed_numbers);
        if (numbers > 0) piece.states.push_back(maker.array(piece, kind, format, numbers));
        continue;
      }
      piece.states.push_back(maker.array(piece, kind, recipe.format_of(kind), piece.count));
    }
    if (keeps_weights)
      piece.weights = maker.chunk(piece, ChunkKind::parameter, format_of(weight.dtype), piece.bytes_in(weight));
    tensor.pieces.push_back(std::move(piece));
  }
  return tensor;
}

}  // namespace terrace::rules
