#include <terrace/examples/terrace/report/run_status.h>

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/terrace/base/run_name.h>
#include <terrace/examples/terrace/base/sealed_json.h>
#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/offload/store/recorded_commit.h>

namespace terrace::cli {
namespace {

std::optional<struct stat> file_info(const std::filesystem::path& file) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) return std::nullopt;
  return info;
}

double seconds_since(const struct stat& info) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return std::max(0.0,
                  now.count() - static_cast<double>(info.st_mtim.tv_sec) - 1e-9 * static_cast<double>(info.st_mtim.tv_nsec));
}

std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

// On a file system such as overlayfs or btrfs, the device of a lock is not the one of stat(). Then the open files of the
// process say whether it has the directory open.
bool has_open(int pid, const struct stat& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid), error))
    if (const auto info = file_info(entry.path()); info && info->st_ino == directory.st_ino && info->st_dev == directory.st_dev)
      return true;
  return false;
}

}  // namespace

// Reads lines such as "1: FLOCK  ADVISORY  WRITE 1234 08:01:131073 0 EOF".
int holder_of_lock(const std::string& locks, const std::filesystem::path& directory) {
  const auto info = file_info(directory);
  if (!info) return 0;
  std::istringstream lines(locks);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, kind, advisory, access, place;
    int pid = 0;
    if (!(words >> number >> kind >> advisory >> access >> pid >> place) || kind != "FLOCK" || pid <= 0) continue;
    if (!place.ends_with(fmt::format(":{}", info->st_ino))) continue;
    const auto device = fmt::format("{:02x}:{:02x}:", major(info->st_dev), minor(info->st_dev));
    if (place.starts_with(device) || has_open(pid, *info)) return pid;
  }
  return 0;
}

RunWatcher::RunWatcher(std::filesystem::path directory) : directory_(std::move(directory)) {}

RunStatus RunWatcher::look() {
  using State = RunStatus::State;
  kept_.problem.clear();
  try {
    read_new_lines();
  } catch (const std::exception& error) {
    kept_.problem = first_line(describe(error));
  }
  auto status = kept_;
  status.name = name_of_run(directory_);
  std::error_code error;
  if (!std::filesystem::is_directory(directory_, error)) return status;
  std::ostringstream locks;
  locks << std::ifstream("/proc/locks").rdbuf();
  status.pid = holder_of_lock(locks.str(), directory_);
  if (!std::filesystem::exists(directory_ / kConfigFile, error)) {
    status.state = status.pid != 0 ? State::starting : State::not_started;
    return status;
  }
  try {
    read_configuration(status);
    read_commit(status);
  } catch (const std::exception& problem) {
    if (status.problem.empty()) status.problem = first_line(describe(problem));
  }
  const bool has_result = std::filesystem::exists(directory_ / kResultFile, error);
  if (!status.problem.empty())
    status.state = State::unreadable;
  else if (status.pid != 0)
    status.state = status.recent.empty() ? State::starting : State::running;
  else
    status.state = has_result ? State::finished : State::stopped;
  return status;
}

// A line without a newline is still being written, so it is read at the next look. If the file became shorter or is another one
// of the same name, the run was resumed or began again.
void RunWatcher::read_new_lines() {
  const auto file = directory_ / kMetricsFile;
  const auto info = file_info(file);
  const auto size = info ? static_cast<std::uint64_t>(info->st_size) : 0;
  if (!info || info->st_ino != inode_ || size < read_bytes_) {
    kept_ = {};
    read_bytes_ = lines_ = 0;
    inode_ = info ? info->st_ino : 0;
  }
  if (!info) return;
  kept_.seconds_since_step = seconds_since(*info);
  if (size == read_bytes_) return;
  std::ifstream in(file, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(read_bytes_));
  for (std::string line; std::getline(in, line) && !in.eof();) {
    try {
      const auto step = metrics_from_json(parse_sealed(line));
      read_bytes_ += line.size() + 1;
      ++lines_;
      if (step.loss) kept_.losses.push_back(*step.loss);
      kept_.commit_s += step.commit_s;
      kept_.total_s += step.commit_s + step.step_time_s;
      if (step.eval_loss) kept_.eval_loss = step.eval_loss;
      kept_.recent.push_back(step);
      if (kept_.recent.size() > kRecentSteps) kept_.recent.erase(kept_.recent.begin());
    } catch (const std::exception& error) {
      throw Error(fmt::format("{}, line {}: {}", kMetricsFile, lines_ + 1, error.what()), ErrorKind::corrupt);
    }
  }
}

void RunWatcher::read_configuration(RunStatus& status) const {
  RunConfig config;
  apply_file(config, directory_ / kConfigFile);
  status.last_step = static_cast<std::uint64_t>(config.train.steps);
  status.budgets[0] = config.memory.device_memory;
  status.budgets[1] = config.memory.host_memory;
  status.budgets[2] = config.memory.nvme_limit;
}

void RunWatcher::read_commit(RunStatus& status) const {
  const auto store = first_store_of_run(directory_);
  const auto commit = store::recorded_commit(store.paths.front() / store.name);
  if (!commit) return;
  status.commit = commit->step;
  if (const auto info = file_info(commit->file)) status.seconds_since_commit = seconds_since(*info);
}

}  // namespace terrace::cli
