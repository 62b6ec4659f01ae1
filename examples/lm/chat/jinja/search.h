// Finds a text in another one, and charges the compared bytes: a search for "aaab" in "aaaa…" compares most bytes several
// times.
//
// Threads: any. Errors: Fault.
#pragma once

#include <cstddef>
#include <string_view>

#include <terrace/examples/lm/chat/jinja/work.h>

namespace terrace::lm::jinja {

// The first occurrence at or after `from`, and the last one; npos: none.
std::size_t find_first(std::string_view text, std::string_view part, std::size_t from, Work& work);
std::size_t find_last(std::string_view text, std::string_view part, Work& work);

}  // namespace terrace::lm::jinja
