// The clocks of a table behave like plain clocks, and numbers that are no longer needed are reused.
#include <gtest/gtest.h>

#include <random>

#include <terrace/memory/clock_table.h>

namespace terrace {
namespace {

class RandomClocks {
 public:
  explicit RandomClocks(std::uint64_t seed) : random_(seed) {}
  std::size_t below(std::size_t end) { return random_() % end; }
  Clock draw() {
    Clock clock;
    for (auto lanes = below(4); lanes-- > 0;) clock.at[below(kLanes)] = random_() >> below(64);
    return clock;
  }

 private:
  std::mt19937_64 random_;
};

TEST(ClockTable, IsWhatClocksAre) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomClocks random(seed);
    memory::ClockTable table;
    std::vector<memory::ClockTable::Ref> refs(50);
    std::vector<Clock> expected(refs.size());
    for (int i = 0; i < 5000; ++i) {
      const auto at = random.below(refs.size());
      const auto clock = random.draw();
      switch (random.below(4)) {
        case 0: table.set(refs[at], clock), expected[at] = clock; break;
        case 1: table.clear(refs[at]), expected[at] = {}; break;
        default: table.merge(refs[at], clock), expected[at].merge(clock); break;
      }
      const auto other = random.below(refs.size());
      ASSERT_EQ(expected[other], table.of(refs[other])) << "operation " << i;
      auto sum = clock, expected_sum = clock;
      table.merge_into(sum, refs[other]);
      expected_sum.merge(expected[other]);
      ASSERT_EQ(expected_sum, sum) << "operation " << i;
    }
    for (std::size_t i = 0; i < refs.size(); ++i) EXPECT_EQ(expected[i], table.of(refs[i])) << i;
  }
}

TEST(ClockTable, ARunOfAnyLengthNeedsNoMoreRoomThanItsChunks) {
  RandomClocks random(7);
  memory::ClockTable table;
  std::vector<memory::ClockTable::Ref> refs(50);
  for (int i = 0; i < 200'000; ++i) {
    auto& ref = refs[random.below(refs.size())];
    if (random.below(4) == 0)
      table.clear(ref);
    else
      table.set(ref, Clock::after(Lane::upload, static_cast<std::uint64_t>(i) + 1));
    if (random.below(2) == 0) table.merge(ref, Clock::after(Lane::compute, static_cast<std::uint64_t>(i) + 1));
  }
  EXPECT_LE(table.words(), refs.size() * 3);  // each clock once with one lane, and once with two
}

}  // namespace
}  // namespace terrace
