// The JSON header of a safetensors file: from text to entries and back. Pure.
//
// Threads: any.
// Errors:  Error(ErrorKind::corrupt) with the file and, if possible, the tensor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/lm/weights/safetensors.h>

namespace terrace::lm {

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their bytes; offsets count from the end of the header
  std::map<std::string, std::string> metadata;
};

// `data_bytes`: the bytes after the header; the tensors must cover exactly these.
SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes, const std::string& file);
// Padded with spaces so that the tensors begin at a multiple of eight.
std::string format_safetensors_header(const SafetensorsHeader& header);

std::string describe(const SafetensorsEntry& entry);  // "tensor \"wte\" (F32 [2, 3])"

}  // namespace terrace::lm
