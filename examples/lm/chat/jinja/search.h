// Where a text stands in another one, by the bytes that are compared: looking for "aaab" in "aaaa…" compares most of them
// several times.
//
// Threads: any. Errors: Fault.
#pragma once

#include <cstddef>
#include <string_view>

#include <terrace/examples/lm/chat/jinja/work.h>

namespace terrace::lm::jinja {

// The first place at or after `from`, and the last one; npos: there is none.
std::size_t find_first(std::string_view text, std::string_view part, std::size_t from, Work& work);
std::size_t find_last(std::string_view text, std::string_view part, Work& work);

}  // namespace terrace::lm::jinja
