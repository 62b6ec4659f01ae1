#include <terrace/offload/io/io_engine.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/refused_setting.h>

namespace terrace {

namespace {

constexpr std::string_view kUringNames[] = {"uring", "uring-sqpoll", "uring-iopoll"};

std::unique_ptr<IoEngine> make_engine(const IoOptions& options) {
  const std::string_view forced = options.choice.engine;
  if (!forced.empty() && forced != "threads" && std::ranges::find(kUringNames, forced) == std::end(kUringNames)) {
    throw RefusedSetting("io-engine", fmt::format("`io-engine`={}: there is no such I/O engine; use {} or threads", forced,
                                                  fmt::join(kUringNames, ", ")));
  }
  if (forced == "threads") return make_thread_engine(options);
  auto asked = options;
  asked.kernel_submits |= forced == "uring-sqpoll";
  asked.device_polls |= forced == "uring-iopoll";
  std::string why;
  if (auto engine = make_uring_engine(asked, why)) return engine;
  if (!forced.empty())
    throw Error(
        fmt::format("`io-engine`={}, but that is not possible here: {}\n  unset it, or see what terrace doctor says "
                    "about io_uring",
                    forced, why));
  options.choice.log.warn(
      fmt::format("io_uring is not permitted here ({}); reading and writing with threads, which costs CPU time; allow it "
                  "(sysctl kernel.io_uring_disabled=0, or the container's seccomp profile)",
                  why));
  return make_thread_engine(options);
}

}  // namespace

std::unique_ptr<IoEngine> make_io_engine(const IoOptions& options) {
  return make_uncached_engine(make_engine(options), options.files);
}

}  // namespace terrace
