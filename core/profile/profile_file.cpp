// The file of a machine profile.
#include <algorithm>
#include <string_view>
#include <type_traits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/core/base/json_text.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused_setting.h>
#include <terrace/core/base/text_file.h>
#include <terrace/core/machine/machine.h>
#include <terrace/core/profile/profile_algorithms.h>
#include <terrace/core/profile/profile_rates.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

// All keys of the file, in one place: each is written, and each must be present when a profile is read.
template <class Profile, class Visit>
void visit_fields(Profile& p, const Visit& visit) {
  visit("disk_read_bytes_s", p.disk_read);
  visit("disk_write_bytes_s", p.disk_write);
  visit("disk_both_bytes_s", p.disk_both);
  visit("memory_copy_bytes_s", p.memory_copy);
  visit("memory_stream_bytes_s", p.memory_stream);
  visit("matmul_fp32_flop_s", p.matmul_fp32);
  visit("matmul_bf16_flop_s", p.matmul_bf16);
  visit("matmul_fp64_flop_s", p.matmul_fp64);
  visit("compute_beside_copy", p.compute_beside_copy);
  visit("compute_beside_disk", p.compute_beside_disk);
  visit("disk_latency_s", p.disk_latency_s);
  visit("device", p.device);
  visit("device_stream_bytes_s", p.device_stream);
  visit("upload_bytes_s", p.upload);
  visit("download_bytes_s", p.download);
  visit("threads", p.threads);
  visit("measured_at", p.measured_at);
}

constexpr const char* kAlgorithms = "algorithms";
constexpr const char* kDiskAssumed = "disk_assumed";     // written only if it is true
constexpr const char* kFloat8 = "matmul_float8_flop_s";  // written only if it was measured

[[noreturn]] void refuse(const fs::path& file, const std::string& why) {
  throw RefusedSetting("machine-profile",
                       fmt::format("machine profile {}: {}\n  measure the machine again, or give another `machine-profile`",
                                   file.string(), why));
}

nlohmann::ordered_json read(const fs::path& file) {
  nlohmann::ordered_json json;
  try {
    json = base::parse_json<nlohmann::ordered_json>(read_text_file(file));
  } catch (const Error& error) {
    refuse(file, error.what());
  }
  if (!json.is_object()) refuse(file, "it is not a JSON object");
  return json;
}

void write(const nlohmann::ordered_json& json, const fs::path& file) {
  std::error_code ignored;  // opening the file reports the error
  if (file.has_parent_path()) fs::create_directories(file.parent_path(), ignored);
  try {
    write_text_file(file, json.dump(2) + '\n');
  } catch (const Error& error) {
    throw Error(fmt::format("machine profile {} cannot be written: {}\n  free space or fix the permissions there, or set "
                            "XDG_CACHE_HOME to a folder for it",
                            file.string(), error.what()),
                error, file.string());
  }
}

// The file that a new profile replaces. It may be damaged or missing.
nlohmann::ordered_json earlier(const fs::path& file) {
  std::error_code error;
  if (fs::exists(file, error) && !fs::is_regular_file(file, error)) return read(file);  // throws; a pipe would never end
  try {
    return base::parse_json<nlohmann::ordered_json>(read_text_file(file));
  } catch (const Error&) {
    return {};
  }
}

std::vector<std::string> algorithms_of(const nlohmann::ordered_json& json, const fs::path& file) {
  std::vector<std::string> lines;
  if (!json.contains(kAlgorithms)) return lines;
  const auto& kept = json.at(kAlgorithms);
  const auto is_text = [](const auto& line) { return line.is_string(); };
  if (!kept.is_array() || !std::ranges::all_of(kept, is_text))
    refuse(file, fmt::format("\"{}\" is not a list of strings", kAlgorithms));
  for (const auto& line : kept) lines.push_back(line.get<std::string>());
  return lines;
}

std::string_view library_of(const std::vector<std::string>& lines) {
  const auto at = std::ranges::find_if(lines, [](const auto& line) { return line.starts_with("library "); });
  return at == lines.end() ? std::string_view() : std::string_view(*at);
}

// Returns "matmul PRODUCT" for the line "matmul PRODUCT: ALGORITHM".
std::string_view subject_of(std::string_view line) { return line.substr(0, line.find(": ")); }

}  // namespace

std::vector<double*> profile::rates_of(MachineProfile& profile) {
  std::vector<double*> rates;
  visit_fields(profile, [&](const char*, auto& value) {
    if constexpr (std::is_same_v<decltype(value), double&>) rates.push_back(&value);
  });
  rates.push_back(&profile.matmul_float8);
  return rates;
}

void save_profile(const MachineProfile& profile, const fs::path& file) {
  nlohmann::ordered_json json;
  visit_fields(profile, [&](const char* key, const auto& value) { json[key] = value; });
  if (profile.disk_assumed) json[kDiskAssumed] = true;
  if (profile.matmul_float8 > 0) json[kFloat8] = profile.matmul_float8;
  const auto old = earlier(file);
  // Rates are replaced. The algorithms chosen on this device stay, so the bits of its results do not change.
  if (old.is_object() && old.contains(kAlgorithms) && old.value("device", nlohmann::ordered_json()) == profile.device)
    json[kAlgorithms] = old.at(kAlgorithms);
  write(json, file);
}

MachineProfile load_profile(const fs::path& file) {
  const auto json = read(file);
  MachineProfile profile;
  std::vector<std::string> known{kAlgorithms, kDiskAssumed, kFloat8};
  const auto read_field = [&](const char* key, auto& value) {
    using Value = std::remove_reference_t<decltype(value)>;
    known.emplace_back(key);
    if (!json.contains(key)) refuse(file, fmt::format("the key \"{}\" is missing", key));
    const auto& entry = json.at(key);
    if constexpr (std::is_same_v<Value, std::string>) {
      if (!entry.is_string()) refuse(file, fmt::format("\"{}\" is not a string", key));
      value = entry.template get<std::string>();
    } else {
      if (!entry.is_number() || !(entry.template get<double>() > 0))
        refuse(file, fmt::format("\"{}\" is not a positive number", key));
      if (std::is_integral_v<Value> && !entry.is_number_integer())
        refuse(file, fmt::format("\"{}\" is not a whole number", key));
      value = entry.template get<Value>();
    }
  };
  visit_fields(profile, read_field);
  if (json.contains(kFloat8)) read_field(kFloat8, profile.matmul_float8);
  const auto assumed = json.value(kDiskAssumed, nlohmann::ordered_json(false));
  if (!assumed.is_boolean()) refuse(file, fmt::format("\"{}\" is not true or false", kDiskAssumed));
  profile.disk_assumed = assumed.get<bool>();
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::find(known, key) == known.end())
      refuse(file, fmt::format("the key \"{}\" is unknown", base::printable(key)));
  }
  algorithms_of(json, file);
  return profile;
}

std::string profile::algorithms_in_profile(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return {};
  std::string text;
  for (const auto& line : algorithms_of(read(file), file)) text += line + '\n';
  return text;
}

void profile::add_algorithms_to_profile(const fs::path& file, const std::string& chosen) {
  std::error_code error;
  if (!fs::exists(file, error)) return;
  const auto lines = lines_of(chosen);
  auto json = read(file);
  auto kept = algorithms_of(json, file);
  const auto before = kept;
  if (library_of(kept) != library_of(lines)) kept.clear();
  for (const auto& line : lines)
    if (std::ranges::find(kept, subject_of(line), subject_of) == kept.end()) kept.push_back(line);
  if (kept == before) return;
  json[kAlgorithms] = kept;
  write(json, file);
}

}  // namespace terrace
