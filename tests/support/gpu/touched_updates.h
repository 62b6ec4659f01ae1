// The bytes that updates use, and updates with the addresses that the fake GPU's operations use.
//
// Owner, threads: values. Errors: none.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <terrace/optimizers/layerwise/layer_work.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/tests/support/gpu/fake_cuda.h>

namespace terrace::test {

inline void add_stored(FakeCuda::Touched& touched, const Stored& stored, bool writes) {
  if (stored.data)
    touched.add(stored.data, rules::bytes_of(stored.format, static_cast<std::uint64_t>(stored.elements)), writes);
}

inline FakeCuda::Touched touched_by(std::string name, const ChunkUpdate& chunk) {
  FakeCuda::Touched touched{.name = std::move(name)};
  add_stored(touched, chunk.gradient, false);
  for (const auto& stored : {chunk.parameter, chunk.master, chunk.states[0], chunk.states[1]})
    add_stored(touched, stored, true);
  const auto add_previous = [&](std::byte* data, Stored as) {
    as.data = data;
    add_stored(touched, as, true);
  };
  add_previous(chunk.previous.parameter, chunk.parameter);
  add_previous(chunk.previous.master, chunk.master);
  for (std::size_t i = 0; i < chunk.states.size(); ++i) add_previous(chunk.previous.states[i], chunk.states[i]);
  return touched;
}
inline FakeCuda::Touched touched_by(std::string name, const LayerUnit& unit, const LayerUpdate& layer) {
  FakeCuda::Touched touched{.name = std::move(name)};
  const bool weights = layer.half != UpdateHalf::prepare, states = layer.half != UpdateHalf::finish;
  for (const auto& chunk : layer.chunks) {
    add_stored(touched, chunk.gradient, false);
    for (const auto& stored : {chunk.parameter, chunk.master}) add_stored(touched, stored, weights);
    for (const auto& stored : chunk.states) add_stored(touched, stored, states);
  }
  for (const auto& stored : layer.packed) add_stored(touched, stored, unit.second_moment == Packed::whole ? weights : states);
  if (!layer.chunks.empty()) touched.add(layer.scratch, unit.needs(rules::shape_of(layer)).scratch_bytes, true);
  return touched;
}

// The same data, with the address that the fake GPU's operations use.
inline Stored reached(const FakeCuda& fake, Stored stored) {
  stored.data = fake.reach(stored.data);
  return stored;
}
inline ChunkUpdate reached(const FakeCuda& fake, ChunkUpdate chunk) {
  for (auto* const stored : {&chunk.parameter, &chunk.master, &chunk.gradient, &chunk.states[0], &chunk.states[1]})
    *stored = reached(fake, *stored);
  return chunk;
}

class OwnUpdate {
 public:
  explicit OwnUpdate(const ChunkUpdate& chunk) : chunk_(chunk), parts_(chunk.parts.begin(), chunk.parts.end()) {}
  [[nodiscard]] OwnUpdate reached(const FakeCuda& fake) const { return OwnUpdate(test::reached(fake, chunk())); }
  [[nodiscard]] ChunkUpdate chunk() const {
    auto chunk = chunk_;
    chunk.parts = parts_;
    return chunk;
  }

 private:
  ChunkUpdate chunk_;
  std::vector<UpdatePart> parts_;
};

class OwnLayerUpdate {
 public:
  explicit OwnLayerUpdate(const LayerUpdate& layer)
      : layer_(layer),
        chunks_(layer.chunks.begin(), layer.chunks.end()),
        packed_(layer.packed.begin(), layer.packed.end()),
        tensors_(layer.tensors.begin(), layer.tensors.end()) {}
  [[nodiscard]] OwnLayerUpdate reached(const FakeCuda& fake) const {
    auto there = *this;
    for (auto& chunk : there.chunks_) chunk = test::reached(fake, chunk);
    for (auto& stored : there.packed_) stored = test::reached(fake, stored);
    there.layer_.scratch = fake.reach(layer_.scratch);
    return there;
  }
  [[nodiscard]] LayerUpdate layer() const {
    auto layer = layer_;
    layer.chunks = chunks_;
    layer.packed = packed_;
    layer.tensors = tensors_;
    return layer;
  }

 private:
  LayerUpdate layer_;
  std::vector<ChunkUpdate> chunks_;
  std::vector<Stored> packed_;
  std::vector<UpdateTensor> tensors_;
};

}  // namespace terrace::test
