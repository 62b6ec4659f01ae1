#include <terrace/bench/disk/disk_target.h>

#include <algorithm>
#include <numeric>

#include <terrace/core/base/units.h>

namespace terrace::bench {
namespace {

DiskShape untimed(std::uint64_t file_bytes, const std::string& engine) {
  DiskShape shape{.block_bytes = 8 * kMiB, .queue_depth = 16, .engine = engine};
  while (file_bytes % shape.block_bytes != 0) shape.block_bytes /= 2;  // the file has whole pages
  return shape;
}

}  // namespace

DiskTarget::DiskTarget(const std::filesystem::path& path, const Settings& settings)
    : path_(path),
      wrap_(settings.wrap),
      engine_(settings.engine),
      file_(path, settings.bytes),
      device_(block_device_of(path)),
      content_(settings.seed, settings.bytes,
               std::gcd(settings.least_block_bytes, untimed(settings.bytes, engine_).block_bytes)) {}

DiskShape DiskTarget::plain_shape() const { return untimed(file_.bytes(), engine_); }

std::uint64_t DiskTarget::needed_bytes(std::uint64_t shape_bytes) const {
  return std::max(shape_bytes, plain_shape().buffer_bytes());
}

DiskRun DiskTarget::run(const DiskShape& shape, const DiskPass& pass) {
  DiskJob job(file_, content_, shape, buffers_.first(shape.buffer_bytes()), wrap_);
  return job.run(pass);
}

DiskRun DiskTarget::fill(const DiskPass::Watch& watch) {
  auto shape = plain_shape();
  shape.sync = true;
  return run(shape, {.op = DiskOp::write, .watch = watch});
}

DiskRun DiskTarget::precondition(std::uint64_t bytes, const DiskPass::Watch& watch, const std::function<void()>& ready) {
  auto shape = plain_shape();
  shape.sync = true;
  const auto blocks = (bytes + shape.block_bytes - 1) / shape.block_bytes;
  return run(shape, {.op = DiskOp::write, .watch = watch, .blocks = blocks, .ready = ready});
}

DiskRun DiskTarget::verify(const DiskPass::Watch& watch) {
  return run(plain_shape(), {.op = DiskOp::read, .check = DiskCheck::every_byte, .watch = watch});
}

}  // namespace terrace::bench
