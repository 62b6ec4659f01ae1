// A whole trainer without its arithmetic. The weights and gradients of twelve layers do not fit into the device and the host.
// They are filled, used in a "backward" with prefetching, updated on the host from another thread, and checked.
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include <terrace/offload/manager/chunk_manager.h>

using namespace terrace;

int main() {
  try {
    ChunkManager manager(
        {.device_bytes = 8 * kMiB, .host_bytes = 16 * kMiB, .nvme_paths = {"scratch"}, .nvme_bytes = 64 * kMiB});
    std::vector<ChunkId> weights, gradients;
    for (int layer = 0; layer < 12; ++layer) {
      weights.push_back(manager.add(2 * kMiB));
      gradients.push_back(manager.add(2 * kMiB));
      const Lease lease = manager.acquire(weights.back(), Tier::device, Access::overwrite);
      std::memset(lease.bytes().data(), layer, lease.bytes().size());
    }
    for (std::size_t layer = weights.size(); layer-- > 0;) {
      if (layer > 0) manager.prefetch(weights[layer - 1], Tier::device);
      const Use uses[] = {{weights[layer], Access::read}, {gradients[layer], Access::overwrite}};
      const Lease both = manager.acquire(uses, Tier::device);  // all or nothing
      std::memcpy(both.bytes(1).data(), both.bytes(0).data(), both.bytes(0).size());
    }
    std::thread updates([&] {
      for (std::size_t layer = 0; layer < weights.size(); ++layer) {
        const Use uses[] = {{weights[layer], Access::update}, {gradients[layer], Access::read}};
        {
          const Lease both = manager.acquire(uses, Tier::host);
          for (std::size_t i = 0; i < both.bytes(0).size(); ++i) both.bytes(0)[i] ^= both.bytes(1)[i];
        }
        manager.drop(gradients[layer]);  // the gradient is no longer needed, so it is never written to the disk
      }
    });
    updates.join();
    for (const ChunkId chunk : weights) {
      const Lease lease = manager.acquire(chunk, Tier::device, Access::read);
      if (lease.bytes().front() != std::byte{0}) return 1;
    }
    std::puts("every byte is right");
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
