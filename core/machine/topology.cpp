#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>

#include <terrace/core/base/units.h>
#include <terrace/core/machine/cores.h>
#include <terrace/core/machine/machine.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream out;
  if (in) out << in.rdbuf();
  return out.str();
}

// "max", a missing file and invalid text all mean: no number.
std::optional<std::uint64_t> read_number(const fs::path& file) {
  const auto text = read_text(file);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

// The number after "key" at the start of a line: "MemTotal:   123 kB", "inactive_file 456".
std::optional<std::uint64_t> field(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t value = 0;
    if (words >> name && name == key && words >> value) return value;
  }
  return std::nullopt;
}

// The directories whose limits apply to this process: its control group and all its parents. In a container the path
// from the kernel may be outside the mounted tree; then the mounted root is the group.
std::vector<fs::path> group_directories(const fs::path& mount, const std::string& group) {
  std::vector<fs::path> out;
  for (fs::path relative = fs::path(group).relative_path(); !relative.empty(); relative = relative.parent_path()) {
    out.push_back(mount / relative);
  }
  out.push_back(mount);
  return out;
}

// This process's group under a version 1 controller, or under version 2 with an empty controller.
std::string group_of(const std::string& proc_cgroup, const std::string& controller) {
  std::istringstream lines(proc_cgroup);  // "4:cpu,cpuacct:/docker/…" or "0::/user.slice/…"
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::istringstream names(line.substr(first + 1, second - first - 1));
    if (controller.empty() && first + 1 == second) return line.substr(second + 1);
    for (std::string name; std::getline(names, name, ',');) {
      if (name == controller) return line.substr(second + 1);
    }
  }
  return "/";
}

// The least quota of CPU time, in cores; infinity without one.
double quota_cores(const fs::path& root, const std::string& proc_cgroup) {
  double cores = INFINITY;
  const auto consider = [&](double quota, double period) {
    if (quota > 0 && period > 0) cores = std::min(cores, quota / period);
  };
  for (const auto& dir : group_directories(root / "sys/fs/cgroup", group_of(proc_cgroup, ""))) {
    std::istringstream words(read_text(dir / "cpu.max"));  // "200000 100000" or "max 100000"
    double quota = 0, period = 0;
    if (words >> quota >> period) consider(quota, period);
  }
  for (const auto& dir : group_directories(root / "sys/fs/cgroup/cpu", group_of(proc_cgroup, "cpu"))) {
    const auto quota = read_number(dir / "cpu.cfs_quota_us");  // -1 without a quota
    const auto period = read_number(dir / "cpu.cfs_period_us");
    if (quota && period) consider(static_cast<double>(*quota), static_cast<double>(*period));
  }
  return cores;
}

struct Memory {
  std::uint64_t total_bytes = 0, available_bytes = 0;
};

Memory read_memory(const fs::path& root, const std::string& proc_cgroup) {
  const auto meminfo = read_text(root / "proc/meminfo");
  Memory memory;
  memory.total_bytes = field(meminfo, "MemTotal:").value_or(0) * kKiB;
  memory.available_bytes = field(meminfo, "MemAvailable:").value_or(0) * kKiB;
  // A group's page cache counts as used memory, but the kernel frees pages of files before it refuses memory, so they are
  // subtracted. (Files in memory, of tmpfs, are not in the subtracted lists.)
  const auto consider = [&](const fs::path& dir, const char* limit_file, const char* use_file, const std::string& prefix) {
    const auto limit = read_number(dir / limit_file);
    if (!limit) return;
    const auto used = read_number(dir / use_file).value_or(0);
    const auto stat = read_text(dir / "memory.stat");
    const auto cache = field(stat, prefix + "inactive_file").value_or(0) + field(stat, prefix + "active_file").value_or(0);
    memory.available_bytes = std::min(memory.available_bytes, *limit - std::min(*limit, used - std::min(used, cache)));
  };
  for (const auto& dir : group_directories(root / "sys/fs/cgroup", group_of(proc_cgroup, ""))) {
    consider(dir, "memory.max", "memory.current", "");
    consider(dir, "memory.high", "memory.current", "");  // above it the kernel slows the group down until it has freed memory
  }
  for (const auto& dir : group_directories(root / "sys/fs/cgroup/memory", group_of(proc_cgroup, "memory"))) {
    consider(dir, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_");
  }
  return memory;
}

std::string read_cpu_model(const fs::path& root) {
  std::ifstream in(root / "proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("model name")) continue;
    const auto colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

int count_numa_nodes(const fs::path& root) {
  int nodes = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "sys/devices/system/node", error)) {
    const auto name = entry.path().filename().string();
    nodes += name.size() > 4 && name.starts_with("node") && std::isdigit(static_cast<unsigned char>(name[4])) ? 1 : 0;
  }
  return std::max(nodes, 1);
}

std::string simd_name() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return "avx512";
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "avx2";
#endif
  return "baseline";
}

}  // namespace

Topology read_topology(const fs::path& root) {
  const auto proc_cgroup = read_text(root / "proc/self/cgroup");
  Topology topology;
  topology.cpu_model = read_cpu_model(root);
  // A quota of 1.5 cores is best used by two threads.
  topology.cores = static_cast<int>(std::max(
      1.0, std::min<double>(static_cast<double>(machine::allowed_cores().size()), std::ceil(quota_cores(root, proc_cgroup)))));
  topology.numa_nodes = count_numa_nodes(root);
  const auto memory = read_memory(root, proc_cgroup);
  topology.memory_bytes = memory.total_bytes;
  topology.available_memory_bytes = memory.available_bytes;
  topology.simd = simd_name();
  return topology;
}

int usable_cores(const std::vector<int>& of) {
  const int all = read_topology().cores;
  return of.empty() ? all : std::min(all, static_cast<int>(of.size()));
}

}  // namespace terrace
