// Copies beside other work: the opposite direction, an update by the host, a product by the GPU, reads of a disk.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <memory>

#include <fmt/format.h>

#include <terrace/bench/compute/update_subject.h>
#include <terrace/bench/disk/disk_file.h>
#include <terrace/bench/disk/pattern.h>
#include <terrace/bench/disk/request_queue.h>
#include <terrace/bench/io_of_environment.h>
#include <terrace/bench/link/link.h>
#include <terrace/bench/link/load.h>
#include <terrace/bench/statistics.h>
#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/core/math/math.h>
#include <terrace/offload/io/io_engine.h>

namespace terrace::bench {
namespace {

constexpr std::int64_t kLeastElements = 65'536, kMostElements = 16 << 20;
constexpr std::int64_t kLeastSide = 128, kMostSide = 8192;
constexpr std::uint64_t kReadBytes = 4 * kMiB, kMostFileBytes = kGiB;
constexpr std::uint32_t kReads = 16, kReadsOfStep = 4;

// Work on a stream with two steps queued, so that the device never waits for the host.
class Queued {
 public:
  explicit Queued(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}
  [[nodiscard]] Stream& stream() { return *stream_; }
  void issued() {
    auto event = stream_->record();
    before_.wait();
    before_ = std::move(event);
  }
  void finish() { before_.wait(); }

 private:
  std::unique_ptr<Stream> stream_;
  Event before_;
};

Load copy_load(const std::string& name, Device& device, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  const auto queued = std::make_shared<Queued>(device.make_stream(name));
  return {.name = name,
          .amount = 1e-9 * static_cast<double>(bytes * copies_of(bytes)),
          .step =
              [=] {
                for (std::uint64_t i = 0; i < copies_of(bytes); ++i) queued->stream().copy(to, from, bytes);
                queued->issued();
              },
          .finish = [=] { queued->finish(); }};
}

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
  const auto queued = std::make_shared<Queued>(device.make_stream("product"));
  const TensorView a{slab->data(), DType::bf16, {n, n}}, b{slab->data() + bytes, DType::bf16, {n, n}},
      c{slab->data() + 2 * bytes, DType::bf16, {n, n}};
  const auto size = static_cast<double>(n);
  return {.name = "product",
          .unit = "gflop_per_s",
          .amount = 2e-9 * size * size * size,
          .step =
              [=, &device] {
                device.math().matmul(queued->stream(), c, a, Transpose::no, b, Transpose::no);
                queued->issued();
              },
          .finish = [queued, slab] { queued->finish(); }};
}

// Reads a file over and over into host memory, with sixteen requests in flight. An engine belongs to the thread that uses it,
// so the first step makes it, and finish() or an error ends it.
class DiskReads {
 public:
  DiskReads(Device& device, const std::filesystem::path& directory, std::uint64_t bytes)
      : file_(directory, std::clamp(bytes, kReads * kReadBytes, kMostFileBytes) / kReadBytes * kReadBytes),
        host_(device.host_memory()->allocate(kReads * kReadBytes)) {
    Pattern(1).fill({host_.data(), host_.bytes()}, 0);
    std::deque<IoRequest> writes(file_.bytes() / kReadBytes);
    for (std::size_t i = 0; i < writes.size(); ++i)
      writes[i] = {.op = IoRequest::Op::write,
                   .offset = i * kReadBytes,
                   .buffer = host_.data() + i % kReads * kReadBytes,
                   .bytes = kReadBytes,
                   .done = {}};
    run_all(*make_engine(), writes, kReads);
    file_.sync();
    for (std::size_t i = 0; i < kReads; ++i) {
      reads_[i].buffer = host_.data() + i * kReadBytes;
      reads_[i].bytes = kReadBytes;
      reads_[i].done = [this](IoRequest& request, int error_number) {
        ++ended_;
        if (error_number != 0) failed_ = error_number;
        if (!ending_ && failed_ == 0) submit(request);
      };
    }
  }
  DiskReads(const DiskReads&) = delete;
  DiskReads& operator=(const DiskReads&) = delete;

  void step() {
    if (!engine_) {
      engine_ = make_engine();
      ending_ = false;
      for (auto& request : reads_) submit(request);
    }
    for (const auto until = ended_ + kReadsOfStep; ended_ < until && engine_->in_flight() > 0;) engine_->poll(kWait);
    if (failed_ != 0) finish();
  }
  void finish() {
    ending_ = true;
    while (engine_ && engine_->in_flight() > 0) engine_->poll(kWait);
    engine_.reset();
    if (failed_ != 0) throw Error(fmt::format("the benchmark's file: {}", describe_errno(failed_)));
  }

 private:
  static constexpr auto kWait = std::chrono::milliseconds(100);
  void submit(IoRequest& request) {
    request.offset = next_++ * kReadBytes % file_.bytes();
    IoRequest* const one = &request;
    engine_->submit({&one, 1});
  }
  [[nodiscard]] std::unique_ptr<IoEngine> make_engine() const {
    return make_io_engine({.queue_depth = kReads,
                           .files = {file_.descriptor()},
                           .buffers = {std::span(host_.data(), host_.bytes())},
                           .choice = io_of_environment()});
  }

  const DiskFile file_;
  const Slab host_;
  std::unique_ptr<IoEngine> engine_;
  std::array<IoRequest, kReads> reads_;
  std::uint64_t next_ = 0, ended_ = 0;
  bool ending_ = false;
  int failed_ = 0;
};

Load disk_load(Device& device, const std::filesystem::path& directory, std::uint64_t bytes) {
  const auto reads = std::make_shared<DiskReads>(device, directory, bytes);
  return {.name = "disk_read",
          .amount = 1e-9 * static_cast<double>(kReadsOfStep * kReadBytes),
          .step = [reads] { reads->step(); },
          .finish = [reads] { reads->finish(); }};
}

std::vector<double> quotients(const std::vector<double>& of, const std::vector<double>& by) {
  std::vector<double> all;
  for (std::size_t i = 0; i < of.size(); ++i) all.push_back(of[i] / by[i]);
  return all;
}

void measure_pair(Session& session, const Load& copy, const Load& other, std::uint64_t copy_bytes) {
  const auto rates = rates_beside(session, copy, other);
  if (rates.beside.empty()) return;  // stopped
  Result row{{"op", copy.name + "_beside_" + other.name},
             {"host_memory", "pinned"},
             {"copy_bytes", copy_bytes},
             {"gb_per_s", median(rates.beside)},
             {"share", median(quotients(rates.beside, rates.alone))},
             {"other_" + other.unit, median(rates.other_beside)},
             {"other_share", median(quotients(rates.other_beside, rates.other_alone))},
             {"runs", rates.beside.size()},
             {"spread", spread(rates.beside)}};
  // nvbandwidth too copies one way while the other way is busy from begin to end, and tells the first rate.
  if (other.name == "download") row["nvbandwidth"] = "host_to_device_bidirectional_memcpy_ce";
  if (other.name == "upload") row["nvbandwidth"] = "device_to_host_bidirectional_memcpy_ce";
  session.result(row);
}

}  // namespace

void measure_beside(Session& session, Device& device, std::uint64_t copy_bytes, const std::filesystem::path& disk,
                    std::uint64_t disk_bytes) {
  const Slab host = device.host_memory()->allocate(2 * copy_bytes), gpu = device.memory().allocate(2 * copy_bytes);
  const auto upload = copy_load("upload", device, gpu.data(), host.data(), copy_bytes);
  const auto download = copy_load("download", device, host.data() + copy_bytes, gpu.data() + copy_bytes, copy_bytes);
  measure_pair(session, upload, download, copy_bytes);
  measure_pair(session, download, upload, copy_bytes);
  const auto beside = [&](const Load& other) {
    for (const auto* const copy : {&upload, &download})
      if (!session.stopped()) measure_pair(session, *copy, other, copy_bytes);
  };
  beside(update_load(device, copy_bytes));
  beside(product_load(device, copy_bytes));
  if (!disk.empty()) beside(disk_load(device, disk, disk_bytes));
}

}  // namespace terrace::bench
