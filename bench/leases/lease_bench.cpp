// What a lease of the chunk manager costs when nothing has to move, for a caller, for a stream and on eight threads; and a
// sweep over chunks of which half fit, with its passes marked and without.
//   lease_bench --benchmark_repetitions=5
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/offload/manager/chunk_manager.h>

namespace {

using namespace terrace;

struct Chunks {
  Chunks(int number, std::uint64_t bytes, int resident)
      : manager({.device_bytes = static_cast<std::uint64_t>(resident) * bytes,
                 .host_bytes = static_cast<std::uint64_t>(number) * bytes,
                 .device = device.get()}) {
    for (int i = 0; i < number; ++i) {
      ids.push_back(manager.add(bytes));
      (void)manager.acquire(ids.back(), Tier::host, Access::overwrite);
    }
  }
  ThreadPool pool{1};
  const std::unique_ptr<Device> device = make_host_device(pool);
  ChunkManager manager;
  std::vector<ChunkId> ids;
};

// Each thread leases a chunk of its own.
void lease(benchmark::State& state) {
  static Chunks chunks(8, kPageBytes, 8);
  const auto chunk = chunks.ids[static_cast<std::size_t>(state.thread_index())];
  for (auto _ : state) benchmark::DoNotOptimize(chunks.manager.acquire(chunk, Tier::device, Access::update).bytes().data());
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(lease)->UseRealTime()->Threads(1)->Threads(8);

void lease_for_a_stream(benchmark::State& state) {
  Chunks chunks(1, kPageBytes, 1);
  const auto stream = chunks.device->make_stream("bench");
  for (auto _ : state)
    benchmark::DoNotOptimize(
        chunks.manager.acquire(chunks.ids.front(), Tier::device, Access::update, {.stream = stream.get()}).bytes().data());
  stream->synchronize();
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(lease_for_a_stream)->UseRealTime();

// Per pass; `moved`: bytes up and down, relative to those of all chunks up and down.
void sweep(benchmark::State& state) {
  constexpr int kChunks = 64;
  constexpr std::uint64_t kBytes = kMiB;
  Chunks chunks(kChunks, kBytes, kChunks / 2);
  const bool marked = state.range(0) != 0;
  const auto pass = [&] {
    if (marked) chunks.manager.begin_pass();
    for (const auto chunk : chunks.ids) {
      const Lease lease = chunks.manager.acquire(chunk, Tier::device, Access::update);
      for (auto& byte : lease.bytes()) byte ^= std::byte{1};
    }
    if (marked) chunks.manager.end_pass();
  };
  for (int i = 0; i < 3; ++i) pass();
  const auto before = chunks.manager.traffic();
  for (auto _ : state) pass();
  const auto after = chunks.manager.traffic();
  state.counters["moved"] = static_cast<double>(after.upload + after.download - before.upload - before.download) /
                            (2.0 * kChunks * kBytes * static_cast<double>(state.iterations()));
}
BENCHMARK(sweep)->ArgName("marked")->Arg(0)->Arg(1)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
