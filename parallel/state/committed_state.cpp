#include <terrace/parallel/state/committed_state.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/offload/store/common_commit.h>

namespace terrace::state {
namespace {

constexpr std::size_t kMostHeld = 8;

std::string name_of(const ChunkStore::Options& store) { return (store.paths.front() / store.name).string(); }

// The stores that exist and have a commit.
std::vector<std::unique_ptr<ChunkStore>> open_those_there(std::span<const ChunkStore::Options> ranks,
                                                          std::vector<std::string>& missing) {
  std::vector<ChunkStore::Options> there;
  for (const auto& options : ranks)
    ChunkStore::has_commit(options) ? there.push_back(options) : missing.push_back(name_of(options));
  return store::open_at_common_commit(there).stores;
}

// An array of a format consists of planes, one after the other. In this plane, each `elements` elements take `bytes` bytes.
struct Plane {
  std::uint64_t elements = 1, bytes = 0;
};
std::vector<Plane> planes_of(rules::Format format) {
  if (!rules::is_dynamic8(format)) return {{1, rules::bytes_of(format, 1)}};
  const std::uint64_t block = 256;  // one plane of codes, then one with a scale for each block
  return {{block, block}, {block, rules::bytes_of(format, block) - block}};
}

std::uint64_t chunk_elements_of(const ChunkStore& store) {
  for (const auto& chunk : store.committed())
    if (const auto elements = elements_of(chunk.description)) return *elements;
  return 0;
}

void demand_same(const ChunkDescription& chunk, const ChunkDescription& there) {
  if (there.dtype != chunk.dtype)
    throw Error(
        fmt::format("the stored state does not belong to this model: {} is stored as {}, but this run keeps it as {}\n  "
                    "resume with the model, dtype, optimizer and recipe it was trained with",
                    there.label, there.dtype, chunk.dtype),
        ErrorKind::refused);
}

}  // namespace

std::optional<std::uint64_t> elements_of(const ChunkDescription& chunk) {
  for (const auto format : {rules::Format::fp32, rules::Format::bf16, rules::Format::fp64})
    if (chunk.dtype == name_of(format)) return chunk.bytes / rules::bytes_of(format, 1);
  return {};
}

CommittedState::CommittedState(std::span<const ChunkStore::Options> ranks)
    : stores_(open_those_there(ranks, missing_)), io_(ranks.front().io) {
  // One more than there are stores: an adapter may lie between two pieces of its matrix.
  most_held_ = std::min(kMostHeld, stores_.size() + 1);
  for (std::size_t s = 0; s < stores_.size(); ++s) {
    elements_.push_back(chunk_elements_of(*stores_[s]));
    for (auto& chunk : stores_[s]->committed()) {
      chunks_.push_back({s, std::move(chunk)});
      const auto& d = chunks_.back().stored.description;
      for (const auto& range : d.ranges) parts_[{d.kind, range.tensor}].all.push_back({chunks_.size() - 1, range});
    }
  }
  if (chunks_.empty())
    throw Error(fmt::format("the stores of the run hold no chunks: {} is missing\n  wait for the first commit if the run has "
                            "just begun; else bring it back, or start a new run in another `out-dir`",
                            missing_.empty() ? "the committed state" : missing_.front()),
                ErrorKind::corrupt);
}

bool CommittedState::knows(ChunkKind kind) const {
  return std::ranges::any_of(chunks_, [&](const Chunk& c) { return c.stored.description.kind == kind; });
}

bool CommittedState::has_ranges(ChunkKind kind) const {
  return std::ranges::any_of(parts_, [&](const auto& parts) { return parts.first.first == kind; });
}

void CommittedState::read(const ChunkDescription& chunk, rules::Format format, std::uint64_t chunk_elements,
                          std::span<std::byte> to) {
  std::ranges::fill(to, std::byte{0});  // elements outside all tensors
  if (rules::is_packed(format) && !chunk.ranges.empty() && !has_ranges(chunk.kind))
    throw Error(
        fmt::format(
            "the run cannot be resharded: an earlier version wrote its stores, which do not tell what the numbers of {} "
            "belong to\n  resume with the ranks it was trained with; its next commit can be resharded",
            chunk.label),
        ErrorKind::refused);
  read_ranges(chunk, format, chunk_elements, to);
}

void CommittedState::read_ranges(const ChunkDescription& chunk, rules::Format format, std::uint64_t chunk_elements,
                                 std::span<std::byte> to) {
  for (const auto& range : chunk.ranges)
    for (std::uint64_t done = 0; done < range.elements * range.rows;) {
      const auto row = done / range.elements, in_row = done % range.elements;
      const auto from = place_of(chunk.kind, range.tensor, range.first_element + row * range.stride + in_row);
      const auto elements = std::min(range.elements - in_row, from.elements);
      copy(chunk, format, chunk_elements, to, range.chunk_element + done, from.chunk, from.element, elements);
      done += elements;
    }
}

void CommittedState::read(const ParamSpec& param, std::uint64_t first_element, const TensorView& range, ChunkKind kind) {
  const auto elements = static_cast<std::uint64_t>(range.elements());
  const auto format = rules::format_of(range.dtype);
  read_ranges({.chunk = {},
               .kind = kind,
               .dtype = std::string(rules::name_of(format)),
               .bytes = range.bytes(),
               .ranges = {{param.name, first_element, elements, 0}},
               .label = param.name},
              format, elements, {range.data, range.bytes()});
}

void CommittedState::announce(std::span<const Tensor> tensors) {
  std::vector<store::ChunkReadAhead::Chunk> order;
  std::vector<std::size_t> held;  // simulates held_ of load()
  for (const auto& [kind, tensor, elements] : tensors)
    for (std::uint64_t done = 0; done < elements;) {
      const auto place = place_of(kind, tensor, done);
      done += place.elements;
      if (const auto at = std::ranges::find(held, place.chunk); at != held.end()) {
        std::rotate(held.begin(), at, at + 1);
        continue;
      }
      held.insert(held.begin(), place.chunk);
      if (held.size() > most_held_) held.pop_back();
      const auto& [store, stored] = chunks_[place.chunk];
      order.push_back({stores_[store].get(), &stored});
    }
  ahead_ = std::make_unique<store::ChunkReadAhead>(std::move(order), io_);
}

void CommittedState::refuse_absent(const std::string& what) const {
  std::string where;
  for (const auto& store : missing_) where += fmt::format("\n  {} is missing", store);
  throw Error(
      fmt::format("the run's state is incomplete: {} is in no store of its ranks{}\n  bring the stores back, or go back "
                  "to an exported checkpoint",
                  what, where),
      ErrorKind::corrupt);
}

std::optional<CommittedState::Place> CommittedState::place_in(const Part& part, std::uint64_t element) {
  const auto& r = part.range;
  if (element < r.first_element) return std::nullopt;
  const auto behind = element - r.first_element, row = r.rows == 1 ? 0 : behind / r.stride, in_row = behind - row * r.stride;
  if (row >= r.rows || in_row >= r.elements) return std::nullopt;
  return Place{part.chunk, r.chunk_element + row * r.elements + in_row, r.elements - in_row};
}

CommittedState::Place CommittedState::place_of(ChunkKind kind, const std::string& tensor, std::uint64_t element) {
  if (const auto parts = parts_.find({kind, tensor}); parts != parts_.end()) {
    auto& [all, last] = parts->second;
    if (const auto place = place_in(all[last], element)) return *place;
    for (last = 0; last < all.size(); ++last)
      if (const auto place = place_in(all[last], element)) return *place;
    last = 0;
  }
  refuse_absent(fmt::format("{} of {} from element {}", terrace::name_of(kind), tensor, element));
}

// If elements share a scale, whole blocks are copied. The rest of a copied block is right too, because tensors have the same
// neighbours in every layout.
void CommittedState::copy(const ChunkDescription& chunk, rules::Format format, std::uint64_t chunk_elements,
                          std::span<std::byte> to, std::uint64_t to_element, std::size_t from, std::uint64_t from_element,
                          std::uint64_t elements) {
  const auto& there = chunks_[from];
  demand_same(chunk, there.stored.description);
  const auto bytes = load(from);
  std::uint64_t to_plane = 0, from_plane = 0;
  for (const auto& plane : planes_of(format)) {
    if (to_element % plane.elements != from_element % plane.elements)
      throw Error(
          fmt::format("{} is coded in blocks that begin at other elements in the run's stores, because this run has other "
                      "ranks or other tiles\n  resume with the ranks and the tiles it was trained with",
                      chunk.label),
          ErrorKind::refused);
    const auto first = to_element / plane.elements, other = from_element / plane.elements;
    const auto units = ceil_div(to_element + elements, plane.elements) - first;
    const auto begin = to_plane + first * plane.bytes, other_begin = from_plane + other * plane.bytes;
    if (begin + units * plane.bytes > to.size() || other_begin + units * plane.bytes > bytes.size())
      throw Error(fmt::format("a stored range of {} exceeds its chunk", there.stored.description.label), ErrorKind::corrupt);
    std::memcpy(to.data() + begin, bytes.data() + other_begin, units * plane.bytes);
    to_plane += chunk_elements / plane.elements * plane.bytes;
    from_plane += elements_[there.store] / plane.elements * plane.bytes;
  }
}

// Neighbouring ranges are requested one after the other, so the next one is usually in a chunk that is held.
std::span<const std::byte> CommittedState::load(std::size_t chunk) {
  auto at = std::ranges::find(held_, chunk, &Held::chunk);
  const auto& [store, stored] = chunks_[chunk];
  const auto size = stored.description.bytes;
  if (at == held_.end()) {
    Held next;
    if (held_.size() == most_held_) {
      next = std::move(held_.back());
      held_.pop_back();
    }
    next.chunk = chunk;
    if (!ahead_ || !ahead_->take(stored, next.buffer)) stores_[store]->read_committed(stored, next.buffer.of(size));
    at = held_.insert(held_.begin(), std::move(next));
  }
  std::rotate(held_.begin(), at, at + 1);
  return held_.front().buffer.of(size);
}

}  // namespace terrace::state
