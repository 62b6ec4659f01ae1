#include <terrace/optimizers/layer_work.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <terrace/optimizers/check_update.h>
#include <terrace/optimizers/stored_weights.h>

namespace terrace {
namespace {

constexpr std::int64_t kBlockElements = 4096;

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

// `add(lanes, first, count)` for every block, and the fold.
template <class Add>
double folded(ThreadPool& pool, std::int64_t elements, const Add& add) {
  const auto blocks = (elements + kBlockElements - 1) / kBlockElements;
  std::vector<double> sums(static_cast<std::size_t>(blocks));
  pool.parallel_for(blocks, [&](std::int64_t b) {
    const auto first = b * kBlockElements;
    SumOfSquares lanes;
    add(lanes, first, std::min(kBlockElements, elements - first));
    sums[static_cast<std::size_t>(b)] = lanes.sum();
  });
  double sum = 0;
  for (const double s : sums) sum += s;
  return sum;
}

struct Descend {
  static constexpr std::array<Kind, 0> kStates{};
  template <class A>
  struct Factors {
    A rate, decay;
  };
  template <class A>
  TERRACE_INLINE static void element(const Factors<A>& f, A& weight, A direction, A&, A&) {
    const A p = weight * f.decay;
    weight = p - f.rate * direction;
  }
};

}  // namespace

template <class A>
double sum_of_squares(ThreadPool& pool, const A* numbers, std::int64_t count) {
  return folded(pool, count, [&](SumOfSquares& lanes, std::int64_t first, std::int64_t n) { lanes.add(numbers + first, n); });
}
template double sum_of_squares(ThreadPool&, const float*, std::int64_t);
template double sum_of_squares(ThreadPool&, const double*, std::int64_t);

LayerShape shape_of(const LayerUpdate& layer) {
  const auto& parameter = layer.chunks.front().parameter;
  return {.arithmetic = parameter.format == Format::fp64 ? DType::fp64 : DType::fp32,
          .run_elements = parameter.elements * static_cast<std::int64_t>(layer.chunks.size()),
          .tensors = {layer.tensors.begin(), layer.tensors.end()}};
}

template <class A>
LayerWork<A>::LayerWork(const char* name, std::size_t states, Isa isa, const UpdateStep& step, const LayerUpdate& layer,
                        A* directions)
    : chunks_(layer.chunks.begin(), layer.chunks.end()),
      packed_(layer.packed.begin(), layer.packed.end()),
      tensors_(layer.tensors.begin(), layer.tensors.end()),
      parts_(chunks_.size()),
      part_tensor_(chunks_.size()),
      isa_(isa),
      step_(step),
      directions_(directions),
      chunk_elements_(chunks_.front().parameter.elements) {
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    if (chunks_[c].parameter.elements != chunk_elements_)
      refuse(name, fmt::format("chunk {} of the layer has {} elements, and the first one {}", c, chunks_[c].parameter.elements,
                               chunk_elements_));
    const auto begin = static_cast<std::int64_t>(c) * chunk_elements_, end = begin + chunk_elements_;
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
    chunks_[c].parts = parts_[c];
    elementwise::check(name, states, step, chunks_[c]);
  }
}

template <class A>
void LayerWork<A>::each_tile(ThreadPool& pool, const Each& each) const {
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    const auto begin = static_cast<std::int64_t>(c) * chunk_elements_;
    elementwise::run(pool, isa_, step_, chunks_[c], elementwise::Takes::numbers,
                     elementwise::Loop<A>([&](std::size_t part, const elementwise::Tile<A>& tile) {
                       const auto tensor = part_tensor_[c][part];
                       each(tensor, begin + tile.first - tensors_[tensor].first, tile);
                     }));
  }
}

template <class A>
double LayerWork<A>::weight_squares(ThreadPool& pool, std::size_t tensor) const {
  const auto& t = tensors_[tensor];
  return folded(pool, t.elements(), [&](SumOfSquares& lanes, std::int64_t first, std::int64_t count) {
    for (std::int64_t at = t.first + first, end = at + count; at < end;) {
      const auto& chunk = chunks_[static_cast<std::size_t>(at / chunk_elements_)];
      const auto n = std::min(end - at, chunk_elements_ - at % chunk_elements_);
      read_weights({.parameter = chunk.parameter, .master = chunk.master}, at % chunk_elements_, n,
                   [&](std::int64_t, TensorView range) {
                     if (range.dtype == DType::fp32) lanes.add(range.as<float>(), range.elements());
                     if (range.dtype == DType::fp64) lanes.add(range.as<double>(), range.elements());
                     if (range.dtype == DType::bf16)
                       lanes.add(reinterpret_cast<const std::uint16_t*>(range.data), range.elements());
                   });
      at += n;
    }
  });
}

template <class A>
double LayerWork<A>::direction_squares(ThreadPool& pool, std::size_t tensor) const {
  return sum_of_squares(pool, directions(tensor), tensors_[tensor].elements());
}

template <class A>
void LayerWork<A>::descend(ThreadPool& pool, std::span<const Descent> of_tensors) const {
  const auto loop = elementwise::kLoops<Descend, A>.of(isa_);
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    auto chunk = chunks_[c];
    chunk.states = {};
    chunk.gradient = {reinterpret_cast<std::byte*>(directions_ + static_cast<std::int64_t>(c) * chunk_elements_),
                      sizeof(A) == sizeof(double) ? Format::fp64 : Format::fp32, chunk_elements_};
    elementwise::run(pool, isa_, step_, chunk, elementwise::Takes::halves,
                     elementwise::Loop<A>([&](std::size_t part, const elementwise::Tile<A>& tile) {
                       const auto& d = of_tensors[part_tensor_[c][part]];
                       loop(tile, {.rate = static_cast<A>(d.rate), .decay = static_cast<A>(d.decay)});
                     }));
  }
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

}  // namespace terrace
