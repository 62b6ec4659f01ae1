#include <terrace/offload/manager/activations.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace terrace {
namespace {

// Eight sizes between a power of two and the next one: few, so that chunks of earlier tensors fit later ones, and at most an
// eighth is lost.
std::uint64_t chunk_bytes(std::uint64_t bytes) { return round_up(bytes, std::max(kPageBytes, std::bit_floor(bytes) / 8)); }

}  // namespace

Activations::Activations(ChunkManager& manager, const ActivationsOptions& options) : manager_(manager), options_(options) {
  if (options.piece_bytes == 0)
    throw Error("ActivationsOptions: piece_bytes is 0\n  give at least one page", ErrorKind::refused);
}

Activations::Saved& Activations::Saved::operator=(Saved&& other) noexcept {
  if (this == &other) return *this;
  drop();
  owner_ = std::exchange(other.owner_, nullptr);
  first_ = other.first_;
  pieces_ = other.pieces_;
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void Activations::Saved::drop() noexcept {
  if (!owner_) return;
  auto& owner = *std::exchange(owner_, nullptr);
  const std::lock_guard lock(owner.mutex_);
  for (auto piece = first_; piece < first_ + pieces_; ++piece) {
    const auto at = owner.pieces_.find(piece);
    owner.manager_.remove(at->second);
    owner.pieces_.erase(at);
  }
}

Activations::Saved Activations::offload(std::span<const std::byte> bytes, Stream* stream) {
  Saved saved;
  saved.bytes_ = bytes.size();
  {
    const std::lock_guard lock(mutex_);
    saved.owner_ = this;
    saved.first_ = next_;
    for (std::uint64_t at = 0; at < bytes.size(); at += options_.piece_bytes, ++saved.pieces_)
      pieces_[next_++] = manager_.add(chunk_bytes(std::min(options_.piece_bytes, bytes.size() - at)), "a saved tensor");
  }
  for (std::uint64_t i = 0; i < saved.pieces_; ++i) {
    const auto at = i * options_.piece_bytes;
    copy_piece(saved.first_ + i, Access::overwrite, stream, {},
               bytes.subspan(at, std::min(options_.piece_bytes, bytes.size() - at)));
  }
  return saved;
}

// The last piece first, as with tensors.
void Activations::fetch(const Saved& saved, std::span<std::byte> to, Stream* stream) {
  if (saved.owner_ != this || to.size() != saved.bytes_)
    throw std::logic_error(fmt::format("Activations: {} bytes fetched of a handle of {}", to.size(),
                                       saved.owner_ == this ? fmt::format("{} bytes", saved.bytes_) : "none of its tensors"));
  for (auto i = saved.pieces_; i-- > 0;) {
    const auto at = i * options_.piece_bytes;
    copy_piece(saved.first_ + i, Access::read, stream, to.subspan(at, std::min(options_.piece_bytes, to.size() - at)), {});
    prefetch_before(saved.first_ + i);
  }
}

ChunkId Activations::chunk_of(std::uint64_t piece) {
  const std::lock_guard lock(mutex_);
  return pieces_.at(piece);
}

// Copies between a piece and the caller's bytes: `from` into it, or out of it to `to`.
void Activations::copy_piece(std::uint64_t piece, Access access, Stream* stream, std::span<std::byte> to,
                             std::span<const std::byte> from) {
  const Lease lease = manager_.acquire(chunk_of(piece), Tier::host, access, {.stream = stream});
  auto* const target = writes(access) ? lease.bytes().data() : to.data();
  const auto* const source = writes(access) ? from.data() : lease.bytes().data();
  const auto bytes = std::max(to.size(), from.size());
  if (stream) return stream->copy(target, source, bytes);
  std::memcpy(target, source, bytes);
}

// Under the mutex, because the end of another thread's handle removes its chunks.
void Activations::prefetch_before(std::uint64_t piece) {
  const std::lock_guard lock(mutex_);
  auto before = pieces_.lower_bound(piece);
  for (int n = 0; n < options_.ahead_pieces && before != pieces_.begin(); ++n)
    manager_.prefetch((--before)->second, Tier::host);
}

}  // namespace terrace
