// A replay counts what a cache of that size does, Belady's policy never reads more than any other eviction order, and a trace
// can be written and read back.
#include <terrace/bench/disk/residency_bench.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include <terrace/core/base/error.h>
#include <terrace/tests/support/environment.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::bench {
namespace {

using testing::HasSubstr;

AccessTrace trace_of(const std::string& chunks) {
  std::string text;
  for (const char c : chunks) text += "device read:" + std::to_string(c - 'a') + ":100\n";
  return parse_trace(text);
}

TEST(AccessTrace, RoundTrips) {
  const std::string text = "device read:0:65536 update:1:4096 drop:2:8192\nhost overwrite:2:8192\n";
  EXPECT_EQ(text, to_text(parse_trace("# a comment\n\n" + text)));
  EXPECT_EQ(parse_trace(text), parse_trace(to_text(parse_trace(text))));
}

TEST(AccessTrace, NonsenseIsRefusedWithItsLine) {
  for (const auto* const text : {"moon read:0:1\n", "device read:0\n", "device eat:0:1\n", "device read:x:1\n",
                                 "device read:0:-1\n", "device read:0:4096\ndevice read:0:8192\n", "", "# nothing\n"}) {
    EXPECT_THAT(test::refusal_of([&] { (void)parse_trace(text); }), HasSubstr("access trace")) << text;
  }
}

// By hand: three chunks in a circle with space for two. LRU never hits, Belady hits every other time.
TEST(Replay, ACircleIsLrusWorstCase) {
  const auto trace = trace_of("abcabc");
  const auto lru = replay(trace, Tier::device, 200, "lru"), belady = replay(trace, Tier::device, 200, "belady");
  EXPECT_EQ(6U, lru.accesses);
  EXPECT_EQ(0U, lru.hits);
  EXPECT_EQ(600U, lru.read_bytes);
  EXPECT_EQ(3U, belady.hits);
  EXPECT_EQ(300U, belady.read_bytes);
  EXPECT_EQ(6U, replay(trace, Tier::device, 300, "lru").hits);
}

TEST(Replay, ChangedContentIsWrittenWhenItLeaves) {
  const auto trace = parse_trace("device update:0:100\ndevice read:1:100\n");
  const auto r = replay(trace, Tier::device, 100, "lru");
  EXPECT_EQ(0U, r.hits);
  EXPECT_EQ(200U, r.read_bytes);
  EXPECT_EQ(100U, r.write_bytes);
}

TEST(Replay, WhatIsDeadIsNeitherWrittenNorInTheWay) {
  const auto r = replay(parse_trace("device overwrite:0:100\ndevice read:0:100 drop:0:100\ndevice read:1:100\n"), Tier::device,
                        200, "lru");
  EXPECT_EQ(2U, r.accesses);
  EXPECT_EQ(2U, r.hits);
  EXPECT_EQ(0U, r.read_bytes);
  EXPECT_EQ(0U, r.write_bytes);
}

TEST(Replay, OnlyTheHostSeesWhatTheHostComputes) {
  const auto trace = parse_trace("device read:0:100\nhost read:1:100\n");
  EXPECT_EQ(1U, replay(trace, Tier::device, 200, "lru").accesses);
  EXPECT_EQ(2U, replay(trace, Tier::host, 200, "lru").accesses);
}

TEST(Replay, AnActionThatNeedsMoreThanAllDoesNotFit) {
  const auto trace = parse_trace("device read:0:100 read:1:100\n");
  EXPECT_EQ(ErrorKind::does_not_fit, test::thrown_by([&] { (void)replay(trace, Tier::device, 199, "belady"); }).kind());
}

// The fewest misses of any eviction order, found by trying every set of resident chunks.
std::uint64_t fewest_misses(const std::string& chunks, std::size_t room) {
  std::map<std::set<char>, std::uint64_t> states{{{}, 0}};
  for (const char c : chunks) {
    std::map<std::set<char>, std::uint64_t> next;
    const auto reach = [&](const std::set<char>& set, std::uint64_t misses) {
      const auto [at, fresh] = next.try_emplace(set, misses);
      if (!fresh) at->second = std::min(at->second, misses);
    };
    for (const auto& [set, misses] : states) {
      if (set.contains(c)) {
        reach(set, misses);
        continue;
      }
      auto with = set;
      with.insert(c);
      if (with.size() <= room) {
        reach(with, misses + 1);
        continue;
      }
      for (const char victim : set) {
        auto without = with;
        without.erase(victim);
        reach(without, misses + 1);
      }
    }
    states = std::move(next);
  }
  std::uint64_t fewest = UINT64_MAX;
  for (const auto& [set, misses] : states) fewest = std::min(fewest, misses);
  return fewest;
}

TEST(Replay, NoEvictionsReadLessThanBeladys) {
  const auto seed = test::test_seed();
  std::mt19937 draw(seed);
  for (int round = 0; round < 40; ++round) {
    std::string chunks(8 + draw() % 10, ' ');
    for (auto& c : chunks) c = static_cast<char>('a' + draw() % 6);
    const std::size_t room = 2 + draw() % 3;
    const auto trace = trace_of(chunks);
    const auto second = replay(trace, Tier::device, 100 * room, "belady");
    const auto least = fewest_misses(chunks + chunks, room) - fewest_misses(chunks, room);
    EXPECT_EQ(least, second.accesses - second.hits)
        << "seed " << seed << ", round " << round << ", " << chunks << ", room " << room;
    EXPECT_GE(second.hits, replay(trace, Tier::device, 100 * room, "lru").hits) << "seed " << seed << ", " << chunks;
  }
}

}  // namespace
}  // namespace terrace::bench
