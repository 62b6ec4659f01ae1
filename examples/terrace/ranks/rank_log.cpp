#include <terrace/examples/terrace/ranks/rank_log.h>

#include <fmt/format.h>

#include <cerrno>

#include <terrace/core/base/error.h>
#include <terrace/core/base/files.h>
#include <terrace/examples/terrace/report/report.h>

namespace terrace::cli {

std::filesystem::path trace_file_of(const std::filesystem::path& run, std::uint32_t rank) {
  return run / (rank == 0 ? kTraceFile : fmt::format("rank{}.trace.json", rank));
}

RankLog::RankLog(const std::filesystem::path& run, int rank) : rank_(rank) {
  if (rank == 0) return;
  const auto file = run / fmt::format("rank{}.log", rank);
  const auto refuse = [&](const std::string& why) {
    throw Error(fmt::format("{} cannot be opened: {}\n  make room or change the permissions there, or give another --out-dir",
                            file.string(), why));
  };
  try {
    auto opened = files::open_regular(file, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW, AT_FDCWD, 0666);
    if (opened) file_.reset(::fdopen(opened.get(), "a"));
    if (!file_) throw Error(describe_errno(errno));
    static_cast<void>(opened.release());
  } catch (const Error& error) {
    refuse(error.what());
  }
}

ScreenOptions RankLog::screen(ScreenOptions options) const {
  if (!file_) return options;
  options.terminal = options.color = false;
  options.width = 0;
  options.out = options.notes = file_.get();
  return options;
}

std::string RankLog::metrics_file() const { return rank_ == 0 ? kMetricsFile : fmt::format("rank{}.jsonl", rank_); }

}  // namespace terrace::cli
