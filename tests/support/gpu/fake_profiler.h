// A profiler that records ranges by stream: the issuing thread has the stream's name. Ending a range that was not begun, and
// ranges that are still open at the end, are reported as complaints.
//
// Owner: the test; it must outlive the runtime. Threads: as CudaProfiler; queries only when no stream runs any more.
#pragma once

#include <pthread.h>

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <terrace/core/cuda/profiler.h>

namespace terrace::test {

class FakeProfiler final : public cuda::CudaProfiler {
 public:
  void name_stream(cuda::CudaStreamHandle, const std::string& name) override {
    const std::lock_guard lock(mutex_);
    streams_.push_back(name);
  }
  void begin_range(const std::string& name) override {
    const auto thread = own_name();
    const std::lock_guard lock(mutex_);
    open_[std::this_thread::get_id()].push_back(name);
    ranges_[thread].push_back(name);
  }
  void end_range() override {
    const std::lock_guard lock(mutex_);
    auto& open = open_[std::this_thread::get_id()];
    if (open.empty()) {
      complaints_ += own_name() + ": a range ends that nobody began\n";
    } else {
      open.pop_back();
    }
  }

  // The innermost range of the calling thread.
  [[nodiscard]] std::string open_range() const {
    const std::lock_guard lock(mutex_);
    const auto at = open_.find(std::this_thread::get_id());
    return at == open_.end() || at->second.empty() ? "" : at->second.back();
  }
  [[nodiscard]] std::vector<std::string> streams() const {
    const std::lock_guard lock(mutex_);
    return streams_;
  }
  [[nodiscard]] std::vector<std::string> ranges(const std::string& stream) const {
    const std::lock_guard lock(mutex_);
    const auto at = ranges_.find(stream);
    return at == ranges_.end() ? std::vector<std::string>{} : at->second;
  }
  [[nodiscard]] std::string complaints() const {
    const std::lock_guard lock(mutex_);
    auto text = complaints_;
    for (const auto& [thread, open] : open_)
      for (const auto& name : open) text += name + " has not ended\n";
    return text;
  }

 private:
  static std::string own_name() {
    std::array<char, 16> name{};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    return name.data();
  }

  mutable std::mutex mutex_;
  std::vector<std::string> streams_;
  std::map<std::thread::id, std::vector<std::string>> open_;
  std::map<std::string, std::vector<std::string>> ranges_;
  std::string complaints_;
};

}  // namespace terrace::test
