#include <terrace/examples/terrace/ranks/rank_pipe.h>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <span>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/terrace/base/launched.h>

namespace terrace::cli {

RankPipe::RankPipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    throw Error(fmt::format("launch: no pipe can be made: {}", describe_errno(errno)));
  from_ = files::FileHandle(ends[0]);
  const files::FileHandle unused(ends[1]);  // each rank opens its own end
}

std::string RankPipe::name() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), from_.get()); }

// Each rank has written a zero, and its exit code if it failed. After the last byte, the end of the file means that no rank has
// the pipe open.
bool RankPipe::read_bytes() {
  std::array<char, 64> bytes{};
  for (;;) {
    const auto got = ::read(from_.get(), bytes.data(), bytes.size());
    if (got <= 0) return got == 0;
    begun_ = true;
    for (const char byte : std::span(bytes).first(static_cast<std::size_t>(got)))
      if (code_ == 0) code_ = byte;
  }
}

bool RankPipe::all_ended() { return read_bytes() && begun_; }

int RankPipe::told_code() {
  static_cast<void>(read_bytes());
  return code_;
}

namespace {

files::FileHandle open_rank_pipe() {
  const char* const name = std::getenv(kUnderLaunch);
  return files::FileHandle(name ? ::open(name, O_WRONLY | O_CLOEXEC | O_NONBLOCK) : -1);
}

bool write_byte(const files::FileHandle& pipe, int code) {
  const auto byte = static_cast<char>(code);
  return pipe && ::write(pipe.get(), &byte, 1) == 1;
}

}  // namespace

void hold_rank_pipe() {
  auto pipe = open_rank_pipe();
  if (write_byte(pipe, 0)) static_cast<void>(pipe.release());  // stays open until the process ends
}

void tell_rank_pipe(int code) { static_cast<void>(write_byte(open_rank_pipe(), code)); }

}  // namespace terrace::cli
