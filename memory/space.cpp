#include <terrace/memory/space.h>

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace terrace {

Holes::Holes(std::uint64_t capacity_bytes) {
  if (capacity_bytes > 0) ranges_.push_back({0, capacity_bytes});
}

std::optional<std::uint64_t> Holes::take(std::uint64_t bytes, End end) {
  const auto fits = [bytes](const Range& hole) { return hole.bytes >= bytes; };
  if (end == End::low) {
    const auto hole = std::find_if(ranges_.begin(), ranges_.end(), fits);
    if (hole == ranges_.end()) return std::nullopt;
    const auto offset = hole->offset;
    hole->offset += bytes;
    hole->bytes -= bytes;
    if (hole->bytes == 0) ranges_.erase(hole);
    return offset;
  }
  const auto reverse = std::find_if(ranges_.rbegin(), ranges_.rend(), fits);
  if (reverse == ranges_.rend()) return std::nullopt;
  const auto hole = std::prev(reverse.base());
  hole->bytes -= bytes;
  const auto offset = hole->offset + hole->bytes;
  if (hole->bytes == 0) ranges_.erase(hole);
  return offset;
}

void Holes::take(Range range) {
  const auto end = range.offset + range.bytes;
  auto hole = std::ranges::upper_bound(ranges_, range.offset, {}, &Range::offset);
  if (hole == ranges_.begin() || (--hole)->offset + hole->bytes < end)
    throw std::logic_error(fmt::format("space: bytes {}..{} are not free", range.offset, end));
  const Range below{hole->offset, range.offset - hole->offset}, above{end, hole->offset + hole->bytes - end};
  if (below.bytes != 0 && above.bytes != 0) {
    *hole = below;
    ranges_.insert(std::next(hole), above);
  } else if (below.bytes != 0 || above.bytes != 0) {
    *hole = below.bytes != 0 ? below : above;
  } else {
    ranges_.erase(hole);
  }
}

void Holes::give(Range range) {
  const auto next = std::ranges::lower_bound(ranges_, range.offset, {}, &Range::offset);
  const auto end_of = [](const Range& r) { return r.offset + r.bytes; };
  const bool has_previous = next != ranges_.begin(), has_next = next != ranges_.end();
  if ((has_previous && end_of(*std::prev(next)) > range.offset) || (has_next && next->offset < end_of(range))) {
    throw std::logic_error(fmt::format("space: bytes {}..{} are given back twice", range.offset, end_of(range)));
  }
  const bool joins_previous = has_previous && end_of(*std::prev(next)) == range.offset;
  const bool joins_next = has_next && next->offset == end_of(range);
  if (joins_previous && joins_next) {
    std::prev(next)->bytes += range.bytes + next->bytes;
    ranges_.erase(next);
  } else if (joins_previous) {
    std::prev(next)->bytes += range.bytes;
  } else if (joins_next) {
    *next = {range.offset, range.bytes + next->bytes};
  } else {
    ranges_.insert(next, range);
  }
}

std::uint64_t Holes::largest() const {
  std::uint64_t most = 0;
  for (const auto& hole : ranges_) most = std::max(most, hole.bytes);
  return most;
}

namespace {

bool by_message(const Clock& clock) {
  return std::any_of(clock.at.begin() + index(Lane::message), clock.at.end(), [](std::uint64_t at) { return at != 0; });
}

}  // namespace

Space::Space(std::uint64_t capacity_bytes, Reuse reuse)
    : capacity_bytes_(capacity_bytes), reuse_(reuse), holes_(capacity_bytes) {}

std::optional<std::uint64_t> Space::take(std::uint64_t bytes, End end) {
  if (capacity_bytes_ == kUnlimited) return holes_.take(bytes, End::low);
  if (reuse_ == Reuse::at_once || end == End::low || messages_ == 0) return holes_.take(bytes, end);
  constexpr std::uint64_t kUnderWay = 64;  // a rank is not further ahead of the others
  const auto before = messages_ - std::min(messages_, kUnderWay);
  auto offset = beside(bytes, before);
  if (!offset) {  // as few as can be of those under way, the first ones first
    auto stay = before, gone = messages_;
    while (gone - stay > 1) {
      const auto middle = stay + (gone - stay) / 2;
      (beside(bytes, middle) ? gone : stay) = middle;
    }
    offset = beside(bytes, gone);
    if (!offset) return std::nullopt;
  }
  holes_.take(Range{*offset, bytes});
  return offset;
}

// The topmost place without bytes that were sent after this one.
std::optional<std::uint64_t> Space::beside(std::uint64_t bytes, std::uint64_t sent_after) const {
  for (auto hole = holes_.ranges().rbegin(); hole != holes_.ranges().rend(); ++hole) {
    auto end = hole->offset + hole->bytes;
    auto touched = touched_.lower_bound(end);
    for (; touched != touched_.begin() && end >= hole->offset + bytes; --touched) {
      const auto& [offset, below] = *std::prev(touched);
      if (below.end <= end - bytes) break;
      if (below.sent > sent_after) end = offset;
    }
    if (end >= hole->offset + bytes) return end - bytes;
  }
  return std::nullopt;
}

std::optional<Space::Reserved> Space::reserve(std::uint64_t bytes, End end) {
  if (bytes == 0) throw std::logic_error("space: nothing cannot be reserved");
  const auto offset = take(bytes, end);
  if (!offset) return std::nullopt;
  const auto first = *offset, last = *offset + bytes;
  reserved_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, reserved_bytes_);
  extent_bytes_ = std::max(extent_bytes_, last);

  // The new occupant inherits the clocks of the bytes it covers; what sticks out on either side stays recorded.
  Reserved reserved{{first, bytes}, {}};
  auto it = touched_.upper_bound(first);
  if (it != touched_.begin() && std::prev(it)->second.end > first) --it;
  while (it != touched_.end() && it->first < last) {
    const auto begin = it->first;
    const auto touched = it->second;
    reserved.after.merge(touched.clock);
    it = touched_.erase(it);
    if (begin < first) touched_.emplace(begin, Touched{first, touched.clock, touched.sent});
    if (touched.end > last) it = touched_.emplace(last, touched).first;
  }
  return reserved;
}

void Space::free(Range range, const Clock& last_use) {
  if (range.bytes == 0 || range.bytes > reserved_bytes_)
    throw std::logic_error("space: a range is freed that was not reserved");
  holes_.give(range);
  reserved_bytes_ -= range.bytes;
  if (last_use == Clock{}) return;
  touched_.emplace(range.offset, Touched{range.offset + range.bytes, last_use, by_message(last_use) ? ++messages_ : 0});
}

void Space::check() const {
  std::uint64_t free_bytes = 0, position = 0;
  bool first = true;
  auto touched = touched_.begin();
  for (const auto& hole : holes_.ranges()) {
    const auto end = hole.offset + hole.bytes;
    if (hole.bytes == 0 || end > capacity_bytes_) throw std::logic_error("space: a hole is empty or beyond the capacity");
    if (!first && hole.offset <= position) throw std::logic_error("space: two holes overlap or touch");
    for (; touched != touched_.end() && touched->first < end; ++touched) {
      if (touched->first < hole.offset || touched->second.end > end || touched->second.end <= touched->first) break;
    }
    first = false;
    position = end;
    free_bytes += hole.bytes;
  }
  if (touched != touched_.end()) throw std::logic_error("space: reserved bytes carry the clock of an earlier user");
  if (free_bytes != capacity_bytes_ - reserved_bytes_) throw std::logic_error("space: holes and reservations do not add up");
}

}  // namespace terrace
