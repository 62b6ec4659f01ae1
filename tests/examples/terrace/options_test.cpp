// One table is the source of flags, TOML and the saved configuration; errors name what is wrong.
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/config/same_settings.h>
#include <terrace/examples/terrace/config/setting_flags.h>
#include <terrace/examples/terrace/plan/setup.h>

#include <set>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/examples/lm/models/rope_scaling.h>

#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::cli {
namespace {

using testing::HasSubstr;

// The text of the usage error that ends `call`; the test fails if there is none.
template <class F>
std::string usage_error(F call) {
  const auto error = test::thrown_by(call);
  EXPECT_EQ(error.kind(), ErrorKind::refused);
  return error.what();
}

TEST(Options, TableCoversEveryFieldOnce) {
  std::set<std::string_view> keys;
  for (const auto& o : options()) {
    EXPECT_TRUE(keys.insert(o.key).second) << o.key << " stands twice";
    EXPECT_FALSE(o.help.empty()) << o.key;
    EXPECT_EQ(find_option(o.key), &o);
    EXPECT_THAT(sections(), testing::Contains(o.section)) << o.key;
    for (const auto c : o.key) EXPECT_TRUE((c >= 'a' && c <= 'z') || c == '-' || (c >= '0' && c <= '9')) << o.key;
  }
  EXPECT_EQ(keys.size(), 128U);  // the number of RunConfig's fields: add the option with the field
}

// A default that its parser refused could not be read back.
TEST(Options, DefaultsSurviveSavingAndReading) {
  const RunConfig defaults;
  RunConfig read;
  read.model.layers = 99;
  apply_toml(read, to_toml(defaults), "saved");
  EXPECT_EQ(to_json(read), to_json(defaults));
}

TEST(Options, EveryFieldSurvivesSavingAndReading) {
  RunConfig c;
  c.model.family = lm::family_named("gpt2");
  c.model.layers = 3, c.model.hidden = 96, c.model.heads = 6, c.model.kv_heads = 6, c.model.ffn = 111, c.model.seq_len = 17,
  c.model.vocab = 50257, c.model.tied = false;
  c.model.rope_theta = 500000, c.model.rope_scaling = lm::parse_rope_scaling("linear:factor=2"), c.model.norm_eps = 1e-6,
  c.model.skips = layers::SkipShape::u;
  c.model.head_size = 24, c.model.rope_fraction = 0.5, c.model.rotated_blocks = layers::RotatedBlocks::parse("1,0"),
  c.model.window_rope_theta = 77;
  c.model.attention_bias = c.model.mlp_bias = true, c.model.activation = Activation::geglu_tanh;
  c.model.query_scalar = 144, c.model.attention_cap = 50, c.model.logit_cap = 0;
  c.model.experts.count = 6, c.model.experts.chosen = 3, c.model.experts.shared = 1, c.model.experts.capacity_factor = 1.25,
  c.model.experts.renormalise = false;
  c.model.experts.balance_loss = 0.01, c.model.experts.square_loss = 1e-3;
  c.train.freeze = "embed*,head", c.train.lora_rank = 4, c.train.lora_alpha = 2.5, c.train.lora_targets = "all",
  c.run.init_adapter = "adapter";
  c.model.head_rows = 256, c.model.window = layers::Windows::parse("5,5,0"), c.data.document_separator = 50256;
  c.data.files = {"a \"quoted\" file", "back\\slash", "tab\there", "ünï"};
  c.run.init_from = "x.safetensors", c.run.save = "y", c.model.dtype = DType::bf16, c.model.products = layers::Products::fp8,
  c.data.template_date = "2026-11-26";
  c.train.batch_size = 2, c.train.grad_accumulation = 4, c.train.steps = 7;
  c.train.lr = 0.1 + 0.2, c.train.min_lr = 1e-300, c.train.rule.beta1 = 1.0 / 3, c.train.rule.beta2 = 0,
  c.train.rule.eps = 5e-324, c.train.rule.weight_decay = 12345678.9, c.train.grad_clip = 0;
  c.train.optimizer = "lion", c.train.recipe = "split", c.train.rule.momentum = 0.25, c.train.rule.nesterov = true,
  c.train.on_non_finite = NonFinite::skip;
  c.train.lr_schedule = ScheduleKind::wsd, c.train.warmup = 0, c.plan.order = Order::vertical, c.plan.group = 2,
  c.plan.recompute = kAllLayers, c.plan.update = Tier::device;
  c.train.seed = 9'000'000'000'000'000'001ULL, c.run.threads = 3, c.train.eval_interval = 5, c.train.eval_batches = 6,
  c.train.eval_first = true;
  c.memory.device = "cuda:1", c.memory.device_memory = "1.5GiB", c.memory.host_memory = "unlimited",
  c.memory.nvme_limit = "auto", c.memory.nvme_path = {"/a", "/b"};
  c.plan.prefetch_depth = 4, c.run.out_dir = "some/where", c.run.resume = parse_resume("auto"), c.run.force = true,
  c.run.ckpt_interval = 8, c.run.ckpt_keep = 4, c.run.durability = Durability::step, c.run.io_deadline = 9,
  c.run.rank_deadline = 7, c.run.json = true;
  c.run.tensorboard = true, c.run.prometheus = "p.prom";
  c.run.verify_resident = true, c.plan.assumed_costs = true, c.plan.machine_profile = "m.json";
  RunConfig read;
  apply_toml(read, to_toml(c), "saved");
  EXPECT_EQ(to_json(read), to_json(c));
  EXPECT_EQ(read.train.rule.eps, c.train.rule.eps);
  EXPECT_EQ(read.train.lr, c.train.lr);
}

TEST(Options, TomlKeysMayBeFlatOrInSections) {
  RunConfig c;
  apply_toml(c,
             "steps = 5\nlr = 1\n[model]\nhidden = 64\ndata = ['x', 'y']\n[memory]\ndevice-memory = 4096\nprefetch-depth = 2\n",
             "run.toml");
  EXPECT_EQ(c.train.steps, 5);
  EXPECT_EQ(c.train.lr, 1.0);
  EXPECT_EQ(c.model.hidden, 64);
  EXPECT_EQ(c.data.files.size(), 2U);
  EXPECT_EQ(c.memory.device_memory, "4096");
  EXPECT_EQ(c.plan.prefetch_depth, 2U);
}

TEST(Options, TomlErrorsNameFileLineKeyAndWhatIsAccepted) {
  struct Case {
    const char* text;
    std::vector<const char*> parts;
  };
  const std::vector<Case> cases{
      {"hiden = 64", {"run.toml, line 1", "\"hiden\"", "did you mean hidden?"}},
      {"[train]\nbatch_size = 1", {"line 2", "did you mean batch-size?"}},
      {"[trian]\nsteps = 1", {"[trian]", "did you mean train?", "the sections are model, train, parallel, memory, run"}},
      {"[train]\nhidden = 64", {"does not belong to [train]", "model.hidden"}},
      {"[model.inner]\nx = 1", {"unknown key \"inner\""}},
      {"steps = 1\n[train]\nsteps = 2", {"line 3", "steps is given twice"}},
      {"steps = \"10\"", {"steps", "\"10\" is not accepted", "an integer of at least 1"}},
      {"steps = 1.5", {"1.5 is not accepted", "an integer"}},
      {"steps = true", {"true is not accepted"}},
      {"steps = 0", {"0 is not accepted", "at least 1"}},
      {"steps = 1979-05-27", {"not accepted"}},
      {"lr = \"x\"", {"lr", "a number greater than 0"}},
      {"lr = nan", {"lr", "not accepted"}},
      {"lr = inf", {"lr", "not accepted"}},
      {"untied = 1", {"untied", "true or false"}},
      {"model = 3", {"model", "one of gemma, gemma2"}},
      {"data = [1, 2]", {"data", "one or more paths"}},
      {"data = 'x'\nnvme-path = ['']", {"nvme-path", "not accepted"}},
      {"device-memory = 0", {"device-memory", "greater than zero"}},
      {"device-memory = -5", {"device-memory", "-5 is not accepted"}},
      {"update = 1.5", {"update", "1.5 is not accepted", "a share from 0 to 1"}},
      {"update = nan", {"update", "not accepted"}},
      {"steps = ", {"run.toml, line 1"}},
  };
  for (const auto& [text, parts] : cases) {
    RunConfig c;
    const auto message = usage_error([&, t = text] { apply_toml(c, t, "run.toml"); });
    for (const auto* const part : parts) EXPECT_THAT(message, HasSubstr(part)) << text;
  }
}

TEST(Options, SetOverridesByKeyOrBySectionAndKey) {
  RunConfig c;
  apply_set(c, "train.steps=9");
  apply_set(c, " hidden = 128 ");
  apply_set(c, "data=[\"a,b\", 'c']");
  apply_set(c, "run.json=true");
  apply_set(c, "save=a=b");
  apply_set(c, "update=0.25");
  EXPECT_EQ(c.plan.update, UpdatePlace(0.25));
  apply_toml(c, "update = 0.5", "run.toml");
  EXPECT_EQ(plan_request(c).update, UpdatePlace(0.5));
  EXPECT_EQ(c.train.steps, 9);
  EXPECT_EQ(c.model.hidden, 128);
  EXPECT_EQ(c.data.files.size(), 2U);
  EXPECT_TRUE(c.run.json);
  EXPECT_EQ(c.run.save, "a=b");
}

TEST(Options, SetErrorsNameKeyAndValue) {
  const std::vector<std::pair<const char*, const char*>> cases{{"steps", "a key, = and a value"},
                                                               {"=5", "a key, = and a value"},
                                                               {"train.stesp=5", "did you mean steps?"},
                                                               {"model.steps=5", "write train.steps"},
                                                               {"steps=", "\"\" is not accepted"},
                                                               {"steps=5x", "\"5x\" is not accepted"},
                                                               {"steps=-1", "at least 1"},
                                                               {"beta1=1", "less than 1"},
                                                               {"json=yes", "true or false"},
                                                               {"dtype=fp8", "one of fp32, bf16, fp16, fp64"},
                                                               {"data=[", "data"},
                                                               {"nvme-limit=5parsecs", "a size greater"},
                                                               {"device=gpu", "cpu or cuda:N"},
                                                               {"device=cuda:", "cpu or cuda:N"},
                                                               {"prefetch-depth=-1", "auto or an integer"},
                                                               {"seed=-1", "at least 0"},
                                                               {"vocab=1", "at least 2"},
                                                               {"order=verticle", "did you mean vertical?"},
                                                               {"update=devise", "did you mean device?"},
                                                               {"update=-0.1", "a share from 0 to 1"},
                                                               {"steps=99999999999999999999", "an integer"}};
  for (const auto& [text, part] : cases) {
    RunConfig c;
    const auto message = usage_error([&, t = text] { apply_set(c, t); });
    EXPECT_THAT(message, HasSubstr("--set")) << text;
    EXPECT_THAT(message, HasSubstr(part)) << text;
  }
}

TEST(Options, FilesThatCannotBeReadAreNamed) {
  const ScratchFolder scratch;
  RunConfig c;
  EXPECT_THAT(usage_error([&] { apply_file(c, scratch / "absent.toml"); }), HasSubstr("absent.toml: cannot be read"));
  EXPECT_THAT(usage_error([&] { apply_file(c, scratch.path()); }), HasSubstr("not a regular file but a directory"));
  EXPECT_THAT(usage_error([&] { apply_file(c, "/proc/self/mem"); }), HasSubstr("/proc/self/mem: cannot be read: Input/output"));
}

TEST(Options, WhatIsNoUtf8CouldNotBeReadBack) {
  RunConfig c;
  for (const auto* const text : {"out-dir=l\xE4ufe", "save=l\xE4ufe", "data=l\xE4ufe", "nvme-path=l\xE4ufe"})
    EXPECT_THAT(usage_error([&] { apply_set(c, text); }), HasSubstr("it is not UTF-8")) << text;
  apply_set(c, "out-dir=l\xC3\xA4ufe");
  RunConfig again;
  apply_toml(again, to_toml(c), "config.toml");
  EXPECT_EQ(c.run.out_dir, again.run.out_dir);
}

TEST(Options, ValidateSeesWhatNoSingleOptionCan) {
  const std::vector<std::pair<std::vector<const char*>, const char*>> cases{
      {{"heads=7"}, "--heads 7 does not divide --hidden 256"},
      {{"schedule=gpipe"}, "--schedule gpipe needs a pipeline"},
      {{"nvme-limit=1GiB"}, "--nvme-limit 1GiB limits the disk tier, but there is no --nvme-path"},
      {{"loss-scale=3"}, "`loss-scale` \"3\" is not accepted"},
      {{"kv-heads=3"}, "--kv-heads 3 does not divide --heads 8"},
      {{"model=gpt2", "kv-heads=4"}, "gpt2 has as many key and value heads as --heads 8"},
      {{"model=gpt2", "rope-base=500000"}, "--rope-base 500000: gpt2 learns its positions"},
      {{"rope-base=0.5"}, "--rope-base 0.5 is below 1"},
      {{"norm-eps=1e-40"}, "--norm-eps 1e-40 is too small for fp32"},
      {{"hidden=24"}, "is 3, which is odd"},
      {{"min-lr=1"}, "--min-lr 1 is above --lr"},
      {{"group=2"}, "no effect with --order auto"},
      {{"group=2", "order=vertical", "grad-accumulation=3"}, "--group 2 does not divide --grad-accumulation 3"}};
  for (const auto& [sets, part] : cases) {
    RunConfig c;
    for (const auto* const set : sets) apply_set(c, set);
    EXPECT_THAT(usage_error([&] { validate(c); }), HasSubstr(part));
  }
  EXPECT_NO_THROW(validate(RunConfig{}));
}

TEST(Options, SettingsInTextsOfTheLibraryAreShownAsFlags) {
  EXPECT_EQ(with_flags("`schedule` pipedream cannot clip\n  give `grad-clip` 0, or another `schedule`"),
            "--schedule pipedream cannot clip\n  give --grad-clip 0, or another --schedule");
  EXPECT_EQ(with_flags("raise `ulimit -l`, or lower `host-memory`"), "raise `ulimit -l`, or lower --host-memory");
  EXPECT_EQ(with_flags("an odd ` stays"), "an odd ` stays");
  EXPECT_EQ(with_flags(""), "");
}

TEST(Options, FingerprintHoldsWhatAResumedRunMustShareAndNothingElse) {
  const ScratchFolder scratch;
  RunConfig c;
  c.data.files = {scratch.write("corpus.txt", "hello")};
  const auto then = fingerprint(c);
  for (const auto* const free :
       {"rope-base=10000", "norm-eps=1e-5",  // the usual values, named
        "steps=7", "device=cuda:0", "device-memory=1MiB", "host-memory=1MiB", "nvme-limit=1GiB", "out-dir=x", "threads=2",
        "order=vertical", "recompute=layer", "prefetch-depth=1", "json=true", "ckpt-interval=3"}) {
    RunConfig other = c;
    apply_set(other, free);
    EXPECT_EQ(describe_difference(then, fingerprint(other)), "") << free;
  }
  for (const auto* const bound : {"seed=2", "layers=1", "hidden=64", "dtype=bf16", "batch-size=1", "grad-accumulation=2",
                                  "seq-len=8", "model=gpt2", "vocab=300", "untied=true", "lr=1", "beta2=0.5"}) {
    RunConfig other = c;
    apply_set(other, bound);
    EXPECT_NE(describe_difference(then, fingerprint(other)), "") << bound;
  }
  RunConfig other = c;
  other.train.seed = 2;
  other.data.files = {scratch.write("other.txt", "hello there")};
  EXPECT_EQ(describe_difference(then, fingerprint(other)),
            "  data: corpus.txt (5 bytes) then, other.txt (11 bytes) now\n  seed: 1 then, 2 now");
  EXPECT_EQ(describe_difference(then, nlohmann::json::parse(then.dump())), "");
  other.data.files = {scratch / "absent"};
  EXPECT_THAT(usage_error([&] { fingerprint(other); }), HasSubstr("absent"));
}

// Older versions recorded texts as they were given.
TEST(Options, RecordedTextsAreComparedAsTheyAreWrittenNow) {
  EXPECT_EQ(as_written_now("window", "016,0"), "16,0");
  EXPECT_EQ(as_written_now("rope-scaling", "linear:factor=2.0"), "linear:factor=2");
  EXPECT_EQ(as_written_now("rope-layers", "1,1"), "1");
  for (const auto* const same : {"dtype", "rope-scaling", "optimizer", "no-key"})
    EXPECT_EQ(as_written_now(same, "edited by hand"), "edited by hand") << same;
  EXPECT_EQ(as_written_now("lr", 0.5), 0.5);
}

TEST(Options, RanksCompareWhatReachesTheirBitsOrTheirCommonSteps) {
  const ScratchFolder scratch;
  RunConfig c;
  c.data.files = {scratch.write("corpus.txt", "hello")};
  const auto first = settings_of_all_ranks(c);
  const auto difference = [&](const RunConfig& other) {
    return describe_difference(first, settings_of_all_ranks(other), "on rank 0", "on rank 3");
  };
  for (const auto* const own : {"threads=2", "device-memory=1MiB", "host-memory=1MiB", "nvme-path=[\"x\"]", "nvme-limit=1GiB",
                                "out-dir=x", "json=true", "io-deadline=3", "assumed-costs=true", "machine-profile=x"}) {
    auto other = c;
    apply_set(other, own);
    EXPECT_EQ(difference(other), "") << own;
  }
  for (const auto* const common :
       {"seed=2", "steps=7", "eval-interval=1", "ckpt-interval=3", "durability=off", "resume=auto", "order=vertical",
        "prefetch-depth=1", "on-non-finite=skip", "loss-scale=2", "device=cuda:0"}) {
    auto other = c;
    apply_set(other, common);
    EXPECT_NE(difference(other), "") << common;
  }
  auto other = c;
  other.data.files = {scratch.write("copy.txt", "hello")};
  EXPECT_EQ(difference(other), "");
  other.data.files = {scratch.write("other.txt", "hallo")};
  EXPECT_THAT(difference(other),
              testing::MatchesRegex("  data: 5 bytes with checksum [0-9a-f]+ on rank 0, 5 bytes with checksum "
                                    "[0-9a-f]+ on rank 3"));
}

TEST(Options, LongFilesAreSampledOverTheirWholeLength) {
  const ScratchFolder scratch;
  constexpr std::size_t kBytes = 1000, kMost = 100;
  const std::string text(kBytes, 'a');
  const auto content = [&](const std::string& of, std::uint64_t most) {
    return describe_content(scratch.write("file", of), most);
  };
  for (const auto place : {std::size_t{0}, kBytes - 1, kBytes / 2}) {
    auto other = text;
    other[place] = 'b';
    EXPECT_NE(content(text, kBytes), content(other, kBytes)) << place;
    // A sample has one window at each end.
    EXPECT_EQ(content(text, kMost) != content(other, kMost), place != kBytes / 2) << place;
  }
  EXPECT_NE(content(text, kMost), content(text + "a", kMost));
  EXPECT_EQ(content(text, kMost), content(text, kMost));
  EXPECT_NE(content("", kMost), content("a", kMost));
}

TEST(Options, NearestFindsTyposAndNotOtherWords) {
  const std::vector<std::string_view> words{"steps", "hidden", "heads", "batch-size", "lr"};
  EXPECT_EQ(nearest("stpes", words), "steps");
  EXPECT_EQ(nearest("hiden", words), "hidden");
  EXPECT_EQ(nearest("batch_size", words), "batch-size");
  EXPECT_EQ(nearest("rl", words), "lr");
  EXPECT_EQ(nearest("zebra", words), "");
  EXPECT_EQ(nearest("", words), "");
}

TEST(Options, AutoIsTheCallersSize) {
  EXPECT_EQ(resolve_bytes("auto", 5), 5U);
  EXPECT_EQ(resolve_bytes("1KiB", 5), 1024U);
  EXPECT_EQ(resolve_bytes("unlimited", 5), kUnlimited);
}

}  // namespace
}  // namespace terrace::cli
