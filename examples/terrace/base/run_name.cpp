#include <terrace/examples/terrace/base/run_name.h>

namespace terrace::cli {

std::string name_of_run(const std::filesystem::path& directory) {
  auto whole = std::filesystem::absolute(directory).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // the path ended with a slash
  return whole.filename().string();
}

}  // namespace terrace::cli
