// Shared by the chunk store's tests: a store of small chunks, written in the same way as the mover does.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/offload/store/chunk_store.h>

#include <terrace/tests/offload/pages.h>
#include <terrace/tests/offload/temporary_directory.h>

namespace terrace::test {

inline constexpr std::uint64_t kChunkBytes = 5 * kPageBytes;
inline constexpr std::uint64_t kPlaceBytes = 2 * kChunkBytes;  // two generations

inline ChunkDescription description_of(std::uint32_t id) {
  const std::string tensor = fmt::format("layers.{}.mlp", id);
  return {ChunkId{id},
          ChunkKind::master,
          "fp32",
          kChunkBytes,
          // Every third chunk has columns of a matrix.
          {id % 3 == 1 ? TensorRange{tensor, id * 100ULL, kChunkBytes / 32, 0, 8, kChunkBytes}
                       : TensorRange{tensor, id * 100ULL, kChunkBytes / 4, 0}},
          "master weight of " + tensor};
}

// Writes, commits and inspects stores in a separate folder.
class ChunkStoreTest : public testing::Test {
 protected:
  ChunkStore::Options options(int paths = 1) const {
    ChunkStore::Options o;
    for (int p = 0; p < paths; ++p) o.paths.push_back(directory_.path() / fmt::format("nvme{}", p));
    o.capacity_bytes = 8 * kPlaceBytes;
    o.stripe_bytes = 2 * kPageBytes;
    return o;
  }

  // Does the same as the mover, with plain calls.
  static void write(ChunkStore& store, std::uint32_t id, std::uint64_t seed) {
    Pages bytes(kChunkBytes);
    fill_random(bytes.span(), seed);
    store.describe(description_of(id));
    const auto offset = store.place_write(ChunkId{id}, id * kPlaceBytes, kChunkBytes);
    for (const auto& piece : store.pieces(offset, kChunkBytes)) {
      ASSERT_EQ(static_cast<ssize_t>(piece.bytes),
                ::pwrite(store.descriptors()[static_cast<std::size_t>(piece.file)], bytes.data() + piece.at, piece.bytes,
                         static_cast<off_t>(piece.offset)));
    }
    store.end_write(ChunkId{id}, offset, checksum_of(bytes.span()));
  }
  static void expect_read(ChunkStore& store, std::uint32_t id, std::uint64_t seed) {
    Pages expected(kChunkBytes), bytes(kChunkBytes);
    fill_random(expected.span(), seed);
    const auto offset = store.place_read(ChunkId{id}, id * kPlaceBytes);
    for (const auto& piece : store.pieces(offset, kChunkBytes)) {
      ASSERT_EQ(static_cast<ssize_t>(piece.bytes),
                ::pread(store.descriptors()[static_cast<std::size_t>(piece.file)], bytes.data() + piece.at, piece.bytes,
                        static_cast<off_t>(piece.offset)));
    }
    store.verify_read(ChunkId{id}, offset, bytes.span());
    EXPECT_EQ(0, std::memcmp(expected.data(), bytes.data(), kChunkBytes)) << "chunk " << id << ", seed " << seed;
  }
  // A new store whose only commit has chunk 0, written with seed 1.
  static void commit_one(const ChunkStore::Options& o, const std::string& payload = "") {
    const auto store = ChunkStore::create(o);
    write(*store, 0, 1);
    store->commit(1, payload);
  }
  // `seeds`: those that the committed chunks 0, 1, … were written with.
  static void expect_committed(const ChunkStore& store, const std::vector<std::uint64_t>& seeds) {
    const auto all = store.committed();
    ASSERT_EQ(seeds.size(), all.size());
    for (std::size_t i = 0; i < seeds.size(); ++i) {
      std::vector<std::byte> expected(kChunkBytes), bytes(kChunkBytes);
      fill_random(expected, seeds[i]);
      store.read_committed(all[i], bytes);
      EXPECT_EQ(expected, bytes) << "chunk " << i;
    }
  }
  static std::optional<ErrorKind> kind_of_open(const ChunkStore::Options& o, std::string& what) {
    try {
      ChunkStore::open(o);
    } catch (const Error& error) {
      what = error.what();
      return error.kind();
    }
    return std::nullopt;  // no error
  }
  // The file system may add a few blocks for its extent tree.
  static void expect_allocated(const ChunkStore& store, std::uint64_t bytes) {
    constexpr std::uint64_t kTreeBytes = 32 * kKiB;
    EXPECT_GE(store.allocated_bytes(), bytes);
    EXPECT_LE(store.allocated_bytes(), bytes + kTreeBytes);
  }
  [[nodiscard]] std::filesystem::path file(const std::string& name) const {
    return directory_.path() / "nvme0" / "store" / name;
  }
  [[nodiscard]] std::filesystem::path copy_of(const std::string& name) const { return file(name + ".copy"); }
  static void flip_byte(const std::filesystem::path& path, std::uint64_t at) {
    std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(stream.get() ^ 0x10);
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(byte);
    ASSERT_TRUE(stream.good()) << path << " at " << at;
  }

  TemporaryDirectory directory_;
};

}  // namespace terrace::test
