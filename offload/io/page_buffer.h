// Memory in whole pages, which direct I/O requires, kept from use to use.
//
// Owner:   the caller. Threads: the owner's. Errors: std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace terrace::io {

class PageBuffer {
 public:
  std::span<std::byte> of(std::uint64_t bytes);  // loses its content if it has to grow

 private:
  struct Unmap {
    std::uint64_t bytes;
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Unmap> data_;
};

}  // namespace terrace::io
