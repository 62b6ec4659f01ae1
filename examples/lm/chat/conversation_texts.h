// The texts of a file of conversations: its lines, or the elements of the JSON array that it is.
//
// Threads: any.
// Errors:  those of DataStream; Error(Exit::usage) with the file and the place of a text that is too long, and for an array
//          without an end or with something behind it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <terrace/examples/lm/unpack/data_stream.h>

namespace terrace::lm {

// Reads the stream from its beginning to its end. `take` gets each text, also an empty line, with its place: "line 7",
// "element 7". Returns the checksum of all bytes, which runs keep: it is made in windows of 1 MiB that end with a line.
std::uint64_t each_conversation_text(DataStream& in, const std::string& name,
                                     const std::function<void(const std::string& place, std::string_view text)>& take);

}  // namespace terrace::lm
