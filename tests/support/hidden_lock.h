// A lock that ThreadSanitizer does not see: it protects the fake's own tables, but a real GPU would not impose its order. The
// order that CUDA does guarantee is reported to ThreadSanitizer by tell_before() and see_after(), both called under such a
// lock. Without ThreadSanitizer it is an ordinary lock.
//
// Owner: the scope. Threads: one at a time; a token is an address, valid for all threads.
#pragma once

#include <mutex>

#if defined(__SANITIZE_THREAD__)
#define TERRACE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TERRACE_TSAN 1
#endif
#endif

#ifdef TERRACE_TSAN
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void __tsan_acquire(void* token);
void __tsan_release(void* token);
}
#endif

namespace terrace::test {

#ifdef TERRACE_TSAN
inline constexpr bool kThreadSanitizer = true;
inline void hide() {
  AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
inline void show() {
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
}
// Everything that this thread has done happens before what follows see_after() with the same token.
inline void tell_before(const void* token) {
  show();
  __tsan_release(const_cast<void*>(token));
  hide();
}
inline void see_after(const void* token) {
  show();
  __tsan_acquire(const_cast<void*>(token));
  hide();
}
#else
inline constexpr bool kThreadSanitizer = false;
inline void hide() {}
inline void show() {}
inline void tell_before(const void* /*token*/) {}
inline void see_after(const void* /*token*/) {}
#endif

class HiddenLock {
 public:
  explicit HiddenLock(std::mutex& mutex) : lock_(mutex, std::defer_lock) { lock(); }
  HiddenLock(const HiddenLock&) = delete;
  HiddenLock& operator=(const HiddenLock&) = delete;
  ~HiddenLock() {
    if (lock_.owns_lock()) unlock();
  }
  void lock() {
    hide();
    lock_.lock();
  }
  void unlock() {
    lock_.unlock();
    show();
  }
  // For condition variables.
  std::unique_lock<std::mutex>& inner() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace terrace::test
