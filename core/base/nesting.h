// Refuses texts that are nested more deeply than any file of terrace, before a parser sees them: copying, printing or
// destroying the parsed values recurses once per level, which would end in a stack overflow.
//
// Threads: any; pure. Errors: Error with only the reason.
#pragma once

#include <string_view>

namespace terrace::base {

// Allows 64 levels of brackets.
void demand_shallow_json(std::string_view text);
// Also allows at most 16 parts in a key (a.b.c) and 1 MiB in all.
void demand_shallow_toml(std::string_view text);

}  // namespace terrace::base
