// The checks that a fuzzer, and the test of its earlier findings, make with a store's index and record: no bytes may cause a
// crash, and an accepted text must be one that a store could have written.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include <terrace/offload/store/store_index.h>

namespace terrace::test {

inline void demand(bool good, const char* what) {
  if (!good) throw std::logic_error(what);
}

inline bool same(const StoredChunk& a, const StoredChunk& b) {
  const auto &x = a.description, &y = b.description;
  return x.chunk == y.chunk && x.kind == y.kind && x.dtype == y.dtype && x.bytes == y.bytes && x.ranges == y.ranges &&
         x.label == y.label && a.offset == b.offset && a.checksum == b.checksum;
}

// Returns whether it was accepted.
inline bool check_index(const std::string& text) {
  const auto index = store::parse_index(text);
  demand(!index || !store::other_version_of_index(text), "accepted, and of another version");
  if (!index) return false;
  demand(index->number >= 1 && !index->stripe_weights.empty() && index->generations >= 1 && index->stripe_bytes >= 4096,
         "a sum of nothing");
  for (std::size_t i = 0; i < index->chunks.size(); ++i) {
    const auto& chunk = index->chunks[i];
    const auto end = chunk.offset + chunk.description.bytes;
    demand(static_cast<std::size_t>(chunk.description.kind) < kChunkKinds, "a kind that is none");
    demand(chunk.offset % 4096 == 0 && chunk.description.bytes % 4096 == 0 && end > chunk.offset, "no place for direct I/O");
    for (std::size_t k = 0; k < i; ++k) {
      const auto& other = index->chunks[k];
      demand(chunk.description.chunk != other.description.chunk, "a chunk comes twice");
      demand(end <= other.offset || other.offset + other.description.bytes <= chunk.offset, "two chunks overlap");
    }
  }
  const auto again = store::parse_index(store::write_index(*index));
  demand(again && again->number == index->number && again->stripe_bytes == index->stripe_bytes &&
             again->stripe_weights == index->stripe_weights && again->generations == index->generations &&
             again->chunks.size() == index->chunks.size(),
         "written again, it is another index");
  for (std::size_t i = 0; i < index->chunks.size(); ++i)
    demand(same(index->chunks[i], again->chunks[i]), "written again, it is another chunk");
  return true;
}

inline bool check_record(const std::string& text) {
  const auto record = store::parse_record(text);
  demand(!record || !store::other_version_of_record(text), "accepted, and of another version");
  if (!record) return false;
  const auto again = store::parse_record(store::write_record(*record));
  demand(again && again->commit.number == record->commit.number && again->commit.step == record->commit.step &&
             again->commit.payload == record->commit.payload && again->commit.run_id == record->commit.run_id &&
             again->index_checksum == record->index_checksum,
         "written again, it is another record");
  return true;
}

// The first byte selects an index, a record, or the body of a record; the latter gets its checksum here, because a fuzzer would
// never guess it.
inline void check_store_text(std::span<const std::uint8_t> bytes) {
  if (bytes.empty()) return;
  const std::string text(bytes.begin() + 1, bytes.end());
  switch (bytes[0]) {
    case 'i': check_index(text); break;
    case 'r': check_record(text); break;
    case 'b': check_record(store::with_checksum(text)); break;
    default: break;
  }
}

}  // namespace terrace::test
