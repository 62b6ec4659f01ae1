// The whole path of a chunk, from host memory to the disk and back, beside the bare I/O engine.
//
// What a move adds to its bytes: its clock, the store's choice of a generation, the checksum, the lane's bookkeeping. Both
// sides move the same bytes in requests of the same size to files of their own on the same disk, in turns.
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
#include <terrace/core/philox.h>
#include <terrace/core/thread_pool.h>
#include <terrace/core/units.h>
#include <terrace/offload/mover.h>

namespace terrace::bench {
namespace {

constexpr std::uint64_t kRequestBytes = 4 * kMiB;
constexpr std::uint32_t kDepth = 32;
constexpr std::uint64_t kWindowBytes = 2 * kDepth * kRequestBytes;  // of host memory: what is in flight, and as much again

// Every block once with the engine alone, through the same window of memory.
class Raw {
 public:
  Raw(const std::filesystem::path& directory, std::uint64_t bytes, std::span<std::byte> window)
      : file_(directory, bytes), window_(window) {
    engine_ = make_io_engine({.queue_depth = kDepth, .files = {file_.descriptor()}, .buffers = {window}});
  }
  void pass(IoRequest::Op op) {
    std::deque<IoRequest> requests(file_.bytes() / kRequestBytes);
    const std::uint64_t slots = window_.size() / kRequestBytes;
    for (std::uint64_t i = 0; i < requests.size(); ++i) {
      requests[i].op = op;
      requests[i].offset = i * kRequestBytes;
      requests[i].buffer = window_.data() + i % slots * kRequestBytes;
      requests[i].bytes = kRequestBytes;
    }
    run_all(*engine_, requests, kDepth);
  }

 private:
  DiskFile file_;
  std::span<std::byte> window_;
  std::unique_ptr<IoEngine> engine_;
};

// The same bytes as chunks of a store with two generations.
class Chunks {
 public:
  Chunks(const std::filesystem::path& directory, std::uint64_t bytes, std::uint64_t chunk_bytes, std::span<std::byte> window,
         Device& device)
      : chunk_bytes_(chunk_bytes), count_(bytes / chunk_bytes), slots_(window.size() / chunk_bytes) {
    store_ =
        ChunkStore::create({.paths = {directory}, .name = "terrace-bench", .capacity_bytes = 2 * bytes, .temporary = true});
    for (std::uint64_t c = 0; c < count_; ++c)
      store_->describe({.chunk = chunk(c),
                        .kind = Kind::master,
                        .dtype = "fp32",
                        .bytes = chunk_bytes,
                        .ranges = {},
                        .label = fmt::format("block {}", c)});
    engine_ = make_io_engine({.queue_depth = kDepth, .files = store_->descriptors(), .buffers = {window}});
    Mover::Parts parts;
    parts.device = &device;
    parts.host_base = window.data();
    parts.store = store_.get();
    parts.engine = engine_.get();
    parts.lanes = &lanes_;
    parts.request_bytes = kRequestBytes;
    mover_ = std::make_unique<Mover>(parts);
  }

  void pass(IoRequest::Op op) {
    const auto lane = op == IoRequest::Op::read ? Lane::read : Lane::write;
    auto& sequence = sequence_[index(lane)];
    for (std::uint64_t c = 0; c < count_; ++c) {
      const auto disk = 2 * c * chunk_bytes_, host = c % slots_ * chunk_bytes_;
      const bool read = lane == Lane::read;
      ++sequence;
      // A slot of the window is taken again when its last move has ended.
      const auto after = c < slots_ ? Clock{} : Clock::after(lane, sequence - slots_);
      mover_->issue({chunk(c), read ? Tier::disk : Tier::host, read ? Tier::host : Tier::disk, read ? disk : host,
                     read ? host : disk, chunk_bytes_, sequence, after});
    }
    mover_->drain();
  }

 private:
  static ChunkId chunk(std::uint64_t c) { return ChunkId{static_cast<std::uint32_t>(c)}; }

  const std::uint64_t chunk_bytes_, count_, slots_;
  std::array<std::uint64_t, kLanes> sequence_{};
  Lanes lanes_;
  std::unique_ptr<ChunkStore> store_;
  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<Mover> mover_;  // last: it uses all of the above
};

class ChunksBench final : public Bench {
 public:
  std::string_view name() const override { return "chunks"; }
  std::string_view help() const override {
    return "chunks to a disk and back, with checksums and generations, beside the bare engine";
  }
  std::vector<Flag> flags() override {
    return {{"PATH", &path_, "directory on the disk; files are made in it and removed", 1, 1, {}, true},
            {"size", &bytes_, "of all chunks; three times as much is taken on the disk"},
            {"chunk-size", &chunk_bytes_, "a multiple of 4 MiB"}};
  }
  void check() override {
    demand_directory(path_);
    if (chunk_bytes_ % kRequestBytes != 0 || chunk_bytes_ > kWindowBytes / 2)
      throw Error(
          fmt::format("--chunk-size: {} is not accepted: a multiple of 4 MiB, at most {}\n  see terrace bench chunks --help",
                      chunk_bytes_, format_bytes(kWindowBytes / 2)),
          Exit::usage);
    bytes_ = bytes_ / chunk_bytes_ * chunk_bytes_;
    if (bytes_ == 0) throw Error("--size: it holds no chunk\n  see terrace bench chunks --help", Exit::usage);
  }

  void run(Session& session) override {
    ThreadPool pool(0);
    const auto device = make_cpu_device(pool);
    const auto memory = make_pinned_memory(pool);
    const Slab window = memory->allocate(kWindowBytes);
    const std::span<std::byte> bytes(window.data(), window.bytes());
    fill_normal(reinterpret_cast<float*>(window.data()), static_cast<std::int64_t>(window.bytes() / sizeof(float)), 1, 1, 0,
                1.0);
    Raw raw(path_, bytes_, bytes);
    Chunks chunks(path_, bytes_, chunk_bytes_, bytes, *device);
    for (const auto op : {IoRequest::Op::write, IoRequest::Op::read}) {
      if (session.stopped()) return;
      const std::string name = op == IoRequest::Op::read ? "read" : "write";
      const std::array<std::function<void()>, 2> works{[&] { raw.pass(op); }, [&] { chunks.pass(op); }};
      const auto seconds = time_in_turns(session, name, works);
      if (seconds[0].empty()) return;
      const auto alone = rates(1e-9 * static_cast<double>(bytes_), seconds[0]);
      const auto whole = rates(1e-9 * static_cast<double>(bytes_), seconds[1]);
      std::vector<double> ratios;
      for (std::size_t i = 0; i < alone.size(); ++i) ratios.push_back(whole[i] / alone[i]);
      session.result({{"op", name},
                      {"chunk_bytes", chunk_bytes_},
                      {"gb_per_s", median(whole)},
                      {"engine_gb_per_s", median(alone)},
                      {"ratio", median(ratios)},
                      {"runs", ratios.size()},
                      {"spread", spread(ratios)}});
    }
  }

 private:
  std::filesystem::path path_;
  std::uint64_t bytes_ = kGiB, chunk_bytes_ = 16 * kMiB;
};

}  // namespace

std::unique_ptr<Bench> make_chunks_bench() { return std::make_unique<ChunksBench>(); }

}  // namespace terrace::bench
