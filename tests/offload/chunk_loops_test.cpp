// A manager moves by the order of a marked loop what the pure policy moves (tests/memory/learned_order_test.cpp); chunks come
// and go, and have labels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <terrace/offload/manager/chunk_manager.h>

namespace terrace {
namespace {

using testing::HasSubstr;

std::uint64_t moves_of_ten_sweeps(bool marked) {
  ChunkManager manager({.device_bytes = 6 * kPageBytes, .host_bytes = 8 * kPageBytes, .threads = 1, .ahead_requests = 0});
  std::vector<ChunkId> chunks;
  for (int i = 0; i < 8; ++i) {
    chunks.push_back(manager.add(kPageBytes));
    (void)manager.acquire(chunks.back(), Tier::host, Access::overwrite);
  }
  for (int pass = 0; pass < 10; ++pass) {
    if (marked) manager.begin_pass();
    for (const auto chunk : chunks) (void)manager.acquire(chunk, Tier::device, Access::update);
    if (marked) manager.end_pass();
  }
  return manager.traffic().uploads + manager.traffic().downloads;
}

TEST(ChunkLoops, MoveWhatThePolicyMoves) {
  EXPECT_EQ(moves_of_ten_sweeps(true), 54U);
  EXPECT_EQ(moves_of_ten_sweeps(false), 154U);
}

TEST(ChunkLoops, AreMarkedInPairs) {
  ChunkManager manager({.device_bytes = kPageBytes, .host_bytes = kPageBytes, .threads = 1});
  EXPECT_THROW(manager.end_pass(), std::logic_error);
  manager.begin_pass();
  manager.begin_pass("other");  // the first one is forgotten
  manager.end_pass();
  EXPECT_THROW(manager.end_pass(), std::logic_error);
}

TEST(Chunks, AreRemovedAndResizedAndErrorsHaveTheirLabels) {
  ChunkManager manager({.device_bytes = 4 * kPageBytes, .host_bytes = 4 * kPageBytes, .threads = 1});
  const auto said = [](const auto& what) -> std::string {
    try {
      what();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "nothing";
  };
  const ChunkId chunk = manager.add(2 * kPageBytes, "layers.3.weight");
  {
    const Lease lease = manager.acquire(chunk, Tier::device, Access::overwrite);
    EXPECT_EQ(said([&] { manager.remove(chunk); }), "ChunkManager: chunk 0 (layers.3.weight) is removed while leased");
    EXPECT_THAT(said([&] { manager.resize(chunk, kPageBytes); }), HasSubstr("(layers.3.weight) is dropped while leased"));
  }
  manager.resize(chunk, 3 * kPageBytes - 1);
  EXPECT_THAT(said([&] { (void)manager.acquire(chunk, Tier::device, Access::read); }), HasSubstr("no content"));
  EXPECT_EQ(manager.acquire(chunk, Tier::device, Access::overwrite).bytes().size(), 3 * kPageBytes);
  manager.resize(chunk, 5 * kPageBytes);
  EXPECT_THAT(said([&] { (void)manager.acquire(chunk, Tier::device, Access::overwrite); }),
              HasSubstr("a lease of chunk 0 (layers.3.weight)"));
  manager.remove(chunk);
  for (const auto& use : {said([&] { manager.prefetch(chunk, Tier::host); }), said([&] { manager.remove(chunk); }),
                          said([&] { (void)manager.acquire(chunk, Tier::host, Access::overwrite); })})
    EXPECT_EQ(use, "ChunkManager: there is no chunk 0");
  const ChunkId other = manager.add(kPageBytes, "other"), again = manager.add(4 * kPageBytes + 1);
  EXPECT_EQ(index(other), 1U);
  EXPECT_EQ(index(again), 0U) << "the id is given again for the same number of pages";
  EXPECT_EQ(manager.acquire(other, Tier::host, Access::overwrite).bytes().size(), kPageBytes);
}

}  // namespace
}  // namespace terrace
