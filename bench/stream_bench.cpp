// AdamW over chunks that lie on a disk: read, update, write back, several chunks of each kind under way, through the lanes and
// the store that train. Beside it, in turns, its two limits: the disk with the same reads and writes and no update, through the
// engine alone, and the update of the same chunks where they lie in memory.
#include <algorithm>
#include <array>
#include <deque>
#include <memory>

#include <fmt/format.h>

#include <terrace/bench/disk_file.h>
#include <terrace/bench/nvme_bench.h>
#include <terrace/bench/request_queue.h>
#include <terrace/bench/statistics.h>
#include <terrace/bench/timing.h>
#include <terrace/core/error.h>
#include <terrace/core/memory_resource.h>
#include <terrace/core/thread_pool.h>
#include <terrace/core/units.h>
#include <terrace/offload/mover.h>
#include <terrace/optimizers/optimizer.h>

namespace terrace::bench {
namespace {

constexpr std::uint64_t kRequestBytes = 4 * kMiB;
constexpr std::uint32_t kQueueDepth = 32;

// What an update reads, and of these what it writes back.
constexpr std::array kKinds{Kind::parameter, Kind::gradient, Kind::first_moment, Kind::second_moment};
constexpr bool is_written(std::size_t kind) { return kKinds.at(kind) != Kind::gradient; }
constexpr double kContent[] = {0.5, 0.01, 0.01, 0.0001};
constexpr std::uint64_t kReads = 4, kWrites = 3;

struct Sizes {
  std::uint64_t chunk_bytes, groups, depth;  // a group: a chunk of each kind
  [[nodiscard]] std::uint64_t chunks() const { return groups * kKinds.size(); }
  [[nodiscard]] std::uint64_t bytes_moved() const { return groups * (kReads + kWrites) * chunk_bytes; }
  [[nodiscard]] std::uint64_t window_bytes() const { return depth * kKinds.size() * chunk_bytes; }
  [[nodiscard]] std::uint64_t slot(std::uint64_t group, std::size_t kind) const {
    return (group % depth * kKinds.size() + kind) * chunk_bytes;
  }
};

class Updater {
 public:
  Updater(ThreadPool& pool, const Sizes& sizes, std::byte* window)
      : pool_(pool), sizes_(sizes), window_(window), part_{.first = 0, .count = elements()} {
    for (std::uint64_t slot = 0; slot < sizes.depth; ++slot)
      for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
        auto* const numbers = reinterpret_cast<float*>(window + sizes.slot(slot, kind));
        std::fill_n(numbers, elements(), static_cast<float>(kContent[kind]));
      }
  }
  void update(std::uint64_t group) const {
    const auto stored = [&](std::size_t kind) { return Stored{window_ + sizes_.slot(group, kind), Format::fp32, elements()}; };
    optimizer_->update(
        pool_, {.step = 1000, .learning_rate = 1e-9},
        {.parameter = stored(0), .master = {}, .gradient = stored(1), .states = {stored(2), stored(3)}, .parts = {&part_, 1}});
  }

 private:
  [[nodiscard]] std::int64_t elements() const { return static_cast<std::int64_t>(sizes_.chunk_bytes / sizeof(float)); }

  ThreadPool& pool_;
  const Sizes sizes_;
  std::byte* const window_;
  const UpdatePart part_;
  const std::unique_ptr<Optimizer> optimizer_ = make_optimizer("adamw", {});
};

// The reads and writes of all updates, in their order, with nothing between them.
class Raw {
 public:
  Raw(const std::filesystem::path& directory, const Sizes& sizes, std::span<std::byte> window)
      : sizes_(sizes), file_(directory, sizes.chunks() * sizes.chunk_bytes), window_(window) {
    engine_ = make_io_engine({.queue_depth = kQueueDepth, .files = {file_.descriptor()}, .buffers = {window}});
    // A disk answers at once for what was never written.
    for (std::uint64_t g = 0; g < sizes.groups; ++g)
      for (std::size_t kind = 0; kind < kKinds.size(); ++kind) add(g, kind, IoRequest::Op::write);
    pass();
    requests_.clear();
    for (std::uint64_t g = 0; g < sizes.groups + sizes.depth - 1; ++g)
      for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
        if (g < sizes.groups) add(g, kind, IoRequest::Op::read);
        if (g + 1 >= sizes.depth && is_written(kind)) add(g + 1 - sizes.depth, kind, IoRequest::Op::write);
      }
  }
  void pass() { run_all(*engine_, requests_, kQueueDepth); }

 private:
  void add(std::uint64_t group, std::size_t kind, IoRequest::Op op) {
    for (std::uint64_t at = 0; at < sizes_.chunk_bytes; at += kRequestBytes) {
      auto& request = requests_.emplace_back();
      request.op = op;
      request.offset = (group * kKinds.size() + kind) * sizes_.chunk_bytes + at;
      request.buffer = window_.data() + sizes_.slot(group, kind) + at;
      request.bytes = kRequestBytes;
    }
  }

  const Sizes sizes_;
  DiskFile file_;
  std::span<std::byte> window_;
  std::deque<IoRequest> requests_;
  std::unique_ptr<IoEngine> engine_;
};

class Streamed {
 public:
  Streamed(const std::filesystem::path& directory, const Sizes& sizes, std::span<std::byte> window, Device& device,
           const Updater& updater)
      : sizes_(sizes), updater_(updater), stream_(device.make_stream("updates")) {
    const auto disk_bytes = 2 * sizes.chunks() * sizes.chunk_bytes;
    store_ =
        ChunkStore::create({.paths = {directory}, .name = "terrace-bench", .capacity_bytes = disk_bytes, .temporary = true});
    for (std::uint64_t c = 0; c < sizes.chunks(); ++c)
      store_->describe({.chunk = ChunkId{static_cast<std::uint32_t>(c)},
                        .kind = kKinds[c % kKinds.size()],
                        .dtype = "fp32",
                        .bytes = sizes.chunk_bytes,
                        .ranges = {},
                        .label = fmt::format("{} of group {}", name_of(kKinds[c % kKinds.size()]), c / kKinds.size())});
    engine_ = make_io_engine({.queue_depth = kQueueDepth, .files = store_->descriptors(), .buffers = {window}});
    Mover::Parts parts;
    parts.device = &device;
    parts.host_base = window.data();
    parts.store = store_.get();
    parts.engine = engine_.get();
    parts.lanes = &lanes_;
    parts.request_bytes = kRequestBytes;
    mover_ = std::make_unique<Mover>(parts);
    for (std::uint64_t g = 0; g < sizes.groups; ++g)  // what the first pass reads
      for (std::size_t kind = 0; kind < kKinds.size(); ++kind) move(Lane::write, g, kind, {});
    mover_->drain();
  }

  void pass() {
    std::vector<Clock> free(sizes_.depth);  // when a slot's group has left
    for (std::uint64_t g = 0; g < sizes_.groups; ++g) {
      auto& slot = free[g % sizes_.depth];
      for (std::size_t kind = 0; kind < kKinds.size(); ++kind) move(Lane::read, g, kind, slot);
      lanes_.stream_wait(*stream_, Lane::compute, Clock::after(Lane::read, sequence(Lane::read)));
      const auto updated = ++sequence(Lane::compute);
      stream_->submit([this, g, updated] {
        updater_.update(g);
        lanes_.of(Lane::compute).advance(updated);
      });
      for (std::size_t kind = 0; kind < kKinds.size(); ++kind)
        if (is_written(kind)) move(Lane::write, g, kind, Clock::after(Lane::compute, updated));
      slot = Clock::after(Lane::write, sequence(Lane::write));
    }
    mover_->drain();
  }

 private:
  std::uint64_t& sequence(Lane lane) { return sequence_[index(lane)]; }
  void move(Lane lane, std::uint64_t group, std::size_t kind, const Clock& after) {
    const bool read = lane == Lane::read;
    const std::uint64_t chunk = group * kKinds.size() + kind, disk = 2 * chunk * sizes_.chunk_bytes,
                        host = sizes_.slot(group, kind);
    mover_->issue({ChunkId{static_cast<std::uint32_t>(chunk)}, read ? Tier::disk : Tier::host, read ? Tier::host : Tier::disk,
                   read ? disk : host, read ? host : disk, sizes_.chunk_bytes, ++sequence(lane), after});
  }

  const Sizes sizes_;
  const Updater& updater_;
  std::array<std::uint64_t, kLanes> sequence_{};
  Lanes lanes_;
  std::unique_ptr<ChunkStore> store_;
  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<Mover> mover_;
  std::unique_ptr<Stream> stream_;  // last: its work uses all of the above
};

class StreamBench final : public Bench {
 public:
  std::string_view name() const override { return "stream"; }
  std::string_view help() const override { return "updates of chunks on a disk, beside the disk alone and the updates alone"; }
  std::vector<Flag> flags() override {
    return {{"PATH", &path_, "directory on the disk; files are made in it and removed", 1, 1, {}, true},
            {"params", &params_, "parameters to update; 48 bytes of each are taken on the disk", 1, 100'000'000'000},
            {"chunk-size", &chunk_bytes_, "a multiple of 4 MiB"},
            {"depth", &depth_, "chunks of each kind in memory at once", 1, 64},
            {"threads", &threads_, "of the updates; 0: every core", 0, 1024}};
  }
  void check() override {
    demand_directory(path_);
    if (chunk_bytes_ % kRequestBytes != 0 || chunk_bytes_ > 256 * kMiB)
      throw Error(
          fmt::format(
              "--chunk-size: {} is not accepted: a multiple of 4 MiB, at most 256 MiB\n  see terrace bench stream --help",
              chunk_bytes_),
          Exit::usage);
  }

  void run(Session& session) override {
    const auto groups = ceil_div(static_cast<std::uint64_t>(params_) * sizeof(float), chunk_bytes_);
    const Sizes sizes{.chunk_bytes = chunk_bytes_, .groups = groups, .depth = static_cast<std::uint64_t>(depth_)};
    ThreadPool pool(static_cast<int>(threads_));
    const auto device = make_cpu_device(pool);
    const auto memory = make_pinned_memory(pool);
    const Slab window = memory->allocate(sizes.window_bytes());
    const std::span<std::byte> bytes(window.data(), sizes.window_bytes());
    const Updater updater(pool, sizes, window.data());
    Streamed streamed(path_, sizes, bytes, *device, updater);
    Raw raw(path_, sizes, bytes);
    const std::array<std::function<void()>, 3> works{[&] { streamed.pass(); }, [&] { raw.pass(); },
                                                     [&] {
                                                       for (std::uint64_t g = 0; g < sizes.groups; ++g) updater.update(g);
                                                     }};
    const auto seconds = time_in_turns(session, fmt::format("{} groups of 4 chunks", groups), works);
    if (seconds[0].empty()) return;
    std::vector<double> ratios;
    for (std::size_t r = 0; r < seconds[0].size(); ++r)
      ratios.push_back(std::max(seconds[1][r], seconds[2][r]) / seconds[0][r]);
    const auto speed = [&](std::size_t work) {
      return median(rates(1e-9 * static_cast<double>(sizes.bytes_moved()), seconds[work]));
    };
    session.result({{"op", "adamw"},
                    {"chunk_bytes", chunk_bytes_},
                    {"depth", depth_},
                    {"threads", pool.threads()},
                    {"gb_per_s", speed(0)},
                    {"disk_gb_per_s", speed(1)},
                    {"memory_gb_per_s", speed(2)},
                    {"ratio", median(ratios)},
                    {"runs", ratios.size()},
                    {"spread", spread(ratios)}});
  }

 private:
  std::filesystem::path path_;
  std::uint64_t chunk_bytes_ = 16 * kMiB;
  std::int64_t params_ = 64'000'000, depth_ = 4, threads_ = 0;
};

}  // namespace

std::unique_ptr<Bench> make_stream_bench() { return std::make_unique<StreamBench>(); }

}  // namespace terrace::bench
