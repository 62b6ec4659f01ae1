#include <terrace/offload/io/read_ahead.h>

#include <sys/stat.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include <terrace/core/base/files.h>
#include <terrace/offload/io/block_ring.h>
#include <terrace/offload/io/direct_io.h>
#include <terrace/offload/io/io_thread.h>

namespace terrace::io {
namespace {

// A block is large enough for a drive's full rate. Half of the blocks fill the queue of a drive that is also written; the other
// half is for the readers.
constexpr std::uint64_t kBlockBytes = kMiB;
constexpr std::size_t kBlocks = 32;

}  // namespace

struct ReadAhead::Impl {
  // Announced bytes within one block of a file.
  struct Piece {
    enum class State : std::uint8_t { waiting, reading, here, failed } state = State::waiting;
    std::size_t file = 0;
    std::uint64_t begin = 0, end = 0;  // in the file
    std::uint64_t outstanding = 0;     // announced and not yet read
    int users = 0;                     // readers that wait for it or copy from it now
    IoRequest request = {};
  };
  struct File {
    files::FileHandle handle;
    std::uint64_t whole_pages = 0;  // bytes
  };
  struct Running {
    Running(const std::vector<int>& files, const IoChoice& choice)
        : io({.queue_depth = kBlocks, .files = files, .buffers = {}, .choice = choice}) {}
    BlockRing ring{kBlocks, kBlockBytes};
    IoThread io;  // last: it uses the ring
  };
  using Pieces = std::list<Piece>;

  explicit Impl(IoChoice c) : choice(std::move(c)) {}
  const IoChoice choice;

  std::vector<File> files;
  std::mutex mutex;
  std::condition_variable changed;
  Pieces pieces;                         // in the order of their announcement
  Pieces::iterator next = pieces.end();  // the first piece that is not submitted, or the end
  std::map<std::pair<std::size_t, std::uint64_t>, Pieces::iterator> places;  // by file and begin
  std::size_t reading = 0;
  std::unique_ptr<Running> running;  // null: nothing is outstanding

  void announce_in_block(std::size_t file, std::uint64_t begin, std::uint64_t end) {
    if (!pieces.empty()) {
      auto& last = pieces.back();
      const bool same_block = last.file == file && last.begin / kBlockBytes == begin / kBlockBytes;
      if (same_block && last.state == Piece::State::waiting && last.end <= begin) {
        last.end = end;
        last.outstanding += end - begin;
        return;
      }
    }
    auto& piece = pieces.emplace_back();
    piece.file = file;
    piece.begin = begin;
    piece.end = end;
    piece.outstanding = end - begin;
    const auto here = std::prev(pieces.end());
    if (!places.try_emplace({file, begin}, here).second) return pieces.pop_back();  // announced twice: a caller reads it itself
    if (next == pieces.end()) next = here;
  }

  // With the lock held.
  void start() {
    for (; next != pieces.end() && running->ring.any_free(); ++next) {
      Piece& piece = *next;
      piece.state = Piece::State::reading;
      ++reading;
      const auto first = piece.begin / kPageBytes * kPageBytes;
      piece.request.file = static_cast<int>(piece.file);
      piece.request.offset = first;
      piece.request.buffer = running->ring.take();
      piece.request.bytes = round_up(piece.end, kPageBytes) - first;
      piece.request.done = [this, at = next](IoRequest&, int error_number) { ended(at, error_number); };
      running->io.submit(piece.request);
    }
  }

  void ended(Pieces::iterator at, int error_number) {
    const std::lock_guard lock(mutex);
    --reading;
    at->state = error_number == 0 ? Piece::State::here : Piece::State::failed;
    changed.notify_all();
  }

  // With the lock held. `bytes` bytes of the piece were read, from here or by the caller itself.
  void used(Pieces::iterator at, std::uint64_t bytes) {
    at->outstanding -= std::min(at->outstanding, bytes);
    if (at->outstanding != 0 || at->users != 0) return;
    if (at->request.buffer) running->ring.give_back(at->request.buffer);
    places.erase({at->file, at->begin});
    if (next == at) ++next;
    pieces.erase(at);
    start();
    changed.notify_all();
  }

  [[nodiscard]] Pieces::iterator find(std::size_t file, std::uint64_t offset) {
    auto at = places.upper_bound({file, offset});
    if (at == places.begin()) return pieces.end();
    const auto piece = (--at)->second;
    return piece->file == file && offset < piece->end ? piece : pieces.end();
  }
};

ReadAhead::ReadAhead(std::span<const int> files, const IoChoice& choice) : impl_(std::make_unique<Impl>(choice)) {
  for (const int file : files) {
    auto& own = impl_->files.emplace_back(Impl::File{open_again_direct(file)});
    struct stat info {};
    if (own.handle && ::fstat(own.handle.get(), &info) == 0)
      own.whole_pages = static_cast<std::uint64_t>(info.st_size) / kPageBytes * kPageBytes;
  }
}
ReadAhead::~ReadAhead() {
  impl_->running.reset();  // first: requests in flight use the pieces
}

void ReadAhead::announce(std::size_t file, std::uint64_t offset, std::uint64_t bytes) try {
  auto& impl = *impl_;
  const std::lock_guard lock(impl.mutex);
  const auto end = std::min(offset + bytes, impl.files[file].whole_pages);
  if (offset >= end) return;
  if (!impl.running) {
    std::vector<int> descriptors;
    for (const auto& each : impl.files) descriptors.push_back(each.handle.get());
    impl.running = std::make_unique<Impl::Running>(descriptors, impl.choice);
  }
  while (offset < end) {
    const auto to = std::min(end, (offset / kBlockBytes + 1) * kBlockBytes);
    impl.announce_in_block(file, offset, to);
    offset = to;
  }
  impl.start();
} catch (const std::exception&) {  // no thread or no memory: the callers read by themselves
}

std::size_t ReadAhead::read(std::size_t file, std::uint64_t offset, std::span<std::byte> to) {
  auto& impl = *impl_;
  std::size_t filled = 0;
  bool all_here = true;  // so far
  std::unique_ptr<Impl::Running> ended;
  std::unique_lock lock(impl.mutex);
  for (std::uint64_t done = 0; done < to.size();) {
    const auto at = impl.find(file, offset + done);
    if (at == impl.pieces.end()) break;
    const auto n = std::min<std::uint64_t>(to.size() - done, at->end - (offset + done));
    ++at->users;
    // Does not wait for a piece that can start only after other pieces are read: their readers may be waiting for this reader.
    impl.changed.wait(lock, [&] {
      if (at->state == Impl::Piece::State::waiting) return impl.reading == 0 && !impl.running->ring.any_free();
      return at->state != Impl::Piece::State::reading;
    });
    all_here = all_here && at->state == Impl::Piece::State::here;
    if (all_here) {
      const auto* const from = at->request.buffer + (offset + done - at->request.offset);
      lock.unlock();
      std::memcpy(to.data() + done, from, n);
      lock.lock();
      filled += n;
    }
    done += n;
    --at->users;
    impl.used(at, n);
  }
  if (impl.pieces.empty()) ended = std::move(impl.running);
  lock.unlock();  // before `ended` joins its thread
  return filled;
}

}  // namespace terrace::io
