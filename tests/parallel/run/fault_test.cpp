// An error anywhere in a run ends it with an exception that names chunk, tier, file, offset and cause; nothing hangs, nothing
// is left behind, and the run resumes from its last commit bit for bit.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <random>

#include <fmt/format.h>

#include <terrace/tests/doubles/simulated_disk.h>
#include <terrace/tests/support/environment.h>
#include <terrace/tests/support/folder_test.h>
#include <terrace/tests/support/open_descriptors.h>
#include <terrace/tests/support/thrown_error.h>
#include <terrace/tests/support/toy_run.h>

namespace terrace {
namespace {

using test::error_of;
using test::open_descriptors;
using testing::HasSubstr;
using testing::StartsWith;
using What = SimulatedFault::What;
using Op = IoRequest::Op;

constexpr std::uint64_t kSteps = 4, kCommitted = 2;
// Errors injected into each kind of run and each operation; TERRACE_FAULT_POINTS in the environment overrides it.
std::uint64_t points() { return test::number_from_environment("TERRACE_FAULT_POINTS", 12); }

class FaultRun : public test::FolderTest {
 protected:
  // On a disk that outlives its engines as a real one does.
  toy::RunOptions options(bool larger) const {
    auto o = toy::options_on_disk(kSteps, larger);
    if (larger) o.threads = 2;
    o.store = folder_;
    return o;
  }
  auto simulated(std::uint64_t seed, std::vector<SimulatedFault> faults) {
    return [this, seed, faults = std::move(faults)](const IoOptions& io) {
      if (!disk_) {
        struct stat data {};
        EXPECT_EQ(0, ::fstat(io.files.at(0), &data));
        disk_ = make_simulated_disk(1, static_cast<std::uint64_t>(data.st_size));
      }
      return make_simulated_engine(disk_, seed, faults);
    };
  }

  static void train(std::optional<toy::Training>& t, const toy::RunOptions& o, std::vector<double>* losses = nullptr) {
    t.emplace(o);
    while (t->steps_done() < kSteps) {
      const auto loss = t->step().back().result.loss_sum;
      if (losses) losses->push_back(loss);
      if (t->steps_done() == kCommitted) t->trainer->commit();
    }
    t->trainer->commit();
  }

  void fails_and_goes_on(bool larger, Op op);

  std::shared_ptr<SimulatedDisk> disk_;
};

// How one fault must be reported to the user.
struct Expected {
  SimulatedFault::What what;
  int error_number;
  std::string text;
};
std::vector<Expected> faults_of(Op op) {
  if (op == Op::write) {
    return {{What::error, EIO, "Input/output error (errno 5)"},
            {What::error, EDQUOT, "Disk quota exceeded (errno 122)"},
            {What::zero_length, 0, "No space left on device (errno 28)"}};
  }
  return {{What::error, EIO, "Input/output error (errno 5)"},
          {What::zero_length, 0, "No data available (errno 61)"},
          {What::flip_bit, 0, "checksum"}};
}

void FaultRun::fails_and_goes_on(bool larger, Op op) {
  const bool reading = op == Op::read;
  auto o = options(larger);

  // The run without faults. The number of reads or writes at the commit and at the end limits where a fault is placed.
  std::vector<double> losses;
  std::uint64_t hash = 0, before_commit = 0, in_all = 0;
  {
    o.make_io = simulated(1, {});
    toy::Training t(o);
    ASSERT_TRUE(t.planned.fits) << t.planned.refusal.why;
    const auto ended = [&] { return reading ? t.engine->moved().reads : t.engine->moved().writes; };
    for (std::uint64_t s = 1; s <= kSteps; ++s) {
      losses.push_back(t.step().back().result.loss_sum);
      if (s != kCommitted) continue;
      t.trainer->commit();
      before_commit = ended();
    }
    t.trainer->commit();
    in_all = ended();
    hash = t.hash();
  }
  ASSERT_GT(before_commit, 20U);  // one request a move: chunks are far smaller than a request may be
  ASSERT_GT(in_all, before_commit + 20);

  const auto descriptors = open_descriptors();
  for (std::uint64_t seed = 1; seed <= points(); ++seed) {
    std::mt19937_64 random(seed);
    const bool committed = seed % 2 == 0;
    const auto at = committed ? before_commit + random() % (in_all - before_commit) : random() % before_commit;
    const auto expected = faults_of(op)[random() % 3];
    SCOPED_TRACE(fmt::format("seed {}: fault {} ({}) at {} {} of {}, {} before the commit", seed,
                             static_cast<int>(expected.what), expected.error_number, reading ? "read" : "write", at, in_all,
                             before_commit));
    std::filesystem::remove_all(folder_ / "store");
    disk_.reset();
    o.resume = false;
    o.make_io = simulated(seed, {{at, expected.what, expected.error_number, op}});
    {
      std::optional<toy::Training> t;
      const auto what = error_of([&] { train(t, o); });
      EXPECT_THAT(what, StartsWith("chunk "));
      EXPECT_THAT(what, HasSubstr(expected.what == What::flip_bit ? ") is not what was written"
                                  : reading                       ? ") could not be read"
                                                                  : ") could not be written"));
      EXPECT_THAT(what, HasSubstr("disk tier, file " + (folder_ / "store" / "data").string() + ", offset "));
      EXPECT_THAT(what, HasSubstr(" bytes: " + expected.text));
      if (t) {  // otherwise its first fill failed already
        EXPECT_EQ(what, error_of([&] { t->step(); }));
        EXPECT_EQ(what, error_of([&] { t->trainer->commit(); }));
      }
    }
    EXPECT_EQ(descriptors, open_descriptors());
    ASSERT_EQ(committed, ChunkStore::has_commit({.paths = {folder_}}));
    if (!committed) continue;

    o.resume = true;
    o.make_io = simulated(seed + 1, {{random() % 20, What::short_transfer}});
    std::vector<double> rest;
    std::optional<toy::Training> t;
    train(t, o, &rest);
    EXPECT_EQ(std::vector<double>(losses.begin() + kCommitted, losses.end()), rest);
    EXPECT_EQ(hash, t->hash());
  }
}

TEST_F(FaultRun, AFailedReadEndsTheRunWhichGoesOnFromItsCommit) { fails_and_goes_on(false, Op::read); }
TEST_F(FaultRun, AFailedWriteEndsTheRunWhichGoesOnFromItsCommit) { fails_and_goes_on(false, Op::write); }
TEST_F(FaultRun, AFailedReadOfALargerRun) { fails_and_goes_on(true, Op::read); }
TEST_F(FaultRun, AFailedWriteOfALargerRun) { fails_and_goes_on(true, Op::write); }

// The computation fails while chunks move: everything that waits for it must end.
TEST_F(FaultRun, AnErrorInTheComputationEndsTheRun) {
  auto o = options(true);
  for (const int call : {0, 1, 7}) {
    SCOPED_TRACE(call);
    o.make_io = simulated(1, {});
    toy::Training t(o);
    t.step();
    int calls = 0;
    const auto visit = [&] {
      t.engine->visit([&](const ParamSpec&, std::uint64_t, TensorView) {
        if (calls++ == call) throw Error("the visitor is tired");
      });
    };
    EXPECT_EQ("the visitor is tired", error_of(visit));
    EXPECT_EQ("the visitor is tired", error_of([&] { t.step(); }));
    EXPECT_EQ("the visitor is tired", error_of([&] { t.trainer->commit(); }));
    EXPECT_EQ(call + 1, calls);
  }
}

// A CPU device with other memory.
class DeviceOver final : public Device {
 public:
  DeviceOver(Device& inner, MemoryResource& memory) : inner_(inner), memory_(memory) {}
  std::string name() const override { return inner_.name(); }
  std::unique_ptr<Stream> make_stream(std::string name) override { return inner_.make_stream(std::move(name)); }
  MemoryResource& memory() override { return memory_; }
  std::shared_ptr<MemoryResource> host_memory() override { return {std::shared_ptr<void>(), &memory_}; }  // outlives this
  bool computes_on_host() const override { return inner_.computes_on_host(); }
  Math& math() override { return inner_.math(); }
  ThreadPool& pool() override { return inner_.pool(); }

 private:
  Device& inner_;
  MemoryResource& memory_;
};

TEST_F(FaultRun, AnEngineThatCannotBeBuiltLeavesNothingBehind) {
  const auto o = options(false);
  ThreadPool pool(1);
  const auto cpu = make_cpu_device(pool);
  const auto counted = make_statistics_memory(cpu->memory());
  const auto faulty = make_faulty_memory(*counted, 1);
  const auto model = toy::make_model(o.sizes);
  const auto planned = plan(model, toy::request_of(o), MachineProfile{});
  const auto optimizer = make_optimizer("adamw", {});
  DeviceOver device(*cpu, *faulty);
  Engine::Options wanted{
      .device = &device, .store = {.paths = {folder_}, .durable = false}, .optimizer = optimizer.get(), .make_io = {}};

  const auto descriptors = open_descriptors();
  EXPECT_THAT(error_of([&] { const Engine engine(model, planned, wanted); }), StartsWith("injected fault at allocation 1"));
  wanted.make_io = [](const IoOptions&) -> std::unique_ptr<IoEngine> { throw Error("no engine"); };
  EXPECT_EQ("no engine", error_of([&] { const Engine engine(model, planned, wanted); }));
  EXPECT_EQ(descriptors, open_descriptors());
  EXPECT_EQ(0U, counted->statistics().now_bytes);

  wanted.make_io = make_io_engine;  // failed engines do not keep the store locked
  EXPECT_EQ("", error_of([&] { Engine(model, planned, wanted).fill(toy::initialise); }));
  EXPECT_EQ(descriptors, open_descriptors());
  EXPECT_EQ(0U, counted->statistics().now_bytes);
  EXPECT_GT(counted->statistics().peak_bytes, 0U);
}

}  // namespace
}  // namespace terrace
