#include <terrace/memory/clock_table.h>

#include <algorithm>
#include <bit>

namespace terrace {
namespace {

std::uint32_t lanes_of(const Clock& clock) {
  std::uint32_t lanes = 0;
  for (std::size_t i = 0; i < kLanes; ++i) lanes |= static_cast<std::uint32_t>(clock.at[i] != 0) << i;
  return lanes;
}

// Calls use(lane, position) for the lanes of a set, ascending.
template <class Use>
void each_lane(std::uint32_t lanes, const Use& use) {
  for (std::uint32_t position = 0; lanes != 0; lanes &= lanes - 1, ++position)
    use(static_cast<std::size_t>(std::countr_zero(lanes)), position);
}

}  // namespace

void ClockTable::resize(Ref& ref, std::uint32_t lanes) {
  if (lanes == ref.lanes_) return;
  const auto before = static_cast<std::size_t>(std::popcount(ref.lanes_)), now = static_cast<std::size_t>(std::popcount(lanes));
  ref.lanes_ = lanes;
  if (before == now) return;
  if (before > 0) free_[before].push_back(ref.first_);
  if (now == 0) return;
  if (auto& unused = free_[now]; !unused.empty()) {
    ref.first_ = unused.back();
    unused.pop_back();
  } else {
    ref.first_ = static_cast<std::uint32_t>(words_.size());
    words_.resize(words_.size() + now);
  }
}

void ClockTable::set(Ref& ref, const Clock& clock) {
  resize(ref, lanes_of(clock));
  each_lane(ref.lanes_, [&](std::size_t lane, std::uint32_t position) { words_[ref.first_ + position] = clock.at[lane]; });
}

void ClockTable::clear(Ref& ref) { resize(ref, 0); }

void ClockTable::merge(Ref& ref, const Clock& other) {
  const auto lanes = ref.lanes_ | lanes_of(other);
  if (lanes != ref.lanes_) {
    auto sum = of(ref);
    sum.merge(other);
    return set(ref, sum);
  }
  each_lane(lanes, [&](std::size_t lane, std::uint32_t position) {
    auto& number = words_[ref.first_ + position];
    number = std::max(number, other.at[lane]);
  });
}

void ClockTable::merge_into(Clock& clock, const Ref& ref) const {
  each_lane(ref.lanes_, [&](std::size_t lane, std::uint32_t position) {
    clock.at[lane] = std::max(clock.at[lane], words_[ref.first_ + position]);
  });
}

Clock ClockTable::of(const Ref& ref) const {
  Clock clock;
  merge_into(clock, ref);
  return clock;
}

}  // namespace terrace
