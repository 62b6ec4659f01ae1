#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <terrace/memory/residency.h>

namespace terrace::residency_cases {  // the fixture has the name of the class under test
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kPage = kPageBytes;
Clock compute(std::uint64_t n) { return Clock::after(Lane::compute, n); }

class Residency : public testing::Test {
 protected:
  void TearDown() override {
    if (residency) residency->check();
  }
  terrace::memory::Residency& make(std::uint64_t device, std::uint64_t host, std::uint64_t disk,
                                   std::uint32_t generations = 1) {
    const auto pages = [](std::uint64_t n) { return n == kUnlimited ? n : n * kPage; };
    lru = memory::Lru{};
    residency.emplace(Budget{pages(device), pages(host), pages(disk)}, lru, generations);
    return *residency;
  }
  ChunkId add(std::uint64_t pages, ChunkKind kind = ChunkKind::parameter) {
    return residency->add(pages * kPage, kind, memory::End::low);
  }
  terrace::memory::Residency::Granted acquire(ChunkId chunk, Access access, Tier tier) {
    moves.clear();
    const Use use[] = {{chunk, access}};
    return residency->acquire(use, tier, moves);
  }
  void release(ChunkId chunk, Access access, Tier tier, const Clock& last) {
    const Use use[] = {{chunk, access}};
    residency->release(use, tier, last);
  }
  terrace::memory::Residency::Granted use(ChunkId chunk, Access access, Tier tier, const Clock& last) {
    const auto granted = acquire(chunk, access, tier);
    release(chunk, access, tier, last);
    return granted;
  }
  std::string where(ChunkId chunk) const {
    std::string tiers;
    for (const Tier t : kAllTiers) {
      if (residency->valid(chunk, t)) tiers += tiers.empty() ? name_of(t) : std::string(" ").append(name_of(t));
    }
    return tiers;
  }
  // "disk>host host>device"
  std::string path() const {
    std::string text;
    for (const auto& move : moves) {
      text += fmt::format("{}{}>{}", text.empty() ? "" : " ", name_of(move.from), name_of(move.to));
    }
    return text;
  }

  memory::Lru lru;
  std::optional<terrace::memory::Residency> residency;
  std::vector<Move> moves;
};

TEST_F(Residency, WriteLeaseLeavesOneValidTier) {
  make(4, 4, 4);
  const auto c = add(1);
  residency->adopt_on_disk(c);
  use(c, Access::read, Tier::device, compute(1));
  EXPECT_EQ(where(c), "device host disk");
  use(c, Access::update, Tier::device, compute(2));
  EXPECT_EQ(where(c), "device");
  EXPECT_EQ(residency->space(Tier::host).reserved_bytes(), 0u);
  EXPECT_EQ(residency->space(Tier::disk).reserved_bytes(), kPage);  // a state keeps its place on disk
}

TEST_F(Residency, DiskReachesTheDeviceThroughTheHost) {
  make(4, 4, 4);
  const auto c = add(2);
  residency->adopt_on_disk(c);
  const auto granted = acquire(c, Access::read, Tier::device);
  ASSERT_EQ(path(), "disk>host host>device");
  EXPECT_EQ(moves[0].after, Clock{});
  EXPECT_EQ(moves[1].after, Clock::after(Lane::read, 1));
  EXPECT_EQ(granted.after, Clock::after(Lane::upload, 1));
  release(c, Access::read, Tier::device, compute(8));
  EXPECT_EQ(residency->traffic(), (memory::Traffic{2 * kPage, 0, 2 * kPage, 0, 1, 0, 1, 0}));
}

TEST_F(Residency, NewOccupantWaitsForTheLastUseOfItsPlace) {
  make(1, 2, 0);
  const auto a = add(1), b = add(1);
  use(a, Access::overwrite, Tier::host, compute(1));
  use(b, Access::overwrite, Tier::host, compute(2));
  use(a, Access::read, Tier::device, compute(3));
  use(b, Access::read, Tier::device, compute(4));  // evicts a, whose last use is compute 3
  ASSERT_EQ(path(), "host>device");
  Clock after = compute(3);
  after.merge(Clock::after(Lane::upload, 1));  // a's own upload, which ended long before
  EXPECT_EQ(moves[0].after[Lane::compute], 3u);
  EXPECT_EQ(moves[0].after, after);
}

TEST_F(Residency, UpdateWaitsForEveryReader) {
  make(4, 4, 4);
  const auto c = add(1);
  use(c, Access::overwrite, Tier::host, compute(1));
  moves.clear();
  residency->flush(c, {}, moves);
  use(c, Access::read, Tier::host, compute(2));
  EXPECT_EQ(acquire(c, Access::read, Tier::host).after, compute(1));
  release(c, Access::read, Tier::host, compute(3));
  Clock all = compute(3);
  all.merge(Clock::after(Lane::write, 1));
  EXPECT_EQ(acquire(c, Access::update, Tier::host).after, all);
  release(c, Access::update, Tier::host, compute(4));
  EXPECT_EQ(acquire(c, Access::read, Tier::host).after, compute(4));
  release(c, Access::read, Tier::host, compute(5));
}

TEST_F(Residency, LaterWriteRespectsTheStaleDiskCopy) {
  make(4, 4, 4);
  const auto c = add(1);
  residency->adopt_on_disk(c);
  const auto place = residency->offset_on_disk(c);
  use(c, Access::read, Tier::host, compute(1));    // read lane 1 reads the place on disk
  use(c, Access::update, Tier::host, compute(2));  // the disk copy is outdated now
  moves.clear();
  residency->flush(c, {}, moves);
  ASSERT_EQ(path(), "host>disk");
  EXPECT_EQ(moves[0].to_offset, place);
  Clock after = compute(2);
  after.merge(Clock::after(Lane::read, 1));
  EXPECT_EQ(moves[0].after, after);
}

TEST_F(Residency, OverwriteBringsNothing) {
  make(4, 4, 4);
  const auto c = add(1);
  residency->adopt_on_disk(c);
  use(c, Access::overwrite, Tier::device, compute(1));
  EXPECT_TRUE(moves.empty());
  EXPECT_EQ(where(c), "device");
}

TEST_F(Residency, DeadContentIsNotWrittenBack) {
  make(1, 1, 4);
  const auto gradient = add(1, ChunkKind::gradient), other = add(1);
  use(gradient, Access::overwrite, Tier::device, compute(1));
  residency->drop(gradient);
  EXPECT_FALSE(residency->has_content(gradient));
  use(other, Access::overwrite, Tier::device, compute(2));
  EXPECT_TRUE(moves.empty());
}

TEST_F(Residency, OnlyTheLastCopyIsWrittenDown) {
  make(1, 2, 4);
  const auto a = add(1), b = add(1), c = add(1);
  for (const auto x : {a, b}) use(x, Access::overwrite, Tier::host, compute(1));
  use(a, Access::read, Tier::device, compute(2));
  use(c, Access::overwrite, Tier::device, compute(3));  // a is also on the host, so its device copy is dropped
  EXPECT_EQ(path(), "");
  EXPECT_EQ(where(a), "host");
  use(a, Access::read, Tier::device, compute(4));  // c has no other copy: the host makes room by moving b or a to disk
  EXPECT_EQ(path(), "host>disk device>host host>device");
  for (const auto x : {a, b, c}) EXPECT_NE(where(x), "");
}

TEST_F(Residency, StatesKeepTheirDiskPlaceAndGradientsDoNot) {
  make(4, 4, 8, 2);
  const auto state = add(1, ChunkKind::first_moment), gradient = add(1, ChunkKind::gradient);
  for (const auto c : {state, gradient}) {
    use(c, Access::overwrite, Tier::host, compute(1));
    residency->flush(c, {}, moves);
  }
  EXPECT_EQ(residency->space(Tier::disk).reserved_bytes(), 3 * kPage);  // two generations of state, one of gradient
  for (const auto c : {state, gradient}) residency->drop(c);
  EXPECT_EQ(residency->space(Tier::disk).reserved_bytes(), 2 * kPage);
}

TEST_F(Residency, FragmentedDeviceIsClearedAndPlacedAnew) {
  make(6, kUnlimited, 0);
  const auto a = add(2), b = add(2), c = add(2),
             wide = residency->add_run(2, 2 * kPage, ChunkKind::parameter, memory::End::low);
  for (const auto x : {a, b, c}) use(x, Access::overwrite, Tier::device, compute(1));
  // b, in the middle, is requested: the 4 pages of the run only fit beside its 2 pages after b has moved.
  moves.clear();
  const Use request[] = {{b, Access::read}, {wide, Access::overwrite}, {ChunkId{index(wide) + 1}, Access::overwrite}};
  const auto granted = residency->acquire(request, Tier::device, moves);
  EXPECT_EQ(granted.offsets[2], granted.offsets[1] + 2 * kPage);
  EXPECT_EQ(path(), "device>host device>host device>host host>device");
  residency->release(request, Tier::device, compute(2));
}

TEST_F(Residency, RefusalSaysTierBytesBudgetAndWhatIsInUse) {
  make(4, 4, 0);
  const auto weights = add(3), activation = add(2, ChunkKind::activation);
  acquire(weights, Access::overwrite, Tier::device);
  try {
    acquire(activation, Access::overwrite, Tier::device);
    FAIL() << "5 pages fitted into 4";
  } catch (const memory::DoesNotFit& refusal) {
    EXPECT_EQ(refusal.tier, Tier::device);
    EXPECT_EQ(refusal.missing_bytes, kPage);
    EXPECT_EQ(refusal.kind(), ErrorKind::does_not_fit);
    EXPECT_THAT(refusal.what(), HasSubstr("device tier: a request of 8.00 KiB does not fit, 4.00 KiB are missing"));
    EXPECT_THAT(refusal.what(), HasSubstr("budget 16.0 KiB"));
    EXPECT_THAT(refusal.what(), HasSubstr("12.0 KiB of parameters"));
  }
  EXPECT_FALSE(residency->has_content(activation));
  release(weights, Access::overwrite, Tier::device, compute(1));
}

TEST_F(Residency, FullHostWithoutDiskRefusesButFreeCopiesStillGo) {
  make(2, 2, 0);
  const auto a = add(1), b = add(1), c = add(1), d = add(1), e = add(1);
  for (const auto x : {a, b}) use(x, Access::overwrite, Tier::host, compute(1));
  use(c, Access::overwrite, Tier::device, compute(2));  // older, but the only copy
  use(a, Access::read, Tier::device, compute(3));
  use(d, Access::overwrite, Tier::device, compute(4));  // c replaces a's host copy, or a's device copy is dropped
  for (const auto x : {a, b, c, d}) EXPECT_NE(where(x), "");
  try {
    use(e, Access::overwrite, Tier::device, compute(5));
    FAIL() << "five dirty pages fitted into four";
  } catch (const memory::DoesNotFit& refusal) {
    EXPECT_EQ(refusal.tier, Tier::host);
    EXPECT_EQ(refusal.missing_bytes, kPage);
  }
}

TEST_F(Residency, LruPrefetchNeverEvicts) {
  make(1, 4, 0);
  const auto a = add(1), b = add(1);
  for (const auto x : {a, b}) use(x, Access::overwrite, Tier::host, compute(1));
  moves.clear();
  EXPECT_TRUE(residency->prefetch(a, Tier::device, moves));
  EXPECT_FALSE(residency->prefetch(b, Tier::device, moves));
  EXPECT_EQ(path(), "host>device");
  EXPECT_TRUE(residency->prefetch(a, Tier::device, moves));  // already there
  EXPECT_EQ(moves.size(), 1u);
}

TEST_F(Residency, BeladyPrefetchEvictsOnlyWhatIsNeededLater) {
  memory::Belady belady;
  residency.emplace(Budget{kPage, kUnlimited, 0}, belady);
  const auto a = add(1), b = add(1);
  for (const auto x : {a, b}) use(x, Access::overwrite, Tier::host, compute(1));
  belady.set_program(std::vector<memory::Belady::UseAt>{{a, Tier::device, 1}, {b, Tier::device, 2}, {a, Tier::device, 5}}, 6);
  moves.clear();
  EXPECT_TRUE(residency->prefetch(b, Tier::device, moves));
  EXPECT_TRUE(residency->prefetch(a, Tier::device, moves));   // 1 before 2
  EXPECT_FALSE(residency->prefetch(b, Tier::device, moves));  // 2 after 1
  belady.set_position(2);
  EXPECT_TRUE(residency->prefetch(b, Tier::device, moves));  // 2 before 5
}

// A writer of this place waits for the old chunk to leave; it began to leave when the place was requested.
TEST_F(Residency, APlaceAheadIsKeptForItsWriter) {
  memory::Belady belady;
  residency.emplace(Budget{2 * kPage, kUnlimited, 0}, belady);
  const auto a = add(1), b = add(1), c = add(1);
  for (const auto x : {a, b}) use(x, Access::overwrite, Tier::device, compute(1));
  belady.set_program(std::vector<memory::Belady::UseAt>{{a, Tier::device, 1}, {c, Tier::device, 2}, {b, Tier::device, 5}}, 6);
  moves.clear();
  EXPECT_TRUE(residency->place_ahead(c, Tier::device, moves));
  residency->check();
  EXPECT_EQ(path(), "device>host");
  EXPECT_EQ(moves.at(0).chunk, b);                  // its next use is the farthest
  EXPECT_EQ(moves.at(0).after[Lane::compute], 1u);  // only b's own last use
  EXPECT_EQ(where(c), "");
  EXPECT_TRUE(residency->place_ahead(c, Tier::device, moves));  // already there
  belady.set_position(2);
  const auto left = moves.at(0).sequence;
  const auto granted = acquire(c, Access::overwrite, Tier::device);
  EXPECT_TRUE(moves.empty());
  EXPECT_EQ(granted.after[Lane::download], left);
  release(c, Access::overwrite, Tier::device, compute(4));
  residency->check();
}

TEST_F(Residency, APlaceAheadIsTakenFromNobodyWhoIsNeededSooner) {
  memory::Belady belady;
  residency.emplace(Budget{kPage, kUnlimited, 0}, belady);
  const auto a = add(1), b = add(1);
  use(a, Access::overwrite, Tier::device, compute(1));
  belady.set_program(std::vector<memory::Belady::UseAt>{{a, Tier::device, 1}, {b, Tier::device, 2}}, 3);
  moves.clear();
  EXPECT_FALSE(residency->place_ahead(b, Tier::device, moves));
  EXPECT_EQ(where(a), "device");
  EXPECT_TRUE(moves.empty());
}

TEST_F(Residency, APlaceAheadGoesToWhoeverNeedsItAtOnce) {
  make(1, kUnlimited, 0);
  const auto a = add(1), b = add(1);
  EXPECT_TRUE(residency->place_ahead(a, Tier::device, moves));
  EXPECT_EQ(residency->space(Tier::device).reserved_bytes(), kPage);
  use(b, Access::overwrite, Tier::device, compute(1));
  EXPECT_EQ(where(b), "device");
  EXPECT_TRUE(moves.empty());
  residency->drop(b);
  EXPECT_TRUE(residency->place_ahead(a, Tier::device, moves));
  residency->drop(a);
  EXPECT_EQ(residency->space(Tier::device).reserved_bytes(), 0u);
  residency->check();
}

// Direct I/O requires it, and half a page at the top of a budget must not shift the places that are allocated from there.
TEST_F(Residency, EveryPlaceIsWholePagesWhateverTheBudget) {
  for (const std::uint64_t odd : {std::uint64_t{1}, std::uint64_t{511}, std::uint64_t{512}, std::uint64_t{2500}, kPage - 1}) {
    residency.emplace(Budget{2 * kPage + odd, 4 * kPage + odd, 8 * kPage + odd}, lru);
    moves.clear();
    std::uint64_t time = 0;
    for (int i = 0; i < 6; ++i) {  // more than device and host hold together, so the disk is also used
      const Use use[] = {{residency->add(kPage, ChunkKind::activation, memory::End::high), Access::overwrite}};
      const auto granted = residency->acquire(use, Tier::device, moves);
      EXPECT_EQ(granted.offsets.front() % kPage, 0u) << odd;
      residency->release(use, Tier::device, compute(++time));
    }
    for (const auto& move : moves) {
      EXPECT_EQ(move.from_offset % kPage, 0u) << odd;
      EXPECT_EQ(move.to_offset % kPage, 0u) << odd;
    }
    EXPECT_FALSE(moves.empty());
    residency->check();
  }
}

// A plan is computed with the disk size that the user allows; the run reserves only what the plan used.
TEST_F(Residency, PlacesOnDiskDoNotDependOnTheRoomAbove) {
  const auto offsets = [&](std::uint64_t disk) {
    make(1, 1, disk);
    moves.clear();
    std::uint64_t time = 0;
    for (int i = 0; i < 5; ++i) {
      const Use use[] = {{residency->add(kPage, i % 2 == 0 ? ChunkKind::activation : ChunkKind::gradient,
                                         i % 2 == 0 ? memory::End::high : memory::End::low),
                          Access::overwrite}};
      residency->acquire(use, Tier::device, moves);
      residency->release(use, Tier::device, compute(++time));
    }
    std::vector<std::uint64_t> to;
    for (const auto& move : moves)
      if (move.to == Tier::disk) to.push_back(move.to_offset);
    return to;
  };
  const auto cut = offsets(3);
  EXPECT_EQ(cut.size(), 3u);
  EXPECT_EQ(cut, offsets(100));
  EXPECT_EQ(cut, offsets(kUnlimited));
}

TEST_F(Residency, PrefetchOfOneChunkTakesThePlaceOfItsRun) {
  make(4, kUnlimited, 0);
  const auto run = residency->add_run(3, kPage, ChunkKind::parameter, memory::End::low);
  const ChunkId last{index(run) + 2};
  use(last, Access::overwrite, Tier::host, compute(1));
  moves.clear();
  EXPECT_TRUE(residency->prefetch(last, Tier::device, moves));
  EXPECT_EQ(residency->space(Tier::device).reserved_bytes(), 3 * kPage);
  EXPECT_EQ(moves.at(0).to_offset, 2 * kPage);
}

TEST_F(Residency, PrefetchFromDiskNeedsTransitOnTheHost) {
  make(4, 1, 4);
  const auto a = add(1), b = add(1);
  residency->adopt_on_disk(a);
  residency->adopt_on_disk(b);
  acquire(a, Access::read, Tier::host);
  EXPECT_FALSE(residency->prefetch(b, Tier::device, moves));  // the device is empty, the host is in use
  release(a, Access::read, Tier::host, compute(1));
  EXPECT_EQ(where(b), "disk");
}

TEST_F(Residency, FlushOfDeviceContentPassesThroughTheHost) {
  make(2, 2, 2);
  const auto c = add(1);
  use(c, Access::overwrite, Tier::device, compute(1));
  moves.clear();
  residency->flush(c, {}, moves);
  EXPECT_EQ(path(), "device>host host>disk");
  EXPECT_EQ(where(c), "device host disk");
  residency->flush(c, {}, moves);
  EXPECT_EQ(moves.size(), 2u);
}

TEST_F(Residency, HostOfOneChunkCarriesEverything) {
  make(2, 1, kUnlimited);
  std::vector<ChunkId> chunks;
  for (int i = 0; i < 6; ++i) {
    chunks.push_back(add(1));
    use(chunks.back(), Access::overwrite, Tier::device, compute(static_cast<std::uint64_t>(i) + 1));
  }
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < 6; i += 2) {
      const Use both[] = {{chunks[i], Access::update}, {chunks[i + 1], Access::read}};
      residency->acquire(both, Tier::device, moves);
      residency->release(both, Tier::device, compute(100));
      residency->check();
    }
  }
}

TEST_F(Residency, BrokenProtocolIsALogicError) {
  make(4, 4, 4);
  const auto c = add(1);
  EXPECT_THROW(acquire(c, Access::read, Tier::host), std::logic_error);
  EXPECT_THROW(residency->flush(c, {}, moves), std::logic_error);
  EXPECT_THROW(release(c, Access::read, Tier::host, {}), std::logic_error);
  EXPECT_THROW((void)residency->offset_on_disk(c), std::logic_error);
  EXPECT_THROW(residency->add_run(1, 100, ChunkKind::parameter, memory::End::low), std::logic_error);
  acquire(c, Access::overwrite, Tier::host);
  EXPECT_THROW(acquire(c, Access::read, Tier::host), std::logic_error);
  EXPECT_THROW(acquire(c, Access::read, Tier::device), std::logic_error);
  EXPECT_THROW(residency->drop(c), std::logic_error);
  EXPECT_THROW(residency->flush(c, {}, moves), std::logic_error);
  EXPECT_THROW(release(c, Access::read, Tier::host, {}), std::logic_error);
  release(c, Access::overwrite, Tier::host, compute(1));
  EXPECT_THROW(acquire(c, Access::read, Tier::disk), std::logic_error);
  EXPECT_THROW(residency->adopt_on_disk(c), std::logic_error);
  const Use twice[] = {{c, Access::update}, {c, Access::read}};
  EXPECT_THROW(residency->acquire(twice, Tier::host, moves), std::logic_error);
  acquire(c, Access::read, Tier::host);
  EXPECT_THROW(acquire(c, Access::update, Tier::device), std::logic_error);
  acquire(c, Access::read, Tier::device);  // readers share
  release(c, Access::read, Tier::device, compute(2));
  release(c, Access::read, Tier::host, compute(3));
}

TEST_F(Residency, WhatIsWrittenIsNamedOnceInALongRequestToo) {
  make(64, 64, 64);
  std::vector<Use> uses;
  for (int i = 0; i < 40; ++i) uses.push_back({add(1), Access::overwrite});
  std::ranges::reverse(uses);
  residency->acquire(uses, Tier::host, moves);
  residency->release(uses, Tier::host, compute(1));
  for (auto& use : uses) use.access = Access::read;
  uses.push_back(uses[7]);  // readers may share
  residency->acquire(uses, Tier::host, moves);
  residency->release(uses, Tier::host, compute(2));
  uses.back().access = Access::update;
  EXPECT_THROW(residency->acquire(uses, Tier::host, moves), std::logic_error);
  residency->check();
}

TEST_F(Residency, SameQuestionsGetTheSameAnswers) {
  std::vector<std::vector<std::uint64_t>> answers;
  for (int time = 0; time < 2; ++time) {
    make(3, 3, kUnlimited);
    std::vector<std::uint64_t> seen;
    std::vector<ChunkId> chunks;
    for (int i = 0; i < 8; ++i) chunks.push_back(add(1));
    for (const auto c : chunks) use(c, Access::overwrite, Tier::device, compute(index(c) + 1));
    for (int i = 0; i < 40; ++i) {
      use(chunks[static_cast<std::size_t>(i * 5 % 8)], Access::update, i % 3 ? Tier::device : Tier::host, compute(20));
      for (const auto& m : moves) {
        seen.insert(seen.end(), {index(m.chunk), index(m.from), index(m.to), m.from_offset, m.to_offset, m.sequence});
      }
    }
    answers.push_back(std::move(seen));
  }
  EXPECT_EQ(answers[0], answers[1]);
}

}  // namespace
}  // namespace terrace::residency_cases
