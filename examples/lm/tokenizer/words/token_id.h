// Token ids, and a growing array of them that does not clear its memory before it is written.
//
// Owner: the caller. Threads: one at a time. Errors: std::bad_alloc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace terrace::lm {

using TokenId = std::uint32_t;
inline constexpr std::uint64_t kMostTokenId = 0x7fffffff;  // in any file

class TokenBuffer {
 public:
  [[nodiscard]] std::span<const TokenId> view() const { return {data_.get(), size_}; }
  [[nodiscard]] std::size_t size() const { return size_; }
  void clear() { size_ = 0; }
  void push(TokenId id) { *reserve(1) = id, ++size_; }
  void append(std::span<const TokenId> ids) {
    std::ranges::copy(ids, reserve(ids.size()));
    size_ += ids.size();
  }
  // Reserves space for `count` more ids; written() then tells how many were used.
  TokenId* reserve(std::size_t count) {
    if (capacity_ - size_ < count) grow(count);
    return data_.get() + size_;
  }
  void written(std::size_t count) { size_ += count; }

 private:
  void grow(std::size_t count) {
    const auto capacity = std::max<std::size_t>(capacity_ * 2, size_ + count + 64);
    std::unique_ptr<TokenId[]> larger(new TokenId[capacity]);  // not cleared
    std::copy_n(data_.get(), size_, larger.get());
    data_ = std::move(larger);
    capacity_ = capacity;
  }
  std::unique_ptr<TokenId[]> data_;
  std::size_t size_ = 0, capacity_ = 0;
};

}  // namespace terrace::lm
