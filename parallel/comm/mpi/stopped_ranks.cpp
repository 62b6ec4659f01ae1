#include <terrace/parallel/comm/mpi/stopped_ranks.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

namespace terrace::comm {
namespace {

// These variables are no setting: the launcher tells each of its processes with them which one it is, and MPI reads them, too.
constexpr const char *kJob = "PMIX_NAMESPACE", *kRank = "PMIX_RANK";

// A variable of the environment with which a process began; empty if it is not set, or if the process is another user's.
std::string variable_of(pid_t process, std::string_view name) {
  std::ifstream environment(fmt::format("/proc/{}/environ", process), std::ios::binary);
  for (std::string entry; std::getline(environment, entry, '\0');)
    if (entry.starts_with(name) && entry.size() > name.size() && entry[name.size()] == '=')
      return entry.substr(name.size() + 1);
  return {};
}

template <class Number>
bool read_number(const std::string& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace

// True if the state in /proc, which follows the name in brackets, is T or t.
bool is_stopped(pid_t process) {
  std::array<char, 512> text = {};
  const int file = ::open(fmt::format("/proc/{}/stat", process).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const auto length = ::read(file, text.data(), text.size());
  ::close(file);
  const std::string_view stat(text.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  const auto name_end = stat.rfind(')');
  return name_end != std::string_view::npos && name_end + 2 < stat.size() && (stat[name_end + 2] | 0x20) == 't';
}

std::string stopped_ranks() {
  const char* const job = std::getenv(kJob);
  if (!job) return {};
  std::map<int, pid_t> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
    pid_t process = 0;
    int rank = 0;
    if (!read_number(at->path().filename().string(), process) || process == ::getpid() || !is_stopped(process)) continue;
    if (variable_of(process, kJob) == job && read_number(variable_of(process, kRank), rank)) found[rank] = process;
  }
  std::string text;
  for (const auto& [rank, process] : found)
    text += fmt::format("{}rank {} (process {})", text.empty() ? "" : ", ", rank, process);
  return text;
}

std::string own_rank() {
  const char* const rank = std::getenv(kRank);
  return rank ? fmt::format("rank {}", rank) : "a rank";
}

}  // namespace terrace::comm
