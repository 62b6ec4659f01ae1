#include <terrace/bench/disk/stored_chunks.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/bench/disk/request_queue.h>
#include <terrace/bench/io_of_environment.h>

namespace terrace::bench {

StoredChunks::StoredChunks(const std::filesystem::path& directory, std::uint64_t count, std::span<const ChunkKind> kinds,
                           std::uint64_t chunk_bytes, std::span<std::byte> window, Device& device)
    : chunk_bytes_(chunk_bytes),
      window_(window),
      store_(ChunkStore::create({.paths = {directory},
                                 .name = "terrace-bench",
                                 .capacity_bytes = count * chunk_bytes,
                                 .generations = 1,
                                 .temporary = true})) {
  for (std::uint64_t c = 0; c < count; ++c) {
    const ChunkKind kind = kinds[c % kinds.size()];
    store_->describe({.chunk = ChunkId{static_cast<std::uint32_t>(c)},
                      .kind = kind,
                      .dtype = "fp32",
                      .bytes = chunk_bytes,
                      .ranges = {},
                      .label = fmt::format("{} {}", name_of(kind), c / kinds.size())});
  }
  // Two engines: a ring belongs to the thread that first uses it, and moves have their own thread.
  const IoOptions options{
      .queue_depth = kQueueDepth, .files = store_->descriptors(), .buffers = {window}, .choice = io_of_environment()};
  moving_engine_ = make_io_engine(options);
  bare_engine_ = make_io_engine(options);
  offload::Mover::Parts parts;
  parts.device = &device;
  parts.host_base = window.data();
  parts.store = store_.get();
  parts.engine = moving_engine_.get();
  parts.lanes = &lanes_;
  parts.request_bytes = kRequestBytes;
  mover_ = std::make_unique<offload::Mover>(parts);
}

Clock StoredChunks::move(IoRequest::Op op, std::uint64_t chunk, std::uint64_t window_offset, const Clock& after) {
  const bool read = op == IoRequest::Op::read;
  const Lane lane = read ? Lane::read : Lane::write;
  const auto place = place_of(chunk), sequence = ++sequence_[index(lane)];
  mover_->issue({ChunkId{static_cast<std::uint32_t>(chunk)}, read ? Tier::disk : Tier::host, read ? Tier::host : Tier::disk,
                 read ? place : window_offset, read ? window_offset : place, chunk_bytes_, sequence, after});
  return Clock::after(lane, sequence);
}

void StoredChunks::append_bare(IoRequest::Op op, std::uint64_t chunk, std::uint64_t window_offset, Requests& requests) const {
  for (const auto& piece : store_->pieces(place_of(chunk), chunk_bytes_)) {
    for (std::uint64_t at = 0; at < piece.bytes; at += kRequestBytes) {
      auto& request = requests.emplace_back();
      request.op = op;
      request.file = piece.file;
      request.offset = piece.offset + at;
      request.buffer = window_.data() + window_offset + piece.at + at;
      request.bytes = std::min(kRequestBytes, piece.bytes - at);
    }
  }
}

void StoredChunks::run_bare(Requests& requests) { run_all(*bare_engine_, requests, kQueueDepth); }

}  // namespace terrace::bench
