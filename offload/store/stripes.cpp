#include <terrace/offload/store/stripes.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace terrace::store {

// The next stripe always goes to the file that is farthest below its share, so that a file's stripes lie far apart: a chunk of
// a few stripes uses all files at once.
Stripes::Stripes(std::uint64_t stripe_bytes, std::vector<std::uint32_t> weights)
    : stripe_bytes_(stripe_bytes), weights_(std::move(weights)) {
  const auto total = std::accumulate(weights_.begin(), weights_.end(), 0U);
  std::vector<std::uint32_t> dealt(weights_.size());
  for (std::uint32_t i = 1; i <= total; ++i) {
    const auto behind = [&](std::uint32_t f) {
      return static_cast<std::int64_t>(i) * weights_[f] - static_cast<std::int64_t>(total) * dealt[f];
    };
    std::uint32_t next = 0;
    for (std::uint32_t f = 1; f < weights_.size(); ++f)
      if (behind(f) > behind(next)) next = f;
    cycle_.push_back({next, dealt[next]++});
  }
}

std::vector<ChunkStore::Piece> Stripes::pieces(std::uint64_t offset, std::uint64_t bytes) const {
  std::vector<ChunkStore::Piece> pieces;
  if (weights_.size() == 1) {
    pieces.push_back({0, offset, bytes, 0});
    return pieces;
  }
  for (std::uint64_t at = 0; at < bytes;) {
    const auto stripe = (offset + at) / stripe_bytes_, into = (offset + at) % stripe_bytes_;
    const auto length = std::min(bytes - at, stripe_bytes_ - into);
    const auto& slot = cycle_[stripe % cycle_.size()];
    const auto of_file = stripe / cycle_.size() * weights_[slot.file] + slot.before;
    pieces.push_back({static_cast<int>(slot.file), of_file * stripe_bytes_ + into, length, at});
    at += length;
  }
  return pieces;
}

std::uint64_t Stripes::file_bytes(std::size_t file, std::uint64_t capacity_bytes) const {
  if (weights_.size() == 1) return capacity_bytes;
  const auto stripes = capacity_bytes / stripe_bytes_, rest = capacity_bytes % stripe_bytes_;
  auto bytes = stripes / cycle_.size() * weights_[file] * stripe_bytes_;
  const auto in_cycle = stripes % cycle_.size();
  for (std::uint64_t i = 0; i < in_cycle; ++i)
    if (cycle_[i].file == file) bytes += stripe_bytes_;
  if (cycle_[in_cycle].file == file) bytes += rest;
  return bytes;
}

std::vector<std::uint32_t> Stripes::weights_of(std::span<const double> bytes_per_s) {
  constexpr std::uint32_t kFastest = 8;  // steps of an eighth of the fastest: a measurement is not more precise
  const double most = *std::ranges::max_element(bytes_per_s);
  std::vector<std::uint32_t> weights;
  std::uint32_t common = 0;
  for (const double speed : bytes_per_s) {
    weights.push_back(most > 0 ? static_cast<std::uint32_t>(std::max(1L, std::lround(kFastest * speed / most))) : 1);
    common = std::gcd(common, weights.back());
  }
  for (auto& weight : weights) weight /= common;
  return weights;
}

}  // namespace terrace::store
