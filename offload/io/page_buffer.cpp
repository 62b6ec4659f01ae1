#include <terrace/offload/io/page_buffer.h>

#include <sys/mman.h>

#include <new>

#include <terrace/core/base/units.h>

namespace terrace::io {

void PageBuffer::Unmap::operator()(std::byte* data) const { ::munmap(data, bytes); }

// Mapped, not allocated: an allocator's header beside each block would cost one more huge page per block.
std::span<std::byte> PageBuffer::of(std::uint64_t bytes) {
  if (bytes > (data_ ? data_.get_deleter().bytes : 0)) {
    data_.reset();
    const auto pages = round_up(bytes, kPageBytes);
    const auto surplus = pages < kHugePageBytes ? 0 : kHugePageBytes - kPageBytes;  // room to align the start to a huge page
    void* const mapped = ::mmap(nullptr, pages + surplus, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    auto* const begin = static_cast<std::byte*>(mapped);
    const auto address = reinterpret_cast<std::uintptr_t>(mapped);
    const auto before = surplus == 0 ? 0 : round_up(address, kHugePageBytes) - address;
    if (before != 0) ::munmap(begin, before);
    if (before != surplus) ::munmap(begin + before + pages, surplus - before);
    data_ = {begin + before, Unmap{pages}};
    if (surplus != 0) ::madvise(data_.get(), pages, MADV_HUGEPAGE);  // a hint: direct I/O then pins few pages
  }
  return {data_.get(), bytes};
}

}  // namespace terrace::io
