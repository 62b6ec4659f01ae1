// AdamW on chunks that are on a disk: read, update, write back, with several chunks of each kind under way, through the lanes
// and the store that training uses. In turns with it run its two limits: the same reads and writes without updates, through the
// engine alone; and the updates of the same chunks in memory.
#include <algorithm>
#include <array>
#include <memory>

#include <fmt/format.h>

#include <terrace/bench/disk/disk_file.h>
#include <terrace/bench/disk/nvme_bench.h>
#include <terrace/bench/disk/stored_chunks.h>
#include <terrace/bench/statistics.h>
#include <terrace/bench/timing.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/memory_resource.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/optimizers/optimizer.h>

namespace terrace::bench {
namespace {

using Op = IoRequest::Op;

// The kinds that an update reads, and those of them that it writes back.
constexpr std::array kStreamKinds{ChunkKind::parameter, ChunkKind::gradient, ChunkKind::first_moment, ChunkKind::second_moment};
constexpr bool is_written(std::size_t kind) { return kStreamKinds.at(kind) != ChunkKind::gradient; }
constexpr double kContent[] = {0.5, 0.01, 0.01, 0.0001};
constexpr std::uint64_t kReads = 4, kWrites = 3;

struct Sizes {
  std::uint64_t chunk_bytes, groups, depth;  // a group has one chunk of each kind
  [[nodiscard]] std::uint64_t chunks() const { return groups * kStreamKinds.size(); }
  [[nodiscard]] std::uint64_t bytes_moved() const { return groups * (kReads + kWrites) * chunk_bytes; }
  [[nodiscard]] std::uint64_t window_bytes() const { return depth * kStreamKinds.size() * chunk_bytes; }
  [[nodiscard]] std::uint64_t chunk(std::uint64_t group, std::size_t kind) const { return group * kStreamKinds.size() + kind; }
  [[nodiscard]] std::uint64_t slot(std::uint64_t group, std::size_t kind) const {  // offset in the window
    return chunk(group % depth, kind) * chunk_bytes;
  }
};

class Updater {
 public:
  Updater(ThreadPool& pool, const Sizes& sizes, std::byte* window)
      : pool_(pool), sizes_(sizes), window_(window), part_{.first = 0, .count = elements()} {
    for (std::uint64_t slot = 0; slot < sizes.depth; ++slot)
      for (std::size_t kind = 0; kind < kStreamKinds.size(); ++kind) {
        auto* const numbers = reinterpret_cast<float*>(window + sizes.slot(slot, kind));
        std::fill_n(numbers, elements(), static_cast<float>(kContent[kind]));
      }
  }
  void update(std::uint64_t group) const {
    const auto stored = [&](std::size_t kind) {
      return Stored{window_ + sizes_.slot(group, kind), rules::Format::fp32, elements()};
    };
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

// The reads and writes of all updates, in the same order, without waiting between them: a slot may still be written from while
// the next read overwrites it. That changes no byte, because at the end of a streamed pass all groups are equal, on the disk
// and in the window.
class Bare {
 public:
  Bare(const Sizes& sizes, StoredChunks& chunks) : chunks_(chunks) {
    const auto append = [&](Op op, std::uint64_t group, std::size_t kind) {
      chunks.append_bare(op, sizes.chunk(group, kind), sizes.slot(group, kind), requests_);
    };
    const auto behind = sizes.depth - 1;  // by how many groups the writes are behind the reads
    for (std::uint64_t g = 0; g < sizes.groups + behind; ++g)
      for (std::size_t kind = 0; kind < kStreamKinds.size(); ++kind) {
        if (g < sizes.groups) append(Op::read, g, kind);
        if (g >= behind && is_written(kind)) append(Op::write, g - behind, kind);
      }
  }
  void pass() { chunks_.run_bare(requests_); }

 private:
  StoredChunks& chunks_;
  StoredChunks::Requests requests_;
};

class Streamed {
 public:
  Streamed(const Sizes& sizes, StoredChunks& chunks, Device& device, const Updater& updater)
      : sizes_(sizes), chunks_(chunks), updater_(updater), stream_(device.make_stream("updates")) {
    for (std::uint64_t g = 0; g < sizes.groups; ++g)  // writes what the first pass will read
      for (std::size_t kind = 0; kind < kStreamKinds.size(); ++kind) move(Op::write, g, kind, {});
    chunks.drain();
  }

  void pass() {
    const offload::Lanes& lanes = chunks_.lanes();
    std::vector<Clock> free(sizes_.depth);  // by slot: when its last group has been written
    for (std::uint64_t g = 0; g < sizes_.groups; ++g) {
      auto& slot = free[g % sizes_.depth];
      Clock here;
      for (std::size_t kind = 0; kind < kStreamKinds.size(); ++kind) here = move(Op::read, g, kind, slot);
      lanes.stream_wait(*stream_, Lane::compute, here);
      stream_->submit([this, g] { updater_.update(g); });
      stream_->then([&compute = lanes.of(Lane::compute), updated = ++updated_](const std::exception_ptr& failure) {
        failure ? compute.fail(failure) : compute.advance(updated);  // the writes wait for it
      });
      for (std::size_t kind = 0; kind < kStreamKinds.size(); ++kind)
        if (is_written(kind)) slot = move(Op::write, g, kind, Clock::after(Lane::compute, updated_));
    }
    chunks_.drain();
  }

 private:
  Clock move(Op op, std::uint64_t group, std::size_t kind, const Clock& after) {
    return chunks_.move(op, sizes_.chunk(group, kind), sizes_.slot(group, kind), after);
  }

  const Sizes sizes_;
  StoredChunks& chunks_;
  const Updater& updater_;
  std::uint64_t updated_ = 0;       // the last sequence of the compute lane
  std::unique_ptr<Stream> stream_;  // last: its work uses all of the above
};

class StreamBench final : public Bench {
 public:
  std::string_view name() const override { return "stream"; }
  std::string_view help() const override { return "updates of chunks on a disk, beside the disk alone and the updates alone"; }
  std::vector<Flag> flags() override {
    return {{"PATH", &path_, "directory on the disk; files are made in it and removed", 1, 1, {}, true},
            {"params", &params_, "parameters to update; each takes 16 bytes on the disk", 1, 100'000'000'000},
            {"chunk-size", &chunk_bytes_, "a multiple of 4 MiB"},
            {"depth", &depth_, "chunks of each kind in memory at once", 1, 64},
            {"threads", &threads_, "of the updates; 0: every core", 0, 1024}};
  }
  void check() override {
    demand_directory(path_);
    if (chunk_bytes_ % StoredChunks::kRequestBytes != 0 || chunk_bytes_ > 256 * kMiB)
      throw base::Refused(
          fmt::format("--chunk-size: {} is not accepted: it must be a multiple of 4 MiB, at most 256 MiB\n  see "
                      "terrace bench stream --help",
                      chunk_bytes_));
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
    StoredChunks chunks(path_, sizes.chunks(), kStreamKinds, chunk_bytes_, bytes, *device);
    Streamed streamed(sizes, chunks, *device, updater);
    Bare bare(sizes, chunks);
    const std::array<std::function<void()>, 3> works{[&] { streamed.pass(); }, [&] { bare.pass(); },
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
