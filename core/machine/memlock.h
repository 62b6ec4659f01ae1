// How much memory this process may lock, in words for users.
//
// Threads: any. Errors: none.
#pragma once

#include <string>

namespace terrace::machine {

std::string memlock_limit();  // "8.00 MiB", "unlimited"
// What to do when memory cannot be locked or registered: names the limit, if that is the cause, and how to raise it in a shell,
// a container and a service.
std::string memlock_mend();

}  // namespace terrace::machine
