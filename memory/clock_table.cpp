#include <terrace/memory/clock_table.h>

#include <algorithm>
#include <bit>

namespace terrace::memory {
namespace {

std::uint32_t lanes_of(const Clock& clock) {
  std::uint32_t lanes = 0;
  for (std::size_t i = 0; i < kLanes; ++i) lanes |= static_cast<std::uint32_t>(clock.at[i] != 0) << i;
  return lanes;
}

// std::popcount calls a library function on processors that may lack the instruction; this is inline.
constexpr std::size_t count_of(std::uint32_t lanes) {
  lanes -= (lanes >> 1) & 0x55555555U;
  lanes = (lanes & 0x33333333U) + ((lanes >> 2) & 0x33333333U);
  lanes = (lanes + (lanes >> 4)) & 0x0F0F0F0FU;
  return (lanes * 0x01010101U) >> 24;
}
static_assert(count_of(0) == 0 && count_of(0x01FFFFFF) == 25 && count_of(~0U) == 32);

// Calls use(lane, position) for the lanes of a set, ascending.
template <class Use>
void each_lane(std::uint32_t lanes, const Use& use) {
  for (std::uint32_t position = 0; lanes != 0; lanes &= lanes - 1, ++position)
    use(static_cast<std::size_t>(std::countr_zero(lanes)), position);
}

}  // namespace

void ClockTable::resize(Ref& ref, std::uint32_t lanes) {
  if (lanes == ref.lanes_) return;
  const auto before = count_of(ref.lanes_), now = count_of(lanes);
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

ClockTable::Named::Named(const Clock& of) : clock(of), lanes(lanes_of(of)) {}

void ClockTable::set(Ref& ref, const Named& named) {
  resize(ref, named.lanes);
  each_lane(ref.lanes_,
            [&](std::size_t lane, std::uint32_t position) { words_[ref.first_ + position] = named.clock.at[lane]; });
}

void ClockTable::clear(Ref& ref) { resize(ref, 0); }

void ClockTable::merge(Ref& ref, const Named& other) {
  const auto lanes = ref.lanes_ | other.lanes;
  if (ref.lanes_ == 0) return set(ref, other);
  if (lanes != ref.lanes_) {
    auto sum = of(ref);
    sum.merge(other.clock);
    return set(ref, Named(sum, lanes));
  }
  each_lane(lanes, [&](std::size_t lane, std::uint32_t position) {
    auto& number = words_[ref.first_ + position];
    number = std::max(number, other.clock.at[lane]);
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

}  // namespace terrace::memory
