// The whole path of a chunk, from host memory to the disk and back, beside the bare I/O engine.
//
// Shows what a move costs besides its bytes: its clock, the store's choice of a place, the checksum, the lane's bookkeeping.
// Both sides move the same bytes in requests of the same size, through the same window of memory, in turns.
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
#include <terrace/core/math/philox.h>

namespace terrace::bench {
namespace {

constexpr std::uint64_t kRequestBytes = StoredChunks::kRequestBytes;
// Slots of host memory: one for each request in flight, and the same number again.
constexpr std::uint64_t kWindowBytes = 2 * StoredChunks::kQueueDepth * kRequestBytes;
constexpr std::array kKinds{ChunkKind::master};

class ChunksBench final : public Bench {
 public:
  std::string_view name() const override { return "chunks"; }
  std::string_view help() const override { return "chunks to a disk and back, with checksums, beside the bare engine"; }
  std::vector<Flag> flags() override {
    return {{"PATH", &path_, "directory on the disk; files are made in it and removed", 1, 1, {}, true},
            {"size", &bytes_, "of all chunks"},
            {"chunk-size", &chunk_bytes_, "a multiple of 4 MiB"}};
  }
  void check() override {
    demand_directory(path_);
    if (chunk_bytes_ % kRequestBytes != 0 || chunk_bytes_ > kWindowBytes / 2)
      throw base::Refused(fmt::format(
          "--chunk-size: {} is not accepted: it must be a multiple of 4 MiB, at most {}\n  see terrace bench chunks --help",
          chunk_bytes_, format_bytes(kWindowBytes / 2)));
    bytes_ = bytes_ / chunk_bytes_ * chunk_bytes_;
    if (bytes_ == 0) throw base::Refused("--size is too small for one chunk\n  see terrace bench chunks --help");
  }

  void run(Session& session) override {
    ThreadPool pool(0);
    const auto device = make_cpu_device(pool);
    const auto memory = make_pinned_memory(pool);
    const Slab window = memory->allocate(kWindowBytes);
    const std::span<std::byte> bytes(window.data(), window.bytes());
    math::fill_normal(reinterpret_cast<float*>(window.data()), static_cast<std::int64_t>(window.bytes() / sizeof(float)), 1, 1,
                      0, 1.0);
    const auto count = bytes_ / chunk_bytes_, slots = kWindowBytes / chunk_bytes_;
    StoredChunks chunks(path_, count, kKinds, chunk_bytes_, bytes, *device);
    const auto move_all = [&](IoRequest::Op op) {
      std::vector<Clock> free(slots);  // by slot: when its last move has ended
      for (std::uint64_t c = 0; c < count; ++c) {
        auto& slot = free[c % slots];
        slot = chunks.move(op, c, c % slots * chunk_bytes_, slot);
      }
      chunks.drain();
    };
    const auto run_bare = [&](IoRequest::Op op) {
      StoredChunks::Requests requests;
      for (std::uint64_t c = 0; c < count; ++c) chunks.append_bare(op, c, c % slots * chunk_bytes_, requests);
      chunks.run_bare(requests);
    };
    for (const auto op : {IoRequest::Op::write, IoRequest::Op::read}) {
      if (session.stopped()) return;
      const std::string name = op == IoRequest::Op::read ? "read" : "write";
      const std::array<std::function<void()>, 2> works{[&] { run_bare(op); }, [&] { move_all(op); }};
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
