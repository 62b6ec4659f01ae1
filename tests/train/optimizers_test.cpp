// Every optimizer and every recipe trains through the engine as AdamW in fp32 does: offloading and resuming change no bit, and
// the bytes moved are those planned.
#include <cmath>
#include <functional>
#include <map>
#include <sstream>

#include <gmock/gmock.h>

#include <terrace/tests/support/thrown_error.h>
#include <terrace/tests/train/planned_bytes.h>
#include <terrace/tests/train/planned_moves.h>
#include <terrace/tests/train/settings.h>

namespace terrace::test {
namespace {

struct Kept {
  std::string optimizer = "adamw", recipe = "fp32", dtype = "bf16";
  [[nodiscard]] std::string name() const { return fmt::format("{} with recipe {} in {}", optimizer, recipe, dtype); }
};

// Every optimizer with the plainest recipe and with the recipe of most formats; every recipe with AdamW.
std::vector<Kept> all_kept() {
  std::vector<Kept> all;
  for (const auto& o : optimizers()) {
    all.push_back({.optimizer = std::string(o.name), .dtype = "fp32"});
    all.push_back({.optimizer = std::string(o.name), .recipe = "split24-8bit"});
  }
  for (const auto& r : rules::recipes()) all.push_back({.recipe = std::string(r.name)});
  for (const auto* recipe : {"bf16", "8bit"}) all.push_back({.recipe = recipe, .dtype = "fp32"});
  for (const auto* recipe : {"fp32", "8bit"}) all.push_back({.recipe = recipe, .dtype = "fp16"});
  all.push_back({.optimizer = "lamb", .dtype = "fp16"});
  return all;
}

class OptimizersTrain : public TrainTest {
 protected:
  [[nodiscard]] cli::RunConfig config(const Kept& kept, std::int64_t steps) const {
    auto c = config_of(TinyModel{"llama", kept.dtype.c_str(), false}, corpus());
    c.train.optimizer = kept.optimizer;
    c.train.recipe = kept.recipe;
    // Lion's step size is the rate itself; LAMB's and Adafactor's are proportional to weights that begin near 0.02.
    static const std::map<std::string, double> rates{{"lion", 3e-4}, {"sgd", 0.1}, {"lamb", 0.05}, {"adafactor", 0.05}};
    const auto rate = rates.find(kept.optimizer);
    c.train.lr = rate == rates.end() ? 3e-3 : rate->second;
    c.train.min_lr = c.train.lr;
    c.train.lr_schedule = ScheduleKind::constant;  // the rate does not depend on the run's last step
    c.train.warmup = 1;
    c.train.steps = steps;
    return c;
  }
};

TEST_F(OptimizersTrain, OffloadedAndResumedTheyGiveTheSameBitsAndMoveWhatWasPlanned) {
  constexpr std::int64_t kSteps = 6;
  OneIn chosen(2);
  std::size_t n = 0;
  for (const auto& kept : all_kept()) {
    if (!chosen()) continue;
    SCOPED_TRACE(kept.name());
    const auto resident = train_fresh(config(kept, kSteps));
    EXPECT_LT(resident.steps.back().loss, resident.steps.front().loss);

    const auto place = n % 2 == 0 ? Place::on_disk : Place::thin_host;
    auto offloaded = config(kept, kSteps);
    offloaded.run.threads = 2;
    cli::apply_set(offloaded, fmt::format("prefetch-depth={}", kDepths[n % kDepths.size()]));
    put(offloaded, place, folder_ / "disk");
    const auto p = plan_of(offloaded);
    ASSERT_TRUE(p.fits) << p.refusal.why;
    const auto model = lm::make_model(cli::model_config(offloaded));
    const PlannedMoves moves(model, p);
    EXPECT_GT(moves.of(ChunkKind::parameter, Lane::upload), 0U);
    for (const auto kind : p.map.recipe.states) EXPECT_GT(moves.of(kind, Lane::read), 0U) << name_of(kind);
    const auto run = train_fresh(offloaded);
    expect_same_bits(resident, run, kept.name());
    expect_planned(p, run, kept.name());

    auto first = offloaded, second = config(kept, kSteps);  // begins on the disk and ends in memory
    first.train.steps = 3;
    put(second, Place::in_host, folder_ / "disk");
    second.memory.nvme_path = first.memory.nvme_path;
    first.run.out_dir = second.run.out_dir = folder_ / fmt::format("stopped-{}", ++n);
    second.run.resume = cli::parse_resume("auto");
    run_train(first);
    expect_same_bits(resident, run_train(second), kept.name() + ", resumed");
  }
}

TEST_F(OptimizersTrain, ASplitMasterIsTheWholeMaster) {
  std::vector<std::string> saved;
  std::vector<Trained> runs;
  for (const auto* recipe : {"fp32", "split"}) {
    auto c = config({.recipe = recipe}, 20);
    c.run.save = folder_ / fmt::format("{}.safetensors", recipe);
    runs.push_back(train_fresh(c));
    saved.push_back((std::ostringstream() << std::ifstream(c.run.save, std::ios::binary).rdbuf()).str());
  }
  expect_same_bits(runs[0], runs[1], "split");
  EXPECT_GT(saved[0].size(), 1000U);
  EXPECT_EQ(saved[0], saved[1]) << "exported in fp32";

  // In the other direction: a split run that starts from exported weights has all their bits.
  std::vector<Trained> again;
  for (const auto* recipe : {"fp32", "split"}) {
    auto c = config({.recipe = recipe}, 2);
    c.run.init_from = folder_ / "fp32.safetensors";
    again.push_back(train_fresh(c));
  }
  expect_same_bits(again[0], again[1], "split, from a file");
}

// With another seed, weights are equal only by chance.
TEST_F(OptimizersTrain, StochasticRoundingFollowsTheSeed) {
  auto c = config({.recipe = "stochastic"}, 4);
  const auto one = train_fresh(c), again = train_fresh(c);
  EXPECT_EQ(one.hash, again.hash);
  c.train.seed += 1;
  EXPECT_NE(one.hash, train_fresh(c).hash);
}

TEST_F(OptimizersTrain, AnotherOptimizerOrRecipeDoesNotResumeTheRun) {
  auto c = config({}, 2);
  c.run.out_dir = folder_ / "run";
  run_train(c);
  c.run.resume = cli::parse_resume("auto");
  c.train.steps = 3;
  for (const Kept& other : {Kept{.optimizer = "adam"}, Kept{.recipe = "8bit"}}) {
    auto changed = c;
    changed.train.optimizer = other.optimizer;
    changed.train.recipe = other.recipe;
    EXPECT_THROW(run_train(changed), Error) << other.name();
    changed.run.force = true;  // ignores the fingerprint; the stored states are still not those of an 8-bit run
    if (other.recipe == "8bit") {
      EXPECT_THROW(run_train(changed), Error) << other.name();
    }
  }
}

// A learning rate that makes the weights overflow: from the second step on nothing is finite, and no further update is applied.
TEST_F(OptimizersTrain, StepsThatAreNotFiniteAreSkippedAndCounted) {
  auto c = config({.dtype = "fp32"}, 3);
  c.train.lr = c.train.min_lr = 1e30;
  c.run.out_dir = folder_ / "stops";
  EXPECT_THROW(run_train(c), Error);
  c.train.on_non_finite = NonFinite::skip;
  for (const double clip : {0.0, 1.0}) {
    c.train.grad_clip = clip;
    c.train.steps = 3;
    c.run.resume = {};
    c.run.out_dir = folder_ / fmt::format("skips-{}", clip);
    const auto three = run_train(c);
    EXPECT_FALSE(three.steps.at(0).skipped);
    EXPECT_TRUE(three.steps.at(1).skipped && three.steps.at(2).skipped);
    EXPECT_EQ(read_json(c.run.out_dir / "result.json").at("skipped_steps"), 2);
    c.train.steps = 5;
    c.run.resume = cli::parse_resume("auto");
    const auto five = run_train(c);
    EXPECT_EQ(read_json(c.run.out_dir / "result.json").at("skipped_steps"), 4);
    EXPECT_EQ(five.hash, three.hash);
  }
}

// A scale is a power of two, so it changes no bit: with clipping, and without it, where updates run inside the backward.
TEST_F(OptimizersTrain, AFixedLossScaleChangesNoBit) {
  for (const double clip : {0.0, 0.7})
    for (const auto* dtype : {"fp32", "bf16"}) {
      auto c = config({.dtype = dtype}, 5);
      c.train.grad_clip = clip;
      const auto plain = train_fresh(c);
      c.train.loss_scale = "1024";
      expect_same_bits(plain, train_fresh(c), fmt::format("{}, clip {}", dtype, clip));
      c.train.loss_scale = "dynamic";
      expect_same_bits(plain, train_fresh(c), fmt::format("{}, clip {}, dynamic", dtype, clip));
    }
}

// Reads one fp32 tensor of a safetensors file, lets `use` change it, and writes it back.
std::vector<float> with_tensor(
    const std::filesystem::path& file, const std::string& tensor,
    const std::function<void(std::vector<float>&)>& use = [](auto&) {}) {
  std::fstream f(file, std::ios::binary | std::ios::in | std::ios::out);
  std::uint64_t header_bytes = 0;
  f.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
  std::string header(header_bytes, ' ');
  f.read(header.data(), static_cast<std::streamsize>(header_bytes));
  const auto at = nlohmann::json::parse(header).at(tensor);
  EXPECT_EQ(at.at("dtype"), "F32");
  const std::uint64_t first = at.at("data_offsets").at(0), end = at.at("data_offsets").at(1);
  const auto place = static_cast<std::streamoff>(sizeof header_bytes + header_bytes + first);
  std::vector<float> numbers((end - first) / sizeof(float));
  const auto bytes = static_cast<std::streamsize>(end - first);
  f.seekg(place).read(reinterpret_cast<char*>(numbers.data()), bytes);
  use(numbers);
  f.seekp(place).write(reinterpret_cast<const char*>(numbers.data()), bytes);
  return numbers;
}
void multiply(const std::filesystem::path& file, const std::string& tensor, float by) {
  with_tensor(file, tensor, [by](std::vector<float>& numbers) {
    for (auto& v : numbers) v *= by;
  });
}

// The output head is so large that gradients times 65,536 overflow: the scale decreases step by step, then training continues.
// A run that is stopped in between and moved to the disk continues with its scale.
struct Overflowing {
  const char *dtype, *scale;
  float head;  // the first weights of the head are multiplied by it
};
class LossScaleTrain : public OptimizersTrain, public testing::WithParamInterface<Overflowing> {};

TEST_P(LossScaleTrain, BacksOffSkipsAndIsResumed) {
  auto c = config({.dtype = GetParam().dtype}, 1);
  c.model.tied = false;
  c.run.save = folder_ / "first.safetensors";
  (void)train_fresh(c);
  multiply(c.run.save, "lm_head.weight", GetParam().head);
  c.run.init_from = c.run.save;
  c.run.save.clear();
  c.train.steps = 12;
  c.train.loss_scale = GetParam().scale;
  c.run.out_dir = folder_ / "whole";
  const auto whole = run_train(c);
  const auto result = read_json(c.run.out_dir / "result.json");
  const std::uint64_t skipped = result.at("skipped_steps");
  EXPECT_GT(skipped, 1U);
  EXPECT_LT(skipped, 12U) << "no step was ever applied";
  EXPECT_EQ(result.at("loss_scale"), std::ldexp(65536.0, -static_cast<int>(skipped)));
  EXPECT_TRUE(whole.steps.front().skipped);
  EXPECT_FALSE(whole.steps.back().skipped);

  auto stopped = c;
  stopped.run.out_dir = folder_ / "stopped";
  stopped.train.steps = static_cast<std::int64_t>(skipped) - 1;
  put(stopped, Place::on_disk, folder_ / "disk");
  run_train(stopped);
  EXPECT_EQ(read_json(stopped.run.out_dir / "result.json").at("skipped_steps"), skipped - 1);
  stopped.train.steps = c.train.steps;
  stopped.run.resume = cli::parse_resume("auto");
  const auto resumed = run_train(stopped);
  EXPECT_EQ(resumed.losses(), whole.losses());
  EXPECT_EQ(resumed.hash, whole.hash);
  EXPECT_EQ(read_json(stopped.run.out_dir / "result.json").at("loss_scale"), result.at("loss_scale"));

  // A fixed scale cannot decrease: the run ends with an error that says what to change.
  c.train.loss_scale = "65536";
  EXPECT_THAT(thrown_by([&] { (void)train_fresh(c); }).what(),
              testing::HasSubstr("give --loss-scale dynamic or a smaller one"));

  // Without a scale nothing overflows and no step is skipped.
  c.train.loss_scale = "off";
  for (const auto& step : train_fresh(c).steps) EXPECT_FALSE(step.skipped);
}
INSTANTIATE_TEST_SUITE_P(Dtypes, LossScaleTrain,
                         testing::Values(Overflowing{"fp32", "dynamic", 3e36F}, Overflowing{"fp16", "auto", 1e4F}),
                         [](const auto& test) { return std::string(test.param.dtype); });

// The output head is so small that gradients of activations are below fp16's smallest number and nothing is learned; times
// 65,536 they are above it.
TEST_F(OptimizersTrain, ALossScaleKeepsGradientsThatAreTooSmallForFp16) {
  auto c = config({.dtype = "fp16"}, 1);
  c.model.tied = false;
  c.train.rule.weight_decay = 0;
  c.train.lr_schedule = ScheduleKind::constant;
  c.run.save = folder_ / "first.safetensors";
  (void)train_fresh(c);
  multiply(c.run.save, "lm_head.weight", 1e-5F);
  c.run.init_from = c.run.save;
  c.run.save = folder_ / "last.safetensors";
  const std::string tensor = "model.layers.0.self_attn.q_proj.weight";
  const auto first = with_tensor(c.run.init_from, tensor);
  for (const auto* scale : {"off", "auto"}) {
    c.train.loss_scale = scale;
    const auto run = train_fresh(c);
    EXPECT_FALSE(run.steps.front().skipped);
    EXPECT_EQ(with_tensor(c.run.save, tensor) == first, std::string(scale) == "off") << scale;
  }
}

// Plain SGD at rate 1 moves weights by their clipped gradients: clipping by a group's norm scales all of its gradients equally.
TEST_F(OptimizersTrain, GroupsOfParametersAreClippedByTheirOwnNorms) {
  const std::vector<std::string> attention{"model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight"};
  const std::string other = "model.layers.0.mlp.down_proj.weight";
  auto base = config({.optimizer = "sgd", .dtype = "fp32"}, 1);
  base.train.rule.momentum = base.train.rule.weight_decay = 0;
  base.train.lr = base.train.min_lr = 1;
  base.train.grad_accumulation = 2;
  base.model.tied = false;
  const auto first = [&] {
    auto c = base;
    c.train.lr = c.train.min_lr = 1e-30;
    c.run.save = folder_ / "first";
    (void)train_fresh(c);
    return c.run.save;
  }();
  std::map<std::string, Trained> runs;
  const auto moved = [&](const std::string& groups, double clip) {
    auto c = base;
    c.train.param_groups = groups;
    c.train.grad_clip = clip;
    c.run.save = folder_ / "last";
    runs[groups] = train_fresh(c);
    std::map<std::string, std::vector<float>> all;
    for (const auto& name : {attention[0], attention[1], other}) {
      all[name] = with_tensor(c.run.save, name);
      const auto before = with_tensor(first, name);
      for (std::size_t i = 0; i < before.size(); ++i) all[name][i] -= before[i];
    }
    return all;
  };
  const auto norm = [](std::initializer_list<const std::vector<float>*> vectors) {
    double sum = 0;
    for (const auto* v : vectors)
      for (const double x : *v) sum += x * x;
    return std::sqrt(sum);
  };
  const auto plain = moved("", 0);
  const double whole = norm({&plain.at(attention[0]), &plain.at(attention[1])}), most = whole / 3;
  EXPECT_EQ(moved("q_proj:clip=1e9; mlp:rate=1", 0), plain) << "what is not clipped so already";
  const auto clipped = moved(fmt::format("q_proj:clip={}", most), 0);
  EXPECT_NEAR(norm({&clipped.at(attention[0]), &clipped.at(attention[1])}), most, 1e-3 * most);
  EXPECT_EQ(clipped.at(other), plain.at(other));
  for (const auto& name : attention)
    for (std::size_t i = 0; i < plain.at(name).size(); ++i)
      ASSERT_NEAR(clipped.at(name)[i], plain.at(name)[i] / 3, 1e-3 * whole) << name << ", element " << i;
  // Parameters outside all clipped groups are clipped by a norm of their own.
  const double all = runs.at("").steps.front().grad_norm, rest = std::sqrt(all * all - whole * whole);
  const auto both = moved("q_proj:clip=0", rest / 2);
  EXPECT_EQ(both.at(attention[0]), plain.at(attention[0]));
  EXPECT_NEAR(norm({&both.at(other)}), norm({&plain.at(other)}) / 2, 1e-3 * norm({&plain.at(other)}));
  EXPECT_EQ(runs.at("q_proj:clip=0").steps.front().grad_norm, all) << "reported is the norm of everything";
}

TEST_F(OptimizersTrain, GroupsOfParametersHaveTheirOwnRatesAndDecays) {
  const auto weights = [&](const std::string& groups, const std::string& file) {
    auto c = config({.dtype = "fp32"}, 3);
    c.train.param_groups = groups;
    c.run.save = folder_ / file;
    (void)train_fresh(c);
    return (std::ostringstream() << std::ifstream(c.run.save, std::ios::binary).rdbuf()).str();
  };
  const auto plain = weights("", "plain");
  EXPECT_EQ(weights("norm:rate=1,decay=0; .:rate=1", "same"), plain) << "what is so already";
  EXPECT_NE(weights("q_proj:rate=0.5", "slower"), plain);
  EXPECT_NE(weights("norm:decay=1", "decayed"), plain);
  // If several groups set a number, the last one counts.
  EXPECT_EQ(weights(".:rate=0.25; .:rate=1", "last"), plain);
  for (const auto* bad : {"no_such_tensor:rate=1", "norm", "norm:", ":rate=1", "norm:speed=2", "norm:rate=-1", "norm:rate=x",
                          "norm:rate=1,rate=2", "(:rate=1", "norm:clip=-1"}) {
    auto c = config({.dtype = "fp32"}, 1);
    c.train.param_groups = bad;
    EXPECT_THAT(refusal_of([&] { (void)train_fresh(c); }), testing::HasSubstr("`param-groups`")) << bad;
  }
}

// The loss on held-out text is at most 1 % above that with fp32 states. (It may be lower: in such a short run rounding is
// noise.)
TEST_F(OptimizersTrain, CompactRecipesCostAtMostOnePercent) {
  auto c = config({}, 60);
  c.model.hidden = 64;
  c.model.seq_len = 64;
  c.train.batch_size = 8;
  c.train.grad_accumulation = 1;
  // At three times this rate, losses fall so fast that a single rounding changes the last one by up to 8 %; here by 0.2 %.
  c.train.lr = c.train.min_lr = 1e-3;
  const double plain = train_fresh(c).eval_loss;
  EXPECT_LT(plain, 2.6) << "nothing was learned that could be lost";
  for (const auto& r : rules::recipes()) {
    c.train.recipe = r.name;
    EXPECT_LE(train_fresh(c).eval_loss, 1.01 * plain) << r.name;
  }
}

}  // namespace
}  // namespace terrace::test
