#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <terrace/memory/residency.h>

namespace terrace {
namespace {

constexpr ChunkId id(std::uint32_t i) { return ChunkId{i}; }

TEST(Lru, VictimIsTheLeastRecentlyUsedOfItsTier) {
  memory::Lru lru;
  for (const auto i : {2u, 0u, 1u}) lru.used(id(i), Tier::device);
  lru.used(id(2), Tier::host);
  const std::vector<ChunkId> all{id(0), id(1), id(2)};
  EXPECT_EQ(lru.victim(Tier::device, all), id(2));
  EXPECT_EQ(lru.victim(Tier::host, all), id(0));  // never used in this tier: first, with the lowest id before others
  lru.used(id(2), Tier::device);
  EXPECT_EQ(lru.victim(Tier::device, all), id(0));
  const std::vector<ChunkId> reversed{id(2), id(1), id(0)};
  EXPECT_EQ(lru.victim(Tier::device, reversed), id(0));
}

TEST(Lru, PrefetchIsNeverWorthAVictim) {
  memory::Lru lru;
  EXPECT_FALSE(lru.worth(Tier::device, id(0), id(1)));
}

TEST(Belady, NextUseOfTheHostIncludesTheDevice) {
  memory::Belady belady;
  belady.set_program(
      std::vector<memory::Belady::UseAt>{{id(0), Tier::device, 3}, {id(0), Tier::host, 5}, {id(1), Tier::host, 7}}, 10);
  EXPECT_EQ(belady.next_use(Tier::device, id(0)), 3u);
  EXPECT_EQ(belady.next_use(Tier::host, id(0)), 3u);
  EXPECT_EQ(belady.next_use(Tier::device, id(1)), kUnlimited);
  EXPECT_EQ(belady.next_use(Tier::host, id(9)), kUnlimited);
  belady.set_position(4);
  EXPECT_EQ(belady.next_use(Tier::device, id(0)), 13u);  // the program repeats
  EXPECT_EQ(belady.next_use(Tier::host, id(0)), 5u);
  belady.set_position(0);
  EXPECT_EQ(belady.next_use(Tier::device, id(0)), 3u);
  EXPECT_TRUE(belady.worth(Tier::host, id(0), id(1)));
  EXPECT_FALSE(belady.worth(Tier::host, id(1), id(0)));
  EXPECT_FALSE(belady.worth(Tier::device, id(1), id(2)));  // neither is used: no gain
}

TEST(Belady, RefusesAProgramOutOfOrder) {
  memory::Belady belady;
  EXPECT_THROW(belady.set_program(std::vector<memory::Belady::UseAt>{{id(0), Tier::host, 2}, {id(0), Tier::host, 1}}, 3),
               std::logic_error);
}

TEST(Belady, RememberedAnswersAgreeWithASearch) {
  std::mt19937_64 random(7);
  std::vector<memory::Belady::UseAt> uses;
  for (std::uint64_t p = 0; p < 200; ++p) uses.push_back({id(random() % 20), Tier::device, p});
  memory::Belady belady;
  belady.set_program(uses, 200);
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t position = random() % 200;
    belady.set_position(position);
    const ChunkId chunk = id(random() % 22);
    std::uint64_t expected = kUnlimited;
    for (const auto& use : uses) {
      if (use.chunk == chunk) expected = std::min(expected, use.position >= position ? use.position : use.position + 200);
    }
    ASSERT_EQ(belady.next_use(Tier::device, chunk), expected) << "position " << position << ", chunk " << index(chunk);
  }
}

// The fewest misses of any policy: tracks every set of chunks that a cache with `places` places can hold after each request.
std::uint64_t fewest_misses(const std::vector<std::uint32_t>& trace, int places) {
  std::map<std::uint32_t, std::uint64_t> misses{{0, 0}};  // set of held chunks as bits → misses so far
  for (const auto chunk : trace) {
    std::map<std::uint32_t, std::uint64_t> next;
    const auto reach = [&](std::uint32_t held, std::uint64_t cost) {
      const auto [it, fresh] = next.emplace(held, cost);
      if (!fresh) it->second = std::min(it->second, cost);
    };
    for (const auto& [held, cost] : misses) {
      const auto bit = 1u << chunk;
      if (held & bit) {
        reach(held, cost);
      } else if (__builtin_popcount(held) < places) {
        reach(held | bit, cost + 1);
      } else {
        for (std::uint32_t victim = 0; victim < 32; ++victim) {
          if (held & (1u << victim)) reach((held & ~(1u << victim)) | bit, cost + 1);
        }
      }
    }
    misses = std::move(next);
  }
  return std::ranges::min_element(misses, {}, [](const auto& m) { return m.second; })->second;
}

// Chunks kept in order while they come and go and positions pass give the same victim as a scan over all chunks.
TEST(Belady, TheOrderKeptOfChunksGivesTheVictimOfAScan) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    constexpr std::uint32_t kChunks = 40;
    constexpr std::uint64_t kLength = 60;
    const auto leaving = seed % 2 == 0 ? memory::Leaving::any : memory::Leaving::free;
    memory::Belady belady;
    std::vector<bool> evictable(kChunks);
    for (int program = 0; program < 4; ++program) {
      std::vector<memory::Belady::UseAt> uses;
      for (std::uint64_t position = 0; position < kLength; ++position)
        for (auto n = random() % 3; n > 0; --n)  // some chunks are in no program
          uses.push_back({id(static_cast<std::uint32_t>(random() % (kChunks - 5))), Tier::host, position});
      belady.set_program(uses, kLength);
      for (int round = 0; round < 2; ++round) {  // the second round begins before the first has ended
        for (std::uint64_t position = random() % 5; position < kLength; position += random() % 4) {
          belady.set_position(position);
          for (auto n = random() % 8; n > 0; --n) {
            const auto c = static_cast<std::uint32_t>(random() % kChunks);
            evictable[c] = !evictable[c];
            belady.may_leave(id(c), Tier::host, leaving, evictable[c]);
          }
          std::vector<ChunkId> left;
          for (std::uint32_t c = 0; c < kChunks; ++c)
            if (evictable[c]) left.push_back(id(c));
          const auto all = left;
          auto wanted = random() % (all.size() + 2);
          std::vector<ChunkId> offered;
          belady.offer_victims(Tier::host, leaving, all, [&](ChunkId victim) {
            offered.push_back(victim);
            return offered.size() < wanted;
          });
          ASSERT_EQ(offered.size(), std::min(std::max<std::size_t>(wanted, 1), all.size())) << "position " << position;
          for (const auto victim : offered) {
            ASSERT_EQ(index(belady.victim(Tier::host, left)), index(victim)) << "position " << position;
            std::erase(left, victim);
          }
        }
      }
    }
  }
}

TEST(Belady, MissesAsSeldomAsTheBestOfAllPolicies) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const std::uint32_t chunks = 3 + random() % 6;
    const int places = 1 + static_cast<int>(random() % (chunks - 1));
    std::vector<std::uint32_t> trace(10 + random() % 30);
    for (auto& chunk : trace) chunk = static_cast<std::uint32_t>(random() % chunks);

    memory::Belady belady;
    std::vector<memory::Belady::UseAt> uses;
    for (std::size_t p = 0; p < trace.size(); ++p) uses.push_back({id(trace[p]), Tier::device, p});
    belady.set_program(uses, trace.size());
    memory::Residency residency({static_cast<std::uint64_t>(places) * kPageBytes, kUnlimited, 0}, belady);
    std::vector<Move> moves;
    for (std::uint32_t c = 0; c < chunks; ++c) {
      const Use fill[] = {{residency.add(kPageBytes, ChunkKind::parameter, memory::End::low), Access::overwrite}};
      residency.acquire(fill, Tier::host, moves);
      residency.release(fill, Tier::host, {});
    }
    for (std::size_t p = 0; p < trace.size(); ++p) {
      belady.set_position(p);
      const Use use[] = {{id(trace[p]), Access::read}};
      residency.acquire(use, Tier::device, moves);
      residency.release(use, Tier::device, Clock::after(Lane::compute, p + 1));
    }
    EXPECT_EQ(residency.traffic().uploads, fewest_misses(trace, places));
    EXPECT_EQ(residency.traffic().downloads, 0u);
  }
}

}  // namespace
}  // namespace terrace
