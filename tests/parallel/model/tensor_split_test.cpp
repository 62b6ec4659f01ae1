// Tests which elements of a parameter a tensor rank holds, and what the checker demands of a program that is split over ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/parallel/comm/call.h>
#include <terrace/parallel/model/tensor_split.h>
#include <terrace/parallel/passes/checker.h>
#include <terrace/parallel/plan/programs.h>

namespace terrace {
namespace {

// For each place of a part: the element of the whole, or −1, found element by element as the definition says.
std::vector<std::int64_t> elements_of(const Shape& whole, const model::TensorSplit& split, std::uint32_t block) {
  std::int64_t inner = 1, outer = 1;
  for (std::size_t d = 0; d < whole.rank(); ++d) (d < split.dim ? outer : inner) *= d == split.dim ? 1 : whole[d];
  std::vector<std::int64_t> all;
  for (std::int64_t o = 0; o < outer; ++o) {
    std::int64_t begin = 0;
    for (const auto part : split.parts) {
      const auto ways = std::int64_t{split.ways}, longest = (part + ways - 1) / ways;
      const auto longer = part % ways == 0 ? ways : part % ways;  // blocks of the longest length
      const auto first = block < longer ? block * longest : longer * longest + (block - longer) * (longest - 1);
      const auto count = block < longer ? longest : longest - 1;
      for (std::int64_t i = 0; i < longest; ++i)
        for (std::int64_t c = 0; c < inner; ++c)
          all.push_back(i < count ? (o * whole[split.dim] + begin + first + i) * inner + c : -1);
      begin += part;
    }
  }
  return all;
}

TEST(TensorSplit, RunsAreTheElementsOfThePart) {
  struct Case {
    Shape whole;
    model::TensorSplit split;
  };
  for (const auto& [whole, split] : {Case{{17, 3}, {0, {17}, 4}},
                                     {{6, 24}, {1, {8, 8, 8}, 4}},
                                     {{12, 5}, {0, {8, 2, 2}, 2}},
                                     {{7}, {0, {7}, 3}},
                                     {{4, 127}, {1, {127}, 8}},
                                     {{2, 9, 3}, {1, {5, 4}, 2}}}) {
    const auto part = model::part_shape(whole, split);
    EXPECT_EQ(whole, model::whole_shape(part, split));
    std::vector<int> held(static_cast<std::size_t>(whole.elements()));
    const std::uint32_t twins = 2;
    for (std::uint32_t rank = 0; rank < split.ways * twins; ++rank) {
      const TensorParallel tensor{.ranks = split.ways * twins, .rank = rank};
      EXPECT_EQ(twins, model::holders(split, tensor));
      EXPECT_EQ(rank % twins == 0, model::acts_for(split, tensor));
      const auto expected = elements_of(whole, split, rank / twins);
      ASSERT_EQ(part.elements(), static_cast<std::int64_t>(expected.size()));
      for (std::size_t first = 0; first < expected.size(); ++first)
        for (const std::size_t count : {std::size_t{1}, std::size_t{5}, expected.size() - first}) {
          if (first + count > expected.size()) continue;
          std::vector<std::int64_t> found(count, -1);
          model::each_run(part, split, tensor, first, count, [&](const model::SplitRun& run) {
            for (std::uint64_t i = 0; i < run.count; ++i)
              found.at(run.in_part - first + i) = static_cast<std::int64_t>(run.in_whole + i);
          });
          ASSERT_TRUE(std::equal(found.begin(), found.end(), expected.begin() + static_cast<std::ptrdiff_t>(first)))
              << to_string(whole) << ", rank " << rank << ", from " << first;
        }
      if (model::acts_for(split, tensor))
        for (const auto e : expected)
          if (e >= 0) {
            ++held[static_cast<std::size_t>(e)];
            EXPECT_EQ(rank, model::rank_of(static_cast<std::uint64_t>(e), part, split, tensor.ranks));
          }
    }
    EXPECT_TRUE(std::ranges::all_of(held, [](int times) { return times == 1; })) << to_string(whole);
  }
}

// For a matrix that is cut in both dimensions: the place in the whole of a row or column of a block, by definition.
std::int64_t whole_place(std::int64_t place, const std::vector<std::int64_t>& parts, std::int64_t block, std::int64_t ways) {
  std::int64_t begin = 0;
  for (const auto part : parts) {
    if (place < part / ways) return begin + block * (part / ways) + place;
    place -= part / ways;
    begin += part;
  }
  return -1;
}

TEST(TensorSplit, BlocksOfAGridAreTheMatrixOncePerHolder) {
  struct Case {
    Shape whole;
    model::TensorSplit split;
    std::uint32_t ranks;
  };
  using Across = model::TensorSplit::Across;
  for (const auto& [whole, split, ranks] : {Case{{12, 6}, {0, {12}, 2, 1, Across{2, 2}}, 4},
                                            {{12, 6}, {0, {8, 2, 2}, 2, 1, Across{2, 2}}, 8},     // two grids
                                            {{4, 18}, {1, {6, 6, 6}, 2, 2, Across{2, 1}}, 4},     // results are columns
                                            {{8, 12}, {0, {4, 4}, 2, 2, Across{2, 1, 2, 4}}, 8},  // 3D
                                            {{18, 9}, {0, {9, 9}, 3, 1, Across{3, 3, 1, 1}}, 9}}) {
    const auto part = model::part_shape(whole, split);
    EXPECT_EQ(whole, model::whole_shape(part, split));
    std::vector<int> held(static_cast<std::size_t>(whole.elements())), acted(held);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const TensorParallel tensor{.ranks = ranks, .rank = rank};
      const std::int64_t block = rank / split.stride % split.ways,
                         across = rank / split.across.stride % split.across.ways * split.across.within +
                                  rank / split.across.within_stride % split.across.within;
      std::vector<std::int64_t> expected;
      for (std::int64_t r = 0; r < part[0]; ++r)
        for (std::int64_t c = 0; c < part[1]; ++c) {
          const auto cut = whole_place(split.dim == 0 ? r : c, split.parts, block, split.ways),
                     other = across * part[1 - split.dim] + (split.dim == 0 ? c : r);
          expected.push_back(split.dim == 0 ? cut * whole[1] + other : other * whole[1] + cut);
        }
      for (std::size_t first = 0; first < expected.size(); ++first)
        for (const std::size_t count : {std::size_t{1}, std::size_t{7}, expected.size() - first}) {
          if (first + count > expected.size()) continue;
          std::vector<std::int64_t> found(count, -1);
          model::each_run(part, split, tensor, first, count, [&](const model::SplitRun& run) {
            for (std::uint64_t i = 0; i < run.count; ++i)
              found.at(run.in_part - first + i) = static_cast<std::int64_t>(run.in_whole + i);
          });
          ASSERT_TRUE(std::equal(found.begin(), found.end(), expected.begin() + static_cast<std::ptrdiff_t>(first)))
              << to_string(whole) << ", rank " << rank << ", from " << first << ", " << count;
        }
      for (const auto e : expected) {
        ++held[static_cast<std::size_t>(e)];
        if (!model::acts_for(split, tensor)) continue;
        ++acted[static_cast<std::size_t>(e)];
        EXPECT_EQ(rank, model::rank_of(static_cast<std::uint64_t>(e), part, split, ranks));
      }
    }
    const auto holders_of_each = static_cast<int>(model::holders(split, {.ranks = ranks}));
    EXPECT_TRUE(std::ranges::all_of(held, [&](int times) { return times == holders_of_each; })) << to_string(whole);
    EXPECT_TRUE(std::ranges::all_of(acted, [](int times) { return times == 1; })) << to_string(whole);
  }
}

TEST(TensorSplit, AParameterThatIsNotSplitIsOneRun) {
  int runs = 0;
  model::each_run({5, 7}, {}, {.ranks = 4, .rank = 3}, 11, 20, [&](const model::SplitRun& run) {
    ++runs;
    EXPECT_EQ(11U, run.in_part);
    EXPECT_EQ(11U, run.in_whole);
    EXPECT_EQ(20U, run.count);
  });
  EXPECT_EQ(1, runs);
}

struct SplitStep {
  explicit SplitStep(bool sequence)
      : model(lm::make_model({.family = lm::family_named("gpt2"),
                              .layers = 1,
                              .hidden = 32,
                              .heads = 4,
                              .seq_len = 16,
                              .vocab = 257,
                              .place = {.mesh = {.part = 2}, .rank = 1, .sequence = sequence}})),
        map(model, planning::map_options(model, request, {}, Tier::host)),
        programs(planning::write_programs(map, request, 0)) {}
  PlanRequest request{.shape = {{2, 16}, 2}, .update = Tier::host, .updates_before_use = false, .mesh = {.part = 2}, .rank = 1};
  Model model;
  StepMap map;
  planning::Programs programs;
};

TEST(TensorProgram, IsItselfAsText) {
  for (const bool sequence : {false, true}) {
    const SplitStep step(sequence);
    EXPECT_EQ(step.programs.steady, parse_program(to_text(step.programs.steady)));
    EXPECT_EQ(step.programs.evaluate, parse_program(to_text(step.programs.evaluate)));
  }
}

TEST(TensorProgram, LacksNoExchangeUnnoticed) {
  for (const bool sequence : {false, true}) {
    const SplitStep step(sequence);
    const auto& whole = step.programs.steady;
    EXPECT_NO_THROW(passes::check_step(whole, step.map, passes::Updates::in_backward));
    std::size_t exchanges = 0;
    for (std::size_t i = 0; i < whole.actions.size(); ++i) {
      const auto& a = whole.actions[i];
      if (a.op != Op::unify && !(has_phases(a.op) && step.map.phases().exchanges(a))) continue;
      ++exchanges;
      auto without = whole, twice = whole;
      without.actions.erase(without.actions.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_THROW(passes::check_step(without, step.map, passes::Updates::in_backward), Error) << "without " << to_text(a);
      twice.actions.insert(twice.actions.begin() + static_cast<std::ptrdiff_t>(i), whole.actions[i]);
      EXPECT_THROW(passes::check_step(twice, step.map, passes::Updates::in_backward), Error) << "twice " << to_text(a);
    }
    EXPECT_GT(exchanges, 10U);
  }
}

TEST(TensorProgram, AModelThatIsNotSplitHasNone) {
  const SplitStep split(false);
  auto config =
      lm::ModelConfig{.family = lm::family_named("gpt2"), .layers = 1, .hidden = 32, .heads = 4, .seq_len = 16, .vocab = 257};
  const auto model = lm::make_model(config);
  auto request = split.request;
  request.mesh = {};
  request.rank = 0;
  const StepMap map(model, planning::map_options(model, request, {}, Tier::host));
  EXPECT_THROW(passes::check_step(split.programs.steady, map, passes::Updates::in_backward), Error);
}

}  // namespace
}  // namespace terrace
