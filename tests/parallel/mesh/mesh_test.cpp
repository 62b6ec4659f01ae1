// Meshes, the groups of their ranks, and which degrees a model allows.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>

#include <terrace/core/base/error.h>
#include <terrace/parallel/mesh/degrees.h>
#include <terrace/parallel/mesh/groups.h>
#include <terrace/parallel/mesh/mesh.h>
#include <terrace/tests/support/one_in.h>

#include <terrace/tests/parallel/comm/rank_group.h>

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<Mesh> meshes() {
  std::vector<Mesh> all{{}, {.pp = 2, .copy = 2, .shard = 3, .part = 2, .twin = 2}};
  std::mt19937 random(7);
  const auto degree = [&] { return static_cast<std::uint32_t>(1 + random() % 3); };
  for (int i = 0; i < (test::long_form() ? 12 : 2); ++i) {
    auto& mesh = all.emplace_back();
    for (auto* const of : {&mesh.pp, &mesh.copy, &mesh.shard, &mesh.context, &mesh.part, &mesh.twin}) *of = degree();
  }
  return all;
}

std::vector<AxisSet> axis_sets() {
  std::vector<AxisSet> all;
  for (std::uint16_t bits = 0; bits <= kAllRanks.bits(); ++bits) all.push_back(AxisSet::of_bits(bits));
  return all;
}

// A rank follows from its number along some axes and its number along the others.
TEST(Mesh, NumbersAndRanksAreInverse) {
  for (const auto& mesh : meshes())
    for (const auto axes : axis_sets()) {
      SCOPED_TRACE(to_string(mesh) + ", " + to_string(axes));
      std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
      for (std::uint32_t r = 0; r < mesh.size(); ++r) {
        const auto index = mesh.index(r, axes), group = mesh.index(r, kAllRanks - axes);
        EXPECT_EQ(r, mesh.at(mesh.at(r, axes, 0), axes, index));
        EXPECT_LT(index, mesh.size(axes));
        seen.emplace(group, index);
      }
      EXPECT_EQ(mesh.size(), seen.size());
      EXPECT_EQ(mesh.size(), mesh.size(axes) * mesh.size(kAllRanks - axes));
    }
}

TEST(Mesh, MembersDifferOnTheirAxesOnly) {
  const Mesh mesh{.pp = 2, .shard = 3, .part = 4};
  EXPECT_EQ("pp 2 × shard 3 × part 4", to_string(mesh));
  EXPECT_EQ("one rank", to_string(Mesh{}));
  EXPECT_THAT(mesh.members(17, kTensorAxes), ElementsAre(16, 17, 18, 19)) << "the last axes: neighbours";
  EXPECT_THAT(mesh.members(17, kDataAxes), ElementsAre(13, 17, 21));
  EXPECT_THAT(mesh.members(17, Axis::pp), ElementsAre(5, 17));
  EXPECT_THAT(mesh.members(17, Axis::pp | Axis::shard), ElementsAre(1, 5, 9, 13, 17, 21));
  for (const auto& any : meshes())
    for (const auto axes : axis_sets()) {
      const auto stride = any.stride(axes);
      for (std::uint32_t r = 0; r < any.size(); ++r) {
        const auto members = any.members(r, axes);
        EXPECT_TRUE(std::ranges::is_sorted(members));
        EXPECT_EQ(r, members[any.index(r, axes)]);
        if (members.size() > 1) {
          EXPECT_EQ(stride, members[1] - members[0]);
        }
        for (const auto member : members)
          for (const auto axis : kAllAxes)
            EXPECT_TRUE(axes.has(axis) || any.coordinate(r, axis) == any.coordinate(member, axis));
      }
    }
}

// The parts of a shard that the replicas fold are ordered by turn.
TEST(Mesh, TurnsCountPlacesInAReplicaFirst) {
  const Mesh mesh{.pp = 2, .copy = 3, .shard = 2};
  std::vector<std::uint32_t> turns;
  for (const auto member : mesh.members(0, kDataAxes)) turns.push_back(mesh.turn(member));
  EXPECT_THAT(turns, ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST(Mesh, RefusesWhatDoesNotExist) {
  EXPECT_THROW(demand_mesh(Mesh{.shard = 0}), Error);
  EXPECT_THROW(demand_mesh(Mesh{.shard = 1U << 20, .part = 1U << 20}), Error);
  EXPECT_NO_THROW(demand_mesh(Mesh{.pp = 64, .shard = 128, .part = 8}));
  const Mesh mesh{.shard = 2};
  EXPECT_THROW((void)mesh.coordinate(2, Axis::shard), Error);
  EXPECT_THROW((void)mesh.at(0, Axis::shard, 2), Error);
  EXPECT_THROW((void)mesh.at(0, Axis::pp, 1), Error);
}

// All-gathers the numbers of `ranks`: the members in their order.
std::vector<std::uint32_t> gathered(Communicator& ranks, Stream& stream, std::uint32_t me) {
  std::vector<std::uint32_t> all(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(stream, std::as_bytes(std::span(&me, 1)), std::as_writable_bytes(std::span(all)));
  stream.synchronize();
  return all;
}

// Each rank names other members than its neighbours do, and every group exists for the ranks that named it.
TEST(Groups, HaveTheMembersThatProgramsName) {
  for (const auto& mesh : {Mesh{.pp = 2, .copy = 2, .shard = 2}, Mesh{.pp = 2, .shard = 2, .context = 2},
                           Mesh{.pp = 2, .shard = 2, .part = 2, .twin = 2}, Mesh{.copy = 3, .shard = 2}, Mesh{.shard = 3}}) {
    SCOPED_TRACE(to_string(mesh));
    const auto outcome =
        test::on_threads(static_cast<int>(mesh.size()), {.time_limit = std::chrono::seconds(60)}, [&](test::Rank& rank) {
          const auto stream = rank.device.make_stream("comm");
          const auto me = static_cast<std::uint32_t>(rank.comm->rank());
          std::set<mesh::Members> needed;
          // All members of a set name it.
          for (const auto axes : axis_sets())
            if (axes == kTensorAxes || (mesh.index(me, kAllRanks - axes) + axes.bits()) % 3 != 0) needed.insert({axes});
          needed.insert({kDataAxes, true});
          needed.insert(mesh::kTensorRanks);
          if (mesh.coordinate(me, Axis::pp) == 0) needed.insert(mesh::kContextRanks);
          Agreement agreement(*rank.comm, rank.device);
          const mesh::Groups groups(rank.comm.get(), &agreement, mesh, me, needed);
          for (const auto& members : needed) {
            auto expected = mesh.members(me, members.axes);
            if (members.in_turn) std::ranges::sort(expected, {}, [&](auto r) { return mesh.turn(r); });
            EXPECT_EQ(expected, gathered(groups.of(members), *stream, me)) << to_string(members);
          }
          if (mesh.size(kTensorAxes) > 1) {
            EXPECT_NE(&groups.of(mesh::kTensorRanks), &groups.of({kTensorAxes})) << "lanes share a communicator";
          }
        });
    EXPECT_THAT(outcome, testing::Each(""));
  }
}

// The group of a stage's two ranks has the data ranks of the first direction first; a stage without layers has no group.
TEST(Groups, JoinTheDirectionsOfAStage) {
  const Mesh mesh{.pp = 4, .copy = 2, .shard = 2};
  const auto outcome = test::on_threads(16, {.time_limit = std::chrono::seconds(60)}, [&](test::Rank& rank) {
    const auto stream = rank.device.make_stream("comm");
    const auto me = static_cast<std::uint32_t>(rank.comm->rank()), stage_rank = mesh.coordinate(me, Axis::pp);
    std::set<mesh::Members> needed;
    for (const auto& both : {std::array{0U, 3U}, {3U, 0U}, {2U, 1U}})
      if (std::ranges::find(both, stage_rank) != both.end()) needed.insert({kDataAxes, true, both});
    Agreement agreement(*rank.comm, rank.device);
    const mesh::Groups groups(rank.comm.get(), &agreement, mesh, me, needed);
    for (const auto& members : needed) {
      std::vector<std::uint32_t> expected;
      for (const auto of : *members.directions)
        for (const std::uint32_t turn : {0U, 2U, 1U, 3U}) expected.push_back(of * 4 + turn);
      EXPECT_EQ(expected, gathered(groups.of(members), *stream, me)) << to_string(members);
    }
    EXPECT_THROW((void)groups.of({kDataAxes, true, std::array{1U, 2U}}), std::logic_error) << "another order";
    EXPECT_THROW((void)groups.of({Axis::pp}), std::logic_error) << "no program named it";
  });
  EXPECT_THAT(outcome, testing::Each(""));
}

TEST(Groups, OneRankIsAloneWithoutACommunicator) {
  const mesh::Groups groups(nullptr, nullptr, {}, 0, {});
  EXPECT_EQ(1, groups.of({kAllRanks}).size());
  EXPECT_EQ(1, groups.of({kDataAxes, true}).size());
}

// Costs use the distance between neighbours; with two directions, each data rank has a neighbour in the other direction.
TEST(Groups, SpanTheRanksTheyName) {
  const Mesh mesh{.pp = 4, .copy = 2, .shard = 3, .part = 2};
  const auto span = [&](const mesh::Members& members) {
    const auto [ranks, stride] = mesh::span_of(members, mesh);
    return std::pair(ranks, stride);
  };
  EXPECT_EQ(std::pair(48U, 1U), span({kAllRanks}));
  EXPECT_EQ(std::pair(6U, 2U), span({kDataAxes}));
  EXPECT_EQ(std::pair(2U, 6U), span({Axis::copy}));
  EXPECT_EQ(std::pair(4U, 12U), span({Axis::pp}));
  EXPECT_EQ(std::pair(8U, 1U), span({kModelAxes}));
  EXPECT_EQ(std::pair(12U, 2U), span({kDataAxes, true, std::array{0U, 3U}}));
  const auto [ranks, stride] = mesh::span_of({kDataAxes, true, std::array{0U, 3U}}, Mesh{.pp = 4});
  EXPECT_EQ(2U, ranks);
  EXPECT_EQ(3U, stride);
}

const ModelShape kModel{.layers = 30, .heads = 12, .ffn = 96, .seq_len = 64, .experts = 8};

auto refuses(const std::string& setting, const std::string& why, const std::string& nearest) {
  return testing::AllOf(testing::Field(&SettingRefusal::setting, setting), testing::Field(&SettingRefusal::why, HasSubstr(why)),
                        testing::Field(&SettingRefusal::nearest, HasSubstr(nearest)));
}

TEST(Degrees, LegalOnesHaveNoProblems) {
  EXPECT_THAT(problems({.dp = 2, .pp = 4, .tp = 3, .cp = 2, .ep = 4}, kModel, 192), IsEmpty());
  EXPECT_THAT(problems({.dp = 8, .shard_group = 4, .micro_batches = 24, .canonical_reduction = true}, kModel, 8), IsEmpty());
  EXPECT_NO_THROW(demand_degrees({}, kModel, 1));
}

TEST(Degrees, ExpertRanksDivideTheExperts) {
  const auto of = [](Degrees degrees, std::int64_t experts) {
    auto model = kModel;
    model.experts = experts;
    return problems(degrees, model, degrees.dp * degrees.ep);
  };
  EXPECT_THAT(of({.dp = 2, .ep = 8}, 8), IsEmpty());
  EXPECT_THAT(of({.ep = 3}, 8),
              testing::ElementsAre(refuses("ep", "`ep` 3: it must divide 8 experts", "nearest legal: 2 and 4")));
  EXPECT_THAT(of({.ep = 2}, 0), testing::ElementsAre(refuses("ep", "`ep` 2: the model has no experts", "nearest legal: 1")));
  EXPECT_THAT(of({.ep = 2, .with = {Feature::two_directions}}, 8),
              testing::ElementsAre(refuses("schedule", "two directions", "1f1b")));
}

TEST(Degrees, AllProblemsAtOnceWithTheNearestLegalDegrees) {
  const Degrees wrong{
      .dp = 5, .pp = 31, .tp = 5, .cp = 3, .ep = 3, .shard_group = 2, .micro_batches = 24, .canonical_reduction = true};
  const auto found = problems(wrong, kModel, 64);
  ASSERT_EQ(9U, found.size());
  EXPECT_THAT(found[0], refuses("canonical-reduction", "`cp` 3 does not work with `canonical-reduction`", "leave out"));
  EXPECT_THAT(found[1], refuses("canonical-reduction", "`ep` 3 does not work with `canonical-reduction`", "leave out"));
  EXPECT_THAT(found[2], refuses("tp", "`tp` 5: it must divide 12 heads", "nearest legal: 4 and 6"));
  EXPECT_THAT(found[3], refuses("cp", "`cp` 3", "nearest legal: 1"));
  EXPECT_THAT(found[4], refuses("pp", "`pp` 31", "nearest legal: 30"));
  EXPECT_THAT(found[5], refuses("ep", "`ep` 3: it must divide 8 experts", "nearest legal: 1"));
  EXPECT_THAT(found[6], refuses("shard-group", "`shard-group` 2", "nearest legal: 1 and 5"));
  EXPECT_THAT(found[7], refuses("dp", "`dp` 5: `canonical-reduction` needs a `dp` that divides the 24 global micro-batches",
                                "nearest legal: 4 and 6"));
  EXPECT_THAT(found[8], refuses("dp", "and 64 started", ""));
  EXPECT_THROW(demand_degrees(wrong, kModel, 64), Error);
}

// The nearest legal degree must also work with the other settings; it is not enough that it divides.
TEST(Degrees, WhatDoesNotGoTogetherIsToldWithTheNearestThatDoes) {
  const auto found = problems({.tp = 5, .cp = 2, .canonical_reduction = true, .with = {Feature::whole_matrices}}, kModel, 10);
  EXPECT_THAT(found, ElementsAre(refuses("optimizer", "`tp` 5 does not work with an optimizer that needs whole matrices",
                                         "give `optimizer` adamw, or leave out `tp`"),
                                 refuses("canonical-reduction", "`cp` 2 does not work with", "or leave out `cp`"),
                                 refuses("tp", "`tp` 5: it must divide 12 heads", "nearest legal: 1")));
  EXPECT_THAT(
      problems({.dp = 4, .pp = 3, .micro_batches = 4, .canonical_reduction = true, .with = {Feature::fp16, Feature::skips}},
               kModel, 12),
      IsEmpty());
  EXPECT_EQ(4U,
            problems({.tp = 2, .with = {Feature::fp16, Feature::skips, Feature::local_sgd, Feature::two_directions}}, kModel, 2)
                .size());
}

TEST(Degrees, KeyValueHeadsAreSharedEvenly) {
  const ModelShape grouped{.layers = 4, .heads = 12, .ffn = 96, .seq_len = 64, .kv_heads = 4};
  EXPECT_THAT(problems({.tp = 12}, grouped, 12), IsEmpty());
  EXPECT_THAT(problems({.tp = 3}, grouped, 3), ElementsAre(refuses("tp", "4 key-value heads", "nearest legal: 2 and 4")));
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

TEST(Degrees, AGridOfTensorRanksHasASide) {
  const ModelShape model{.layers = 30, .heads = 12, .ffn = 96, .seq_len = 64, .kv_heads = 6, .hidden = 48};
  const auto two = TensorMode::square, more = TensorMode::squares, three = TensorMode::cube;
  EXPECT_THAT(problems({.tp = 4, .tensor_mode = two}, model, 4), IsEmpty());
  EXPECT_THAT(problems({.tp = 8, .tensor_mode = more, .tensor_depth = 2}, model, 8), IsEmpty());
  EXPECT_THAT(problems({.tp = 8, .tensor_mode = three}, model, 8), IsEmpty());
  // Ranks in a grid have a side's share of the heads: 6 of 12, enough for six ranks of each place in a ring of two.
  EXPECT_THAT(
      problems({.tp = 4, .cp = 12, .tensor_mode = two, .ring = 2}, {.heads = 12, .ffn = 96, .seq_len = 48, .hidden = 48}, 48),
      IsEmpty());
  EXPECT_THAT(
      problems({.tp = 4, .cp = 16, .tensor_mode = two, .ring = 2}, {.heads = 12, .ffn = 96, .seq_len = 48, .hidden = 48}, 64),
      ElementsAre(refuses("cp", "at most a rank for a head", "12")));
  EXPECT_THAT(problems({.tp = 6, .tensor_mode = two}, model, 6),
              ElementsAre(refuses("tp", "square", "nearest legal: 4 and 9")));
  EXPECT_THAT(problems({.tp = 16, .tensor_mode = two}, model, 16),
              ElementsAre(refuses("tp", "6 key-value heads", "nearest legal: 9 and 36")));
  EXPECT_THAT(problems({.tp = 9, .tensor_mode = more, .tensor_depth = 2}, model, 9),
              ElementsAre(refuses("tp", "`tp-depth` 2 × a square", "nearest legal: 8 and 18")));
  EXPECT_THAT(problems({.tp = 27, .tensor_mode = three}, model, 27),
              ElementsAre(refuses("tp", "cube", "nearest legal: 8")));  // 9 does not divide 48
  EXPECT_THAT(problems({.tp = 3, .tensor_depth = 2}, model, 3), ElementsAre(refuses("tp-depth", "only `tp-mode` 2.5d", "")));
  EXPECT_THAT(problems({.tp = 4, .cp = 2, .tensor_mode = two}, model, 8), IsEmpty());
  EXPECT_EQ(3U, demand_grid(more, 18, 2).side);
  try {
    demand_grid(three, 9, 1);
    ADD_FAILURE();
  } catch (const RefusedSetting& e) {
    EXPECT_THAT(e.refusal(), refuses("tp", "`tp` 9: in 3D it must be a cube", "nearest legal: 8 and 27"));
  }
}

}  // namespace
}  // namespace terrace
