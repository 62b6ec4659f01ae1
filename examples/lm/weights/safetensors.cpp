#include <terrace/examples/lm/weights/safetensors.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <terrace/core/base/fetched_file.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>

#include <terrace/examples/lm/weights/conversions.h>

#include <terrace/examples/lm/weights/safetensors_header.h>

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

namespace terrace::lm {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeaderBytes = 100'000'000;  // the limit of the format's own library
constexpr std::size_t kBufferBytes = 32 << 10;              // for conversion; fits into a processor's first cache
constexpr std::size_t kCompareBytes = 1 << 20;              // read at once from each of two tensors

template <class T>
constexpr FileType file_type_of() {
  return std::is_same_v<T, float> ? FileType::F32 : std::is_same_v<T, double> ? FileType::F64 : FileType::BF16;
}

// ---- files -------------------------------------------------------------------------------------------------------------

[[noreturn]] void io_failed(const std::filesystem::path& file, const std::string& what, std::uint64_t offset,
                            std::uint64_t bytes) {
  throw errno_error(errno, file.string(), fmt::format("{}: {} at offset {}, {} bytes", file.string(), what, offset, bytes));
}

void read_bytes(int fd, const std::filesystem::path& file, const std::string& what, std::uint64_t offset,
                std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) io_failed(file, what + " could not be read", offset, out.size());
    if (got == 0) {
      throw Error(fmt::format("{}: {} is cut short: the file ends at offset {}, {} bytes are missing", file.string(), what,
                              offset, out.size()),
                  ErrorKind::corrupt, {.path = file.string()});
    }
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

void require_range(const std::filesystem::path& file, const SafetensorsEntry& entry, std::uint64_t first, std::uint64_t count) {
  if (first > entry.elements || count > entry.elements - first) {
    throw base::Refused(fmt::format("{}: elements {}..{} are not in {}", file.string(), first, first + count, describe(entry)));
  }
}

files::FileHandle open_weights(const std::filesystem::path& file) {
  files::demand_fetched(file);
  try {
    if (auto opened = files::open_regular(file, O_RDONLY)) return opened;
    throw errno_error(errno, file.string());
  } catch (const Error& error) {
    throw Error(fmt::format("{} cannot be opened: {}", file.string(), error.what()), ErrorKind::refused, error.facts());
  }
}

}  // namespace

// ---- reader ------------------------------------------------------------------------------------------------------------

SafetensorsReader::SafetensorsReader(std::filesystem::path file) : file_(std::move(file)), opened_(open_weights(file_)) {
  const int fd = opened_.get();
  struct stat status {};
  if (::fstat(fd, &status) != 0) io_failed(file_, "the size could not be read", 0, 0);
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  const auto corrupt = [&](const std::string& what) {
    throw Error(fmt::format("{}: not a safetensors file: {}", file_.string(), what), ErrorKind::corrupt,
                {.path = file_.string()});
  };
  if (file_bytes < kLengthBytes) corrupt(fmt::format("it has {} bytes, and the header's length alone takes 8", file_bytes));
  std::uint64_t length = 0;
  lm::read_bytes(fd, file_, "the header's length", 0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > kLongestHeaderBytes)
    corrupt(fmt::format("its header would have {} bytes; {} are allowed", length, kLongestHeaderBytes));
  if (length > file_bytes - kLengthBytes)
    corrupt(fmt::format("its header would have {} bytes, the file has {}", length, file_bytes));
  std::string text(static_cast<std::size_t>(length), '\0');
  lm::read_bytes(fd, file_, "the header", kLengthBytes, std::as_writable_bytes(std::span(text)));
  auto header = parse_safetensors_header(text, file_bytes - kLengthBytes - length, file_.string());
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    entries_[i].offset += kLengthBytes + length;
    by_name_.emplace(entries_[i].name, i);
  }
}

const SafetensorsEntry* SafetensorsReader::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

bool SafetensorsReader::same_bytes(std::string_view one, std::string_view other) const {
  const auto *const a = find(one), *const b = find(other);
  if (a == nullptr || b == nullptr || a->type != b->type || a->shape != b->shape) return false;
  const auto bytes = a->elements * size_of(a->type);
  std::vector<std::byte> of_a(std::min<std::uint64_t>(kCompareBytes, bytes)), of_b(of_a.size());
  for (std::uint64_t done = 0; done < bytes; done += of_a.size()) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(of_a.size(), bytes - done));
    lm::read_bytes(opened_.get(), file_, describe(*a), a->offset + done, std::span(of_a).first(count));
    lm::read_bytes(opened_.get(), file_, describe(*b), b->offset + done, std::span(of_b).first(count));
    if (std::memcmp(of_a.data(), of_b.data(), count) != 0) return false;
  }
  return true;
}

bool can_be_read(FileType type) {
  return type == FileType::F32 || type == FileType::BF16 || type == FileType::F16 || type == FileType::F64;
}

template <class T>
void SafetensorsReader::read_as(std::string_view name, std::uint64_t first, std::span<T> out) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr) throw base::Refused(fmt::format("{} has no tensor \"{}\"", file_.string(), base::printable(name)));
  require_range(file_, *entry, first, out.size());
  const std::uint64_t width = size_of(entry->type);
  std::uint64_t offset = entry->offset + first * width;
  if (entry->type == file_type_of<T>()) {
    return read_bytes(*entry, offset, std::as_writable_bytes(out));
  }
  void (*convert)(std::span<T>, const std::byte*) = nullptr;
  switch (entry->type) {
    case FileType::F32: convert = lm::convert<T, float>; break;
    case FileType::BF16: convert = lm::convert<T, bf16>; break;
    case FileType::F16: convert = lm::convert<T, fp16>; break;
    case FileType::F64: convert = lm::convert<T, double>; break;
    default:
      throw base::Refused(
          fmt::format("{}: {} cannot be read as numbers; F32, BF16, F16 and F64 can", file_.string(), describe(*entry)));
  }
  std::array<std::byte, kBufferBytes> buffer;
  while (!out.empty()) {
    const std::size_t count = std::min<std::size_t>(out.size(), kBufferBytes / width);
    read_bytes(*entry, offset, std::span(buffer).first(count * width));
    convert(out.first(count), buffer.data());
    out = out.subspan(count);
    offset += count * width;
  }
}

void SafetensorsReader::attach(std::shared_ptr<io::ReadAhead> ahead, std::size_t file) {
  ahead_ = std::move(ahead);
  file_ahead_ = file;
}

void SafetensorsReader::announce(std::string_view name, std::uint64_t first, std::uint64_t elements) const {
  const auto* const entry = find(name);
  if (!entry || !ahead_) return;
  require_range(file_, *entry, first, elements);
  const auto width = size_of(entry->type);
  ahead_->announce(file_ahead_, entry->offset + first * width, elements * width);
}

void SafetensorsReader::read_bytes(const SafetensorsEntry& entry, std::uint64_t offset, std::span<std::byte> out) const {
  const auto ahead = ahead_ ? ahead_->read(file_ahead_, offset, out) : 0;
  if (ahead < out.size()) lm::read_bytes(opened_.get(), file_, describe(entry), offset + ahead, out.subspan(ahead));
}

void SafetensorsReader::read(std::string_view name, std::uint64_t first, std::span<float> out) const {
  read_as(name, first, out);
}
void SafetensorsReader::read(std::string_view name, std::uint64_t first, std::span<bf16> out) const {
  read_as(name, first, out);
}
void SafetensorsReader::read(std::string_view name, std::uint64_t first, std::span<double> out) const {
  read_as(name, first, out);
}

// ---- writer ------------------------------------------------------------------------------------------------------------

struct SafetensorsWriter::Place {
  SafetensorsEntry entry;
  std::map<std::uint64_t, std::uint64_t> written;  // begin to end, disjoint and not adjacent

  // Adds [begin, end), or returns false if an element of it was written before.
  bool add(std::uint64_t begin, std::uint64_t end) {
    const auto after = written.lower_bound(begin);
    if (after != written.end() && after->first < end) return false;
    const auto before = after == written.begin() ? written.end() : std::prev(after);
    if (before != written.end() && before->second > begin) return false;
    if (after != written.end() && after->first == end) {
      end = after->second;
      written.erase(after);
    }
    if (before != written.end() && before->second == begin) {
      before->second = end;
    } else {
      written.emplace(begin, end);
    }
    return true;
  }
  [[nodiscard]] bool complete() const {
    return entry.elements == 0 ||
           (written.size() == 1 && written.begin()->first == 0 && written.begin()->second == entry.elements);
  }
};

namespace {

// Wider types come first, in declared order within a type: as the header is padded, every tensor is aligned to its element
// size.
SafetensorsHeader lay_out(const std::filesystem::path& file, const std::vector<SafetensorsDeclaration>& tensors,
                          const std::map<std::string, std::string>& metadata) {
  const auto refuse = [&](const std::string& name, const char* why) {
    throw base::Refused(fmt::format("{}: tensor \"{}\" cannot be declared: {}", file.string(), base::printable(name), why));
  };
  SafetensorsHeader header{.entries = {}, .metadata = metadata};
  for (const auto& t : tensors) {
    SafetensorsEntry entry{.name = t.name, .type = FileType::F32, .shape = t.shape, .elements = 1, .offset = 0};
    switch (t.dtype) {
      case DType::fp32: break;
      case DType::bf16: entry.type = FileType::BF16; break;
      case DType::fp64: entry.type = FileType::F64; break;
      case DType::fp16:
      case DType::i32:
      case DType::e4m3:
      case DType::e5m2: refuse(t.name, "only fp32, bf16 and fp64 can be written");
    }
    for (const auto d : t.shape) {
      if (__builtin_mul_overflow(entry.elements, d, &entry.elements)) refuse(t.name, "its shape overflows");
    }
    if (!is_utf8(t.name)) refuse(t.name, "its name is not UTF-8");
    if (t.name == "__metadata__") refuse(t.name, "the format reserves this name");
    header.entries.push_back(std::move(entry));
  }
  std::ranges::stable_sort(header.entries, std::greater<>{}, [](const auto& e) { return size_of(e.type); });
  constexpr std::uint64_t kLargestFileBytes = std::uint64_t{1} << 62;
  std::uint64_t at = 0;
  for (auto& entry : header.entries) {
    entry.offset = at;
    if (entry.elements > (kLargestFileBytes - at) / size_of(entry.type)) refuse(entry.name, "the file would be too large");
    at += entry.elements * size_of(entry.type);
  }
  return header;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path file, const std::vector<SafetensorsDeclaration>& tensors,
                                     const std::map<std::string, std::string>& metadata, const IoChoice& io)
    : file_(std::move(file)) {
  const auto header = lay_out(file_, tensors, metadata);
  const auto text = format_safetensors_header(header);
  const std::uint64_t length = text.size();
  std::uint64_t end = kLengthBytes + length;
  for (auto entry : header.entries) {
    entry.offset += kLengthBytes + length;
    end = entry.offset + entry.elements * size_of(entry.type);
    const std::string name = entry.name;
    if (!places_.emplace(name, Place{.entry = std::move(entry), .written = {}}).second) {
      throw base::Refused(fmt::format("{}: tensor \"{}\" is declared twice", file_.string(), base::printable(name)));
    }
  }
  try {
    unfinished_ = std::make_unique<files::NewFile>(file_, 0644);
  } catch (const Error& error) {
    throw Error(fmt::format("{}.tmp cannot be created: {}", file_.string(), error.what()), ErrorKind::refused, error.facts());
  }
  const int fd = unfinished_->get();
  // Reports a full disk now, not after hours. A file system that cannot reserve space only sets the size.
  const int reserved = ::posix_fallocate(fd, 0, static_cast<off_t>(end));
  if (reserved != 0 && reserved != EOPNOTSUPP && reserved != EINVAL) {
    errno = reserved;
    io_failed(unfinished_->temporary(), "space could not be reserved", 0, end);
  }
  if (::ftruncate(fd, static_cast<off_t>(end)) != 0) io_failed(unfinished_->temporary(), "the size could not be set", 0, end);
  behind_ = std::make_unique<io::WriteBehind>(fd, io);
  demand(behind_->write(0, std::as_bytes(std::span(&length, 1))));
  demand(behind_->write(kLengthBytes, std::as_bytes(std::span(text))));
}

SafetensorsWriter::~SafetensorsWriter() = default;

// A write may fail after the call that wrote its bytes, so the offset decides which tensor the message names.
void SafetensorsWriter::demand(const std::optional<io::WriteBehind::Failure>& failure) const {
  if (!failure) return;
  std::string what = "the header";
  for (const auto& [name, place] : places_) {
    const auto end = place.entry.offset + place.entry.elements * size_of(place.entry.type);
    if (place.entry.offset <= failure->offset && failure->offset < end) what = describe(place.entry);
  }
  errno = failure->error_number;
  io_failed(unfinished_->temporary(), what + " could not be written", failure->offset, failure->bytes);
}

const SafetensorsEntry& SafetensorsWriter::take(std::string_view name, std::uint64_t first, std::uint64_t count) {
  if (!unfinished_) throw Error(fmt::format("{} is finished", file_.string()));
  const auto found = places_.find(name);
  if (found == places_.end())
    throw base::Refused(fmt::format("{}: tensor \"{}\" was not declared", file_.string(), base::printable(name)));
  Place& place = found->second;
  require_range(file_, place.entry, first, count);
  if (count != 0 && !place.add(first, first + count)) {
    throw Error(fmt::format("{}: elements {}..{} of {} are written twice", file_.string(), first, first + count,
                            describe(place.entry)));
  }
  return place.entry;
}

void SafetensorsWriter::write(std::string_view name, const Fill& fill) {
  const auto found = places_.find(name);
  const auto& entry = take(name, 0, found == places_.end() ? 0 : found->second.entry.elements);
  const auto dtype = entry.type == FileType::F32 ? DType::fp32 : entry.type == FileType::F64 ? DType::fp64 : DType::bf16;
  std::uint64_t first = 0;
  demand(behind_->write(entry.offset, entry.elements * size_of(dtype), [&](std::span<std::byte> piece) {
    const auto count = piece.size() / size_of(dtype);  // whole elements, because they are aligned in the file
    fill(first, {piece.data(), dtype, {static_cast<std::int64_t>(count)}});
    first += count;
  }));
}

template <class T>
void SafetensorsWriter::write_as(std::string_view name, std::uint64_t first, std::span<const T> in) {
  const auto& entry = take(name, first, in.size());
  const std::uint64_t width = size_of(entry.type);
  std::uint64_t offset = entry.offset + first * width;
  if (entry.type == file_type_of<T>()) {
    return demand(behind_->write(offset, std::as_bytes(in)));
  }
  const auto convert = [&]<class To>(To) {
    std::array<To, kBufferBytes / sizeof(To)> buffer;
    while (!in.empty()) {
      const std::size_t count = std::min(in.size(), buffer.size());
      lm::convert<To, T>(std::span(buffer).first(count), std::as_bytes(in).data());
      demand(behind_->write(offset, std::as_bytes(std::span(buffer).first(count))));
      in = in.subspan(count);
      offset += count * width;
    }
  };
  switch (entry.type) {
    case FileType::F32: return convert(float{});
    case FileType::F64: return convert(double{});
    default: return convert(bf16{});
  }
}

void SafetensorsWriter::write(std::string_view name, std::uint64_t first, std::span<const float> in) {
  write_as(name, first, in);
}
void SafetensorsWriter::write(std::string_view name, std::uint64_t first, std::span<const bf16> in) {
  write_as(name, first, in);
}
void SafetensorsWriter::write(std::string_view name, std::uint64_t first, std::span<const double> in) {
  write_as(name, first, in);
}

// Writes first the bytes, then the name, then the directory that has the name, so a crash leaves either the old or the new
// file.
void SafetensorsWriter::finish() {
  if (!unfinished_) throw Error(fmt::format("{} is finished", file_.string()));
  for (const auto& [name, place] : places_) {
    if (!place.complete()) throw Error(fmt::format("{}: {} was not written whole", file_.string(), describe(place.entry)));
  }
  demand(behind_->drain());
  const auto writing = std::move(unfinished_);
  const auto behind = std::move(behind_);  // kept until the file is on the disk
  try {
    writing->finish(files::Durable::yes);
  } catch (const Error& error) {
    throw Error(fmt::format("{} could not be finished: {}", file_.string(), error.what()), error, file_.string());
  }
}

}  // namespace terrace::lm
