#include <terrace/examples/terrace/base/environment.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char *kIoEngine = "TERRACE_IO_ENGINE", *kAttentionKernel = "TERRACE_ATTENTION_KERNEL";
constexpr std::pair<std::string_view, std::string_view> kVariables[] = {
    {"io-engine", kIoEngine}, {"attention", "TERRACE_ATTENTION"}, {"attention-kernel", kAttentionKernel}};

std::string value_of(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

IoChoice io_of_environment() { return {.engine = value_of(kIoEngine)}; }

std::string attention_kernel_of_environment() { return value_of(kAttentionKernel); }

std::string_view variable_of(std::string_view setting) {
  const auto* const at = std::ranges::find(kVariables, setting, &std::pair<std::string_view, std::string_view>::first);
  return at == std::end(kVariables) ? std::string_view() : at->second;
}

fs::path default_profile_path(const std::string& device) {
  fs::path cache = value_of("XDG_CACHE_HOME");
  if (!cache.is_absolute()) {  // the XDG specification says to ignore a relative path
    const fs::path home = value_of("HOME");
    cache = home.empty() ? fs::temp_directory_path() : home / ".cache";
  }
  auto file = device == "cpu" ? std::string("machine") : "machine-" + device;
  std::ranges::replace(file, ':', '-');
  return cache / "terrace" / (file + ".json");
}

}  // namespace terrace::cli
