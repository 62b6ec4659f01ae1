// What the result of one transfer means for its request; the same for every engine.
//
// Threads: the one that owns the request at that moment.
#pragma once

#include <cerrno>
#include <optional>

#include <terrace/core/units.h>
#include <terrace/offload/io_engine.h>

namespace terrace {

// `result` is what the kernel gave: bytes moved, or a negative errno. Returns the error number that ends the request (0: all
// its bytes moved), or nothing when it goes on from `moved_bytes`.
//
// Progress counts in whole pages, because direct I/O can only go on from one. Less than a page means that the file ends there,
// or that a write found no more room.
inline std::optional<int> account(IoRequest& request, std::int64_t result) {
  if (result == -EAGAIN || result == -EINTR) return std::nullopt;
  if (result < 0) return static_cast<int>(-result);
  const auto moved = static_cast<std::uint64_t>(result) / kPageBytes * kPageBytes;
  if (moved == 0 && request.bytes != 0) return request.op == IoRequest::Op::read ? ENODATA : ENOSPC;
  request.moved_bytes += moved;
  if (request.moved_bytes >= request.bytes) return 0;
  return std::nullopt;
}

// Requests that wait, in order, linked through themselves: no allocation, no limit.
class IoQueue {
 public:
  void push(IoRequest& request) {
    request.next = nullptr;
    (last_ ? last_->next : first_) = &request;
    last_ = &request;
  }
  IoRequest* pop() {
    IoRequest* request = first_;
    if (request) {
      first_ = request->next;
      if (!first_) last_ = nullptr;
      request->next = nullptr;
    }
    return request;
  }
  [[nodiscard]] bool empty() const { return !first_; }

 private:
  IoRequest *first_ = nullptr, *last_ = nullptr;
};

}  // namespace terrace
