// OptimizerState: AdamW steps whose states are on a disk, as a trainer that embeds terrace runs them. In turns with it runs its
// limit: the bare I/O engine reads and writes as many bytes, in the same requests.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include <terrace/bench/disk/disk_file.h>
#include <terrace/bench/disk/nvme_bench.h>
#include <terrace/bench/disk/stored_chunks.h>
#include <terrace/bench/statistics.h>
#include <terrace/bench/timing.h>
#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/memory_resource.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/optimizers/state/optimizer_state.h>

namespace terrace::bench {
namespace {

using Op = IoRequest::Op;

constexpr std::uint64_t kStates = 2;         // of AdamW
constexpr std::uint64_t kLeastHeld = 4;      // pieces of both states
constexpr std::uint64_t kWindowChunks = 16;  // of the bare engine: twice what its queue holds
constexpr std::array kBareKinds{ChunkKind::first_moment, ChunkKind::second_moment};

// Reads and writes of chunks, the writes a few chunks behind, without waiting between them.
class BareDisk {
 public:
  BareDisk(const std::filesystem::path& path, std::uint64_t chunks, std::uint64_t chunk_bytes, std::uint64_t moved,
           std::span<std::byte> window, Device& device)
      : chunks_(path, chunks, kBareKinds, chunk_bytes, window, device) {
    const auto slot = [chunk_bytes](std::uint64_t c) { return c % kWindowChunks * chunk_bytes; };
    for (std::uint64_t c = 0; c < chunks; ++c) chunks_.move(Op::write, c, slot(c), {});  // reads of holes would be free
    chunks_.drain();
    constexpr auto kBehind = kWindowChunks / 2;
    for (std::uint64_t c = 0; c < moved + kBehind; ++c) {
      if (c < moved) chunks_.append_bare(Op::read, c % chunks, slot(c), requests_);
      if (c >= kBehind) chunks_.append_bare(Op::write, (c - kBehind) % chunks, slot(c - kBehind), requests_);
    }
  }
  void pass() { chunks_.run_bare(requests_); }

 private:
  StoredChunks chunks_;
  StoredChunks::Requests requests_;
};

class StatesBench final : public Bench {
 public:
  std::string_view name() const override { return "states"; }
  std::string_view help() const override { return "steps of AdamW whose states are on a disk, beside the disk alone"; }
  std::vector<Flag> flags() override {
    return {{"PATH", &path_, "directory on the disk; files are made in it and removed", 1, 1, {}, true},
            {"params", &params_, "parameters to update; each takes 16 bytes on the disk", 1, 100'000'000'000},
            {"host-memory", &host_bytes_, "for states; at least eight chunks"},
            {"chunk-size", &chunk_bytes_, "a multiple of 4 MiB"},
            {"threads", &threads_, "of the updates; 0: every core", 0, 1024}};
  }
  void check() override {
    demand_directory(path_);
    const auto refuse = [](const std::string& why) {
      throw Error(why + "\n  see terrace bench states --help", ErrorKind::refused);
    };
    if (chunk_bytes_ % StoredChunks::kRequestBytes != 0 || chunk_bytes_ > 256 * kMiB)
      refuse(fmt::format("--chunk-size: {} is not accepted: it must be a multiple of 4 MiB, at most 256 MiB", chunk_bytes_));
    if (held() < kLeastHeld)
      refuse(
          fmt::format("--host-memory is too small: it must be at least {}", format_bytes(kLeastHeld * kStates * chunk_bytes_)));
    if (chunks() <= held()) refuse(fmt::format("--params: the states of {} parameters fit into --host-memory", params_));
  }

  void run(Session& session) override {
    ThreadPool pool(static_cast<int>(threads_));
    const auto device = make_cpu_device(pool);
    session.progress("taking memory …");
    const auto memory = make_pinned_memory(pool);
    const auto chunk_elements = chunk_bytes_ / sizeof(float), elements = chunks() * chunk_elements;
    const Slab numbers = memory->allocate(2 * elements * sizeof(float)),
               window = memory->allocate(kWindowChunks * chunk_bytes_);
    auto* const weights = reinterpret_cast<float*>(numbers.data());
    std::fill_n(weights, elements, 0.5F);
    std::fill_n(weights + elements, elements, 0.01F);

    OptimizerState state({.tiers = {.host_bytes = host_bytes_,
                                    .nvme_paths = {path_},
                                    .nvme_bytes = chunks() * kStates * chunk_bytes_,
                                    .device = device.get()},
                          .optimizer = "adamw",
                          .settings = {},
                          .recipe = "fp32",
                          .chunk_elements = chunk_elements});
    state.add("weights", std::span(weights, elements), std::span(weights + elements, elements));
    const auto step = [&] {
      state.step({.rate = 1e-9});
      state.finish_writes();
    };
    step();  // the first one reads nothing
    const auto before = state.traffic();
    step();
    const auto after = state.traffic();
    const auto read = after.read - before.read, written = after.write - before.write;
    BareDisk bare(path_, chunks() * kStates, chunk_bytes_, read / chunk_bytes_, {window.data(), window.bytes()}, *device);
    const std::array<std::function<void()>, 2> works{step, [&] { bare.pass(); }};
    const auto seconds = time_in_turns(session, fmt::format("{} chunks of {} states", chunks(), kStates), works);
    if (seconds[0].empty()) return;
    std::vector<double> ratios;
    for (std::size_t r = 0; r < seconds[0].size(); ++r) ratios.push_back(seconds[1][r] / seconds[0][r]);
    const auto speed = [&](std::size_t work) {
      return median(rates(1e-9 * static_cast<double>(read + written), seconds[work]));
    };
    session.result({{"op", "adamw"},
                    {"params", elements},
                    {"chunk_bytes", chunk_bytes_},
                    {"host_bytes", host_bytes_},
                    {"bytes_moved", read + written},
                    {"threads", pool.threads()},
                    {"gb_per_s", speed(0)},
                    {"disk_gb_per_s", speed(1)},
                    {"ratio", median(ratios)},
                    {"runs", ratios.size()},
                    {"spread", spread(ratios)}});
  }

 private:
  [[nodiscard]] std::uint64_t chunks() const {
    return ceil_div(static_cast<std::uint64_t>(params_) * sizeof(float), chunk_bytes_);
  }
  [[nodiscard]] std::uint64_t held() const { return host_bytes_ / chunk_bytes_ / kStates; }

  std::filesystem::path path_;
  std::int64_t params_ = 64'000'000, threads_ = 0;
  std::uint64_t host_bytes_ = 256 * kMiB, chunk_bytes_ = 16 * kMiB;
};

}  // namespace

std::unique_ptr<Bench> make_states_bench() { return std::make_unique<StatesBench>(); }

}  // namespace terrace::bench
