#include <terrace/examples/terrace/data/data_content.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/units.h>
#include <terrace/examples/lm/data/corpus_file.h>
#include <terrace/examples/terrace/config/same_settings.h>
#include <terrace/examples/terrace/data/data_sources.h>

namespace terrace::cli {
namespace {

// kSampledBytes are for all files together; the sample of each file has at least kLeastSample.
constexpr std::uint64_t kSampledBytes = 256 * kMiB, kLeastSample = 64 * kKiB;

std::string recorded_text(const nlohmann::json& of, const char* key) { return of.value(key, std::string()); }

void add_name(std::string& names, const std::filesystem::path& file) {
  names += (names.empty() ? "" : ", ") + base::printable(file.string());
}

}  // namespace

DataContent::DataContent(const RunConfig& config) {
  for (auto& path : data_files(config)) {
    const auto state = lm::CorpusFile(path).state();
    files_.push_back({.path = std::move(path),
                      // The device is left out, because its number changes when the disk is mounted again.
                      .state = fmt::format("{} {} {} {}", state.inode, state.bytes, state.written_ns, state.changed_ns),
                      .sample = {},
                      .checksum = {}});
  }
  sampled_bytes_ = std::max(kLeastSample, kSampledBytes / std::max<std::uint64_t>(1, files_.size()));
}

void DataContent::set_checksums(const std::vector<std::uint64_t>& of_files) {
  for (std::size_t i = 0; i < of_files.size(); ++i) files_.at(i).checksum = fmt::format("{:016x}", of_files[i]);
}

const std::string& DataContent::sample_of(File& file) const {
  if (file.sample.empty()) file.sample = describe_content(file.path, sampled_bytes_);
  return file.sample;
}

std::string DataContent::difference(const nlohmann::json& recorded) {
  std::string changed;
  doubt_.clear();
  if (recorded.size() != files_.size()) return changed;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    auto& file = files_[i];
    const auto& then = recorded.at(i);
    const auto checksum = recorded_text(then, "checksum");
    if (!checksum.empty() && !file.checksum.empty()) {
      if (checksum != file.checksum) add_name(changed, file.path);
    } else if (recorded_text(then, "state") == file.state) {
      file.sample = recorded_text(then, "sample");
    } else if (recorded_text(then, "sample") != sample_of(file)) {
      add_name(changed, file.path);
    } else if (std::filesystem::file_size(file.path) > sampled_bytes_) {
      add_name(doubt_, file.path);
    }
  }
  return changed;
}

nlohmann::json DataContent::record() {
  auto out = nlohmann::json::array();
  for (auto& file : files_) {
    nlohmann::json of{{"state", file.state}};
    if (file.checksum.empty())
      of["sample"] = sample_of(file);
    else
      of["checksum"] = file.checksum;
    out.push_back(std::move(of));
  }
  return out;
}

}  // namespace terrace::cli
