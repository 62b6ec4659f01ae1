// Refuses texts whose nesting no file of terrace has, before a parser sees them: the values of such a text call themselves once
// a level when they are copied, printed or removed, which ends in a stack overflow.
//
// Threads: any; pure. Errors: Error with only the reason.
#pragma once

#include <string_view>

namespace terrace {

// Brackets in brackets, 64 at most.
void demand_shallow_json(std::string_view text);
// And keys of at most 16 parts (a.b.c), and 1 MiB.
void demand_shallow_toml(std::string_view text);

}  // namespace terrace
