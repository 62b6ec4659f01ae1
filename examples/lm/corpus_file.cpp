#include "corpus_file.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <terrace/core/error.h>

namespace terrace::lm {

// Without O_NONBLOCK, opening a named pipe would wait for its writer instead of being refused.
CorpusFile::CorpusFile(std::filesystem::path path)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), error_(errno) {}

CorpusFile::~CorpusFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::uint64_t CorpusFile::bytes() const {
  struct stat status {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
    throw Error(fmt::format("corpus file {} cannot be read: {}\n  change its permissions, or give --data another file",
                            path_.string(), describe_errno(descriptor_ < 0 ? error_ : errno)),
                Exit::usage);
  }
  if (!S_ISREG(status.st_mode))
    throw Error(
        fmt::format("corpus file {} is not a regular file\n  sequences are read from random places in it: write the text to a "
                    "file, and give --data that file",
                    path_.string()),
        Exit::usage);
  return static_cast<std::uint64_t>(status.st_size);
}

void CorpusFile::read(std::uint64_t offset, std::span<unsigned char> out) const {
  while (!out.empty()) {
    const ssize_t got = descriptor_ < 0 ? -1 : ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    const int error = descriptor_ < 0 ? error_ : errno;
    if (got < 0 && error == EINTR) continue;
    if (got < 0)
      throw Error(fmt::format("corpus file {} could not be read at offset {}, {} bytes: {}", path_.string(), offset, out.size(),
                              describe_errno(error)));
    if (got == 0)
      throw Error(fmt::format("corpus file {} became shorter while it was in use: it ends at byte {}", path_.string(), offset));
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

void CorpusFile::will_read(std::uint64_t offset, std::uint64_t bytes) const {
  static_cast<void>(::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED));
}

}  // namespace terrace::lm
