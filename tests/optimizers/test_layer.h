// A layer in memory, for optimizers that see whole layers: its run is cut into chunks of any size and dealt to one or several
// ranks; with access to the plain numbers of its tensors.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/core/device/device.h>
#include <terrace/tests/optimizers/test_chunk.h>

namespace terrace::test {

class TestLayer {
 public:
  // Tensors follow one another, each at a multiple of 64 elements; the constructor sets their `first`.
  TestLayer(const Optimizer& optimizer, DType dtype, std::string_view recipe, std::vector<UpdateTensor> of_layer,
            std::int64_t chunk_elements, std::int64_t ranks = 1)
      : tensors(std::move(of_layer)), unit_(*optimizer.layer_unit()), chunk_elements_(chunk_elements), ranks_(ranks) {
    auto r = rules::Recipe::of(dtype, recipe, optimizer.states());
    if (unit_.second_moment != Packed::none)
      r.second_moment = dtype == DType::fp64 ? rules::Format::packed64 : rules::Format::packed;
    std::int64_t end = 0;
    for (auto& t : tensors) {
      t.first = end;
      end = static_cast<std::int64_t>(round_up(static_cast<std::uint64_t>(end + t.elements()), 64));
    }
    for (std::int64_t at = 0; at < end; at += chunk_elements * ranks)
      for (std::int64_t rank = 0; rank < ranks; ++rank) chunks_.emplace_back(r, chunk_elements);
    if (unit_.second_moment == Packed::none) return;
    const auto numbers = unit_.needs(shape()).packed_numbers;
    packed_elements_ = static_cast<std::int64_t>(ceil_div(numbers, chunks_.size() / static_cast<std::size_t>(ranks)));
    packed_.resize(chunks_.size(), std::vector<double>(static_cast<std::size_t>(packed_elements_), std::nan("")));
  }

  std::vector<UpdateTensor> tensors;
  std::function<void(LayerUpdate&, std::vector<Stored>& packed)> spoil = {};  // called just before an update

  void update(const Optimizer& optimizer, Stream& stream, const UpdateStep& step) {
    std::vector<Scratch> scratches;
    for (std::int64_t rank = 0; rank < ranks_; ++rank) scratches.emplace_back(unit_.needs(shape(rank)).scratch_bytes);
    const auto enqueue = [&](std::int64_t rank, UpdateHalf half) {
      std::vector<ChunkUpdate> chunks;
      std::vector<Stored> packed;
      for (auto c = rank; c < static_cast<std::int64_t>(chunks_.size()); c += ranks_) {
        auto& update = chunks.emplace_back(chunks_[static_cast<std::size_t>(c)].update());
        update.parts = {};
        for (auto& state : update.states)
          if (rules::is_packed(state.format)) {
            auto* const numbers = reinterpret_cast<std::byte*>(packed_[static_cast<std::size_t>(c)].data());
            packed.push_back({numbers, state.format, packed_elements_});
            state = {};
          }
      }
      LayerUpdate layer{.chunks = chunks,
                        .packed = packed,
                        .tensors = tensors,
                        .scratch = scratches[static_cast<std::size_t>(rank)].data(),
                        .share = {ranks_, rank},
                        .half = half};
      if (spoil) spoil(layer, packed);
      optimizer.enqueue_layer(stream, step, layer);
      stream.synchronize();
    };
    if (ranks_ == 1) return enqueue(0, UpdateHalf::both);
    for (std::int64_t rank = 0; rank < ranks_; ++rank) enqueue(rank, UpdateHalf::prepare);
    for (const auto& e : unit_.needs(shape()).exchanges) exchange(scratches, e);
    for (std::int64_t rank = 0; rank < ranks_; ++rank) enqueue(rank, UpdateHalf::finish);
  }

  [[nodiscard]] LayerShape shape(std::int64_t rank = 0) const {
    return {.arithmetic = chunks_[0].fp64() ? DType::fp64 : DType::fp32,
            .run_elements = chunk_elements_ * static_cast<std::int64_t>(chunks_.size()),
            .tensors = tensors,
            .share = {ranks_, rank},
            .chunk_elements = chunk_elements_};
  }
  void offer_packed(std::int64_t numbers_a_chunk) { packed_elements_ = numbers_a_chunk; }  // instead of the needed number
  [[nodiscard]] const rules::Recipe& recipe() const { return chunks_[0].recipe(); }
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
  [[nodiscard]] const std::vector<TestChunk>& chunks() const { return chunks_; }
  [[nodiscard]] const std::vector<std::vector<double>>& packed() const { return packed_; }

 private:
  // Filled with garbage: no result may depend on its old content.
  class Scratch {
   public:
    explicit Scratch(std::uint64_t bytes) : numbers_(bytes / 8 + 9, 0xffff'ffff'ffff'ffffU) {}
    [[nodiscard]] std::byte* data() {
      return reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::uintptr_t>(numbers_.data()), 64));
    }

   private:
    std::vector<std::uint64_t> numbers_;
  };

  // Does what communicators do.
  void exchange(std::vector<Scratch>& scratches, const ScratchExchange& e) const {
    std::vector<std::byte> all(e.bytes);
    const auto part = e.bytes / scratches.size();
    for (std::size_t r = 0; r < scratches.size(); ++r) {
      const auto* const from = scratches[r].data() + e.offset;
      if (e.way == ScratchExchange::Way::gather) {
        std::copy_n(from + r * part, part, all.data() + r * part);
        continue;
      }
      for (std::uint64_t i = 0; i < e.bytes; i += sizeof(double)) {
        double sum = 0, own = 0;
        std::memcpy(&sum, &all[i], sizeof sum);
        std::memcpy(&own, from + i, sizeof own);
        sum += own;
        std::memcpy(&all[i], &sum, sizeof sum);
      }
    }
    for (auto& scratch : scratches) std::ranges::copy(all, scratch.data() + e.offset);
  }

  LayerUnit unit_;
  std::int64_t chunk_elements_, ranks_;
  std::vector<TestChunk> chunks_;
  std::vector<std::vector<double>> packed_;  // large enough for fp32 and fp64
  std::int64_t packed_elements_ = 0;
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

// Draws only finite ones, at every third step, at the beginning of a vector and of a matrix.
template <class A>
void draw_hostile_layer_gradients(TestLayer& layer, std::uint64_t t) {
  const auto hostile = hostile_numbers<A>();
  for (const std::size_t tensor : {1, 2})
    for (std::size_t i = 0; i < hostile.size() && t % 3 == 1; ++i)
      if (std::isfinite(hostile[i])) layer.set_gradient(tensor, static_cast<std::int64_t>(i), static_cast<double>(hostile[i]));
}

}  // namespace terrace::test
