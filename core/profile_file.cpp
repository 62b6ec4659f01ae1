// The file that a machine profile is kept in.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <type_traits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/error.h>
#include <terrace/core/machine.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

// The file's keys, in one place: each of them is written, and each of them must be there to be read.
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

}  // namespace

void save_profile(const MachineProfile& profile, const fs::path& file) {
  nlohmann::ordered_json json;
  visit_fields(profile, [&](const char* key, const auto& value) { json[key] = value; });
  std::error_code ignored;  // what matters shows when the file is opened
  if (file.has_parent_path()) fs::create_directories(file.parent_path(), ignored);
  const fs::path fresh = file.string() + ".new";  // then renamed: a reader never sees half a file
  std::ofstream out(fresh);
  out << json.dump(2) << '\n';
  out.close();
  if (!out) throw Error(fmt::format("machine profile {} cannot be written: {}", fresh.string(), describe_errno(errno)));
  fs::rename(fresh, file);
}

MachineProfile load_profile(const fs::path& file) {
  const auto refuse = [&](const std::string& why) {
    throw Error(fmt::format("machine profile {}: {}\n  measure the machine anew, or name another file", file.string(), why),
                Exit::usage);
  };
  std::ifstream in(file);
  if (!in) refuse(describe_errno(errno));
  if (fs::is_directory(file)) refuse("it is a directory");  // which a stream opens, but cannot read
  const auto json = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) refuse("it is not a JSON object");

  MachineProfile profile;
  std::vector<std::string> known;
  visit_fields(profile, [&](const char* key, auto& value) {
    using Value = std::remove_reference_t<decltype(value)>;
    known.emplace_back(key);
    if (!json.contains(key)) refuse(fmt::format("the key \"{}\" is missing", key));
    const auto& entry = json.at(key);
    if constexpr (std::is_same_v<Value, std::string>) {
      if (!entry.is_string()) refuse(fmt::format("\"{}\" is not a text", key));
      value = entry.template get<std::string>();
    } else {
      if (!entry.is_number() || !(entry.template get<double>() > 0))
        refuse(fmt::format("\"{}\" is not a positive number", key));
      if (std::is_integral_v<Value> && !entry.is_number_integer()) refuse(fmt::format("\"{}\" is not a whole number", key));
      value = entry.template get<Value>();
    }
  });
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::find(known, key) == known.end()) refuse(fmt::format("the key \"{}\" is unknown", key));
  }
  return profile;
}

fs::path default_profile_path(const std::string& device) {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return fs::path(value ? value : "");
  };
  fs::path cache = variable("XDG_CACHE_HOME");
  if (!cache.is_absolute()) {  // the specification: a relative one is to be ignored
    const auto home = variable("HOME");
    cache = home.empty() ? fs::temp_directory_path() : home / ".cache";
  }
  auto file = device == "cpu" ? std::string("machine") : "machine-" + device;
  std::ranges::replace(file, ':', '-');
  return cache / "terrace" / (file + ".json");
}

}  // namespace terrace
