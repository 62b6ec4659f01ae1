// Applies the result of one transfer to its request; the same for every engine.
//
// Threads: the one that owns the request at that moment.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <optional>

#include <terrace/core/base/units.h>
#include <terrace/offload/io/io_engine.h>

namespace terrace::io {

// `result` is the kernel's: bytes moved, or a negative errno. Returns the error number that ends the request (0: all
// its bytes moved), or nothing if the request continues from `moved_bytes`.
//
// Progress counts in whole pages, because direct I/O can only continue at a page. Less than a page means that the file ends
// there, or that a write found no more room.
inline std::optional<int> account(IoRequest& request, std::int64_t result) {
  if (result == -EAGAIN || result == -EINTR) return std::nullopt;
  if (result < 0) return static_cast<int>(-result);
  const auto moved = static_cast<std::uint64_t>(result) / kPageBytes * kPageBytes;
  if (moved == 0 && request.bytes != 0) return request.op == IoRequest::Op::read ? ENODATA : ENOSPC;
  request.moved_bytes += moved;
  if (request.moved_bytes >= request.bytes) return 0;
  return std::nullopt;
}

// Waiting requests in order, as an intrusive list: no allocation, no limit.
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

// Requests beyond the depth limit: by priority, but a request that was overtaken often enough starts first.
class IoBacklog {
 public:
  void push(IoRequest& request) { of(request.priority).push(request); }
  IoRequest* pop() {
    constexpr int kPatience = 16;
    std::size_t chosen = kPriorities;
    for (std::size_t p = 0; p < kPriorities; ++p) {
      if (queues_[p].empty()) {
        passed_over_[p] = 0;
      } else if (chosen == kPriorities || passed_over_[p] >= kPatience) {
        chosen = p;
      }
    }
    if (chosen == kPriorities) return nullptr;
    for (std::size_t p = 0; p < kPriorities; ++p) ++passed_over_[p];
    passed_over_[chosen] = 0;
    return queues_[chosen].pop();
  }
  [[nodiscard]] bool empty() const {
    return std::ranges::all_of(queues_, [](const IoQueue& queue) { return queue.empty(); });
  }

 private:
  static constexpr std::size_t kPriorities = 3;
  IoQueue& of(IoRequest::Priority priority) { return queues_[static_cast<std::size_t>(priority)]; }
  std::array<IoQueue, kPriorities> queues_;
  std::array<int, kPriorities> passed_over_{};  // how many others have started since the queue's first request began to wait
};

// The requests that the device has: at most `depth` requests and `bytes` bytes, but two requests are always allowed. After a
// long run of writes only, as when a model is loaded, the window is wider: a disk that others use at the same time shares its
// rate by queued bytes, and only one read, the next, has to wait behind the wider queue.
class IoWindow {
 public:
  static constexpr std::uint64_t kWideBytes = 32 * kMiB, kOnlyWritesBytes = 256 * kMiB;

  IoWindow(std::uint32_t depth, std::uint64_t bytes) : depth_(depth), window_bytes_(bytes) {}
  [[nodiscard]] bool room() const {
    const auto most_bytes = written_bytes_ < kOnlyWritesBytes ? window_bytes_ : std::max(window_bytes_, kWideBytes);
    return requests_ < depth_ && (requests_ < 2 || bytes_ < most_bytes);
  }
  [[nodiscard]] std::uint32_t requests() const { return requests_; }
  // Both count the request's remaining bytes; its progress must not change between the two calls.
  void start(const IoRequest& request) {
    const auto bytes = request.bytes - request.moved_bytes;
    ++requests_;
    bytes_ += bytes;
    written_bytes_ = request.op == IoRequest::Op::read ? 0 : written_bytes_ + bytes;
  }
  void end(const IoRequest& request) {
    --requests_;
    bytes_ -= request.bytes - request.moved_bytes;
  }

 private:
  std::uint32_t depth_, requests_ = 0;
  std::uint64_t window_bytes_, bytes_ = 0;
  std::uint64_t written_bytes_ = 0;  // since the last read
};

// The pause after EAGAIN: doubles each time, until the device accepts a request again.
class Backoff {
 public:
  void refused(std::int64_t now_ns) {
    pause_ns_ = std::clamp(2 * pause_ns_, kShortest_ns, kLongest_ns);
    until_ns_ = now_ns + pause_ns_;
  }
  void accepted() { pause_ns_ = until_ns_ = 0; }
  [[nodiscard]] bool active() const { return until_ns_ != 0; }
  [[nodiscard]] std::int64_t left_ns(std::int64_t now_ns) const { return std::max<std::int64_t>(0, until_ns_ - now_ns); }

 private:
  static constexpr std::int64_t kShortest_ns = 50'000, kLongest_ns = 20'000'000;
  std::int64_t pause_ns_ = 0, until_ns_ = 0;
};

}  // namespace terrace::io
