#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/parallel/passes/checker.h>
#include <terrace/parallel/program/orders.h>
#include <terrace/tests/support/thrown_error.h>
#include <terrace/tests/support/toy_model.h>

namespace terrace {
namespace {

using passes::Updates;
// All layers alike, and with two layers deferred: in the first step, and in the others.
const std::vector<passes::UpdateTimes> kTimes{Updates::none,
                                              Updates::in_backward,
                                              Updates::before_use,
                                              {deferred_layers(5, 2), Updates::none, Updates::in_backward},
                                              {deferred_layers(5, 2), Updates::before_use, Updates::in_backward}};

class Checker : public testing::Test {
 protected:
  Model model = toy::make_model({});
  StepMap map{model, {.shape = {{2, 16}, 3}}};
  StepMap with_early{model, {.shape = {{2, 16}, 3}, .early = early_layers(5, 3)}};
  // The maps with which a program may have these updates.
  std::vector<const StepMap*> maps(const passes::UpdateTimes& updates) {
    if (updates.set.empty() && updates.others != Updates::in_backward) return {&map, &with_early};
    return {&map};
  }
  static Program step(const passes::UpdateTimes& updates, const StepMap& map) {
    return with(updates, passes::with_norms(orders::vertical(5, 3), map), map);
  }
  Program step(const passes::UpdateTimes& updates) { return step(updates, map); }
  // Gives each layer its update.
  static Program with(const passes::UpdateTimes& updates, const Program& order, const StepMap& map) {
    auto p = passes::with_updates(order, map, Updates::early, 0, map.options().early);
    p = passes::with_updates(p, map, updates.others, 0, updates.set.others());
    return passes::with_restores(passes::with_updates(p, map, updates.of_set, 0, updates.set), map);
  }
  static std::size_t find(const Program& p, const Action& a) {
    return static_cast<std::size_t>(std::ranges::find(p.actions, a) - p.actions.begin());
  }
  // The refusal's text; empty when the program is accepted.
  std::string refusal(const Program& p, const passes::UpdateTimes& updates) { return refusal(p, updates, map); }
  static std::string refusal(const Program& p, const passes::UpdateTimes& updates, const StepMap& map) {
    return test::error_of([&] { passes::check_step(p, map, updates); });
  }
};

TEST_F(Checker, AcceptsEveryOrderPassAndUpdateRule) {
  for (const auto& updates : kTimes)
    for (const auto& order : {orders::horizontal(5, 3), orders::vertical(5, 3), orders::group_vertical(5, 3, 2)})
      for (const bool recompute : {false, true}) {
        const StepMap each(model, {.shape = {{2, 16}, 3},
                                   .activations = choose_activations(model, {2, 16}, recompute ? kAllLayers : 0, kAllLayers)});
        auto p = with(updates, passes::with_norms(passes::with_recompute(order, each), each), each);
        p = passes::with_prefetches(passes::with_offloads(p, each), each, 2);
        EXPECT_EQ(refusal(p, updates), "") << to_text(p);
      }
}

TEST_F(Checker, RefusesEachMissingAction) {
  // Every action of a step is needed: without any one of them the program is refused.
  for (const auto& updates : kTimes)
    for (const auto* const its : maps(updates)) {
      const auto p = step(updates, *its);
      ASSERT_EQ(refusal(p, updates, *its), "");
      EXPECT_EQ(parse_program(to_text(p)), p);
      for (std::size_t i = 0; i < p.actions.size(); ++i) {
        auto broken = p;
        broken.actions.erase(broken.actions.begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_NE(refusal(broken, updates, *its), "") << "without " << to_text(p.actions[i]);
      }
    }
}

TEST_F(Checker, RefusesEachRepeatedAction) {
  for (const auto& updates : kTimes)
    for (const auto* const its : maps(updates)) {
      const auto p = step(updates, *its);
      for (std::size_t i = 0; i < p.actions.size(); ++i) {
        auto broken = p;
        broken.actions.insert(broken.actions.begin() + static_cast<std::ptrdiff_t>(i), p.actions[i]);
        EXPECT_NE(refusal(broken, updates, *its), "") << "twice " << to_text(p.actions[i]);
      }
    }
}

// The same for actions between data ranks: no gather, reduction or release may be missing or repeated.
TEST_F(Checker, RefusesEachMissingOrRepeatedActionBetweenRanks) {
  for (const std::uint32_t zero : {0U, 1U, 2U, 3U})
    for (const bool whole_layers : {false, true})
      for (const bool canonical : {false, true})
        for (const auto& updates : kTimes) {
          const auto optimizer = make_optimizer(whole_layers ? "lamb" : "adamw", {});
          const StepMap shared(model, {.recipe = rules::Recipe::of(DType::fp32, "fp32", optimizer->states()),
                                       .shape = {{2, 16}, 2},
                                       .mesh = {.shard = 2},
                                       .data = {.zero = zero, .canonical = canonical},
                                       .layer_unit = optimizer->layer_unit()});
          const auto order = passes::with_gathers(
              passes::with_norms(passes::with_reductions(orders::horizontal(5, 2), shared), shared), shared, 1);
          const auto p = with(updates, order, shared);
          const auto accepted = [&](const Program& program) {
            try {
              passes::check_step(program, shared, updates);
              return true;
            } catch (const Error&) {
              return false;
            }
          };
          const auto what =
              "ZeRO-" + std::to_string(zero) + (whole_layers ? ", whole layers" : "") + (canonical ? ", canonical: " : ": ");
          EXPECT_TRUE(accepted(p)) << what;
          EXPECT_EQ(parse_program(to_text(p)), p) << what;
          for (std::size_t i = 0; i < p.actions.size(); ++i) {
            auto broken = p;
            broken.actions.insert(broken.actions.begin() + static_cast<std::ptrdiff_t>(i), p.actions[i]);
            EXPECT_FALSE(accepted(broken)) << what << "twice " << to_text(p.actions[i]);
            broken = p;
            broken.actions.erase(broken.actions.begin() + static_cast<std::ptrdiff_t>(i));
            EXPECT_FALSE(accepted(broken)) << what << "without " << to_text(p.actions[i]);
          }
        }
}

TEST_F(Checker, RefusesGradientsFoldedOutOfOrder) {
  auto p = step(passes::Updates::none);
  std::swap(p.actions[find(p, {.op = Op::backward, .layer = 2, .micro_batch = 0})],
            p.actions[find(p, {.op = Op::backward, .layer = 2, .micro_batch = 1})]);
  EXPECT_NE(refusal(p, passes::Updates::none).find("micro-batch order"), std::string::npos);
}

TEST_F(Checker, RefusesABackwardBeforeItsForward) {
  auto p = step(passes::Updates::none);
  const auto f = find(p, {.op = Op::forward, .layer = 1, .micro_batch = 2});
  const auto b = find(p, {.op = Op::backward, .layer = 1, .micro_batch = 2});
  std::swap(p.actions[f], p.actions[b]);
  EXPECT_NE(refusal(p, passes::Updates::none), "");
}

TEST_F(Checker, NamesTheChunkThatIsAbsent) {
  auto p = step(passes::Updates::none);
  p.actions.erase(p.actions.begin());  // forward l0 m0
  EXPECT_NE(refusal(p, passes::Updates::none).find("input of blocks.0, micro-batch 0"), std::string::npos)
      << refusal(p, passes::Updates::none);
}

}  // namespace
}  // namespace terrace
