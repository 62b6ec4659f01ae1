#include <terrace/optimizers/loops/elementwise.h>

#include <algorithm>
#include <utility>

#include <terrace/core/device/host_copy.h>
#include <terrace/optimizers/formats/codecs.h>
#include <terrace/optimizers/formats/dynamic8.h>

namespace terrace::rules::elementwise {
namespace {

// Elements per task: 256 KiB of fp32, large enough to hide a task's cost, small enough to balance two threads.
constexpr std::int64_t kTaskElements = 65536;
// Elements per tile when conversions pass through buffers: few, so that the memory is never idle for long, and whole blocks of
// 8-bit states.
constexpr std::int64_t kTileElements = 512;
static_assert(kTileElements % dynamic8::kBlockElements == 0 && kTaskElements % kTileElements == 0);

template <class A>
constexpr Format kPlain = std::is_same_v<A, double> ? Format::fp64 : Format::fp32;

template <class T>
T* at(const Stored& stored, std::int64_t first) {
  return reinterpret_cast<T*>(stored.data) + first;
}
Codecs::Half* halves(const Stored& stored, std::int64_t first) { return at<Codecs::Half>(stored, first); }

// Copies elements [first, end) of an array, in whole blocks of 8-bit states.
void keep(std::byte* to, const Stored& from, std::int64_t first, std::int64_t end) {
  if (from.format == Format::none || first >= end) return;
  const auto copy = [&](std::int64_t begin, std::int64_t bytes) {
    device::copy_past_cache(to + begin, from.data + begin, static_cast<std::size_t>(bytes));
  };
  const auto bytes_of = [&](std::int64_t n) {
    return static_cast<std::int64_t>(rules::bytes_of(from.format, static_cast<std::uint64_t>(n)));
  };
  if (!is_dynamic8(from.format)) return copy(bytes_of(first), bytes_of(end) - bytes_of(first));
  const auto block = first / dynamic8::kBlockElements, blocks = dynamic8::blocks_of(end) - block;
  copy(first, blocks * dynamic8::kBlockElements);
  constexpr std::int64_t kScale = sizeof(float);
  copy(dynamic8::blocks_of(from.elements) * dynamic8::kBlockElements + block * kScale, blocks * kScale);
}

// How a row is passed to the loop, which may or may not accept 16-bit rows in place.
template <class A>
struct Opening {
  Isa isa;
  Takes takes;

  [[nodiscard]] bool as_halves(Format format) const { return takes.halves && format == Format::bf16; }
  [[nodiscard]] bool in_place(Format format) const {
    return format == kPlain<A> || format == Format::none || as_halves(format);
  }
  [[nodiscard]] Row<A> row(const Stored& stored, std::int64_t first) const {
    if (stored.format == Format::none) return {};
    if (as_halves(stored.format)) return {.halves = halves(stored, first)};
    return {.numbers = at<A>(stored, first)};
  }
};

// A part's gradients: in place, or widened into a buffer.
template <class A>
Row<A> gradients(const Opening<A>& opening, const Stored& stored, std::int64_t first, std::int64_t count, A* buffer) {
  if constexpr (std::is_same_v<A, float>) {
    if (!opening.in_place(stored.format)) {
      kCodecs.widen.of(opening.isa)(buffer, halves(stored, first), count);
      return {.numbers = buffer};
    }
  }
  return opening.row(stored, first);
}

// One of a tile's states: in place, or converted into a buffer and back.
template <class A>
class State {
 public:
  State(const Stored& stored, const Opening<A>& opening, bool starts_empty)
      : stored_(stored), opening_(opening), starts_empty_(starts_empty) {}

  [[nodiscard]] bool in_place() const { return opening_.in_place(stored_.format); }
  // Codes and scales of whole blocks.
  [[nodiscard]] Row<A> coded(std::int64_t first) const {
    if (stored_.format == Format::none) return {};
    return {.codes = codes(first), .scales = scales(first)};
  }
  Row<A> open(std::int64_t first, std::int64_t count, A* buffer) const {
    if (in_place()) {
      const auto row = opening_.row(stored_, first);
      if (starts_empty_ && row.numbers != nullptr) std::fill(row.numbers, row.numbers + count, A{0});
      if (starts_empty_ && row.halves != nullptr) std::fill(row.halves, row.halves + count, Codecs::Half{0});
      return row;
    }
    if (starts_empty_) {
      std::fill(buffer, buffer + kTileElements, A{0});
    } else if constexpr (std::is_same_v<A, float>) {
      if (stored_.format == Format::bf16)
        kCodecs.widen.of(opening_.isa)(buffer, halves(stored_, first), count);
      else
        dynamic8::decode(opening_.isa, sign(), buffer, codes(first), scales(first), dynamic8::blocks_of(count));
    }
    return {.numbers = buffer};
  }
  void close(std::int64_t first, std::int64_t count, const A* buffer) const {
    if constexpr (std::is_same_v<A, float>) {
      if (in_place()) return;
      if (stored_.format == Format::bf16)
        kCodecs.round_state.of(opening_.isa)(halves(stored_, first), buffer, count);
      else
        dynamic8::encode(opening_.isa, sign(), codes(first), scales(first), buffer, dynamic8::blocks_of(count));
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
  const Opening<A>& opening_;
  bool starts_empty_;
};

// A part's weights: in place, or combined in a buffer and split again.
template <class A>
class Weights {
 public:
  Weights(const ChunkUpdate& chunk, const Opening<A>& opening, const UpdateStep& step)
      : chunk_(chunk), opening_(opening), seed_(random_key(step.seed, step.step)) {}

  [[nodiscard]] bool in_place() const { return plain() || opening_.takes.halves; }
  // The old content of a copy's memory is arbitrary, so the copy is written whole.
  [[nodiscard]] bool written_whole() const { return copied() && opening_.takes.halves; }
  void clear_padding(std::int64_t first, std::int64_t end) const {
    if (written_whole() && first < end)
      std::fill(halves(chunk_.parameter, first), halves(chunk_.parameter, end), Codecs::Half{0});
  }
  void open(const UpdatePart& part, std::int64_t first, std::int64_t count, A* buffer, Tile<A>& to) const {
    if (plain()) {
      to.weight = at<A>(copied() ? chunk_.master : chunk_.parameter, first);
      if (copied()) to.copy = halves(chunk_.parameter, first);
      to.copy_is_fp16 = chunk_.parameter.format == Format::fp16;
      return;
    }
    if constexpr (std::is_same_v<A, float>) {
      auto* const high = halves(chunk_.parameter, first);
      const auto master = chunk_.master.format;
      auto* const low = master == Format::low16 ? halves(chunk_.master, first) : nullptr;
      auto* const low8 = master == Format::low8 ? at<std::uint8_t>(chunk_.master, first) : nullptr;
      if (in_place()) {
        to.copy = high;
        to.low = low;
        to.low8 = low8;
        to.is_random = low == nullptr;
        to.random = random(part, first);
        return;
      }
      if (low != nullptr)
        kCodecs.join.of(opening_.isa)(buffer, high, low, count);
      else if (low8 != nullptr)
        kCodecs.join24.of(opening_.isa)(buffer, high, low8, count);
      else
        kCodecs.widen.of(opening_.isa)(buffer, high, count);
      to.weight = buffer;
    }
  }

 private:
  [[nodiscard]] bool copied() const { return chunk_.master.format == Format::fp32; }
  [[nodiscard]] bool plain() const { return copied() || chunk_.parameter.format == kPlain<A>; }
  [[nodiscard]] RandomBits random(const UpdatePart& part, std::int64_t first) const {
    return {
        .seed = seed_, .stream = part.stream, .first = part.tensor_element + static_cast<std::uint64_t>(first - part.first)};
  }

  const ChunkUpdate& chunk_;
  const Opening<A>& opening_;
  std::uint64_t seed_;
};

// The update of a chunk, in tiles. Blocks and tiles are aligned in the chunk's elements, so that 8-bit blocks are the same
// however the work is split.
template <class A>
class Tiles {
 public:
  Tiles(Isa isa, const UpdateStep& step, const ChunkUpdate& chunk, Takes takes, const Loop<A>& loop)
      : step_(step),
        chunk_(chunk),
        loop_(loop),
        opening_{isa, takes},
        weights_(chunk, opening_, step),
        states_{{chunk.states[0], opening_, step.first}, {chunk.states[1], opening_, step.first}} {
    const bool in_place = weights_.in_place() && opening_.in_place(chunk.gradient.format);
    const bool direct = in_place && states_[0].in_place() && states_[1].in_place();
    coded_ = in_place && !step.first && takes.codes[0] != Format::none && chunk.states[0].format == takes.codes[0] &&
             chunk.states[1].format == takes.codes[1];
    tile_elements_ = direct ? kTaskElements : coded_ ? dynamic8::kBlockElements : kTileElements;
  }

  void run(ThreadPool& pool) const {
    // Includes padding: the first update overwrites all old content of the states' memory.
    const bool whole = step_.first || weights_.written_whole() || keeps_;
    const auto& parts = chunk_.parts;
    const std::int64_t end = whole ? chunk_.parameter.elements : parts.empty() ? 0 : after(parts.back());
    const std::int64_t blocks = (end + kTaskElements - 1) / kTaskElements;
    if (blocks == 1)
      block(0);
    else
      pool.parallel_for(blocks, [this](std::int64_t b) { block(b); });
  }

 private:
  static std::int64_t after(const UpdatePart& part) { return part.first + part.count; }
  // The first part that ends after the element.
  [[nodiscard]] auto part_at(std::int64_t element) const { return std::ranges::upper_bound(chunk_.parts, element, {}, after); }
  [[nodiscard]] std::size_t number_of(const UpdatePart& part) const {
    return static_cast<std::size_t>(&part - chunk_.parts.data());
  }

  void block(std::int64_t b) const {
    const std::int64_t block_end = std::min(chunk_.parameter.elements, (b + 1) * kTaskElements);
    if (keeps_) keep_block(b * kTaskElements, block_end);
    for (std::int64_t first = b * kTaskElements; first < block_end;) {
      if (coded_) {
        const auto done = coded_tile(first, block_end);
        if (std::exchange(first, done) != done) continue;
      }
      tile(first, std::min(block_end, first + tile_elements_));
      first += tile_elements_;
    }
  }

  // Just before it is updated, so that the update finds it in the cache.
  void keep_block(std::int64_t first, std::int64_t end) const {
    keep(chunk_.previous.parameter, chunk_.parameter, first, end);
    keep(chunk_.previous.master, chunk_.master, first, end);
    for (std::size_t i = 0; i < chunk_.states.size(); ++i) keep(chunk_.previous.states[i], chunk_.states[i], first, end);
  }

  void tile(std::int64_t tile_first, std::int64_t tile_end) const {
    auto part = part_at(tile_first);
    const bool has_part = part != chunk_.parts.end() && part->first < tile_end;
    if (!has_part && !step_.first) return weights_.clear_padding(tile_first, tile_end);
    alignas(64) A weight_buffer[kTileElements], gradient_buffer[kTileElements], state_buffers[2][kTileElements];
    const auto state0 = states_[0].open(tile_first, tile_end - tile_first, state_buffers[0]);
    const auto state1 = states_[1].open(tile_first, tile_end - tile_first, state_buffers[1]);
    auto done = tile_first;
    for (; part != chunk_.parts.end() && part->first < tile_end; ++part) {
      const auto first = std::max(part->first, tile_first), count = std::min(after(*part), tile_end) - first;
      if (count == 0) continue;
      weights_.clear_padding(done, first);
      done = first + count;
      Tile<A> t{.gradient = gradients<A>(opening_, chunk_.gradient, first, count, gradient_buffer),
                .state0 = state0.from(first - tile_first),
                .state1 = state1.from(first - tile_first),
                .count = count,
                .first = first};
      weights_.open(*part, first, count, weight_buffer, t);
      loop_(number_of(*part), t);
    }
    weights_.clear_padding(done, tile_end);
    states_[0].close(tile_first, tile_end - tile_first, state_buffers[0]);
    states_[1].close(tile_first, tile_end - tile_first, state_buffers[1]);
  }

  // If whole 8-bit blocks of one part begin here, the loop processes them in place. Returns the end of the elements that it has
  // processed.
  [[nodiscard]] std::int64_t coded_tile(std::int64_t tile_first, std::int64_t end) const {
    const auto part = part_at(tile_first);
    if (part == chunk_.parts.end() || part->first > tile_first) return tile_first;
    const auto count = (std::min(after(*part), end) - tile_first) / dynamic8::kBlockElements * dynamic8::kBlockElements;
    Tile<A> t{.gradient = opening_.row(chunk_.gradient, tile_first),
              .state0 = states_[0].coded(tile_first),
              .state1 = states_[1].coded(tile_first),
              .count = count,
              .first = tile_first};
    weights_.open(*part, tile_first, count, nullptr, t);
    if (count == 0) return tile_first;
    if (t.is_random && (t.random.first % kRandomElements != 0 || !share_upper_words(t.random, count))) return tile_first;
    loop_(number_of(*part), t);
    return tile_first + count;
  }

  const UpdateStep& step_;
  const ChunkUpdate& chunk_;
  const Loop<A>& loop_;
  const Opening<A> opening_;
  const Weights<A> weights_;
  const State<A> states_[2];
  const bool keeps_ = chunk_.previous.parameter != nullptr;
  bool coded_ = false;  // true: the loop can process whole 8-bit blocks in place (coded_tile())
  std::int64_t tile_elements_ = 0;
};

}  // namespace

void run(ThreadPool& pool, Isa isa, const UpdateStep& step, const ChunkUpdate& chunk, Takes takes, const Loop<float>& loop) {
  Tiles(isa, step, chunk, takes, loop).run(pool);
}
void run(ThreadPool& pool, Isa isa, const UpdateStep& step, const ChunkUpdate& chunk, Takes takes, const Loop<double>& loop) {
  Tiles(isa, step, chunk, takes, loop).run(pool);
}

}  // namespace terrace::rules::elementwise
