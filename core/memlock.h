// How much memory this process may lock, in words for users.
//
// Threads: any. Errors: none.
#pragma once

#include <string>

namespace terrace {

std::string memlock_limit();  // "8.00 MiB", "unlimited"
// What to do where memory cannot be locked or registered: the limit, if it is one, and how a shell, a container and a service
// raise it.
std::string memlock_mend();

}  // namespace terrace
