#include <terrace/bench/link/disk_flow.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include <terrace/bench/disk/pattern.h>
#include <terrace/bench/io_of_environment.h>
#include <terrace/core/base/error.h>

namespace terrace::bench {
namespace {

constexpr std::uint64_t kBlocksOfStep = 4, kForEver = std::numeric_limits<std::uint64_t>::max();
constexpr auto kFlowWait = std::chrono::milliseconds(100);  // the longest time until a failed copy is noticed

}  // namespace

DiskFlow::DiskFlow(Device& device, std::shared_ptr<const DiskFile> file, Way way, std::uint64_t first, std::uint64_t blocks)
    : file_(std::move(file)),
      way_(way),
      first_(first),
      blocks_(blocks),
      slots_(std::min<std::uint64_t>(2 * kDepth, blocks)),
      host_(device.host_memory()->allocate(slots_.size() * kBlockBytes)),
      on_device_(has_device() ? device.memory().allocate(host_.bytes()) : Slab{}),
      device_(device) {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    auto& slot = slots_[i];
    slot.request.op = reads() ? IoRequest::Op::read : IoRequest::Op::write;
    slot.request.buffer = host_.data() + i * kBlockBytes;
    slot.request.bytes = kBlockBytes;
    slot.request.done = [this, &slot](IoRequest&, int error_number) { ended(slot, error_number); };
  }
  Pattern(1).fill(window(), 0);
  if (!has_device()) return;
  const auto stream = device.make_stream("fill");  // some disks write zeros faster
  stream->copy(on_device(), host_.data(), host_.bytes());
  stream->synchronize();
}
DiskFlow::~DiskFlow() { let_go(); }

void DiskFlow::pass() {
  if (reads() && !file_->direct()) file_->forget_cache();
  next_ = arrived_ = 0;
  go_on(blocks_, blocks_);
  if (!reads() && !file_->direct()) file_->sync();
}
void DiskFlow::step() { go_on(kForEver, arrived_ + kBlocksOfStep); }
void DiskFlow::finish() {
  go_on(next_, next_);
  let_go();
}

// Starts blocks below the limit, and returns when so many have arrived.
void DiskFlow::go_on(std::uint64_t limit, std::uint64_t until) {
  try {
    advance(limit, until);
  } catch (...) {
    let_go();
    throw;
  }
}

void DiskFlow::advance(std::uint64_t limit, std::uint64_t until) {
  if (!engine_)
    engine_ = make_io_engine(
        {.queue_depth = kDepth, .files = {file_->descriptor()}, .buffers = {window()}, .choice = io_of_environment()});
  if (!stream_ && has_device()) stream_ = device_.make_stream(name_of(way_));
  while (true) {
    for (auto& slot : slots_)
      if (slot.at == At::link && slot.copied.done()) copied(slot);
    while (next_ < limit && slots_[next_ % slots_.size()].at == At::nowhere) start(slots_[next_ % slots_.size()]);
    if (arrived_ >= until) return;
    engine_->poll(kFlowWait);
    if (error_number_ != 0) throw Error(fmt::format("the benchmark's file: {}", describe_errno(error_number_)));
  }
}

void DiskFlow::start(Slot& slot) {
  slot.request.offset = (first_ + next_++ % blocks_) * kBlockBytes;
  way_ == Way::device_to_disk ? copy(slot) : submit(slot);
}
void DiskFlow::submit(Slot& slot) {
  slot.at = At::disk;
  IoRequest* const one = &slot.request;
  engine_->submit({&one, 1});
}
void DiskFlow::ended(Slot& slot, int error_number) {
  if (error_number != 0) error_number_ = error_number;
  way_ == Way::disk_to_device&& error_number_ == 0 && !ending_ ? copy(slot) : arrive(slot);
}
void DiskFlow::copy(Slot& slot) {
  slot.at = At::link;
  auto* const there = on_device_.data() + (slot.request.buffer - host_.data());
  reads() ? stream_->copy(there, slot.request.buffer, kBlockBytes) : stream_->copy(slot.request.buffer, there, kBlockBytes);
  slot.copied = stream_->record();
  stream_->then([this](const std::exception_ptr&) { engine_->wake(); });
}
void DiskFlow::copied(Slot& slot) { reads() ? arrive(slot) : submit(slot); }
void DiskFlow::arrive(Slot& slot) {
  slot.at = At::nowhere;
  ++arrived_;
}

// Waits for everything in flight; the next use makes another engine and another stream.
void DiskFlow::let_go() noexcept {
  ending_ = true;  // reads that end now are not copied
  while (engine_ && engine_->in_flight() > 0) engine_->poll(kFlowWait);
  stream_.reset();  // after this, nothing wakes the engine any more
  engine_.reset();
  ending_ = false;
}

std::shared_ptr<const DiskFile> make_flow_file(Device& device, const std::filesystem::path& directory, std::uint64_t bytes) {
  const auto blocks = std::max(bytes / DiskFlow::kBlockBytes, DiskFlow::kLeastBlocks);
  const auto file = std::make_shared<const DiskFile>(directory, blocks * DiskFlow::kBlockBytes);
  DiskFlow(device, file, DiskFlow::Way::host_to_disk, 0, blocks).pass();
  file->sync();
  return file;
}

Load flow_load(const std::shared_ptr<DiskFlow>& flow, const std::string& name) {
  return {.name = name,
          .amount = 1e-9 * static_cast<double>(kBlocksOfStep * DiskFlow::kBlockBytes),
          .step = [=] { flow->step(); },
          .finish = [=] { flow->finish(); }};
}

const char* name_of(DiskFlow::Way way) {
  switch (way) {
    case DiskFlow::Way::disk_to_host: return "disk_to_host";
    case DiskFlow::Way::disk_to_device: return "disk_to_device";
    case DiskFlow::Way::host_to_disk: return "host_to_disk";
    case DiskFlow::Way::device_to_disk: return "device_to_disk";
  }
  return "";
}

}  // namespace terrace::bench
