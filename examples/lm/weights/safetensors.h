// Weights in the safetensors format: eight bytes of header length, a JSON header, then the tensors' little-endian bytes.
//
// The whole header is checked before any tensor is read (types, shapes, overflow, overlaps, holes, the file's end), as in the
// format's own library. Any range of elements of any tensor is read or written, with conversion through a small buffer, so
// memory use is bounded for files of any size. Neither direction fills the page cache: written bytes go to the disk in the
// background (offload/io/write_behind.h), and announced reads are read ahead (offload/io/read_ahead.h).
//
// Owner:   the caller.
// Threads: SafetensorsReader::read from any thread; a writer from one thread at a time.
// Errors:  Error with the file, tensor and byte offset: ErrorKind::corrupt for a file that breaks the format,
//          ErrorKind::refused for a missing file, tensor or range or a type without conversion, ErrorKind::failed if I/O fails.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/core/base/files.h>
#include <terrace/core/math/dtype.h>
#include <terrace/core/math/tensor.h>
#include <terrace/offload/io/io_choice.h>
#include <terrace/offload/io/read_ahead.h>
#include <terrace/offload/io/write_behind.h>

namespace terrace::lm {

// The types that a file may contain; F32, BF16, F16 and F64 can be read.
enum class FileType : std::uint8_t { BOOL, U8, I8, F8_E5M2, F8_E4M3, I16, U16, F16, BF16, I32, U32, F32, I64, U64, F64 };
std::string_view name_of(FileType type);  // "BF16"
std::uint64_t size_of(FileType type);
bool can_be_read(FileType type);

struct SafetensorsEntry {
  std::string name;
  FileType type = FileType::F32;
  std::vector<std::uint64_t> shape;  // empty: a scalar
  std::uint64_t elements = 0;
  std::uint64_t offset = 0;  // of its first byte in the file
};

class SafetensorsReader {
 public:
  explicit SafetensorsReader(std::filesystem::path file);

  [[nodiscard]] const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in the order of their bytes
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const;                 // null when absent
  // Whether two tensors of the file have the same type, shape and bytes. Reads both.
  [[nodiscard]] bool same_bytes(std::string_view one, std::string_view other) const;
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Elements [first, first + out.size()) of a tensor, rounded to nearest even if the file has more precision.
  void read(std::string_view name, std::uint64_t first, std::span<float> out) const;
  void read(std::string_view name, std::uint64_t first, std::span<bf16> out) const;
  void read(std::string_view name, std::uint64_t first, std::span<double> out) const;

  // After attach(), announced ranges are read ahead by `ahead`; this is the file number `file` in it.
  void attach(std::shared_ptr<io::ReadAhead> ahead, std::size_t file);
  void announce(std::string_view name, std::uint64_t first, std::uint64_t elements) const;
  [[nodiscard]] int descriptor() const { return opened_.get(); }

 private:
  void read_bytes(const SafetensorsEntry& entry, std::uint64_t offset, std::span<std::byte> out) const;
  template <class T>
  void read_as(std::string_view name, std::uint64_t first, std::span<T> out) const;

  std::filesystem::path file_;
  files::FileHandle opened_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
  std::shared_ptr<io::ReadAhead> ahead_;  // null: nothing is announced
  std::size_t file_ahead_ = 0;
};

struct SafetensorsDeclaration {
  std::string name;
  DType dtype = DType::fp32;  // fp32, bf16 or fp64
  std::vector<std::uint64_t> shape;
};

// All tensors are declared first, which fixes the header and all offsets. Then ranges are written in any order, each element
// once. finish() gives the file its name, atomically and durably. Without finish() no file appears.
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::filesystem::path file, const std::vector<SafetensorsDeclaration>& tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}}, const IoChoice& io = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  void write(std::string_view name, std::uint64_t first, std::span<const float> in);
  void write(std::string_view name, std::uint64_t first, std::span<const bf16> in);
  void write(std::string_view name, std::uint64_t first, std::span<const double> in);
  // Writes the whole tensor without a copy: `fill` is called piece by piece, with elements from `first` on, in the file's
  // dtype.
  using Fill = std::function<void(std::uint64_t first, TensorView piece)>;
  void write(std::string_view name, const Fill& fill);
  void finish();  // every element must have been written

 private:
  struct Place;
  const SafetensorsEntry& take(std::string_view name, std::uint64_t first, std::uint64_t count);  // marks them as written
  template <class T>
  void write_as(std::string_view name, std::uint64_t first, std::span<const T> in);
  void demand(const std::optional<io::WriteBehind::Failure>& failure) const;  // throws if there is a failure

  std::filesystem::path file_;
  std::unique_ptr<files::NewFile> unfinished_;  // null after finish()
  std::map<std::string, Place, std::less<>> places_;
  std::unique_ptr<io::WriteBehind> behind_;
};

}  // namespace terrace::lm
