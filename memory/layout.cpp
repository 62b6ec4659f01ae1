#include <terrace/memory/layout.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <stdexcept>

#include <fmt/format.h>

#include <terrace/core/base/units.h>

namespace terrace::memory {
namespace {

// A size above this must be a negative number that was converted to unsigned.
constexpr std::uint64_t kMostElements = 1ULL << 60;

// The tensor's aligned span; the elements between its end and the start of the next tensor are padding.
std::uint64_t aligned(const LayoutTensor& tensor) {
  if (tensor.elements == 0 || tensor.elements > kMostElements) {
    throw std::logic_error(
        fmt::format("layout: tensor {} has {} elements", tensor.name, static_cast<std::int64_t>(tensor.elements)));
  }
  return round_up(tensor.elements, Layout::kAlignElements);
}

// A run of a layer before it is cut into chunks.
struct PackedRun {
  std::vector<std::uint64_t> begins;  // where each tensor begins, within the run
  std::uint64_t elements = 0;         // the last tensor's tail padding is not part of the run
  bool begins_blocks = false;         // a unit begins a block in it (not the layer's first unit)
};

std::vector<PackedRun> pack(const std::vector<LayoutTensor>& layer, std::uint64_t least_run) {
  std::uint64_t behind = 0;
  for (const auto& tensor : layer) behind += aligned(tensor);
  std::vector<PackedRun> runs;
  std::uint64_t unit = 0, place = 0;  // elements since the last unit that begins a block; the next place within the run
  for (const auto& tensor : layer) {
    const auto is_large = [&](std::uint64_t before, std::uint64_t least) {
      return (tensor.apart || before >= least) && behind >= least;
    };
    const bool begins_block = tensor.begins_unit && is_large(unit, Layout::kUnitElements);
    if (runs.empty() || tensor.begins_run || (begins_block && is_large(place, least_run))) {
      runs.emplace_back();
      place = 0;
      if (tensor.begins_run) unit = 0;
    } else if (begins_block) {
      place = round_up(place, Layout::kBlockElements);
    }
    if (begins_block) unit = 0, runs.back().begins_blocks = true;
    runs.back().begins.push_back(place);
    runs.back().elements = place + tensor.elements;
    place += aligned(tensor);
    unit += aligned(tensor);
    behind -= aligned(tensor);
  }
  return runs;
}

}  // namespace

Layout::Layout(std::vector<std::vector<LayoutTensor>> layers, std::uint64_t chunk_elements, std::uint32_t group,
               std::uint64_t least_run)
    : chunk_elements_(round_up(std::max<std::uint64_t>(chunk_elements, 1), group > 1 ? kBlockElements : kPageElements)) {
  for (std::uint32_t l = 0; l < layers.size(); ++l) {
    auto& places = places_.emplace_back();
    auto& runs = runs_.emplace_back();
    std::uint32_t chunks = 0;
    for (const auto& run : pack(layers[l], least_run * group)) {
      cuts_units_ |= run.begins_blocks;
      for (const auto begin : run.begins) {
        const auto t = static_cast<std::uint32_t>(places.size());
        const auto& tensor = layers[l][t];
        places.push_back({l, t, chunks * chunk_elements_ + begin, tensor.elements, tensor.origin});
        tensor_elements_ += tensor.elements;
      }
      runs.push_back({chunks, static_cast<std::uint32_t>(ceil_div(run.elements, chunk_elements_ * group)) * group});
      chunks += runs.back().count;
    }
    run_first_.push_back(chunks_);
    run_count_.push_back(chunks);
    chunks_ += chunks;
  }
}

const LayoutRun& Layout::run_of(const TensorPlace& place) const {
  const auto& runs = runs_[place.layer];
  const auto chunk = place.first_element / chunk_elements_;
  return *std::prev(std::ranges::upper_bound(runs, chunk, {}, &LayoutRun::first));
}

// Tries every page multiple between the bounds. Runs of equal size are counted together, so it takes at most a few million
// divisions.
std::uint64_t Layout::search(const std::vector<std::vector<LayoutTensor>>& layers, std::uint64_t min_elements,
                             std::uint64_t max_elements, std::uint32_t group, std::uint64_t least_run) {
  const auto step = group > 1 ? kBlockElements : kPageElements;
  const auto least = round_up(std::max<std::uint64_t>(min_elements, 1), step);
  const auto most = std::max(least, max_elements / step * step);
  std::map<std::uint64_t, std::uint64_t> runs;  // elements → how many runs have them
  std::uint64_t all = 0;
  for (const auto& layer : layers) {
    for (const auto& run : pack(layer, least_run * group)) ++runs[run.elements];
    for (const auto& tensor : layer) all += tensor.elements;
  }
  const auto occupied = [&](std::uint64_t chunk) {
    std::uint64_t elements = 0;
    for (const auto& [run, count] : runs) elements += ceil_div(run, chunk * group) * chunk * group * count;
    return elements;
  };
  std::uint64_t fewest = ~0ULL;
  for (auto chunk = least; chunk <= most; chunk += step) fewest = std::min(fewest, occupied(chunk));
  // Larger chunks move faster; half a percent of padding is a fair price for fewer, larger moves.
  auto chunk = most;
  while (chunk > least && occupied(chunk) > fewest + all / 200) chunk -= step;
  return chunk;
}

std::vector<Segment> Layout::segments(std::uint32_t layer, std::uint32_t chunk_in_layer) const {
  const auto begin = chunk_in_layer * chunk_elements_, end = begin + chunk_elements_;
  const auto& places = places_[layer];
  const auto end_of = [](const TensorPlace& p) { return p.first_element + p.elements; };
  std::vector<Segment> found;
  for (auto p = std::ranges::upper_bound(places, begin, {}, end_of); p != places.end() && p->first_element < end; ++p) {
    const auto first = std::max(begin, p->first_element), last = std::min(end, end_of(*p));
    found.push_back({p->tensor, p->origin + first - p->first_element, first - begin, last - first});
  }
  return found;
}

double Layout::waste() const {
  if (tensor_elements_ == 0) return 0;
  return static_cast<double>(chunks_ * chunk_elements_ - tensor_elements_) / static_cast<double>(tensor_elements_);
}

}  // namespace terrace::memory
