// What a lease of the chunk manager costs when nothing has to move, for a caller, for a stream and on eight threads; and a
// sweep over chunks of which half fit: with its passes marked and without, and planned, as by an engine that knows the order.
//   lease_bench --benchmark_repetitions=9 --benchmark_enable_random_interleaving=true
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/memory/eviction.h>
#include <terrace/memory/residency.h>
#include <terrace/offload/manager/chunk_manager.h>
#include <terrace/offload/move/tier_stack.h>

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

constexpr int kSwept = 64;
constexpr std::uint64_t kSweptBytes = kMiB;

void change(std::span<std::byte> bytes) {
  for (auto& byte : bytes) byte ^= std::byte{1};
}

// Per pass; `moved`: bytes up and down, relative to those of all chunks up and down.
template <class Pass, class Traffic>
void measure(benchmark::State& state, const Pass& pass, const Traffic& traffic) {
  for (int i = 0; i < 3; ++i) pass();
  const memory::Traffic before = traffic();
  for (auto _ : state) pass();
  const memory::Traffic after = traffic();
  state.counters["moved"] = static_cast<double>(after.upload + after.download - before.upload - before.download) /
                            (2.0 * kSwept * kSweptBytes * static_cast<double>(state.iterations()));
}

void sweep(benchmark::State& state) {
  Chunks chunks(kSwept, kSweptBytes, kSwept / 2);
  const bool marked = state.range(0) != 0;
  const auto pass = [&] {
    if (marked) chunks.manager.begin_pass();
    for (const auto chunk : chunks.ids) change(chunks.manager.acquire(chunk, Tier::device, Access::update).bytes());
    if (marked) chunks.manager.end_pass();
  };
  measure(state, pass, [&] { return chunks.manager.traffic(); });
}
BENCHMARK(sweep)->ArgName("marked")->Arg(0)->Arg(1)->UseRealTime()->Unit(benchmark::kMillisecond);

// The same pass without a manager: residency decides by Belady from the whole order, and two chunks are prefetched.
void planned_sweep(benchmark::State& state) {
  constexpr std::uint64_t kDevice = kSwept / 2 * kSweptBytes, kHost = kSwept * kSweptBytes, kAhead = 2;
  ThreadPool pool{1};
  const auto device = make_host_device(pool);
  offload::TierStack tiers(*device, kDevice, kHost);
  tiers.start(nullptr, {});
  memory::Belady order;
  memory::Residency residency({kDevice, kHost, 0}, order);
  std::vector<memory::Belady::UseAt> uses;
  for (std::uint64_t i = 0; i < kSwept; ++i)
    uses.push_back({residency.add(kSweptBytes, ChunkKind::parameter, memory::End::low), Tier::device, i});
  order.set_program(uses, kSwept);
  const auto use = [&](std::uint64_t position, Access access, Tier tier) {
    const Use one{uses[position].chunk, access};
    std::vector<Move> moves;
    order.set_position(position + 1);
    const auto granted = residency.acquire({&one, 1}, tier, moves);
    for (auto next = position + 1; tier == Tier::device && next <= position + kAhead; ++next)
      if (!residency.prefetch(uses[next % kSwept].chunk, tier, moves)) break;
    for (const auto& move : moves) tiers.mover().issue(move);
    tiers.lanes().wait(granted.after);
    change({(tier == Tier::device ? tiers.device_base() : tiers.host_base()) + granted.offsets[0], kSweptBytes});
    residency.release({&one, 1}, tier, {});
  };
  for (std::uint64_t i = 0; i < kSwept; ++i) use(i, Access::overwrite, Tier::host);
  const auto pass = [&] {
    for (std::uint64_t i = 0; i < kSwept; ++i) use(i, Access::update, Tier::device);
  };
  measure(state, pass, [&] { return tiers.mover().moved(); });
}
BENCHMARK(planned_sweep)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
