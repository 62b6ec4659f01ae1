#include <terrace/examples/terrace/plan/measure.h>

#include <system_error>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/notice.h>
#include <terrace/core/machine/machine.h>
#include <terrace/examples/terrace/base/environment.h>
#include <terrace/examples/terrace/plan/device.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kMeasureSeconds = 10;

// Keeps the old measurement of the disk if there is no new one.
void keep_disk(const fs::path& file, MachineProfile& profile) {
  std::error_code error;
  if (!fs::exists(file, error)) return;
  try {
    copy_disk(load_profile(file), profile);
  } catch (const Error&) {  // the file is replaced anyway
  }
}

}  // namespace

fs::path profile_file(const RunConfig& c) {
  return c.plan.machine_profile.empty() ? default_profile_path(c.device_name()) : fs::path(c.plan.machine_profile);
}

void measure_and_save(const RunConfig& config) {
  auto pool = make_pool(config);
  const auto file = profile_file(config);
  std::error_code error;
  if (file.has_parent_path()) fs::create_directories(file.parent_path(), error);
  if (error)
    throw Error(
        fmt::format("the machine profile cannot be saved, because {} cannot be created: {}\n  give --machine-profile a "
                    "file in a folder that can be written, here and to plan and train; or set XDG_CACHE_HOME",
                    file.parent_path().string(), describe_errno(error.value())));
  auto profile = measure_machine(*make_device(config, pool), config.memory.nvme_path, kMeasureSeconds);
  if (profile.disk_assumed) keep_disk(file, profile);
  save_profile(profile, file);
}

void measure_before_first_run(const RunConfig& c) {
  if (!c.on_gpu() || c.found.local_rank != 0 || c.plan.assumed_costs || !c.plan.machine_profile.empty()) return;
  const auto file = profile_file(c);
  std::error_code error;
  if (fs::exists(file, error)) return;
  if (!c.run.json)
    base::say(stderr, fmt::format("measuring {} and this machine once, for about {:.0f} s; the rates are kept in {}\n",
                                  c.device_name(), kMeasureSeconds, file.string()));
  try {
    measure_and_save(c);
  } catch (const Error& failed) {
    base::warn(fmt::format("the machine could not be measured, so the plan assumes rates: {}", failed.what()));
  }
}

}  // namespace terrace::cli
