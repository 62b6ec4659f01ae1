// The chunks of a store that lasts: each has a name, by which a later process finds it again, and a place for two generations.
//
//   KeptChunks kept(store, residency);          // adopts what the store's last commit has
//   const ChunkId c = kept.add(description);    // a new chunk, or the committed one of that name
//   kept.flush(moves); …                        // the caller issues the moves and waits for the writes
//   kept.commit(step, payload);                 // all or nothing
//
// Owner:   a chunk manager or an optimizer's state; borrows store and residency. Threads: the owner serialises (its mutex).
// Errors:  Error(ErrorKind::refused) for a chunk that the last commit has in another form, and for text that is not UTF-8;
//          DoesNotFit if the disk has no room for two generations; those of the store. std::logic_error for a name used twice.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <terrace/memory/chunk.h>
#include <terrace/memory/residency.h>
#include <terrace/offload/store/chunk_store.h>

namespace terrace::offload {

class KeptChunks {
 public:
  // Afterwards, residency has the chunks of the last commit, with their numbers, and its content is on the disk.
  KeptChunks(ChunkStore& store, memory::Residency& residency);

  // `description.label` is the name; its number is set here, and its bytes are whole pages. The disk place is reserved now, so
  // that a commit cannot run out of room.
  ChunkId add(ChunkDescription description);
  [[nodiscard]] bool has(ChunkId chunk) const { return added_.contains(chunk); }
  [[nodiscard]] const std::set<ChunkId>& added() const { return added_; }
  // Names of committed chunks that were not added, at most `most`.
  [[nodiscard]] std::vector<std::string> left_out(std::size_t most = 3) const;

  // Decides the writes that bring all content to the disk.
  void flush(std::vector<Move>& moves);
  // Called when these writes have ended, while no other one is in flight. Chunks that the last commit has and that were not
  // added stay in the store.
  void commit(std::uint64_t step, const std::string& payload);

 private:
  void adopt();
  [[noreturn]] void refuse_other(const ChunkDescription& wanted, const ChunkDescription& stored) const;

  ChunkStore& store_;
  memory::Residency& residency_;
  std::map<std::string, ChunkDescription> committed_;  // by name, when the store was opened
  std::set<std::string> names_;                        // of the added ones
  std::set<ChunkId> added_;
};

}  // namespace terrace::offload
