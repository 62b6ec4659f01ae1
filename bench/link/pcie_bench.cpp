// The link between host and device, as terrace uses it: by copy size, kind of host memory and NUMA node; also the device's own
// memory, the latency of a launch, kernels that reach host memory, the ways between disk and device, and all GPUs at once.
#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include <terrace/bench/disk/disk_file.h>
#include <terrace/bench/host_benches.h>
#include <terrace/bench/link/disk_flow.h>
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
    return "a GPU's link: copies up, down, at once and beside other work, by kernels, on all GPUs, from and to a disk";
  }
  std::vector<Flag> flags() override {
    return {{"gpu", &index_, "which GPU: 0 is cuda:0", 0, 1023},
            {"size", &copy_bytes_, "of the largest copy; smaller ones, each a sixteenth, are measured too"},
            {"disk", &disk_, "directory on a disk: also measure from there into the device, and back"},
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
    measure_device_copies(session, *device, copy_bytes());
    measure_launches(session, *device);
    measure_hand_off(session, *device);
    if (session.stopped()) return;
    measure_zero_copy(session, *device, copy_bytes());
    const auto disk = make_disk_file(session, *device);
    measure_beside(session, *device, copy_bytes(), disk);
    if (disk && !session.stopped()) measure_disk(session, *device, disk);
    if (!session.stopped()) measure_all(session, pool);
  }

 private:
  [[nodiscard]] std::uint64_t copy_bytes() const { return round_up(copy_bytes_, kPageBytes); }

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
    const auto ends = link_while_copying(device, copy_bytes(), [&] { return machine::ends_of_pci(bus_id_); });
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

  // Null without --disk.
  std::shared_ptr<const DiskFile> make_disk_file(Session& session, Device& device) const {
    if (disk_.empty()) return nullptr;
    session.progress("writing a file …");
    auto file = make_flow_file(device, disk_, disk_bytes_);
    if (!file->direct())
      session.warn(fmt::format("{} does not allow direct I/O: these are figures of the page cache; give a local ext4 or xfs",
                               disk_.string()));
    return file;
  }

  void measure_all(Session& session, ThreadPool& pool) const {
    std::vector<std::unique_ptr<Device>> devices;
    std::vector<Device*> all;
    for (const auto& gpu : find_gpus().gpus) {
      devices.push_back(make_cuda_device(pool, {.index = gpu.index}));
      all.push_back(devices.back().get());
    }
    if (all.size() > 1) measure_all_gpus(session, all, copy_bytes());
  }

  // Returns the rate of the faster direction, in GB/s.
  double measure(Session& session, Device& device, const std::string& name, int node, MemoryResource& memory) const {
    if (session.stopped()) return 0;
    const Slab slab = memory.allocate(2 * copy_bytes());
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
