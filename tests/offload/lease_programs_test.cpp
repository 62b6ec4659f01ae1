// Random programs of leases: loops with passes whose order changes, chunks that are added, removed and resized, leases for the
// caller and for streams. Every use must see the last write, no tier may exceed its budget, and no program may stand still.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/cuda/stream.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/offload/manager/chunk_manager.h>
#include <terrace/tests/support/environment.h>
#include <terrace/tests/support/test_device.h>

#include <terrace/tests/offload/temporary_directory.h>

namespace terrace {
namespace {

using test::FakeCuda;

// The bytes of one use, and what must be in them before and after.
struct Work {
  std::span<std::byte> bytes;
  std::optional<std::uint64_t> sees, leaves;

  [[nodiscard]] bool run(std::byte* at) const {
    bool right = true;
    for (std::size_t i = 0; i < bytes.size(); i += 8) {
      if (sees) right = right && std::memcmp(at + i, &*sees, 8) == 0;
      if (leaves) std::memcpy(at + i, &*leaves, 8);
    }
    return right;
  }
};

// Two streams of a device, on which uses run; and uses by the caller itself.
class Workers {
 public:
  virtual ~Workers() = default;
  virtual Device& device() = 0;
  virtual Stream& stream(std::size_t i) = 0;
  virtual void enqueue(std::size_t i, std::vector<Work> work) = 0;
  virtual std::shared_ptr<void> used_by_caller(const std::vector<Work>&) { return nullptr; }
  virtual void finish() {}
  [[nodiscard]] int wrong() const { return wrong_; }

 protected:
  std::atomic<int> wrong_{0};
};

class CpuWorkers final : public Workers {
 public:
  explicit CpuWorkers(ThreadPool& pool) : device_(make_host_device(pool)) {
    for (auto& stream : streams_) stream = device_->make_stream("worker");
  }
  Device& device() override { return *device_; }
  Stream& stream(std::size_t i) override { return *streams_[i]; }
  void enqueue(std::size_t i, std::vector<Work> work) override {
    streams_[i]->submit([this, work = std::move(work)] {
      for (const auto& use : work) wrong_ += use.run(use.bytes.data()) ? 0 : 1;
    });
  }

 private:
  const std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> streams_[2];
};

// A fake GPU that finds races. The second stream is a CUDA stream of the caller.
class FakeGpuWorkers final : public Workers {
 public:
  FakeGpuWorkers(ThreadPool& pool, std::uint64_t seed) {
    auto options = test::strict_fake();
    options.apart = false;
    (seed % 2 == 0 ? options.jitter_seed : options.lazy_seed) = seed;
    fake_ = std::make_shared<FakeCuda>(options);
    device_ = test::make_asynchronous_fake_device(fake_, pool);
    EXPECT_EQ(fake_->set_device(0), 0);
    EXPECT_EQ(fake_->create_stream(&raw_), 0);
    streams_[0] = device_->make_stream("worker");
    streams_[1] = device_->adopt_stream(raw_, "worker");
  }
  ~FakeGpuWorkers() override {
    for (auto& stream : streams_) stream.reset();
    EXPECT_EQ(fake_->synchronize_stream(raw_), 0);
    EXPECT_EQ(fake_->destroy_stream(raw_), 0);
  }
  Device& device() override { return *device_; }
  Stream& stream(std::size_t i) override { return *streams_[i]; }
  void enqueue(std::size_t i, std::vector<Work> work) override {
    auto launch = [this, touched = touched_by(work, "a kernel"), work = std::move(work)](cuda::CudaStreamHandle handle) {
      EXPECT_EQ(fake_->launch_touching(handle, touched,
                                       [this, work] {
                                         for (const auto& use : work) wrong_ += use.run(fake_->reach(use.bytes.data())) ? 0 : 1;
                                       }),
                0);
    };
    i == 1 ? launch(raw_) : cuda::cuda_stream(*streams_[0]).launch(std::move(launch));
  }
  std::shared_ptr<void> used_by_caller(const std::vector<Work>& work) override {
    return fake_->host_uses(touched_by(work, "the caller"));
  }
  void finish() override {
    for (auto& stream : streams_) stream->synchronize();
  }

 private:
  static FakeCuda::Touched touched_by(const std::vector<Work>& work, const char* name) {
    FakeCuda::Touched touched{.name = name};
    for (const auto& use : work) touched.add(use.bytes.data(), use.bytes.size(), use.leaves.has_value());
    return touched;
  }

  std::shared_ptr<FakeCuda> fake_;
  std::unique_ptr<Device> device_;
  cuda::CudaStreamHandle raw_ = nullptr;
  std::unique_ptr<Stream> streams_[2];
};

// One program. A chunk's `value` is what its words hold; none: it has no content.
class Program {
 public:
  Program(std::uint64_t seed, Workers& workers, const test::TemporaryDirectory& folder) : random_(seed), workers_(workers) {
    const bool disk = one_in(3);
    same_size_ = !disk;  // without a disk, chunks of several sizes may leave holes in which the last one does not fit
    const auto chunks = 3 + pick(8);
    OffloadOptions options{.device = &workers.device(), .threads = 1, .io = {.engine = "threads"}};
    options.device_bytes = (9 + pick(10)) * kPageBytes;
    options.host_bytes = disk ? (9 + pick(10)) * kPageBytes : kSize * (chunks + 2) * kPageBytes;
    if (disk) options.nvme_paths = {folder.path()};
    if (disk) options.nvme_bytes = 100 * kPageBytes;
    options.ahead_requests = pick(6);
    budget_ = {options.device_bytes, options.host_bytes, options.nvme_bytes};
    manager_.emplace(options);
    for (std::uint32_t i = 0; i < chunks; ++i) add();
    for (auto n = 4 + pick(20); n > 0; --n) loop_.push_back(some_request());
  }

  void run() {
    for (auto passes = 3 + pick(4); passes > 0; --passes) {
      if (one_in(3)) change_loop();
      const bool marked = !one_in(8);
      if (marked) manager_->begin_pass(one_in(6) ? "other" : "");
      for (const auto& request : loop_) {
        if (one_in(24)) change_chunks();
        use(request);
        if (one_in(16)) manager_->prefetch(any().id, one_in(2) ? Tier::host : Tier::device);
      }
      if (marked && !one_in(12)) manager_->end_pass();
    }
    held_.clear();
    for (auto& chunk : chunks_) use({{{&chunk, Access::read}}, Tier::host, kCaller});
    workers_.finish();
    const auto peak = manager_->peak_bytes();
    for (const Tier tier : kAllTiers) EXPECT_LE(peak[tier], budget_.of(tier)) << name_of(tier);
  }

 private:
  static constexpr std::uint64_t kSize = 2;
  static constexpr std::size_t kCaller = 2;
  struct Chunk {
    ChunkId id{};
    std::optional<std::uint64_t> value = {};
  };
  struct Request {
    std::vector<std::pair<Chunk*, Access>> uses;
    Tier tier{};
    std::size_t worker = 0;
  };

  std::uint32_t pick(std::uint64_t below) { return static_cast<std::uint32_t>(random_() % below); }
  bool one_in(std::uint64_t n) { return pick(n) == 0; }
  Chunk& any() { return chunks_[pick(chunks_.size())]; }
  std::uint64_t size() { return (same_size_ ? kSize : 1 + pick(3)) * kPageBytes; }
  void add() { chunks_.push_back({.id = manager_->add(size(), "w")}); }

  Request some_request() {
    Request request{{}, one_in(3) ? Tier::host : Tier::device, pick(3)};
    for (auto n = 1 + pick(3); n > 0; --n)
      if (Chunk& chunk = any();
          std::ranges::find(request.uses, &chunk, [](const auto& use) { return use.first; }) == request.uses.end())
        request.uses.emplace_back(&chunk, static_cast<Access>(pick(3)));
    return request;
  }
  void change_loop() {
    switch (pick(4)) {
      case 0: std::ranges::shuffle(loop_, random_); break;
      case 1: loop_.insert(loop_.begin() + pick(loop_.size() + 1), some_request()); break;
      case 2:
        if (loop_.size() > 1) loop_.erase(loop_.begin() + pick(loop_.size()));
        break;
      default: std::ranges::reverse(loop_);
    }
  }
  // A removed chunk's requests go on with another one in its place, which may have its id.
  void change_chunks() {
    held_.clear();
    Chunk& chunk = any();
    chunk.value.reset();
    switch (pick(3)) {
      case 0: manager_->drop(chunk.id); break;
      case 1:
        manager_->remove(chunk.id);
        chunk.id = manager_->add(size(), "again");
        break;
      default: manager_->resize(chunk.id, size());
    }
  }

  // While leases are held, a request that would wait for them is stopped.
  void use(const Request& request) {
    std::stop_source stop;
    stop.request_stop();
    for (;;) {
      std::vector<Use> uses;
      for (const auto& [chunk, access] : request.uses) uses.push_back({chunk->id, chunk->value ? access : Access::overwrite});
      AcquireOptions options{.stream = request.worker == kCaller ? nullptr : &workers_.stream(request.worker)};
      if (!held_.empty()) options.stop = stop.get_token();
      auto acquired = manager_->try_acquire(uses, request.tier, options);
      if (acquired) return work(request, uses, std::move(acquired.lease));
      if (acquired.error->kind() != ErrorKind::interrupted || held_.empty()) throw Error(*acquired.error);
      held_.clear();
      for (std::size_t i = 0; i < uses.size(); ++i)
        if (uses[i].access == Access::overwrite) request.uses[i].first->value.reset();
    }
  }
  void work(const Request& request, const std::vector<Use>& uses, Lease lease) {
    std::vector<Work> work;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      auto& value = request.uses[i].first->value;
      Work use{.bytes = lease.bytes(i), .sees = {}, .leaves = {}};
      if (needs_content(uses[i].access)) use.sees = value;
      if (writes(uses[i].access)) use.leaves = value = ++values_;
      work.push_back(use);
    }
    if (request.worker == kCaller) {
      const auto reported = workers_.used_by_caller(work);
      for (const auto& one : work) EXPECT_TRUE(one.run(one.bytes.data()));
    } else {
      workers_.enqueue(request.worker, std::move(work));
    }
    if (one_in(3)) {
      held_.push_back(std::move(lease));
      if (held_.size() > 2) held_.pop_front();
    } else if (request.worker != kCaller && one_in(3)) {
      lease.release(workers_.stream(request.worker).record());
    }
  }

  std::mt19937_64 random_;
  Workers& workers_;
  bool same_size_ = false;
  Budget budget_;
  std::optional<ChunkManager> manager_;
  std::deque<Chunk> chunks_;
  std::vector<Request> loop_;
  std::deque<Lease> held_;
  std::uint64_t values_ = 0;
};

constexpr std::uint64_t kPrograms = 300;

void run_programs(std::uint64_t programs, const std::function<std::unique_ptr<Workers>(std::uint64_t)>& make) {
  const auto first = test::test_seed();
  fmt::print("{} programs, seeds {} to {}\n", programs, first, first + programs - 1);
  const test::TemporaryDirectory folder;
  std::unique_ptr<Workers> workers;
  for (auto seed = first; seed < first + programs; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    if (auto made = make(seed)) workers = std::move(made);
    try {
      Program(seed, *workers, folder).run();
    } catch (const std::exception& error) {
      FAIL() << error.what();
    }
    ASSERT_EQ(workers->wrong(), 0);
    if (testing::Test::HasFailure()) return;
  }
}

std::uint64_t programs() { return test::number_from_environment("TERRACE_LEASE_PROGRAMS", kPrograms); }

TEST(LeasePrograms, SeeEveryWriteOnStreamsThatAreThreads) {
  ThreadPool pool(1);
  bool made = false;
  run_programs(programs(), [&](std::uint64_t) -> std::unique_ptr<Workers> {
    return std::exchange(made, true) ? nullptr : std::make_unique<CpuWorkers>(pool);
  });
}

TEST(LeasePrograms, SeeEveryWriteWithoutARaceOnAFakeGpu) {
  ThreadPool pool(1);
  run_programs(programs() / 5, [&](std::uint64_t seed) { return std::make_unique<FakeGpuWorkers>(pool, seed); });
}

// A shadow has the value of each chunk. Only the work of update leases touches it, so ThreadSanitizer sees a lease that begins
// too early, or ends too late. A reader knows only that all words are equal: a later writer may work in another tier meanwhile.
TEST(LeasePrograms, EightThreadsWithAStreamEachShareALoop) {
  constexpr std::uint32_t kChunks = 12, kThreads = 8;
  constexpr std::uint64_t kBytes = 2 * kPageBytes;
  const test::TemporaryDirectory folder;
  ThreadPool pool(1);
  const auto device = make_host_device(pool);
  // A thread holds at most one lease, of at most two chunks: eight fit.
  ChunkManager manager({.device_bytes = 5 * kBytes,
                        .host_bytes = 5 * kBytes,
                        .nvme_paths = {folder.path()},
                        .nvme_bytes = 2 * kChunks * kBytes,
                        .device = device.get()});
  std::vector<ChunkId> chunks;
  std::vector<std::uint64_t> shadow(kChunks);
  for (std::uint32_t i = 0; i < kChunks; ++i) {
    chunks.push_back(manager.add(kBytes));
    const Lease lease = manager.acquire(chunks[i], Tier::device, Access::overwrite);
    (void)Work{.bytes = lease.bytes(), .sees = {}, .leaves = shadow[i] = i}.run(lease.bytes().data());
  }
  std::atomic<int> wrong{0};
  const auto work = [&](std::uint64_t thread) {
    std::mt19937_64 random(thread);
    const auto stream = device->make_stream("of a thread");
    for (int pass = 0; pass < 6; ++pass) {
      if (thread == 0) manager.begin_pass("shared");
      for (int step = 0; step < 25; ++step) {
        // Most threads follow an order of their own, the last two none.
        const auto i = thread < 6 ? (thread * 5 + static_cast<std::uint64_t>(step)) % kChunks : random() % kChunks,
                   j = (i + 1) % kChunks;
        const Tier tier = random() % 3 == 0 ? Tier::host : Tier::device;
        const bool by_stream = random() % 4 != 0;
        const Use uses[] = {{chunks[i], Access::update}, {chunks[j], Access::read}};
        const Lease lease = manager.acquire(uses, tier, {.stream = by_stream ? stream.get() : nullptr});
        auto add = [&, i, to = lease.bytes(0), from = lease.bytes(1)] {
          std::uint64_t read_value = 0;
          std::memcpy(&read_value, from.data(), 8);
          const Work read{.bytes = from, .sees = read_value, .leaves = {}};
          const Work write{.bytes = to, .sees = shadow[i], .leaves = shadow[i] + 1};
          wrong += (read.run(from.data()) ? 0 : 1) + (write.run(to.data()) ? 0 : 1);
          ++shadow[i];
        };
        by_stream ? stream->submit(add) : add();
      }
      if (thread == 0) manager.end_pass();
    }
    stream->synchronize();
  };
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  std::uint64_t sum = 0;
  for (const auto value : shadow) sum += value;
  EXPECT_EQ(sum, kThreads * 6 * 25 + kChunks * (kChunks - 1) / 2);
  for (std::uint32_t i = 0; i < kChunks; ++i) {
    const Lease lease = manager.acquire(chunks[i], Tier::host, Access::read);
    EXPECT_TRUE((Work{.bytes = lease.bytes(), .sees = shadow[i], .leaves = {}}.run(lease.bytes().data()))) << "chunk " << i;
  }
}

}  // namespace
}  // namespace terrace
