// Pipelines from a user's view: --pp with its orders, alone and with --dp.
#include <fstream>

#include <fmt/format.h>

#include <terrace/tests/cli/ranks/on_ranks.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

// Compares weights, the losses of every step, and the held-out losses; their 5 micro-batches are not a multiple of any degree.
TEST_F(Ranks, PipelinesEndInTheSameWeights) {
  const Words evaluated{"--eval-interval", "2", "--eval-batches", "5"};
  const auto one = succeeded(train(threads(1, 0, "one", evaluated)));
  struct Case {
    int dp, zero, pp;
    const char* schedule;
  };
  for (const auto& c : {Case{1, 0, 2, "1f1b"},
                        {1, 0, 3, "interleaved"},
                        {1, 0, 2, "zb-v"},
                        {2, 3, 2, "zb-h1"},
                        {2, 1, 2, "gpipe"},
                        {1, 0, 2, "chimera"},
                        {2, 0, 2, "chimera"},
                        {1, 2, 2, "chimera"},  // with one data rank, ZeRO-2 shards nothing
                        {2, 3, 2, "chimera"}}) {
    const auto run = fmt::format("{}-{}-zero{}", c.schedule, c.dp, c.zero);
    const auto many =
        succeeded(train(threads(c.dp, c.zero, run, Words{"--pp", std::to_string(c.pp), "--schedule", c.schedule} + evaluated)));
    EXPECT_EQ(weights_of(one), weights_of(many)) << run;
    EXPECT_EQ(steps("one"), steps(run)) << run;
    EXPECT_EQ(json_in("one/result.json").at("eval_loss"), json_in(run + "/result.json").at("eval_loss")) << run;
    EXPECT_TRUE(fs::exists(at(run) / fmt::format("rank{}.log", c.dp * c.pp - 1))) << run;
  }
}

// A U of seven blocks, with skips that cross between ranks, or, in a V, stay on a rank.
TEST_F(Ranks, ModelsWithSkipsEndInTheSameWeights) {
  const auto with = [](const Words& more) { return Words{"--skips", "u", "--layers", "7"} + more; };
  const auto one = succeeded(train(threads(1, 0, "one", with({"--save", "one.safetensors"}))));
  const auto chain = train(threads(1, 0, "chain", {"--layers", "7"}));
  EXPECT_NE(weights_of(one), weights_of(chain));
  EXPECT_EQ(weights_of(one), weights_of(train(threads(1, 0, "tight", with({"--device-memory", "1MiB"})))));
  const Words shape{"--grad-accumulation", "8", "--assumed-costs"};
  for (const auto& [dp, zero, pp, schedule] :
       {std::tuple{1, 0, "3", "1f1b"}, {1, 0, "2", "zb-v"}, {1, 0, "2", "chimera"}, {2, 3, "2", "interleaved"}}) {
    const Words pipeline{"--pp", pp, "--schedule", schedule};
    succeeded(terrace(tiny("plan", with(pipeline + shape))));
    EXPECT_EQ(weights_of(one), weights_of(train(threads(dp, zero, schedule, with(pipeline))))) << schedule;
    EXPECT_EQ(steps("one"), steps(schedule)) << schedule;
  }
  const Words pipeline{"--pp", "2", "--schedule", "zb-h1"};
  ASSERT_EQ(0, train(threads(1, 0, "stopped", with(pipeline + Words{"--lr-schedule", "constant", "--steps", "3"}))).exit);
  const auto rest =
      succeeded(train(threads(1, 0, "stopped", with({"--pp", "2", "--lr-schedule", "constant", "--resume", "auto"}))));
  const auto whole = train(threads(1, 0, "whole", with({"--lr-schedule", "constant"})));
  EXPECT_EQ(weights_of(whole), weights_of(rest));

  // Exported, read again, and used to generate: by one rank, and from the stores of several.
  succeeded(train(threads(1, 0, "again", with({"--init-from", "one.safetensors", "--steps", "1"}))));
  ASSERT_EQ(0, train(threads(1, 0, "other", {"--layers", "7", "--save", "chain.safetensors", "--steps", "1"})).exit);
  expect_refusal(train(threads(1, 0, "refused", with({"--init-from", "chain.safetensors"}))), 2, {"skip.weight"});
  const auto said = [&](const std::string& run) { return terrace({"generate", run, "--prompt", "The river"}); };
  ASSERT_EQ(0, said("one").exit) << said("one").described;
  for (const auto* const run : {"1f1b", "zb-v", "interleaved"}) EXPECT_EQ(said("one").out, said(run).out) << run;

  expect_refusal(train(threads(1, 0, "refused", {"--skips", "u", "--layers", "2"})), 2, {"--skips u", "--layers 3"});
  expect_refusal(train(threads(1, 0, "refused", {"--skips", "v"})), 2, {"--skips", "none", "u"});
  std::ofstream(at("graph.txt")) << "pipeline 2 3 1\nplace 0 1 0\ninput 2 0 1\nrank F0.0 F2.0 B2.0 B0.0\nrank F1.0 B1.0\n";
  const auto graph = train(with({"--pp", "2", "--schedule", "graph.txt", "--grad-accumulation", "1", "--out-dir", "refused"}));
  expect_refusal(graph, 2, {"leave out its input lines"});
}

// The stages of a run are fixed when it begins.
TEST_F(Ranks, APipelineGoesOnWithItsStages) {
  const auto whole = succeeded(train(threads(1, 0, "whole", {"--lr-schedule", "constant"})));
  const Words pipeline{"--lr-schedule", "constant", "--pp", "2", "--stage-layers", "3,3"};
  const auto with = [&](Words more) {
    more.insert(more.end(), pipeline.begin(), pipeline.end());
    return train(threads(1, 0, "run", more));
  };
  ASSERT_EQ(0, with({"--steps", "2"}).exit);
  auto resumed = threads(1, 0, "run", {"--lr-schedule", "constant", "--pp", "2", "--resume", "auto"});  // no --stage-layers
  EXPECT_EQ(weights_of(whole), weights_of(train(resumed)));
}

// An order found by the search, or written by a user, runs like a named one.
TEST_F(Ranks, PipelinesRunOrdersFromFiles) {
  const auto one = succeeded(train(threads(1, 0, "one")));
  const Words shape{"--pp", "2", "--grad-accumulation", "8", "--canonical-reduction", "--assumed-costs"};
  auto asked =
      tiny("plan", shape) + Words{"--schedule", "auto", "--write-schedule", "found.txt", "--timeline", "found.svg", "--json"};
  const auto found = nlohmann::json::parse(succeeded(terrace(asked)).out);
  EXPECT_GE(found.at("step_with_moves_s").get<double>(), 0.999 * found.at("step_time_s").get<double>());
  for (const auto* const order : {"layerwise", "gpipe", "1f1b", "zb-v"}) {
    EXPECT_LE(
        found["step_time_s"].get<double>(),
        nlohmann::json::parse(succeeded(terrace(tiny("plan", shape) + Words{"--schedule", order, "--json"})).out)["step_time_s"]
            .get<double>())
        << order;
  }
  std::ifstream picture(at("found.svg"));
  const std::string svg{std::istreambuf_iterator<char>(picture), {}};
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg.substr(0, 80);
  for (const auto* const piece : {"rank 0", "rank 1", "<title>F0.0</title>", "</svg>"})
    EXPECT_NE(svg.find(piece), std::string::npos) << piece;

  std::ofstream(at("own.txt")) << "# by hand\npipeline 2 2 8\nplace 0 1\n"
                                  "rank F0.0 F0.1 B0.0 F0.2 F0.3 B0.1 B0.2 B0.3 F0.4 F0.5 F0.6 F0.7 B0.4 B0.5 B0.6 B0.7\n"
                                  "rank F1.0 B1.0 F1.1 F1.2 B1.1 B1.2 F1.3 B1.3 F1.4 B1.4 F1.5 F1.6 B1.5 B1.6 F1.7 B1.7\n";
  for (const auto* const file : {"found.txt", "own.txt"}) {
    const auto many = succeeded(train(threads(1, 0, std::string("run-") + file, {"--pp", "2", "--schedule", file})));
    EXPECT_EQ(weights_of(one), weights_of(many)) << file;
  }
  // The run's last step beside the simulated one: every forward of every rank appears twice.
  auto beside = tiny("plan", shape) + Words{"--schedule", "own.txt", "--timeline", "both.svg", "--measured", "run-own.txt"};
  succeeded(terrace(beside));
  std::ifstream lanes(at("both.svg"));
  const std::string both{std::istreambuf_iterator<char>(lanes), {}};
  for (const auto* const lane : {"rank 0 compute, simulated", "rank 0 message, simulated", "rank 1 compute, simulated"})
    EXPECT_NE(both.find(lane), std::string::npos) << lane;
  for (const int layer : {0, 3})
    for (int m = 0; m < 8; ++m) {
      const auto title = fmt::format("<title>forward l{} m{},", layer, m);
      std::size_t times = 0;
      for (auto here = both.find(title); here != std::string::npos; here = both.find(title, here + 1)) ++times;
      EXPECT_EQ(times, 2U) << title;
    }
  beside.back() = "nowhere";
  expect_refusal(terrace(beside), 2, {"nowhere/trace.json", "when it ends"});

  // Rank 1 would have to compute a backward before its forward.
  std::ofstream(at("wrong.txt")) << "pipeline 2 2 1\nplace 0 1\nrank F0.0 B0.0\nrank B1.0 F1.0\n";
  expect_refusal(train(threads(1, 0, "wrong", {"--pp", "2", "--schedule", "wrong.txt"})), 2, {"wrong.txt", "B1.0"});
  std::ofstream(at("few.txt")) << "pipeline 2 2 2\nplace 0 1\nrank F0.0 F0.1 B0.0 B0.1\nrank F1.0 B1.0 F1.1 B1.1\n";
  expect_refusal(train(threads(1, 0, "wrong", {"--pp", "2", "--schedule", "few.txt"})), 2,
                 {"few.txt", "--grad-accumulation 2"});
}

// --schedule auto chooses the fastest schedule, the same on all ranks, and a resumed run keeps it without searching again.
TEST_F(Ranks, TrainSearchesItsSchedule) {
  const auto with = [](const char* steps, Words more = {}) {
    return Words{"--pp", "2", "--schedule", "auto", "--lr-schedule", "constant", "--steps", steps, "--resume", "auto"} + more;
  };
  const auto one = succeeded(train(threads(1, 0, "one", {"--lr-schedule", "constant", "--steps", "6"})));
  const auto whole = succeeded(train(threads(1, 0, "whole", with("6"))));
  EXPECT_EQ(weights_of(one), weights_of(whole));
  auto asked = tiny("plan", threads(1, 0, "none", {"--pp", "2", "--schedule", "auto", "--json"}));
  const auto planned = nlohmann::json::parse(terrace(asked).out);
  const auto chosen = fmt::format("--schedule auto: chose {}, with stages of {} layers", planned["schedule"].get<std::string>(),
                                  planned["stage_layers"].get<std::string>());
  EXPECT_THAT(whole.out, HasSubstr(chosen));

  succeeded(train(threads(1, 0, "cut", with("3"))));
  auto text = scratch_.read("cut/schedule.txt");
  EXPECT_THAT(text, HasSubstr("\npipeline 2 "));
  scratch_.write("cut/schedule.txt", "# as it was found\n" + text);
  const auto rest = succeeded(train(threads(1, 0, "cut", with("6"))));
  EXPECT_THAT(rest.out, HasSubstr("this run continues with its schedule, " + planned["schedule"].get<std::string>()));
  EXPECT_EQ(weights_of(whole), weights_of(rest));
  EXPECT_THAT(scratch_.read("cut/schedule.txt"), testing::StartsWith("# as it was found\n")) << "searched again";
  scratch_.write("cut/schedule.txt", "pipeline 2\n");
  expect_refusal(train(threads(1, 0, "cut", with("9"))), 5, {"schedule.txt", "line 1", "--schedule"});
  scratch_.write("cut/schedule.txt", text);
  const auto other = train(threads(1, 0, "cut", with("8", {"--pp", "3"})));  // other ranks need a new search
  ASSERT_EQ(0, other.exit) << other.described;
  EXPECT_THAT(other.out, HasSubstr("--schedule auto: chose"));
#ifdef TERRACE_MPIRUN
  EXPECT_EQ(weights_of(whole), weights_of(run(processes(1, 0, "processes", with("6"), 2))));
#endif
  expect_refusal(train(threads(1, 0, "wrong", with("6", {"--stage-layers", "3,3"}))), 2, {"--schedule auto", "--stage-layers"});
  expect_refusal(train(threads(1, 0, "wrong", with("6", {"--device-memory", "4KiB"}))), 3, {"does not fit", "--device-memory"});
  EXPECT_FALSE(fs::exists(at("wrong")));
}

// Where an asynchronous order drains, a run can be continued like any other, as if it had not stopped.
TEST_F(Ranks, AsynchronousPipelinesGoOnWhereTheyDrained) {
  struct Order {
    const char* name;
    Words more;
  };
  for (const auto& [name, more] : {Order{"pipedream-2bw", {}}, Order{"pipedream", {"--grad-clip", "0"}}}) {
    const std::string order = name;
    const auto with = [&, &more = more](const std::string& run, const Words& last, const char* drain = "3",
                                        const char* schedule = nullptr) {
      return train(threads(1, 0, run,
                           (Words{"--pp", "2", "--untied", "--schedule", schedule ? schedule : order, "--drain-interval", drain,
                                  "--lr-schedule", "constant"} +
                            more + last)));
    };
    const auto whole = succeeded(with(order, {"--steps", "6"}));
    EXPECT_EQ(steps(order).size(), 6U) << order;  // one line per step, although three steps are computed together
    ASSERT_EQ(0, with(order + "-cut", {"--steps", "3"}).exit) << order;
    EXPECT_EQ(weights_of(whole), weights_of(with(order + "-cut", {"--steps", "6", "--resume", "auto"}))) << order;
    EXPECT_EQ(steps(order), steps(order + "-cut")) << order;
    // Other weight versions make another run.
    expect_refusal(with(order + "-cut", {"--steps", "12", "--resume", "auto"}, "6"), 2, {"drain-interval"});
    expect_refusal(with(order + "-cut", {"--steps", "12", "--resume", "auto"}, "3", "1f1b"), 2, {"schedule"});
    expect_refusal(with("refused", {"--steps", "7"}), 2, {"--steps 7", "6 or 9"});
    expect_refusal(with("refused", {"--steps", "6", "--eval-interval", "2"}), 2,
                   {"--eval-interval 2", "give --eval-interval 3"});
    expect_refusal(with("refused", {"--steps", "6", "--on-non-finite", "skip"}), 2, {"--on-non-finite stop"});
  }
  const Words clipped{"--pp", "2", "--untied", "--schedule", "pipedream", "--drain-interval", "3", "--steps", "6"};
  expect_refusal(train(threads(1, 0, "refused", clipped)), 2, {"--grad-clip 0", "pipedream-2bw"});
  const Words tied{"--pp", "2", "--schedule", "pipedream-2bw", "--drain-interval", "3", "--steps", "6"};
  expect_refusal(train(threads(1, 0, "refused", tied)), 2, {"--untied"});
}

// A NaN or infinite norm reaches the step's verdict through a clip that is computed in the middle of a walk.
TEST_F(Ranks, AnAsynchronousPipelineThatDivergesSaysSo) {
  for (const auto* const ranks : {"2", "3", "4"})
    expect_refusal(train(flags("--untied --schedule pipedream-2bw --layers 3 --grad-accumulation 4 --drain-interval 10 "
                               "--steps 10 --lr 1e14 --weight-decay 1e14 --warmup 0 --grad-clip 1") +
                         Words{"--pp", ranks, "--out-dir", std::string("run") + ranks}),
                   1, {"training diverged at step 10", "nothing was committed"});
}

// The weight version that pipedream-2bw reads depends only on the update, so several data ranks end with the same weights as
// one, however they share its state.
TEST_F(Ranks, AsynchronousPipelinesOfSeveralDataRanksEndInTheSameWeights) {
  const Words all{"--pp", "2", "--untied", "--schedule", "pipedream-2bw", "--drain-interval", "3", "--steps", "6"};
  const auto one = succeeded(train(threads(1, 0, "one", all)));
  for (const int zero : {0, 1, 3}) {
    const auto run = fmt::format("zero{}", zero);
    EXPECT_EQ(weights_of(one), weights_of(train(threads(2, zero, run, all)))) << run;
    EXPECT_EQ(steps("one"), steps(run)) << run;
  }
}

TEST_F(Ranks, AsynchronousPipelinesArePlannedAndReadFromFiles) {
  auto asked = tiny("plan", flags("--pp 2 --untied --schedule pipedream-2bw --drain-interval 3 --steps 6 --grad-accumulation 8 "
                                  "--assumed-costs --write-schedule order.txt --json"));
  const auto plan = succeeded(terrace(asked));
  const auto found = nlohmann::json::parse(plan.out);
  EXPECT_EQ(found["peak_live"], (std::vector<int>{2, 1}));
  EXPECT_TRUE(found.contains("step_with_moves_s"));
  const Words same{"--pp", "2", "--untied", "--drain-interval", "3", "--steps", "6", "--update", "host"};
  const auto with = [&](const std::string& run, const std::string& schedule) {
    return train(threads(1, 0, run, same + Words{"--schedule", schedule}));
  };
  EXPECT_EQ(weights_of(with("named", "pipedream-2bw")), weights_of(with("read", "order.txt")));

  // The plan's figures are per step, although three steps form one program.
  const auto walked = json_in("named/plan.json").at("walked").at("steps").get<std::size_t>();
  ASSERT_EQ(0U, walked % 3);
  const auto of_ranks = json_in("named/plan.json").at("ranks").at("walked_bytes");
  const auto lines = metrics("named");
  for (const auto* const edge : {"h2d", "d2h"}) {
    std::uint64_t moved = 0;
    for (std::size_t i = 0; i < walked; ++i)
      moved += lines.at(i).at("offload").at(std::string(edge) + "_bytes").get<std::uint64_t>();
    EXPECT_GT(moved, 0U) << edge;
    EXPECT_EQ(of_ranks.at(edge), moved) << edge;
  }
}

// It only fits because each step is committed: after a commit, weights and states are already on the disk and need not be moved
// there.
TEST_F(Ranks, APipelineThatFitsWithItsCommitsIsPlanned) {
  const Words tight = flags(
      "--layers 2 --hidden 18 --heads 3 --data-format bytes --vocab 300 --seq-len 8 --batch-size 3 --ffn 130 --optimizer sgd "
      "--steps 2 --grad-accumulation 2 --pp 2 --threads 1 --prefetch-depth 3 --durability step --nvme-path disk "
      "--device-memory 0.197MB");
  succeeded(train(tight));
  succeeded(terrace(tiny("plan", tight + Words{"--assumed-costs"})));
}

TEST_F(Ranks, PipelinesThatCannotBeAreRefused) {
  for (const auto& [given, says] : {std::pair<Words, const char*>{{"--schedule", "1f2b"}, "did you mean 1f1b"},
                                    {{"--schedule", "1f1b", "--virtual-stages", "2"}, "interleaved"},
                                    {{"--stage-layers", "1,2"}, "add up to 6"},
                                    {{"--stage-layers", "3,,3"}, "add up to 6"},
                                    {{"--stage-layers", "3,3,"}, "add up to 6"},
                                    {{"--stage-layers", "6,0"}, "leaves rank 1 of the pipeline without a layer"},
                                    {{"--order", "vertical"}, "--schedule"}}) {
    const auto refused = train(threads(1, 0, "refused", Words{"--pp", "2"} + given));
    expect_refusal(refused, 2, {says});
    EXPECT_FALSE(fs::exists(at("refused"))) << refused.described;
  }
  struct Degrees {
    const char *pp, *micro_batches, *dp, *zero, *says;
  };
  for (const auto& [pp, micro_batches, dp, zero, says] : {Degrees{"3", "8", "1", "0", "--pp 2 or 4"},
                                                          {"2", "7", "1", "0", "--grad-accumulation 6 or 8"},
                                                          {"2", "1", "1", "0", "--grad-accumulation 2"},
                                                          {"2", "8", "2", "2", "--zero 1 or 3"}}) {
    const auto refused = train({"--schedule", "chimera", "--pp", pp, "--grad-accumulation", micro_batches, "--dp", dp, "--zero",
                                zero, "--out-dir", "refused"});
    expect_refusal(refused, 2, {says});
    EXPECT_FALSE(fs::exists(at("refused"))) << refused.described;
  }
}

}  // namespace
}  // namespace terrace::test
