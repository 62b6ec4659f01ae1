#include <terrace/core/machine/cores.h>

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

namespace terrace::machine {
namespace {

// The kernel rejects a mask that is smaller than its own.
constexpr int kLeastMask = 1024, kMostCores = 1 << 20;

struct Mask {
  explicit Mask(int cores)
      : bytes(CPU_ALLOC_SIZE(static_cast<std::size_t>(cores))), set(CPU_ALLOC(static_cast<std::size_t>(cores))) {
    if (set) CPU_ZERO_S(bytes, set.get());
  }
  struct Free {
    void operator()(cpu_set_t* s) const { CPU_FREE(s); }
  };
  std::size_t bytes;
  std::unique_ptr<cpu_set_t, Free> set;
};

// Parses "0-15,32-47\n". libnuma's own parser prints a complaint about cores that this machine lacks.
std::vector<int> parse_list(const std::string& text) {
  std::vector<int> cores;
  std::istringstream ranges(text);
  for (std::string range; std::getline(ranges, range, ',');) {
    std::istringstream numbers(range);
    int first = 0, last = 0;
    char dash = 0;
    if (!(numbers >> first)) continue;
    if (!(numbers >> dash >> last)) last = first;
    for (int core = first; core <= std::min(last, kMostCores); ++core) cores.push_back(core);
  }
  return cores;
}

void stay_on(const std::vector<int>& cores) {
  if (cores.empty()) return;
  const Mask mask(std::max(kLeastMask, *std::ranges::max_element(cores) + 1));
  if (!mask.set) return;
  for (const int core : cores) CPU_SET_S(static_cast<std::size_t>(core), mask.bytes, mask.set.get());
  sched_setaffinity(0, mask.bytes, mask.set.get());
}

}  // namespace

std::vector<int> allowed_cores(int process) {
  for (int count = kLeastMask; count <= kMostCores; count *= 2) {
    const Mask mask(count);
    if (!mask.set) break;
    if (sched_getaffinity(process, mask.bytes, mask.set.get()) == 0) {
      std::vector<int> cores;
      for (int core = 0; core < count; ++core)
        if (CPU_ISSET_S(static_cast<std::size_t>(core), mask.bytes, mask.set.get())) cores.push_back(core);
      return cores;
    }
    if (errno != EINVAL) break;
  }
  return {};
}

std::vector<int> cores_of_numa_node(int node, const std::filesystem::path& root) {
  if (node < 0) return {};
  std::ifstream file(root / "sys/devices/system/node" / ("node" + std::to_string(node)) / "cpulist");
  std::string text;
  std::getline(file, text);
  auto of_node = parse_list(text);
  std::ranges::sort(of_node);
  const auto allowed = allowed_cores();
  std::vector<int> both;
  std::ranges::set_intersection(allowed, of_node, std::back_inserter(both));
  return both == allowed ? std::vector<int>{} : both;
}

std::shared_ptr<const WorkPlace> work_place(const std::vector<int>& cores) {
  return cores.empty() ? nullptr : std::make_shared<const WorkPlace>(WorkPlace{cores, allowed_cores()});
}

std::shared_ptr<const WorkPlace> go_to(std::shared_ptr<const WorkPlace> place) {
  thread_local std::shared_ptr<const WorkPlace> here;
  if (place == here) return place;
  stay_on(place ? place->cores : here->anywhere);
  return std::exchange(here, std::move(place));
}

}  // namespace terrace::machine
