#include <terrace/bench/link/link.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <vector>

#include <fmt/format.h>

#include <terrace/bench/statistics.h>
#include <terrace/bench/timing.h>
#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/core/math/math.h>
#include <terrace/core/math/philox.h>

namespace terrace::bench {
namespace {

constexpr std::uint64_t kLeastCopyBytes = 64 * kKiB, kCopyStep = 16;
constexpr std::uint64_t kBatchBytes = 64 * kMiB, kMostCopies = 64;
constexpr int kLaunches = 1000;

std::vector<std::uint64_t> copy_sizes(std::uint64_t largest) {
  std::vector<std::uint64_t> sizes;
  for (auto bytes = std::min(kLeastCopyBytes, largest); bytes < largest; bytes *= kCopyStep) sizes.push_back(bytes);
  sizes.push_back(largest);
  return sizes;
}

void repeat(Stream& stream, std::byte* to, const std::byte* from, std::uint64_t copy_bytes) {
  for (std::uint64_t i = 0; i < copies_of(copy_bytes); ++i) stream.copy(to, from, copy_bytes);
}

// Sends random bytes up, across and down, and checks them; not timed.
void check_link(Device& device, std::span<std::byte> up, std::span<std::byte> down, const Slab& target, const Slab& source) {
  const auto stream = device.make_stream("check");
  for (std::size_t at = 0; at + 8 <= up.size(); at += 8) {
    const auto value = at * 0x9E3779B97F4A7C15ULL;
    std::memcpy(up.data() + at, &value, sizeof value);
  }
  std::ranges::fill(down, std::byte{0});
  stream->copy(target.data(), up.data(), up.size());
  stream->copy(source.data(), target.data(), up.size());
  stream->copy(down.data(), source.data(), up.size());
  stream->synchronize();
  const auto wrong = std::ranges::mismatch(up, down).in1 - up.begin();
  if (wrong != std::ssize(up)) {
    throw Error(
        fmt::format("{}: byte {} of {} came back from the device with another value\n  the link, or its memory, loses data",
                    device.name(), wrong, up.size()),
        ErrorKind::corrupt);
  }
}

}  // namespace

std::uint64_t copies_of(std::uint64_t copy_bytes) {
  return std::clamp<std::uint64_t>(kBatchBytes / copy_bytes, 1, kMostCopies);
}

double measure_link(Session& session, Device& device, const HostPlace& place) {
  const auto half = place.bytes.size() / 2;
  const auto host_up = place.bytes.first(half), host_down = place.bytes.last(half);
  const Slab target = device.memory().allocate(half), source = device.memory().allocate(half);
  check_link(device, host_up, host_down, target, source);
  const auto up = device.make_stream("upload"), down = device.make_stream("download");
  static constexpr std::array<const char*, 3> kOps{"upload", "download", "both"};
  // Copies from and to pinned memory by a copy engine are nvbandwidth's tests, too.
  static constexpr std::array<const char*, 2> kTheirs{"host_to_device_memcpy_ce", "device_to_host_memcpy_ce"};
  double fastest = 0;
  for (const auto bytes : copy_sizes(half)) {
    const auto upload = [&] { repeat(*up, target.data(), host_up.data(), bytes); };
    const auto download = [&] { repeat(*down, host_down.data(), source.data(), bytes); };
    const std::array<std::function<void()>, 3> works{[&] { upload(), up->synchronize(); },
                                                     [&] { download(), down->synchronize(); },
                                                     [&] { upload(), download(), up->synchronize(), down->synchronize(); }};
    const auto seconds = time_in_turns(
        session, fmt::format("{} memory of node {}, {}", place.memory, place.numa_node, format_bytes(bytes)), works);
    for (std::size_t i = 0; i < kOps.size(); ++i) {
      if (seconds[i].empty()) return fastest;  // stopped
      const auto moved = static_cast<double>(bytes * copies_of(bytes)) * (i == 2 ? 2 : 1);
      const auto gb_per_s = rates(1e-9 * moved, seconds[i]);
      Result row{{"op", kOps[i]},
                 {"host_memory", place.memory},
                 {"numa_node", place.numa_node},
                 {"copy_bytes", bytes},
                 {"gb_per_s", median(gb_per_s)},
                 {"runs", gb_per_s.size()},
                 {"spread", spread(gb_per_s)}};
      if (i < kTheirs.size()) fastest = std::max(fastest, median(gb_per_s));
      if (i < kTheirs.size() && place.memory == "pinned") row["nvbandwidth"] = kTheirs.at(i);
      session.result(row);
    }
  }
  return fastest;
}

machine::PciEnds link_while_copying(Device& device, std::uint64_t copy_bytes, const std::function<machine::PciEnds()>& read) {
  constexpr int kLooks = 20;  // the first copies wake the link
  const Slab host = device.host_memory()->allocate(copy_bytes), gpu = device.memory().allocate(copy_bytes);
  const auto stream = device.make_stream("upload");
  auto best = read();
  for (int look = 0; look < kLooks; ++look) {
    repeat(*stream, gpu.data(), host.data(), copy_bytes);
    if (const auto ends = read(); ends.now.bytes_s() > best.now.bytes_s()) best = ends;
    stream->synchronize();
  }
  return best;
}

void measure_device_copies(Session& session, Device& device, std::uint64_t copy_bytes) {
  const Slab from = device.memory().allocate(copy_bytes), to = device.memory().allocate(copy_bytes);
  const auto stream = device.make_stream("copy");
  const auto seconds = time_runs(session, "device memory", [&] {
    repeat(*stream, to.data(), from.data(), copy_bytes);
    stream->synchronize();
  });
  if (seconds.empty()) return;
  const auto gb_per_s = rates(2e-9 * static_cast<double>(copy_bytes * copies_of(copy_bytes)), seconds);
  session.result({{"op", "device_copy"},
                  {"copy_bytes", copy_bytes},
                  {"gb_per_s", median(gb_per_s)},
                  {"runs", gb_per_s.size()},
                  {"spread", spread(gb_per_s)}});
}

void measure_launches(Session& session, Device& device) {
  const Slab slab = device.memory().allocate(kPageBytes);
  const TensorView one{slab.data(), DType::fp32, {1}};
  const auto stream = device.make_stream("launch");
  const auto report = [&](const char* op, double launches, const std::function<void()>& work) {
    auto us = time_runs(session, op, work);
    if (us.empty()) return;
    for (auto& value : us) value *= 1e6 / launches;
    session.result({{"op", op}, {"latency_us", median(us)}, {"runs", us.size()}, {"spread", spread(us)}});
  };
  report("launch", kLaunches, [&] {
    for (int i = 0; i < kLaunches; ++i) device.math().zero(*stream, one);
    stream->synchronize();
  });
  report("launch_and_wait", 1, [&] {
    device.math().zero(*stream, one);
    stream->synchronize();
  });
}

}  // namespace terrace::bench
