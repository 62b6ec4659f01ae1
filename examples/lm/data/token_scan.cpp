#include <terrace/examples/lm/data/token_scan.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>
#include <terrace/offload/store/chunk_store.h>

static_assert(std::endian::native == std::endian::little, "tokens are little-endian");

namespace terrace::lm {
namespace {

template <class T>
T token_at(const unsigned char* bytes) {
  T token;
  std::memcpy(&token, bytes, sizeof token);
  return token;
}

// The largest token. The inner loop has a constant length, so the compiler uses vector instructions.
template <class T>
std::uint64_t largest_of(const unsigned char* bytes, std::size_t tokens) {
  constexpr std::size_t kAtOnce = 4096;
  T most = 0;
  std::size_t begin = 0;
  for (; begin + kAtOnce <= tokens; begin += kAtOnce)
    for (std::size_t i = 0; i < kAtOnce; ++i) most = std::max(most, token_at<T>(bytes + (begin + i) * sizeof(T)));
  for (; begin < tokens; ++begin) most = std::max(most, token_at<T>(bytes + begin * sizeof(T)));
  return most;
}

std::uint64_t largest(std::size_t width, std::span<const unsigned char> bytes) {
  const auto tokens = bytes.size() / width;
  if (width == 1) return largest_of<std::uint8_t>(bytes.data(), tokens);
  return width == 2 ? largest_of<std::uint16_t>(bytes.data(), tokens) : largest_of<std::uint32_t>(bytes.data(), tokens);
}

// True if the format can store a number outside the vocabulary.
bool can_be_foreign(TokenFormat format) {
  return static_cast<std::uint64_t>(format.vocabulary) < std::uint64_t{1} << 8 * format.bytes;
}

}  // namespace

std::string describe_foreign_token(const std::filesystem::path& file, std::uint64_t position, std::uint64_t token,
                                   std::int64_t vocabulary) {
  return fmt::format("corpus file {}, token {}: {} is not below the vocabulary of {}", file.string(), position, token,
                     vocabulary);
}

TokenScan::TokenScan(const std::vector<std::filesystem::path>& files, TokenFormat format, ScanPart part,
                     std::size_t block_bytes)
    : format_(format), part_(part), block_bytes_(block_bytes / format.bytes * format.bytes), next_(part.index) {
  if (!can_be_foreign(format)) return;
  checksums_.resize(files.size());
  for (std::size_t number = 0; number < files.size(); ++number) {
    const auto bytes = tokens_in_file(files[number], format) * format.bytes;
    if (bytes == 0) continue;
    files_.push_back({files[number], bytes, blocks_, number});
    bytes_ += bytes;
    blocks_ += (bytes + block_bytes_ - 1) / block_bytes_;
  }
}

bool TokenScan::advance(std::chrono::nanoseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  for (; next_ < blocks_; next_ += part_.of) {
    check(next_);
    if (std::chrono::steady_clock::now() >= end) {
      next_ += part_.of;
      break;
    }
  }
  return next_ >= blocks_;
}

double TokenScan::share_done() const {
  return blocks_ == 0 ? 1 : static_cast<double>(std::min(next_, blocks_)) / static_cast<double>(blocks_);
}

void TokenScan::check(std::uint64_t block) {
  const auto file = std::prev(std::ranges::upper_bound(files_, block, {}, &File::first_block));
  if (const auto index = static_cast<std::size_t>(file - files_.begin()); !open_ || open_index_ != index) {
    open_ = std::make_unique<CorpusFile>(file->path);
    open_index_ = index;
  }
  const auto offset = (block - file->first_block) * block_bytes_;
  block_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(block_bytes_, file->bytes - offset)));
  open_->read(format_.header + offset, block_);
  open_->has_read(format_.header + offset, block_.size());  // drops the pages: a corpus may be larger than memory
  open_->will_read(format_.header + offset + part_.of * block_bytes_, block_bytes_);
  const std::array<std::uint64_t, 2> placed{offset, checksum_of(std::as_bytes(std::span(block_)))};
  checksums_[file->number] += checksum_of(std::as_bytes(std::span(placed)));
  if (largest(format_.bytes, block_) < static_cast<std::uint64_t>(format_.vocabulary)) return;
  for (std::size_t at = 0; at < block_.size(); at += format_.bytes)
    if (const auto token = largest(format_.bytes, std::span(block_).subspan(at, format_.bytes));
        token >= static_cast<std::uint64_t>(format_.vocabulary))
      throw base::Refused(describe_foreign_token(file->path, (offset + at) / format_.bytes, token, format_.vocabulary) +
                          "\n  give the tokenizer's --vocab, and the right --data-format");
}

}  // namespace terrace::lm
