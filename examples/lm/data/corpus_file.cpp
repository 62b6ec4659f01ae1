#include <terrace/examples/lm/data/corpus_file.h>

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace::lm {

CorpusFile::CorpusFile(std::filesystem::path path) : path_(std::move(path)) {
  try {
    file_ = files::open_regular(path_, O_RDONLY);
    if (!file_) why_ = errno_error(errno, path_.string(), {}, "change its permissions, or give --data another file");
  } catch (const Error& error) {
    why_.emplace(
        fmt::format(
            "{}\n  sequences are read from random places in it: write the text to a regular file, and give --data that file",
            error.what()),
        error);
  }
}

files::FileState CorpusFile::state() const try {
  if (why_) throw Error(*why_);
  return files::state_of(file_.get());
} catch (const Error& error) {
  throw Error(fmt::format("corpus file {} cannot be read: {}", path_.string(), error.what()), ErrorKind::refused,
              error.facts_at(path_.string()));
}

void CorpusFile::demand_unchanged(const files::FileState& since) const {
  if (why_) fail_read(0, since.bytes, *why_);
  const auto now = state();
  if (now.bytes < since.bytes)
    fail_changed(fmt::format("became shorter while it was in use: it has {} bytes, and had {}", now.bytes, since.bytes));
  if (now.bytes != since.bytes)
    fail_changed(fmt::format("has changed while it was in use: it has {} bytes, and had {}", now.bytes, since.bytes));
  if (now.written_ns != since.written_ns)
    fail_changed("has changed while it was in use: it was written to, or is another file of that name");
}

void CorpusFile::fail_changed(const std::string& how) const {
  throw Error(fmt::format("corpus file {} {}", path_.string(), how), ErrorKind::failed, {.path = path_.string()});
}

void CorpusFile::fail_read(std::uint64_t offset, std::uint64_t bytes, const Error& why) const {
  throw Error(
      fmt::format("corpus file {} could not be read at offset {}, {} bytes: {}", path_.string(), offset, bytes, why.what()),
      ErrorKind::failed, why.facts_at(path_.string()));
}

void CorpusFile::read(std::uint64_t offset, std::span<unsigned char> out) const {
  if (why_) fail_read(offset, out.size(), *why_);
  while (!out.empty()) {
    const ssize_t got = ::pread(file_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_read(offset, out.size(), errno_error(errno, path_.string()));
    if (got == 0) fail_changed(fmt::format("became shorter while it was in use: it ends at byte {}", offset));
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
