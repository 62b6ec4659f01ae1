// The texts of a conversation file: its lines, or the elements if the file is one JSON array.
//
// Threads: any.
// Errors:  those of DataStream; Error(ErrorKind::refused), with the file and the place, for a text that is too long, and for an
//          array that does not end or is followed by something.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <terrace/examples/lm/unpack/data_stream.h>

namespace terrace::lm {

// Reads the stream from beginning to end. `take` receives each text, including empty lines, with its place: "line 7", "element
// 7". Returns the checksum of all bytes. Runs store it, so its definition is fixed: windows of 1 MiB that end with a line.
std::uint64_t each_conversation_text(DataStream& in, const std::string& name,
                                     const std::function<void(const std::string& place, std::string_view text)>& take);

}  // namespace terrace::lm
