#include <terrace/offload/move/move_error.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>

namespace terrace::offload {
namespace {

std::string advice(const ChunkStore& store, bool writing, std::uint64_t offset, int error_number) {
  if (!writing) return "the chunk has no other copy; check the disk, then `resume` auto";
  const std::string intact = "the previous commit is intact; ";
  if (error_number == ENOSPC || error_number == EDQUOT) {
    return fmt::format("{}{} are free there: free more, or lower `nvme-limit`, then `resume` auto", intact,
                       format_bytes(store.free_bytes(offset)));
  }
  return intact + "check the disk, then `resume` auto";
}

ErrorFacts facts_of(const ChunkStore& store, const Move& move, std::uint64_t offset, int error_number) {
  return {.code = code_of_errno(error_number),
          .path = store.path_of(offset).string(),
          .object = fmt::format("chunk {}", index(move.chunk))};
}

}  // namespace

std::exception_ptr move_error(const ChunkStore& store, const Move& move, std::uint64_t offset, int error_number) {
  const bool writing = move.to == Tier::disk;
  return std::make_exception_ptr(
      Error(fmt::format("{} could not be {}\n  {}, {} bytes: {}\n  {}", move_name(&store, move), writing ? "written" : "read",
                        store.describe_place(move.chunk, offset), move.bytes, describe_errno(error_number),
                        advice(store, writing, offset, error_number)),
            ErrorKind::failed, facts_of(store, move, offset, error_number)));
}

std::exception_ptr stuck_error(const ChunkStore& store, const Move& move, std::uint64_t offset,
                               const std::vector<IoRequest>& requests, std::chrono::nanoseconds deadline) {
  const auto is_open = [](const IoRequest& request) { return request.buffer != nullptr; };  // disk_lanes.cpp clears it
  const auto first = std::ranges::find_if(requests, is_open);
  std::uint64_t before = 0;  // bytes of the chunk before that request; the requests divide it in order
  for (auto at = requests.begin(); at != first; ++at) before += at->bytes;
  const bool writing = move.to == Tier::disk;
  return std::make_exception_ptr(Error(
      fmt::format("{} could not be {}\n  {}, {} bytes: {}\n  the {} lane waits for {} of its {} requests for {} s now; {}",
                  move_name(&store, move), writing ? "written" : "read", store.describe_place(move.chunk, offset + before),
                  first->bytes, describe_errno(ETIME), writing ? "write" : "read", std::ranges::count_if(requests, is_open),
                  requests.size(), std::chrono::duration<double>(deadline).count(),
                  "check the disk (dmesg), or raise `io-deadline`, then `resume` auto"),
      ErrorKind::failed, facts_of(store, move, offset + before, ETIME)));
}

std::string move_name(const ChunkStore* store, const Move& move) {
  const auto label = store ? store->label(move.chunk) : std::string();
  return label.empty() ? fmt::format("chunk {}", index(move.chunk)) : fmt::format("chunk {} ({})", index(move.chunk), label);
}

}  // namespace terrace::offload
