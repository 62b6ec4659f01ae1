// Finds the format of a training data file from its name and its first bytes.
//
// Threads: any.
// Errors:  Error(ErrorKind::refused) for a format that terrace does not read, with a command that converts the file, and for
//          token ids outside the vocabulary whether read as two or as four bytes.
#pragma once

#include <cstdint>
#include <filesystem>

namespace terrace::lm {

// bytes: text; or other data, if the vocabulary has 256 tokens and each byte is an id.
enum class DataForm : std::uint8_t { bytes, conversations, u16, u32, llm_c };
DataForm form_of_data(const std::filesystem::path& file, std::int64_t vocabulary);

}  // namespace terrace::lm
