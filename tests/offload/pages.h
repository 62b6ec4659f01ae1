// Page-aligned memory and reproducible bytes.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <span>

#include <terrace/core/base/units.h>

namespace terrace::test {

class Pages {
 public:
  explicit Pages(std::uint64_t bytes)
      : bytes_(bytes), data_(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, round_up(bytes, kPageBytes)))) {
    if (!data_) throw std::bad_alloc();
    std::memset(data_.get(), 0, bytes);
  }
  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::span<std::byte> span() const { return {data_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::uint64_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

inline void fill_random(std::span<std::byte> bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, 8);
  }
}

}  // namespace terrace::test
