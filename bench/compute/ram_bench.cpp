// Memory bandwidth of loops that only move bytes, on one thread and on all.

#include <fmt/format.h>

#include <terrace/bench/compute/stream_kernels.h>
#include <terrace/bench/host_benches.h>
#include <terrace/bench/statistics.h>
#include <terrace/bench/thread_counts.h>
#include <terrace/bench/timing.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/memory_resource.h>
#include <terrace/core/device/thread_pool.h>

namespace terrace::bench {
namespace {

constexpr std::size_t kCopyTaskElements = 256 * 1024;  // 1 MiB of an array: large enough for non-temporal stores
constexpr int kArrays = 4;

class RamBench final : public Bench {
 public:
  std::string_view name() const override { return "ram"; }
  std::string_view help() const override { return "memory: read, write, copy, triad and an update's mix, in GB/s"; }
  std::vector<Flag> flags() override {
    return {{"size", &array_bytes_, "of one of four arrays; larger than all caches"},
            {"threads", &threads_, "0: one thread, then all cores that this process may use", 0, 1024}};
  }

  void run(Session& session) override {
    const auto bytes = round_up(array_bytes_, kCopyTaskElements * sizeof(float));
    for (const int threads : thread_counts(threads_)) {
      if (session.stopped()) return;
      ThreadPool pool(threads);
      const auto memory = make_pinned_memory(pool);
      session.progress("taking memory …");
      const Slab slab = memory->allocate(kArrays * bytes);
      auto* const first = reinterpret_cast<float*>(slab.data());
      const auto elements = bytes / sizeof(float);
      const StreamArrays arrays{.a = first, .b = first + elements, .c = first + 2 * elements, .d = first + 3 * elements};
      for (const auto& kernel : stream_kernels()) measure(session, pool, kernel, arrays, elements);
    }
  }

 private:
  static void measure(Session& session, ThreadPool& pool, const StreamKernel& kernel, const StreamArrays& arrays,
                      std::size_t elements) {
    const auto seconds = time_runs(session, fmt::format("{}, {} threads", kernel.name, pool.threads()), [&] {
      pool.parallel_for(static_cast<std::int64_t>(elements / kCopyTaskElements), [&](std::int64_t task) {
        kernel.run(arrays, static_cast<std::size_t>(task) * kCopyTaskElements, kCopyTaskElements);
      });
    });
    if (seconds.empty()) return;
    const auto gb_per_s = rates(1e-9 * static_cast<double>(elements) * (kernel.read_bytes + kernel.write_bytes), seconds);
    session.result({{"op", kernel.name},
                    {"threads", pool.threads()},
                    {"array_bytes", elements * sizeof(float)},
                    {"gb_per_s", median(gb_per_s)},
                    {"runs", gb_per_s.size()},
                    {"spread", spread(gb_per_s)}});
  }

  std::uint64_t array_bytes_ = 256 * kMiB;
  std::int64_t threads_ = 0;
};

}  // namespace

std::unique_ptr<Bench> make_ram_bench() { return std::make_unique<RamBench>(); }

}  // namespace terrace::bench
