// Chunks on disk: preallocated extent files on one or more paths, two generations per chunk, checksums, an atomic commit.
// The state on disk is the checkpoint; its index contains logical tensor names and global index ranges, so that a run with any
// layout can read it.
//
// A chunk's place is a byte range of one flat space (residency's disk Space) that is striped over the files. A chunk whose
// committed bytes are in one generation is written to the other; commit() makes all written generations the committed
// ones at once, by an index file and a record with a checksum, both synced. Gradients and activations have one generation and
// belong to no commit.
//
// Files in <path>/<name>/: `data` (chunks) and `lock`; in the first path also `index.<n>.json` and `commit.<n mod 2>` of the
// last two commits. Each of these has a copy, which is used and restores it if it is damaged. If both copies of a file of the
// newest commit are damaged, the previous commit is used if all its bytes still exist.
//
// Owner:   main; must outlive the mover.
// Threads: any; the mover calls place_*(), end_write() and verify_read(). commit() is called only while no write of a state
//          chunk is in flight, and until it returns none may begin, because both generations are needed. Reads, and writes of
//          gradients and activations, may continue meanwhile.
// Errors:  Error(ErrorKind::corrupt) with chunk, file and offset if the bytes read are missing or differ from those written,
//          and for a store of another run; Error(ErrorKind::does_not_fit) if the disk has too little room;
//          Error(ErrorKind::refused) for a store of another version; Error(ErrorKind::failed) otherwise, with path and errno,
//          or because another process uses the store. After a failed commit nothing more can be written: only opening the store
//          again shows which of the two commits is on disk.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/memory/chunk.h>
#include <terrace/offload/io/file_ops.h>
#include <terrace/offload/io/io_choice.h>

namespace terrace {

// The content of a chunk, independent of any layout.
struct TensorRange {
  std::string tensor;               // logical name
  std::uint64_t first_element = 0;  // in the tensor, row-major
  std::uint64_t elements = 0;
  std::uint64_t chunk_element = 0;  // where it starts in the chunk
  // `rows` runs of `elements` elements each, adjacent in the chunk and `stride` apart in the tensor: columns of a matrix.
  std::uint64_t rows = 1, stride = 0;
  friend bool operator==(const TensorRange&, const TensorRange&) = default;
};
struct ChunkDescription {
  ChunkId chunk{};
  ChunkKind kind = ChunkKind::parameter;
  std::string dtype;  // "fp32"
  std::uint64_t bytes = 0;
  std::vector<TensorRange> ranges;  // empty: opaque bytes
  std::string label;                // for messages: "second moment of layers.7.mlp, elements 4194304..8388607"
};

// Compares everything except the labels.
bool means_the_same(const ChunkDescription& a, const ChunkDescription& b);

struct StoredChunk {
  ChunkDescription description;
  std::uint64_t offset = 0;  // in the flat space, of the committed generation
  std::uint64_t checksum = 0;
};
struct Commit {
  std::uint64_t number = 0;  // counts up
  std::uint64_t step = 0;
  std::string payload;      // the trainer's own JSON: configuration fingerprint, data position, …
  std::string run_id = {};  // of the run that made the commit; empty: the run had none
};

class ChunkStore {
 public:
  struct Options {
    std::vector<std::filesystem::path> paths = {};  // directories, made if absent; the store's files live in <path>/<name>/
    std::string name = "store";
    std::uint64_t capacity_bytes = 0;  // of the flat space; preallocated, checked against free space first
    std::uint64_t stripe_bytes = 16ULL << 20;
    // Stripes per cycle for each path of a fresh store. Empty: in proportion to the speed of the paths, which is measured if
    // the store is large. An existing store keeps its weights.
    std::vector<std::uint32_t> stripe_weights = {};
    bool durable = true;  // fsync data and record at commit
    std::uint32_t generations = 2;
    // Opens no commit after this step: ranks whose last commits differ resume from the last commit that all of them have.
    std::uint64_t not_after_step = ~0ULL;
    // Ids of the run that owns the store. A store whose last commit has none of these ids is neither opened nor replaced; new
    // commits get the first id. The empty string matches commits without an id. An empty list: nothing is compared.
    std::vector<std::string> run_ids = {};
    bool read_only = false;  // of an existing store: changes nothing on the disk, which may be mounted read-only
    // With read_only: writes gradients and activations, which belong to no commit, to an unnamed file in the first path.
    bool scratch = false;
    bool temporary = false;  // leaves no data behind, even after a crash; it cannot be committed or opened again
    std::chrono::nanoseconds deadline = io::kIoDeadline;  // for every call on its files; 0: none
    IoChoice io = {};  // for those that move or read ahead its chunks; the log is that of the store, too
    std::shared_ptr<io::FileOps> file_ops = {};  // null: the kernel's; tests inject faults here
  };
  // Makes a fresh store: removes a store of that name if no process uses it and its commits are of `run_ids`.
  static std::unique_ptr<ChunkStore> create(const Options& options);
  // Opens an existing store and reads its last valid commit. Several processes may have it open with read_only while no process
  // writes it; `capacity_bytes` may grow (0: unchanged). Without a commit: Error(ErrorKind::corrupt).
  static std::unique_ptr<ChunkStore> open(const Options& options);
  static bool has_commit(const Options& options);
  // True if any file of a complete commit is left, even if the commit's record is lost.
  static bool had_commit(const Options& options);
  // The last commit, if it belongs to none of `run_ids`. A record that is damaged or cannot be read does not count.
  static std::optional<Commit> commit_of_another(const Options& options);
  virtual ~ChunkStore() = default;

  // Called before the chunk's first write. A chunk that is already committed keeps its bytes if the descriptions agree; a store
  // with another layout is read with read_committed() and written into a new store.
  virtual void describe(ChunkDescription description) = 0;
  // True if this chunk is committed with the same description at this place, so that its bytes can be used in place.
  [[nodiscard]] virtual bool holds(const ChunkDescription& description, std::uint64_t place_offset) const = 0;
  [[nodiscard]] virtual std::string label(ChunkId chunk) const = 0;  // for messages; empty when not described
  // Returns the offset for the chunk's next write, in the generation that is not committed; `place_offset` is its place in the
  // flat space.
  virtual std::uint64_t place_write(ChunkId chunk, std::uint64_t place_offset, std::uint64_t bytes) = 0;
  // Reports that the bytes are in the file, at the offset from place_write(). A gradient or activation may be written to a new
  // place before the write of its old, dead content has ended, because each place has its own checksum.
  virtual void end_write(ChunkId chunk, std::uint64_t offset, std::uint64_t checksum) = 0;
  virtual std::uint64_t place_read(ChunkId chunk, std::uint64_t place_offset) = 0;
  // Checks bytes read at the offset from place_read(); throws Error(ErrorKind::corrupt).
  virtual void verify_read(ChunkId chunk, std::uint64_t offset, std::span<const std::byte> bytes) = 0;

  struct Piece {
    int file = 0;
    std::uint64_t offset = 0, bytes = 0, at = 0;  // at: from the start of the range
  };
  [[nodiscard]] virtual std::vector<Piece> pieces(std::uint64_t offset, std::uint64_t bytes) const = 0;
  [[nodiscard]] virtual std::vector<int> descriptors() const = 0;
  [[nodiscard]] virtual std::string describe_place(ChunkId chunk, std::uint64_t offset) const = 0;  // for errors
  // The file there, or the folder of a file without a name.
  [[nodiscard]] virtual std::filesystem::path path_of(std::uint64_t offset) const = 0;

  virtual void commit(std::uint64_t step, const std::string& payload) = 0;
  [[nodiscard]] virtual std::optional<Commit> last_commit() const = 0;
  virtual void set_run_id(std::string id) = 0;  // for the commits from now on
  // The damaged records and indices found when the store was opened, one per line; empty: none.
  [[nodiscard]] virtual std::string damage() const = 0;
  [[nodiscard]] virtual std::vector<StoredChunk> committed() const = 0;
  // Reads a committed chunk whole, checksum verified; for loaders and `terrace ckpt`.
  virtual void read_committed(const StoredChunk& chunk, std::span<std::byte> to) const = 0;
  // Frees the disk space beyond this many bytes of the flat space; the caller knows that the chunks do not use it.
  virtual void trim(std::uint64_t capacity_bytes) = 0;
  [[nodiscard]] virtual std::uint64_t allocated_bytes() const = 0;                 // on disk now
  [[nodiscard]] virtual std::uint64_t free_bytes(std::uint64_t offset) const = 0;  // left on the file system of that offset
};

std::uint64_t checksum_of(std::span<const std::byte> bytes);  // XXH3-64

}  // namespace terrace
