// Runs on several ranks from a user's view, as threads (--dp) and as processes.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include <fmt/format.h>

#include <terrace/core/machine/cores.h>
#include <terrace/tests/cli/ranks/on_ranks.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

TEST_F(Ranks, EveryDegreeAndStageEndsInTheSameWeights) {
  const auto one = succeeded(train(threads(1, 0, "one")));
  for (const auto& [ranks, zero] : {std::pair{2, 0}, {2, 1}, {4, 2}, {4, 3}}) {
    const auto run = fmt::format("dp{}-zero{}", ranks, zero);
    EXPECT_EQ(weights_of(one), weights_of(train(threads(ranks, zero, run)))) << run;
    EXPECT_EQ(steps("one"), steps(run)) << run;
    EXPECT_TRUE(fs::exists(at(run) / fmt::format("rank{}.log", ranks - 1))) << run;
  }
}

// Two copies of the state, each shared by two ranks.
TEST_F(Ranks, HybridShardsEndInTheSameWeights) {
  const Words groups{"--shard-group", "2"};
  const auto one = succeeded(train(threads(1, 0, "one")));
  EXPECT_EQ(weights_of(one), weights_of(train(threads(4, 3, "threads", groups))));
  EXPECT_EQ(steps("one"), steps("threads"));
#ifdef TERRACE_MPIRUN
  EXPECT_EQ(weights_of(one), weights_of(run(processes(4, 2, "processes", groups))));
#endif
  const auto odd = train(threads(4, 3, "none", {"--shard-group", "3"}));
  EXPECT_EQ(2, odd.exit) << odd.described;
  EXPECT_NE(odd.err.find("--shard-group 3: it must divide 4 data ranks\n  nearest legal: 2 and 4"), std::string::npos)
      << odd.described;
  expect_refusal(train(threads(4, 0, "none", groups)), 2, {"--shard-group", "--zero 1, 2 or 3"});
  EXPECT_FALSE(fs::exists(at("none")));
}

// Threads that are declared to be on two machines add in the same order as processes on two machines.
TEST_F(Ranks, MachinesDecideTheOrderOfSums) {
  const auto words = [](const std::string& run, const Words& more) {
    return Words{"--dp", "4", "--zero", "3", "--grad-accumulation", "2", "--steps", "3", "--out-dir", run} + more;
  };
  const auto weights = [&](const std::string& run, const Words& more) { return weights_of(train(words(run, more))); };
  const Words two{"--ranks-per-machine", "2"};
  const auto on_one = weights("one", {}), on_two = weights("two", two);
  EXPECT_NE(on_one, on_two);
  EXPECT_EQ(on_two, weights("again", two + Words{"--update", "host", "--prefetch-depth", "1"}));
  EXPECT_EQ(on_one, weights("by-rank", two + Words{"--sum-order", "ranks"}));
  EXPECT_EQ(weights("canonical", {"--canonical-reduction"}), weights("canonical-on-two", two + Words{"--canonical-reduction"}));
#ifdef TERRACE_MPIRUN
  EXPECT_EQ(on_two, weights_of(run(apart(4, tiny("train", words("apart", two))))));
#endif
}

TEST_F(Ranks, ARunThatMovesToOtherMachinesSaysThatItsSumsChange) {
  const auto to = [&](const std::string& steps, const Words& more) {
    return train(Words{"--dp", "4", "--zero", "2", "--out-dir", "run", "--resume", "auto", "--lr-schedule", "constant",
                       "--steps", steps} +
                 more);
  };
  ASSERT_EQ(0, to("1", {"--ranks-per-machine", "2"}).exit);
  const auto same = to("2", {"--ranks-per-machine", "2"}), moved = to("3", {});
  const std::string warning = "the ranks of this run were on machines of 2 + 2 ranks and are now on machines of 4";
  EXPECT_EQ((same.out + same.err).find(warning), std::string::npos) << same.described;
  EXPECT_EQ(0, moved.exit) << moved.described;
  EXPECT_NE((moved.out + moved.err).find(warning), std::string::npos) << moved.described;
  expect_refusal(to("4", {"--sum-order", "ranks"}), 2, {"sum-order: machines then, ranks now"});
}

TEST_F(Ranks, CompressedGradientsEndInTheSameWeightsOnEveryDegree) {
  const Words narrow{"--compress-gradients", "bf16"};
  const auto exact = train(threads(1, 0, "exact")), one = succeeded(train(threads(1, 0, "one", narrow)));
  EXPECT_NE(weights_of(exact), weights_of(one));
  EXPECT_EQ(weights_of(one), weights_of(train(threads(2, 3, "threads", narrow))));
#ifdef TERRACE_MPIRUN
  EXPECT_EQ(weights_of(one), weights_of(run(processes(2, 2, "processes", narrow))));
#endif
  expect_refusal(terrace(tiny("train", {"--dp", "2", "--zero", "1", "--compress-gradients", "bf16", "--out-dir", "none"})), 2,
                 {"--compress-gradients", "--zero 2 or 3"});
}

TEST_F(Ranks, EightBitCollectivesEndInTheSameWeightsOnEveryDegree) {
  const Words gradients{"--compress-gradients", "int8"};
  auto both = gradients + Words{"--compress-weights", "int8"};
  const auto one = succeeded(train(threads(1, 0, "one", gradients))), two = succeeded(train(threads(2, 3, "two", both)));
  EXPECT_NE(weights_of(one), weights_of(two));
  const auto reduced = train(threads(4, 2, "reduced", gradients)), four = train(threads(4, 3, "four", both));
  EXPECT_EQ(weights_of(one), weights_of(reduced)) << reduced.described;
  EXPECT_EQ(weights_of(two), weights_of(four)) << four.described;
#ifdef TERRACE_MPIRUN
  EXPECT_EQ(weights_of(two), weights_of(run(processes(2, 3, "processes", both))));
#endif
  expect_refusal(train(threads(2, 2, "none", {"--compress-weights", "int8"})), 2, {"--compress-weights int8", "--zero 3"});
}

// Local SGD: the same with threads and processes, whether or not it is stopped between two averages; and settings that share
// state are refused.
TEST_F(Ranks, CopiesThatAreAveragedEndInTheSameWeights) {
  const auto with = [](int steps, Words more = {}) {
    more.insert(more.end(), {"--sync-interval", "3", "--grad-accumulation", "4", "--lr-schedule", "constant", "--resume",
                             "auto", "--steps", std::to_string(steps)});
    return more;
  };
  const auto whole = succeeded(train(with(6, {"--dp", "2", "--out-dir", "whole"})));
  const auto reduced =
      train({"--dp", "2", "--grad-accumulation", "4", "--lr-schedule", "constant", "--steps", "6", "--out-dir", "reduced"});
  EXPECT_NE(weights_of(whole), weights_of(reduced));
  ASSERT_EQ(0, train(with(3, {"--dp", "2", "--out-dir", "cut", "--ckpt-interval", "2"})).exit);
  EXPECT_EQ(weights_of(whole), weights_of(train(with(6, {"--dp", "2", "--out-dir", "cut", "--nvme-path", "disk"}))));
#ifdef TERRACE_MPIRUN
  EXPECT_EQ(weights_of(whole), weights_of(run(apart(2, tiny("train", with(6, {"--out-dir", "processes"}))))));
#endif
  expect_refusal(train(with(9, {"--dp", "3", "--out-dir", "cut"})), 2, {"micro-batches a step"});
  Words asked{"--dp", "2", "--sync-interval", "3", "--grad-accumulation", "4", "--steps", "6", "--assumed-costs"};
  const auto said = succeeded(terrace(tiny("plan", asked)));
  EXPECT_THAT(said.out, HasSubstr("every 3 steps weights are averaged"));
  asked.emplace_back("--json");
  const auto planned = nlohmann::json::parse(terrace(tiny("plan", asked)).out);
  EXPECT_EQ(3U, planned["average"]["every"].get<std::uint64_t>());
  EXPECT_EQ(4 * planned["parameters"].get<std::uint64_t>(), planned["average"]["all_reduce_bytes"].get<std::uint64_t>());
  EXPECT_GT(planned["step_time_s"].get<double>(), planned["average"]["seconds"].get<double>() / 3);
  EXPECT_TRUE(json_in("whole/plan.json").contains("average"));
  EXPECT_FALSE(json_in("reduced/plan.json").contains("average"));
  for (const auto& [given, says] : {std::pair<Words, const char*>{{"--dp", "2", "--zero", "1"}, "nothing is sharded"},
                                    {{"--dp", "2", "--canonical-reduction"}, "gradients are not exchanged"},
                                    {{"--dp", "2", "--pp", "2"}, "no copies to average"},
                                    {{"--dp", "2", "--loss-scale", "dynamic"}, "skip different steps"},
                                    {{"--dp", "2", "--dtype", "fp16"}, "--dtype fp16, whose --loss-scale auto is dynamic"},
                                    {{"--dp", "1"}, "there is only one rank"}}) {
    auto more = given + Words{"--out-dir", "refused"};
    expect_refusal(train(with(6, more)), 2, {"--sync-interval 3", says});
  }
  expect_refusal(train(with(7, {"--dp", "2", "--out-dir", "refused"})), 2, {"does not divide --steps 7"});
  EXPECT_FALSE(fs::exists(at("refused")));
}

#ifdef TERRACE_MPIRUN
// mpirun may start each rank with different flags. Settings that affect the bits or the common steps must be equal; otherwise
// the ranks would train different models or wait for each other for ever.
TEST_F(Ranks, DifferentSettingsOfRanksAreNamed) {
  scratch_.write("other.txt", EnglishText(kCorpusSeed + 1).of(kCorpusBytes));
  std::filesystem::copy(at("corpus.txt"), at("copy.txt"));
  ASSERT_EQ(0, train({"--steps", "1", "--out-dir", "source", "--save", "a.safetensors"}).exit);
  ASSERT_EQ(0, train({"--steps", "2", "--out-dir", "source2", "--save", "b.safetensors"}).exit);
  const auto apart = [&](const Words& first, const Words& second, const std::string& directory) {
    const auto with = [&](const Words& own) { return tiny("train", Words{"--out-dir", directory} + own); };
    return run(one_by_one(with(first), with(second)));
  };
  expect_refusal(apart({}, {"--seed", "2"}, "refused"), 2,
                 {"the settings of rank 1 differ from those of rank 0:\n  seed: 1 on rank 0, 2 on rank 1\n  start all ranks"});
  // All differences are named at once.
  const auto many = apart({"--init-from", "a.safetensors", "--steps", "3", "--weight-decay", "0"},
                          flags("--init-from b.safetensors --lr 0.1 --beta1 0.8 --grad-clip 0.5 --optimizer lion --recipe 8bit "
                                "--data other.txt --save w.safetensors"),
                          "refused");
  expect_refusal(many, 2,
                 {"lr: 0.0003 on rank 0, 0.1 on rank 1", "beta1: 0.9 on rank 0, 0.8 on rank 1", "grad-clip: 1.0 on rank 0, 0.5",
                  "optimizer: adamw on rank 0, lion on rank 1", "recipe: fp32 on rank 0, 8bit on rank 1",
                  "weight-decay: 0.0 on rank 0, 0.1 on rank 1", "steps: 3 on rank 0, 4 on rank 1",
                  "save: nothing on rank 0, w.safetensors on rank 1", "  data: ", "  init-from: "});
  // Tiles are compared as they were given, although ranks agree on tiles that they choose themselves.
  expect_refusal(apart({"--vocab-tiles", "2", "--mlp-tiles", "0"}, {"--mlp-tiles", "2"}, "refused"), 2,
                 {"vocab-tiles: 2 on rank 0, 1 on rank 1", "mlp-tiles: 0 on rank 0, 2 on rank 1"});
  // Detected before the first collective call that this setting splits.
  expect_refusal(apart({"--ranks-per-machine", "1"}, {}, "refused"), 2,
                 {"ranks-per-machine: 1 on rank 0, 0 on rank 1\n  start all ranks with the same settings"});
  EXPECT_FALSE(fs::exists(at("refused")));
  // Paths, threads and budgets may differ between machines.
  succeeded(apart({}, {"--data", "copy.txt", "--threads", "1", "--io-deadline", "60"}, "same"));
  const auto threads = train({"--dp", "2", "--out-dir", "threads"});
  EXPECT_EQ(steps("threads"), steps("same"));
}

// A separate disk for each rank.
TEST_F(Ranks, EachMayHaveAPathOfItsOwn) {
  const auto apart = [&](const char* steps, const Words& first, const Words& second) {
    const Words words{"--out-dir", "run", "--steps", steps, "--zero", "1", "--resume", "auto"};
    return run(one_by_one(tiny("train", words + first), tiny("train", words + second)));
  };
  const Words one{"--nvme-path", "one"}, two{"--nvme-path", "two"};
  for (const auto* const disk : {"one", "two"}) fs::create_directory(at(disk));
  const auto whole = train({"--dp", "2", "--zero", "1", "--steps", "8", "--out-dir", "whole"});
  ASSERT_EQ(0, apart("4", one, two).exit);
  for (const auto& [steps, first, second] : {std::tuple{"6", one, two}, {"7", Words{}, Words{}}}) {
    const auto resumed = succeeded(apart(steps, first, second));
    EXPECT_THAT(resumed.out, HasSubstr("resumed after step"));
  }
  for (const auto& words : {Words{"ckpt", "verify", "run"}, Words{"generate", "run", "--prompt", "The", "--max-tokens", "2"},
                            Words{"ckpt", "copy", "run", "copy"}}) {
    succeeded(terrace(words));
  }
  // On one rank, then with the ranks of the copy.
  for (const auto& [name, more] : {std::pair<std::string, Words>{"run", {"--dp", "1", "--grad-accumulation", "2"}},
                                   {"copy", {"--dp", "2", "--zero", "1"}}}) {
    const auto rest = succeeded(train(Words{"--resume", name, "--steps", "8"} + more));
    if (name == "copy") {
      EXPECT_EQ(weights_of(whole), weights_of(rest));
    }
  }
  EXPECT_TRUE(fs::is_empty(at("two"))) << "the store of the former rank is still there";
  // A run of a version that did not record paths continues with the same ones.
  ASSERT_EQ(0, train({"--dp", "2", "--zero", "1", "--out-dir", "old", "--nvme-path", "one"}).exit);
  for (const auto& store : std::vector(fs::directory_iterator(at("one")), fs::directory_iterator()))
    if (store.path().string().ends_with("-rank1")) fs::rename(store, at("two") / store.path().filename());
  const Words words{"--out-dir", "old", "--steps", "6", "--zero", "1", "--resume", "auto"};
  const auto old = succeeded(run(one_by_one(tiny("train", words + one), tiny("train", words + two))));
  EXPECT_THAT(old.out, HasSubstr("resumed after step 4"));
}

// As on two machines: the run is correct, but its bits depend on which machine computes what.
TEST_F(Ranks, ProcessorsWithOtherBitsAreNamed) {
  const auto apart = [&](const char* dtype, const std::string& directory) {
    const auto words = tiny("train", {"--out-dir", directory, "--dtype", dtype});
    return run(one_by_one(words, words, "DNNL_MAX_CPU_ISA=SSE41"));
  };
  const auto fp32 = succeeded(apart("fp32", "fp32"));
  EXPECT_EQ(1U, fp32.warnings("SSE4.1 on rank 1 and fp32 products of oneDNN")) << fp32.described;
  const auto fp64 = succeeded(apart("fp64", "fp64"));
  EXPECT_EQ(0U, fp64.warnings("different bits")) << fp64.described;
}
#endif

// Smallest budgets, all state on disk, on four ranks.
TEST_F(Ranks, ShardsOnDiskAreTheBitsOfShardsInMemory) {
  const auto resident = succeeded(train(threads(4, 3, "resident")));
  const auto planned =
      nlohmann::json::parse(succeeded(terrace(tiny("plan", threads(4, 3, "none", {"--json", "--update", "host"})))).out);
  const auto device = planned["smallest_bytes"]["device"].get<std::uint64_t>() * 5 / 4;
  const auto host = planned["smallest_bytes"]["host"].get<std::uint64_t>() * 3 + 131072;  // per rank
  const auto offloaded = succeeded(train(threads(4, 3, "offloaded",
                                                 {"--nvme-path", "disk", "--device-memory", std::to_string(device),
                                                  "--host-memory", std::to_string(4 * host), "--nvme-limit", "256MiB"})));
  EXPECT_EQ(weights_of(resident), weights_of(offloaded));
  EXPECT_EQ(steps("resident"), steps("offloaded"));
  const auto last = metrics("offloaded").back();
  EXPECT_LE(last["mem"]["device_peak_bytes"].get<std::uint64_t>(), device) << last.dump();
  EXPECT_LE(last["mem"]["host_peak_bytes"].get<std::uint64_t>(), host) << last.dump();
  EXPECT_GT(last["offload"]["read_bytes"].get<std::uint64_t>(), 0U) << last.dump();
}

TEST_F(Ranks, GoOnWhereTheyStopped) {
  succeeded(train(threads(2, 3, "whole")));
  succeeded(train(threads(2, 3, "cut", {"--steps", "3", "--lr-schedule", "constant"})));
  const auto constant = train(threads(2, 3, "constant", {"--lr-schedule", "constant"}));
  EXPECT_EQ(weights_of(constant), weights_of(train(threads(2, 3, "cut", {"--lr-schedule", "constant", "--resume", "auto"}))));
  succeeded(terrace({"ckpt", "verify", "cut"}));
  EXPECT_EQ(0, terrace({"ckpt", "rm", "cut"}).exit);
  EXPECT_FALSE(fs::exists(at("cut/store-rank1")));
}

// One rank gathers the shards of all ranks and generates the same text as from a run of one rank. The run does not change.
TEST_F(Ranks, OneRankGeneratesFromAllShards) {
  const auto said = [&](const std::string& run, const Words& more = {}) {
    const auto outcome = succeeded(terrace(Words{"generate", run, "--prompt", "The river", "--max-tokens", "40"} + more));
    return outcome.out;
  };
  const auto files = [&](const std::string& run) {
    std::vector<std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(at(run))) all.push_back(entry.path().string());
    std::ranges::sort(all);
    return all;
  };
  for (const auto& kept : {Words{}, Words{"--dtype", "bf16", "--recipe", "split-8bit"}, Words{"--dtype", "fp16"}}) {
    const auto with = [&](Words more) {
      more.insert(more.end(), kept.begin(), kept.end());
      return more;
    };
    const auto name = kept.empty() ? "fp32" : kept.back();
    ASSERT_EQ(0, train(threads(1, 0, "one-" + name, kept)).exit);
    const auto expected = said("one-" + name);
    struct Case {
      int dp, zero;
      Words more;
    };
    for (const auto& [dp, zero, more] : {Case{4, 3, {}},
                                         {4, 0, {}},
                                         {2, 1, {}},
                                         {4, 2, {"--shard-group", "2"}},
                                         {1, 0, {"--pp", "3"}},
                                         {2, 3, {"--pp", "2"}}}) {
      const auto run = fmt::format("{}-{}-{}-{}", name, dp, zero, more.empty() ? "" : more.back());
      succeeded(train(threads(dp, zero, run, with(more))));
      const auto before = files(run);
      EXPECT_EQ(expected, said(run)) << run;
      EXPECT_EQ(expected, said(run, {"--device-memory", "256KiB", "--host-memory", "128KiB"})) << run << ", by the disk";
      EXPECT_EQ(before, files(run)) << run;
    }
  }
  // A missing part is not replaced by anything.
  fs::remove_all(at("fp32-4-3-") / "store-rank2");
  expect_refusal(terrace({"generate", "fp32-4-3-", "--prompt", "a"}), 5,
                 {"is in no store of its ranks", "store-rank2 is missing", "bring the stores back"});
}

// The state is stored in shards for the original ranks; for other ranks it is distributed again, whenever their number changes.
TEST_F(Ranks, GoOnWithOtherRanks) {
  const auto with = [](int steps, Words more = {}) {
    more.insert(more.end(), {"--steps", std::to_string(steps), "--lr-schedule", "constant", "--resume", "auto"});
    return more;
  };
  const auto whole = succeeded(train(threads(1, 0, "whole", with(6))));
  ASSERT_EQ(0, train(threads(4, 3, "run", with(2))).exit);
  const auto second = succeeded(train(threads(2, 1, "run", with(3))));
  EXPECT_THAT(second.err + second.out, HasSubstr("the state of 4 ranks is redistributed to 2"));
  EXPECT_FALSE(fs::exists(at("run/store"))) << "the stores of the former ranks are still there";
  EXPECT_FALSE(fs::exists(at("run/store-rank3")));
  ASSERT_EQ(0, train(threads(2, 1, "run", with(4))).exit);  // with the same ranks
  succeeded(train(threads(1, 0, "run", with(5, {"--pp", "2"}))));
  EXPECT_EQ(0, terrace({"ckpt", "verify", "run"}).exit);
  // The micro-batches of a step cannot change.
  expect_refusal(train(on(1, 0, "run", with(6, {"--dp", "2"}))), 2, {"micro-batches a step: 8 then, 16 now"});
#ifdef TERRACE_MPIRUN
  const auto end = run(processes(2, 3, "run", with(6)));
#else
  const auto end = train(threads(2, 3, "run", with(6)));
#endif
  ASSERT_EQ(0, end.exit) << end.described;
  EXPECT_EQ(weights_of(whole), weights_of(end));
}

// Every rank fails, but only one has the reason: that one is reported, whichever ends first, and in whichever group of ranks
// the others wait.
TEST_F(Ranks, TheReasonIsToldAndNotItsConsequences) {
  struct Case {
    const char* name;
    int dp, zero;
    Words more;
  };
  for (const auto& [name, dp, zero, more] : {Case{"pipeline", 1, 0, {"--pp", "2"}}, {"hybrid", 4, 1, {"--shard-group", "2"}}}) {
    fs::create_directory(at(std::string(name) + "-nv"));
    const auto with = [&, dp = dp, zero = zero, run = std::string(name), &more = more](const char* steps) {
      return train(threads(dp, zero, run, Words{"--steps", steps, "--nvme-path", run + "-nv", "--resume", "auto"} + more));
    };
    succeeded(with("4"));
    const auto last = damage_second_moment(std::string(name) + "-nv");
    ASSERT_FALSE(last.is_null());
    for (int i = 0; i < 10; ++i)
      expect_refusal(with("8"), 5,
                     {fmt::format("chunk {} ({}", last.at("chunk").get<int>(), last.at("label").get<std::string>()),
                      "is not what was written"});
  }
}

// As if a rank died in the first commit: going back is only possible to the beginning.
TEST_F(Ranks, AFirstCommitThatARankLacksIsNone) {
  const auto with = [&](const std::string& run, const char* steps) {
    return train(threads(2, 1, run, {"--steps", steps, "--lr-schedule", "constant", "--resume", "auto"}));
  };
  const auto undo = [&] {
    fs::remove(at("run/result.json"));
    for (const auto* const name : {"commit.1", "index.1.json"}) remove_copies(at("run/store-rank1") / name);
    auto run = json_in("run/run.json");
    run["has_committed"] = false;
    scratch_.write("run/run.json", run.dump());
  };
  ASSERT_EQ(0, with("run", "4").exit);
  undo();
  const auto anew = succeeded(with("run", "8"));
  EXPECT_EQ(1U, anew.warnings("first commit")) << anew.described;
  EXPECT_EQ(weights_of(with("whole", "8")), weights_of(anew));
  EXPECT_EQ(steps("whole"), steps("run"));

  ASSERT_EQ(0, with("run", "9").exit);  // a second commit
  fs::remove(at("run/result.json"));
  for (const auto* const name : {"commit.1", "index.1.json", "commit.0", "index.2.json"})
    remove_copies(at("run/store-rank1") / name);
  expect_refusal(with("run", "10"), 5, {"rank 1", "has no commit", "store-rank1"});

  ASSERT_EQ(0, with("lost", "4").exit);
  fs::remove(at("lost/result.json"));
  fs::remove_all(at("lost/store-rank1"));
  expect_refusal(with("lost", "8"), 5, {"rank 1", "has no commit", "store-rank1"});
}

// There is no state that other ranks could share.
TEST_F(Ranks, ARunThatNeverCommittedBeginsAgainOnOtherRanks) {
  const Words more{"--steps", "4", "--lr-schedule", "constant", "--resume", "auto"};
  const auto whole = train(threads(2, 1, "whole", more));
  for (const std::string killed : {"before the first commit", "in it"}) {
    SCOPED_TRACE(killed);
    const auto run = "killed " + killed;
    Child child(launch(tiny("train", threads(4, 3, run, {"--steps", "4000", "--lr-schedule", "constant", "--json"}))));
    child.read_lines(2);
    child.send(SIGKILL);
    ASSERT_EQ(SIGKILL, child.wait().signal);
    if (killed == "in it") {  // some ranks have committed
      ASSERT_EQ(0, train(threads(4, 3, run, more)).exit);
      fs::remove(at(run) / "result.json");
      for (const auto* const name : {"commit.1", "index.1.json"}) remove_copies(at(run) / "store-rank2" / name);
      auto file = json_in(run + "/run.json");
      file["has_committed"] = false;
      for (const auto* const name : {"/run.json", "/run.copy.json"}) scratch_.write(run + name, file.dump());
    }
    const auto anew = succeeded(train(threads(2, 1, run, more)));
    EXPECT_EQ(killed == "in it" ? 1U : 0U, anew.warnings("first commit")) << anew.described;
    EXPECT_EQ(weights_of(whole), weights_of(anew));
    EXPECT_FALSE(fs::exists(at(run) / "store-rank2")) << "a rank that there is no more";
    EXPECT_EQ(0, terrace({"ckpt", "verify", run}).exit);
  }
}

// A lost shard is named, and nothing is changed.
TEST_F(Ranks, DoNotGoOnWithoutAShard) {
  const Words more{"--steps", "2", "--lr-schedule", "constant", "--resume", "auto"};
  ASSERT_EQ(0, train(threads(4, 3, "run", more)).exit);
  fs::rename(at("run/store-rank2"), at("elsewhere"));
  const Words longer{"--steps", "4", "--lr-schedule", "constant", "--resume", "auto"};
  expect_refusal(train(threads(2, 3, "run", longer)), 5, {"is in no store of its ranks", "store-rank2 is missing"});
  fs::rename(at("elsewhere"), at("run/store-rank2"));
  EXPECT_EQ(weights_of(train(threads(1, 0, "whole", longer))), weights_of(train(threads(2, 3, "run", longer))));
}

TEST_F(Ranks, ASignalStopsAllAfterTheSameStep) {
  const Words constant{"--lr-schedule", "constant", "--resume", "auto"};
  const auto more = [&](int steps) { return constant + Words{"--steps", std::to_string(steps)}; };
  Child child(launch(tiny("train", threads(3, 2, "run", more(5000)))));
  child.read_lines(8);
  child.send(SIGTERM);
  const auto stopped = child.wait();
  ASSERT_EQ(75, stopped.exit) << stopped.described;
  const auto last = nlohmann::json::parse(succeeded(terrace({"ckpt", "inspect", "run", "--json"})).out)["step"].get<int>() + 2;
  EXPECT_EQ(weights_of(train(threads(3, 2, "whole", more(last)))), weights_of(train(threads(3, 2, "run", more(last)))));
}

TEST_F(Ranks, WhatCannotBeIsRefusedOnce) {
  expect_refusal(train({"--dp", "2", "--zero", "4"}), 2, {"--zero", "at most 3"});
  const auto small = train(threads(2, 3, "small", {"--device-memory", "4KiB"}));
  expect_refusal(small, 3, {"does not fit into the device tier"});
}

#ifdef TERRACE_MPIRUN
TEST_F(Ranks, ProcessesEndInTheSameWeightsAsThreads) {
  const auto one = succeeded(train(threads(1, 0, "one")));
  for (const auto& [ranks, zero] : {std::pair{2, 1}, {4, 3}}) {
    const auto name = fmt::format("mpi{}-zero{}", ranks, zero);
    EXPECT_EQ(weights_of(one), weights_of(run(processes(ranks, zero, name)))) << name;
    EXPECT_EQ(steps("one"), steps(name)) << name;
  }
  for (const auto& [ranks, zero, schedule] : {std::tuple{1, 0, "1f1b"}, {2, 3, "interleaved"}}) {
    const auto name = fmt::format("mpi-{}", schedule);
    EXPECT_EQ(weights_of(one), weights_of(run(processes(ranks, zero, name, {"--pp", "2", "--schedule", schedule}, 2)))) << name;
    EXPECT_EQ(steps("one"), steps(name)) << name;
  }
}

TEST_F(Ranks, ProcessesWithSkipsEndInTheSameWeightsAsThreads) {
  const Words model{"--skips", "u", "--layers", "6"};
  const auto one = succeeded(train(threads(1, 0, "one", model)));
  for (const auto& [ranks, zero, pp, schedule] : {std::tuple{1, 0, 3, "gpipe"}, {1, 0, 2, "zb-v"}, {2, 3, 2, "1f1b"}}) {
    const auto name = fmt::format("mpi-{}", schedule);
    const auto many =
        succeeded(run(processes(ranks, zero, name, model + Words{"--pp", std::to_string(pp), "--schedule", schedule}, pp)));
    EXPECT_EQ(weights_of(one), weights_of(many)) << name;
    EXPECT_EQ(steps("one"), steps(name)) << name;
  }
}

// Each machine has its own profile; with it alone, its ranks would compute in another order.
TEST_F(Ranks, AllPlanWithTheFirstOnesProfile) {
  const auto profile = [&](const std::string& name, double copy, double matmul) {
    nlohmann::json rates{{"device", "cpu"}, {"threads", 1}, {"measured_at", "2026-01-01T00:00:00Z"}};
    for (const auto* const rate :
         {"disk_read_bytes_s", "disk_write_bytes_s", "disk_both_bytes_s", "memory_stream_bytes_s", "matmul_bf16_flop_s",
          "matmul_fp64_flop_s", "device_stream_bytes_s", "upload_bytes_s", "download_bytes_s"})
      rates[rate] = 2.5e9;
    for (const auto* const share : {"compute_beside_copy", "compute_beside_disk"}) rates[share] = 1;
    rates["disk_latency_s"] = 1e-4;
    rates["memory_copy_bytes_s"] = copy;
    rates["matmul_fp32_flop_s"] = matmul;
    scratch_.write(name, rates.dump());
  };
  profile("copies-slowly.json", 1e6, 1e12);
  profile("computes-slowly.json", 1e12, 1e6);
  const Words tight{"--device-memory", "1000KiB"};
  const auto with = [&](const std::string& run, const std::string& name, const Words& more = {}) {
    return tiny("train", on(2, 3, run, tight) + Words{"--dp", "2", "--machine-profile", name} + more);
  };
  const auto slow = succeeded(terrace(with("slow", "copies-slowly.json"))),
             fast = succeeded(terrace(with("fast", "computes-slowly.json")));
  ASSERT_NE(json_in("slow/plan.json").at("choice"), json_in("fast/plan.json").at("choice"));
  const auto both = succeeded(run(one_by_one(with("both", "copies-slowly.json"), with("both", "computes-slowly.json"))));
  EXPECT_EQ(weights_of(slow), weights_of(both));
  EXPECT_EQ(json_in("slow/plan.json").at("choice"), json_in("both/plan.json").at("choice"));
  const auto apart = run(one_by_one(with("apart", "copies-slowly.json", {"--order", "horizontal"}),
                                    with("apart", "copies-slowly.json", {"--order", "vertical"})));
  expect_refusal(apart, 2, {"order: horizontal on rank 0, vertical on rank 1", "the same flags"});
}

// MPI's own start waits for every process without a limit.
TEST_F(Ranks, ARankThatNeverStartsEndsTheOthers) {
  const auto words = tiny("train", {"--out-dir", "run", "--rank-deadline", "1"});
  const auto outcome = run(one_by_one(words, words, "sh -c 'kill -STOP $$'"));
  expect_refusal(
      outcome, 1,
      {"error: rank 0: waited 10 s for other ranks in the start of MPI\n", "debugger: rank 1 (process ", "`resume` auto"});
  EXPECT_FALSE(fs::exists(at("run")));
}

// As in a shell started by a launcher, or in a script that exports variables that it found there.
TEST_F(Ranks, VariablesThatALauncherLeftAreNamed) {
  auto left = launch(tiny("train"));
  left.environment["OMPI_COMM_WORLD_SIZE"] = "2";
  left.environment["OMPI_COMM_WORLD_RANK"] = "0";
  left.environment["ASAN_OPTIONS"] = "detect_leaks=0";
  const std::string advice =
      "if no launcher started this process, these variables are left over: env -u OMPI_COMM_WORLD_SIZE -u OMPI_COMM_WORLD_RANK "
      "terrace …";
  expect_refusal(run(left), 4, {"OMPI_COMM_WORLD_SIZE says that there are 2 ranks, but MPI has 1", advice});
  left.arguments.insert(left.arguments.end(), {"--pp", "3"});
  expect_refusal(run(left), 2, {"OMPI_COMM_WORLD_SIZE says that there are 2 ranks; " + advice});
  EXPECT_FALSE(fs::exists(at("run")));
}

// Each process may see one GPU only, which is its own: unless two see the same one.
TEST_F(Ranks, TwoProcessesDoNotShareAGpu) {
  const auto words = tiny("train", {"--device", "cuda:0", "--rank-deadline", "3"});
  const auto modules = at("modules");
  fs::create_directory(modules);
  const auto built = fs::path(TERRACE_PROGRAM).parent_path().parent_path() / "modules";
  fs::create_symlink(built / "terrace_mpi.so", modules / "terrace_mpi.so");
  fs::create_symlink(fs::path(TERRACE_FAKE_CUDA_FOLDER) / "terrace_cuda13.so", modules / "terrace_cuda13.so");
  const auto on = [&](const std::string& gpu_of_second) {
    auto started = one_by_one(words, words, "CUDA_VISIBLE_DEVICES=" + gpu_of_second);
    started.environment["CUDA_VISIBLE_DEVICES"] = "0";
    started.environment["LD_LIBRARY_PATH"] = TERRACE_FAKE_CUDA_FOLDER;
    started.environment["TERRACE_MODULE_PATH"] = modules.string();
    return run(started);
  };
  expect_refusal(on("0"), 4, {"ranks 0 and 1 compute on the same GPU, Imaginary H0 (FFFF:0A:00.0)"});
  // The made-up NCCL joins the ranks of one process only, so these two wait for each other until their deadline.
  EXPECT_THAT(on("1").err, AllOf(HasSubstr("joining 2 ranks in NCCL"), Not(HasSubstr("same GPU"))));
}

TEST_F(Ranks, ABindingToOneCoreIsNamed) {
  if (machine::allowed_cores().size() < 2) GTEST_SKIP() << "one core is all that there is";
  const auto warned = HasSubstr("warning: the launcher binds each rank to 1 of");
  EXPECT_THAT(run(without_launch(processes(2, 0, "free"))).err, Not(warned));
  auto bound = without_launch(processes(2, 0, "bound"));
  std::ranges::replace(bound.arguments, std::string("none"), std::string("core"));
  const auto outcome = succeeded(run(bound));
  EXPECT_THAT(outcome.err, warned) << outcome.described;
}

// A rank is killed during the run: the others end with an error that names it, and the run continues from its last commit.
TEST_F(Ranks, AKilledProcessEndsTheOthers) {
  const Words often{"--ckpt-interval", "1", "--steps", "2000", "--lr-schedule", "constant", "--resume", "auto"};
  // mpirun must not end the other ranks, so that their output is visible.
  Child child(without_launch(processes(2, 3, "killed", often), {"--enable-recovery"}));
  std::string pid;
  for (int i = 0; i < 600 && pid.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::ifstream log(at("killed/rank1.log"));
    for (std::string line; std::getline(log, line);)
      if (const auto place = line.find("process "); place != std::string::npos)
        pid = std::to_string(std::stoi(line.substr(place + 8)));
    std::error_code error;
    if (!fs::exists(at("killed/store-rank1/commit.1"), error)) pid.clear();
  }
  ASSERT_FALSE(pid.empty());
  ASSERT_EQ(0, ::kill(std::stoi(pid), SIGKILL));
  const auto outcome = child.wait();
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 0:"), HasSubstr("rank 1 (process " + pid + ") died"))) << outcome.described;

  const auto done = terrace({"ckpt", "inspect", "killed", "--json"});
  const auto steps_done = nlohmann::json::parse(done.out)["step"].get<int>();
  const Words two_more{"--steps", std::to_string(steps_done + 2), "--lr-schedule", "constant", "--resume", "auto"};
  const auto resumed = succeeded(run(processes(2, 3, "killed", two_more)));
  const auto whole = run(processes(2, 3, "whole", two_more));
  EXPECT_EQ(weights_of(whole), weights_of(resumed));
}
#endif

}  // namespace
}  // namespace terrace::test
