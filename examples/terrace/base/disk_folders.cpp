#include <terrace/examples/terrace/base/disk_folders.h>

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/text_file.h>
#include <terrace/core/base/units.h>
#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/run/run_dir.h>

namespace terrace::cli {

namespace fs = std::filesystem;

namespace {

// The disks of the resumed run, from its own settings. If one of them is missing, opening the run says what its state needs.
std::vector<fs::path> known_to_run(const RunConfig& c) try {
  const auto run = run_resumed(c);
  RunConfig then;
  if (!run.empty()) apply_file(then, run / kConfigFile);
  return then.memory.nvme_path;
} catch (const Error&) {  // opening the run reports what is wrong with the file
  return {};
}

}  // namespace

void demand_disk_folders(const RunConfig& c) {
  const auto known = known_to_run(c);
  for (const auto& folder : c.memory.nvme_path) {
    if (std::ranges::count(known, fs::absolute(folder).lexically_normal()) != 0) continue;
    std::error_code error;
    static_cast<void>(fs::symlink_status(folder, error));
    if (error == std::errc::no_such_file_or_directory)
      throw Error(
          fmt::format("--nvme-path {0} does not exist\n  mount its disk, or make the folder: mkdir -p {0}", folder.string()),
          ErrorKind::missing);
  }
}

std::vector<MountedDisk> mounted_disks(const std::string& mounts) {
  std::vector<MountedDisk> disks;
  std::istringstream lines(mounts);
  std::string source, folder, rest;
  while (lines >> source >> folder && std::getline(lines, rest)) {
    struct stat file {};
    struct statvfs space {};
    if (!source.starts_with("/dev/") || source.starts_with("/dev/loop")) continue;
    if (::stat(folder.c_str(), &file) != 0 || !S_ISDIR(file.st_mode) || ::statvfs(folder.c_str(), &space) != 0) continue;
    if (space.f_flag & ST_RDONLY || std::ranges::count(disks, file.st_dev, &MountedDisk::device) > 0) continue;
    disks.push_back({folder, file.st_dev, static_cast<std::uint64_t>(space.f_blocks) * space.f_frsize});
  }
  return disks;
}

std::optional<MountedDisk> larger_than_root(std::uint64_t device, std::span<const MountedDisk> disks) {
  const auto root = std::ranges::find(disks, "/", &MountedDisk::folder);
  const auto largest = std::ranges::max_element(disks, {}, &MountedDisk::bytes);
  if (root == disks.end() || root->device != device || largest->bytes <= root->bytes) return std::nullopt;
  return *largest;
}

std::optional<std::string> warning_of_root_disk(const RunConfig& c) {
  if (c.memory.nvme_path.empty()) return std::nullopt;
  std::string mounts;
  try {
    mounts = read_text_file("/proc/mounts");
  } catch (const Error&) {  // no warning if the mounts are not known
  }
  const auto disks = mounted_disks(mounts);
  for (const auto& folder : c.memory.nvme_path) {
    struct stat file {};
    if (::stat(folder.c_str(), &file) != 0) continue;
    if (const auto larger = larger_than_root(file.st_dev, disks))
      return fmt::format(
          "--nvme-path {} lies on the disk of /, and {} has a larger one ({}): give a folder there if it is the "
          "fast one",
          folder.string(), larger->folder, format_bytes(larger->bytes));
  }
  return std::nullopt;
}

}  // namespace terrace::cli
