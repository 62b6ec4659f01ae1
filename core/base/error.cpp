#include <terrace/core/base/error.h>

#include <cstring>
#include <filesystem>

#include <fmt/format.h>

namespace terrace {

std::string describe_errno(int error_number) {
  char buffer[256] = "unknown error";
  // The GNU strerror_r returns the text, which need not lie in the buffer.
  return fmt::format("{} (errno {})", strerror_r(error_number, buffer, sizeof buffer), error_number);
}

std::string describe(const std::exception& error) {
  const auto* const file = dynamic_cast<const std::filesystem::filesystem_error*>(&error);
  if (!file) return error.what();
  const auto path = file->path1().string();
  return fmt::format("{}: {}", path.empty() ? "the current directory" : path, describe_errno(file->code().value()));
}

}  // namespace terrace
