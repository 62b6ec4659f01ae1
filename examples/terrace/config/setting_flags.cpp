#include <terrace/examples/terrace/config/setting_flags.h>

#include <terrace/examples/terrace/base/environment.h>
#include <terrace/examples/terrace/config/options.h>

namespace terrace::cli {

// A word in backquotes that is not an option, such as `ulimit -u`, stays.
std::string with_flags(std::string_view text) {
  std::string out;
  for (;;) {
    const auto begin = text.find('`');
    const auto end = begin == std::string_view::npos ? begin : text.find('`', begin + 1);
    if (end == std::string_view::npos) return out.append(text);
    out.append(text.substr(0, begin));
    if (const auto name = text.substr(begin + 1, end - begin - 1); find_option(name)) {
      out.append("--").append(name);
    } else if (const auto variable = variable_of(name); !variable.empty()) {
      out.append(variable);
    } else {
      out.append(text.substr(begin, end + 1 - begin));
    }
    text.remove_prefix(end + 1);
  }
}

}  // namespace terrace::cli
