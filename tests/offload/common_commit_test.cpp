// The stores of a run's ranks, if one rank has one commit more than another.
#include <gmock/gmock.h>

#include <terrace/offload/store/common_commit.h>

#include <terrace/tests/offload/chunk_store_run.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

class CommonCommitTest : public test::ChunkStoreTest {
 protected:
  ChunkStore::Options rank(const std::string& name) const {
    auto o = options();
    o.name = name;
    return o;
  }
  // Writes chunk 0 again for every commit, with the step as seed.
  ChunkStore::Options committed_at(const std::string& name, std::initializer_list<std::uint64_t> steps) const {
    const auto store = ChunkStore::create(rank(name));
    for (const auto step : steps) {
      write(*store, 0, step);
      store->commit(step, "");
    }
    return rank(name);
  }
};

TEST_F(CommonCommitTest, IsTheLastThatAllHave) {
  const ChunkStore::Options ranks[] = {committed_at("one", {2, 4}), committed_at("another", {2})};
  const auto common = store::open_at_common_commit(ranks);
  EXPECT_EQ(2U, common.step);
  EXPECT_EQ(4U, common.newest_step);
  for (const auto& store : common.stores) expect_committed(*store, {2});
}

TEST_F(CommonCommitTest, StaysWhatItIsForWhoReadsOnly) {
  const auto o = committed_at("one", {2, 4});
  expect_committed(*store::open_at_commit(o, 2), {2});
  expect_committed(*store::open_at_commit(o, 4), {4});
}

// A store keeps two commits: a rank that is further behind has only a commit that the others have removed.
TEST_F(CommonCommitTest, IsMissedWhereARankHasNone) {
  const ChunkStore::Options ranks[] = {committed_at("one", {2, 4}), committed_at("another", {3})};
  EXPECT_THAT(test::error_of(ErrorKind::corrupt, [&] { store::open_at_common_commit(ranks); }),
              testing::AllOf(testing::HasSubstr("nvme0/one has no commit of step 3"),
                             testing::HasSubstr("go back to an exported checkpoint")));
}

}  // namespace
}  // namespace terrace
