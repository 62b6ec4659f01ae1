// What the tests of kept chunks write: the content of a chunk after a step is known from both numbers alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <terrace/offload/manager/chunk_manager.h>

namespace terrace::test {

inline constexpr std::uint64_t kKeptChunks = 9;
inline std::uint64_t kept_bytes(std::uint64_t i) { return (1 + i % 4) * kPageBytes - i * 8; }  // some are not whole pages
inline std::string kept_name(std::uint64_t i) { return fmt::format("chunk/{}", i); }
inline std::uint64_t kept_word(std::uint64_t step, std::uint64_t i, std::uint64_t at) {
  return (step * 1'000'003 + i) * 0x9E3779B97F4A7C15ULL + at;
}
inline void write_words(std::span<std::byte> bytes, std::uint64_t step, std::uint64_t i) {
  for (std::uint64_t at = 0; at < bytes.size(); at += 8) {
    const auto word = kept_word(step, i, at);
    std::memcpy(bytes.data() + at, &word, 8);
  }
}
inline bool has_words(std::span<const std::byte> bytes, std::uint64_t step, std::uint64_t i) {
  for (std::uint64_t at = 0; at < bytes.size(); at += 8) {
    const auto word = kept_word(step, i, at);
    if (std::memcmp(bytes.data() + at, &word, 8) != 0) return false;
  }
  return true;
}

// Room for two or three chunks in memory, and for two generations of all on the disk.
inline OffloadOptions kept_options(const std::filesystem::path& store) {
  OffloadOptions options;
  options.device_bytes = 8 * kPageBytes;
  options.host_bytes = 9 * kPageBytes;
  options.nvme_bytes = 64 * kPageBytes;
  options.store = store;
  options.threads = 1;
  options.io.engine = "threads";
  return options;
}

// Changes every chunk, in an order and on tiers that the seed decides.
inline void write_step(ChunkManager& manager, std::span<const ChunkId> chunks, std::uint64_t step, std::uint64_t seed) {
  std::vector<std::uint64_t> order(chunks.size());
  for (std::uint64_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937_64 random(seed);
  std::ranges::shuffle(order, random);
  for (const auto i : order) {
    const auto access = manager.has_content(chunks[i]) && random() % 2 == 0 ? Access::update : Access::overwrite;
    const auto lease = manager.acquire(chunks[i], random() % 2 == 0 ? Tier::device : Tier::host, access);
    write_words(lease.bytes(), step, i);
  }
}

}  // namespace terrace::test
