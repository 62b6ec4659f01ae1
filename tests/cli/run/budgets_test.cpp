// Budgets as users write them: decimal sizes, shares of odd numbers of ranks, limits far above the need, a disk that the plan
// does not use. They change neither the results of a run nor the agreement of its moves with its plan.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <terrace/tests/cli/ranks/on_ranks.h>

namespace terrace::test {
namespace {

using Budgets = Ranks;

// Four layers whose state and activations fill the disk if device and host are small.
const Words kModel{"--layers", "4", "--batch-size", "4", "--grad-accumulation", "6"};

TEST_F(Budgets, NeedNotBeWholePages) {
  const auto free = succeeded(train(kModel + Words{"--out-dir", "free"}));
  const Words budgets[] = {
      flags("--device-memory 3MB --host-memory 1MB --nvme-limit 30MB"),
      {"--device-memory", "3000001", "--host-memory", "1000001"},
      flags("--device-memory 2999999 --host-memory 1234567 --nvme-limit 29999999"),
      flags("--device-memory 3.1MB --host-memory 0.9MB --activations offload --durability none"),
  };
  for (std::size_t i = 0; i < std::size(budgets); ++i) {
    const auto run = "run" + std::to_string(i);
    EXPECT_EQ(weights_of(free), weights_of(train(kModel + budgets[i] + Words{"--nvme-path", "disk", "--out-dir", run}))) << i;
    EXPECT_EQ(steps("free"), steps(run)) << i;
  }
}

TEST_F(Budgets, OfAMachineMayBeDividedByThree) {
  const Words model{"--layers", "4", "--batch-size", "4"};
  const auto free = succeeded(train(on(3, 3, "free", model + Words{"--dp", "3"})));
  const Words tight{"--device-memory", "3MB", "--host-memory", "4MB", "--nvme-path", "disk", "--nvme-limit", "100MB"};
  EXPECT_EQ(weights_of(free), weights_of(train(on(3, 3, "run", model + tight + Words{"--dp", "3"}))));
  EXPECT_EQ(steps("free"), steps("run"));
}

// The plan reduces the disk to what it needs. The run must still decide as if the whole disk were there.
TEST_F(Budgets, ADiskThatThePlanDoesNotUseChangesNothing) {
  const Words model = flags("--layers 4 --batch-size 4 --optimizer sgd --steps 6 --durability none --eval-batches 0");
  for (const auto* const host : {"3MiB", "3100KB", "3300KB", "3500KB", "4MB"}) {
    succeeded(train(model + Words{"--device-memory", "4MiB", "--host-memory", host, "--nvme-path", "disk", "--out-dir", host}));
    const auto planned = json_in(std::string(host) + "/plan.json").at("walked").at("bytes");
    std::uint64_t uploaded = 0, written = 0;
    for (const auto& m : metrics(host)) {
      uploaded += m.at("offload").at("h2d_bytes").get<std::uint64_t>();
      written += m.at("offload").at("write_bytes").get<std::uint64_t>();
    }
    EXPECT_EQ(planned.at("h2d"), uploaded) << host;
    EXPECT_EQ(planned.at("write"), written) << host;
  }
}

TEST_F(Budgets, EachRankOfAPipelineHasTheDiskThatItNeeds) {
  const Words odd = flags(
      "--layers 3 --hidden 48 --heads 4 --kv-heads 2 --untied --seq-len 24 --batch-size 1 --pp 3 --dp 3 --zero 1 "
      "--grad-accumulation 4 --schedule zb-v --device-memory 500KiB --host-memory 900KiB --nvme-path disk");
  succeeded(train(odd));
}

// Everything fits into the device, but is moved through the host, where no action of the step computes.
TEST_F(Budgets, APipelineThatDoesNotFitIntoTheHostIsRefused) {
  const Words pipeline{"--pp", "3", "--grad-accumulation", "6", "--update", "device"};
  const auto refused = train(pipeline + Words{"--host-memory", "1KB"});
  expect_refusal(refused, 3, {"host tier", "--host-memory 3MiB would fit"});
  EXPECT_THAT(refused.err, Not(HasSubstr("largest action")));
  succeeded(train(pipeline + Words{"--host-memory", "3MiB"}));
}

// The search for a suggested value ends although no host memory is enough, because a step of another rank lacks space on its
// device. Without prefetching, the device tier lacks space with any host budget. So the search must not prefetch either.
TEST_F(Budgets, ASuggestionIsSearchedAtTheGivenPrefetchDepth) {
  const auto refused =
      train(flags("--model gpt2 --layers 2 --hidden 75 --heads 5 --seq-len 32 --batch-size 2 --ffn 51 --untied --dtype fp64 "
                  "--optimizer sgd --eval-batches 5 --steps 4 --grad-accumulation 4 --pp 3 --schedule pipedream-2bw "
                  "--drain-interval 2 --prefetch-depth 0 --recompute layer --activations offload --update 0.3 --durability "
                  "none --nvme-path disk --nvme-limit 2370890 --device-memory 600000 --host-memory 70958"));
  expect_refusal(refused, 3, {"host tier", "no value of --host-memory alone is enough"});
}

// A resumed run is planned like one that begins with all state on disk, whatever its earlier tiers held.
TEST_F(Budgets, AResumedRunThatDoesNotFitIsRefusedBeforeItBegins) {
  const Words run = flags(
      "--model gpt2 --layers 6 --hidden 60 --heads 6 --seq-len 8 --batch-size 3 --untied --skips u --lr-schedule constant "
      "--loss-scale 1024 --eval-batches 1 --grad-accumulation 4 --zero 2 --pp 2 --schedule pipedream-2bw --drain-interval 3 "
      "--durability commit --nvme-path disk --resume auto");
  const auto with = [&](const Words& more) { return train(run + more); };
  succeeded(with({"--steps", "3", "--device-memory", "2525812", "--host-memory", "2MiB", "--activations", "offload"}));
  const Words tight{"--steps", "6", "--host-memory", "3988000", "--prefetch-depth", "7", "--update", "device"};
  auto words = tight + Words{"--device-memory", "360000"};
  const auto refused = with(words);
  expect_refusal(refused, 3, {"device tier", "--device-memory 1MiB would fit"});
  words = tight;
  words.insert(words.end(), {"--device-memory", "1MiB"});
  succeeded(with(words));
}

TEST_F(Budgets, ARefusalThatNoSingleBudgetMendsIsPrinted) {
  const auto refused =
      train(flags("--model gpt2 --layers 1 --hidden 96 --heads 6 --data-format bytes --vocab 300 --seq-len 13 --ffn 93 "
                  "--untied --dtype fp16 --optimizer lion --loss-scale 1024 --canonical-reduction --eval-batches 2 --steps 8 "
                  "--grad-accumulation 3 --dp 3 --pp 3 --schedule pipedream-2bw --drain-interval 4 --recompute none "
                  "--durability off --nvme-path disk --host-memory 1KB --device-memory 382163"));
  expect_refusal(refused, 3, {"host tier", "no value of --host-memory alone is enough"});
}

// It begins with all state on disk, so it uses more disk space than a run that starts fresh.
TEST_F(Budgets, AResumedRunHasTheDiskThatItNeeds) {
  const Words model = flags(
      "--layers 1 --hidden 96 --heads 6 --data-format bytes --vocab 263 --seq-len 13 --batch-size 5 --optimizer lamb --recipe "
      "8bit --grad-clip 0 --canonical-reduction --grad-accumulation 4 --nvme-path disk");
  ASSERT_EQ(0, train(model + Words{"--steps", "2"}).exit);
  const auto rest = succeeded(train(
      model +
      flags(
          "--steps 5 --resume auto --prefetch-depth 1 --order vertical --group 2 --host-memory 34KB --device-memory 3100000")));
  const auto whole = train(model + Words{"--steps", "5", "--out-dir", "whole"});
  EXPECT_EQ(weights_of(whole), weights_of(rest));
}

// A cgroup that limits the memory of one program. Needs root and a usable memory controller.
class SmallCgroup {
 public:
  explicit SmallCgroup(const std::string& limit) {
    const bool first = std::filesystem::exists("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    folder_ = std::filesystem::path(first ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup") /
              ("budgets-test-" + std::to_string(::getpid()));
    std::error_code error;
    std::filesystem::create_directory(folder_, error);
    std::ofstream file(folder_ / (first ? "memory.limit_in_bytes" : "memory.max"));
    usable_ = !error && static_cast<bool>(file << limit << std::flush);
  }
  SmallCgroup(const SmallCgroup&) = delete;
  SmallCgroup& operator=(const SmallCgroup&) = delete;
  ~SmallCgroup() {
    std::error_code ignored;
    std::filesystem::remove(folder_, ignored);
  }
  [[nodiscard]] bool usable() const { return usable_; }
  void enter() const { std::ofstream(folder_ / "cgroup.procs") << ::getpid() << std::flush; }

 private:
  std::filesystem::path folder_;
  bool usable_ = false;
};

// The state of this model is larger than the budgets, so all tiers are used. Weights that are saved are read twice, for the
// file and for their hash. The plan includes the chunks that the second reading keeps in memory.
TEST_F(Budgets, SavedWeightsAreReadAsPlanned) {
  const Words model = flags("--layers 5 --batch-size 1 --optimizer adafactor --recipe 8bit --steps 6 --untied");
  const Words pipeline = flags(
      "--dp 2 --zero 1 --pp 2 --canonical-reduction --grad-accumulation 2 --schedule pipedream-2bw --drain-interval 3 "
      "--grad-clip 0 --update host");
  succeeded(train(on(4, 2, "run", model + pipeline + Words{"--prefetch-depth", "3", "--nvme-path", "disk", "--save", "w.st"})));
  EXPECT_EQ(json_in("run/plan.json").at("ranks").at("peak_bytes"), json_in("run/result.json").at("peak_bytes"));
}

TEST_F(Budgets, AutoLeavesRoomForTheProgram) {
  const SmallCgroup group("176M");
  if (!group.usable()) GTEST_SKIP() << "no memory cgroup can be made here";
  auto started = launch(tiny("train", flags("--layers 6 --hidden 256 --batch-size 8 --seq-len 256 --steps 2 --device-memory "
                                            "auto --host-memory auto --nvme-path disk")));
  started.in_child = [&] { group.enter(); };
  succeeded(run(started));
}

// Llama 70B on one device: large chunks, so that planning takes seconds, but still several in every layer.
TEST_F(Budgets, AModelOf70BillionParametersIsPlanned) {
  const auto planned =
      succeeded(terrace(flags("plan --layers 80 --hidden 8192 --heads 64 --kv-heads 8 --ffn 28672 --data-format bytes --vocab "
                              "128256 --untied --dtype bf16 --seq-len 4096 --batch-size 1 --assumed-costs --device-memory "
                              "24GiB --host-memory 100GiB --nvme-path disk --nvme-limit 20TiB --json")));
  const auto plan = nlohmann::json::parse(planned.out);
  const auto chunks = plan.at("parameters").get<double>() / plan.at("chunk_elements").get<double>();
  EXPECT_LT(chunks, 5000);
  EXPECT_GT(chunks, 4 * 160);
}

// 43e12 parameters: the refusal is computed directly, because a plan's walk would take minutes and gigabytes.
TEST_F(Budgets, AModelFarTooLargeIsRefusedWithoutAWalk) {
  const auto refused =
      terrace(flags("plan --layers 1000 --hidden 60000 --heads 100 --assumed-costs --device-memory 24GiB --host-memory 100GiB "
                    "--nvme-path disk"));
  expect_refusal(refused, 3, {"device tier", "layers.999.mlp", "--device-memory must be more than 219.4GiB"});
}

// Neither value alone would help. The printed pair works.
TEST_F(Budgets, ThatAreBothTooSmallAreAnsweredWithAPair) {
  const std::string before = "alone is enough: ";
  const auto refused = train(kModel + Words{"--device-memory", "200KB", "--host-memory", "200KB", "--out-dir", "none"});
  expect_refusal(refused, 3, {before + "--", " would fit"});
  std::istringstream said(refused.err.substr(refused.err.find(before) + before.size()));
  Words pair;
  for (std::string word; said >> word && word != "would";) pair.push_back(word);
  ASSERT_EQ(4U, pair.size()) << refused.described;
  succeeded(train(kModel + pair));
}

TEST_F(Budgets, ALimitOfTheDiskIsNoReservation) {
  succeeded(
      train(kModel + Words{"--device-memory", "3MB", "--host-memory", "1MB", "--nvme-path", "disk", "--nvme-limit", "900TiB"}));
}

}  // namespace
}  // namespace terrace::test
