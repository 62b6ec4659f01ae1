// The link between host and device, as terrace uses it: by copy size, kind of host memory and NUMA node; also the device's own
// memory, the latency of a launch, and the path from disk to device.
#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include <terrace/bench/disk/disk_file.h>
#include <terrace/bench/host_benches.h>
#include <terrace/bench/link/link.h>
#include <terrace/bench/link/link_advice.h>
#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/cuda.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/machine/machine.h>

namespace terrace::bench {
namespace {

class PcieBench final : public Bench {
 public:
  std::string_view name() const override { return "pcie"; }
  std::string_view help() const override {
    return "a GPU's link: copies up, down, both at once and beside other work, launches, disk to device";
  }
  std::vector<Flag> flags() override {
    return {{"gpu", &index_, "which GPU: 0 is cuda:0", 0, 1023},
            {"size", &copy_bytes_, "of the largest copy; smaller ones, each a sixteenth, are measured too"},
            {"disk", &disk_, "directory on a disk: also measure from there into the device"},
            {"disk-size", &disk_bytes_, "of the file that is made there"}};
  }
  void check() override {
    if (!disk_.empty()) demand_directory(disk_);
  }

  void run(Session& session) override {
    if (const auto found = find_gpus(); found.gpus.empty()) {
      throw Error(
          fmt::format("no CUDA device, so there is no link to measure: {}\n  {}; bench ram measures the copies of the cpu "
                      "device",
                      found.why_none, found.mend),
          ErrorKind::missing);
    }
    ThreadPool pool(0);
    const int nodes = read_topology().numa_nodes;
    for (int node = 0; node < nodes && !session.stopped(); ++node) {
      const auto device = make_cuda_device(pool, {.index = static_cast<int>(index_), .host_numa_node = nodes > 1 ? node : -1});
      if (node == 0) say_which(session);
      session.progress("taking memory …");
      fastest_gb_per_s_ = std::max(fastest_gb_per_s_, measure(session, *device, "pinned", node, *device->host_memory()));
      measure(session, *device, "pageable", node, *make_pinned_memory(pool, nodes > 1 ? node : -1));
    }
    if (session.stopped()) return;
    const auto device = make_cuda_device(pool, {.index = static_cast<int>(index_)});
    say_link(session, *device);
    measure_device_copies(session, *device, round_up(copy_bytes_, kPageBytes));
    measure_launches(session, *device);
    measure_hand_off(session, *device);
    if (session.stopped()) return;
    measure_beside(session, *device, round_up(copy_bytes_, kPageBytes), disk_, disk_bytes_);
    if (!disk_.empty() && !session.stopped()) measure_disk(session, *device, disk_, disk_bytes_);
  }

 private:
  void say_which(Session& session) {
    const auto found = find_gpus();
    const auto& gpu = found.gpus.at(static_cast<std::size_t>(index_));  // exists: make_cuda_device() has succeeded
    session.machine("gpu", gpu.name);
    session.machine("gpu_memory_bytes", gpu.memory_bytes);
    session.machine("gpu_pci_bus_id", gpu.pci_bus_id);
    session.machine("gpu_numa_node", gpu.numa_node);
    bus_id_ = gpu.pci_bus_id;
    session.note(fmt::format("cuda:{} {}, {}, PCI {}{}", index_, gpu.name, format_bytes(gpu.memory_bytes), gpu.pci_bus_id,
                             gpu.numa_node >= 0 ? fmt::format(", NUMA node {}", gpu.numa_node) : ""));
  }

  // The link while copies run, beside what card and slot could do.
  void say_link(Session& session, Device& device) const {
    const auto ends =
        link_while_copying(device, round_up(copy_bytes_, kPageBytes), [&] { return machine::ends_of_pci(bus_id_); });
    const auto possible = ends.possible();
    if (ends.now.lanes == 0) return;  // the kernel does not tell
    const auto advice = link_advice(ends, 1e9 * fastest_gb_per_s_);
    session.note(fmt::format("\nlink while copying: {}; possible: {}", describe(ends.now), describe(possible)));
    for (const auto& line : advice) session.warn(line);
    session.machine("gpu_link", {{"generation", ends.now.generation()},
                                 {"lanes", ends.now.lanes},
                                 {"possible_generation", possible.generation()},
                                 {"possible_lanes", possible.lanes},
                                 {"card_lanes", ends.card.lanes},
                                 {"slot_lanes", ends.slot.lanes},
                                 {"advice", advice}});
  }

  // Returns the rate of the faster direction, in GB/s.
  double measure(Session& session, Device& device, const std::string& name, int node, MemoryResource& memory) const {
    if (session.stopped()) return 0;
    const Slab slab = memory.allocate(2 * round_up(copy_bytes_, kPageBytes));
    return measure_link(session, device, {.memory = name, .numa_node = node, .bytes = {slab.data(), slab.bytes()}});
  }

  std::int64_t index_ = 0;
  std::uint64_t copy_bytes_ = 256 * kMiB, disk_bytes_ = 2 * kGiB;
  std::filesystem::path disk_;
  std::string bus_id_;           // of the GPU
  double fastest_gb_per_s_ = 0;  // of the copies from and to pinned memory
};

}  // namespace

std::unique_ptr<Bench> make_pcie_bench() { return std::make_unique<PcieBench>(); }

}  // namespace terrace::bench
