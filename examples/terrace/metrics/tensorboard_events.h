// The records of a TensorBoard event file: TFRecord framing around the few fields of the protobuf message Event that scalars
// need (tensorflow/core/util/event.proto, summary.proto), written by hand.
//
//   record = length (8 bytes) · masked CRC-32C of it (4) · Event · masked CRC-32C of that (4), little-endian
//   Event: wall_time = 1 (double), step = 2, file_version = 3, summary = 5 {value = 1 {tag = 1, simple_value = 2 (float)}}
//
// Threads: any. Errors: none; the records end before the first one that cannot be parsed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace terrace::cli {

struct TensorBoardEvent {
  double wall_time = 0;  // in seconds since 1970
  std::uint64_t step = 0;
  std::string file_version;  // only in the first record
  std::vector<std::pair<std::string, float>> scalars;
  friend bool operator==(const TensorBoardEvent&, const TensorBoardEvent&) = default;
};

inline constexpr const char* kEventFileVersion = "brain.Event:2";

std::string to_record(const TensorBoardEvent& event);

// Takes the record at the front of `bytes`, if it is complete and undamaged. Unknown fields are skipped.
bool take_record(std::string_view& bytes, TensorBoardEvent& event);

}  // namespace terrace::cli
