#include <terrace/examples/lm/data/corpus_file.h>

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace::lm {

CorpusFile::CorpusFile(std::filesystem::path path) : path_(std::move(path)) {
  try {
    file_ = open_regular(path_, O_RDONLY);
    if (!file_) why_ = fmt::format("{}\n  change its permissions, or give --data another file", describe_errno(errno));
  } catch (const Error& error) {
    why_ = fmt::format(
        "{}\n  sequences are read from random places in it: write the text to a regular file, and give --data that file",
        error.what());
  }
}

FileState CorpusFile::state() const {
  std::string why = why_;
  if (file_) try {
      return state_of(file_.get());
    } catch (const Error& error) {
      why = error.what();
    }
  throw Error(fmt::format("corpus file {} cannot be read: {}", path_.string(), why), ErrorKind::refused);
}

void CorpusFile::demand_unchanged(const FileState& since) const {
  if (!file_) fail_read(0, since.bytes, why_);
  const auto now = state();
  if (now.bytes < since.bytes)
    throw Error(fmt::format("corpus file {} became shorter while it was in use: it has {} bytes, and had {}", path_.string(),
                            now.bytes, since.bytes));
  if (now.bytes != since.bytes)
    throw Error(fmt::format("corpus file {} has changed while it was in use: it has {} bytes, and had {}", path_.string(),
                            now.bytes, since.bytes));
  if (now.written_ns != since.written_ns)
    throw Error(fmt::format(
        "corpus file {} has changed while it was in use: it was written to, or is another file of that name", path_.string()));
}

void CorpusFile::fail_read(std::uint64_t offset, std::uint64_t bytes, const std::string& why) const {
  throw Error(fmt::format("corpus file {} could not be read at offset {}, {} bytes: {}", path_.string(), offset, bytes, why));
}

void CorpusFile::read(std::uint64_t offset, std::span<unsigned char> out) const {
  if (!file_) fail_read(offset, out.size(), why_);
  while (!out.empty()) {
    const ssize_t got = ::pread(file_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_read(offset, out.size(), describe_errno(errno));
    if (got == 0)
      throw Error(fmt::format("corpus file {} became shorter while it was in use: it ends at byte {}", path_.string(), offset));
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

void CorpusFile::will_read(std::uint64_t offset, std::uint64_t bytes) const {
  static_cast<void>(::posix_fadvise(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED));
}

void CorpusFile::has_read(std::uint64_t offset, std::uint64_t bytes) const {
  static_cast<void>(::posix_fadvise(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED));
}

}  // namespace terrace::lm
