#include <terrace/offload/store/chunk_read_ahead.h>

#include <algorithm>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include <terrace/core/base/units.h>
#include <terrace/offload/io/io_thread.h>

namespace terrace::store {
namespace {

// Twice the bytes that keep a drive busy while it is also written; see write_behind.cpp.
constexpr std::uint64_t kAheadBytes = 64 * kMiB;
constexpr std::uint64_t kReadBytes = 2 * kMiB;
constexpr std::uint32_t kReads = kAheadBytes / kReadBytes;

}  // namespace

struct ChunkReadAhead::Impl {
  // A chunk that is being read or has been read.
  struct Ahead {
    Chunk chunk;
    io::PageBuffer buffer;
    std::vector<IoRequest> requests;
    std::size_t unfinished = 0;  // requests; used only on the engine's thread
    bool failed = false;
    bool ended = false;  // guarded by `mutex`
  };

  Impl(std::vector<Chunk> in_order, const IoChoice& choice)
      : order(std::move(in_order)), io({.queue_depth = kReads, .files = files_of(order), .buffers = {}, .choice = choice}) {}

  const std::vector<Chunk> order;
  std::map<const ChunkStore*, std::size_t> first_file;  // index of a store's first file in the engine's list of files
  std::size_t next = 0;                                 // index into `order` of the next chunk to read
  std::uint64_t ahead_bytes = 0;
  std::vector<io::PageBuffer> unused;
  std::mutex mutex;
  std::condition_variable one_ended;
  std::list<Ahead> ahead;
  io::IoThread io;  // last: it uses all of the above

  std::vector<int> files_of(const std::vector<Chunk>& chunks) {
    std::vector<int> files;
    for (const auto& chunk : chunks) {
      if (!first_file.try_emplace(chunk.store, files.size()).second) continue;
      const auto more = chunk.store->descriptors();
      files.insert(files.end(), more.begin(), more.end());
    }
    return files;
  }

  void start() {
    while (next < order.size() && ahead_bytes < kAheadBytes) {
      auto& here = ahead.emplace_back();
      here.chunk = order[next++];
      ahead_bytes += here.chunk.stored->description.bytes;
      if (!unused.empty()) {
        here.buffer = std::move(unused.back());
        unused.pop_back();
      }
      cut(here);
      here.unfinished = here.requests.size();
      for (auto& request : here.requests) io.submit(request);
    }
    if (next == order.size()) unused.clear();
  }

  void cut(Ahead& here) {
    const auto bytes = round_up(here.chunk.stored->description.bytes, kPageBytes);
    // Huge pages: if a request spans more small pages than the drive accepts segments, the kernel splits it and then transfers
    // its parts, and the requests, one after the other.
    const auto to = here.buffer.of(round_up(bytes, kHugePageBytes));
    for (const auto& piece : here.chunk.store->pieces(here.chunk.stored->offset, bytes))
      for (std::uint64_t done = 0; done < piece.bytes; done += kReadBytes) {
        auto& request = here.requests.emplace_back();
        request.file = static_cast<int>(first_file.at(here.chunk.store)) + piece.file;
        request.offset = piece.offset + done;
        request.buffer = to.data() + piece.at + done;
        request.bytes = std::min(kReadBytes, piece.bytes - done);
        request.done = [this, &here](IoRequest&, int error_number) { request_ended(here, error_number); };
      }
  }

  // The requests of other chunks are under way while this one is verified.
  void request_ended(Ahead& here, int error_number) {
    if (error_number != 0) here.failed = true;
    if (--here.unfinished != 0) return;
    const auto& [description, offset, checksum] = *here.chunk.stored;
    if (!here.failed) here.failed = checksum_of(here.buffer.of(description.bytes)) != checksum;
    const std::lock_guard lock(mutex);
    here.ended = true;
    one_ended.notify_one();
  }
};

ChunkReadAhead::ChunkReadAhead(std::vector<Chunk> in_order, const IoChoice& choice)
    : impl_(std::make_unique<Impl>(std::move(in_order), choice)) {
  impl_->start();
}
ChunkReadAhead::~ChunkReadAhead() = default;

bool ChunkReadAhead::take(const StoredChunk& chunk, io::PageBuffer& buffer) {
  auto& impl = *impl_;
  const auto at = std::ranges::find(impl.ahead, &chunk, [](const Impl::Ahead& here) { return here.chunk.stored; });
  if (at == impl.ahead.end()) return false;
  {
    std::unique_lock lock(impl.mutex);
    impl.one_ended.wait(lock, [&] { return at->ended; });
  }
  const bool whole = !at->failed;
  if (whole) std::swap(buffer, at->buffer);
  impl.unused.push_back(std::move(at->buffer));
  impl.ahead_bytes -= chunk.description.bytes;
  impl.ahead.erase(at);
  impl.start();
  return whole;
}

}  // namespace terrace::store
