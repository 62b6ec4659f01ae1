#include <terrace/examples/lm/tokenizer/token_writer.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <terrace/core/base/file_lock.h>
#include <terrace/core/base/file_state.h>
#include <terrace/core/base/refused.h>

namespace terrace::lm {
namespace {

constexpr std::size_t kHeaderBytes = 1024;
constexpr std::int32_t kMagic = 20240520, kVersion = 1;
constexpr std::size_t kMegatronShortIds = 65500;  // Megatron's limit for ids of two bytes
constexpr std::string_view kIndexMagic{"MMIDIDX\0\0", 9};
constexpr unsigned char kIndexInt32 = 4, kIndexUint16 = 8;

template <class T>
void append(std::string& bytes, T number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Prevents two writers of one file. The name is checked, too: a writer that has just finished has renamed the file.
void lock(const files::FileHandle& file, const std::filesystem::path& path, const Log& log) {
  struct stat opened {
  }, named{};
  const auto locked = files::try_lock(file.get(), LOCK_EX);
  if (locked == files::Locked::impossible) files::warn_without_locks(log, path);
  if (locked != files::Locked::by_another && ::fstat(file.get(), &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
      opened.st_ino == named.st_ino)
    return;
  throw Error(fmt::format("{} is being written by another process\n  wait for that one or stop it, or give another --out",
                          path.string()));
}

// Refuses a symbolic or hard link of that name, because writing would change a file that is not terrace's.
files::FileHandle open_own(const std::filesystem::path& path) {
  const auto refuse = [&](const char* what) {
    throw base::Refused(fmt::format("{} is {}, and not a file that terrace left there\n  remove it, or give another --out",
                                    path.string(), what));
  };
  files::FileHandle file;
  try {
    file = files::open_regular(path, O_RDWR | O_CREAT | O_NOFOLLOW, AT_FDCWD, 0666);
  } catch (const Error&) {
    refuse("not a regular file");
  }
  if (!file && errno == ELOOP) refuse("a link");
  if (!file) throw errno_error(errno, path.string(), path.string() + " cannot be written");
  struct stat info {};
  if (::fstat(file.get(), &info) == 0 && info.st_nlink > 1) refuse("a link");
  return file;
}

// Cuts the file to `bytes` bytes: the rest was written by a killed run after its last record.
files::FileHandle open_at(const std::filesystem::path& path, std::uint64_t bytes, const Log& log) {
  auto file = open_own(path);
  lock(file, path, log);
  const auto size = ::lseek(file.get(), 0, SEEK_END);
  if (size < 0) throw errno_error(errno, path.string(), path.string() + " cannot be written");
  if (static_cast<std::uint64_t>(size) < bytes)
    throw Error(fmt::format("{} has become shorter than what was written\n  remove it and its .progress file, and begin again",
                            path.string()),
                ErrorKind::corrupt, {.path = path.string()});
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 || ::lseek(file.get(), static_cast<off_t>(bytes), SEEK_SET) < 0)
    throw errno_error(errno, path.string(), path.string() + " cannot be written");
  return file;
}

void write_to(const files::FileHandle& file, const std::filesystem::path& path, std::string_view bytes) try {
  files::write_all(file.get(), bytes, path);
} catch (const Error& error) {
  throw Error(fmt::format("{} could not be written: {}\n  what was written before is intact; repeat the command to go on",
                          path.string(), error.what()),
              error);
}

// Syncs the directory, so that a power loss does not undo the file's new name.
void sync_name(const std::filesystem::path& path) try {
  files::sync_to_disk(std::filesystem::absolute(path).parent_path());
} catch (const Error& error) {
  throw Error(fmt::format("the name of {} could not be written: {}\n  check the disk, and repeat the command", path.string(),
                          error.what()),
              error);
}

std::filesystem::path with(const std::filesystem::path& path, const char* ending) { return path.string() + ending; }

}  // namespace

std::string_view name_of(TokenFile kind) {
  switch (kind) {
    case TokenFile::u16: return "u16";
    case TokenFile::u32: return "u32";
    case TokenFile::llm_c: return "llm.c";
    case TokenFile::megatron: break;
  }
  return "megatron";
}

TokenWriter::TokenWriter(std::filesystem::path out, TokenFile kind, std::size_t ids, WriterPlace from, const Log& log)
    : out_(std::move(out)),
      kind_(kind),
      width_(kind == TokenFile::u32 || (kind == TokenFile::megatron && ids >= kMegatronShortIds) ? 4 : 2),
      place_(from) {
  if (width_ == 2 && ids > std::size_t{1} << 16U)
    throw base::Refused(
        fmt::format("the tokenizer has {} ids, which do not fit into two bytes\n  give --format u32 or megatron", ids));
  const std::uint64_t header = kind == TokenFile::llm_c ? kHeaderBytes : 0;
  const bool begins = from.tokens == 0;
  ids_file_ = open_at(partial(), begins ? 0 : header + from.tokens * width_, log);
  if (begins) write_to(ids_file_, partial(), std::string(header, '\0'));  // filled at the end
  if (kind == TokenFile::megatron) sizes_file_ = open_at(sizes(), from.documents * sizeof(std::int32_t), log);
}

std::filesystem::path TokenWriter::partial() const { return with(out_, ".partial"); }
std::filesystem::path TokenWriter::sizes() const { return with(out_, ".sizes.partial"); }

std::vector<std::filesystem::path> TokenWriter::unfinished_files(const std::filesystem::path& out, TokenFile kind) {
  if (kind != TokenFile::megatron) return {with(out, ".partial")};
  return {with(out, ".partial"), with(out, ".sizes.partial"), with(out, ".idx.tmp")};
}

void TokenWriter::write(std::span<const TokenId> ids, std::span<const std::size_t> ends) {
  buffer_.resize(ids.size() * width_);
  if (width_ == 4) {
    if (!ids.empty()) std::memcpy(buffer_.data(), ids.data(), buffer_.size());
  } else {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto id = static_cast<std::uint16_t>(ids[i]);
      std::memcpy(buffer_.data() + i * sizeof id, &id, sizeof id);
    }
  }
  write_to(ids_file_, partial(), buffer_);
  place_.tokens += ids.size();
  write_ends(ids.size(), ends);
}

void TokenWriter::write_ends(std::size_t ids, std::span<const std::size_t> ends) {
  std::string sizes_text;
  std::size_t done = 0;
  for (const auto end : ends) {
    const auto size = place_.open_tokens + end - done;
    if (kind_ == TokenFile::megatron && size > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()))
      throw base::Refused("a document has more tokens than an index of Megatron can count");
    append(sizes_text, static_cast<std::int32_t>(size));
    place_.open_tokens = 0;
    done = end;
  }
  place_.open_tokens += ids - done;
  place_.documents += ends.size();
  if (kind_ == TokenFile::megatron) write_to(sizes_file_, sizes(), sizes_text);
}

void TokenWriter::sync() {
  for (const auto* const file : {&ids_file_, &sizes_file_})
    if (*file && ::fdatasync(file->get()) != 0)
      throw errno_error(errno, partial().string(), partial().string() + " could not be written");
}

// Writes the sizes of documents, the byte offsets of their beginnings, and the sequence numbers from the first to the end; each
// document is one sequence.
void TokenWriter::write_index() const {
  files::NewFile index(with(out_, ".idx"));
  std::string bytes(kIndexMagic);
  append(bytes, std::uint64_t{1});
  append(bytes, width_ == 4 ? kIndexInt32 : kIndexUint16);
  append(bytes, place_.documents);
  append(bytes, place_.documents + 1);
  index.write(bytes);
  constexpr std::size_t kAtOnce = std::size_t{1} << 16U;
  std::vector<std::int32_t> some(kAtOnce);
  const auto each_block = [&](const auto& take) {
    for (std::uint64_t first = 0; first < place_.documents; first += kAtOnce) {
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(kAtOnce, place_.documents - first));
      try {
        files::read_all(sizes_file_.get(), first * sizeof some[0], std::as_writable_bytes(std::span(some).first(count)));
      } catch (const Error& error) {
        throw Error(fmt::format("{} could not be read: {}", sizes().string(), error.what()), error, sizes().string());
      }
      bytes.clear();
      take(std::span<const std::int32_t>(some).first(count), first);
      index.write(bytes);
    }
  };
  each_block([&](std::span<const std::int32_t> of, std::uint64_t) {
    for (const auto size : of) append(bytes, size);
  });
  std::int64_t begin = 0;
  each_block([&](std::span<const std::int32_t> of, std::uint64_t) {
    for (const auto size : of) {
      append(bytes, begin);
      begin += size * static_cast<std::int64_t>(width_);
    }
  });
  each_block([&](std::span<const std::int32_t> of, std::uint64_t first) {
    for (std::uint64_t i = 0; i < of.size(); ++i) append(bytes, first + i);
  });
  bytes.clear();
  append(bytes, place_.documents);
  index.write(bytes);
  index.finish(files::Durable::yes);
}

void TokenWriter::finish() {
  if (kind_ == TokenFile::llm_c) {
    if (place_.tokens > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()))
      throw base::Refused(fmt::format("{} tokens are more than a file of llm.c can count\n  divide the input", place_.tokens));
    std::string header;
    for (const auto number : {kMagic, kVersion, static_cast<std::int32_t>(place_.tokens)}) append(header, number);
    if (::lseek(ids_file_.get(), 0, SEEK_SET) != 0)
      throw errno_error(errno, partial().string(), partial().string() + " could not be written");
    write_to(ids_file_, partial(), header);
  }
  sync();
  if (kind_ == TokenFile::megatron) write_index();
  const auto name = kind_ == TokenFile::megatron ? with(out_, ".bin") : out_;
  if (::rename(partial().c_str(), name.c_str()) != 0)
    throw errno_error(errno, name.string(), fmt::format("{} could not get the name {}", partial().string(), name.string()),
                      "remove the cause, and repeat the command");
  if (kind_ == TokenFile::megatron) files::remove_path(sizes());
  sync_name(out_);
}

}  // namespace terrace::lm
