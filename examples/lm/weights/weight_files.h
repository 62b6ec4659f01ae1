// The weights of a model in one safetensors file, or in a directory in the format of Hugging Face's library: model.safetensors,
// or several files and model.safetensors.index.json, which gives the file of each tensor.
//
// Owner:   the caller.
// Threads: as SafetensorsReader.
// Errors:  those of SafetensorsReader; Error(ErrorKind::corrupt) for an index that is invalid, or names a file outside the
//          directory or a tensor that its file does not have; Error(ErrorKind::refused) for a directory without weights, or
//          with files that were not fetched (core/base/fetched_file.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/lm/weights/safetensors.h>
#include <terrace/offload/io/io_choice.h>

namespace terrace::lm {

inline constexpr const char *kWeightsFile = "model.safetensors", *kWeightsIndex = "model.safetensors.index.json";

class WeightFiles {
 public:
  explicit WeightFiles(const std::filesystem::path& file_or_directory, const IoChoice& io = {});  // `io`: for reading ahead

  [[nodiscard]] const std::vector<SafetensorsReader>& files() const { return files_; }
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const;  // null when absent
  [[nodiscard]] bool same_bytes(std::string_view one, std::string_view other) const;
  // As in SafetensorsReader::read.
  template <class T>
  void read(std::string_view name, std::uint64_t first, std::span<T> out) const {
    files_[file_of(name)].read(name, first, out);
  }
  // Announces ranges that will be read next, in this order, so that they are read ahead.
  void announce(std::string_view name, std::uint64_t first, std::uint64_t elements) const {
    files_[file_of(name)].announce(name, first, elements);
  }

 private:
  void add(const std::filesystem::path& file);
  void open_index(const std::filesystem::path& directory);
  [[nodiscard]] std::size_t file_of(std::string_view name) const;

  std::vector<SafetensorsReader> files_;
  std::map<std::string, std::size_t, std::less<>> file_of_;
};

// The weight files of a path: the path itself if it is a file, else those of the directory, the index first.
std::vector<std::filesystem::path> weight_files(const std::filesystem::path& file_or_directory);

}  // namespace terrace::lm
