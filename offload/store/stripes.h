// How the flat space of a store is striped over its files: in each cycle a file gets as many stripes as its weight.
//
// Pure, a value. Threads: any.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/offload/store/chunk_store.h>

namespace terrace::store {

class Stripes {
 public:
  Stripes(std::uint64_t stripe_bytes, std::vector<std::uint32_t> weights);  // weights: one for each file, at least 1
  [[nodiscard]] std::vector<ChunkStore::Piece> pieces(std::uint64_t offset, std::uint64_t bytes) const;
  [[nodiscard]] std::uint64_t file_bytes(std::size_t file, std::uint64_t capacity_bytes) const;
  [[nodiscard]] std::uint64_t stripe_bytes() const { return stripe_bytes_; }
  [[nodiscard]] const std::vector<std::uint32_t>& weights() const { return weights_; }

  static constexpr std::uint32_t kMostWeight = 16;
  // The nearest small weights: a path of half the speed gets half the stripes.
  static std::vector<std::uint32_t> weights_of(std::span<const double> bytes_per_s);

 private:
  struct Slot {
    std::uint32_t file = 0, before = 0;  // its file, and how many stripes of that file come before it in the cycle
  };
  std::uint64_t stripe_bytes_;
  std::vector<std::uint32_t> weights_;
  std::vector<Slot> cycle_;
};

}  // namespace terrace::store
