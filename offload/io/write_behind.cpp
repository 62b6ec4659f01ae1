#include <terrace/offload/io/write_behind.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include <terrace/core/base/error.h>
#include <terrace/core/base/files.h>
#include <terrace/offload/io/block_ring.h>
#include <terrace/offload/io/direct_io.h>
#include <terrace/offload/io/io_thread.h>

namespace terrace::io {
namespace {

// Twice the bytes that keep a drive busy while it is also read: a virtual disk serves its queue in rounds, and the requests
// submitted during one round must suffice for the next one.
constexpr std::uint64_t kWriteBytes = 2 * kMiB;
constexpr std::size_t kWrites = 32;

files::FileHandle reopened(int file) {
  files::FileHandle handle = open_again_direct(file);
  return handle ? std::move(handle) : files::FileHandle(::dup(file));
}

}  // namespace

struct WriteBehind::Impl {
  Impl(int f, const IoChoice& choice)
      : file(f), direct(reopened(f)), io({.queue_depth = kWrites, .files = {direct.get()}, .buffers = {}, .choice = choice}) {}

  const int file;
  const files::FileHandle direct;
  std::mutex mutex;
  std::condition_variable changed;
  BlockRing ring{kWrites, kWriteBytes};  // guarded by `mutex`
  std::optional<Failure> failure;
  std::array<IoRequest, kWrites> requests;  // one for each block of the ring, by the block's index
  // The contiguous bytes gathered so far: `block` holds the file's bytes [begin, end), and the first byte of `block` belongs at
  // offset `base`.
  std::byte* block = nullptr;
  std::uint64_t base = 0, begin = 0, end = 0;
  IoThread io;  // last: it uses all of the above

  void open_row(std::uint64_t offset) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return ring.any_free(); });
    block = ring.take();
    base = offset / kWriteBytes * kWriteBytes;
    begin = end = offset;
  }

  void close_row() {
    if (!block) return;
    const auto first = std::min(round_up(begin, kPageBytes), end), last = std::max(end / kPageBytes * kPageBytes, first);
    write_edge(begin, first);
    write_edge(last, end);
    auto* const full = std::exchange(block, nullptr);
    if (first == last) {
      const std::lock_guard lock(mutex);
      return ring.give_back(full);
    }
    auto& request = requests.at(static_cast<std::size_t>(full - ring.bytes().data()) / kWriteBytes);
    request.op = IoRequest::Op::write;
    request.offset = first;
    request.buffer = full + (first - base);
    request.bytes = last - first;
    request.done = [this](IoRequest& ended, int error_number) { write_ended(ended, error_number); };
    io.submit(request);
  }

  void write_ended(const IoRequest& request, int error_number) {
    const auto at = static_cast<std::uint64_t>(request.buffer - ring.bytes().data()) / kWriteBytes;
    const std::lock_guard lock(mutex);
    ring.give_back(ring.bytes().data() + at * kWriteBytes);
    if (error_number != 0 && !failure) failure = Failure{error_number, request.offset, request.bytes};
    changed.notify_all();
  }

  void write_edge(std::uint64_t from, std::uint64_t to) {
    while (from < to) {
      const auto put = ::pwrite(file, block + (from - base), to - from, static_cast<off_t>(from));
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = Failure{put < 0 ? errno : ENOSPC, from, to - from};
        return;
      }
      from += static_cast<std::uint64_t>(put);
    }
  }

  [[nodiscard]] std::optional<Failure> failed() {
    const std::lock_guard lock(mutex);
    return failure;
  }
};

WriteBehind::WriteBehind(int file, const IoChoice& choice) : impl_(std::make_unique<Impl>(file, choice)) {}
WriteBehind::~WriteBehind() = default;

std::optional<WriteBehind::Failure> WriteBehind::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  return write(offset, bytes.size(), [&](std::span<std::byte> piece) {
    std::memcpy(piece.data(), bytes.data(), piece.size());
    bytes = bytes.subspan(piece.size());
  });
}

std::optional<WriteBehind::Failure> WriteBehind::write(std::uint64_t offset, std::uint64_t bytes, const Fill& fill) {
  auto& impl = *impl_;
  for (const auto end = offset + bytes; offset < end;) {
    if (impl.block && offset != impl.end) impl.close_row();
    if (!impl.block) impl.open_row(offset);
    const auto n = std::min(end, impl.base + kWriteBytes) - offset;
    fill({impl.block + (offset - impl.base), n});
    impl.end = offset += n;
    if (impl.end == impl.base + kWriteBytes) impl.close_row();
  }
  return impl.failed();
}

std::optional<WriteBehind::Failure> WriteBehind::drain() {
  auto& impl = *impl_;
  impl.close_row();
  std::unique_lock lock(impl.mutex);
  impl.changed.wait(lock, [&] { return impl.ring.all_free(); });
  return impl.failure;
}

}  // namespace terrace::io
