// Memory in whole pages, which direct I/O requires, kept from use to use.
//
// Owner:   the caller. Threads: the owner's. Errors: std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

namespace terrace {

class PageBuffer {
 public:
  std::span<std::byte> of(std::uint64_t bytes);  // loses its content if it has to grow

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::uint64_t bytes_ = 0;
};

}  // namespace terrace
