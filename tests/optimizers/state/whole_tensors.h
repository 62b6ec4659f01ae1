// Tensors of random numbers, and their update as a whole in memory: the oracle of an OptimizerState. It calls the optimizer
// itself, once for a whole tensor, with arrays that are in memory all the time.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/units.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/math/philox.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/recipe.h>
#include <terrace/optimizers/state/optimizer_state.h>

namespace terrace::test {

using Bytes = std::vector<std::byte>;

inline Bytes random_numbers(DType dtype, std::int64_t count, double size, std::mt19937_64& random) {
  Bytes bytes(static_cast<std::size_t>(count) * size_of(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    const double x = std::uniform_real_distribution<double>(-size, size)(random);
    const auto put = [&](auto number) {
      std::memcpy(bytes.data() + static_cast<std::size_t>(i) * sizeof number, &number, sizeof number);
    };
    switch (dtype) {
      case DType::fp32: put(static_cast<float>(x)); break;
      case DType::bf16: put(bf16(static_cast<float>(x))); break;
      case DType::fp16: put(fp16(static_cast<float>(x))); break;
      default: put(x);
    }
  }
  return bytes;
}

struct WholeTensor {
  std::string name = {};
  Shape shape = {};
  DType dtype = DType::fp32, gradient_dtype = DType::fp32;
  OptimizerTensor set = {};
  Bytes weight = {}, gradient = {};

  [[nodiscard]] TensorView weight_view() { return {weight.data(), dtype, shape}; }
  [[nodiscard]] TensorView gradient_view() { return {gradient.data(), gradient_dtype, shape}; }
};

// Vectors, matrices and tensors of three dimensions; odd, empty and around whole blocks.
inline std::vector<WholeTensor> random_tensors(DType dtype, std::mt19937_64& random) {
  const std::vector<Shape> shapes{{1},      {0},      {3},      {7, 13},  {100},    {1000},    {4095}, {4096},    {4097},
                                  {64, 64}, {10'007}, {33, 65}, {256, 3}, {12'288}, {3, 5, 7}, {0, 4}, {41, 300}, {1, 9}};
  std::vector<WholeTensor> all;
  for (std::size_t i = 0; i < 9; ++i) {
    WholeTensor t{.name = fmt::format("layer.{}.weight", i), .shape = shapes[random() % shapes.size()], .dtype = dtype};
    t.gradient_dtype = dtype == DType::fp64 ? DType::fp64 : random() % 3 == 0 ? DType::bf16 : DType::fp32;
    t.set = {.hidden = random() % 4 != 0, .rate = random() % 4 == 0 ? 0.25 : 1, .decay = random() % 3 == 0 ? 0.0 : 1};
    t.weight = random_numbers(dtype, t.shape.elements(), 1, random);
    t.gradient = Bytes(static_cast<std::size_t>(t.shape.elements()) * size_of(t.gradient_dtype));
    all.push_back(std::move(t));
  }
  return all;
}
inline void draw_gradients(std::vector<WholeTensor>& tensors, std::mt19937_64& random) {
  for (auto& t : tensors) {
    const auto drawn = random_numbers(t.gradient_dtype, t.shape.elements(), 0.1, random);
    std::memcpy(t.gradient.data(), drawn.data(), drawn.size());  // the view of it stays
  }
}

// One tensor's states in memory.
class InMemory {
 public:
  InMemory(const Optimizer& optimizer, const std::string& recipe, const WholeTensor& tensor)
      : recipe_(rules::Recipe::of(tensor.dtype, recipe, optimizer.states())), count_(tensor.shape.elements()) {
    weight_ = tensor.weight;
    const auto array = [&](rules::Format format) {
      return Bytes(rules::bytes_of(format, static_cast<std::uint64_t>(count_)) + 64, std::byte{0x5a});
    };
    if (recipe_.has_master()) master_ = array(recipe_.master);
    if (recipe_.master == rules::Format::fp32)
      for (std::int64_t i = 0; i < count_; ++i) {
        const auto* const from = weight_.data() + 2 * i;
        const float wide = tensor.dtype == DType::bf16 ? number<bf16>(from) : number<fp16>(from);
        std::memcpy(master_.data() + 4 * i, &wide, 4);
      }
    if (rules::is_low(recipe_.master)) std::ranges::fill(master_, std::byte{0});
    for (const auto kind : recipe_.states)
      if (!is_packed(optimizer, kind)) states_.push_back(array(recipe_.format_of(kind)));
  }

  void update(const Optimizer& optimizer, Stream& stream, UpdateStep step, WholeTensor& tensor) {
    if (count_ == 0) return;
    step.first = first_;
    first_ = false;
    ChunkUpdate chunk{.parameter = {weight_.data(), rules::format_of(tensor.dtype), count_},
                      .master = {},
                      .gradient = {tensor.gradient.data(), rules::format_of(tensor.gradient_dtype), count_}};
    if (recipe_.has_master()) chunk.master = {master_.data(), recipe_.master, count_};
    for (std::size_t i = 0; i < states_.size(); ++i)
      chunk.states.at(i) = {states_[i].data(), recipe_.format_of(recipe_.states[i]), count_};
    const auto name = math::stream_of(tensor.name.c_str());
    if (const auto unit = optimizer.layer_unit()) {
      const UpdateTensor as_layer{.first = 0,
                                  .rows = rows_of(tensor.weight_view()),
                                  .columns = columns_of(tensor.weight_view()),
                                  .hidden = tensor.set.hidden,
                                  .rate = tensor.set.rate,
                                  .decay = tensor.set.decay,
                                  .gradient_scale = 1,
                                  .stream = name};
      const bool wide = tensor.dtype == DType::fp64;
      const auto needs = unit->needs({.arithmetic = wide ? DType::fp64 : DType::fp32,
                                      .run_elements = count_,
                                      .tensors = {as_layer},
                                      .share = {},
                                      .chunk_elements = count_});
      scratch_.resize(needs.scratch_bytes / 8 + 8, -1.0);
      packed_.resize(needs.packed_numbers, -1.0);
      const Stored packed{reinterpret_cast<std::byte*>(packed_.data()), wide ? rules::Format::packed64 : rules::Format::packed,
                          static_cast<std::int64_t>(needs.packed_numbers)};
      auto* const scratch = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::uintptr_t>(scratch_.data()), 64));
      optimizer.enqueue_layer(stream, step,
                              {.chunks = std::span(&chunk, 1),
                               .packed = std::span(&packed, packed_.empty() ? 0 : 1),
                               .tensors = std::span(&as_layer, 1),
                               .scratch = scratch,
                               .share = {},
                               .half = UpdateHalf::both});
    } else {
      const UpdatePart part{.first = 0,
                            .count = count_,
                            .rate = tensor.set.rate,
                            .decay = tensor.set.decay,
                            .gradient_scale = 1,
                            .stream = name,
                            .tensor_element = 0};
      chunk.parts = std::span(&part, 1);
      optimizer.enqueue(stream, step, chunk);
    }
    stream.synchronize();
  }
  [[nodiscard]] const Bytes& weight() const { return weight_; }

 private:
  template <class Narrow>
  static float number(const std::byte* from) {
    Narrow narrow;
    std::memcpy(&narrow, from, sizeof narrow);
    return static_cast<float>(narrow);
  }
  static bool is_packed(const Optimizer& optimizer, ChunkKind kind) {
    const auto unit = optimizer.layer_unit();
    return unit && unit->second_moment != Packed::none && kind == ChunkKind::second_moment;
  }

  rules::Recipe recipe_;
  std::int64_t count_;
  bool first_ = true;
  Bytes weight_, master_;
  std::vector<Bytes> states_;
  std::vector<double> scratch_, packed_;  // packed: large enough for fp32 and fp64
};

}  // namespace terrace::test
