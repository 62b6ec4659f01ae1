// Modules: parts of terrace that need a library which may be absent. They are loaded on first use, so that a program also runs
// without the library, and does not load it when it is not needed.
//
// Owner:   the process; a module stays loaded. Threads: any.
// Errors:  Error(ErrorKind::missing) with the searched places, the loader's messages and `mend`.
#pragma once

#include <string>

namespace terrace::base {

// The address of `entry` in "<name>.so". The module is searched in $TERRACE_MODULE_PATH; if that is not set, beside the
// program, in its installation (../lib/terrace), and where this library was built (unless TERRACE_RELOCATABLE) or installed.
// `mend`: "install …, and build terrace again".
void* load_module(const std::string& name, const char* entry, const std::string& mend);
// Whether a file of this name exists, whatever it contains.
bool has_module(const std::string& name);

}  // namespace terrace::base
