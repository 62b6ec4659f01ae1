#include <terrace/offload/store/copy_store.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/offload/io/page_buffer.h>

namespace terrace::store {
namespace {

Error not_copied(const ChunkStore& to, ChunkId chunk, std::uint64_t offset, std::uint64_t bytes, int error_number) {
  const auto object = fmt::format("chunk {}", index(chunk));
  return {fmt::format("{} could not be copied\n  {}, {} bytes: {}\n  the store that it was read from is unchanged", object,
                      to.describe_place(chunk, offset), bytes, describe_errno(error_number)),
          ErrorKind::failed,
          {.code = code_of_errno(error_number), .path = to.path_of(offset).string(), .object = object}};
}

void write(ChunkStore& to, ChunkId chunk, std::uint64_t offset, std::span<const std::byte> bytes) {
  const auto files = to.descriptors();
  for (const auto& piece : to.pieces(offset, bytes.size())) {
    for (std::uint64_t at = 0; at < piece.bytes;) {
      const auto written = ::pwrite(files[static_cast<std::size_t>(piece.file)], bytes.data() + piece.at + at, piece.bytes - at,
                                    static_cast<off_t>(piece.offset + at));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) throw not_copied(to, chunk, offset, bytes.size(), written < 0 ? errno : ENOSPC);
      at += static_cast<std::uint64_t>(written);
    }
  }
}

}  // namespace

void write_chunk(ChunkStore& to, const ChunkDescription& chunk, std::uint64_t place_offset, std::span<const std::byte> bytes) {
  to.describe(chunk);
  const auto offset = to.place_write(chunk.chunk, place_offset, bytes.size());
  write(to, chunk.chunk, offset, bytes);
  to.end_write(chunk.chunk, offset, checksum_of(bytes));
}

void copy_store(const ChunkStore& from, ChunkStore::Options like, const std::stop_token& stop) {
  const auto chunks = from.committed();
  // Every chunk keeps its place, because the run expects it there.
  like.capacity_bytes = 0;
  for (const auto& chunk : chunks) like.capacity_bytes = std::max(like.capacity_bytes, chunk.offset + chunk.description.bytes);
  const auto to = ChunkStore::create(like);
  io::PageBuffer buffer;
  for (const auto& chunk : chunks) {
    if (stop.stop_requested()) return;
    const auto& d = chunk.description;
    const auto bytes = buffer.of(d.bytes);
    from.read_committed(chunk, bytes);
    write_chunk(*to, d, chunk.offset, bytes);
  }
  const auto commit = from.last_commit();
  to->commit(commit->step, commit->payload);
}

}  // namespace terrace::store
