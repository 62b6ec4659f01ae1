#include <terrace/examples/terrace/plan/device.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include <terrace/core/base/notice.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/refused_setting.h>
#include <terrace/core/device/cuda.h>
#include <terrace/core/machine/cores.h>
#include <terrace/core/math/product_group.h>
#include <terrace/core/profile/gpu_rates.h>
#include <terrace/core/profile/profile_algorithms.h>
#include <terrace/examples/terrace/base/environment.h>
#include <terrace/examples/terrace/base/launched.h>
#include <terrace/examples/terrace/plan/measure.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/parallel/comm/between_machines.h>

namespace terrace::cli {
namespace {

// Slurm (--gpus-per-task=1) and wrapper scripts show each rank a GPU of its own, which is the first one there.
bool sees_only_its_own_gpu() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return launched() && visible && *visible != '\0' && std::string_view(visible).find(',') == std::string_view::npos;
}

int gpu_index(const RunConfig& c, std::int64_t local_rank) {
  if (sees_only_its_own_gpu()) local_rank = 0;
  int index = 0;
  const std::string_view digits = std::string_view(c.device_name()).substr(std::string_view("cuda:").size());
  std::from_chars(digits.data(), digits.data() + digits.size(), index);
  return index + static_cast<int>(local_rank);
}

// Every use of CUDA begins here.
GpuSearch gpus_for(const RunConfig& c) {
  prepare_cuda(c.parallel.ranks() > 1 || launched());  // the number of data ranks may not be known yet
  return find_gpus();
}

}  // namespace

GpuInfo find_gpu(const RunConfig& c, std::int64_t local_rank) {
  const auto found = gpus_for(c);
  if (found.gpus.empty())
    throw Error(fmt::format("--device {}: no GPU was found: {}\n  {}, or give --device cpu; terrace plan --cluster-profile "
                            "gpu-24gb (or gpu-32gb, gpu-48gb, gpu-80gb, gpu-141gb) plans for GPUs that are not here",
                            c.device_name(), found.why_none, found.mend),
                ErrorKind::missing);
  const auto index = static_cast<std::size_t>(gpu_index(c, local_rank));
  if (index >= found.gpus.size() && local_rank > 0)
    throw Error(
        fmt::format(
            "{} ranks of this machine need a GPU each, from {} on, but the machine has {}\n  start fewer ranks here, or give "
            "--device cpu",
            c.found.local_ranks, c.device_name(), found.gpus.size()),
        ErrorKind::missing);
  if (index >= found.gpus.size())
    throw Error(fmt::format("--device {}: this machine has {} GPU{}\n  give --device cuda:0{}", c.device_name(),
                            found.gpus.size(), found.gpus.size() == 1 ? "" : "s",
                            found.gpus.size() == 1 ? "" : fmt::format(" to cuda:{}", found.gpus.size() - 1)),
                ErrorKind::missing);
  return found.gpus[index];
}

namespace {

// Returns nothing if the profile cannot be read; warning_of_profile() says so.
std::string machine_algorithms(const RunConfig& c) try {
  return profile::algorithms_in_profile(profile_file(c));
} catch (const Error&) {
  return {};
}

// For CudaOptions::attention. With `faster` each rank would time its own GPU, and the ranks could choose differently.
std::string who_makes_attention(const RunConfig& c) {
  const char* const forced = std::getenv("TERRACE_ATTENTION");
  if (!forced) return {};
  if (std::string_view(forced) == "faster" && c.parallel.ranks() > 1)
    throw base::Refused(
        "TERRACE_ATTENTION=faster: each rank would time its own GPU, and the ranks could choose different kernels\n"
        "  run it once on one rank, whose choice the machine profile keeps, or set TERRACE_ATTENTION to own or cudnn");
  return forced;
}

}  // namespace

namespace {

// Whether the machine has an NVIDIA GPU, even without a driver.
bool has_gpu_of_nvidia() {
  constexpr std::string_view kNvidia = "0x10de", kDisplays = "0x03";
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator("/sys/bus/pci/devices", error)) {
    const auto says = [&](const char* name, std::string_view what) {
      std::string word;
      std::ifstream(device.path() / name) >> word;
      return word.starts_with(what);
    };
    if (says("vendor", kNvidia) && says("class", kDisplays)) return true;
  }
  return false;
}

// Why a run does not use the GPUs of this machine; empty: it can.
std::string why_no_gpu(const GpuSearch& found, std::int64_t ranks_here) {
  constexpr int kLeastMajor = 8;  // the oldest that the kernels are built for
  if (found.gpus.empty()) return found.why_none;
  if (std::ssize(found.gpus) < ranks_here && !sees_only_its_own_gpu())
    return fmt::format("{} ranks need a GPU each, and there {} {}", ranks_here, found.gpus.size() == 1 ? "is" : "are",
                       found.gpus.size());
  for (const auto& gpu : found.gpus)
    if (gpu.compute_major < kLeastMajor)
      return fmt::format("{} has compute capability {}.{}, and terrace needs {}.0", gpu.name, gpu.compute_major,
                         gpu.compute_minor, kLeastMajor);
  const auto trouble = cuda_module_trouble();
  return trouble.substr(0, trouble.find('\n'));
}

}  // namespace

void find_device(RunConfig& c, std::int64_t ranks_here) {
  if (c.memory.device != "auto") return;
  const auto found = gpus_for(c);
  const auto why_not = why_no_gpu(found, ranks_here);
  c.found.device = why_not.empty() && !found.gpus.empty() ? "cuda:0" : "cpu";
  if (c.on_gpu())
    c.found.chosen.push_back(fmt::format("--device cuda:0 ({})", found.gpus.front().name));
  else if (!found.gpus.empty() || has_gpu_of_nvidia())
    c.found.chosen.push_back(fmt::format("--device cpu ({})", why_not));
}

bool has_gpus(const RunConfig& c) { return !gpus_for(c).gpus.empty(); }

void demand_device(const RunConfig& c) {
  if (!c.on_gpu()) return;
  const auto& gpu = find_gpu(c, std::max<std::int64_t>(0, c.found.local_ranks - 1));
  if (c.model.products == layers::Products::fp8 && gpu.compute_major * 10 + gpu.compute_minor < kLeastFloat8Capability)
    throw base::Refused(fmt::format("{} has compute capability {}.{}, and --products fp8 needs {}.{}\n  leave out --products",
                                    gpu.name, gpu.compute_major, gpu.compute_minor, kLeastFloat8Capability / 10,
                                    kLeastFloat8Capability % 10));
}

std::unique_ptr<Device> make_device(const RunConfig& c, ThreadPool& pool, const std::string& algorithms) {
  if (!c.on_gpu()) return make_cpu_device(pool);
  return make_cuda_device(pool, {.index = gpu_index(c, c.found.local_rank),
                                 .algorithms = algorithms,
                                 .machine_algorithms = machine_algorithms(c),
                                 .attention = who_makes_attention(c),
                                 .attention_kernel = attention_kernel_of_environment()});
}

ThreadPool make_pool(const RunConfig& c) {
  int node = -1;
  if (c.on_gpu()) {
    const auto gpus = gpus_for(c).gpus;  // empty if the plan is for another machine
    const auto index = static_cast<std::size_t>(gpu_index(c, c.found.local_rank));
    if (index < gpus.size()) node = gpus[index].numa_node;
  }
  const auto cores = machine::cores_of_numa_node(node);
  const bool asked = c.run.threads != 0 || !c.on_gpu();
  return ThreadPool(asked ? static_cast<int>(c.run.threads) : usual_threads(c, usable_cores(cores)), cores);
}

int usual_threads(const RunConfig& c, int cores) {
  constexpr int kIssuing = 2;
  return std::max(1, cores - (!c.on_gpu() ? 0 : std::min(kIssuing, cores / 4)));
}

std::string bits_group(const RunConfig& c) {
  if (!c.on_gpu()) return math::product_group(c.model.dtype);
  return fmt::format("{} products of {}", word_of(c.model.dtype), find_gpu(c, c.found.local_rank).name);
}

void keep_algorithms(const RunConfig& c, const std::string& chosen) try {
  if (!chosen.empty()) profile::add_algorithms_to_profile(profile_file(c), chosen);
} catch (const std::exception& error) {
  base::warn(fmt::format("the algorithms of this run could not be added to the machine profile: {}", error.what()));
}

namespace {

// What NCCL may keep on the GPU of a rank, in all communicators of a run; docs/internals/gpu.md has the sources. It is an upper
// bound, because each communicator is made at its first use. Ranks of one machine exchange through buffers of each pair, ranks
// of different machines through shared buffers.
std::uint64_t bytes_of_nccl(const RunConfig& c) {
  constexpr std::uint64_t kPair = 384 * kMiB, kNetwork = 512 * kMiB;
  const auto of_group = [&](std::int64_t ranks) -> std::uint64_t {
    if (ranks <= 1) return 0;
    const auto here = std::min(ranks, static_cast<std::int64_t>(ranks_of_machine(c)));
    return static_cast<std::uint64_t>(here - 1) * kPair + (ranks > here ? kNetwork : 0) + comm::kGpuStagingBytes;
  };
  // One communicator sends to a neighbour in the pipeline, and another one receives from it.
  const std::uint64_t neighbours = c.parallel.pp > 2 ? 2 : c.parallel.pp > 1 ? 1 : 0;
  return of_group(std::max<std::int64_t>(c.parallel.dp, 1) * c.parallel.ep) + of_group(c.parallel.tp) +
         of_group(c.parallel.cp) + (c.parallel.ep > 1 ? of_group(c.parallel.ep) : 0) + neighbours * 2 * kPair;
}

// Asked once, before the run itself takes memory.
std::uint64_t free_bytes(const GpuInfo& gpu) {
  static std::mutex mutex;
  static std::map<int, std::uint64_t> known;
  const std::lock_guard lock(mutex);
  const auto [at, fresh] = known.try_emplace(gpu.index, gpu.memory_bytes);
  if (fresh) at->second = std::min(gpu.memory_bytes, free_gpu_bytes(gpu.index).value_or(gpu.memory_bytes));
  return at->second;
}

}  // namespace

std::uint64_t usual_device_bytes(const RunConfig& c) {
  if (!c.on_gpu()) return memory_for_budgets(c) / 2 / 100 * 95;
  const auto gpu = find_gpu(c, c.found.local_rank);
  const char* const attention = std::getenv("TERRACE_ATTENTION");
  const bool cudnn = attention && std::string_view(attention) != "own";
  const auto libraries = kGiB + bytes_of_nccl(c) + (cudnn ? kCudnnRoomBytes : 0);  // kGiB is for the driver and cuBLAS
  const auto free = free_bytes(gpu);
  return free - std::min(free, std::max(gpu.memory_bytes / 20, libraries));
}

namespace {

// With --ranks-per-machine, ranks only count as on several machines: they exchange at this machine's rates.
machine::Links links_of(const RunConfig& c) {
  const auto ranks = c.parallel.ranks(), each = c.parallel.ranks_per_machine;
  return {.ranks_per_node = each > 0 && each < ranks ? static_cast<std::uint32_t>(each) : 0};
}

// Adds how this program measures a machine, which the library's error cannot say.
MachineProfile load_measured(const std::filesystem::path& file) try {
  return load_profile(file);
} catch (const RefusedSetting& e) {
  throw Error(e.refusal().why + "\n  run terrace doctor --measure --nvme-path DIR, or give another --machine-profile", e);
}

// For a machine that was not measured, or is not here.
MachineProfile assumed_profile(const RunConfig& c) {
  MachineProfile assumed;
  assumed.device = c.device_name();
  if (!c.on_gpu()) return assumed;
  const auto gpus = gpus_for(c).gpus;
  const auto index = static_cast<std::size_t>(gpu_index(c, c.found.local_rank));
  profile::assume_rates_of(index < gpus.size() ? gpus[index] : GpuInfo{}, assumed);
  return assumed;
}

struct FoundProfile {
  MachineProfile profile;
  std::string unreadable = {};  // why a saved profile does not count
};
FoundProfile find_profile(const RunConfig& c) {
  auto assumed = assumed_profile(c);
  assumed.links = links_of(c);
  const bool named = !c.plan.machine_profile.empty();
  const auto file = profile_file(c);
  if (!named && !std::filesystem::exists(file)) return {assumed};
  try {
    auto profile = load_measured(file);
    if (profile.device != c.device_name())
      throw base::Refused(fmt::format(
          "machine profile {} is for device {}, but the run uses {}\n  run terrace doctor --measure --device {}, or give "
          "another --machine-profile",
          file.string(), profile.device, c.device_name(), c.device_name()));
    profile.links = links_of(c);
    return {profile};
  } catch (const Error& error) {
    if (named) throw;
    return {assumed, error.what()};  // a file of another version of terrace is no reason not to train
  }
}

}  // namespace

MachineProfile machine_profile(const RunConfig& c) { return find_profile(c).profile; }

std::optional<std::string> warning_of_profile(const RunConfig& c) {
  const auto why = find_profile(c).unreadable;
  return why.empty() ? std::nullopt : std::optional("planning with assumed rates: " + why);
}

}  // namespace terrace::cli
