#include <terrace/bench/disk/disk_limit.h>

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <random>

#include <fmt/format.h>

#include <terrace/bench/disk/disk_file.h>
#include <terrace/bench/io_of_environment.h>
#include <terrace/core/base/error.h>
#include <terrace/core/base/files.h>
#include <terrace/core/base/trace.h>
#include <terrace/core/base/units.h>
#include <terrace/offload/io/io_engine.h>
#include <terrace/offload/io/page_buffer.h>

namespace terrace::bench {
namespace {

constexpr std::uint64_t kLimitRequestBytes = 2 * kMiB;
constexpr std::uint32_t kDepth = 16;  // reads in flight, and as many writes

}  // namespace

double disk_seconds(const std::vector<FileRange>& reads, const std::filesystem::path& folder, std::uint64_t written_bytes) {
  struct Part {
    int file = 0;
    std::uint64_t offset = 0, bytes = 0;
  };
  std::array<std::vector<Part>, 2> parts;  // reads, writes
  const auto cut = [](std::vector<Part>& to, int file, std::uint64_t offset, std::uint64_t bytes) {
    for (std::uint64_t done = 0; done < bytes; done += kLimitRequestBytes)
      to.push_back({file, offset + done, std::min(kLimitRequestBytes, bytes - done)});
  };
  std::vector<files::FileHandle> handles;
  std::map<std::filesystem::path, int> numbers;
  std::vector<int> files;
  for (const auto& range : reads) {
    const auto [at, is_new] = numbers.try_emplace(range.file, static_cast<int>(files.size()));
    if (is_new) {
      handles.emplace_back(::open(range.file.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
      if (!handles.back())
        throw Error(fmt::format("{} cannot be opened for direct I/O: {}", range.file.string(), describe_errno(errno)));
      files.push_back(handles.back().get());
    }
    cut(parts[0], at->second, range.offset, range.bytes);
  }

  io::PageBuffer memory;
  const auto buffer = memory.of(2 * kDepth * kLimitRequestBytes);
  std::minstd_rand random(1);  // random bytes, because a disk might not store a page of zeros
  std::ranges::generate(buffer, [&] { return static_cast<std::byte>(random() >> 8); });

  settle(folder);
  const auto begin = now_ns();
  const DiskFile written(folder, std::max(round_up(written_bytes, kPageBytes), kPageBytes));
  files.push_back(written.descriptor());
  cut(parts[1], static_cast<int>(files.size()) - 1, 0, round_up(written_bytes, kPageBytes));
  const auto engine = make_io_engine({.queue_depth = 2 * kDepth, .files = files, .buffers = {}, .choice = io_of_environment()});

  int failed = 0;
  std::array<std::size_t, 2> next{};
  std::array<IoRequest, 2 * kDepth> requests;
  const auto start = [&](IoRequest& request, std::size_t side) {
    if (next.at(side) == parts.at(side).size() || failed != 0) return;
    const auto& part = parts.at(side)[next.at(side)++];
    request.file = part.file;
    request.offset = part.offset;
    request.bytes = part.bytes;
    IoRequest* const one = &request;
    engine->submit({&one, 1});
  };
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto side = i % 2;
    requests.at(i).op = side == 0 ? IoRequest::Op::read : IoRequest::Op::write;
    requests.at(i).buffer = buffer.data() + i * kLimitRequestBytes;
    requests.at(i).done = [&, side](IoRequest& ended, int error_number) {
      if (error_number != 0) failed = error_number;
      start(ended, side);
    };
  }
  for (std::size_t i = 0; i < requests.size(); ++i) start(requests.at(i), i % 2);
  while (engine->in_flight() > 0) engine->poll(std::chrono::milliseconds(100));
  if (failed != 0) throw Error(fmt::format("the disk of {}: {}", folder.string(), describe_errno(failed)));
  if (written_bytes != 0) written.sync();
  return static_cast<double>(now_ns() - begin) * 1e-9;
}

}  // namespace terrace::bench
