// Committed chunks that are read ahead have the bytes that were written.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <terrace/core/base/files.h>
#include <terrace/core/base/units.h>
#include <terrace/offload/store/chunk_read_ahead.h>
#include <terrace/offload/store/chunk_store.h>
#include <terrace/offload/store/copy_store.h>

#include <terrace/tests/offload/pages.h>
#include <terrace/tests/offload/temporary_directory.h>

namespace terrace {
namespace {

constexpr std::uint64_t kSeed = 20261127;
constexpr std::uint32_t kChunks = 16;           // in a store: more than are read ahead
constexpr std::uint64_t kMostBytes = 5 * kMiB;  // in a chunk: several requests

// Two stores with chunks of many sizes, each striped over two files.
class ChunksAhead : public testing::Test {
 protected:
  ChunksAhead() {
    std::mt19937_64 random(kSeed);
    io::PageBuffer buffer;
    for (int s = 0; s < 2; ++s) {
      stores_.push_back(ChunkStore::create({.paths = {directory_.path() / "a", directory_.path() / "b"},
                                            .name = fmt::format("store{}", s),
                                            .capacity_bytes = kChunks * kMostBytes,
                                            .stripe_bytes = 3 * kMiB,
                                            .stripe_weights = {2, 1},
                                            .durable = false,
                                            .generations = 1}));
      for (std::uint32_t c = 0; c < kChunks; ++c) {
        const auto bytes = buffer.of(round_up(1 + random() % kMostBytes, kPageBytes));
        test::fill_random(bytes, seeds_.emplace_back(random()));
        store::write_chunk(*stores_.back(),
                           {ChunkId{c}, ChunkKind::parameter, "bf16", bytes.size(), {}, fmt::format("chunk {}", c)},
                           c * kMostBytes, bytes);
      }
      stores_.back()->commit(1, "{}");
      for (const auto& chunk : stores_.back()->committed()) chunks_.push_back(chunk);
    }
  }
  [[nodiscard]] ChunkStore& store_of(std::size_t chunk) const { return *stores_[chunk / kChunks]; }
  // All chunks, alternating between the two stores.
  [[nodiscard]] std::vector<std::size_t> in_turns() const {
    std::vector<std::size_t> order;
    for (std::size_t c = 0; c < kChunks; ++c) order.insert(order.end(), {c, kChunks + c});
    return order;
  }
  [[nodiscard]] store::ChunkReadAhead read_ahead(const std::vector<std::size_t>& order) const {
    std::vector<store::ChunkReadAhead::Chunk> chunks;
    for (const auto c : order) chunks.push_back({&store_of(c), &chunks_[c]});
    return store::ChunkReadAhead(chunks);
  }
  void expect_content(std::size_t chunk, io::PageBuffer& buffer) const {
    std::vector<std::byte> expected(chunks_[chunk].description.bytes);
    test::fill_random(expected, seeds_[chunk]);
    EXPECT_EQ(0, std::memcmp(expected.data(), buffer.of(expected.size()).data(), expected.size()))
        << "chunk " << chunk << ", seed " << seeds_[chunk];
  }
  [[nodiscard]] std::string path_of(std::size_t chunk, const ChunkStore::Piece& piece) const {
    return fmt::format("/proc/self/fd/{}", store_of(chunk).descriptors()[static_cast<std::size_t>(piece.file)]);
  }
  // Opened without direct I/O, so that one byte can be changed.
  void damage(std::size_t chunk) const {
    const auto& [description, offset, checksum] = chunks_[chunk];
    const auto piece = store_of(chunk).pieces(offset, description.bytes).back();
    const files::FileHandle file(::open(path_of(chunk, piece).c_str(), O_RDWR | O_CLOEXEC));
    char byte = 0;
    const auto at = static_cast<off_t>(piece.offset + piece.bytes - 1);
    ASSERT_EQ(1, ::pread(file.get(), &byte, 1, at));
    byte = static_cast<char>(byte ^ 1);
    ASSERT_EQ(1, ::pwrite(file.get(), &byte, 1, at));
    ASSERT_EQ(0, ::fsync(file.get()));
  }

  test::TemporaryDirectory directory_;
  std::vector<std::unique_ptr<ChunkStore>> stores_;
  std::vector<StoredChunk> chunks_;  // those of the first store, then those of the second
  std::vector<std::uint64_t> seeds_;
};

TEST_F(ChunksAhead, AllChunksInTheirOrderAreAhead) {
  auto order = in_turns();
  order.insert(order.end(), {0, 1, 0});  // again
  auto ahead = read_ahead(order);
  io::PageBuffer buffer;
  for (const auto c : order) {
    ASSERT_TRUE(ahead.take(chunks_[c], buffer)) << "chunk " << c;
    expect_content(c, buffer);
  }
  EXPECT_FALSE(ahead.take(chunks_[0], buffer)) << "what was taken is not there any more";
}

// Taken bytes remain valid while later chunks are read, if the caller passes other memory for those.
TEST_F(ChunksAhead, TakenChunksAreTheCallers) {
  const auto order = in_turns();
  auto ahead = read_ahead(order);
  std::vector<io::PageBuffer> taken(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) ASSERT_TRUE(ahead.take(chunks_[order[i]], taken[i]));
  for (std::size_t i = 0; i < order.size(); ++i) expect_content(order[i], taken[i]);
}

TEST_F(ChunksAhead, AnyOtherOrderEndsToo) {
  auto order = in_turns();
  auto ahead = read_ahead(order);
  std::mt19937_64 random(kSeed);
  std::ranges::shuffle(order, random);
  io::PageBuffer buffer;
  std::size_t taken = 0;
  for (const auto c : order)
    if (ahead.take(chunks_[c], buffer)) {
      expect_content(c, buffer);
      ++taken;
    }
  EXPECT_GT(taken, 0U);
}

TEST_F(ChunksAhead, DamagedChunksAreLeftToTheCaller) {
  constexpr std::size_t kDamaged = 7;
  damage(kDamaged);
  const auto order = in_turns();
  auto ahead = read_ahead(order);
  io::PageBuffer buffer;
  for (const auto c : order) {
    EXPECT_EQ(c != kDamaged, ahead.take(chunks_[c], buffer)) << "chunk " << c;
    if (c != kDamaged) expect_content(c, buffer);
  }
}

TEST_F(ChunksAhead, ChunksBehindTheEndOfAFileAreLeftToTheCaller) {
  const auto cut = kChunks - 1;  // the last chunk of the first store
  const auto piece = store_of(cut).pieces(chunks_[cut].offset, chunks_[cut].description.bytes).front();
  std::filesystem::resize_file(path_of(cut, piece), piece.offset);
  const auto order = in_turns();
  auto ahead = read_ahead(order);
  io::PageBuffer buffer;
  for (const auto c : order) EXPECT_EQ(c != cut, ahead.take(chunks_[c], buffer)) << "chunk " << c;
}

TEST_F(ChunksAhead, NothingNeedBeTaken) { auto ahead = read_ahead(in_turns()); }

}  // namespace
}  // namespace terrace
