// Compares the checksums that chunks could use: XXH3-64 (as in the store, for each instruction set) and hardware CRC32C, with
// one stream and with three at once (Intel's "Fast CRC computation for iSCSI polynomial": the instruction takes three cycles,
// and a new one can start in each).
//   checksum_bench --benchmark_repetitions=5
#include <benchmark/benchmark.h>
#include <nmmintrin.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include <terrace/offload/store/checksum_kernels.h>

namespace {

__attribute__((target("sse4.2"))) std::uint64_t crc32c(std::span<const std::byte> bytes) {
  std::uint64_t crc = ~0U;
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  return ~crc;
}

// An exact CRC would combine the results of the three streams by a multiplication once per block. Here they are only put side
// by side, which favours CRC32C.
__attribute__((target("sse4.2"))) std::uint64_t crc32c_three_way(std::span<const std::byte> bytes) {
  const auto third = bytes.size() / 24 * 8;
  std::uint64_t a = ~0U, b = 0, c = 0;
  for (std::size_t at = 0; at < third; at += 8) {
    std::uint64_t x = 0, y = 0, z = 0;
    std::memcpy(&x, bytes.data() + at, 8);
    std::memcpy(&y, bytes.data() + third + at, 8);
    std::memcpy(&z, bytes.data() + 2 * third + at, 8);
    a = _mm_crc32_u64(a, x);
    b = _mm_crc32_u64(b, y);
    c = _mm_crc32_u64(c, z);
  }
  return a ^ (b << 16) ^ (c << 32);
}

template <class Checksum>
void run(benchmark::State& state, Checksum checksum) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(state.range(0)));
  std::mt19937_64 random(1);
  for (auto& b : bytes) b = static_cast<std::byte>(random());
  for (auto _ : state) benchmark::DoNotOptimize(checksum(std::span<const std::byte>(bytes)));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void sizes(benchmark::internal::Benchmark* b) {
  for (const std::int64_t bytes : {64 << 10, 4 << 20, 256 << 20}) b->Arg(bytes);
}

void xxh3(benchmark::State& state, terrace::store::ChecksumKernel kernel) {
  run(state, [kernel](auto bytes) { return kernel(bytes.data(), bytes.size()); });
}
void crc32c_one(benchmark::State& state) { run(state, crc32c); }
void crc32c_three(benchmark::State& state) { run(state, crc32c_three_way); }
BENCHMARK(crc32c_one)->Apply(sizes);
BENCHMARK(crc32c_three)->Apply(sizes);

}  // namespace

int main(int argc, char** argv) {
  constexpr const char* kNames[] = {"xxh3/baseline", "xxh3/avx2", "xxh3/avx512"};
  const auto kernels = terrace::store::checksum_kernels();
  for (std::size_t k = 0; k < kernels.size(); ++k) benchmark::RegisterBenchmark(kNames[k], xxh3, kernels[k])->Apply(sizes);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
