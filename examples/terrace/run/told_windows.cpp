#include <terrace/examples/terrace/run/told_windows.h>

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include <terrace/core/base/json_text.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/lm/models/family.h>
#include <terrace/examples/lm/weights/weight_files.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
using layers::Windows;

// The windows in sequences of `positions`: a window that is no shorter counts as none. Returns the shortest pattern of the
// blocks.
Windows within(const Windows& windows, std::int64_t positions, std::int64_t blocks) {
  std::vector<std::int64_t> of_blocks;
  for (std::int64_t b = 0; b < blocks; ++b) of_blocks.push_back(windows.of(b) < positions ? windows.of(b) : 0);
  for (std::size_t length = 1; length < of_blocks.size(); ++length) {
    bool repeats = true;
    for (std::size_t b = length; b < of_blocks.size(); ++b) repeats = repeats && of_blocks[b] == of_blocks[b - length];
    if (!repeats) continue;
    of_blocks.resize(length);
    break;
  }
  return Windows(std::move(of_blocks));
}

struct ToldWindow {
  Windows windows;
  std::string by;
};

// The windows that the file names, if the user has given none.
std::optional<ToldWindow> told(const RunConfig& c) {
  if (c.run.init_from.empty() || c.model.window != layers::Windows()) return std::nullopt;
  const lm::WeightFiles files(c.run.init_from);
  const auto& metadata = files.files().front().metadata();
  if (const auto own = metadata.find(kWindowKey); own != metadata.end()) try {
      return ToldWindow{Windows::parse(own->second), "its metadata"};
    } catch (const Error&) {  // another program wrote it
    }
  std::error_code error;
  const fs::path from = c.run.init_from;
  const auto beside = (fs::is_directory(from, error) ? from : from.parent_path()) / "config.json";
  if (!fs::is_regular_file(beside, error)) return std::nullopt;
  try {
    if (const auto windows = windows_of_config(base::parse_json(read_text_file(beside)), c.model.layers))
      return ToldWindow{*windows, beside.string()};
  } catch (const Error&) {  // a file that cannot be read says nothing
  }
  return std::nullopt;
}

}  // namespace

std::optional<Windows> windows_of_config(const nlohmann::json& config, std::int64_t blocks) {
  if (!config.is_object() || !config.contains(kWindowKey)) return std::nullopt;
  const auto& window = config.at(kWindowKey);
  const auto used = config.find("use_sliding_window");
  if (window.is_null() || (used != config.end() && used->is_boolean() && !used->get<bool>())) return Windows();
  if (!window.is_number_unsigned() || window.get<std::uint64_t>() > (std::uint64_t{1} << 32)) return std::nullopt;
  const auto positions = window.get<std::int64_t>();
  std::vector<std::int64_t> of_blocks;
  if (const auto types = config.find("layer_types"); types != config.end()) {
    if (!types->is_array() || std::ssize(*types) != blocks) return std::nullopt;
    for (const auto& type : *types) of_blocks.push_back(type == "sliding_attention" ? positions : 0);
  } else if (const auto every = config.find("sliding_window_pattern"); every != config.end()) {
    if (!every->is_number_unsigned() || every->get<std::int64_t>() < 1) return std::nullopt;
    for (std::int64_t b = 1; b <= blocks; ++b) of_blocks.push_back(b % every->get<std::int64_t>() == 0 ? 0 : positions);
  } else if (const auto first = config.find("max_window_layers"); used != config.end() && first != config.end()) {
    if (!first->is_number_unsigned()) return std::nullopt;
    for (std::int64_t b = 0; b < blocks; ++b) of_blocks.push_back(b < first->get<std::int64_t>() ? 0 : positions);
  } else {
    of_blocks = {positions};
  }
  return Windows(std::move(of_blocks));
}

void demand_told_windows(const RunConfig& c) {
  const auto file = told(c);
  if (!file) return;
  const auto windows = within(file->windows, c.model.seq_len, c.model.layers);
  if (windows.is_usual()) return;
  throw base::Refused(
      fmt::format("--init-from {}: {} has windows of attention, and this run would have none\n  give --window {}",
                  c.run.init_from, file->by, to_string(windows)));
}

std::optional<std::string> warning_of_told_windows(const RunConfig& c) {
  if ((*c.model.family.get().file.window.size).empty()) return std::nullopt;
  const auto file = told(c);
  if (!file || file->windows.is_usual() || !within(file->windows, c.model.seq_len, c.model.layers).is_usual())
    return std::nullopt;
  return fmt::format(
      "--init-from {}: {} has windows of attention, which are no shorter than --seq-len {}: this run and its export "
      "have none; give --window {} to keep them",
      c.run.init_from, file->by, c.model.seq_len, to_string(file->windows));
}

}  // namespace terrace::cli
