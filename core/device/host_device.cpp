#include <terrace/core/device/host_device.h>

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>

#include <terrace/core/device/host_copy.h>

namespace terrace {
namespace {

class HostStream final : public Stream {
 public:
  HostStream(Device& device, const std::string& name) : device_(device), thread_([this] { run(); }) {
    pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());  // Linux's limit; a failure only costs the name
  }
  ~HostStream() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    submitted_.notify_one();
    thread_.join();
  }

  void submit(std::function<void()> work) override { push(Work{std::move(work)}); }
  void then(Told told) override { push(std::move(told)); }
  void wait(const Event& event) override {
    push(Work{[event] { event.wait(); }});
  }
  Event record() override {
    const auto point = ++recorded_;
    push(point);
    return {timeline_, point};
  }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    push(Work{[=] { device::copy_bytes(to, from, bytes); }});
  }
  Device& device() override { return device_; }

 private:
  struct Work {
    std::function<void()> run;
  };
  using Entry = std::variant<Work, Told, std::uint64_t>;  // the number is the timeline's next point

  void push(Entry entry) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(entry));
    }
    submitted_.notify_one();
  }

  void run() {
    std::exception_ptr failure;
    for (;;) {
      Entry entry;
      {
        std::unique_lock lock(mutex_);
        submitted_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) return;
        entry = std::move(queue_.front());
        queue_.pop_front();
      }
      try {
        if (const auto* const told = std::get_if<Told>(&entry)) {
          (*told)(failure);
        } else if (failure) {
          continue;
        } else if (const auto* const point = std::get_if<std::uint64_t>(&entry)) {
          timeline_->advance(*point);
        } else {
          std::get<Work>(entry).run();
        }
      } catch (...) {
        if (failure) continue;  // the first error is the cause
        failure = std::current_exception();
        timeline_->fail(failure);
      }
    }
  }

  Device& device_;
  const std::shared_ptr<Timeline> timeline_ = std::make_shared<Timeline>();
  std::uint64_t recorded_ = 0;  // the submitting thread's
  std::mutex mutex_;
  std::condition_variable submitted_;
  std::deque<Entry> queue_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

device::HostDevice::HostDevice(ThreadPool& pool, const Log& log) : pool_(pool), memory_(make_pinned_memory(pool, -1, log)) {}

std::unique_ptr<Stream> device::HostDevice::make_stream(std::string name) { return std::make_unique<HostStream>(*this, name); }

std::unique_ptr<Device> make_host_device(ThreadPool& pool, const Log& log) {
  return std::make_unique<device::HostDevice>(pool, log);
}

}  // namespace terrace
