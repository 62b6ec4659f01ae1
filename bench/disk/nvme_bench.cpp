#include <terrace/bench/disk/nvme_bench.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include <terrace/bench/disk/disk_config.h>
#include <terrace/bench/disk/disk_job.h>
#include <terrace/bench/disk/sweep.h>
#include <terrace/bench/io_of_environment.h>
#include <terrace/bench/statistics.h>
#include <terrace/core/base/error.h>
#include <terrace/core/device/memory_resource.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/machine/machine.h>
#include <terrace/offload/io/file_system.h>

namespace terrace::bench {
namespace {

constexpr std::array kOps{DiskOp::read, DiskOp::write, DiskOp::randread, DiskOp::mixed};
constexpr std::uint64_t kMostBlockBytes = kGiB;

class NvmeBench final : public Bench {
 public:
  std::string_view name() const override { return "nvme"; }
  std::string_view help() const override { return "a disk: GB/s, IOPS, latency and CPU time, past the page cache"; }

  std::vector<Flag> flags() override {
    return {
        {"PATH", &path_, "directory on the disk; a file is made in it and removed", 1, 1, {}, true},
        {"op", &op_, "what to measure", 1, 1, {"read", "write", "randread", "mixed", "all"}},
        {"size", &bytes_, "of the file"},
        {"block-size", &shape_.block_bytes, "of one request; a multiple of 4 KiB"},
        {"queue-depth", &depth_, "requests in flight, of each thread", 1, 4096},
        {"threads", &threads_, "with a ring and a part of the file each", 1, 1024},
        {"engine",
         &shape_.engine,
         "io_uring, a pool of preads, or the one that training uses",
         1,
         1,
         {"auto", "uring", "threads"}},
        {"sync", &shape_.sync, "a run that writes includes the fdatasync at its end"},
        {"sweep", &sweep_, "try block sizes, depths and threads, and print the best to paste"},
        {"seed", &seed_, "of the data and of the random order; 0: drawn", 0, 1'000'000'000},
    };
  }

  void check() override {
    demand_directory(path_);
    shape_.queue_depth = static_cast<std::uint32_t>(depth_);
    shape_.threads = static_cast<std::uint32_t>(threads_);
    const auto refuse = [](const std::string& what) {
      throw Error(what + "\n  see terrace bench nvme --help", ErrorKind::refused);
    };
    if (shape_.block_bytes % kPageBytes != 0 || shape_.block_bytes > kMostBlockBytes)
      refuse(
          fmt::format("--block-size: {} is not accepted: it must be a multiple of 4 KiB, at most 1 GiB", shape_.block_bytes));
    if (bytes_ == kUnlimited) refuse("--size: a file cannot be unlimited: give a size");
    if (sweep_ && bytes_ < kSweepBlockBytes)
      refuse(fmt::format("--size: {} is too small for a sweep: it needs at least {}", format_bytes(bytes_),
                         format_bytes(kSweepBlockBytes)));
    if (bytes_ / shape_.block_bytes < shape_.threads)
      refuse(fmt::format("--size: {} is too small for a block of {} for each of {} threads", format_bytes(bytes_),
                         format_bytes(shape_.block_bytes), shape_.threads));
  }

  void run(Session& session) override {
    look_at_path(session);
    if (seed_ == 0) seed_ = static_cast<std::int64_t>(std::random_device()() % 1'000'000'000U) + 1;
    const auto most_block = sweep_ ? kSweepBlockBytes : shape_.block_bytes;  // it is a multiple of the other block sizes
    const DiskFile file(path_, bytes_ / most_block * most_block);
    if (!file.direct())
      session.warn(fmt::format("{} does not allow direct I/O: these are figures of the page cache; give a local ext4 or xfs",
                               path_.string()));
    session.machine("direct", file.direct());
    session.machine("seed", seed_);
    if (shape_.block_bytes % file.alignment_bytes() != 0)
      throw Error(
          fmt::format("--block-size: direct I/O in {} needs multiples of {} bytes", path_.string(), file.alignment_bytes()),
          ErrorKind::refused);

    // Asked only once, so that a machine without io_uring prints one warning, not one per run.
    const auto engine = shape_.engine == "auto"
                            ? make_io_engine({.files = {}, .buffers = {}, .choice = io_of_environment()})->name()
                            : shape_.engine;
    if (engine == "threads") shape_.engine = engine;
    session.machine("engine", engine);
    const auto shapes = sweep_ ? sweep_shapes(shape_, file.bytes(), read_topology().cores) : std::vector{shape_};
    std::uint64_t buffer_bytes = plain_shape(file).buffer_bytes();
    for (const auto& shape : shapes) buffer_bytes = std::max(buffer_bytes, shape.buffer_bytes());
    ThreadPool pool(0);
    const auto memory = make_pinned_memory(pool);
    session.note(fmt::format("{}: {}, {}, a file of {}; data are checked", path_.string(), io::file_system_of(path_).name,
                             file.direct() ? "direct I/O" : "through the page cache", format_bytes(file.bytes())));
    session.progress("taking memory …");
    const Slab slab = memory->allocate(buffer_bytes);
    buffers_ = {slab.data(), slab.bytes()};
    auto least_block = plain_shape(file).block_bytes;
    for (const auto& shape : shapes) least_block = std::gcd(least_block, shape.block_bytes);
    DiskContent content(static_cast<std::uint64_t>(seed_), file.bytes(), least_block);
    if (!fill(session, file, content)) return;
    for (const auto op : kOps) {
      if ((op_ != "all" && op_ != name_of(op)) || session.stopped()) continue;
      try {
        measure(session, file, content, op, shapes);
      } catch (const std::exception& error) {
        session.fail(error);
      }
    }
  }

 private:
  struct Figures {
    std::vector<double> gb_per_s, iops, p50_us, p99_us, p999_us, cpu_s_per_gib;
    void add(DiskRun run) {
      const auto bytes = static_cast<double>(run.bytes);
      gb_per_s.push_back(bytes / run.seconds * 1e-9);
      iops.push_back(static_cast<double>(run.blocks) / run.seconds);
      cpu_s_per_gib.push_back(run.cpu_s / (bytes / static_cast<double>(kGiB)));
      const Percentiles latency(std::move(run.latencies_ns));
      p50_us.push_back(static_cast<double>(latency.at(0.5)) * 1e-3);
      p99_us.push_back(static_cast<double>(latency.at(0.99)) * 1e-3);
      p999_us.push_back(static_cast<double>(latency.at(0.999)) * 1e-3);
    }
  };

  void look_at_path(Session& session) const {
    const auto found = io::file_system_of(path_);
    session.machine("path", path_.string());
    session.machine("file_system", found.name);
    if (!found.objection.empty())
      session.warn(
          fmt::format("{} is {}: {}; give a directory on the disk itself", path_.string(), found.name, found.objection));
  }

  // Shows the progress of a pass, and passes a signal on to it.
  [[nodiscard]] DiskJob::Watch watch(Session& session, std::string what) const {
    return [&session, what = std::move(what), bytes = bytes_](std::uint64_t moved, double seconds) {
      const auto done = static_cast<double>(moved);
      session.progress(fmt::format("{}: {:.0f} %, {:.2f} GB/s", what, 100 * done / static_cast<double>(bytes),
                                   done / std::max(seconds, 1e-9) * 1e-9));
      return !session.stopped();
    };
  }

  // The shape of untimed passes.
  [[nodiscard]] DiskShape plain_shape(const DiskFile& file) const {
    DiskShape shape{.block_bytes = 8 * kMiB, .queue_depth = 16, .engine = shape_.engine};
    while (file.bytes() % shape.block_bytes != 0) shape.block_bytes /= 2;  // the file has whole pages
    return shape;
  }

  // Everything is written before anything is measured: a read of unwritten blocks does not reach the disk, and a first write
  // also makes the file system update its metadata. Returns false if stopped.
  bool fill(Session& session, const DiskFile& file, DiskContent& content) {
    auto shape = plain_shape(file);
    shape.sync = true;
    DiskJob job(file, content, shape, memory_for(shape));
    return job.run(DiskOp::write, DiskCheck::one_stamp, watch(session, "writing random bytes")).whole;
  }

  [[nodiscard]] std::span<std::byte> memory_for(const DiskShape& shape) const { return buffers_.first(shape.buffer_bytes()); }

  void measure(Session& session, const DiskFile& file, DiskContent& content, DiskOp op, const std::vector<DiskShape>& shapes) {
    std::vector<Swept> swept;
    for (const auto& shape : shapes) {
      DiskJob job(file, content, shape, memory_for(shape));
      Figures figures;
      for (std::int64_t r = 0; r < session.runs() && !session.stopped(); ++r) {
        auto run =
            job.run(op, DiskCheck::one_stamp,
                    watch(session, fmt::format("{}, {} × {} × {}, run {} of {}", name_of(op), format_bytes(shape.block_bytes),
                                               shape.queue_depth, shape.threads, r + 1, session.runs())));
        if (run.whole) figures.add(std::move(run));
      }
      if (figures.gb_per_s.empty()) break;  // stopped in the first run
      report(session, op, shape, figures);
      swept.push_back({shape, median(figures.gb_per_s), median(figures.cpu_s_per_gib)});
    }
    if (swept.empty()) return;
    if (!session.stopped()) verify(session, file, content);
    const auto& best = best_of(swept);
    if (sweep_) {
      session.note(
          fmt::format("\nbest for {}: {:.2f} GB/s at {:.4f} CPU s/GiB", name_of(op), best.gb_per_s, best.cpu_s_per_gib));
      session.note("  " + terrace_line(op, best.shape, file.bytes(), path_));
      session.note("  DeepSpeed: " + deepspeed_section(best.shape));
    }
    session.note("  " + fio_line(op, best.shape, file.bytes(), path_));
  }

  static void report(Session& session, DiskOp op, const DiskShape& shape, const Figures& f) {
    session.result({{"op", name_of(op)},
                    {"block_bytes", shape.block_bytes},
                    {"queue_depth", shape.queue_depth},
                    {"threads", shape.threads},
                    {"gb_per_s", median(f.gb_per_s)},
                    {"iops", median(f.iops)},
                    {"p50_us", median(f.p50_us)},
                    {"p99_us", median(f.p99_us)},
                    {"p999_us", median(f.p999_us)},
                    {"cpu_s_per_gib", median(f.cpu_s_per_gib)},
                    {"runs", f.gb_per_s.size()},
                    {"spread", spread(f.gb_per_s)}});
  }

  // Checks every byte of the file; not timed.
  void verify(Session& session, const DiskFile& file, DiskContent& content) const {
    const auto shape = plain_shape(file);
    DiskJob job(file, content, shape, memory_for(shape));
    job.run(DiskOp::read, DiskCheck::every_byte, watch(session, "checking every byte"));
  }

  std::filesystem::path path_;
  std::string op_ = "all";
  std::uint64_t bytes_ = kGiB;
  std::int64_t depth_ = 32, threads_ = 1, seed_ = 0;
  DiskShape shape_{.block_bytes = 8 * kMiB};
  bool sweep_ = false;
  std::span<std::byte> buffers_;  // part of run()'s slab
};

}  // namespace

std::unique_ptr<Bench> make_nvme_bench() { return std::make_unique<NvmeBench>(); }

}  // namespace terrace::bench
