#include <array>
#include <memory>
#include <new>

#include <terrace/core/math/cpu/compute.h>

namespace terrace::cpu {
namespace {

constexpr std::align_val_t kAlignment{4096};
struct Free {
  void operator()(std::byte* p) const { ::operator delete(p, kAlignment); }
};
struct Buffer {
  std::unique_ptr<std::byte, Free> bytes;
  std::size_t capacity = 0;
};

}  // namespace

std::byte* scratch_bytes(Scratch slot, std::size_t bytes) {
  thread_local std::array<Buffer, static_cast<std::size_t>(Scratch::count)> buffers;
  Buffer& buffer = buffers[static_cast<std::size_t>(slot)];
  if (buffer.capacity < bytes) {
    const std::size_t capacity = std::max<std::size_t>(2 * buffer.capacity, (bytes + 4095) / 4096 * 4096);
    buffer.bytes.reset();
    buffer.capacity = 0;
    buffer.bytes.reset(static_cast<std::byte*>(::operator new(capacity, kAlignment)));
    buffer.capacity = capacity;
  }
  return buffer.bytes.get();
}

}  // namespace terrace::cpu
