#include <terrace/offload/page_buffer.h>

#include <sys/mman.h>

#include <new>

#include <terrace/core/units.h>

namespace terrace {

std::span<std::byte> PageBuffer::of(std::uint64_t bytes) {
  if (bytes > bytes_) {
    const bool large = bytes >= kHugePageBytes;
    const auto aligned = round_up(bytes, kPageBytes);
    void* data = nullptr;
    if (::posix_memalign(&data, large ? kHugePageBytes : kPageBytes, aligned) != 0) throw std::bad_alloc();
    if (large) ::madvise(data, aligned, MADV_HUGEPAGE);  // a hint: direct I/O then pins few pages
    data_.reset(static_cast<std::byte*>(data));
    bytes_ = bytes;
  }
  return {data_.get(), bytes};
}

}  // namespace terrace
