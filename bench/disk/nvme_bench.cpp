#include <terrace/bench/disk/nvme_bench.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include <terrace/bench/disk/disk_config.h>
#include <terrace/bench/disk/nvme_rows.h>
#include <terrace/bench/disk/paths_run.h>
#include <terrace/bench/disk/sweep.h>
#include <terrace/bench/io_of_environment.h>
#include <terrace/bench/statistics.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/device/memory_resource.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/machine/cores.h>
#include <terrace/core/machine/machine.h>
#include <terrace/offload/io/file_system.h>

namespace terrace::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::array kOps{DiskOp::read, DiskOp::write, DiskOp::randread, DiskOp::mixed};
constexpr std::uint64_t kMostBlockBytes = kGiB;

class NvmeBench final : public Bench {
 public:
  std::string_view name() const override { return "nvme"; }
  std::string_view help() const override { return "disks: GB/s, IOPS, latency and CPU time, past the page cache"; }

  std::vector<Flag> flags() override {
    return {
        {"PATH", &paths_, "directory on the disk; a file is made in it and removed. Several: all at once", 1, 1, {}, true},
        {"op", &op_, "what to measure", 1, 1, {"read", "write", "randread", "mixed", "all"}},
        {"size", &bytes_, "of the file in each directory"},
        {"seconds", &seconds_, "of all runs of a figure together, over and over the file; 0: a run moves the file once", 0,
         86'400},
        {"precondition", &precondition_bytes_,
         "written first in each directory, over and over the file, until the drive's cache is full"},
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
        {"numa", &numa_, "measure from the cores and the memory of each NUMA node in turn"},
        {"seed", &seed_, "of the data and of the random order; 0: drawn", 0, 1'000'000'000},
    };
  }

  void check() override {
    check_paths();
    shape_.queue_depth = static_cast<std::uint32_t>(depth_);
    shape_.threads = static_cast<std::uint32_t>(threads_);
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
    look_at_paths(session);
    choose_engine(session);
    if (seed_ == 0) seed_ = static_cast<std::int64_t>(std::random_device()() % 1'000'000'000U) + 1;
    session.machine("seed", seed_);
    const auto shapes = sweep_ ? sweep_shapes(shape_, file_bytes(), read_topology().cores) : std::vector{shape_};
    const auto targets = make_targets(session, shapes);
    tell_splits(session, targets);
    std::uint64_t buffer_bytes = 0;
    for (const auto& shape : shapes) buffer_bytes = std::max(buffer_bytes, shape.buffer_bytes());
    bool filled = false;
    for (const int node : nodes(session)) {
      ThreadPool pool(0);
      const auto memory = make_pinned_memory(pool, node);
      session.progress("taking memory …");
      std::vector<Slab> buffers;
      for (const auto& target : targets) {
        buffers.push_back(memory->allocate(target->needed_bytes(buffer_bytes)));
        target->use({buffers.back().data(), buffers.back().bytes()});
      }
      if (!filled && !fill(session, targets)) return;
      filled = true;
      const machine::WorkVisit visit(machine::work_place(machine::cores_of_numa_node(node)));
      measure_ops(session, targets, shapes, node);
    }
  }

 private:
  [[noreturn]] static void refuse(const std::string& what) { throw base::Refused(what + "\n  see terrace bench nvme --help"); }

  void check_paths() const {
    for (const auto& path : paths_) demand_directory(path);
    for (auto path = paths_.begin(); path != paths_.end(); ++path)
      if (std::any_of(paths_.begin(), path, [&](const fs::path& other) { return fs::equivalent(other, *path); }))
        refuse(fmt::format("{} is given twice: give each directory once", path->string()));
  }

  [[nodiscard]] bool several() const { return paths_.size() > 1; }
  [[nodiscard]] std::uint64_t file_bytes() const {
    const auto most_block = sweep_ ? kSweepBlockBytes : shape_.block_bytes;  // it is a multiple of the other block sizes
    return bytes_ / most_block * most_block;
  }

  void look_at_paths(Session& session) const {
    auto facts = Result::array();
    for (const auto& path : paths_) {
      const auto found = io::file_system_of(path);
      if (!found.objection.empty())
        session.warn(
            fmt::format("{} is {}: {}; give a directory on the disk itself", path.string(), found.name, found.objection));
      facts.push_back({{"path", path.string()}, {"file_system", found.name}});
    }
    for (const auto& [key, value] : facts[0].items())
      if (!several()) session.machine(key, value);
    if (several()) session.machine("paths", facts);
  }

  // Asked only once, so that a machine without io_uring prints one warning, not one per run.
  void choose_engine(Session& session) {
    const auto engine = shape_.engine == "auto"
                            ? make_io_engine({.files = {}, .buffers = {}, .choice = io_of_environment()})->name()
                            : shape_.engine;
    if (engine == "threads") shape_.engine = engine;
    session.machine("engine", engine);
  }

  [[nodiscard]] DiskTargets make_targets(Session& session, const std::vector<DiskShape>& shapes) const {
    std::uint64_t least_block = 0;
    for (const auto& shape : shapes) least_block = std::gcd(least_block, shape.block_bytes);
    DiskTargets targets;
    bool direct = true;
    for (const auto& path : paths_) {
      targets.push_back(
          std::make_unique<DiskTarget>(path, DiskTarget::Settings{.bytes = file_bytes(),
                                                                  .seed = static_cast<std::uint64_t>(seed_) + targets.size(),
                                                                  .least_block_bytes = least_block,
                                                                  .engine = shape_.engine}));
      const auto& file = targets.back()->file();
      direct = direct && file.direct();
      if (!file.direct())
        session.warn(fmt::format("{} does not allow direct I/O: these are figures of the page cache; give a local ext4 or xfs",
                                 path.string()));
      if (shape_.block_bytes % file.alignment_bytes() != 0)
        throw base::Refused(
            fmt::format("--block-size: direct I/O in {} needs multiples of {} bytes", path.string(), file.alignment_bytes()));
      session.note(fmt::format("{}: {}, {}, a file of {}; data are checked", path.string(), io::file_system_of(path).name,
                               file.direct() ? "direct I/O" : "through the page cache", format_bytes(file.bytes())));
    }
    session.machine("direct", direct);
    return targets;
  }

  // What requests are split into, and whether two paths share a disk.
  void tell_splits(Session& session, const DiskTargets& targets) const {
    auto devices = Result::array();
    for (const auto& target : targets) {
      const auto& device = target->device();
      if (!device.known()) continue;
      const bool again = std::ranges::any_of(devices, [&](const Result& d) { return d.at("name") == device.name; });
      if (again) {
        session.warn(fmt::format("{} is on {}, as another path: they share its rate", target->path().string(), device.name));
        continue;
      }
      const auto advice = sweep_ ? "" : split_advice(device, shape_.block_bytes);
      if (!advice.empty()) session.note(advice);
      devices.push_back({{"name", device.name},
                         {"max_sectors_kb", device.most_request_bytes / kKiB},
                         {"max_hw_sectors_kb", device.possible_request_bytes / kKiB},
                         {"numa_node", device.numa_node},
                         {"advice", advice}});
    }
    session.machine("block_devices", devices);
  }

  // The nodes to measure from; -1: wherever the process runs.
  [[nodiscard]] std::vector<int> nodes(Session& session) const {
    const int count = read_topology().numa_nodes;
    if (!numa_) return {-1};
    if (count > 1) {
      std::vector<int> all(static_cast<std::size_t>(count));
      std::iota(all.begin(), all.end(), 0);
      return all;
    }
    session.note("--numa: this machine has one NUMA node, so there is nothing to compare");
    return {-1};
  }

  // Shows the progress of a pass, and passes a signal on to it.
  static DiskPass::Watch watch(Session& session, std::string what) {
    return [&session, what = std::move(what)](std::uint64_t moved, double seconds) {
      const auto done = static_cast<double>(moved);
      session.progress(fmt::format("{}: {}, {:.2f} GB/s", what, format_bytes(moved), done / std::max(seconds, 1e-9) * 1e-9));
      return !session.stopped();
    };
  }

  // Returns false if stopped.
  bool fill(Session& session, const DiskTargets& targets) const {
    const auto filled = run_together(targets, watch(session, "writing random bytes"),
                                     [](DiskTarget& target, const auto& go_on, const auto&) { return target.fill(go_on); });
    if (!sum_of(filled).whole) return false;
    if (precondition_bytes_ == 0) return true;
    const auto runs = run_together(targets, watch(session, "preconditioning"),
                                   [this](DiskTarget& target, const auto& go_on, const auto& ready) {
                                     return target.precondition(precondition_bytes_, go_on, ready);
                                   });
    session.machine("precondition_bytes", precondition_bytes_);
    report(session, {.op = "precondition", .shape = targets[0]->plain_shape()}, targets, {runs});
    return sum_of(runs).whole;
  }

  void measure_ops(Session& session, const DiskTargets& targets, const std::vector<DiskShape>& shapes, int node) {
    for (const auto op : kOps) {
      if ((op_ != "all" && op_ != name_of(op)) || session.stopped()) continue;
      try {
        measure(session, targets, op, shapes, node);
      } catch (const std::exception& error) {
        session.fail(error);
      }
    }
  }

  void measure(Session& session, const DiskTargets& targets, DiskOp op, const std::vector<DiskShape>& shapes, int node) {
    std::vector<Swept> swept;
    for (const auto& shape : shapes) {
      std::vector<std::vector<DiskRun>> runs;
      for (std::int64_t r = 0; r < session.runs() && !session.stopped(); ++r) {
        const auto what = fmt::format("{}, {} × {} × {}, run {} of {}", name_of(op), format_bytes(shape.block_bytes),
                                      shape.queue_depth, shape.threads, r + 1, session.runs());
        auto run = run_together(targets, watch(session, what), [&](DiskTarget& target, const auto& go_on, const auto& ready) {
          return target.run(shape, {.op = op, .watch = go_on, .seconds = run_seconds(session), .ready = ready});
        });
        if (sum_of(run).whole) runs.push_back(std::move(run));
      }
      if (runs.empty()) break;  // stopped in the first run
      const auto all = report(session, {.op = name_of(op), .numa_node = node, .shape = shape}, targets, runs);
      swept.push_back({shape, median(all.gb_per_s()), median(all.cpu_s_per_gib())});
    }
    if (swept.empty()) return;
    if (!session.stopped()) {
      run_together(targets, watch(session, "checking every byte"),
                   [](DiskTarget& target, const auto& go_on, const auto&) { return target.verify(go_on); });
    }
    if (!several()) note_settings(session, op, swept, run_seconds(session));
  }

  [[nodiscard]] double run_seconds(const Session& session) const {
    return static_cast<double>(seconds_) / static_cast<double>(session.runs());
  }

  // With several paths a row for each, and one for all together. Returns the figures of all.
  NvmeFigures report(Session& session, NvmeTest test, const DiskTargets& targets,
                     const std::vector<std::vector<DiskRun>>& runs) const {
    NvmeFigures all;
    for (const auto& run : runs) all.add(sum_of(run));
    std::vector<PathRates> rates;
    for (std::size_t i = 0; i < targets.size() && several(); ++i) {
      NvmeFigures own;
      for (const auto& run : runs) own.add(run[i]);
      rates.push_back({targets[i]->path().string(), own.gb_per_s()});
      test.path = rates.back().path;
      test.parts = targets[i]->device().parts_of(test.shape.block_bytes);
      session.result(own.row(test, false));
    }
    test.path = several() ? "all" : "";
    test.parts = several() ? 0 : targets[0]->device().parts_of(test.shape.block_bytes);
    session.result(all.row(test, true));
    if (several())
      for (const auto& slow : slow_paths(rates)) session.warn(describe(test.op, slow));
    return all;
  }

  void note_settings(Session& session, DiskOp op, const std::vector<Swept>& swept, double seconds) const {
    const auto& best = best_of(swept);
    const auto& path = paths_[0];
    if (sweep_) {
      session.note(
          fmt::format("\nbest for {}: {:.2f} GB/s at {:.4f} CPU s/GiB", name_of(op), best.gb_per_s, best.cpu_s_per_gib));
      session.note("  " + terrace_line(op, best.shape, file_bytes(), path));
      session.note("  DeepSpeed: " + deepspeed_section(best.shape));
    }
    session.note("  " + fio_line(op, best.shape, file_bytes(), path, seconds));
  }

  std::vector<fs::path> paths_;
  std::string op_ = "all";
  std::uint64_t bytes_ = kGiB, precondition_bytes_ = 0;
  std::int64_t depth_ = 32, threads_ = 1, seed_ = 0, seconds_ = 0;
  DiskShape shape_{.block_bytes = 8 * kMiB};
  bool sweep_ = false, numa_ = false;
};

}  // namespace

std::unique_ptr<Bench> make_nvme_bench() { return std::make_unique<NvmeBench>(); }

}  // namespace terrace::bench
