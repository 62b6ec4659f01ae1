#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <terrace/memory/space.h>

namespace terrace {
namespace {

Clock at(Lane lane, std::uint64_t sequence) { return Clock::after(lane, sequence); }

TEST(Space, LowAndHighEndsGrowTowardsEachOther) {
  memory::Space space(100);
  EXPECT_EQ(space.reserve(10, memory::End::low)->range, (memory::Range{0, 10}));
  EXPECT_EQ(space.reserve(10, memory::End::high)->range, (memory::Range{90, 10}));
  EXPECT_EQ(space.reserve(20, memory::End::low)->range, (memory::Range{10, 20}));
  EXPECT_EQ(space.reserve(20, memory::End::high)->range, (memory::Range{70, 20}));
  EXPECT_FALSE(space.reserve(41, memory::End::low));
  EXPECT_EQ(space.largest_hole(), 40u);
  EXPECT_EQ(space.reserved_bytes(), 60u);
}

TEST(Space, NewOccupantWaitsForItsOwnBytesOnly) {
  memory::Space space(30);
  ASSERT_TRUE(space.reserve(30, memory::End::low));
  space.free({0, 10}, at(Lane::compute, 1));
  space.free({10, 10}, at(Lane::upload, 2));
  space.free({20, 10}, at(Lane::read, 3));
  EXPECT_EQ(space.reserve(10, memory::End::low)->after, at(Lane::compute, 1));
  EXPECT_EQ(space.reserve(5, memory::End::low)->after, at(Lane::upload, 2));
  Clock both = at(Lane::upload, 2);
  both.merge(at(Lane::read, 3));
  EXPECT_EQ(space.reserve(15, memory::End::low)->after, both);
}

TEST(Space, UnlimitedGrowsFromItsLowEnd) {
  memory::Space space(kUnlimited);
  EXPECT_EQ(space.reserve(1 << 20, memory::End::high)->range.offset, 0u);
  EXPECT_EQ(space.reserve(1 << 20, memory::End::low)->range.offset, 1u << 20);
  EXPECT_EQ(space.extent_bytes(), 2u << 20);
  space.check();
}

TEST(Space, BytesAreGivenBackOnce) {
  memory::Space space(30);
  ASSERT_TRUE(space.reserve(20, memory::End::low));
  space.free({5, 10}, {});
  EXPECT_THROW(space.free({0, 6}, {}), std::logic_error);
  EXPECT_THROW(space.free({14, 2}, {}), std::logic_error);
  EXPECT_THROW(space.free({20, 5}, {}), std::logic_error);
}

// The oracle: every byte of a small space has its own owner and clock.
TEST(SpaceFuzz, AgreesWithOneEntryPerByte) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const std::uint64_t capacity = 1 + random() % 96;
    memory::Space space(capacity);
    std::vector<bool> reserved(capacity, false);
    std::vector<Clock> last(capacity);
    std::vector<memory::Range> held;
    std::uint64_t peak = 0;
    for (int operation = 0; operation < 1000; ++operation) {
      SCOPED_TRACE(operation);
      if (random() % 2 == 0) {
        const std::uint64_t bytes = 1 + random() % 16;
        const memory::End end = random() % 2 == 0 ? memory::End::low : memory::End::high;
        // The oracle's place: the first, or the last, free run of bytes that is long enough; or the wanted one, if it is free.
        std::optional<std::uint64_t> place, wanted;
        if (random() % 3 == 0) wanted = random() % (capacity + 4);
        for (std::uint64_t o = 0; o + bytes <= capacity; ++o) {
          if (o != wanted.value_or(o)) continue;
          const bool free = std::none_of(reserved.begin() + o, reserved.begin() + o + bytes, [](bool r) { return r; });
          if (free && (end == memory::End::high || !place)) place = o;
        }
        const auto got = wanted ? space.reserve_at({*wanted, bytes}) : space.reserve(bytes, end);
        ASSERT_EQ(got.has_value(), place.has_value());
        if (!got) continue;
        ASSERT_EQ(got->range, (memory::Range{*place, bytes}));
        Clock after;
        for (auto o = *place; o < *place + bytes; ++o) {
          reserved[o] = true;
          after.merge(last[o]);
        }
        ASSERT_EQ(got->after, after);
        held.push_back(got->range);
      } else if (!held.empty()) {
        const auto i = random() % held.size();
        memory::Range range = held[i];
        const Clock clock = random() % 4 == 0 ? Clock{} : at(static_cast<Lane>(random() % kLanes), random() % 1000);
        if (range.bytes > 1 && random() % 3 == 0) {  // only its first part
          range.bytes = 1 + random() % (range.bytes - 1);
          held[i] = {range.offset + range.bytes, held[i].bytes - range.bytes};
        } else {
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
        }
        space.free(range, clock);
        for (auto o = range.offset; o < range.offset + range.bytes; ++o) {
          reserved[o] = false;
          last[o] = clock;
        }
      }
      std::uint64_t hole = 0, run = 0;
      for (const bool r : reserved) hole = std::max(hole, run = r ? 0 : run + 1);
      const auto bytes = static_cast<std::uint64_t>(std::ranges::count(reserved, true));
      peak = std::max(peak, bytes);
      ASSERT_EQ(space.largest_hole(), hole);
      ASSERT_EQ(space.reserved_bytes(), bytes);
      ASSERT_EQ(space.peak_bytes(), peak);
      space.check();
    }
  }
}

// A million reservations and frees with the size of a disk: no byte is given out twice or lost, and after freeing everything
// there is again one hole of the original size.
TEST(SpaceFuzz, AMillionReservationsLeakNothingAndNeverOverlap) {
  constexpr std::uint64_t kOperations = 1'000'000, kPage = 4096;
  const std::uint64_t capacity = 1'000'003 * kPage;
  for (const std::uint64_t seed : {1, 2}) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    memory::Space space(capacity);
    std::map<std::uint64_t, std::uint64_t> held;  // start → end; overlaps are detected by emplace and the neighbours
    std::vector<std::uint64_t> starts;
    std::uint64_t bytes_held = 0, refused = 0;
    for (std::uint64_t operation = 0; operation < kOperations / 2; ++operation) {
      // In waves: mostly reserving until the space is full, then mostly freeing.
      const bool reserving = random() % 16 < (operation / 4096 % 2 == 0 ? 12U : 4U);
      if (reserving || starts.empty()) {
        const auto bytes = (1 + random() % (random() % 64 == 0 ? 16384 : 1024)) * kPage;
        const auto got = space.reserve(bytes, random() % 3 == 0 ? memory::End::high : memory::End::low);
        if (!got) {
          ASSERT_LT(space.largest_hole(), bytes) << "there was room";
          ++refused;
          continue;
        }
        const auto [at, fresh] = held.emplace(got->range.offset, got->range.offset + bytes);
        ASSERT_TRUE(fresh);
        ASSERT_LE(at->second, capacity);
        ASSERT_TRUE(at == held.begin() || std::prev(at)->second <= at->first);
        ASSERT_TRUE(std::next(at) == held.end() || at->second <= std::next(at)->first);
        starts.push_back(at->first);
        bytes_held += bytes;
      } else {
        std::swap(starts[random() % starts.size()], starts.back());
        const auto at = held.find(starts.back());
        starts.pop_back();
        space.free({at->first, at->second - at->first}, Clock::after(Lane::write, operation + 1));
        bytes_held -= at->second - at->first;
        held.erase(at);
      }
      ASSERT_EQ(bytes_held, space.reserved_bytes());
      if (operation % 8192 == 0) space.check();
    }
    EXPECT_GT(refused, 0U) << "it was never full";
    for (const auto& [begin, end] : held) space.free({begin, end - begin}, {});
    space.check();
    EXPECT_EQ(0U, space.reserved_bytes());
    EXPECT_EQ(capacity, space.largest_hole());
  }
}

}  // namespace
}  // namespace terrace
