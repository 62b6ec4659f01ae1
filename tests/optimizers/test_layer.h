// A layer in memory for optimizers that see whole layers: its run cut into chunks of any size, and plain numbers of its
// tensors.
#pragma once

#include <vector>

#include <terrace/core/device.h>
#include <terrace/core/units.h>
#include <terrace/tests/optimizers/test_chunk.h>

namespace terrace::test {

class TestLayer {
 public:
  // Tensors lie one behind the other, each at a multiple of 64 elements; their `first` is set here.
  TestLayer(const Optimizer& optimizer, DType dtype, std::string_view recipe, std::vector<UpdateTensor> of_layer,
            std::int64_t chunk_elements)
      : tensors(std::move(of_layer)), unit_(*optimizer.layer_unit()), chunk_elements_(chunk_elements) {
    auto r = Recipe::of(dtype, recipe, optimizer.states());
    if (unit_.packs_second_moment) r.second_moment = dtype == DType::fp64 ? Format::packed64 : Format::packed;
    std::int64_t end = 0;
    for (auto& t : tensors) {
      t.first = end;
      end = static_cast<std::int64_t>(round_up(static_cast<std::uint64_t>(end + t.elements()), 64));
    }
    for (std::int64_t at = 0; at < end; at += chunk_elements) chunks_.emplace_back(r, chunk_elements);
  }

  std::vector<UpdateTensor> tensors;

  void update(const Optimizer& optimizer, Stream& stream, const UpdateStep& step) {
    std::vector<ChunkUpdate> chunks;
    std::vector<Stored> packed;
    for (auto& chunk : chunks_) {
      auto& update = chunks.emplace_back(chunk.update());
      update.parts = {};
      for (auto& state : update.states)
        if (is_packed(state.format)) {
          packed.push_back(state);
          state = {};
        }
    }
    const auto needs = unit_.needs(shape());
    // Nothing may depend on what scratch holds.
    std::vector<std::uint64_t> scratch(needs.scratch_bytes / 8 + 9, 0xffff'ffff'ffff'ffffU);
    auto* const aligned = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::uintptr_t>(scratch.data()), 64));
    optimizer.enqueue_layer(stream, step, {.chunks = chunks, .packed = packed, .tensors = tensors, .scratch = aligned});
    stream.synchronize();
  }

  [[nodiscard]] LayerShape shape() const {
    return {.arithmetic = chunks_[0].fp64() ? DType::fp64 : DType::fp32,
            .run_elements = chunk_elements_ * static_cast<std::int64_t>(chunks_.size()),
            .tensors = tensors};
  }
  [[nodiscard]] const Recipe& recipe() const { return chunks_[0].recipe(); }
  [[nodiscard]] double weight(std::size_t tensor, std::int64_t i) const {
    const auto at = tensors[tensor].first + i;
    return chunks_[static_cast<std::size_t>(at / chunk_elements_)].weight(at % chunk_elements_);
  }
  [[nodiscard]] double gradient(std::size_t tensor, std::int64_t i) const {
    const auto at = tensors[tensor].first + i;
    return chunks_[static_cast<std::size_t>(at / chunk_elements_)].gradient(at % chunk_elements_);
  }
  void set_weight(std::size_t tensor, std::int64_t i, double value) {
    const auto at = tensors[tensor].first + i;
    chunks_[static_cast<std::size_t>(at / chunk_elements_)].set_weight(at % chunk_elements_, value);
  }
  void set_gradient(std::size_t tensor, std::int64_t i, double value) {
    const auto at = tensors[tensor].first + i;
    chunks_[static_cast<std::size_t>(at / chunk_elements_)].set_gradient(at % chunk_elements_, value);
  }
  std::vector<TestChunk>& chunks() { return chunks_; }

 private:
  LayerUnit unit_;
  std::int64_t chunk_elements_;
  std::vector<TestChunk> chunks_;
};

inline void draw_layer_weights(TestLayer& layer, std::uint64_t seed) {
  for (std::size_t t = 0; t < layer.tensors.size(); ++t) {
    std::mt19937_64 random(seed + t);
    for (std::int64_t i = 0; i < layer.tensors[t].elements(); ++i)
      layer.set_weight(t, i, std::uniform_real_distribution<double>(-1, 1)(random));
  }
}
inline void draw_layer_gradients(TestLayer& layer, std::uint64_t seed) {
  for (std::size_t t = 0; t < layer.tensors.size(); ++t) {
    std::mt19937_64 random(1000 * seed + t);
    for (std::int64_t i = 0; i < layer.tensors[t].elements(); ++i)
      layer.set_gradient(t, i,
                         std::uniform_real_distribution<double>(-1, 1)(random) * std::pow(10.0, -static_cast<double>(i % 3)));
  }
}

}  // namespace terrace::test
