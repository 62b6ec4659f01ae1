#include <terrace/optimizers/elementwise.h>

#include <algorithm>

#include <terrace/optimizers/codecs.h>
#include <terrace/optimizers/dynamic8.h>

namespace terrace::elementwise {
namespace {

// Elements a task takes: 256 KiB of fp32, large enough to hide a task's cost, small enough to even out two threads.
constexpr std::int64_t kBlockElements = 65536;
// Elements that are converted at once: all their arrays stay in the first-level cache. Whole blocks of 8-bit states.
constexpr std::int64_t kTileElements = 1024;
static_assert(kTileElements % dynamic8::kBlockElements == 0 && kBlockElements % kTileElements == 0);

template <class A>
constexpr Format kPlain = std::is_same_v<A, double> ? Format::fp64 : Format::fp32;

template <class T>
T* at(const Stored& stored, std::int64_t first) {
  return reinterpret_cast<T*>(stored.data) + first;
}
Codecs::Half* halves(const Stored& stored, std::int64_t first) { return at<Codecs::Half>(stored, first); }

// A part's gradients: where they lie, or widened into a buffer.
template <class A>
const A* gradients(const Stored& stored, Isa isa, std::int64_t first, std::int64_t count, A* buffer) {
  if constexpr (std::is_same_v<A, float>) {
    if (stored.format == Format::bf16) {
      kCodecs.widen.of(isa)(buffer, halves(stored, first), count);
      return buffer;
    }
  }
  return at<A>(stored, first);
}

// One of a tile's states: where it lies, or converted into a buffer and back.
template <class A>
class State {
 public:
  State(const Stored& stored, Isa isa, bool starts_empty) : stored_(stored), isa_(isa), starts_empty_(starts_empty) {}

  [[nodiscard]] bool in_place() const { return stored_.format == kPlain<A> || stored_.format == Format::none; }
  A* open(std::int64_t first, std::int64_t count, A* buffer) const {
    if (stored_.format == Format::none) return nullptr;
    A* const values = in_place() ? at<A>(stored_, first) : buffer;
    if (starts_empty_) {
      std::fill(values, values + (in_place() ? count : kTileElements), A{0});
      return values;
    }
    if constexpr (std::is_same_v<A, float>) {
      if (stored_.format == Format::bf16) kCodecs.widen.of(isa_)(buffer, halves(stored_, first), count);
      if (is_dynamic8(stored_.format))
        dynamic8::decode(isa_, sign(), buffer, codes(first), scales(first), dynamic8::blocks_of(count));
    }
    return values;
  }
  void close(std::int64_t first, std::int64_t count, const A* values) const {
    if constexpr (std::is_same_v<A, float>) {
      if (stored_.format == Format::bf16) kCodecs.round_state.of(isa_)(halves(stored_, first), values, count);
      if (is_dynamic8(stored_.format))
        dynamic8::encode(isa_, sign(), codes(first), scales(first), values, dynamic8::blocks_of(count));
    }
  }

 private:
  [[nodiscard]] dynamic8::Sign sign() const {
    return stored_.format == Format::dynamic8 ? dynamic8::Sign::both : dynamic8::Sign::none;
  }
  [[nodiscard]] std::uint8_t* codes(std::int64_t first) const { return at<std::uint8_t>(stored_, first); }
  [[nodiscard]] float* scales(std::int64_t first) const {
    return at<float>({.data = stored_.data + dynamic8::blocks_of(stored_.elements) * dynamic8::kBlockElements},
                     first / dynamic8::kBlockElements);
  }

  const Stored& stored_;
  Isa isa_;
  bool starts_empty_;
};

// A part's weights: where they lie, or put together in a buffer and taken apart again.
template <class A>
class Weights {
 public:
  Weights(const ChunkUpdate& chunk, Isa isa, const UpdateStep& step)
      : chunk_(chunk), isa_(isa), seed_(step.seed + step.step * 0x9E3779B97F4A7C15U) {}

  [[nodiscard]] const Stored& own() const { return copied() ? chunk_.master : chunk_.parameter; }
  [[nodiscard]] bool in_place() const { return own().format == kPlain<A>; }
  // Where the loop itself puts the bf16 copy of the new weights.
  [[nodiscard]] Codecs::Half* copy(std::int64_t first) const { return copied() ? halves(chunk_.parameter, first) : nullptr; }

  A* open(std::int64_t first, std::int64_t count, A* buffer) const {
    if constexpr (std::is_same_v<A, float>) {
      if (!in_place()) {
        const auto* const high = halves(chunk_.parameter, first);
        if (chunk_.master.format == Format::low16)
          kCodecs.join.of(isa_)(buffer, high, halves(chunk_.master, first), count);
        else
          kCodecs.widen.of(isa_)(buffer, high, count);
        return buffer;
      }
    }
    return at<A>(own(), first);
  }
  void close(const UpdatePart& part, std::int64_t first, std::int64_t count, const A* values) const {
    if constexpr (std::is_same_v<A, float>) {
      if (in_place()) return;
      auto* const high = halves(chunk_.parameter, first);
      if (chunk_.master.format == Format::low16)
        kCodecs.split.of(isa_)(high, halves(chunk_.master, first), values, count);
      else
        kCodecs.round_randomly.of(isa_)(high, values, count,
                                        {.seed = seed_,
                                         .stream = part.stream,
                                         .first = part.tensor_element + static_cast<std::uint64_t>(first - part.first)});
    }
  }

 private:
  [[nodiscard]] bool copied() const { return chunk_.master.format == Format::fp32; }

  const ChunkUpdate& chunk_;
  Isa isa_;
  std::uint64_t seed_;
};

template <class A>
void run_tiles(ThreadPool& pool, Isa isa, const UpdateStep& step, const ChunkUpdate& chunk, const Loop<A>& loop) {
  const Weights<A> weights(chunk, isa, step);
  const State<A> states[2] = {{chunk.states[0], isa, step.first}, {chunk.states[1], isa, step.first}};
  const bool direct = weights.in_place() && chunk.gradient.format == kPlain<A> && states[0].in_place() && states[1].in_place();
  const std::int64_t tile_elements = direct ? kBlockElements : kTileElements;
  const auto after = [](const UpdatePart& part) { return part.first + part.count; };

  const auto tile = [&](std::int64_t tile_first, std::int64_t tile_end) {
    auto part = std::ranges::upper_bound(chunk.parts, tile_first, {}, after);
    const bool has_part = part != chunk.parts.end() && part->first < tile_end;
    if (!has_part && !step.first) return;
    alignas(64) A weight_buffer[kTileElements], gradient_buffer[kTileElements], state_buffers[2][kTileElements];
    A* const state0 = states[0].open(tile_first, tile_end - tile_first, state_buffers[0]);
    A* const state1 = states[1].open(tile_first, tile_end - tile_first, state_buffers[1]);
    for (; part != chunk.parts.end() && part->first < tile_end; ++part) {
      const auto first = std::max(part->first, tile_first), count = std::min(after(*part), tile_end) - first;
      if (count == 0) continue;
      A* const weight = weights.open(first, count, weight_buffer);
      const auto from = first - tile_first;
      loop(static_cast<std::size_t>(part - chunk.parts.begin()),
           {.weight = weight,
            .copy = weights.copy(first),
            .gradient = gradients<A>(chunk.gradient, isa, first, count, gradient_buffer),
            .state0 = state0 ? state0 + from : nullptr,
            .state1 = state1 ? state1 + from : nullptr,
            .count = count,
            .first = first});
      weights.close(*part, first, count, weight);
    }
    states[0].close(tile_first, tile_end - tile_first, state0);
    states[1].close(tile_first, tile_end - tile_first, state1);
  };
  // Blocks and tiles are aligned in the chunk's elements, so that 8-bit blocks are the same however the work is split.
  const std::int64_t elements = chunk.parameter.elements;
  const auto block = [&](std::int64_t b) {
    const std::int64_t block_end = std::min(elements, (b + 1) * kBlockElements);
    for (std::int64_t first = b * kBlockElements; first < block_end; first += tile_elements)
      tile(first, std::min(block_end, first + tile_elements));
  };
  // The first update leaves nothing of what the memory of states held before, padding included.
  const std::int64_t end = step.first ? elements : chunk.parts.empty() ? 0 : after(chunk.parts.back());
  const std::int64_t blocks = (end + kBlockElements - 1) / kBlockElements;
  if (blocks == 1)
    block(0);
  else
    pool.parallel_for(blocks, block);
}

}  // namespace

void run(ThreadPool& pool, Isa isa, const UpdateStep& step, const ChunkUpdate& chunk, const Loop<float>& loop) {
  run_tiles(pool, isa, step, chunk, loop);
}
void run(ThreadPool& pool, Isa isa, const UpdateStep& step, const ChunkUpdate& chunk, const Loop<double>& loop) {
  run_tiles(pool, isa, step, chunk, loop);
}

}  // namespace terrace::elementwise
