#include <terrace/examples/lm/unpack/data_stream.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>

namespace terrace::lm {
namespace {

constexpr std::size_t kBlock = 256 * 1024, kBeginning = 4;  // bytes

// Also opens a file whose size is unknown until it has been unpacked.
files::FileHandle open_data(const std::filesystem::path& path) {
  try {
    if (auto file = files::open_regular(path, O_RDONLY)) return file;
    throw errno_error(errno, path.string());
  } catch (const Error& error) {
    throw Error(fmt::format("{} cannot be read: {}\n  give a regular file that you may read", path.string(), error.what()),
                ErrorKind::refused, error.facts());
  }
}

}  // namespace

struct DataStream::Packing {
  std::string_view beginning, by, unpack, test;
  std::unique_ptr<Unpacker> (*make)();
};

// The third byte of gzip is its only method, deflate.
const DataStream::Packing* DataStream::packing_of(std::string_view first) {
  static constexpr std::array<Packing, 2> kPackings{{{"\x1f\x8b\x08", "gzip", "gunzip -k", "gzip -t", gzip_unpacker},
                                                     {"\x28\xb5\x2f\xfd", "zstd", "unzstd -k", "zstd -t", zstd_unpacker}}};
  const auto* const found =
      std::ranges::find_if(kPackings, [&](const Packing& packing) { return first.starts_with(packing.beginning); });
  return found == kPackings.end() ? nullptr : found;
}

DataStream::DataStream(std::filesystem::path path) : path_(std::move(path)), file_(open_data(path_)) {
  file_bytes_ = state().bytes;
  auto first = read(kBeginning);
  packing_ = packing_of(first);
  if (!packed()) {
    held_ = std::move(first);
    return;
  }
  packed_ = std::move(first);
  block_ = packed_;
  try {
    unpacker_ = packing_->make();
  } catch (const Error& error) {
    fail(fmt::format("{} has packed it, and {}", packing_->by, error.what()),
         fmt::format("or unpack it first: {} {}", packing_->unpack, path_.string()));
  }
}

files::FileState DataStream::state() const try { return files::state_of(file_.get()); } catch (const Error& error) {
  throw Error(fmt::format("{} cannot be read: {}\n  check the disk", path_.string(), error.what()), ErrorKind::refused,
              error.facts_at(path_.string()));
}

void DataStream::fail(const std::string& what, const std::string& mend) const {
  throw Error(fmt::format("{}: {}\n  {}", path_.string(), what, mend), ErrorKind::refused, {.path = path_.string()});
}

std::string DataStream::read(std::uint64_t bytes) try {
  std::string out(static_cast<std::size_t>(std::min(bytes, file_bytes_ - read_)), '\0');
  files::read_all(file_.get(), read_, std::as_writable_bytes(std::span(out)));
  read_ += out.size();
  return out;
} catch (const Error& error) {
  throw Error(fmt::format("{} could not be read at offset {}: {}", path_.string(), read_, error.what()), error, path_.string());
}

std::string_view DataStream::peek(std::size_t wanted) {
  if (held_.size() - at_ < wanted) fill(wanted);
  return std::string_view(held_).substr(at_);
}

bool DataStream::skip(std::uint64_t bytes) {
  while (bytes > 0) {
    if (held_.size() == at_ && !packed()) {  // a plain file is skipped without reading it
      held_.clear();
      at_ = 0;
      const auto passed = std::min(bytes, file_bytes_ - read_);
      read_ += passed;
      place_ += passed;
      return passed == bytes;
    }
    const auto passed = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, peek(1).size()));
    if (passed == 0) return false;
    at_ += passed;
    place_ += passed;
    bytes -= passed;
  }
  return true;
}

// Reads at least one block.
void DataStream::fill(std::size_t wanted) {
  held_.erase(0, at_);
  at_ = 0;
  wanted = std::max(wanted, kBlock);
  if (packed()) return unpack(wanted);
  held_ += read(wanted - held_.size());
}

void DataStream::unpack(std::size_t wanted) {
  const auto had = held_.size();
  held_.resize(wanted);
  auto out = std::span(held_).subspan(had);
  while (!out.empty() && has_next_part()) {
    const auto packed_before = block_.size(), room_before = out.size();
    try {
      within_ = !unpacker_->unpack(block_, out);
    } catch (const Error& error) {
      const std::string why = error.what();
      const auto what = fmt::format("what {} has packed cannot be read on at byte {}: {}", packing_->by, file_place(), why);
      if (why.find('\n') != std::string::npos)  // a second line is a command to which the file's name is added
        throw base::Refused(fmt::format("{}: {} {}", path_.string(), what, path_.string()));
      fail(what, fmt::format("restore the file; {} {} says when it is whole", packing_->test, path_.string()));
    }
    const bool stands = within_ && packed_before == block_.size() && room_before == out.size();
    if (stands && read_ == file_bytes_)
      fail(fmt::format("it is cut: the file ends at byte {}, within what {} has packed", file_bytes_, packing_->by),
           fmt::format("restore the file; {} {} says when it is whole", packing_->test, path_.string()));
  }
  held_.resize(wanted - out.size());
}

// Reads more bytes if the last ones are used up, and checks that another part follows when one has ended.
bool DataStream::has_next_part() {
  if (block_.size() < kBeginning && read_ < file_bytes_) {
    packed_ = std::string(block_) + read(kBlock);
    block_ = packed_;
  }
  if (within_) return true;
  if (block_.empty()) return false;
  if (!unpacker_->begins(block_))
    fail(fmt::format("behind what {} has packed, at byte {}, stand {} bytes that it has not", packing_->by, file_place(),
                     file_bytes_ - file_place()),
         fmt::format("remove them: head -c {} {} > NEW", file_place(), path_.string()));
  within_ = true;
  return true;
}

bool begins_packed(std::string_view bytes) { return DataStream::packing_of(bytes) != nullptr; }

bool is_packed(const std::filesystem::path& file) { return DataStream(file).packed(); }

std::filesystem::path name_of_content(const std::filesystem::path& file) {
  static constexpr std::array<std::string_view, 4> kEndings{".gz", ".gzip", ".zst", ".zstd"};
  return std::ranges::find(kEndings, file.extension().string()) == kEndings.end() ? file : file.parent_path() / file.stem();
}

}  // namespace terrace::lm
