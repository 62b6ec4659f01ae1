#include <terrace/core/error.h>

#include <cstring>

#include <fmt/format.h>

namespace terrace {

std::string describe_errno(int error_number) {
  char buffer[256] = "unknown error";
  // The GNU strerror_r returns the text, which need not lie in the buffer.
  return fmt::format("{} (errno {})", strerror_r(error_number, buffer, sizeof buffer), error_number);
}

}  // namespace terrace
