#include <terrace/parallel/state/reshard.h>

#include <terrace/offload/io/page_buffer.h>
#include <terrace/offload/store/copy_store.h>
#include <terrace/parallel/state/committed_state.h>

namespace terrace::state {

void reshard(std::span<const ChunkStore::Options> from, std::span<const PlacedChunk> chunks, ChunkStore& to) {
  CommittedState state(from);
  std::uint64_t elements = 0;
  for (const auto& chunk : chunks) elements = elements_of(chunk.description).value_or(elements);
  io::PageBuffer buffer;
  for (const auto& chunk : chunks) {
    if (!state.knows(chunk.description.kind)) continue;
    const auto bytes = buffer.of(chunk.description.bytes);
    state.read(chunk.description, chunk.format, elements, bytes);
    store::write_chunk(to, chunk.description, chunk.place_offset, bytes);
  }
  const auto commit = state.commit();
  to.commit(commit.step, commit.payload);
}

}  // namespace terrace::state
