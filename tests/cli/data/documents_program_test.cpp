// Documents from a user's view: --document-separator, on every mesh, however the batch is split, resumed, and used to generate.
#include <cmath>

#include <terrace/tests/cli/ranks/on_ranks.h>

namespace terrace::test {
namespace {

class DocumentsProgram : public Ranks {
 protected:
  // The corpus has a full stop after each sentence, so a sequence has two or three documents.
  [[nodiscard]] static Words cut(const std::string& run, const Words& more) {
    return Words{"--document-separator", "46", "--grad-accumulation", "4", "--out-dir", run} + more;
  }
};

TEST_F(DocumentsProgram, EveryMeshTrainsWhatOneRankTrains) {
  const auto one = succeeded(train(cut("one", {})));
  for (const auto& [run, more] :
       {std::pair<std::string, Words>{"disk", {"--nvme-path", ".", "--device-memory", "2MiB", "--host-memory", "8MB"}},
        {"dp2", {"--dp", "2", "--zero", "3", "--grad-accumulation", "2"}},
        {"tp2", {"--tp", "2", "--sp"}},
        {"grid", {"--tp", "4", "--tp-mode", "2d", "--sp"}},
        {"pp2", {"--pp", "2", "--zero", "1"}},
        {"cp2-dp2", {"--cp", "2", "--dp", "2", "--zero", "2", "--grad-accumulation", "2"}},
        {"ring4", {"--cp", "4", "--cp-mode", "ring", "--zero", "1"}},
        {"both4", {"--cp", "4", "--cp-mode", "both"}}}) {
    const auto many = succeeded(train(cut(run, more)));
    expect_near("one", run);
    if (run == "disk") {
      EXPECT_EQ(weights_of(one), weights_of(many));
    }
  }
#ifdef TERRACE_MPIRUN
  succeeded(run(apart(2, tiny("train", cut("processes", {"--dp", "2", "--grad-accumulation", "2"})))));
  expect_near("one", "processes");
#endif
}

TEST_F(DocumentsProgram, TheBatchMayBeCutInAnyWay) {
  for (const auto& [run, rows, micro_batches] : {std::tuple{"whole", "8", "1"}, {"halves", "4", "2"}, {"rows", "1", "8"}}) {
    succeeded(train({"--document-separator", "46", "--dtype", "fp64", "--batch-size", rows, "--grad-accumulation",
                     micro_batches, "--eval-batches", micro_batches, "--out-dir", run}));
    expect_near("whole", run, 1e-11);
  }
  // Without documents the loss is different.
  ASSERT_EQ(0, train({"--dtype", "fp64", "--batch-size", "8", "--out-dir", "joined"}).exit);
  EXPECT_GT(std::abs(steps("joined").front().loss - steps("whole").front().loss), 1e-6);
}

TEST_F(DocumentsProgram, ARunGoesOnWithItsSeparatorAndGenerates) {
  const auto whole = train(cut("whole", {"--steps", "3"}));
  ASSERT_EQ(0, train(cut("run", {"--steps", "2"})).exit);
  expect_refusal(train(cut("run", {"--steps", "3", "--resume", "auto", "--document-separator", "32"})), 2,
                 {"document-separator: 46", "32"});
  EXPECT_EQ(weights_of(whole), weights_of(train(cut("run", {"--steps", "3", "--resume", "auto", "--verify-resident"}))));
  EXPECT_EQ(0, terrace({"generate", "run", "--prompt", "the ", "--max-tokens", "5"}).exit);
  expect_refusal(train(cut("none", {"--document-separator", "256"})), 2,
                 {"--document-separator 256 with --vocab 256", "at most 255"});
  expect_refusal(train(cut("none", {"--document-separator", "-2"})), 2, {"document-separator"});
}

}  // namespace
}  // namespace terrace::test
