#include <terrace/examples/terrace/rank_pipe.h>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/examples/terrace/launched.h>

namespace terrace::cli {

RankPipe::RankPipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    throw Error(fmt::format("launch: no pipe can be made: {}", describe_errno(errno)));
  from_ = FileHandle(ends[0]);
  const FileHandle unused(ends[1]);  // ranks open their own
}

std::string RankPipe::name() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), from_.get()); }

// Each rank has written a byte. Where no byte is left, the end of the file means that no rank has the pipe open.
bool RankPipe::all_ended() {
  std::array<char, 64> bytes{};
  for (;;) {
    const auto got = ::read(from_.get(), bytes.data(), bytes.size());
    if (got <= 0) return got == 0 && begun_;
    begun_ = true;
  }
}

void hold_rank_pipe() {
  const char* const name = std::getenv(kUnderLaunch);
  if (!name) return;
  const int pipe = ::open(name, O_WRONLY | O_CLOEXEC | O_NONBLOCK);  // stays open
  if (pipe >= 0 && ::write(pipe, "", 1) < 0) ::close(pipe);
}

}  // namespace terrace::cli
