#include <terrace/memory/space.h>

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace terrace::memory {

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

bool Holes::take_at(Range range) {
  const auto behind = std::ranges::upper_bound(ranges_, range.offset, {}, &Range::offset);
  if (behind == ranges_.begin()) return false;
  const auto hole = std::prev(behind);
  const auto before = range.offset - hole->offset;
  if (before > hole->bytes || range.bytes > hole->bytes - before) return false;
  const Range rest{range.offset + range.bytes, hole->bytes - before - range.bytes};
  hole->bytes = before;
  const auto next = before == 0 ? ranges_.erase(hole) : std::next(hole);
  if (rest.bytes > 0) ranges_.insert(next, rest);
  return true;
}

std::uint64_t Holes::give(Range range) {
  const auto next = std::ranges::lower_bound(ranges_, range.offset, {}, &Range::offset);
  const auto end_of = [](const Range& r) { return r.offset + r.bytes; };
  const bool has_previous = next != ranges_.begin(), has_next = next != ranges_.end();
  if ((has_previous && end_of(*std::prev(next)) > range.offset) || (has_next && next->offset < end_of(range))) {
    throw std::logic_error(fmt::format("space: bytes {}..{} are freed twice", range.offset, end_of(range)));
  }
  const bool joins_previous = has_previous && end_of(*std::prev(next)) == range.offset;
  const bool joins_next = has_next && next->offset == end_of(range);
  if (joins_previous && joins_next) {
    const auto bytes = std::prev(next)->bytes += range.bytes + next->bytes;
    ranges_.erase(next);
    return bytes;
  }
  if (joins_previous) return std::prev(next)->bytes += range.bytes;
  if (joins_next) {
    *next = {range.offset, range.bytes + next->bytes};
    return next->bytes;
  }
  ranges_.insert(next, range);
  return range.bytes;
}

bool Holes::has(std::uint64_t bytes) const {
  return std::ranges::any_of(ranges_, [bytes](const Range& hole) { return hole.bytes >= bytes; });
}

std::uint64_t Holes::largest() const {
  std::uint64_t most = 0;
  for (const auto& hole : ranges_) most = std::max(most, hole.bytes);
  return most;
}

Space::Space(std::uint64_t capacity_bytes) : capacity_bytes_(capacity_bytes), holes_(capacity_bytes) {}

std::optional<Space::Reserved> Space::reserve(std::uint64_t bytes, End end) {
  if (bytes == 0) throw std::logic_error("space: 0 bytes cannot be reserved");
  const auto offset = holes_.take(bytes, capacity_bytes_ == kUnlimited ? End::low : end);
  if (!offset) return std::nullopt;
  return taken({*offset, bytes});
}

std::optional<Space::Reserved> Space::reserve_at(Range range) {
  if (range.bytes == 0) throw std::logic_error("space: 0 bytes cannot be reserved");
  if (!holes_.take_at(range)) return std::nullopt;
  return taken(range);
}

Space::Reserved Space::taken(Range range) {
  const auto first = range.offset, last = range.offset + range.bytes;
  reserved_bytes_ += range.bytes;
  peak_bytes_ = std::max(peak_bytes_, reserved_bytes_);
  extent_bytes_ = std::max(extent_bytes_, last);

  // The new occupant inherits the clocks of the bytes that it covers; the parts outside on either side stay recorded.
  Reserved reserved{range, {}};
  auto it = touched_.upper_bound(first);
  if (it != touched_.begin() && std::prev(it)->second.first > first) --it;
  while (it != touched_.end() && it->first < last) {
    auto& [stop, clock] = it->second;
    reserved.after.merge(clock);
    if (stop > last) note(last, stop, clock);
    if (it->first < first) {
      stop = first;
      ++it;
    } else {
      spare_.push_back(touched_.extract(it++));
    }
  }
  return reserved;
}

void Space::note(std::uint64_t offset, std::uint64_t end, const Clock& last_use) {
  if (spare_.empty()) {
    touched_.emplace(offset, std::pair{end, last_use});
    return;
  }
  auto& node = spare_.back();
  node.key() = offset;
  node.mapped() = {end, last_use};
  touched_.insert(std::move(node));
  spare_.pop_back();
}

void Space::free(Range range, const Clock& last_use) {
  if (range.bytes == 0 || range.bytes > reserved_bytes_)
    throw std::logic_error("space: a range is freed that was not reserved");
  holes_.give(range);
  reserved_bytes_ -= range.bytes;
  if (last_use != Clock{}) note(range.offset, range.offset + range.bytes, last_use);
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
      if (touched->first < hole.offset || touched->second.first > end || touched->second.first <= touched->first) break;
    }
    first = false;
    position = end;
    free_bytes += hole.bytes;
  }
  if (touched != touched_.end()) throw std::logic_error("space: reserved bytes carry the clock of an earlier user");
  if (free_bytes != capacity_bytes_ - reserved_bytes_) throw std::logic_error("space: holes and reservations do not add up");
}

}  // namespace terrace::memory
