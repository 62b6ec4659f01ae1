// Kernels that reach host memory themselves, over the link. They load and store 16 bytes at once, as the engine's kernels do
// that convert.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <terrace/bench/link/link.h>
#include <terrace/bench/link/load.h>
#include <terrace/core/base/error.h>
#include <terrace/core/math/math.h>

namespace terrace::bench {
namespace {

// Copies by kernels up and down, and compares; not timed.
void check_kernels(Device& device, TensorView up, TensorView there, TensorView down) {
  const auto bytes = static_cast<std::ptrdiff_t>(up.bytes());
  auto* const from = static_cast<std::byte*>(up.data);
  auto* const back = static_cast<std::byte*>(down.data);
  for (std::ptrdiff_t i = 0; i < up.elements(); ++i) {
    const auto value = static_cast<float>(i % 65'521) + 0.5F;  // a prime: no page repeats
    std::memcpy(from + i * 4, &value, sizeof value);
  }
  std::fill_n(back, bytes, std::byte{0});
  const auto stream = device.make_stream("check");
  device.math().convert(*stream, there, up);
  device.math().convert(*stream, down, there);
  stream->synchronize();
  const auto wrong = std::mismatch(from, from + bytes, back).first - from;
  if (wrong != bytes)
    throw Error(fmt::format("{}: byte {} of {} that kernels copied through host memory came back with another value\n  the "
                            "link, or a memory, loses data",
                            device.name(), wrong, bytes),
                ErrorKind::corrupt);
}

}  // namespace

void measure_zero_copy(Session& session, Device& device, std::uint64_t copy_bytes) {
  const Slab host = device.host_memory()->allocate(2 * copy_bytes), gpu = device.memory().allocate(2 * copy_bytes);
  const auto tensor = [&](const Slab& slab, std::uint64_t at) {
    return TensorView{slab.data() + at, DType::fp32, {static_cast<std::int64_t>(copy_bytes / size_of(DType::fp32))}};
  };
  const auto up = tensor(host, 0), down = tensor(host, copy_bytes), to = tensor(gpu, 0), from = tensor(gpu, copy_bytes);
  check_kernels(device, up, from, down);
  const auto load = [&](const char* name, TensorView y, TensorView x) {
    return stream_load(name, 1e-9 * static_cast<double>(copy_bytes * copies_of(copy_bytes)), device.make_stream(name),
                       [&device, y, x, copy_bytes](Stream& stream) {
                         for (std::uint64_t i = 0; i < copies_of(copy_bytes); ++i) device.math().convert(stream, y, x);
                       });
  };
  const auto read = load("kernel_read", to, up), write = load("kernel_write", down, from);
  const auto what = [&](const char* theirs) {
    return Result{{"host_memory", "pinned"}, {"copy_bytes", copy_bytes}, {"nvbandwidth", theirs}};
  };
  measure_alone(session, read, what("host_to_device_memcpy_sm"));
  measure_alone(session, write, what("device_to_host_memcpy_sm"));
  if (session.stopped()) return;
  measure_pair(session, read, write, what("host_to_device_bidirectional_memcpy_sm"));
  measure_pair(session, write, read, what("device_to_host_bidirectional_memcpy_sm"));
}

}  // namespace terrace::bench
