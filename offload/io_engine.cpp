#include <terrace/offload/io_engine.h>

#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include <terrace/core/error.h>

namespace terrace {

std::unique_ptr<IoEngine> make_io_engine(const IoOptions& options) {
  const char* const text = std::getenv("TERRACE_IO_ENGINE");
  const std::string_view forced = text ? text : "";
  if (!forced.empty() && forced != "uring" && forced != "threads") {
    throw Error(fmt::format("TERRACE_IO_ENGINE={}: there is no such I/O engine; use uring or threads", forced), Exit::usage);
  }
  if (forced == "threads") return make_thread_engine(options);
  std::string why;
  if (auto engine = make_uring_engine(options, why)) return engine;
  if (forced == "uring")
    throw Error(
        fmt::format("TERRACE_IO_ENGINE=uring, but io_uring is not permitted here: {}\n  unset it, or allow io_uring: "
                    "terrace doctor says how",
                    why));
  fmt::print(stderr,
             "warning: io_uring is not permitted here ({}); reading and writing with threads, which costs CPU time; allow it "
             "(sysctl kernel.io_uring_disabled=0, or the container's seccomp profile)\n",
             why);
  return make_thread_engine(options);
}

}  // namespace terrace
