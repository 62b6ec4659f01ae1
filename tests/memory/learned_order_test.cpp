// What a learned order knows, and how many bytes are moved by it: compared with the least of all policies, found by trying all
// of them, with the order given in advance, and with the least recently used.
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <terrace/memory/learned_policy.h>

namespace terrace {
namespace {

using memory::LearnedOrder;

constexpr ChunkId id(std::uint32_t i) { return ChunkId{i}; }

void request(LearnedOrder& order, std::uint32_t chunk) {
  const Use use{id(chunk), Access::read};
  order.requested(std::span(&use, 1), Tier::device);
}
void pass(LearnedOrder& order, const std::vector<std::uint32_t>& chunks, const std::string& loop = {}) {
  order.begin_pass(loop);
  for (const auto chunk : chunks) request(order, chunk);
  order.end_pass();
}
std::vector<std::uint32_t> coming(const LearnedOrder& order, std::size_t number) {
  std::vector<std::uint32_t> chunks;
  order.offer_coming([&](const LearnedOrder::Request& next) {
    if (chunks.size() == number) return false;
    chunks.push_back(index(next.uses.front().chunk));
    return true;
  });
  return chunks;
}
using Chunks = std::vector<std::uint32_t>;

TEST(LearnedOrder, IsThatOfTheLastPassAndRepeats) {
  LearnedOrder order;
  request(order, 7);  // between passes nothing is recorded
  pass(order, {3, 1, 2});
  EXPECT_EQ(coming(order, 9), (Chunks{3, 1, 2}));
  order.begin_pass("");
  request(order, 3);
  EXPECT_EQ(order.position(), 1U);
  EXPECT_EQ(coming(order, 9), (Chunks{1, 2, 3}));
  request(order, 1);
  request(order, 2);
  EXPECT_FALSE(order.end_pass());
  pass(order, {2, 3});
  EXPECT_EQ(coming(order, 9), (Chunks{2, 3}));
  EXPECT_THROW(order.end_pass(), std::logic_error);
}

TEST(LearnedOrder, ARequestIsAnotherOneByItsTierItsAccessAndItsChunks) {
  LearnedOrder order;
  const Use read[] = {{id(1), Access::read}, {id(2), Access::read}}, write[] = {{id(1), Access::update}, {id(2), Access::read}};
  const auto one = [&](std::span<const Use> uses, Tier tier) {
    order.begin_pass("");
    order.requested(uses, tier);
    return order.end_pass();
  };
  EXPECT_TRUE(one(read, Tier::device));
  EXPECT_FALSE(one(read, Tier::device));
  EXPECT_TRUE(one(read, Tier::host));
  EXPECT_TRUE(one(write, Tier::host));
  EXPECT_TRUE(one(std::span(write).first(1), Tier::host));
}

TEST(LearnedOrder, FollowsRequestsThatAreMissingNewOrOvertaken) {
  LearnedOrder order;
  const Chunks all{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19};
  pass(order, all);
  order.begin_pass("");
  request(order, 1);  // overtakes 0
  EXPECT_EQ(coming(order, 2), (Chunks{0, 2}));
  request(order, 0);
  EXPECT_EQ(coming(order, 2), (Chunks{2, 3}));
  request(order, 77);  // new
  EXPECT_EQ(coming(order, 2), (Chunks{2, 3}));
  for (const auto chunk : {4U, 5U, 6U, 7U, 8U, 9U, 10U, 11U}) request(order, chunk);  // 2 and 3 are missing
  EXPECT_EQ(coming(order, 2), (Chunks{12, 13})) << "what is overtaken by more than eight is given up";
  order.end_pass();
  EXPECT_EQ(coming(order, 4), (Chunks{1, 0, 77, 4}));
}

TEST(LearnedOrder, ContinuesElsewhereWhenTwoNeighboursComeThere) {
  LearnedOrder order;
  Chunks all(100);
  for (std::uint32_t i = 0; i < 100; ++i) all[i] = i;
  pass(order, all);
  order.begin_pass("");
  for (const auto chunk : {0U, 1U, 70U}) request(order, chunk);
  EXPECT_EQ(order.position(), 2U) << "one request alone may be a new one";
  request(order, 71);
  EXPECT_EQ(order.position(), 72U);
  for (const auto chunk : {1U, 2U, 3U}) request(order, chunk);  // back
  EXPECT_EQ(coming(order, 2), (Chunks{4, 5}));
}

TEST(LearnedOrder, LoopsHaveTheirOwnOrdersAndAPassWithoutAnEndIsForgotten) {
  LearnedOrder order;
  pass(order, {1, 2, 3}, "train");
  pass(order, {3, 2}, "evaluate");
  order.begin_pass("train");
  EXPECT_EQ(coming(order, 3), (Chunks{1, 2, 3}));
  request(order, 9);
  order.begin_pass("evaluate");
  EXPECT_EQ(coming(order, 3), (Chunks{3, 2}));
  order.begin_pass("train");
  EXPECT_EQ(coming(order, 3), (Chunks{1, 2, 3}));
}

// --- Bytes moved. One page a chunk, device and host; moves are counted, up and down. ---

struct Step {
  std::uint32_t chunk = 0;
  Access access = Access::read;
};
using Loop = std::vector<Step>;

// The fewest moves of any policy: tracks every set of chunks on the device, and which of them the host does not have.
std::uint64_t fewest_moves(const Loop& loop, int passes, int places) {
  using State = std::pair<std::uint32_t, std::uint32_t>;  // held, and changed, as bits
  std::map<State, std::uint64_t> states{{{0, 0}, 0}};
  for (int pass = 0; pass < passes; ++pass)
    for (const auto [chunk, access] : loop) {
      std::map<State, std::uint64_t> next;
      const auto bit = 1U << chunk;
      const auto reach = [&](std::uint32_t held, std::uint32_t changed, std::uint64_t cost) {
        const auto [it, fresh] = next.emplace(State{held | bit, writes(access) ? changed | bit : changed}, cost);
        if (!fresh) it->second = std::min(it->second, cost);
      };
      for (const auto& [state, cost] : states) {
        const auto [held, changed] = state;
        if (held & bit) {
          reach(held, changed, cost);
        } else if (__builtin_popcount(held) < places) {
          reach(held, changed, cost + 1);
        } else {
          for (std::uint32_t victim = 1; victim <= held; victim <<= 1)
            if (held & victim) reach(held & ~victim, changed & ~victim, cost + 1 + ((changed & victim) ? 1 : 0));
        }
      }
      states = std::move(next);
    }
  return std::ranges::min_element(states, {}, [](const auto& s) { return s.second; })->second;
}

// Chunks on the host, and a device of `places`; each use ends before the next one.
class Machine {
 public:
  Machine(std::uint32_t chunks, int places, memory::EvictionPolicy& policy, std::uint64_t host = kUnlimited,
          std::uint64_t disk = 0)
      : residency_({static_cast<std::uint64_t>(places) * kPageBytes, host, disk}, policy) {
    for (std::uint32_t c = 0; c < chunks; ++c) {
      const Use fill[] = {{residency_.add(kPageBytes, ChunkKind::activation, memory::End::low), Access::overwrite}};
      residency_.acquire(fill, Tier::host, moves_);
      residency_.release(fill, Tier::host, {});
    }
  }
  void use(const Step& step) {
    const Use uses[] = {{id(step.chunk), step.access}};
    residency_.acquire(uses, Tier::device, moves_);
    residency_.release(uses, Tier::device, Clock::after(Lane::compute, ++now_));
    residency_.check();
  }
  void prefetch(const memory::LearnedPolicy& policy, std::uint64_t requests) {
    policy.prefetch_coming(
        residency_, requests, [](ChunkId) { return false; }, moves_);
    residency_.check();
  }
  [[nodiscard]] memory::Traffic traffic() const { return residency_.traffic(); }

 private:
  memory::Residency residency_;
  std::vector<Move> moves_;
  std::uint64_t now_ = 0;
};

std::uint32_t chunks_of(const Loop& loop) { return std::ranges::max_element(loop, {}, &Step::chunk)->chunk + 1; }

// The tiers below the device; the disk is used only if the host is full.
struct Below {
  std::uint64_t host = kUnlimited, disk = 0;
};

memory::Traffic by_lru(const Loop& loop, int passes, int places, const Below& below = {}) {
  memory::Lru lru;
  Machine machine(chunks_of(loop), places, lru, below.host, below.disk);
  for (int pass = 0; pass < passes; ++pass)
    for (const auto& step : loop) machine.use(step);
  return machine.traffic();
}

// The order is known from the start, and nothing is prefetched.
memory::Traffic by_plan(const Loop& loop, int passes, int places, const Below& below = {}) {
  memory::Belady belady;
  std::vector<memory::Belady::UseAt> uses;
  for (std::size_t p = 0; p < loop.size(); ++p) uses.push_back({id(loop[p].chunk), Tier::device, p});
  belady.set_program(uses, loop.size());
  Machine machine(chunks_of(loop), places, belady, below.host, below.disk);
  for (int pass = 0; pass < passes; ++pass)
    for (std::size_t p = 0; p < loop.size(); ++p) {
      belady.set_position((p + 1) % loop.size());
      machine.use(loop[p]);
    }
  return machine.traffic();
}

memory::Traffic as_learned(const std::vector<Loop>& passes, int places, std::uint64_t ahead, const Below& below = {}) {
  memory::LearnedPolicy policy;
  Machine machine(chunks_of(passes.front()), places, policy, below.host, below.disk);
  for (const auto& loop : passes) {
    policy.begin_pass("");
    machine.prefetch(policy, ahead);
    for (const auto& step : loop) {
      const Use uses[] = {{id(step.chunk), step.access}};
      policy.requested(uses, Tier::device);
      machine.use(step);
      machine.prefetch(policy, ahead);
    }
    policy.end_pass();
  }
  return machine.traffic();
}
memory::Traffic as_learned(const Loop& loop, int passes, int places, std::uint64_t ahead, const Below& below = {}) {
  return as_learned(std::vector<Loop>(static_cast<std::size_t>(passes), loop), places, ahead, below);
}

std::uint64_t device_moves(const memory::Traffic& t) { return t.uploads + t.downloads; }

Loop sweep(std::uint32_t chunks, Access access) {
  Loop loop;
  for (std::uint32_t c = 0; c < chunks; ++c) loop.push_back({c, access});
  return loop;
}
// A forward that reads, and an update in reverse.
Loop forward_and_back(std::uint32_t chunks) {
  Loop loop = sweep(chunks, Access::read);
  for (std::uint32_t c = chunks; c-- > 0;) loop.push_back({c, Access::update});
  return loop;
}

const std::vector<std::pair<std::string, Loop>>& loops_of_eight() {
  static const std::vector<std::pair<std::string, Loop>> loops{{"sweep that updates", sweep(8, Access::update)},
                                                               {"sweep that reads", sweep(8, Access::read)},
                                                               {"forward and back", forward_and_back(8)}};
  return loops;
}

// Of ten passes, the first of which is not known to the learned order. Prefetching takes places from chunks that could stay.
TEST(LearnedPolicy, MovesOfLoopsBesideTheFewestOfAllPolicies) {
  std::string table;
  for (const auto& [name, loop] : loops_of_eight())
    for (const int places : {3, 6}) {
      table += fmt::format("{} in {} places: fewest {}, planned {}, learned", name, places, fewest_moves(loop, 10, places),
                           device_moves(by_plan(loop, 10, places)));
      for (const auto ahead : {0U, 1U, 2U}) table += fmt::format(" {}", device_moves(as_learned(loop, 10, places, ahead)));
      table += fmt::format(", lru {}\n", device_moves(by_lru(loop, 10, places)));
    }
  EXPECT_EQ(table,
            "sweep that updates in 3 places: fewest 113, planned 113, learned 117 119 137, lru 157\n"
            "sweep that updates in 6 places: fewest 50, planned 50, learned 54 54 62, lru 154\n"
            "sweep that reads in 3 places: fewest 58, planned 58, learned 60 61 70, lru 80\n"
            "sweep that reads in 6 places: fewest 28, planned 28, learned 30 30 34, lru 80\n"
            "forward and back in 3 places: fewest 162, planned 180, learned 180 180 180, lru 180\n"
            "forward and back in 6 places: fewest 75, planned 84, learned 84 84 84, lru 84\n");
}

// 96 chunks in 24 places on the device and 48 on the host, the rest on the disk: bytes up, down, read and written, in chunks.
// Neither LRU nor Belady knows that an unchanged chunk costs no write: forward and back, LRU happens to write less.
TEST(LearnedPolicy, MovesBetweenThreeTiersBesideThoseOfAPlan) {
  const Below below{48 * kPageBytes, 96 * kPageBytes};
  const auto text = [](const memory::Traffic& t) {
    return fmt::format("{} {} {} {}", t.uploads, t.downloads, t.reads, t.writes);
  };
  const Loop update = sweep(96, Access::update);
  EXPECT_EQ(text(by_lru(update, 10, 24, below)), "960 936 490 515");
  EXPECT_EQ(text(by_plan(update, 10, 24, below)), "744 720 273 298");
  EXPECT_EQ(text(as_learned(update, 10, 24, 0, below)), "753 729 283 308");
  EXPECT_EQ(text(as_learned(update, 10, 24, 2, below)), "764 740 308 334");
  const Loop back = forward_and_back(96);
  EXPECT_EQ(text(by_lru(back, 10, 24, below)), "1464 936 754 515");
  EXPECT_EQ(text(by_plan(back, 10, 24, below)), "1464 936 753 777");
  EXPECT_EQ(text(as_learned(back, 10, 24, 0, below)), "1464 936 754 707");
  EXPECT_EQ(text(as_learned(back, 10, 24, 2, below)), "1464 936 764 718");
}

// 100 loops drawn at random, eight passes each.
TEST(LearnedPolicy, MovesOfRandomLoopsBesideTheFewestOfAllPolicies) {
  std::uint64_t fewest = 0, planned = 0, lru = 0;
  std::vector<std::uint64_t> learned(3);
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    std::mt19937_64 random(seed);
    Loop loop;
    for (auto n = 6 + random() % 20; n > 0; --n) loop.push_back({static_cast<std::uint32_t>(random() % 7), Access::read});
    for (std::uint32_t c = 0; c < 7; ++c) loop.push_back({c, Access::read});
    fewest += fewest_moves(loop, 8, 4);
    planned += device_moves(by_plan(loop, 8, 4));
    for (std::uint64_t ahead = 0; ahead < 3; ++ahead) learned[ahead] += device_moves(as_learned(loop, 8, 4, ahead));
    lru += device_moves(by_lru(loop, 8, 4));
  }
  EXPECT_EQ(fewest, 5568U);
  EXPECT_EQ(planned, 5568U);
  EXPECT_EQ(learned, (std::vector<std::uint64_t>{6043, 6050, 6702}));
  EXPECT_EQ(lru, 9931U);
}

// 32 chunks in 16 places; LRU moves 64 a pass. After five passes the sweep goes backwards, or leaves a chunk out.
TEST(LearnedPolicy, AChangeOfOrderCostsMovesForOnePass) {
  const Loop up = sweep(32, Access::update);
  Loop back(up.rbegin(), up.rend()), without = up;
  without.erase(without.begin() + 9);
  const auto moves_of_pass = [&](const Loop& then, std::size_t pass) {
    std::vector<Loop> passes(5, up);
    passes.resize(10, then);
    const auto until = [&](std::size_t n) {
      return device_moves(as_learned({passes.begin(), passes.begin() + static_cast<long>(n)}, 16, 0));
    };
    return until(pass) - until(pass - 1);
  };
  EXPECT_EQ(moves_of_pass(up, 5), 34U);
  EXPECT_EQ(moves_of_pass(back, 6), 40U);
  EXPECT_EQ(moves_of_pass(back, 7), 34U);
  EXPECT_EQ(moves_of_pass(without, 6), 34U);
  EXPECT_EQ(moves_of_pass(without, 7), 32U);
}

}  // namespace
}  // namespace terrace
