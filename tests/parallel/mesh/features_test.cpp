#include <gmock/gmock.h>

#include <set>

#include <terrace/parallel/mesh/features.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

using testing::HasSubstr;

TEST(Exclusions, StandOnceEachWithAReason) {
  std::set<std::set<Feature>> pairs;
  for (const auto& [one, other, because] : exclusions()) {
    EXPECT_NE(one, other);
    EXPECT_FALSE(because.empty()) << words_of(one).words << ", " << words_of(other).words;
    EXPECT_TRUE(pairs.insert({one, other}).second) << words_of(one).words << ", " << words_of(other).words;
  }
}

// Each two features are refused together if and only if the table has a row for them.
TEST(Exclusions, AreAllThatIsRefused) {
  constexpr auto kCount = static_cast<std::size_t>(Feature::last);
  std::size_t refused = 0;
  for (std::size_t i = 0; i < kCount; ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const auto one = static_cast<Feature>(i), other = static_cast<Feature>(j);
      Features both;
      both.add(one, 2);
      both.add(other, 2);
      const auto found = refusals(both);
      ASSERT_LE(found.size(), 1U);
      EXPECT_EQ(is_excluded(one, both), !found.empty());
      EXPECT_EQ(is_excluded(other, both), !found.empty());
      refused += found.size();
    }
  EXPECT_EQ(exclusions().size(), refused);
}

TEST(Exclusions, SaySettingReasonAndWhatWouldBeAccepted) {
  Features features{Feature::fp16, Feature::sharded_gradients};
  features.add(Feature::tensor_ranks, 4);
  const auto found = refusals(features);
  ASSERT_EQ(1U, found.size());
  EXPECT_EQ("dtype", found[0].setting);
  EXPECT_EQ("`tp` 4 does not work with fp16 activations, because ranks do not add numbers of that dtype", found[0].why);
  EXPECT_EQ("give `dtype` bf16 or fp32, or leave out `tp`", found[0].nearest);
  EXPECT_THAT(test::thrown_by([&] {
                demand_none(refusals({Feature::fp16, Feature::context_ranks, Feature::tensor_ranks, Feature::canonical}));
              }).what(),
              AllOf(HasSubstr("fp16 activations"), HasSubstr("`canonical-reduction`")))
      << "all at once";
}

TEST(Exclusions, FeaturesOfAPlaceAreThoseOfItsAxes) {
  const auto of = features_of(ModelRank{.mesh = {.shard = 8, .expert = 2, .context = 3, .row = 2, .col = 2}, .sequence = true});
  EXPECT_EQ(4, of.value(Feature::tensor_ranks));
  EXPECT_EQ(3, of.value(Feature::context_ranks));
  EXPECT_EQ(2, of.value(Feature::expert_ranks));
  EXPECT_TRUE(of.has(Feature::tensor_grid));
  for (const auto feature : {Feature::row_pieces, Feature::pipeline}) EXPECT_FALSE(of.has(feature));
  EXPECT_TRUE(refusals(features_of(ModelRank{.mesh = {.shard = 8}})).empty());
}

}  // namespace
}  // namespace terrace
