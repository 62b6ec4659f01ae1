// Meshes, what each rank of one holds, and which degrees a model allows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include <terrace/core/error.h>
#include <terrace/parallel/degrees.h>
#include <terrace/parallel/mesh.h>
#include <terrace/parallel/shard_spec.h>

#include "comm/rank_group.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Mesh, CoordinatesAndRanksAreInverse) {
  const Mesh mesh({{"pp", 2}, {"dp", 3}, {"tp", 4}});
  EXPECT_EQ(24, mesh.size());
  EXPECT_EQ("pp 2 × dp 3 × tp 4", to_string(mesh));
  std::set<std::vector<int>> seen;
  for (int r = 0; r < mesh.size(); ++r) {
    EXPECT_EQ(r, mesh.rank_of(mesh.coordinates(r)));
    seen.insert(mesh.coordinates(r));
  }
  EXPECT_EQ(24U, seen.size());
  EXPECT_THAT(mesh.coordinates(17), ElementsAre(1, 1, 1));
  EXPECT_EQ(1, mesh.coordinate(17, "dp"));
  EXPECT_EQ(4, mesh.degree("tp"));
}

TEST(Mesh, GroupsPartitionTheRanks) {
  const Mesh mesh({{"pp", 2}, {"dp", 3}, {"tp", 4}});
  EXPECT_THAT(mesh.group(17, "tp"), ElementsAre(16, 17, 18, 19));  // the last axis: neighbours
  EXPECT_THAT(mesh.group(17, "dp"), ElementsAre(13, 17, 21));
  EXPECT_THAT(mesh.group(17, "pp"), ElementsAre(5, 17));
  const std::vector<std::string> both = {"pp", "dp"};
  EXPECT_THAT(mesh.group(17, both), ElementsAre(1, 5, 9, 13, 17, 21));
  for (const std::string axis : {"pp", "dp", "tp"}) {
    std::multiset<int> members;
    for (int r = 0; r < mesh.size(); ++r) {
      const auto group = mesh.group(r, axis);
      EXPECT_TRUE(std::ranges::is_sorted(group));
      EXPECT_EQ(r, group[static_cast<std::size_t>(mesh.coordinate(r, axis))]) << "a group's order is the axis's";
      for (const int member : group) EXPECT_EQ(group, mesh.group(member, axis));
      members.insert(group.begin(), group.end());
    }
    for (int r = 0; r < mesh.size(); ++r) EXPECT_EQ(static_cast<std::size_t>(mesh.degree(axis)), members.count(r));
  }
}

TEST(Mesh, RefusesWhatDoesNotExist) {
  EXPECT_THROW(Mesh({{"dp", 0}}), Error);
  EXPECT_THROW(Mesh({{"dp", 2}, {"dp", 2}}), Error);
  EXPECT_THROW(Mesh({{"dp", 1 << 20}, {"tp", 1 << 20}}), Error);
  const auto mesh = Mesh::of(2);
  EXPECT_THROW((void)mesh.degree("xp"), Error);
  EXPECT_THROW((void)mesh.coordinates(2), Error);
  EXPECT_THROW((void)mesh.rank_of(std::vector<int>{0}), Error);
  EXPECT_EQ("one rank", to_string(Mesh::of(1)));
}

TEST(Mesh, SplitsIntoAxisCommunicators) {
  const Mesh mesh({{"dp", 2}, {"tp", 3}});
  const auto outcome = test::on_threads(6, {.time_limit = std::chrono::seconds(60)}, [&](test::Rank& rank) {
    const auto stream = rank.device.make_stream("comm");
    const int me = rank.comm->rank();
    for (const std::vector<std::string>& names : {std::vector<std::string>{"dp"}, {"tp"}, {"dp", "tp"}}) {
      const auto axis = mesh.split(*rank.comm, names);
      const auto group = mesh.group(me, names);
      ASSERT_EQ(static_cast<int>(group.size()), axis->size());
      EXPECT_EQ(me, group[static_cast<std::size_t>(axis->rank())]);
      std::vector<int> all(group.size());
      axis->all_gather(*stream, std::as_bytes(std::span(&me, 1)), std::as_writable_bytes(std::span(all)));
      stream->synchronize();
      EXPECT_EQ(group, all);
      EXPECT_EQ(names.size() == 2 ? "dp+tp" : names.front(), axis->name());
    }
    EXPECT_THROW((void)Mesh::of(4).split(*rank.comm, "dp"), Error) << "not so many ranks";
  });
  EXPECT_THAT(outcome, testing::Each(""));
}

// Every element is held by exactly as many ranks as the replicated and partial axes have.
TEST(ShardSpec, SlicesCoverATensor) {
  const Mesh mesh({{"dp", 2}, {"cp", 3}, {"tp", 2}});
  const Shape shape{12, 8};
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    ShardSpec spec;
    int copies = 1;
    for (const auto& axis : mesh.axes()) {
      const auto kind = random() % 4;
      if (kind == 0) spec.set(axis.name, Placement::shard(0));
      if (kind == 1 && axis.name != "cp") spec.set(axis.name, Placement::shard(1));
      if (kind == 2) spec.set(axis.name, Placement::partial());
      if (spec.on(axis.name).kind != Placement::Kind::shard) copies *= axis.degree;
    }
    ASSERT_THAT(problems(mesh, spec, shape), IsEmpty());
    std::vector<int> held(static_cast<std::size_t>(shape.elements()));
    const auto local = local_shape(mesh, spec, shape);
    for (int r = 0; r < mesh.size(); ++r) {
      const auto slices = slices_of(mesh, spec, shape, r);
      EXPECT_EQ(slices[0].length, local[0]);
      EXPECT_EQ(slices[1].length, local[1]);
      for (auto i = slices[0].begin; i < slices[0].begin + slices[0].length; ++i) {
        for (auto j = slices[1].begin; j < slices[1].begin + slices[1].length; ++j) ++held[static_cast<std::size_t>(i * 8 + j)];
      }
    }
    EXPECT_THAT(held, testing::Each(copies)) << to_string(spec);
  }
}

TEST(ShardSpec, OuterAxesCutFirst) {
  const Mesh mesh({{"dp", 2}, {"tp", 2}});
  const ShardSpec spec{{"dp", Placement::shard(0)}, {"tp", Placement::shard(0)}};
  EXPECT_EQ("dp: shard(0), tp: shard(0)", to_string(spec));
  EXPECT_EQ((std::vector<Slice>{{2, 2}}), slices_of(mesh, spec, {8}, 1));
  EXPECT_EQ((std::vector<Slice>{{4, 2}}), slices_of(mesh, spec, {8}, 2));
}

TEST(ShardSpec, AllProblemsAtOnce) {
  const Mesh mesh({{"dp", 2}, {"tp", 4}});
  const ShardSpec spec{{"dp", Placement::shard(3)}, {"tp", Placement::shard(1)}, {"xp", Placement::partial()}};
  const auto found = problems(mesh, spec, {8, 31123});
  ASSERT_EQ(3U, found.size());
  EXPECT_THAT(found, testing::Contains(HasSubstr("no dimension 3")));
  EXPECT_THAT(found, testing::Contains(HasSubstr("no axis xp")));
  EXPECT_THAT(found, testing::Contains(HasSubstr("nearest lengths that do are 31120 and 31124")));
  EXPECT_THROW((void)slices_of(mesh, spec, {8, 31123}, 0), Error);
}

const ModelShape kModel{.layers = 30, .heads = 12, .ffn = 96, .seq_len = 64, .experts = 8};

auto refuses(const std::string& setting, const std::string& why, const std::string& nearest) {
  return testing::AllOf(testing::Field(&SettingRefusal::setting, setting), testing::Field(&SettingRefusal::why, HasSubstr(why)),
                        testing::Field(&SettingRefusal::nearest, HasSubstr(nearest)));
}

TEST(Degrees, LegalOnesHaveNoProblems) {
  EXPECT_THAT(problems({.dp = 2, .pp = 4, .tp = 3, .cp = 2, .ep = 4}, kModel, 192), IsEmpty());
  EXPECT_THAT(problems({.dp = 8, .shard_group = 4, .micro_batches = 24, .canonical_reduction = true}, kModel, 8), IsEmpty());
  EXPECT_NO_THROW(check({}, kModel, 1));
}

TEST(Degrees, AllProblemsAtOnceWithTheNearestLegalDegrees) {
  const Degrees wrong{
      .dp = 5, .pp = 31, .tp = 5, .cp = 3, .ep = 3, .shard_group = 2, .micro_batches = 24, .canonical_reduction = true};
  const auto found = problems(wrong, kModel, 64);
  ASSERT_EQ(7U, found.size());
  EXPECT_THAT(found[0], refuses("tp", "`tp` 5: it must divide 12 heads", "nearest legal: 4 and 6"));
  EXPECT_THAT(found[1], refuses("cp", "`cp` 3", "nearest legal: 2 and 4"));
  EXPECT_THAT(found[2], refuses("pp", "`pp` 31", "nearest legal: 30"));
  EXPECT_THAT(found[3], refuses("ep", "`ep` 3", "nearest legal: 2 and 4"));
  EXPECT_THAT(found[4], refuses("shard-group", "`shard-group` 2", "nearest legal: 1 and 5"));
  EXPECT_THAT(found[5], refuses("dp", "`dp` 5: `canonical-reduction` needs a `dp` that divides the 24 global micro-batches",
                                "nearest legal: 4 and 6"));
  EXPECT_THAT(found[6], refuses("dp", "and 64 started", ""));
  EXPECT_THROW(check(wrong, kModel, 64), Error);
}

TEST(Degrees, NamesWhatWouldFit) {
  EXPECT_THAT(problems({.dp = 3, .tp = 2}, kModel, 8),
              ElementsAre(refuses("dp", "is 6 ranks, and 8 started", "`dp` 4 would fit")));
  EXPECT_THAT(problems({.dp = 1, .tp = 3}, kModel, 8), ElementsAre(refuses("dp", "", "start 6 or 9 ranks")));
  EXPECT_THAT(problems({.dp = 0}, kModel, 8), ElementsAre(refuses("dp", "`dp` 0", "")));
  EXPECT_THAT(problems({.dp = 2, .ep = 2}, {.layers = 2, .heads = 2, .ffn = 2, .seq_len = 8}, 4),
              ElementsAre(refuses("ep", "the model has no experts", "")));
  EXPECT_THAT(problems({.tp = 3, .sequence_parallel = true}, kModel, 3),
              ElementsAre(refuses("tp", "", "nearest legal: 2 and 4")));
}

}  // namespace
}  // namespace terrace
