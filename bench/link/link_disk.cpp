// From disk to device: the rate of an engine's reads and uploads together.
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include <terrace/bench/disk/disk_file.h>
#include <terrace/bench/disk/pattern.h>
#include <terrace/bench/io_of_environment.h>
#include <terrace/bench/link/link.h>
#include <terrace/bench/statistics.h>
#include <terrace/bench/timing.h>
#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/offload/io/io_engine.h>

namespace terrace::bench {
namespace {

constexpr std::uint64_t kLinkBlockBytes = 4 * kMiB;
constexpr std::uint32_t kLinkDepth = 16;                    // reads in flight, and as many blocks being uploaded
constexpr auto kLinkWait = std::chrono::milliseconds(100);  // the longest time until a failed upload is noticed

// A file, and the window of host memory through which its blocks pass. The device keeps only the last blocks.
class DiskUpload {
 public:
  DiskUpload(Device& device, const std::filesystem::path& directory, std::uint64_t bytes)
      : file_(directory, std::max(bytes / kLinkBlockBytes, std::uint64_t{1}) * kLinkBlockBytes),
        host_(device.host_memory()->allocate(2 * kLinkDepth * kLinkBlockBytes)),
        device_(device.memory().allocate(host_.bytes())),
        stream_(device.make_stream("upload")),
        engine_(make_io_engine({.queue_depth = kLinkDepth,
                                .files = {file_.descriptor()},
                                .buffers = {std::span(host_.data(), host_.bytes())},
                                .choice = io_of_environment()})) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      auto& slot = slots_[i];
      slot.request.buffer = host_.data() + i * kLinkBlockBytes;
      slot.request.bytes = kLinkBlockBytes;
      slot.request.done = [this, &slot](IoRequest&, int error_number) { ended(slot, error_number); };
    }
    pattern_.fill({host_.data(), host_.bytes()}, 0);
    pass(IoRequest::Op::write, false);
    file_.sync();
  }
  ~DiskUpload() { drain(); }
  DiskUpload(const DiskUpload&) = delete;
  DiskUpload& operator=(const DiskUpload&) = delete;

  [[nodiscard]] std::uint64_t bytes() const { return file_.bytes(); }
  [[nodiscard]] bool direct() const { return file_.direct(); }
  void read(bool upload) {
    if (!file_.direct()) file_.forget_cache();
    pass(IoRequest::Op::read, upload);
  }
  // Checks the last bytes that reached the device; not timed.
  void check() {
    std::vector<std::byte> sent(host_.bytes());
    pattern_.fill(sent, 0);
    read(true);
    const auto bytes = std::min<std::uint64_t>(file_.bytes(), host_.bytes());
    stream_->copy(host_.data(), device_.data(), bytes);
    stream_->synchronize();
    if (!std::equal(host_.data(), host_.data() + bytes, sent.data())) {
      throw Error(
          "the data that came from the disk into the device differ from the data written\n  the disk, the link or a memory "
          "loses data",
          ErrorKind::corrupt);
    }
  }

 private:
  struct Slot {
    IoRequest request;
    bool reading = false;
    Event uploaded;  // after it, the slot's memory is free
  };

  // Moves every block once. Slots are used in turn: a block waits for the upload of the previous block in its slot.
  void pass(IoRequest::Op op, bool upload) {
    upload_ = upload;
    const auto blocks = file_.bytes() / kLinkBlockBytes;
    for (std::uint64_t next = 0; next < blocks || engine_->in_flight() > 0;) {
      while (next < blocks && error_number_ == 0 && is_free(slots_[next % slots_.size()])) {
        auto& slot = slots_[next % slots_.size()];
        slot.request.op = op;
        slot.request.offset = next++ * kLinkBlockBytes;
        slot.reading = true;
        IoRequest* const one = &slot.request;
        engine_->submit({&one, 1});
      }
      if (error_number_ != 0 && engine_->in_flight() == 0) break;
      engine_->poll(kLinkWait);
    }
    if (error_number_ != 0) throw Error(fmt::format("the benchmark's file: {}", describe_errno(error_number_)));
    if (upload) stream_->synchronize();
  }

  [[nodiscard]] static bool is_free(const Slot& slot) { return !slot.reading && slot.uploaded.done(); }

  void ended(Slot& slot, int error_number) {
    slot.reading = false;
    if (error_number != 0) error_number_ = error_number;
    if (error_number != 0 || !upload_) return;
    stream_->copy(device_.data() + (slot.request.buffer - host_.data()), slot.request.buffer, kLinkBlockBytes);
    slot.uploaded = stream_->record();
    stream_->then([this](const std::exception_ptr&) { engine_->wake(); });
  }

  void drain() {
    upload_ = false;
    while (engine_->in_flight() > 0) engine_->poll(kLinkWait);
    stream_.reset();  // after this, nothing wakes the engine any more
  }

  const Pattern pattern_{1};
  const DiskFile file_;
  const Slab host_, device_;
  std::unique_ptr<Stream> stream_;
  const std::unique_ptr<IoEngine> engine_;
  std::array<Slot, 2 * kLinkDepth> slots_;
  bool upload_ = false;
  int error_number_ = 0;
};

}  // namespace

void measure_disk(Session& session, Device& device, const std::filesystem::path& directory, std::uint64_t bytes) {
  session.progress("writing a file …");
  DiskUpload disk(device, directory, bytes);
  if (!disk.direct()) {
    session.warn(fmt::format("{} does not allow direct I/O: these are figures of the page cache; give a local ext4 or xfs",
                             directory.string()));
  }
  disk.check();
  const std::array<std::function<void()>, 2> works{[&] { disk.read(false); }, [&] { disk.read(true); }};
  const auto seconds = time_in_turns(session, "disk to device", works);
  for (std::size_t i = 0; i < works.size(); ++i) {
    if (seconds[i].empty()) return;
    const auto gb_per_s = rates(1e-9 * static_cast<double>(disk.bytes()), seconds[i]);
    session.result({{"op", i == 0 ? "disk_to_host" : "disk_to_device"},
                    {"block_bytes", kLinkBlockBytes},
                    {"queue_depth", kLinkDepth},
                    {"gb_per_s", median(gb_per_s)},
                    {"runs", gb_per_s.size()},
                    {"spread", spread(gb_per_s)},
                    {"gdsio", i == 0 ? "-x 1 -I 0" : "-x 2 -I 0"}});
  }
}

}  // namespace terrace::bench
