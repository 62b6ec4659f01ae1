#include <terrace/bench/disk/disk_config.h>

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include <terrace/core/base/units.h>

namespace terrace::bench {
namespace {

// Quotes a text for a shell if it has other than harmless characters.
std::string quoted(const std::string& text) {
  constexpr std::string_view kHarmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:=+";
  if (!text.empty() && text.find_first_not_of(kHarmless) == std::string::npos) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string fio_rw(DiskOp op) {
  switch (op) {
    case DiskOp::read: return "read";
    case DiskOp::write: return "write";
    case DiskOp::randread: return "randread";
    case DiskOp::mixed: return "rw --rwmixread=50";
  }
  return "";
}

// "8MiB" if that is exact; otherwise bytes, because the text will be parsed again.
std::string exact(std::uint64_t bytes) {
  if (bytes % kGiB == 0) return fmt::format("{}GiB", bytes / kGiB);
  if (bytes % kMiB == 0) return fmt::format("{}MiB", bytes / kMiB);
  return bytes % kKiB == 0 ? fmt::format("{}KiB", bytes / kKiB) : fmt::format("{}", bytes);
}

}  // namespace

std::string name_of(DiskOp op) {
  switch (op) {
    case DiskOp::read: return "read";
    case DiskOp::write: return "write";
    case DiskOp::randread: return "randread";
    case DiskOp::mixed: return "mixed";
  }
  return "";
}

std::string fio_line(DiskOp op, const DiskShape& shape, std::uint64_t bytes, const std::filesystem::path& directory,
                     double seconds) {
  // Each of fio's jobs has its own file; together they move the same bytes. A job that calls pread has one request in flight.
  const bool preads = shape.engine == "threads";
  const auto jobs = preads ? shape.threads * shape.queue_depth : shape.threads;
  const auto own = std::max(bytes / jobs / shape.block_bytes, std::uint64_t{1}) * shape.block_bytes;
  return fmt::format(
      "fio --name=terrace --directory={} --unlink=1 --size={} --rw={} --bs={} --iodepth={} --numjobs={} --group_reporting "
      "--direct=1 {}{}",
      quoted(directory.string()), own, fio_rw(op), shape.block_bytes, preads ? 1 : shape.queue_depth, jobs,
      preads ? "--ioengine=psync" : "--ioengine=io_uring --fixedbufs=1 --registerfiles=1",
      seconds > 0 ? fmt::format(" --time_based --runtime={:.0f}ms", 1e3 * seconds) : "");
}

std::string terrace_line(DiskOp op, const DiskShape& shape, std::uint64_t bytes, const std::filesystem::path& directory) {
  return fmt::format("terrace bench nvme {} --op {} --size {} --block-size {} --queue-depth {} --threads {}{}",
                     quoted(directory.string()), name_of(op), exact(bytes), exact(shape.block_bytes), shape.queue_depth,
                     shape.threads, shape.engine == "auto" ? "" : " --engine " + shape.engine);
}

std::string deepspeed_section(const DiskShape& shape) {
  return fmt::format(
      R"("aio": {{"block_size": {}, "queue_depth": {}, "intra_op_parallelism": {}, "single_submit": false, "overlap_events": true}})",
      shape.block_bytes, shape.queue_depth, shape.threads);
}

}  // namespace terrace::bench
