#include <terrace/core/base/notice.h>

#include <exception>
#include <string>

#include <terrace/core/base/printable.h>

namespace terrace::base {

void say(std::FILE* to, std::string_view text) noexcept { std::fwrite(text.data(), 1, text.size(), to); }

void warn(std::string_view text) noexcept try {
  std::string line("warning: ");
  line += printable_lines(text);
  line += '\n';
  say(stderr, line);
} catch (const std::exception&) {
  say(stderr, text);  // without memory for a line
}

}  // namespace terrace::base
