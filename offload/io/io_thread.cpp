#include <terrace/offload/io/io_thread.h>

#include <chrono>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

namespace terrace::io {

struct IoThread::Impl {
  explicit Impl(IoOptions o) : options(std::move(o)) {
    waiting.reserve(kReserved);
    thread = std::thread([this] { run(); });
    try {
      ready.get_future().get();
    } catch (...) {
      thread.join();
      throw;
    }
  }
  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    engine->wake();
    thread.join();
  }

  // The engine is made here, because a ring belongs to the thread that made it.
  void run() {
    try {
      engine = make_io_engine(options);
    } catch (...) {
      return ready.set_exception(std::current_exception());
    }
    ready.set_value();
    std::vector<IoRequest*> taken;
    taken.reserve(kReserved);
    for (;;) {
      {
        const std::lock_guard lock(mutex);
        taken.swap(waiting);
        if (stopping && taken.empty() && engine->in_flight() == 0) return;
      }
      engine->submit(taken);
      taken.clear();
      engine->poll(kWait);
    }
  }

  static constexpr std::chrono::seconds kWait{1};  // wake() ends it
  static constexpr std::size_t kReserved = 64;     // this many queued requests need no allocation

  const IoOptions options;
  std::promise<void> ready;
  std::unique_ptr<IoEngine> engine;
  std::mutex mutex;
  std::vector<IoRequest*> waiting;
  bool stopping = false;
  std::thread thread;
};

IoThread::IoThread(const IoOptions& options) : impl_(std::make_unique<Impl>(options)) {}
IoThread::~IoThread() = default;

void IoThread::submit(IoRequest& request) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->waiting.push_back(&request);
  }
  impl_->engine->wake();
}

}  // namespace terrace::io
