// From disk to device and back: the rates of an engine's requests and of the copies together, and of both ways at once.
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include <terrace/bench/disk/pattern.h>
#include <terrace/bench/link/disk_flow.h>
#include <terrace/bench/link/link.h>
#include <terrace/bench/statistics.h>
#include <terrace/bench/timing.h>
#include <terrace/core/base/error.h>

namespace terrace::bench {
namespace {

using Way = DiskFlow::Way;

struct Named {
  Way way;
  const char* gdsio;
};
constexpr std::array<Named, 4> kWays{Named{Way::disk_to_host, "-x 1 -I 0"}, Named{Way::disk_to_device, "-x 2 -I 0"},
                                     Named{Way::host_to_disk, "-x 1 -I 1"}, Named{Way::device_to_disk, "-x 2 -I 1"}};

// Sends bytes from the device to the disk and back, and compares the last ones of each slot; not timed.
void check_flows(Device& device, DiskFlow& down, DiskFlow& up) {
  std::vector<std::byte> sent(down.window().size());
  Pattern(2).fill(sent, 0);
  std::ranges::copy(sent, down.window().begin());
  const auto stream = device.make_stream("check");
  stream->copy(down.on_device(), down.window().data(), sent.size());
  stream->synchronize();
  std::ranges::fill(down.window(), std::byte{0});
  down.pass();
  up.pass();
  const auto bytes = std::min<std::uint64_t>(up.bytes(), sent.size());
  stream->copy(up.window().data(), up.on_device(), bytes);
  stream->synchronize();
  if (!std::equal(sent.begin(), sent.begin() + static_cast<std::ptrdiff_t>(bytes), up.window().begin())) {
    throw Error(
        "the data that came from the device over the disk into the device differ from the data sent\n  the disk, the link or a "
        "memory loses data",
        ErrorKind::corrupt);
  }
}

void measure_ways(Session& session, Device& device, const std::shared_ptr<const DiskFile>& file) {
  const auto blocks = file->bytes() / DiskFlow::kBlockBytes;
  std::vector<std::unique_ptr<DiskFlow>> flows;
  std::vector<std::function<void()>> works;
  for (const auto& named : kWays) {
    flows.push_back(std::make_unique<DiskFlow>(device, file, named.way, 0, blocks));
    works.emplace_back([&flow = *flows.back()] { flow.pass(); });
  }
  check_flows(device, *flows[3], *flows[1]);
  const auto seconds = time_in_turns(session, "disk to device and back", works);
  for (std::size_t i = 0; i < works.size(); ++i) {
    if (seconds[i].empty()) return;
    const auto gb_per_s = rates(1e-9 * static_cast<double>(file->bytes()), seconds[i]);
    session.result({{"op", name_of(kWays.at(i).way)},
                    {"block_bytes", DiskFlow::kBlockBytes},
                    {"queue_depth", DiskFlow::kDepth},
                    {"gb_per_s", median(gb_per_s)},
                    {"runs", gb_per_s.size()},
                    {"spread", spread(gb_per_s)},
                    {"gdsio", kWays.at(i).gdsio}});
  }
}

}  // namespace

void measure_disk(Session& session, Device& device, const std::shared_ptr<const DiskFile>& file) {
  measure_ways(session, device, file);
  if (session.stopped()) return;
  // Each way has its half of the file.
  const auto half = file->bytes() / DiskFlow::kBlockBytes / 2;
  const auto load = [&](Way way, std::uint64_t first) {
    return flow_load(std::make_shared<DiskFlow>(device, file, way, first, half), name_of(way));
  };
  measure_pair(session, load(Way::disk_to_device, 0), load(Way::device_to_disk, half),
               {{"block_bytes", DiskFlow::kBlockBytes}, {"queue_depth", DiskFlow::kDepth}});
}

}  // namespace terrace::bench
