#include <terrace/examples/terrace/base/folder_mark.h>

#include <cerrno>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/files.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

}  // namespace

bool is_marked(const fs::path& folder, const char* mark) {
  std::error_code error;
  return fs::is_regular_file(fs::symlink_status(folder / mark, error));
}

void mark_folder(const fs::path& folder, const char* mark, std::string_view text) try {
  if (!is_marked(folder, mark)) {
    const auto file = files::open_regular(folder / mark, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, AT_FDCWD, 0644);
    if (!file) throw Error(describe_errno(errno));
    files::write_all(file.get(), text);
  }
  files::sync_to_disk(folder / mark);
  files::sync_to_disk(folder);
} catch (const Error& error) {
  throw Error(fmt::format("{} cannot be written: {}\n  give a folder on a file system that can be written", folder.string(),
                          error.what()));
}

void unmark_folder(const fs::path& folder, const char* mark) {
  files::remove_path(folder / mark);
  files::sync_to_disk(folder);
}

}  // namespace terrace::cli
