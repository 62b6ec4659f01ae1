// How heads are dealt out to context ranks (Ulysses): each takes some query heads, and the key-value heads that they read.
//
// The number of ranks need not divide the heads: block_of() gives the first ranks one more. If a rank's query heads do not fill
// whole groups of a key-value head, this key-value head goes to several ranks.
//
// Pure. Threads: values.
#pragma once

#include <cstdint>
#include <iterator>
#include <numeric>
#include <vector>

#include <terrace/parallel/comm/call.h>

namespace terrace::layers {

// Of a rank: query heads, and key-value heads.
struct Heads {
  std::int64_t queries = 1, keys = 1;
};

struct HeadDeal {
  std::int64_t heads = 1, kv_heads = 1;  // of all ranks together
  int ranks = 1;

  [[nodiscard]] comm::Block queries(int rank) const { return comm::block_of(heads, rank, ranks); }
  // On every rank, each group of this many query heads reads one key-value head: the greatest number that suits all ranks.
  [[nodiscard]] std::int64_t sharing() const {
    std::int64_t common = heads / kv_heads;
    for (int r = 0; r < ranks; ++r) common = std::gcd(common, std::gcd(queries(r).begin, queries(r).count));
    return common;
  }
  // The key-value heads that a rank takes, in the order of its query heads.
  [[nodiscard]] std::vector<std::int64_t> keys(int rank) const {
    std::vector<std::int64_t> taken;
    const auto [begin, count] = queries(rank);
    for (auto head = begin; head < begin + count; head += sharing()) taken.push_back(head / (heads / kv_heads));
    return taken;
  }
  [[nodiscard]] Heads of(int rank) const { return {queries(rank).count, std::ssize(keys(rank))}; }
};

}  // namespace terrace::layers
