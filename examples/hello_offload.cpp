// The smallest program that uses the library: a vector of 256 MiB lives in a "device" of 32 MiB, a host of 64 MiB and a disk,
// and is updated in place, chunk by chunk. The program does not know where a chunk is when it asks for it; the manager moves
// it.
//
//   hello_offload [directory on the disk]      (default: a temporary one under the current directory)
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/offload/manager/chunk_manager.h>

using namespace terrace;

namespace {

constexpr std::uint64_t kVectorBytes = 256 * kMiB, kChunkBytes = 8 * kMiB;
constexpr std::uint64_t kChunks = kVectorBytes / kChunkBytes, kChunkElements = kChunkBytes / sizeof(float);
constexpr int kPasses = 4;

float initial(std::uint64_t element) { return static_cast<float>(element % 1000003); }
float next(float x) { return 0.5F * x + 1.0F; }

// The bytes of a lease as the floats that they hold.
std::span<float> floats(const Lease& lease) { return {reinterpret_cast<float*>(lease.bytes().data()), kChunkElements}; }

void run(const std::filesystem::path& directory) {
  // Three tiers, each with its budget. They are allocated here and never exceeded.
  ChunkManager manager(
      {.device_bytes = 32 * kMiB, .host_bytes = 64 * kMiB, .nvme_paths = {directory}, .nvme_bytes = kVectorBytes});

  // A chunk has no content until a lease overwrites it.
  std::vector<ChunkId> chunks;
  for (std::uint64_t c = 0; c < kChunks; ++c) {
    chunks.push_back(manager.add(kChunkBytes));
    const Lease lease = manager.acquire(chunks[c], Tier::device, Access::overwrite);
    for (std::uint64_t i = 0; auto& x : floats(lease)) x = initial(c * kChunkElements + i++);
  }  // the lease ends here: from now on the chunk may be moved away

  // x ← 0.5 x + 1, several times. Every other pass goes backwards, so that the chunks still in the upper tiers are used first.
  for (int pass = 0; pass < kPasses; ++pass) {
    for (std::uint64_t step = 0; step < kChunks; ++step) {
      const auto c = pass % 2 == 0 ? kChunks - 1 - step : step;
      const Lease lease = manager.acquire(chunks[c], Tier::device, Access::update);
      for (auto& x : floats(lease)) x = next(x);
    }
  }

  // Offloading moves bytes and never changes them: the result is exact.
  std::uint64_t wrong = 0;
  for (std::uint64_t c = 0; c < kChunks; ++c) {
    const Lease lease = manager.acquire(chunks[c], Tier::host, Access::read);  // a read works on the host as well
    for (std::uint64_t i = 0; const float x : floats(lease)) {
      float expected = initial(c * kChunkElements + i++);
      for (int pass = 0; pass < kPasses; ++pass) expected = next(expected);
      wrong += x != expected;
    }
  }
  if (wrong != 0) throw Error(fmt::format("{} of {} elements are wrong", wrong, kChunks * kChunkElements));

  const auto traffic = manager.traffic();
  const auto peak = manager.peak_bytes();
  fmt::print("{} elements, {} passes: every one is exact\n", kChunks * kChunkElements, kPasses);
  fmt::print("peak: device {}, host {}, disk {}\n", format_bytes(peak[Tier::device]), format_bytes(peak[Tier::host]),
             format_bytes(peak[Tier::disk]));
  const auto line = [](const char* edge, std::uint64_t bytes, std::uint64_t moves) {
    fmt::print("{:<16} {:6.3f} GB in {} moves\n", edge, static_cast<double>(bytes) * 1e-9, moves);
  };
  line("host → device", traffic.upload, traffic.uploads);
  line("device → host", traffic.download, traffic.downloads);
  line("disk → host", traffic.read, traffic.reads);
  line("host → disk", traffic.write, traffic.writes);
}

}  // namespace

int main(int argc, char** argv) {
  const bool temporary = argc < 2;
  const std::filesystem::path directory =
      temporary ? std::filesystem::path("hello_offload.tmp") : std::filesystem::path(argv[1]);
  int code = 0;
  try {
    run(directory);
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    code = 1;
  }
  if (temporary) std::filesystem::remove_all(directory);
  return code;
}
