#include <terrace/examples/lm/weights/weight_files.h>

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include <terrace/core/base/fetched_file.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/lm/weights/unique_keys.h>

namespace terrace::lm {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostFiles = 10'000;

bool is_there(const fs::path& file) {
  std::error_code error;
  return fs::exists(file, error);
}

// tensor → file, as in the index. A file name must not point outside the directory.
std::map<std::string, std::string> map_of(const fs::path& index) {
  const auto refuse = [&](const std::string& why) -> void {
    throw Error(fmt::format("{}: {}\n  bring the directory back as it was written", index.string(), why), ErrorKind::corrupt,
                {.path = index.string()});
  };
  files::demand_fetched(index);
  nlohmann::json parsed;
  try {
    parsed = parse_json_with_unique_keys(read_text_file(index));
  } catch (const Error& error) {
    refuse(error.what());
  }
  const auto map = parsed.is_object() ? parsed.find("weight_map") : parsed.end();
  if (map == parsed.end() || !map->is_object()) refuse("it has no weight_map");
  std::map<std::string, std::string> files;
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) refuse(fmt::format("the file of tensor \"{}\" is no text", base::printable(tensor)));
    const auto name = file.get<std::string>();
    if (name.empty() || name.front() == '.' || name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
      refuse(fmt::format("tensor \"{}\" is said to be in \"{}\", which is no file of the directory", base::printable(tensor),
                         base::printable(name)));
    files[tensor] = name;
    names.insert(name);
  }
  if (names.empty()) refuse("it names no file");
  if (names.size() > kMostFiles) refuse(fmt::format("it names {} files", names.size()));
  return files;
}

[[noreturn]] void refuse_without_weights(const fs::path& directory) {
  for (const auto* const name : {kWeightsFile, kWeightsIndex}) files::demand_fetched(directory / name);
  std::set<std::string> shards;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error))
    if (const auto name = entry.path().filename().string(); name.starts_with("model-") && name.ends_with(".safetensors"))
      shards.insert(name);
  if (!shards.empty())
    throw base::Refused(
        fmt::format("{} has {} of {} files of weights, but not {}, which says which tensors are in which file\n  fetch "
                    "that file, too",
                    directory.string(), base::printable(*shards.begin()), shards.size(), kWeightsIndex));
  throw base::Refused(fmt::format("{} has neither {} nor {}; weights in other formats cannot be read", directory.string(),
                                  kWeightsFile, kWeightsIndex));
}

}  // namespace

// A single file with all weights has priority over an index, as in Hugging Face's library: the index may belong to an older
// model.
std::vector<fs::path> weight_files(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  const auto whole = path / kWeightsFile, index = path / kWeightsIndex;
  if (is_there(whole)) return {whole};
  if (is_there(index)) {
    std::set<fs::path> files;
    for (const auto& [tensor, file] : map_of(index)) files.insert(path / file);
    std::vector<fs::path> all{index};
    all.insert(all.end(), files.begin(), files.end());
    return all;
  }
  refuse_without_weights(path);
}

WeightFiles::WeightFiles(const fs::path& path, const IoChoice& io) {
  const auto files = weight_files(path);
  if (files.front().filename() == kWeightsIndex)
    open_index(path);
  else
    add(files.front());
  std::vector<int> descriptors;
  for (const auto& file : files_) descriptors.push_back(file.descriptor());
  const auto ahead = std::make_shared<io::ReadAhead>(descriptors, io);  // the next tensor may be in another file
  for (std::size_t i = 0; i < files_.size(); ++i) files_[i].attach(ahead, i);
}

void WeightFiles::add(const fs::path& file) {
  files_.emplace_back(file);
  for (const auto& entry : files_.back().entries()) {
    if (file_of_.emplace(entry.name, files_.size() - 1).second) continue;
    throw Error(
        fmt::format("{}: tensor \"{}\" is in another file of the model, too", file.string(), base::printable(entry.name)),
        ErrorKind::corrupt, {.path = file.string()});
  }
}

void WeightFiles::open_index(const fs::path& directory) {
  const auto map = map_of(directory / kWeightsIndex);
  std::set<std::string> names;
  for (const auto& [tensor, file] : map) names.insert(file);
  const std::vector<std::string> order(names.begin(), names.end());
  for (const auto& name : order) add(directory / name);
  for (const auto& [tensor, file] : map) {
    const auto at = file_of_.find(tensor);
    if (at != file_of_.end() && order[at->second] == file) continue;
    throw Error(fmt::format("{}: tensor \"{}\" is not in {}", (directory / kWeightsIndex).string(), base::printable(tensor),
                            base::printable(file)),
                ErrorKind::corrupt, {.path = (directory / kWeightsIndex).string()});
  }
}

const SafetensorsEntry* WeightFiles::find(std::string_view name) const {
  const auto at = file_of_.find(name);
  return at == file_of_.end() ? nullptr : files_[at->second].find(name);
}

// For a tensor that is in no file, returns the first file, which then reports the error.
std::size_t WeightFiles::file_of(std::string_view name) const {
  const auto at = file_of_.find(name);
  return at == file_of_.end() ? 0 : at->second;
}

bool WeightFiles::same_bytes(std::string_view one, std::string_view other) const {
  const auto* const a = find(one);
  const auto* const b = find(other);
  if (!a || !b || a->type != b->type || a->shape != b->shape) return false;
  if (file_of(one) == file_of(other)) return files_[file_of(one)].same_bytes(one, other);
  constexpr std::uint64_t kAtOnce = 1 << 16;
  std::vector<double> mine(kAtOnce), others(kAtOnce);
  for (std::uint64_t first = 0; first < a->elements; first += kAtOnce) {
    const auto count = std::min(kAtOnce, a->elements - first);
    read(one, first, std::span(mine).first(count));
    read(other, first, std::span(others).first(count));
    if (!std::equal(mine.begin(), mine.begin() + static_cast<std::ptrdiff_t>(count), others.begin())) return false;
  }
  return true;
}

}  // namespace terrace::lm
