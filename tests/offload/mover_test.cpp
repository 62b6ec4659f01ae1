// Moves between three tiers, with clocks in random order, compared with an oracle of bytes; failures; draining.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <future>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/offload/move/mover.h>
#include <terrace/tests/doubles/simulated_disk.h>
#include <terrace/tests/support/test_device.h>

#include <terrace/tests/offload/pages.h>
#include <terrace/tests/offload/temporary_directory.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

using test::error_of;
using testing::HasSubstr;

constexpr std::uint64_t kChunkBytes = 6 * kPageBytes;
constexpr std::uint32_t kChunks = 6;
constexpr std::uint64_t kDataBytes = kChunks * kChunkBytes;

// The parts of a mover with a real store and a given engine.
struct Terraces {
  explicit Terraces(const std::string& engine_name, std::vector<SimulatedFault> faults = {}, std::uint64_t seed = 1,
                    const std::string& device_name = "cpu")
      : device(test::make_test_device(device_name, pool, seed, false)) {
    ChunkStore::Options options;
    options.paths = {directory.path() / "a", directory.path() / "b"};
    options.capacity_bytes = kDataBytes;
    options.stripe_bytes = 2 * kPageBytes;
    options.durable = false;
    options.generations = 1;
    store = ChunkStore::create(options);
    for (std::uint32_t c = 0; c < kChunks; ++c) {
      store->describe({ChunkId{c}, ChunkKind::master, "fp32", kChunkBytes, {}, fmt::format("master weight of layers.{}", c)});
    }
    IoOptions io;
    io.queue_depth = 4;
    io.files = store->descriptors();
    io.buffers = {host};
    std::string why;
    if (engine_name == "simulated") {
      engine = make_simulated_engine(make_simulated_disk(2, kDataBytes), seed, std::move(faults));
    } else if (engine_name == "threads") {
      engine = make_thread_engine(io, 2);
    } else {
      engine = make_uring_engine(io, why);
    }
    if (engine) make_mover(*engine);
  }

  // `held` is released when nothing of the mover uses its parts any more.
  void make_mover(IoEngine& over, std::shared_ptr<void> held = nullptr) {
    mover.reset();
    offload::Mover::Parts parts;
    parts.held = std::move(held);
    parts.device = device.get();
    parts.device_base = device_memory.data();
    parts.host_base = host.data();
    parts.store = store.get();
    parts.engine = &over;
    parts.lanes = &lanes;
    parts.trace = &trace;
    parts.request_bytes = kPageBytes;  // a move has many requests
    mover = std::make_unique<offload::Mover>(parts);
  }

  Move move(std::uint32_t chunk, Tier from, Tier to, std::uint64_t from_slot, std::uint64_t to_slot, const Clock& after) {
    Move m{ChunkId{chunk}, from, to, from_slot * kChunkBytes, to_slot * kChunkBytes, kChunkBytes, 0, after};
    m.sequence = ++sequence[index(lane_of(from, to))];
    return m;
  }

  test::TemporaryDirectory directory;
  ThreadPool pool{1};
  const std::unique_ptr<Device> device;
  // The test reads and writes both: it can access the memory of either device.
  const Slab device_slab = device->memory().allocate(kDataBytes), host_slab = device->host_memory()->allocate(kDataBytes);
  const std::span<std::byte> device_memory{device_slab.data(), kDataBytes}, host{host_slab.data(), kDataBytes};
  offload::Lanes lanes;
  Trace trace;
  std::unique_ptr<ChunkStore> store;
  std::unique_ptr<IoEngine> engine;
  std::unique_ptr<offload::Mover> mover;
  std::array<std::uint64_t, kLanes> sequence{};
};

// Ends everything that was submitted in one poll. Counts what began and ended between two polls.
class AtOnce final : public IoEngine {
 public:
  AtOnce(IoEngine& inner, const offload::Lanes& lanes) : inner_(inner), lanes_(lanes) {}
  void submit(std::span<IoRequest* const> requests) override {
    if (requests.front()->op == IoRequest::Op::write) ++writes_;
    inner_.submit(requests);
  }
  std::size_t poll(std::chrono::nanoseconds wait) override {
    count();
    std::size_t ended = inner_.poll(wait);
    while (inner_.in_flight() > 0) ended += inner_.poll(std::chrono::milliseconds{1});
    return ended;
  }
  void wake() override { inner_.wake(); }
  [[nodiscard]] std::size_t in_flight() const override { return inner_.in_flight(); }
  [[nodiscard]] std::string name() const override { return inner_.name(); }

  // Counts what happened since the last poll. After the mover has ended, the maxima are final.
  void count() {
    int reads = 0;
    while (lanes_.of(Lane::read).reached(reads_ + 1)) ++reads_, ++reads;
    most_reads = std::max(most_reads, reads);
    most_writes = std::max(most_writes, std::exchange(writes_, 0));
  }
  int most_reads = 0, most_writes = 0;

 private:
  IoEngine& inner_;
  const offload::Lanes& lanes_;
  std::uint64_t reads_ = 0;
  int writes_ = 0;
};

// Throws in the first polls after a submit.
class Refusing final : public IoEngine {
 public:
  explicit Refusing(IoEngine& inner) : inner_(inner) {}
  void submit(std::span<IoRequest* const> requests) override {
    inner_.submit(requests);
    left_ = 3;
  }
  std::size_t poll(std::chrono::nanoseconds wait) override {
    if (left_ > 0 && left_-- > 0) throw std::runtime_error("the engine cannot be asked");
    return inner_.poll(std::min<std::chrono::nanoseconds>(wait, std::chrono::milliseconds{1}));
  }
  void wake() override { inner_.wake(); }
  [[nodiscard]] std::size_t in_flight() const override { return inner_.in_flight(); }
  [[nodiscard]] std::string name() const override { return inner_.name(); }

 private:
  IoEngine& inner_;
  int left_ = 0;
};

// Both lanes end with the engine's error, and the process continues.
TEST(DiskLanes, AnEngineThatThrowsEndsBothLanes) {
  Terraces t("threads");
  Refusing engine(*t.engine);
  // The operation that was running when the engine threw may end after the mover, so the engine must live that long.
  std::promise<void> unused;
  t.make_mover(engine, std::shared_ptr<void>(&unused, [&](void*) { unused.set_value(); }));
  const auto drained = [&] { return error_of([&] { t.mover->drain(); }); };
  t.mover->issue(t.move(0, Tier::host, Tier::disk, 0, 0, {}));
  EXPECT_EQ("the engine cannot be asked", drained());
  t.mover->issue(t.move(1, Tier::host, Tier::disk, 1, 1, {}));  // ends although it is never started
  t.mover->issue(t.move(0, Tier::disk, Tier::host, 0, 2, {}));
  EXPECT_EQ("the engine cannot be asked", drained());
  for (const auto lane : {Lane::write, Lane::read})
    EXPECT_EQ("the engine cannot be asked", error_of([&] { static_cast<void>(t.lanes.of(lane).reached(1)); })) << name_of(lane);
  t.mover.reset();
  unused.get_future().wait();
}

class MoverTest : public testing::TestWithParam<std::tuple<const char*, const char*>> {};  // parameters: an engine and a device

// Computing checksums of many chunks in a row would delay the next requests while the disk is idle.
TEST(DiskLanes, SumOneChunkOfALaneBetweenTwoPolls) {
  Terraces t("threads");
  AtOnce engine(*t.engine, t.lanes);
  t.make_mover(engine);
  for (const auto& [from, to, begins] : {std::tuple{Tier::host, Tier::disk, 1U}, {Tier::disk, Tier::host, 2U}}) {
    for (std::uint32_t c = 0; c < kChunks; ++c) t.mover->issue(t.move(c, from, to, c, c, Clock::after(Lane::compute, begins)));
    t.lanes.of(Lane::compute).advance(begins);  // now all of them may begin
    t.mover->drain();
  }
  t.mover.reset();
  engine.count();
  EXPECT_EQ(engine.most_writes, 1);
  EXPECT_EQ(engine.most_reads, 1);
}

// Decides random legal moves as residency would: every place has a clock of the operations that touched it, and a move waits
// for the clocks of its two places. The oracle moves bytes immediately. Between moves, the compute lane writes to places from a
// thread that waits for their clocks.
TEST_P(MoverTest, RandomMovesCarryTheOraclesBytes) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Terraces t(std::get<0>(GetParam()), {}, seed, std::get<1>(GetParam()));
    if (!t.mover) GTEST_SKIP() << "no such engine here";
    std::mt19937_64 random(seed);
    struct Slot {
      std::uint64_t content = 0;  // seed of its bytes; 0: no content
      std::uint32_t chunk = 0;
      Clock touched;
    };
    PerTier<std::array<Slot, kChunks>> slots{};
    struct Fill {
      Clock after;
      std::uint64_t slot = 0, content = 0;
    };
    std::vector<Fill> fills;
    std::vector<Move> moves;
    std::uint64_t contents = 0;
    for (int step = 0; step < 300; ++step) {
      const auto a = random() % kChunks, b = random() % kChunks;
      if (random() % 4 == 0) {  // the compute lane writes new content on the device
        Slot& slot = slots[Tier::device][a];
        fills.push_back({slot.touched, a, ++contents});
        slot = {contents, static_cast<std::uint32_t>(random() % kChunks), Clock::after(Lane::compute, fills.size())};
        continue;
      }
      const std::array<std::pair<Tier, Tier>, 4> edges{
          {{Tier::device, Tier::host}, {Tier::host, Tier::device}, {Tier::host, Tier::disk}, {Tier::disk, Tier::host}}};
      const auto [from, to] = edges[random() % 4];
      // On disk each chunk has its own place, as with residency.
      Slot& source = slots[from][a];
      if (source.content == 0) continue;
      const auto to_slot = to == Tier::disk ? source.chunk : b;
      Slot& target = slots[to][to_slot];
      Clock after = source.touched;
      after.merge(target.touched);
      const Move move = t.move(source.chunk, from, to, a, to_slot, after);
      const Clock done = Clock::after(lane_of(from, to), move.sequence);
      source.touched.merge(done);
      target = {source.content, source.chunk, done};
      moves.push_back(move);
    }
    std::thread compute([&] {
      for (std::size_t i = 0; i < fills.size(); ++i) {
        t.lanes.wait(fills[i].after);
        test::fill_random(t.device_memory.subspan(fills[i].slot * kChunkBytes, kChunkBytes), fills[i].content);
        t.lanes.of(Lane::compute).advance(i + 1);
      }
    });
    memory::Traffic expected;
    for (const auto& move : moves) {
      t.mover->issue(move);
      expected.add(move);
    }
    compute.join();
    t.mover->drain();
    EXPECT_EQ(expected, t.mover->moved());
    EXPECT_EQ(moves.size(), t.trace.spans().size());
    for (const Tier tier : {Tier::device, Tier::host}) {
      const auto& memory = tier == Tier::device ? t.device_memory : t.host;
      for (std::uint64_t s = 0; s < kChunks; ++s) {
        if (slots[tier][s].content == 0) continue;
        std::vector<std::byte> want(kChunkBytes);
        test::fill_random(want, slots[tier][s].content);
        ASSERT_EQ(0, std::memcmp(want.data(), memory.data() + s * kChunkBytes, kChunkBytes)) << name_of(tier) << " slot " << s;
      }
    }
    if (!moves.empty()) {
      offload::Mover::Flight flight;
      const auto& last = moves.back();
      ASSERT_TRUE(t.mover->find(lane_of(last.from, last.to), last.sequence, flight));
      EXPECT_LE(flight.issued_ns, flight.ended_ns);
      EXPECT_LE(flight.started_ns, flight.ended_ns);
    }
  }
}

TEST_P(MoverTest, AFlightTellsWhatItWaitedFor) {
  Terraces t(std::get<0>(GetParam()), {}, 1, std::get<1>(GetParam()));
  if (!t.mover) GTEST_SKIP() << "no such engine here";
  t.mover->issue(t.move(0, Tier::device, Tier::host, 0, 0, Clock::after(Lane::compute, 1)));
  t.mover->issue(t.move(0, Tier::host, Tier::disk, 0, 0, Clock::after(Lane::download, 1)));
  EXPECT_FALSE(t.lanes.of(Lane::write).reached(1));
  t.lanes.of(Lane::compute).advance(1);
  t.mover->drain();
  offload::Mover::Flight flight;
  ASSERT_TRUE(t.mover->find(Lane::download, 1, flight));
  EXPECT_EQ(Lane::compute, flight.waited_for);
  ASSERT_TRUE(t.mover->find(Lane::write, 1, flight));
  EXPECT_EQ(Lane::download, flight.waited_for);
  EXPECT_FALSE(t.mover->find(Lane::write, 2, flight));
}

INSTANTIATE_TEST_SUITE_P(Engines, MoverTest,
                         testing::Combine(testing::Values("uring", "threads", "simulated"),
                                          testing::Values("cpu", "fake_cuda")),
                         [](const auto& of) { return fmt::format("{}_{}", std::get<0>(of.param), std::get<1>(of.param)); });

using What = SimulatedFault::What;

// Chunk 0 is written (requests 0 to 5), read back (6 to 11) and uploaded; further moves wait for it.
struct Chain {
  explicit Chain(std::vector<SimulatedFault> faults) : t("simulated", std::move(faults)) {
    test::fill_random(t.host, 4);
    t.mover->issue(t.move(0, Tier::host, Tier::disk, 0, 0, {}));
    t.mover->issue(t.move(0, Tier::disk, Tier::host, 0, 1, Clock::after(Lane::write, 1)));
    t.mover->issue(t.move(0, Tier::host, Tier::device, 1, 0, Clock::after(Lane::read, 1)));
    t.mover->issue(t.move(0, Tier::device, Tier::host, 0, 2, Clock::after(Lane::upload, 1)));
    t.mover->issue(t.move(1, Tier::host, Tier::disk, 2, 1, Clock::after(Lane::download, 1)));
    t.mover->issue(t.move(0, Tier::disk, Tier::host, 0, 3, Clock::after(Lane::compute, 1)));  // compute never reaches 1
  }
  Terraces t;
};

TEST(MoverErrors, AFailedReadPoisonsItsLaneAndWhatWaitsForIt) {
  Chain chain({{8, What::error, EIO}});
  const auto what = error_of([&] { chain.t.mover->drain(); });
  EXPECT_THAT(what, HasSubstr("chunk 0 (master weight of layers.0) could not be read"));
  EXPECT_THAT(what, HasSubstr("disk tier, file " + (chain.t.directory.path() / "a/store/data").string() + ", offset 0"));
  EXPECT_THAT(what, HasSubstr(fmt::format("{} bytes: Input/output error (errno 5)", kChunkBytes)));
  for (const Lane lane : {Lane::read, Lane::upload, Lane::download}) {
    EXPECT_EQ(what, error_of([&] { chain.t.lanes.of(lane).wait(1); })) << name_of(lane);
  }
  EXPECT_NO_THROW(chain.t.lanes.of(Lane::write).wait(1));  // completed moves stay completed
  EXPECT_EQ(what, error_of([&] { chain.t.lanes.of(Lane::write).wait(2); }));
  EXPECT_EQ(1U, chain.t.mover->moved().writes);
  EXPECT_EQ(0U, chain.t.mover->moved().reads);
  // Moves issued later end with the same error.
  chain.t.mover->issue(chain.t.move(0, Tier::disk, Tier::host, 0, 3, {}));
  chain.t.mover->issue(chain.t.move(0, Tier::host, Tier::device, 0, 3, {}));
  EXPECT_EQ(what, error_of([&] { chain.t.mover->drain(); }));
}

TEST(MoverErrors, AFailedWriteNamesThePlaceAndKeepsItsSource) {
  Chain chain({{3, What::error, ENOSPC}});
  std::vector<std::byte> source(kDataBytes);
  test::fill_random(source, 4);
  const auto what = error_of([&] { chain.t.mover->drain(); });
  EXPECT_THAT(what, HasSubstr("chunk 0 (master weight of layers.0) could not be written"));
  EXPECT_THAT(what, HasSubstr("No space left on device (errno 28)"));
  EXPECT_THAT(what, HasSubstr("the previous commit is intact"));
  EXPECT_THAT(what, HasSubstr("`resume` auto"));
  const auto error = test::thrown_by([&] { chain.t.mover->drain(); });
  EXPECT_EQ(std::errc::no_space_on_device, error.code());
  EXPECT_EQ((chain.t.directory.path() / "a/store/data").string(), error.path());
  EXPECT_EQ("chunk 0", error.object());
  EXPECT_EQ(0, std::memcmp(source.data(), chain.t.host.data(), kChunkBytes));
}

TEST(MoverErrors, SilentDamageIsFoundByTheChecksum) {
  for (const What fault : {What::flip_bit, What::stale, What::misdirected, What::torn}) {
    for (const std::uint64_t request : {2U, 8U}) {
      if (fault == What::torn && kPageBytes / 2 == 0) continue;
      Chain chain({{request, fault, 0}});
      const auto what = error_of([&] { chain.t.mover->drain(); });
      EXPECT_THAT(what, HasSubstr("chunk 0 (master weight of layers.0) is not what was written"))
          << "fault " << static_cast<int>(fault) << " at request " << request;
    }
  }
}

TEST(MoverErrors, DestructionAfterAFailureDoesNotHang) {
  for (const std::uint64_t request : {0U, 5U, 6U, 11U}) Chain chain({{request, What::error, EIO}});
}

TEST(MoverErrors, TheCauseIsToldThoughAnotherLaneIsStillBehind) {
  Terraces t("simulated");
  Clock after = Clock::after(Lane::compute, 1);
  after[Lane::download] = 1;
  t.mover->issue(t.move(0, Tier::host, Tier::disk, 0, 0, after));
  t.lanes.of(Lane::download).fail(std::make_exception_ptr(Error("the device is gone")));
  EXPECT_EQ("the device is gone", error_of([&] { t.lanes.of(Lane::write).wait(1); }));
}

TEST(MoverErrors, AProducerThatFailsEndsTheMovesThatWaitForIt) {
  Terraces t("simulated");
  t.mover->issue(t.move(0, Tier::host, Tier::disk, 0, 0, Clock::after(Lane::compute, 1)));
  t.mover->issue(t.move(0, Tier::host, Tier::device, 0, 0, Clock::after(Lane::update, 3)));
  const auto cause = std::make_exception_ptr(Error("the loss is not finite"));
  t.lanes.of(Lane::compute).fail(cause);
  t.lanes.of(Lane::update).fail(cause);
  EXPECT_EQ("the loss is not finite", error_of([&] { t.mover->drain(); }));
  EXPECT_EQ("the loss is not finite", error_of([&] { t.lanes.of(Lane::upload).wait(1); }));
}

}  // namespace
}  // namespace terrace
