#include <terrace/core/base/version.h>

namespace terrace {

std::string_view version() { return TERRACE_VERSION; }

}  // namespace terrace
