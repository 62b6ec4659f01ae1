// The whole engine on the CUDA device, over a fake CUDA runtime and with the CPU's math: for every budget, order, depth and
// place of the updates the bits are the CPU device's, what moves is what was planned, and CUDA is not misused. An error of any
// CUDA call ends a run with an exception that names the call; nothing hangs or leaks.
#include <gmock/gmock.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <regex>
#include <set>

#include <terrace/tests/support/environment.h>
#include <terrace/tests/support/folder_test.h>
#include <terrace/tests/support/gpu/emulated_updates.h>
#include <terrace/tests/support/gpu/fake_profiler.h>
#include <terrace/tests/support/passed_on.h>
#include <terrace/tests/support/test_device.h>
#include <terrace/tests/support/told_uses.h>
#include <terrace/tests/support/toy_run.h>

#include <terrace/tests/parallel/comm/fake_gpus.h>
#include <terrace/tests/parallel/pipeline/pipeline_run.h>
#include <terrace/tests/parallel/zero/data_parallel_run.h>

namespace terrace {
namespace {

using test::FakeCuda;

class CudaEngine : public test::FolderTest {
 protected:
  toy::RunOptions options(DType dtype) const {
    toy::RunOptions o;
    o.sizes.dtype = dtype;
    o.store = folder_ / "store";
    return o;
  }
  static void expect_bits(const toy::RunResult& expected, const toy::RunResult& r) {
    ASSERT_TRUE(r.planned.fits) << r.planned.refusal.why;
    EXPECT_EQ(expected.losses, r.losses);
    EXPECT_EQ(expected.norms, r.norms);
    EXPECT_EQ(expected.hash, r.hash);
  }
  // `jitter_seed` delays every operation of the fake GPU by a little.
  static toy::RunOptions on_fake(toy::RunOptions o, const std::shared_ptr<FakeCuda>& fake) {
    o.profile.device = "a fake GPU";
    o.make_device = [fake](ThreadPool& pool) { return on_runtime(fake, fake, pool); };
    o.make_optimizer = [name = o.make_optimizer()->name(), fake] {
      return told(test::make_launched_optimizer(name, {}, fake), fake);
    };
    o.make_io = [fake](const IoOptions& io) { return std::make_unique<test::ToldIo>(make_io_engine(io), fake); };
    return o;
  }
  static std::unique_ptr<Optimizer> told(std::unique_ptr<Optimizer> optimizer, const std::shared_ptr<FakeCuda>& fake) {
    return std::make_unique<test::ToldOptimizer>(std::move(optimizer), fake);
  }
  static std::unique_ptr<Device> on_runtime(std::shared_ptr<cuda::CudaRuntime> runtime, const std::shared_ptr<FakeCuda>& fake,
                                            ThreadPool& pool) {
    return cuda::make_device_on(std::move(runtime), pool, {},
                                [&](cuda::CudaRuntime&, Device& device) {
                                  return std::make_unique<test::LaunchedMath>(make_cpu_math(device.pool()), fake);
                                },
                                {.copy_bytes = 64 * kKiB, .register_bytes = kMiB});
  }
  static std::shared_ptr<FakeCuda> make_fake(std::uint64_t jitter_seed) {
    auto fake = test::strict_fake();
    fake.jitter_seed = jitter_seed;
    return std::make_shared<FakeCuda>(fake);
  }
  // An operation runs only when something waits for it, except for some that the seed chooses.
  static std::shared_ptr<FakeCuda> make_lazy_fake(std::uint64_t lazy_seed) {
    auto fake = test::strict_fake();
    fake.lazy_seed = lazy_seed;
    return std::make_shared<FakeCuda>(fake);
  }
};

TEST_F(CudaEngine, EveryBudgetOrderAndPlaceOfTheUpdatesGivesTheCpusBits) {
  for (const auto dtype : {DType::fp32, DType::bf16}) {
    const auto reference = toy::run(options(dtype));
    ASSERT_TRUE(reference.planned.fits) << reference.planned.refusal.why;
    const auto smallest = reference.planned.smallest_bytes[Tier::device];
    const struct {
      const char* name;
      Budget budget;
    } cases[] = {{"resident", {kUnlimited, kUnlimited, 0}},
                 {"host holds the rest", {smallest + 512 * kKiB, kUnlimited, 0}},
                 {"disk holds the rest", {smallest + 512 * kKiB, 512 * kKiB, 256 * kMiB}}};
    std::uint64_t tried = 0;
    for (const auto& c : cases)
      for (const auto& update : std::vector<std::optional<UpdatePlace>>{{}, Tier::host, Tier::device, UpdatePlace(0.5)})
        for (const std::uint32_t depth : {0U, 4U}) {
          SCOPED_TRACE(testing::Message() << name_of(dtype) << ", " << c.name << ", depth " << depth << ", update "
                                          << (update ? to_text(*update) : "auto")
                                          << (tried / 2 % 2 == 0 ? ", lazy seed " : ", jitter seed ") << tried + 1);
          const auto fake = tried / 2 % 2 == 0 ? make_lazy_fake(tried + 1) : make_fake(tried + 1);
          auto o = on_fake(options(dtype), fake);
          o.budget = c.budget;
          o.disk_tier = c.budget.disk != 0;
          o.update = update;
          o.depth = depth;
          o.order = tried % 2 == 0 ? Order::horizontal : Order::vertical;
          o.recompute = tried % 3 == 0;
          o.offload = tried % 4 < 2;
          o.threads = 1 + static_cast<int>(tried % 2);
          const auto r = toy::run(o);
          expect_bits(reference, r);
          ASSERT_GE(r.planned.step_traffic.size(), r.traffic.size());
          for (std::size_t i = 0; i < r.traffic.size(); ++i) EXPECT_EQ(r.traffic[i], r.planned.step_traffic[i]) << i;
          EXPECT_EQ(o.disk_tier, r.traffic.back().reads > 0 && r.traffic.back().writes > 0);
          EXPECT_LE(r.peak[Tier::device], o.budget.device);
          EXPECT_LE(r.peak[Tier::host], o.budget.host);
          EXPECT_EQ("", fake->leaks());
          ++tried;
        }
    EXPECT_EQ(tried, 24U);
  }
}

// Updates in the backward that are kept, taken back and applied again, on both sides of the link, without a race.
TEST_F(CudaEngine, EarlyUpdatesOnEitherSideGiveTheCpusBits) {
  std::uint64_t tried = 0;
  for (const auto dtype : {DType::fp32, DType::bf16}) {
    auto clipping = options(dtype);
    clipping.steps = 9;
    auto norms = toy::run(clipping).norms;
    std::ranges::sort(norms);
    clipping.greatest_norm = norms[norms.size() / 2];
    const auto reference = toy::run(clipping);
    const auto smallest = reference.planned.smallest_bytes[Tier::device];
    for (const Budget& budget : {Budget{kUnlimited, kUnlimited, 0}, Budget{smallest + 512 * kKiB, kUnlimited, 0},
                                 Budget{smallest + 512 * kKiB, 768 * kKiB, 256 * kMiB}})
      for (const auto& update : {UpdatePlace(Tier::host), UpdatePlace(Tier::device), UpdatePlace(0.5)})
        for (const std::uint32_t early : {2U, kAllLayers}) {
          ++tried;
          SCOPED_TRACE(testing::Message() << name_of(dtype) << ", " << early << " layers, update " << to_text(update)
                                          << (tried % 2 == 0 ? ", lazy seed " : ", jitter seed ") << tried);
          const auto fake = tried % 2 == 0 ? make_lazy_fake(tried) : make_fake(tried);
          auto o = on_fake(clipping, fake);
          Trace trace;
          o.trace = &trace;
          o.budget = budget;
          o.disk_tier = budget.disk != 0;
          o.update = update;
          o.early = early;
          const auto r = toy::run(o);
          expect_bits(reference, r);
          const auto spans = trace.spans();
          const auto ran = [&](const char* op) {
            return std::ranges::any_of(spans, [&](const TraceSpan& span) { return span.name.starts_with(op); });
          };
          EXPECT_TRUE(ran("early ") && ran("restore "));
          EXPECT_EQ("", fake->leaks());
        }
  }
}

// Otherwise kernels would read tokens over the link four bytes at a time and write squares eight bytes at a time, beside the
// copies of chunks.
TEST_F(CudaEngine, TokensAndSquaresCrossTheLinkInOneCopyEach) {
  std::mutex mutex;
  std::set<std::string> on_host;
  std::weak_ptr<FakeCuda> device;
  auto strict = test::strict_fake();
  strict.launched = [&](const FakeCuda::Touched& kernel) {
    for (const auto& range : kernel.ranges) {
      if (device.lock()->is_device_memory(range.begin)) continue;
      const std::lock_guard lock(mutex);
      on_host.insert(kernel.name + (range.writes ? " writes " : " reads ") + std::to_string(range.end - range.begin));
    }
  };
  const auto fake = std::make_shared<FakeCuda>(strict);
  device = fake;
  auto o = on_fake(options(DType::bf16), fake);
  const auto tokens = static_cast<std::size_t>(o.shape.batch.tokens() * o.shape.micro_batches);
  const auto r = toy::run(o);
  expect_bits(toy::run(options(DType::bf16)), r);
  EXPECT_THAT(on_host, testing::ElementsAre("sum writes 8")) << "the loss alone";
  const auto copies = fake->records(FakeCuda::Call::copy_async);
  const auto of_ids = std::ranges::count_if(copies, [&](const auto& copy) { return copy.bytes == 2 * tokens * 4; });
  EXPECT_EQ(of_ids, static_cast<std::ptrdiff_t>(o.steps)) << "tokens and targets of all micro-batches";
}

// A CUDA runtime that reports some events of one stream (by the order of creation) as over too early: kForgets waits for them,
// by the host or by other streams, from number `first` on.
class Forgetful final : public test::PassedOn {
 public:
  static constexpr int kForgets = 10;
  Forgetful(std::shared_ptr<FakeCuda> fake, std::size_t stream, int first)
      : PassedOn(std::move(fake)), forgetful_(stream), first_(first) {}
  [[nodiscard]] std::size_t streams() const { return streams_.size(); }

  int synchronize_event(cuda::CudaEventHandle event) override {
    return forgets(event) ? cuda::kCudaSuccess : PassedOn::synchronize_event(event);
  }
  int stream_wait_event(cuda::CudaStreamHandle stream, cuda::CudaEventHandle event) override {
    return forgets(event) ? cuda::kCudaSuccess : PassedOn::stream_wait_event(stream, event);
  }
  int record_event(cuda::CudaEventHandle event, cuda::CudaStreamHandle stream) override {
    {
      const std::lock_guard lock(mutex_);
      recorded_on_[event] = stream;
    }
    return PassedOn::record_event(event, stream);
  }
  int create_stream(cuda::CudaStreamHandle* stream) override {
    const int code = PassedOn::create_stream(stream);
    const std::lock_guard lock(mutex_);
    streams_.push_back(*stream);
    return code;
  }

 private:
  bool forgets(cuda::CudaEventHandle event) {
    const std::lock_guard lock(mutex_);
    if (forgetful_ >= streams_.size() || recorded_on_[event] != streams_[forgetful_]) return false;
    const int number = waits_++ - first_;
    return number >= 0 && number < kForgets;
  }

  const std::size_t forgetful_;
  const int first_;
  int waits_ = 0;
  std::mutex mutex_;
  std::vector<cuda::CudaStreamHandle> streams_;
  std::map<cuda::CudaEventHandle, cuda::CudaStreamHandle> recorded_on_;
};

// The kind of race that a complaint reports, the later operation first: "a copy writes what a kernel reads".
std::string kind_of_race(const std::string& complaint) {
  static const std::regex race("a race: (.*) (reads|writes) what (.*) (reads|writes) on .*");
  std::smatch found;
  if (!std::regex_match(complaint, found, race)) return "";
  const auto what = [](const std::string& name) -> std::string {
    if (name.starts_with("cudaMemcpyAsync")) return "a copy";
    if (name == "an update by adamw") return "an update on the device";
    return name.starts_with("an update") || name.starts_with("a read") || name.starts_with("a write") ? name : "a kernel";
  };
  return what(found[1]) + " " + found[2].str() + " what " + what(found[3]) + " " + found[4].str();
}

// Without the wait for an event, two operations have no order: one reads before the bytes have come, or a frame is used again
// too early. The fake finds that, whatever values the run computes.
class CudaEngineRaces : public CudaEngine {
 protected:
  void SetUp() override {
    o_.steps = 3;
    o_.depth = 4;
    const auto smallest = toy::run(o_).planned.smallest_bytes[Tier::device];
    o_.disk_tier = true;
    o_.budget = {smallest + 512 * kKiB, 256 * kKiB, 256 * kMiB};
  }
  // The faults of a run: a stream whose events are forgotten, and uses by the host that never end.
  struct Planted {
    std::size_t stream = kNone;
    int first = 0, endless_updates = 0, endless_reads = 0;
  };
  static constexpr std::size_t kNone = 1000;
  std::vector<std::string> complaints(Tier update, const Planted& planted) {
    test::FakeCuda::Options not_strict;
    not_strict.lazy_seed = 5;
    not_strict.stops_at_a_race = planted.stream != kNone;
    const auto fake = std::make_shared<FakeCuda>(not_strict);
    const auto runtime = std::make_shared<Forgetful>(fake, planted.stream, planted.first);
    auto o = on_fake(o_, fake);
    o.update = update;
    o.make_device = [&](ThreadPool& pool) { return on_runtime(runtime, fake, pool); };
    o.make_optimizer = [&] {
      return std::make_unique<test::ToldOptimizer>(test::make_launched_optimizer("adamw", {}, fake), fake,
                                                   planted.endless_updates);
    };
    o.make_io = [&](const IoOptions& io) {
      return std::make_unique<test::ToldIo>(make_io_engine(io), fake, planted.endless_reads);
    };
    try {
      static_cast<void>(toy::run(o));
    } catch (const std::exception&) {  // the device's error
    }
    streams_ = runtime->streams();
    return fake->complaints();
  }
  std::set<std::string> kinds(Tier update, const Planted& planted) {
    std::set<std::string> all;
    for (const auto& complaint : complaints(update, planted)) all.insert(kind_of_race(complaint));
    return all;
  }

  toy::RunOptions o_ = options(DType::fp32);
  std::size_t streams_ = 0;
};

TEST_F(CudaEngineRaces, AreNotThere) {
  for (const auto update : {Tier::host, Tier::device}) EXPECT_THAT(complaints(update, {}), testing::IsEmpty());
}

TEST_F(CudaEngineRaces, AnEventThatIsNotWaitedForIsFound) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer finds what the host does too early, and ends the program";
  std::set<std::string> wanted{"a kernel reads what a copy writes",  // before the bytes have come
                               "a copy reads what a kernel writes",
                               "a copy writes what a kernel writes",  // a frame that is used again too early
                               "an update on the device writes what a copy writes",
                               "a copy reads what an update on the device writes",
                               "an update on the host reads what a copy writes",
                               "a write to the disk reads what a copy writes"};
  complaints(Tier::host, {});
  ASSERT_GE(streams_, 3U) << "of computing, of copies up and down";
  for (int first = 0; first < 200 && !wanted.empty(); first += 7)
    for (std::size_t stream = 0; stream < streams_; ++stream)
      for (const auto update : {Tier::host, Tier::device})
        for (const auto& kind : kinds(update, {.stream = stream, .first = first})) wanted.erase(kind);
  EXPECT_THAT(wanted, testing::IsEmpty()) << "kinds that were not found";
}

TEST_F(CudaEngineRaces, AnUpdateOrReadOfTheHostThatIsNotWaitedForIsFound) {
  EXPECT_THAT(kinds(Tier::host, {.endless_updates = 3}),
              testing::Contains("a write to the disk reads what an update on the host writes"));
  EXPECT_THAT(kinds(Tier::host, {.endless_reads = 3}), testing::Contains("a copy reads what a read from the disk writes"));
}

// A CUDA runtime that registers no host memory: all copies are then of pageable memory, for which CUDA makes the host wait.
class Unregistering final : public test::PassedOn {
 public:
  using PassedOn::PassedOn;
  int register_host(void* /*data*/, std::size_t /*bytes*/) override { return cuda::kCudaSuccess; }
  int unregister_host(void* /*data*/) override { return cuda::kCudaSuccess; }
};

TEST_F(CudaEngine, ACopyFromPageableMemoryIsFound) {
  auto o = options(DType::fp32);
  o.steps = 2;
  const auto reference = toy::run(o);
  o.budget = {reference.planned.smallest_bytes[Tier::device] + 512 * kKiB, kUnlimited, 0};
  const auto fake = std::make_shared<FakeCuda>();
  auto on_device = on_fake(o, fake);
  on_device.make_device = [&](ThreadPool& pool) { return on_runtime(std::make_shared<Unregistering>(fake), fake, pool); };
  expect_bits(reference, toy::run(on_device));
  EXPECT_THAT(fake->complaints(), testing::Not(testing::IsEmpty()));
  EXPECT_THAT(fake->complaints(), testing::Each(testing::HasSubstr("memory that is not registered")));
}

// Updates on the device run as its kernels here, and not as host work in its streams.
TEST_F(CudaEngine, UpdatesByItsKernelsGiveTheCpusBits) {
  for (const auto dtype : {DType::fp32, DType::bf16}) {
    auto o = options(dtype);
    o.steps = 3;
    const auto reference = toy::run(o);
    for (const auto& [whole, place] :
         std::vector<std::pair<bool, UpdatePlace>>{{true, Tier::device}, {false, Tier::device}, {false, UpdatePlace(0.4)}}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << (whole ? ", resident" : ", disk holds the rest") << ", updates on "
                                      << to_text(place));
      const auto fake = make_fake(7);
      std::atomic<int> launched = 0;
      auto on_device = on_fake(o, fake);
      on_device.update = place;
      if (!whole) {
        on_device.budget = {reference.planned.smallest_bytes[Tier::device] + 512 * kKiB, 512 * kKiB, 256 * kMiB};
        on_device.disk_tier = true;
      }
      on_device.make_optimizer = [&] {
        return told(rules::make_cuda_optimizer("adamw", {}, test::emulated_updates(fake, launched)), fake);
      };
      expect_bits(reference, toy::run(on_device));
      EXPECT_GT(launched, 0);
      EXPECT_EQ("", fake->leaks());
    }
  }
}

// The same for optimizers that see whole layers; the matrix products of Muon are the CPU's here.
TEST_F(CudaEngine, UpdatesOfWholeLayersByItsKernelsGiveTheCpusBits) {
  for (const auto* const name : {"lamb", "adafactor", "muon"}) {
    auto o = options(DType::bf16);
    o.steps = 3;
    o.make_optimizer = [&] { return make_optimizer(name, {}); };
    const auto reference = toy::run(o);
    for (const bool whole : {true, false}) {
      SCOPED_TRACE(testing::Message() << name << (whole ? ", resident" : ", disk holds the rest"));
      const auto fake = make_fake(7);
      std::atomic<int> launched = 0;
      auto on_device = on_fake(o, fake);
      on_device.update = Tier::device;
      on_device.make_optimizer = [&] {
        return told(rules::make_cuda_optimizer(name, {}, {}, test::emulated_layer_updates(fake, launched)), fake);
      };
      if (!whole) {
        const auto smallest = plan(toy::make_model(o.sizes), toy::request_of(on_device), on_device.profile).smallest_bytes;
        on_device.budget = {smallest[Tier::device] + 512 * kKiB, smallest[Tier::host] + 512 * kKiB, 256 * kMiB};
        on_device.disk_tier = true;
      }
      expect_bits(reference, toy::run(on_device));
      EXPECT_GT(launched, 0);
      EXPECT_EQ("", fake->leaks());
    }
  }
}

// Each rank has a GPU; what ranks exchange between the halves of an update is in device memory.
TEST_F(CudaEngine, RanksThatShareLayersUpdateThemByTheirKernels) {
  for (const auto* const name : {"lamb", "adafactor", "muon"}) {
    auto o = options(DType::bf16);
    o.steps = 2;
    o.sizes.blocks = 1;
    o.shape = {{1, 8}, 4};
    o.data.canonical = true;
    o.make_optimizer = [&] { return make_optimizer(name, {}); };
    const auto reference = toy::run(o);
    for (const std::uint32_t zero : {1U, 3U}) {
      SCOPED_TRACE(testing::Message() << name << ", ZeRO-" << zero);
      auto options = test::strict_fake();
      options.jitter_seed = 5;
      options.apart = false;  // these ranks exchange by the host's communicator
      const auto fake = std::make_shared<FakeCuda>(options);
      std::atomic<int> launched = 0;
      auto shared = on_fake(o, fake);
      shared.data = {.ranks = 2, .zero = zero, .canonical = true};
      shared.shape.micro_batches = 2;
      shared.update = Tier::device;
      shared.make_optimizer = [&] {
        return told(rules::make_cuda_optimizer(name, {}, {}, test::emulated_layer_updates(fake, launched)), fake);
      };
      const auto all = toy::run_ranks(shared);
      EXPECT_GT(launched, 0);
      for (std::size_t r = 0; r < all.ranks.size(); ++r) {
        EXPECT_EQ("", all.errors[r]);
        expect_bits(reference, all.ranks[r]);
      }
      EXPECT_EQ("", fake->leaks());
    }
  }
}

// Each rank has a GPU of its own, and NCCL between them: the host's bits, whatever order the ranks' lanes come in. The fakes
// report launches in different orders, and memory that is allocated while a call waits for another rank.
TEST_F(CudaEngine, RanksOnGpusOfTheirOwnGiveTheBitsOfRanksOnTheHost) {
  const struct {
    const char* name;
    std::uint32_t data = 1, zero = 0, pipeline = 1;
    bool offloads = false;
  } cases[] = {{"ZeRO-3", 2, 3}, {"ZeRO-3, offloaded", 2, 3, 1, true}, {"a pipeline", 1, 0, 2}, {"both", 2, 2, 2}};
  for (const auto& c : cases) {
    auto o = options(DType::bf16);
    o.steps = 2;
    o.shape = {{1, 8}, 4};
    o.data = {.ranks = c.data, .zero = c.zero};
    o.data.canonical = c.pipeline == 1;
    if (c.pipeline > 1) o.pipeline = test::pipeline_of("1f1b", c.pipeline, 4, 1, o.sizes.blocks);
    if (c.offloads) toy::squeeze(o, true);
    const auto host = toy::run_ranks(o);
    const auto ranks = c.data * c.pipeline;
    for (const int multiprocessors : {132, 16}) {
      SCOPED_TRACE(testing::Message() << c.name << ", GPUs with room for " << multiprocessors << " blocks");
      std::vector<std::shared_ptr<FakeCuda>> gpus(ranks);
      std::vector<toy::RunResult> results(ranks);
      const auto errors = test::on_fake_gpus(
          static_cast<int>(ranks), {.time_limit = std::chrono::seconds(60)},
          [&](test::Rank& rank) {
            const auto r = static_cast<std::size_t>(rank.comm->rank());
            results[r] = toy::run(on_fake(toy::of_rank(o, rank.comm->rank()), gpus[r]), rank.comm.get());
          },
          [&](int rank, test::FakeGpuRank& gpu) {
            gpus[static_cast<std::size_t>(rank)] = gpu.runtime;
            gpu.nccl = std::make_shared<test::FakeNccl>(
                gpu.runtime, test::FakeNccl::Options{.is_device_memory = [runtime = gpu.runtime.get()](const void* data) {
                  return runtime->pointer_is_of_device(data);
                }});
          },
          {.multiprocessors = multiprocessors, .emulates_folds = false});
      for (std::size_t r = 0; r < ranks; ++r) {
        EXPECT_EQ("", host.errors[r]);
        EXPECT_EQ("", errors[r]);
        expect_bits(host.ranks[r], results[r]);
        EXPECT_GT(gpus[r]->count(FakeCuda::Call::stream_wait_event), 0U) << "lanes that follow each other, and sums";
      }
    }
  }
}

// One rank folds its own gradients, as canonical sums do, on the device, whose memory the host cannot read.
TEST_F(CudaEngine, OneRankAloneFoldsOnTheDevice) {
  auto o = options(DType::fp32);
  o.steps = 2;
  o.shape = {{1, 8}, 4};
  o.data.canonical = true;
  const auto reference = toy::run(o);
  const auto fake = make_fake(3);
  expect_bits(reference, toy::run(on_fake(o, fake)));
  EXPECT_EQ("", fake->leaks());
}

// A profiler sees what the trace of the same run has, in the same order: every action and every copy.
TEST_F(CudaEngine, AProfilerSeesLanesAndActions) {
  auto o = options(DType::bf16);
  o.steps = 2;
  o.budget = {plan(toy::make_model(o.sizes), toy::request_of(o), {}).smallest_bytes[Tier::device] + 512 * kKiB, kUnlimited, 0};
  test::FakeProfiler profiler;
  Trace trace;
  auto watched = test::strict_fake();
  watched.profiler = &profiler;
  o.trace = &trace;
  ASSERT_TRUE(toy::run(on_fake(o, std::make_shared<FakeCuda>(watched))).planned.fits);
  std::map<std::string, std::vector<std::string>> traced;
  for (const auto& span : trace.spans()) traced[span.lane].push_back(span.name);
  EXPECT_EQ("", profiler.complaints());
  for (const auto* const lane : {"compute", "upload", "download"}) {
    EXPECT_THAT(profiler.streams(), testing::Contains(lane));
    ASSERT_FALSE(traced[lane].empty()) << lane;
    EXPECT_EQ(profiler.ranges(lane), traced[lane]) << lane;
  }
  EXPECT_THAT(profiler.ranges("compute"), testing::Contains("forward l1 m2").Times(2));
}

TEST_F(CudaEngine, AResumedRunEndsAsTheUndisturbedOne) {
  auto o = options(DType::bf16);
  const auto reference = toy::run(o);
  const auto fake = make_fake(1);
  o = on_fake(o, fake);
  o.budget = {reference.planned.smallest_bytes[Tier::device] + 512 * kKiB, 512 * kKiB, 256 * kMiB};
  o.disk_tier = true;
  o.commit_after = 3;
  toy::run(o);
  o.commit_after = 0;
  o.resume = true;
  EXPECT_EQ(reference.hash, toy::run(o).hash);  // on the device again
  EXPECT_EQ("", fake->leaks());
}

TEST_F(CudaEngine, AnErrorOfAnyCudaCallEndsTheRunAndNamesIt) {
  auto o = options(DType::fp32);
  o.steps = 2;
  o.budget = {plan(toy::make_model(o.sizes), toy::request_of(o), {}).smallest_bytes[Tier::device] + 512 * kKiB, 2 * kMiB,
              256 * kMiB};
  o.disk_tier = true;
  std::uint64_t calls = 0, hash = 0;
  {
    const auto fake = make_fake(0);
    hash = toy::run(on_fake(o, fake)).hash;
    calls = fake->count();
  }
  const auto points = test::number_from_environment("TERRACE_FAULT_POINTS", 12);
  const auto seed = test::number_from_environment("TERRACE_FAULT_SEED", 1);
  std::mt19937_64 random(seed);
  for (std::uint64_t told = 0, tried = 0; told < points; ++tried) {
    ASSERT_LT(tried, 20 * points) << "hardly an error ends a run; seed " << seed;
    FakeCuda::Options quiet;  // CUDA cleans up after a failed run
    const auto fake = std::make_shared<FakeCuda>(quiet);
    const auto at = random() % calls;
    SCOPED_TRACE(testing::Message() << "call " << at << " of about " << calls << ", seed " << seed);
    fake->fail({.at = at, .code = 700});
    try {
      // If no error came, nothing was lost: the call only released something, or this run made fewer calls.
      EXPECT_EQ(hash, toy::run(on_fake(o, fake)).hash);
      if (const auto call = fake->struck()) {
        EXPECT_TRUE(FakeCuda::told_by_warning(*call)) << FakeCuda::cuda_name(*call);
      }
    } catch (const std::exception& error) {
      ASSERT_TRUE(fake->struck().has_value()) << error.what();
      EXPECT_THAT(error.what(), testing::HasSubstr(FakeCuda::cuda_name(*fake->struck())));
      ++told;
    }
  }
}

// If a later allocation fails, earlier ones are given back, so nothing may still run on them.
TEST_F(CudaEngine, WithoutMemoryForAllOfItAnEngineGivesTheDeviceNoWork) {
  auto o = options(DType::fp32);
  o.steps = 1;
  const auto whole = make_fake(0);
  toy::run(on_fake(o, whole));
  const auto allocations = whole->count(FakeCuda::Call::allocate);
  ASSERT_GE(allocations, 3U);
  for (std::uint64_t at = 0; at < allocations; ++at) {
    SCOPED_TRACE(testing::Message() << "allocation " << at << " of " << allocations);
    const auto fake = make_fake(0);
    fake->fail(FakeCuda::Call::allocate, {.at = at, .code = 2});
    EXPECT_ANY_THROW(toy::run(on_fake(o, fake)));
    EXPECT_EQ(0U, fake->count(FakeCuda::Call::launch));
    EXPECT_EQ("", fake->leaks());
  }
}

}  // namespace
}  // namespace terrace
