#include <terrace/core/base/fetched_file.h>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/text_file.h>

namespace terrace::files {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostPointerBytes = 1024;  // the limit of the format

bool is_pointer(const fs::path& file) try {
  std::error_code error;
  return fs::is_regular_file(file, error) && fs::file_size(file, error) <= kMostPointerBytes &&
         read_text_file(file, kMostPointerBytes).starts_with("version https://git-lfs");
} catch (const Error&) {  // the code that reads the file will report why it cannot be read
  return false;
}

}  // namespace

void demand_fetched(const fs::path& file) {
  std::error_code error;
  if (fs::is_symlink(file, error) && !fs::exists(file, error))
    throw Error(
        fmt::format("{} is a link to {}, which does not exist\n  fetch the directory again, or copy it with the files that "
                    "its links name: cp -rL",
                    file.string(), base::printable(fs::read_symlink(file, error).string())),
        ErrorKind::refused);
  if (is_pointer(file))
    throw Error(
        fmt::format("{} is a pointer of Git LFS: the file itself has not been fetched\n  run git lfs pull in its directory",
                    file.string()),
        ErrorKind::refused);
}

}  // namespace terrace::files
