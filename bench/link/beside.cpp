// Copies beside other work: the opposite direction, an update by the host, a product by the GPU, reads of a disk.
#include <algorithm>
#include <cmath>
#include <memory>

#include <terrace/bench/compute/update_subject.h>
#include <terrace/bench/link/disk_flow.h>
#include <terrace/bench/link/link.h>
#include <terrace/bench/link/load.h>
#include <terrace/core/base/units.h>
#include <terrace/core/math/math.h>

namespace terrace::bench {
namespace {

constexpr std::int64_t kLeastElements = 65'536, kMostElements = 16 << 20;
constexpr std::int64_t kLeastSide = 128, kMostSide = 8192;

Load update_load(Device& device, std::uint64_t copy_bytes) {
  const auto elements = std::clamp(static_cast<std::int64_t>(copy_bytes / 16), kLeastElements, kMostElements);
  const std::shared_ptr<const Optimizer> optimizer = make_optimizer("adamw", {});
  const std::shared_ptr<MemoryResource> memory = make_pinned_memory(device.pool());
  const std::shared_ptr<const UpdateSubject> subject =
      make_update_subject(*memory, device.pool(), *optimizer, rules::Recipe::of(DType::fp32), elements);
  return {.name = "update",
          .amount = 1e-9 * static_cast<double>(subject->elements()) * subject->bytes_per_element(),
          .step = [memory, optimizer, subject] { subject->update({.step = 1000, .learning_rate = 1e-9}); }};
}

Load product_load(Device& device, std::uint64_t copy_bytes) {
  const auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(copy_bytes) / 2)) / kLeastSide * kLeastSide;
  const auto n = std::clamp(side, kLeastSide, kMostSide);
  const auto bytes = static_cast<std::size_t>(n * n) * size_of(DType::bf16);
  const auto slab = std::make_shared<Slab>(device.memory().allocate(3 * bytes));
  const TensorView a{slab->data(), DType::bf16, {n, n}}, b{slab->data() + bytes, DType::bf16, {n, n}},
      c{slab->data() + 2 * bytes, DType::bf16, {n, n}};
  const auto size = static_cast<double>(n);
  auto load = stream_load("product", 2e-9 * size * size * size, device.make_stream("product"), [=, &device](Stream& stream) {
    device.math().matmul(stream, c, a, Transpose::no, b, Transpose::no);
  });
  load.unit = "gflop_per_s";
  load.finish = [finish = load.finish, slab] { finish(); };
  return load;
}

}  // namespace

void measure_beside(Session& session, Device& device, std::uint64_t copy_bytes, const std::shared_ptr<const DiskFile>& disk) {
  const Slab host = device.host_memory()->allocate(2 * copy_bytes), gpu = device.memory().allocate(2 * copy_bytes);
  const auto upload = copy_load("upload", device, gpu.data(), host.data(), copy_bytes);
  const auto download = copy_load("download", device, host.data() + copy_bytes, gpu.data() + copy_bytes, copy_bytes);
  const Result what{{"host_memory", "pinned"}, {"copy_bytes", copy_bytes}};
  // nvbandwidth too copies one way while the other way is busy from begin to end, and tells the first rate.
  const auto named = [&](const char* theirs) {
    auto more = what;
    more["nvbandwidth"] = theirs;
    return more;
  };
  measure_pair(session, upload, download, named("host_to_device_bidirectional_memcpy_ce"));
  measure_pair(session, download, upload, named("device_to_host_bidirectional_memcpy_ce"));
  const auto beside = [&](const Load& other) {
    for (const auto* const copy : {&upload, &download})
      if (!session.stopped()) measure_pair(session, *copy, other, what);
  };
  beside(update_load(device, copy_bytes));
  beside(product_load(device, copy_bytes));
  if (disk)
    beside(flow_load(
        std::make_shared<DiskFlow>(device, disk, DiskFlow::Way::disk_to_host, 0, disk->bytes() / DiskFlow::kBlockBytes),
        "disk_read"));
}

}  // namespace terrace::bench
