// A library for LD_PRELOAD: one chosen allocation of the program fails, or all from that one on; starting a thread counts as an
// allocation. Environment variables:
//
//   TERRACE_FAIL_AT=N      the N-th allocation fails, counted from 1; if unset, none fails
//   TERRACE_FAIL_ON=1      all later ones fail, too
//   TERRACE_COUNT=FILE     at exit the number of allocations is written to FILE
//
// Threads: any.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace {

std::uint64_t number_of(const char* name) {
  const char* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : 0;
}

std::atomic<std::uint64_t> done{0};

bool fails() {
  static const std::uint64_t at = number_of("TERRACE_FAIL_AT"), on = number_of("TERRACE_FAIL_ON");
  const auto now = ++done;
  return at != 0 && (now == at || (on != 0 && now > at));
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (fails()) return nullptr;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes == 0 ? 1 : bytes);
  void* memory = nullptr;
  return ::posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* const memory = allocate(bytes, alignment)) return memory;
  throw std::bad_alloc();
}

struct AtEnd {
  ~AtEnd() {
    const char* const file = std::getenv("TERRACE_COUNT");
    if (!file) return;
    if (std::FILE* const out = std::fopen(file, "w")) {
      std::fprintf(out, "%llu\n", static_cast<unsigned long long>(done.load()));
      std::fclose(out);
    }
  }
} at_end;

constexpr auto kUsual = alignof(std::max_align_t);

}  // namespace

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, kUsual); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes, kUsual); }
void* operator new(std::size_t bytes, std::align_val_t a) { return allocate_or_throw(bytes, static_cast<std::size_t>(a)); }
void* operator new[](std::size_t bytes, std::align_val_t a) { return allocate_or_throw(bytes, static_cast<std::size_t>(a)); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, kUsual); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, kUsual); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*run)(void*), void* with) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  return fails() ? EAGAIN : create(thread, how, run, with);
}
