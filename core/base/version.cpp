#include <terrace/core/base/version.h>

#define TERRACE_TEXT_OF(number) #number
#define TERRACE_TEXT(number) TERRACE_TEXT_OF(number)

namespace terrace {

std::string_view version() {
  return TERRACE_TEXT(TERRACE_VERSION_MAJOR) "." TERRACE_TEXT(TERRACE_VERSION_MINOR) "." TERRACE_TEXT(TERRACE_VERSION_PATCH);
}

}  // namespace terrace
