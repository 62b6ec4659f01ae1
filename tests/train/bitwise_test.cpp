// Offloading changes no result: language models trained by `terrace train` give the same losses, gradient norms and weights,
// bit by bit, wherever their bytes are and in whatever order the work is done; and the bytes moved are those planned.
#include <map>

#include <gtest/gtest.h>

#include <terrace/tests/train/planned_bytes.h>
#include <terrace/tests/train/planned_moves.h>
#include <terrace/tests/train/settings.h>

namespace terrace::test {
namespace {

class BitwiseTraining : public TrainTest {
 protected:
  const Trained& reference(const TinyModel& model) {
    auto& trained = references_[model.name()];
    if (trained.steps.empty()) trained = train_fresh(config_of(model, corpus()));
    return trained;
  }
  [[nodiscard]] std::filesystem::path disk() const { return folder_ / "disk"; }

  std::map<std::string, Trained> references_;
};

// Checks that a place offloads what its name says.
void expect_offloads(Place place, const cli::RunConfig& config, const Plan& p, const std::string& what) {
  const auto model = lm::make_model(cli::model_config(config));
  const PlannedMoves moves(model, p);
  const bool host = place != Place::in_device, disk = host && place != Place::in_host;
  EXPECT_EQ(moves.of(ChunkKind::parameter, Lane::upload) > 0, host) << what;
  EXPECT_EQ(moves.of(ChunkKind::first_moment, Lane::read) > 0, disk) << what;
  if (place == Place::on_disk) {
    EXPECT_GT(moves.of(ChunkKind::parameter, Lane::read), 0U) << what;
    EXPECT_GT(moves.of(ChunkKind::gradient, Lane::read), 0U) << what;
  }
}

TEST_F(BitwiseTraining, EveryCoveringSettingGivesTheSameBitsAndMovesWhatWasPlanned) {
  const auto settings = covering_settings(long_form() ? 3 : 2);
  ASSERT_GE(settings.size(), 12U);
  OneIn chosen(3);
  for (const auto& setting : settings) {
    if (!chosen()) continue;
    const auto config = config_of(setting, corpus(), disk());
    const auto p = plan_of(config);
    ASSERT_TRUE(p.fits) << setting.name() << ": " << p.refusal.why;
    expect_offloads(setting.place, config, p, setting.name());
    const auto run = train_fresh(config);
    expect_same_bits(reference(setting.model), run, setting.name());
    expect_planned(p, run, setting.name());
  }
  if (long_form()) fmt::print("{} settings of {} models\n", settings.size(), references_.size());
}

// With all micro-batches in flight at once, the activations kept for the backward do not fit and are offloaded, too.
TEST_F(BitwiseTraining, OffloadedActivationsComeBackAsTheyWere) {
  for (const auto& model : {kModels[0], kModels[1]}) {
    auto config = config_of({model, Place::on_disk, "1", 2, "vertical", "none", "keep", false}, corpus(), disk());
    const auto p = plan_of(config);
    ASSERT_TRUE(p.fits) << p.refusal.why;
    const auto layers = lm::make_model(cli::model_config(config));
    const PlannedMoves moves(layers, p);
    for (const auto lane : {Lane::upload, Lane::download, Lane::read, Lane::write})
      EXPECT_GT(moves.of(ChunkKind::activation, lane), 0U) << model.name() << ", " << terrace::name_of(lane);
    expect_same_bits(reference(model), train_fresh(config), model.name());
  }
}

// A run that never commits uses only as much of the disk as its tier needs, and nothing if it has no disk tier.
TEST_F(BitwiseTraining, WithoutCommitsOnlyTheTierIsOnTheDisk) {
  const auto& model = kModels[1];
  for (const auto place : {Place::in_host, Place::moments_below, Place::on_disk}) {
    auto config = config_of({model, place, "1", 2, "vertical", "none", "keep", false}, corpus(), disk());
    const auto committing = plan_of(config);
    config.run.durability = cli::Durability::none;
    const auto p = plan_of(config);
    ASSERT_TRUE(p.fits) << p.refusal.why;
    EXPECT_EQ(p.commits, 0U);
    EXPECT_LT(p.capacity.disk, committing.capacity.disk * 2 / 3) << name_of(place);  // committing keeps two generations
    EXPECT_EQ(p.capacity.disk == 0, place == Place::in_host);
    expect_same_bits(reference(model), train_fresh(config), name_of(place));
  }
}

}  // namespace
}  // namespace terrace::test
