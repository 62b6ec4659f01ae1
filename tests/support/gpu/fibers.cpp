#include <terrace/tests/support/gpu/fibers.h>

#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include <terrace/tests/support/gpu/stacks.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace terrace::test {
namespace {

constexpr std::size_t kGuardBytes = 4096;
constexpr std::size_t kStackBytes = 256 * 1024;  // only touched pages use memory; frames are large under sanitizers
constexpr std::size_t kPitchBytes = kGuardBytes + kStackBytes;

}  // namespace

struct Fibers::Fiber {
  Place place;
  std::byte* stack = nullptr;  // the caller's stack, as sanitizers report it
  std::size_t stack_bytes = 0;
  void* sanitizer = nullptr;  // AddressSanitizer's fake stack, or ThreadSanitizer's fiber
};

// The memory of several stacks, each with an inaccessible page below it.
class Fibers::Stacks {
 public:
  explicit Stacks(int count) : count_(count), memory_(map(bytes())) {
    for (int i = 0; i < count; ++i) ::mprotect(stack(i) - kGuardBytes, kGuardBytes, PROT_NONE);
  }
  ~Stacks() { ::munmap(memory_, bytes()); }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] std::byte* stack(int i) const { return memory_ + static_cast<std::size_t>(i) * kPitchBytes + kGuardBytes; }

 private:
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(count_) * kPitchBytes; }
  static std::byte* map(std::size_t bytes) {
    void* const memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return static_cast<std::byte*>(memory);
  }

  int count_;
  std::byte* memory_;
};

// A thread launches many times, and making stacks would take most of a small launch.
thread_local std::unique_ptr<Fibers::Stacks> Fibers::spare_stacks;

Fibers::Fibers(int count) : fibers_(std::make_unique<Fiber[]>(static_cast<std::size_t>(count) + 1)), count_(count) {
  stacks_ = spare_stacks && spare_stacks->count() >= count ? std::move(spare_stacks) : std::make_unique<Stacks>(count);
  for (int i = 0; i < count; ++i) {
    auto& f = fibers_[static_cast<std::size_t>(i) + 1];
    f.stack = stacks_->stack(i);
    f.stack_bytes = kStackBytes;
  }
}

Fibers::~Fibers() {
  for (int i = 1; i <= count_; ++i) {
    [[maybe_unused]] auto& f = fibers_[static_cast<std::size_t>(i)];
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(f.stack, f.stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    if (f.sanitizer != nullptr) __tsan_destroy_fiber(f.sanitizer);
#endif
  }
  if (!spare_stacks || spare_stacks->count() < stacks_->count()) spare_stacks = std::move(stacks_);
}

void Fibers::run(int first, const std::function<void(int)>& body) {
  body_ = &body;
  for (int i = 1; i <= count_; ++i) {
    auto& f = fibers_[static_cast<std::size_t>(i)];
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(f.stack, f.stack_bytes);  // poison from an earlier run
    f.sanitizer = nullptr;
#endif
    f.place.begin(f.stack, f.stack_bytes, &Fibers::enter, this);
#if defined(__SANITIZE_THREAD__)
    if (f.sanitizer != nullptr) __tsan_destroy_fiber(f.sanitizer);
    f.sanitizer = __tsan_create_fiber(0);
#endif
  }
#if defined(__SANITIZE_THREAD__)
  fibers_[0].sanitizer = __tsan_get_current_fiber();
#endif
  switch_to(first);
}

void Fibers::switch_to(int fiber) {
  auto& from = fibers_[static_cast<std::size_t>(current_ + 1)];
  auto& to = fibers_[static_cast<std::size_t>(fiber + 1)];
  current_ = fiber;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.sanitizer, to.stack, to.stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.sanitizer, 0);
#endif
  from.place.leave_for(to.place);
#if defined(__SANITIZE_ADDRESS__)
  const void* stack = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(from.sanitizer, &stack, &bytes);
#endif
}

void Fibers::enter(void* fibers) {
  auto& self = *static_cast<Fibers*>(fibers);
#if defined(__SANITIZE_ADDRESS__)
  const void* stack = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  // The first fiber of a run is entered from the caller, so this is the caller's stack.
  if (self.fibers_[0].stack == nullptr) {
    self.fibers_[0].stack = static_cast<std::byte*>(const_cast<void*>(stack));
    self.fibers_[0].stack_bytes = bytes;
  }
#endif
  (*self.body_)(self.current_);
  std::abort();
}

}  // namespace terrace::test
