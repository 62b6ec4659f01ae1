// The choice of tiles: the fewest with which the largest phase fits into the device budget.
#include <gtest/gtest.h>

#include <algorithm>

#include <terrace/core/base/error.h>
#include <terrace/parallel/layers/chain.h>
#include <terrace/parallel/map/program_bytes.h>
#include <terrace/parallel/plan/choose_tiles.h>
#include <terrace/parallel/plan/programs.h>

namespace terrace {
namespace {

layers::Transformer with_vocabulary() {
  return {.layers = 1, .hidden = 64, .heads = 2, .kv_heads = 2, .ffn = 128, .seq_len = 64, .vocab = 4096};
}

PlanRequest request_with(std::uint64_t device_bytes) {
  return {.shape = {{2, 64}, 1}, .budget = {.device = device_bytes}, .update = Tier::host};
}

// The most bytes that one action of the run uses on the device.
std::uint64_t largest_bytes(const layers::Transformer& transformer, const Tiling& tiling) {
  const auto request = request_with(kUnlimited);
  const auto model = layers::make_transformer(in_tiles(transformer, tiling));
  const StepMap map(model, planning::map_options(model, request, {}, Tier::host));
  const auto programs = planning::write_programs(map, request, 1);
  std::uint64_t most = 0;
  for (const auto* const program : programs.all()) most = std::max(most, mapping::largest_use(map, *program, Tier::device));
  return most;
}

TEST(ChooseTiles, TakesTheFewestWithWhichTheLargestPhaseFits) {
  const auto transformer = with_vocabulary();
  const MachineProfile profile;
  for (const std::uint64_t budget : {8 * kMiB, 3 * kMiB, 1536 * kKiB, 768 * kKiB}) {
    Tiling fewest;
    while (static_cast<double>(largest_bytes(transformer, fewest)) > 0.95 * static_cast<double>(budget) && fewest.vocab < 256)
      fewest.vocab *= 2;
    EXPECT_EQ(fewest, choose_tiles(transformer, {.vocab = 0}, {request_with(budget), profile})) << budget;
  }
}

TEST(ChooseTiles, KeepsWhatIsGivenAndWhatFits) {
  const auto transformer = with_vocabulary();
  const MachineProfile profile;
  const Tiling given{.vocab = 2, .mlp = 2};
  EXPECT_EQ(given, choose_tiles(transformer, given, {request_with(64 * kKiB), profile}));
  EXPECT_EQ(Tiling(), choose_tiles(transformer, {0, 0, 0, 0}, {request_with(kGiB), profile}));
  EXPECT_EQ(Tiling(), choose_tiles_if_needed(transformer, {}, {request_with(kGiB), profile}));
  EXPECT_LT(1U, choose_tiles_if_needed(transformer, {}, {request_with(1536 * kKiB), profile}).vocab);
}

// A resumed run begins with its tiles, although fewer would fit.
TEST(ChooseTiles, ContinuesWithTheTilesOfTheRun) {
  const auto transformer = with_vocabulary();
  const MachineProfile profile;
  const Tiling resumed{.vocab = 4};
  EXPECT_EQ(resumed, choose_tiles(transformer, {.vocab = 0}, {request_with(kGiB), profile, &resumed}));
  EXPECT_LT(4U, choose_tiles(transformer, {.vocab = 0}, {request_with(384 * kKiB), profile, &resumed}).vocab);
}

// All layers are looked at, whichever rank of a pipeline asks.
TEST(ChooseTiles, IsTheSameOnEveryRankOfAPipeline) {
  auto transformer = with_vocabulary();
  const MachineProfile profile;
  const auto alone = choose_tiles(transformer, {.vocab = 0}, {request_with(768 * kKiB), profile});
  auto request = request_with(768 * kKiB);
  request.mesh = transformer.place.mesh = {.pp = 2};
  EXPECT_EQ(alone, choose_tiles(transformer, {.vocab = 0}, {request, profile}));
}

TEST(ChooseTiles, RanksTakeTheMostTilesAndTheFewestRows) {
  Tiling tiling{.vocab = 2, .head_rows = 2048};
  agree_on_tiles(tiling, [](std::uint64_t mine) { return mine; });
  EXPECT_EQ((Tiling{.vocab = 2, .head_rows = 2048}), tiling);
  std::uint64_t asked = 0;
  agree_on_tiles(tiling, [&](std::uint64_t mine) { return ++asked == 1 ? 4 : std::max<std::uint64_t>(mine, (1 << 20) - 512); });
  EXPECT_EQ(4U, tiling.vocab);
  EXPECT_EQ(512, tiling.head_rows);
}

}  // namespace
}  // namespace terrace
