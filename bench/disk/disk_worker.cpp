#include <terrace/bench/disk/disk_worker.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/trace.h>
#include <terrace/core/math/philox.h>

namespace terrace::bench {
namespace {

constexpr auto kWait = std::chrono::milliseconds(100);  // time between two checks of `stop`

std::vector<std::uint32_t> shuffled(std::uint64_t count, std::uint64_t seed) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  for (std::uint64_t i = count; i > 1; --i)
    std::swap(order[i - 1], order[math::random_below(seed, math::stream_of("bench order"), i, i)]);
  return order;
}

}  // namespace

std::uint64_t slot_bytes(std::uint64_t block_bytes) {
  return block_bytes % kPatternBytes == 0 ? block_bytes : block_bytes + kPatternBytes;
}

DiskWorker::DiskWorker(IoEngine& engine, const Pattern& pattern, const DiskPart& part, std::span<std::byte> buffers)
    : engine_(engine), pattern_(pattern), part_(part), block_pages_(part.block_bytes / kPageBytes), slots_(part.queue_depth) {
  if (part.op == DiskOp::randread) order_ = shuffled(part.blocks, part.seed);
  idle_.reserve(slots_.size());
  batch_.reserve(slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    auto& slot = slots_[i];
    slot.buffer = buffers.data() + i * slot_bytes(part.block_bytes);
    slot.request.bytes = part.block_bytes;
    slot.request.done = [this, &slot](IoRequest&, int error_number) {
      ended(slot, error_number);
    };  // two pointers: no allocation
    idle_.push_back(&slot);
  }
}

std::uint64_t DiskWorker::block_at(std::uint64_t turn) const {
  const auto at = turn % part_.blocks;
  return part_.first_block + (order_.empty() ? at : order_[at]);
}

bool DiskWorker::more() const {
  if (part_.blocks == 0) return false;
  if (part_.for_ns > 0) return now_ns() - begin_ns_ < part_.for_ns;
  return begun_ < (part_.turns == 0 ? part_.blocks : part_.turns);
}

void DiskWorker::prepare(Slot& slot, std::uint64_t block) {
  const auto first_page = block * block_pages_;
  slot.block = block;
  auto& request = slot.request;
  request.offset = block * part_.block_bytes;
  request.buffer = slot.buffer;
  if (part_.block_bytes % kPatternBytes != 0) request.buffer += first_page % kPatternPages * kPageBytes;
  const bool write = part_.op == DiskOp::write || (part_.op == DiskOp::mixed && block % 2 == 1);
  request.op = write ? IoRequest::Op::write : IoRequest::Op::read;
  if (write) pattern_.stamp({request.buffer, part_.block_bytes}, first_page, part_.generation);
}

void DiskWorker::submit_idle(bool stopped) {
  if (stopped || idle_.empty() || !more()) return;
  batch_.clear();
  while (!idle_.empty() && more()) {
    auto& slot = *idle_.back();
    idle_.pop_back();
    prepare(slot, block_at(begun_++));
    batch_.push_back(&slot.request);
    slot.submitted_ns = now_ns();
  }
  if (!batch_.empty()) engine_.submit(batch_);
}

void DiskWorker::ended(Slot& slot, int error_number) {
  const auto now = now_ns();
  idle_.push_back(&slot);
  const auto& request = slot.request;
  const bool write = request.op == IoRequest::Op::write;
  if (error_number != 0) {
    if (wrong_.empty())
      wrong_ = fmt::format("{} bytes at offset {} of the benchmark's file could not be {}: {}", request.bytes, request.offset,
                           write ? "written" : "read", describe_errno(error_number));
    return;
  }
  ++ended_;
  axis_.add(now - begin_ns_, request.bytes, static_cast<std::uint64_t>(std::max<std::int64_t>(now - slot.submitted_ns, 0)));
  if (write) {
    std::ranges::fill(part_.generations.subspan(slot.block * block_pages_, block_pages_), part_.generation);
  } else if (wrong_.empty()) {
    check_read(slot);
  }
}

// Timed passes check one stamp of each block, at a place that depends on the block; untimed passes check whole blocks.
void DiskWorker::check_read(const Slot& slot) {
  const auto first_page = slot.block * block_pages_;
  std::optional<std::string> found;
  if (part_.check == DiskCheck::every_byte) {
    found = pattern_.check({slot.request.buffer, part_.block_bytes}, first_page,
                           part_.generations.subspan(first_page, block_pages_));
  } else {
    const auto apart = pattern_.pages_a_stamp();
    const auto page = (slot.block * 0x9E3779B97F4A7C15ULL >> 32U) % (block_pages_ / apart) * apart;
    found =
        pattern_.check_stamp(slot.request.buffer + page * kPageBytes, first_page + page, part_.generations[first_page + page]);
  }
  if (!found) return;
  wrong_ =
      fmt::format("the data read differ from the data written: {}\n  this disk, its driver or its memory loses data", *found);
  corrupt_ = true;
}

void DiskWorker::run(const std::atomic<bool>& stop, std::atomic<std::uint64_t>& moved_bytes, std::int64_t begin_ns) {
  begin_ns_ = begin_ns;
  const auto stopped = [&] { return !wrong_.empty() || stop.load(std::memory_order_relaxed); };
  submit_idle(stopped());
  while (engine_.in_flight() > 0) {
    const auto before = ended_;
    engine_.poll(kWait);
    submit_idle(stopped());
    moved_bytes.fetch_add((ended_ - before) * part_.block_bytes, std::memory_order_relaxed);
  }
  if (!wrong_.empty()) throw Error(wrong_, corrupt_ ? ErrorKind::corrupt : ErrorKind::failed);
}

}  // namespace terrace::bench
