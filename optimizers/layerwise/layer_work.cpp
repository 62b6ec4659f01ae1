#include <terrace/optimizers/layerwise/layer_work.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <terrace/core/math/math.h>
#include <terrace/optimizers/loops/elementwise.h>
#include <terrace/optimizers/stored_weights.h>

namespace terrace::rules {
namespace {

// One block's sum, from pieces in ascending order.
class SumOfSquares {
 public:
  template <class T>
  void add(const T* x, std::int64_t count) {
    std::int64_t i = 0;
    for (; i < count && next_ != 0; ++i) one(x[i]);
    for (; i + kLanes <= count; i += kLanes)
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const auto v = number(x[i + lane]);
        lanes_[lane] += v * v;
      }
    for (; i < count; ++i) one(x[i]);
  }
  [[nodiscard]] double sum() const {
    double sum = 0;
    for (const double lane : lanes_) sum += lane;
    return sum;
  }

 private:
  static constexpr std::int64_t kLanes = 8;
  static double number(float v) { return static_cast<double>(v); }
  static double number(double v) { return v; }
  static double number(std::uint16_t bf16) { return static_cast<double>(widened(bf16)); }
  template <class T>
  void one(T x) {
    const auto v = number(x);
    lanes_[next_] += v * v;
    next_ = (next_ + 1) % kLanes;
  }

  double lanes_[kLanes] = {};
  std::int64_t next_ = 0;
};

// Weights are read from the master: the second half writes its copy, which may not exist before.
ChunkUpdate readable(ChunkUpdate chunk) {
  if (chunk.master.format != Format::fp32) return chunk;
  chunk.parameter = chunk.master;
  chunk.master = {};
  return chunk;
}

struct Descend {
  static constexpr std::array<ChunkKind, 0> kStates{};
  template <class A>
  struct Factors {
    A rate, decay;
  };
  template <class A>
  TERRACE_INLINE static void element(const Factors<A>& f, A& weight, A direction, A&, A&) {
    descend_by(f.rate, f.decay, weight, direction);
  }
};

}  // namespace

std::int64_t blocks_of(const UpdateTensor& t) {
  return (t.first + t.elements() + kSumBlock - 1) / kSumBlock - t.first / kSumBlock;
}
std::int64_t blocks_of(std::span<const UpdateTensor> tensors) {
  std::int64_t blocks = 0;
  for (const auto& t : tensors) blocks += blocks_of(t);
  return blocks;
}

LayerShape shape_of(const LayerUpdate& layer) {
  const auto& parameter = layer.chunks.front().parameter;
  return {.arithmetic = parameter.format == Format::fp64 ? DType::fp64 : DType::fp32,
          .run_elements = parameter.elements * static_cast<std::int64_t>(layer.chunks.size()) * layer.share.ranks,
          .tensors = {layer.tensors.begin(), layer.tensors.end()},
          .share = layer.share,
          .chunk_elements = parameter.elements};
}

template <class A>
LayerWork<A>::LayerWork(const char* name, std::span<const ChunkKind> states, Isa isa, const UpdateStep& step,
                        const LayerUpdate& layer, A* directions, bool all_directions, UpdateHalf half)
    : chunks_(layer.chunks.begin(), layer.chunks.end()),
      packed_(layer.packed.begin(), layer.packed.end()),
      tensors_(layer.tensors.begin(), layer.tensors.end()),
      parts_(chunks_.size()),
      part_tensor_(chunks_.size()),
      share_(layer.share),
      isa_(isa),
      step_(step),
      directions_(directions),
      all_directions_(all_directions),
      chunk_elements_(chunks_.front().parameter.elements) {
  if (share_.rank < 0 || share_.rank >= share_.ranks || (share_.ranks > 1 && chunk_elements_ % kSumBlock != 0))
    refuse(name, fmt::format("rank {} of {} has chunks of {} elements, but a layer is shared in whole blocks of {}",
                             share_.rank, share_.ranks, chunk_elements_, kSumBlock));
  std::int64_t blocks = 0;
  for (const auto& tensor : tensors_) {
    first_block_.push_back(blocks);
    blocks += blocks_of(tensor);
  }
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    auto& chunk = chunks_[c];
    if (chunk.parameter.elements != chunk_elements_)
      refuse(name, fmt::format("chunk {} of the layer has {} elements, but the first one {}", c, chunk.parameter.elements,
                               chunk_elements_));
    const auto begin = position(c) * chunk_elements_, end = begin + chunk_elements_;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const auto& tensor = tensors_[t];
      const auto first = std::max(begin, tensor.first), last = std::min(end, tensor.first + tensor.elements());
      if (first >= last) continue;
      parts_[c].push_back({.first = first - begin,
                           .count = last - first,
                           .rate = tensor.rate,
                           .decay = tensor.decay,
                           .stream = tensor.stream,
                           .tensor_element = static_cast<std::uint64_t>(first - tensor.first)});
      part_tensor_[c].push_back(t);
    }
    chunk.parts = parts_[c];
    if (half == UpdateHalf::prepare) {
      chunk = readable(chunk);
    } else {  // along directions, which are now in the place of gradients
      chunk.states = {};
      chunk.gradient = {reinterpret_cast<std::byte*>(directions_of(c)),
                        sizeof(A) == sizeof(double) ? Format::fp64 : Format::fp32, chunk_elements_};
    }
    elementwise::check(name, half == UpdateHalf::prepare ? states : std::span<const ChunkKind>{}, step, chunk);
  }
}

template <class A>
void LayerWork<A>::each_tile(ThreadPool& pool, const Each& each) const {
  for (std::size_t c = 0; c < chunks_.size(); ++c)
    elementwise::run(pool, isa_, step_, chunks_[c], elementwise::Takes{},
                     elementwise::Loop<A>([&](std::size_t part, const elementwise::Tile<A>& tile) {
                       each({.tensor = part_tensor_[c][part],
                             .chunk = c,
                             .part = part,
                             .directions = directions_of(c) + tile.first,
                             .element = tile.first - parts_[c][part].first},
                            tile);
                     }));
}

// Calls `sum(lanes, chunk, first, count)` for the pieces of each block on this rank. With one rank, a block may span several
// chunks.
template <class A>
template <class Sum>
void LayerWork<A>::sum_blocks(ThreadPool& pool, std::span<double> blocks, const Sum& sum) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& t = tensors_[i];
    const auto begin = t.first / kSumBlock;
    pool.parallel_for(blocks_of(t), [&](std::int64_t b) {
      SumOfSquares lanes;
      const auto end = std::min(t.first + t.elements(), (begin + b + 1) * kSumBlock);
      for (auto at = std::max(t.first, (begin + b) * kSumBlock); at < end;) {
        const auto chunk = at / chunk_elements_, first = at % chunk_elements_;
        const auto count = std::min(end - at, chunk_elements_ - first);
        if (chunk % share_.ranks == share_.rank) sum(lanes, static_cast<std::size_t>(chunk / share_.ranks), first, count);
        at += count;
      }
      blocks[static_cast<std::size_t>(first_block_[i] + b)] = lanes.sum();
    });
  }
}

template <class A>
void LayerWork<A>::sum_weights(ThreadPool& pool, std::span<double> blocks) const {
  sum_blocks(pool, blocks, [&](SumOfSquares& lanes, std::size_t c, std::int64_t first, std::int64_t count) {
    read_weights({.parameter = chunks_[c].parameter, .master = chunks_[c].master}, first, count,
                 [&](std::int64_t, TensorView range) {
                   if (range.dtype == DType::fp32) lanes.add(range.as<float>(), range.elements());
                   if (range.dtype == DType::fp64) lanes.add(range.as<double>(), range.elements());
                   if (range.dtype == DType::bf16)
                     lanes.add(reinterpret_cast<const std::uint16_t*>(range.data), range.elements());
                 });
  });
}

template <class A>
void LayerWork<A>::sum_directions(ThreadPool& pool, std::span<double> blocks) const {
  sum_blocks(pool, blocks, [&](SumOfSquares& lanes, std::size_t c, std::int64_t first, std::int64_t count) {
    lanes.add(directions_of(c) + first, count);
  });
}

double folded(std::span<const double> blocks, const UpdateTensor& tensor) {
  double sum = 0;
  for (const double block : blocks.first(static_cast<std::size_t>(blocks_of(tensor)))) sum += block;
  return sum;
}

template <class A>
double LayerWork<A>::folded(std::span<const double> blocks, std::size_t tensor) const {
  return terrace::rules::folded(blocks.subspan(static_cast<std::size_t>(first_block_[tensor])), tensors_[tensor]);
}

template <class A>
void LayerWork<A>::sum_tensor(ThreadPool& pool, std::size_t tensor, std::span<double> blocks) const {
  const auto& t = tensors_[tensor];
  const auto begin = t.first / kSumBlock;
  pool.parallel_for(blocks_of(t), [&](std::int64_t b) {
    const auto first = std::max(t.first, (begin + b) * kSumBlock);
    SumOfSquares lanes;
    lanes.add(directions_ + first, std::min(t.first + t.elements(), (begin + b + 1) * kSumBlock) - first);
    blocks[static_cast<std::size_t>(b)] = lanes.sum();
  });
}

template <class A>
double LayerWork<A>::direction_squares(ThreadPool& pool, std::size_t tensor) const {
  std::vector<double> blocks(static_cast<std::size_t>(blocks_of(tensors_[tensor])));
  sum_tensor(pool, tensor, blocks);
  return terrace::rules::folded(blocks, tensors_[tensor]);
}

template <class A>
void LayerWork<A>::descend(ThreadPool& pool, std::span<const Descent> of_tensors) const {
  const auto loop = elementwise::kLoops<Descend, A>.of(isa_);
  for (std::size_t c = 0; c < chunks_.size(); ++c)
    elementwise::run(pool, isa_, step_, chunks_[c], elementwise::Takes{.halves = true},
                     elementwise::Loop<A>([&](std::size_t part, const elementwise::Tile<A>& tile) {
                       const auto& d = of_tensors[part_tensor_[c][part]];
                       loop(tile, {.rate = static_cast<A>(d.rate), .decay = static_cast<A>(d.decay)});
                     }));
}

template <class A>
void LayerWork<A>::load_packed(std::span<A> numbers) const {
  std::size_t at = 0;
  for (const auto& chunk : packed_) {
    const auto capacity = static_cast<std::size_t>(chunk.elements);
    if (step_.first) std::memset(chunk.data, 0, capacity * sizeof(A));
    const auto count = std::min(capacity, numbers.size() - at);
    if (count != 0) std::memcpy(&numbers[at], chunk.data, count * sizeof(A));
    at += count;
  }
}

template <class A>
void LayerWork<A>::store_packed(std::span<const A> numbers) const {
  std::size_t at = 0;
  for (const auto& chunk : packed_) {
    const auto count = std::min(static_cast<std::size_t>(chunk.elements), numbers.size() - at);
    if (count != 0) std::memcpy(chunk.data, &numbers[at], count * sizeof(A));
    at += count;
  }
}

template class LayerWork<float>;
template class LayerWork<double>;

}  // namespace terrace::rules
