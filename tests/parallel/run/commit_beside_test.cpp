// A commit written while the next step computes: the step does not wait for it, but the next update does, and the disk holds
// the state at the begin of the commit.
#include <condition_variable>
#include <mutex>

#include <gmock/gmock.h>

#include <terrace/tests/support/folder_test.h>
#include <terrace/tests/support/toy_run.h>

#include <terrace/tests/parallel/zero/data_parallel_run.h>
#include <terrace/tests/support/kernel_files.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

// The kernel's file operations; while the gate is shut, syncs wait.
class GatedFiles final : public test::KernelFiles {
 public:
  int sync(int file) override {
    std::unique_lock lock(mutex_);
    ++syncs_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    if (fails_) return -EIO;
    lock.unlock();
    return KernelFiles::sync(file);
  }

  void shut() { set(false, false); }
  void open(bool fails = false) { set(true, fails); }
  void wait_for_a_sync() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return syncs_ > 0; });
  }

 private:
  void set(bool open, bool fails) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    fails_ = fails;
    syncs_ = 0;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true, fails_ = false;
  int syncs_ = 0;
};

class CommitBeside : public test::FolderTest {
 protected:
  // With `on_disk`, some of the state is on the disk; otherwise none.
  toy::RunOptions options(bool on_disk) const {
    toy::RunOptions o;
    o.store = folder_ / "run";
    o.durable = true;
    o.deadline = {};
    o.file_ops = gate_;
    if (!on_disk) return o;
    const auto smallest = plan(toy::make_model(o.sizes), toy::request_of(o), MachineProfile{}).smallest_bytes;
    o.disk_tier = true;
    o.budget = {smallest[Tier::device], 768 * kKiB, 256 * kMiB};
    return o;
  }
  // Hash of the weights after `steps` steps.
  std::uint64_t hash_after(std::uint64_t steps, toy::RunOptions o) const {
    o.store = folder_ / "other";
    o.file_ops = nullptr;
    o.steps = steps;
    return toy::run(o).hash;
  }
  std::uint64_t hash_on_disk(toy::RunOptions o, std::uint64_t steps) const {
    o.resume = true;
    o.file_ops = nullptr;
    toy::Training t(o);
    EXPECT_EQ(steps, t.steps_done());
    return t.hash();
  }
  const std::shared_ptr<GatedFiles> gate_ = std::make_shared<GatedFiles>();
};

// The gate opens only after the next step has computed, so a step that waited for the commit would never end.
TEST_F(CommitBeside, AStepIsComputedWhileTheCommitIsSynced) {
  for (const bool on_disk : {false, true}) {
    const auto o = options(on_disk);
    {
      toy::Training t(o);
      ASSERT_TRUE(t.planned.fits) << t.planned.refusal.why;
      for (int s = 0; s < 2; ++s) t.step();
      gate_->shut();
      t.trainer->begin_commit();
      gate_->wait_for_a_sync();
      std::vector<std::int32_t> tokens(t.tokens_a_step()), targets(tokens.size());
      std::vector<std::uint64_t> sequences;
      for (std::uint64_t i = 0; i < tokens.size() / static_cast<std::uint64_t>(o.shape.batch.seq); ++i)
        sequences.push_back(2 * tokens.size() / static_cast<std::uint64_t>(o.shape.batch.seq) + i);
      t.read(sequences, tokens, targets);
      const auto result = t.engine->step({.tokens = tokens, .targets = targets, .loss_scale = 1.0});
      EXPECT_TRUE(std::isfinite(result.loss_sum));
      EXPECT_FALSE(t.engine->store()->last_commit().has_value()) << "its syncs wait at the gate";
      gate_->open();
      t.engine->finish_commit();
      EXPECT_EQ(2U, t.engine->store()->last_commit()->step);
    }
    EXPECT_EQ(hash_after(2, o), hash_on_disk(o, 2)) << (on_disk ? "on disk" : "in memory");
    std::filesystem::remove_all(o.store);
  }
}

// Training and evaluation continue after such commits as if there had been none, and each commit holds the state of its own
// step.
TEST_F(CommitBeside, ChangesNoBit) {
  for (const bool on_disk : {false, true})
    for (const bool before_use : {true, false}) {
      auto o = options(on_disk);
      o.before_use = before_use;
      o.evaluate_between = true;
      constexpr std::uint64_t kSteps = 4;
      {
        toy::Training t(o);
        ASSERT_TRUE(t.planned.fits) << t.planned.refusal.why;
        for (std::uint64_t s = 1; s <= kSteps; ++s) {
          t.step();
          t.trainer->begin_commit();
          if (s == 2) {
            ASSERT_TRUE(t.trainer->evaluate(1));
          }
        }
        // The destructor waits for the last one.
      }
      EXPECT_EQ(hash_after(kSteps, o), hash_on_disk(o, kSteps)) << on_disk << before_use;
      std::filesystem::remove_all(o.store);
    }
}

// A commit beside a step moves no more than any other commit, and reserves no more memory.
TEST_F(CommitBeside, MovesWhatWasPlanned) {
  for (const bool on_disk : {false, true}) {
    auto o = options(on_disk);
    o.steps = 5;
    o.commit_every = 1;
    toy::Training t(o);
    ASSERT_TRUE(t.planned.fits) << t.planned.refusal.why;
    for (std::uint64_t s = 1; s <= o.steps; ++s) {
      EXPECT_EQ(t.planned.step_traffic.at(s - 1), t.step().back().result.moved) << "step " << s;
      t.trainer->begin_commit();
    }
    t.trainer->finish_commit();
    t.hash();
    for (const auto tier : kAllTiers) EXPECT_EQ(t.planned.peak_bytes[tier], t.engine->peak_bytes()[tier]) << name_of(tier);
  }
}

// If a commit is shorter than a step, its writes are hidden; if it is longer, only the excess adds time.
TEST_F(CommitBeside, ThePlanSaysWhatOneAdds) {
  const toy::RunOptions o;
  const auto model = toy::make_model(o.sizes);
  auto request = toy::request_of(o);
  request.commit_every = 2;
  auto profile = o.profile;
  const auto waited = plan(model, request, profile);
  EXPECT_EQ(waited.commit_seconds, waited.commit_added_seconds);
  request.commits_beside = true;
  const auto step_s = waited.times.seconds;
  for (const double steps : {0.5, 5.0}) {
    profile.disk_write = static_cast<double>(waited.commit_traffic.write) / (steps * step_s);
    const auto p = plan(model, request, profile);
    EXPECT_GE(p.commit_seconds, steps * step_s);
    EXPECT_LT(p.commit_added_seconds, p.commit_seconds - 0.3 * step_s) << steps;
    if (steps > 1) {
      EXPECT_GT(p.commit_added_seconds, p.commit_seconds - 2 * step_s);
    }
    EXPECT_EQ(waited.peak_bytes, p.peak_bytes);
  }
}

TEST_F(CommitBeside, OneThatFailsEndsTheNextStepAndLeavesThePreviousOne) {
  for (const bool on_disk : {false, true}) {
    const auto o = options(on_disk);
    {
      toy::Training t(o);
      t.step();
      t.trainer->commit();
      t.step();
      gate_->shut();
      t.trainer->begin_commit();
      gate_->open(true);
      EXPECT_THAT(test::thrown_by([&] { t.step(); }).what(), testing::StartsWith("commit 2 (step 2) could not be made"));
      gate_->open();
      EXPECT_THROW(t.trainer->commit(), Error) << "the store takes no more writes";
    }
    EXPECT_EQ(hash_after(1, o), hash_on_disk(o, 1));
    std::filesystem::remove_all(o.store);
  }
}

// Other ranks may have finished the commit by then. They still have the previous one, so all ranks resume from that.
TEST_F(CommitBeside, OneThatFailsOnOneRankLeavesAllAtThePreviousOne) {
  constexpr std::uint64_t kSteps = 6;
  toy::RunOptions o;
  o.shape = {{1, 8}, 2};
  o.data = {.ranks = 3, .zero = 2};
  o.disk_tier = true;
  o.budget = {kUnlimited, 2 * kMiB, 256 * kMiB};
  o.durable = true;
  o.deadline = {};
  const auto train = [&](const std::string& store, bool resume, std::uint64_t fails_at, std::uint64_t began_after) {
    std::vector<std::uint64_t> hashes(o.data.ranks);
    const auto errors = test::on_threads(3, {std::chrono::seconds(60)}, [&](test::Rank& rank) {
      const auto r = rank.comm->rank();
      auto own = toy::of_rank(o, r);
      own.store = folder_ / store / ("rank" + std::to_string(r));
      own.resume = resume;
      if (r == 1) own.file_ops = gate_;
      toy::Training t(own, rank.comm.get());
      EXPECT_EQ(began_after, t.steps_done());
      while (t.steps_done() < kSteps) {
        t.step();
        const auto done = t.steps_done();
        if (r == 1 && done == fails_at) gate_->open(true);
        if (done % 2 == 0) t.trainer->begin_commit();
      }
      t.trainer->finish_commit();
      hashes[static_cast<std::size_t>(r)] = t.hash();
    });
    gate_->open();
    for (const auto& error : errors) EXPECT_EQ(fails_at == 0, error.empty()) << error;
    if (fails_at != 0) {
      EXPECT_THAT(errors[1], testing::StartsWith("commit 2 (step 4) could not be made"));
    }
    return hashes;
  };
  const auto expected = train("whole", false, 0, 0);
  train("cut", false, 4, 0);
  EXPECT_EQ(expected, train("cut", true, 0, 2));
}

}  // namespace
}  // namespace terrace
