#include <terrace/bench/disk/disk_job.h>

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <latch>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include <terrace/bench/io_of_environment.h>
#include <terrace/core/base/error.h>
#include <terrace/core/base/trace.h>

namespace terrace::bench {
namespace {

constexpr auto kWatchEvery = std::chrono::milliseconds(100);
constexpr int kMostPreadThreads = 64;  // the thread engine has one thread for each request in flight, up to this number

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// What all workers of a pass share: the start, the stop, the first error, and how many are still running.
struct Workers {
  explicit Workers(std::ptrdiff_t workers) : ready(workers), start(1), running(workers) {}
  std::latch ready, start;
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> moved_bytes{0};
  std::mutex mutex;
  std::condition_variable ended;
  std::ptrdiff_t running;
  std::int64_t begin_ns = 0, end_ns = 0;
  std::exception_ptr error;

  void work(DiskWorker& worker) {
    ready.count_down();
    start.wait();
    std::exception_ptr failed;
    try {
      worker.run(stop, moved_bytes, begin_ns);
    } catch (...) {
      failed = std::current_exception();
      stop = true;
    }
    const std::lock_guard lock(mutex);
    end_ns = std::max(end_ns, now_ns());
    if (failed && !error) error = failed;
    --running;
    ended.notify_one();
  }
  [[nodiscard]] double seconds_until(std::int64_t when_ns) const { return static_cast<double>(when_ns - begin_ns) * 1e-9; }
  // Returns when the last worker has ended.
  void watch(const DiskPass::Watch& go_on) {
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, kWatchEvery, [this] { return running == 0; })) {
      lock.unlock();
      if (!go_on(moved_bytes.load(std::memory_order_relaxed), seconds_until(now_ns()))) stop = true;
      lock.lock();
    }
  }
};

std::unique_ptr<IoEngine> make_named_engine(const DiskShape& shape, const IoOptions& options) {
  if (shape.engine == "threads")
    return make_thread_engine(options, static_cast<int>(std::min<std::uint32_t>(shape.queue_depth, kMostPreadThreads)));
  std::string why;
  auto engine = make_uring_engine(options, why);
  if (!engine)
    throw Error(
        fmt::format("io_uring is not permitted here: {}\n  allow it (terrace doctor says how), or --engine threads", why),
        ErrorKind::missing);
  return engine;
}

}  // namespace

DiskJob::DiskJob(const DiskFile& file, DiskContent& content, const DiskShape& shape, std::span<std::byte> buffers,
                 const Wrap& wrap)
    : file_(file), content_(content), shape_(shape), buffers_(buffers), wrap_(wrap), blocks_(file.bytes() / shape.block_bytes) {
  const auto slot = slot_bytes(shape.block_bytes);
  for (std::uint64_t at = 0; at < shape.buffer_bytes(); at += slot) content.pattern.fill(buffers.subspan(at, slot), 0);
}

std::span<std::byte> DiskJob::buffers_of(std::uint32_t thread) const {
  const auto bytes = shape_.buffer_bytes() / shape_.threads;
  return buffers_.subspan(thread * bytes, bytes);
}

// The buffers are registered in parts that end between the buffers of two requests, because the kernel takes at most 1 GiB in
// one.
std::unique_ptr<IoEngine> DiskJob::make_engine(std::uint32_t thread) {
  const auto own = buffers_of(thread);
  const auto slot = slot_bytes(shape_.block_bytes);
  const auto span = std::max<std::uint64_t>(1, kGiB / slot) * slot;
  IoOptions options{
      .queue_depth = shape_.queue_depth, .files = {file_.descriptor()}, .buffers = {}, .choice = io_of_environment()};
  for (std::uint64_t at = 0; at < own.size(); at += span)
    options.buffers.push_back(own.subspan(at, std::min<std::uint64_t>(span, own.size() - at)));
  if (shape_.engine == "auto") return make_io_engine(options);
  // As in make_io_engine(): a file that goes through the page cache must not fill it.
  return make_uncached_engine(make_named_engine(shape_, options), options.files);
}

DiskPart DiskJob::part_of(std::uint32_t thread, const DiskPass& pass) {
  const auto share = [&](std::uint64_t of, std::uint32_t t) { return of * t / shape_.threads; };
  const auto first = share(blocks_, thread);
  return {.op = pass.op,
          .check = pass.check,
          .block_bytes = shape_.block_bytes,
          .first_block = first,
          .blocks = share(blocks_, thread + 1) - first,
          .turns = share(pass.blocks, thread + 1) - share(pass.blocks, thread),
          .for_ns = static_cast<std::int64_t>(pass.seconds * 1e9),
          .queue_depth = shape_.queue_depth,
          .generation = content_.generation,
          .generations = content_.generations,
          .seed = content_.generation * 1000ULL + thread};
}

DiskRun DiskJob::run(const DiskPass& pass) {
  const bool writes = pass.op == DiskOp::write || pass.op == DiskOp::mixed;
  if (!file_.direct() && pass.op != DiskOp::write) file_.forget_cache();
  ++content_.generation;
  std::vector<std::unique_ptr<IoEngine>> engines;
  std::vector<std::unique_ptr<DiskWorker>> workers;
  for (std::uint32_t t = 0; t < shape_.threads; ++t) {
    engines.push_back(make_engine(t));
    if (wrap_) engines.back() = wrap_(std::move(engines.back()));
    workers.push_back(std::make_unique<DiskWorker>(*engines.back(), content_.pattern, part_of(t, pass), buffers_of(t)));
  }
  engine_name_ = engines.front()->name();

  Workers all(static_cast<std::ptrdiff_t>(workers.size()));
  std::vector<std::jthread> threads;
  for (auto& worker : workers) threads.emplace_back([&all, &worker] { all.work(*worker); });
  all.ready.wait();
  if (pass.ready) pass.ready();
  const double cpu_before = cpu_seconds();
  all.begin_ns = now_ns();
  all.start.count_down();
  all.watch(pass.watch);
  threads.clear();
  if (all.error) std::rethrow_exception(all.error);
  if (writes && (shape_.sync || !file_.direct())) {
    file_.sync();
    all.end_ns = now_ns();
  }

  DiskRun run{.seconds = all.seconds_until(all.end_ns), .cpu_s = cpu_seconds() - cpu_before, .axis = {}};
  for (const auto& worker : workers) {
    run.blocks += worker->ended_blocks();
    run.axis.add(worker->axis());
  }
  run.bytes = run.blocks * shape_.block_bytes;
  run.whole = pass.seconds > 0 ? !all.stop : run.blocks == (pass.blocks == 0 ? blocks_ : pass.blocks);
  return run;
}

}  // namespace terrace::bench
