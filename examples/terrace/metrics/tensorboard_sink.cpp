#include <terrace/examples/terrace/metrics/tensorboard_sink.h>

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/terrace/metrics/metric_table.h>
#include <terrace/examples/terrace/metrics/tensorboard_events.h>

namespace terrace::cli {
namespace {

constexpr std::uint64_t kMostEventBytes = std::uint64_t{16} << 30;  // a million steps need one GiB

[[noreturn]] void fail_events(const char* what, const std::string& why) {
  throw Error(fmt::format("--tensorboard: {} in the run directory cannot be {}: {}", kEventFile, what, why));
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The size of the records up to the step, all of which are intact.
std::size_t bytes_until(std::string_view all, std::uint64_t done_steps) {
  auto rest = all;
  for (TensorBoardEvent event;;) {
    const auto end = all.size() - rest.size();
    if (!take_record(rest, event) || event.step > done_steps) return end;
  }
}

}  // namespace

TensorBoardSink::TensorBoardSink(std::filesystem::path file, std::uint64_t done_steps) try : file_(std::move(file)) {
  std::size_t kept = 0;
  if (done_steps > 0 && std::filesystem::exists(file_)) kept = bytes_until(read_text_file(file_, kMostEventBytes), done_steps);
  opened_ = files::open_regular(file_, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, AT_FDCWD, 0644);
  if (!opened_ || ::ftruncate(opened_.get(), static_cast<off_t>(kept)) != 0) throw Error(describe_errno(errno));
  if (kept == 0)
    files::write_all(opened_.get(),
                     to_record({.wall_time = seconds_since_1970(), .file_version = kEventFileVersion, .scalars = {}}));
} catch (const Error& error) {
  fail_events("begun", error.what());
}

void TensorBoardSink::write(const StepMetrics& metrics) try {
  TensorBoardEvent event{.wall_time = seconds_since_1970(), .step = metrics.step, .file_version = {}, .scalars = {}};
  for (const auto& metric : metric_table())
    if (metric.key != "step")
      for (const auto& [cause, value] : values_of(metric, metrics))
        event.scalars.emplace_back(metric.name('/') + (cause.empty() ? "" : "/" + cause), static_cast<float>(value.real));
  files::write_all(opened_.get(), to_record(event));
} catch (const Error& error) {
  fail_events("written", error.what());
}

void TensorBoardSink::sync() {
  if (::fdatasync(opened_.get()) != 0 && errno != EINVAL) fail_events("synced", describe_errno(errno));
}

}  // namespace terrace::cli
