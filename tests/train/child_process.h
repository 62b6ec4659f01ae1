// Runs a program to its end and measures its peak memory.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace terrace::test {

struct Ended {
  int exit_code = -1;                     // −1: ended by a signal
  std::uint64_t peak_resident_bytes = 0;  // VmHWM
};

// argv[0] is the program; both output streams go to `log`.
inline Ended run_to_end(const std::vector<std::string>& words, const std::filesystem::path& log) {
  std::vector<char*> argv;
  for (const auto& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  int status = 0;
  rusage usage{};
  while (::wait4(child, &status, 0, &usage) < 0)
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "wait4");
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
          .peak_resident_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024};
}

}  // namespace terrace::test
