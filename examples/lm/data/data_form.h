// What a file of training data holds, found from its name and its first bytes.
//
// Threads: any.
// Errors:  Error(Exit::usage) for a form that terrace does not read, with a line that converts the file, and for token ids that
//          are outside the vocabulary however they are read.
#pragma once

#include <cstdint>
#include <filesystem>

namespace terrace::lm {

// bytes: text, or what is nothing else where each byte is an id.
enum class DataForm : std::uint8_t { bytes, conversations, u16, u32, llm_c };
DataForm form_of_data(const std::filesystem::path& file, std::int64_t vocabulary);

}  // namespace terrace::lm
