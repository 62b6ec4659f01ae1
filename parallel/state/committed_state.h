// The committed state of all ranks of a run, read as one. The indices of the stores say where which elements of which tensors
// lie, so the state is read by ranges, independent of any layout. A range that several stores hold is read from the first of
// them.
//
// It reads the last commit that all stores have: a rank may have died after the others committed and before it did.
//
// Owner:   the caller; the stores stay open and locked until it is destroyed. Holds at most eight chunks at a time, or one more
//          than there are stores if that is fewer.
// Threads: one at a time.
// Errors:  Error(ErrorKind::corrupt) if a part is in no store, with the names of the missing stores; Error(ErrorKind::refused)
//          if the stores keep it in another form than requested; the errors of the stores.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <terrace/offload/io/io_choice.h>
#include <terrace/offload/io/page_buffer.h>
#include <terrace/offload/store/chunk_read_ahead.h>
#include <terrace/offload/store/chunk_store.h>
#include <terrace/optimizers/formats/format.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::state {

// The number of elements in a chunk; empty if the bytes do not determine it. (Chunks of fp32, bf16 or fp64 fill whole pages
// exactly; the bytes of 8-bit numbers are rounded up.)
std::optional<std::uint64_t> elements_of(const ChunkDescription& chunk);

class CommittedState {
 public:
  explicit CommittedState(std::span<const ChunkStore::Options> ranks);  // of all ranks; some stores may be missing

  [[nodiscard]] Commit commit() const { return *stores_.front()->last_commit(); }
  [[nodiscard]] bool knows(ChunkKind kind) const;  // false for optimizer states before their first update

  // Reads a chunk of another layout, with `chunk_elements` elements; elements outside all tensors are zero. Refuses packed
  // optimizer state if an old version wrote the stores without its ranges.
  void read(const ChunkDescription& chunk, rules::Format format, std::uint64_t chunk_elements, std::span<std::byte> to);
  // Reads weights or master weights in the dtype in which they are stored (a WeightRange).
  void read(const ParamSpec& param, std::uint64_t first_element, const TensorView& range,
            ChunkKind kind = ChunkKind::parameter);
  // Tensors that will be read next, whole and in this order: their chunks are read ahead.
  struct Tensor {
    ChunkKind kind = ChunkKind::parameter;
    std::string name;
    std::uint64_t elements = 0;
  };
  void announce(std::span<const Tensor> tensors);

 private:
  struct Chunk {
    std::size_t store = 0;
    StoredChunk stored;
  };
  struct Part {
    std::size_t chunk = 0;
    TensorRange range;
  };
  // Where an element of a tensor lies, and how many elements lie there from it on.
  struct Place {
    std::size_t chunk = 0;
    std::uint64_t element = 0, elements = 0;
  };

  [[noreturn]] void refuse_absent(const std::string& what) const;
  [[nodiscard]] bool has_ranges(ChunkKind kind) const;
  [[nodiscard]] static std::optional<Place> place_in(const Part& part, std::uint64_t element);
  [[nodiscard]] Place place_of(ChunkKind kind, const std::string& tensor, std::uint64_t element);
  void read_ranges(const ChunkDescription& chunk, rules::Format format, std::uint64_t chunk_elements, std::span<std::byte> to);
  void copy(const ChunkDescription& chunk, rules::Format format, std::uint64_t chunk_elements, std::span<std::byte> to,
            std::uint64_t to_element, std::size_t from, std::uint64_t from_element, std::uint64_t elements);
  std::span<const std::byte> load(std::size_t chunk);

  std::vector<std::string> missing_;
  std::vector<std::unique_ptr<ChunkStore>> stores_;
  const IoChoice io_;                    // that of the first store
  std::vector<std::uint64_t> elements_;  // [store]: elements of a chunk
  std::vector<Chunk> chunks_;
  struct Parts {
    std::vector<Part> all;  // in the order of the stores
    std::size_t last = 0;   // index of the part read last: the next element is usually there, too
  };
  std::map<std::pair<ChunkKind, std::string>, Parts> parts_;
  // The chunks that were used last, the newest in front.
  struct Held {
    std::size_t chunk = 0;
    io::PageBuffer buffer;
  };
  std::vector<Held> held_;
  std::size_t most_held_ = 1;
  std::unique_ptr<store::ChunkReadAhead> ahead_;  // null: nothing is announced
};

}  // namespace terrace::state
