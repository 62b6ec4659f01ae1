// The state that the ranks of a run have committed, as one: their stores' indices say which elements of which tensors lie
// where, so it is read by ranges, and knows of no layout. What several stores hold is taken from the first of them that has it.
//
// It is that of the last commit that all of them have: a rank may have died between the others' commit and its own.
//
// Owner:   the caller; the stores are open, and nobody else's, until it ends. Holds one chunk at a time.
// Threads: one at a time.
// Errors:  Error(Exit::corrupt) when a part is nowhere, with the stores that are missing; Error(Exit::usage) when it is kept in
//          another way there; those of the stores.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <terrace/offload/chunk_store.h>
#include <terrace/offload/copy_store.h>
#include <terrace/optimizers/format.h>
#include <terrace/parallel/layer.h>

namespace terrace {

// How many elements a chunk has, where its bytes say it: whole pages of a dtype's numbers do, those of 8 bits each are rounded
// up.
std::optional<std::uint64_t> elements_of(const ChunkDescription& chunk);

class CommittedState {
 public:
  explicit CommittedState(std::span<const ChunkStore::Options> ranks);  // of all of them, of which some may be missing

  [[nodiscard]] Commit commit() const { return *stores_.front()->last_commit(); }
  [[nodiscard]] bool knows(Kind kind) const;  // states hold nothing before their first update

  // A chunk as another layout has it, of so many elements; what no tensor reaches is zero. What an optimizer has laid out
  // itself has no ranges: it is copied whole from a chunk of the same label, or refused.
  void read(const ChunkDescription& chunk, Format format, std::uint64_t chunk_elements, std::span<std::byte> to);
  // Weights as layers read them, in the dtype they are kept in (a WeightRange).
  void read(const ParamSpec& param, std::uint64_t first_element, const TensorView& range);

 private:
  struct Chunk {
    std::size_t store = 0;
    StoredChunk stored;
  };
  struct Part {
    std::size_t chunk = 0;
    TensorRange range;
  };

  [[noreturn]] void refuse_absent(const std::string& what) const;
  [[nodiscard]] const Part& part_with(Kind kind, const std::string& tensor, std::uint64_t element) const;
  void read_whole(const ChunkDescription& chunk, std::span<std::byte> to);
  void copy(const ChunkDescription& chunk, Format format, std::uint64_t chunk_elements, std::span<std::byte> to,
            std::uint64_t to_element, std::size_t from, std::uint64_t from_element, std::uint64_t elements);
  std::span<const std::byte> load(std::size_t chunk);

  std::vector<std::string> missing_;
  std::vector<std::unique_ptr<ChunkStore>> stores_;
  std::vector<std::uint64_t> elements_;  // a store: of its chunks
  std::vector<Chunk> chunks_;
  std::map<std::pair<Kind, std::string>, std::map<std::uint64_t, Part>> ranges_;  // by first element
  std::map<std::pair<Kind, std::string>, std::size_t> whole_;
  PageBuffer buffer_;
  std::optional<std::size_t> loaded_;
};

}  // namespace terrace
