#include "corpus_file.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <terrace/core/error.h>

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

std::uint64_t CorpusFile::bytes() const {
  struct stat status {};
  const bool known = file_ && ::fstat(file_.get(), &status) == 0;
  if (!known)
    throw Error(fmt::format("corpus file {} cannot be read: {}", path_.string(), file_ ? describe_errno(errno) : why_),
                Exit::usage);
  return static_cast<std::uint64_t>(status.st_size);
}

void CorpusFile::read(std::uint64_t offset, std::span<unsigned char> out) const {
  if (!file_)
    throw Error(
        fmt::format("corpus file {} could not be read at offset {}, {} bytes: {}", path_.string(), offset, out.size(), why_));
  while (!out.empty()) {
    const ssize_t got = ::pread(file_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw Error(fmt::format("corpus file {} could not be read at offset {}, {} bytes: {}", path_.string(), offset, out.size(),
                              describe_errno(errno)));
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
