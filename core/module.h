// Parts of terrace that need a library which may be absent: modules, loaded on first use, so that a program starts small, and
// also where there is none.
//
// Owner:   the process; a module stays loaded. Threads: any.
// Errors:  Error(Exit::hardware_missing) with `mend`, where it was looked for, and what the loader said.
#pragma once

#include <string>

namespace terrace {

// The address of `entry` in "<name>.so". It stands in $TERRACE_MODULE_PATH; where that is not set, beside the program, in
// its installation (../lib/terrace), or where this library was built or installed. `mend`: "install …, and build terrace
// again".
void* load_module(const std::string& name, const char* entry, const std::string& mend);

}  // namespace terrace
