#include <terrace/examples/terrace/base/environment.h>
#include <terrace/examples/terrace/commands/doctor.h>
#include <terrace/examples/terrace/config/exit_codes.h>

#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/core/base/version.h>
#include <terrace/core/cuda/cudnn/library.h>
#include <terrace/core/device/cuda.h>
#include <terrace/core/device/cuda_modules.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/machine/machine.h>
#include <terrace/examples/terrace/cli/build_facts.h>
#include <terrace/examples/terrace/plan/measure.h>
#include <terrace/offload/io/io_engine.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
using Status = Finding::Status;

// Opens a library that may be absent, and closes it again.
class Library {
 public:
  explicit Library(std::initializer_list<const char*> names) {
    for (const auto* const name : names)
      if (!handle_) handle_ = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  }
  ~Library() {
    if (handle_) ::dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  void* handle_ = nullptr;
};

Finding examine_build() {
  return {Status::ok, "terrace", fmt::format("{}, commit {}, {}", version(), build_commit(), build_facts().compiler), ""};
}

Finding examine_memlock() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return {Status::warn, "memlock", "cannot be read", ""};
  const bool unlimited = limit.rlim_cur == RLIM_INFINITY;
  const auto text = unlimited ? "unlimited" : format_bytes(limit.rlim_cur);
  if (::geteuid() == 0) return {Status::ok, "memlock", text + " (root is exempt)", ""};
  if (unlimited || limit.rlim_cur >= kGiB) return {Status::ok, "memlock", text, ""};
  return {Status::warn, "memlock", text + ": host memory cannot be locked, and I/O buffers cannot be registered",
          "ulimit -l unlimited, docker run --ulimit memlock=-1, or a memlock line in /etc/security/limits.conf"};
}

Finding examine_huge_pages() {
  std::ifstream in("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string text;
  std::getline(in, text);
  const auto begin = text.find('['), end = text.find(']');
  const auto mode = begin == std::string::npos || end < begin ? "" : text.substr(begin + 1, end - begin - 1);
  if (mode == "always" || mode == "madvise") return {Status::ok, "huge pages", mode, ""};
  return {Status::warn, "huge pages",
          mode.empty() ? "not supported by this kernel: memory is slower" : mode + ": memory is slower",
          "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"};
}

Finding examine_io_uring() {
  std::string why;
  IoOptions one;
  one.queue_depth = 1;
  if (make_uring_engine(one, why)) return {Status::ok, "io_uring", "allowed", ""};
  return {Status::warn, "io_uring", fmt::format("not allowed: {}; threads read and write instead", why),
          "sysctl kernel.io_uring_disabled=0, or allow io_uring in the container's seccomp profile"};
}

Finding examine_cuda(bool required) {
  const auto found = find_gpus();
  if (found.gpus.empty()) {
    return {required ? Status::fail : Status::ok, "CUDA", found.why_none + (required ? "" : " (not needed for --device cpu)"),
            required ? found.mend + ", or give --device cpu" : ""};
  }
  std::string text = fmt::format("{} GPU{}", found.gpus.size(), found.gpus.size() == 1 ? "" : "s");
  for (const auto& gpu : found.gpus) {
    text += fmt::format("; cuda:{} {}, {}, compute capability {}.{}", gpu.index, gpu.name, format_bytes(gpu.memory_bytes),
                        gpu.compute_major, gpu.compute_minor);
    if (gpu.numa_node >= 0) text += fmt::format(", NUMA node {}", gpu.numa_node);
  }
  text += fmt::format("; the driver supports CUDA {}.{}", found.cuda_version / 1000, found.cuda_version % 1000 / 10);
  if (const auto* const module = device::cuda_module_for(found.cuda_version)) text += ", used by " + module->name();
  if (const auto trouble = cuda_module_trouble(); !trouble.empty()) {
    return {required ? Status::fail : Status::warn, "CUDA", text + ", but this build cannot use it", trouble};
  }
  return {Status::ok, "CUDA", text, ""};
}

Finding examine_library(const std::string& name, std::initializer_list<const char*> files) {
  return {Status::ok, name, Library(files) ? "present" : "absent (not needed for one rank)", ""};
}

Finding examine_cudnn() {
  std::string why;
  const auto library = cuda::cudnn::load_library(why);
  if (!library)
    return {Status::ok, "cuDNN", fmt::format("absent (not needed: terrace has its own attention kernels): {}", why), ""};
  return {Status::ok, "cuDNN", library->version() + "; used with TERRACE_ATTENTION=cudnn or faster", ""};
}

Finding examine_profile(const RunConfig& config) {
  const auto file = profile_file(config);
  const std::string mend = "terrace doctor --measure --nvme-path DIR";
  std::error_code error;
  if (!fs::exists(file, error)) {
    return {Status::warn, "machine profile", "none: plans use assumed rates", mend};
  }
  try {
    const auto p = load_profile(file);
    const auto rate = [](double bytes_s) { return format_bytes(static_cast<std::uint64_t>(bytes_s)); };
    return {Status::ok, "machine profile",
            fmt::format("{}: {}, copy {}/s, fp32 {:.0f} GFLOP/s, measured {}", file.string(),
                        p.disk_assumed ? "no disk was measured (add --nvme-path DIR to --measure)"
                                       : fmt::format("read {}/s, write {}/s", rate(p.disk_read), rate(p.disk_write)),
                        format_bytes(static_cast<std::uint64_t>(p.memory_copy)), p.matmul_fp32 * 1e-9,
                        p.measured_at.empty() ? "never" : p.measured_at),
            ""};
  } catch (const Error& e) {
    const std::string why = e.what();
    return {Status::warn, "machine profile", why.substr(0, why.find('\n')), mend};
  }
}

}  // namespace

std::string_view name_of(Finding::Status status) {
  return status == Status::ok ? "OK" : status == Status::warn ? "WARN" : "FAIL";
}

std::vector<Finding> examine_machine(const RunConfig& config) {
  const auto topology = read_topology();
  std::vector<Finding> out{examine_build()};
  out.push_back({Status::ok, "processor",
                 fmt::format("{}, {} core{}, {} NUMA node{}", topology.cpu_model, topology.cores,
                             topology.cores == 1 ? "" : "s", topology.numa_nodes, topology.numa_nodes == 1 ? "" : "s"),
                 ""});
  const bool baseline = topology.simd == "baseline";
  out.push_back({baseline ? Status::warn : Status::ok, "SIMD", topology.simd + (baseline ? ": updates and norms are slow" : ""),
                 baseline ? "use a processor with AVX2 and FMA" : ""});
  out.push_back(
      {Status::ok, "memory",
       fmt::format("{} available of {}", format_bytes(topology.available_memory_bytes), format_bytes(topology.memory_bytes)),
       ""});
  out.push_back(examine_memlock());
  out.push_back(examine_huge_pages());
  out.push_back(examine_io_uring());
  out.push_back(examine_cuda(config.on_gpu()));
  out.push_back(examine_library("MPI", {"libmpi.so.40", "libmpi.so.12", "libmpi.so"}));
  out.push_back(examine_library("NCCL", {"libnccl.so.2", "libnccl.so"}));
  out.push_back(examine_cudnn());
  for (const auto& path : config.memory.nvme_path)
    for (auto& finding : examine_path(path)) out.push_back(std::move(finding));
  if (config.memory.nvme_path.empty()) {
    out.push_back({Status::ok, "disk path", "none given, so no disk was examined (add --nvme-path DIR)", ""});
  }
  out.push_back(examine_profile(config));
  return out;
}

int run_doctor(const RunConfig& config, bool measure, std::FILE* out) {
  if (measure) measure_and_save(config);
  const auto findings = examine_machine(config);
  const bool failed = std::ranges::any_of(findings, [](const Finding& f) { return f.status == Status::fail; });
  if (config.run.json) {
    auto list = nlohmann::json::array();
    for (const auto& f : findings) {
      list.push_back({{"status", name_of(f.status)}, {"name", f.name}, {"text", f.text}, {"mend", f.mend}});
    }
    const nlohmann::json object{{"ok", !failed}, {"findings", std::move(list)}};
    fmt::print(out, "{}\n", object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    for (const auto& f : findings) {
      fmt::print(out, "{:<4}  {:<16}  {}\n", name_of(f.status), f.name, f.text);
      if (!f.mend.empty()) fmt::print(out, "{:24}mend: {}\n", "", f.mend);
    }
  }
  return static_cast<int>(failed ? Exit::hardware_missing : Exit::ok);
}

}  // namespace terrace::cli
