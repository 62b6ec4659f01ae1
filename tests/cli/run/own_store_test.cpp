// A run and its store: a run never reads, replaces or removes what another run has committed, whatever was copied, moved or
// mounted elsewhere; and a run that is only read does not change.
#include <csignal>
#include <fstream>
#include <map>

#include <terrace/core/base/file_lock.h>
#include <terrace/core/base/files.h>
#include <terrace/offload/store/store_index.h>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

class OwnStore : public Cli {
 protected:
  [[nodiscard]] Outcome verify(const std::string& run) const { return terrace({"ckpt", "verify", run}); }
  [[nodiscard]] Outcome go_on(const std::string& run, const char* steps, const Words& more = {}) const {
    return train(Words{"--resume", run, "--steps", steps} + more);
  }
  // The only store in this folder.
  [[nodiscard]] fs::path store_in(const std::string& folder) const { return *fs::directory_iterator(at(folder)); }
  [[nodiscard]] static store::CommitRecord record(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    const auto read = store::parse_record({std::istreambuf_iterator<char>(in), {}});
    EXPECT_TRUE(read) << file;
    return read.value_or(store::CommitRecord{});
  }
  // Removes the ids, as in runs of earlier versions.
  void forget_ids(const std::string& run, const fs::path& store) const {
    auto file = json_in(run + "/run.json");
    for (const auto* const member : {"run_id", "former_run_ids"}) file.erase(member);
    for (const auto* const name : {"/run.json", "/run.copy.json"}) scratch_.write(run + name, file.dump());
    for (const auto* const name : {"commit.0", "commit.1"}) {
      if (!fs::exists(store / name)) continue;
      auto without = record(store / name);
      without.commit.run_id.clear();
      for (const auto* const copy : {"", ".copy"})
        std::ofstream(store / (std::string(name) + copy)) << store::write_record(without);
    }
  }
  // Everything below these folders: paths, modification times and contents.
  [[nodiscard]] std::map<std::string, std::pair<fs::file_time_type, std::string>> everything(const Words& folders) const {
    std::map<std::string, std::pair<fs::file_time_type, std::string>> all;
    for (const auto& folder : folders)
      for (const auto& entry : fs::recursive_directory_iterator(at(folder))) {
        auto& [time, text] = all[entry.path().string()];
        time = entry.last_write_time();
        std::ifstream in(entry.path(), std::ios::binary);
        if (entry.is_regular_file()) text.assign(std::istreambuf_iterator<char>(in), {});
      }
    return all;
  }
};

TEST_F(OwnStore, ARunAtThePathOfAMovedOneBeginsOnlyElsewhere) {
  ASSERT_EQ(0, train({"--nvme-path", "disk"}).exit);
  EXPECT_EQ(json_in("run/run.json").at("run_id"), record(store_in("disk") / "commit.1").commit.run_id);
  fs::rename(at("run"), at("moved"));
  const auto before = everything({"disk"});
  expect_refusal(train({"--nvme-path", "disk"}), 2, {"disk/terrace-", "was moved", "terrace ckpt copy"});
  expect_refusal(train({"--nvme-path", "disk", "--resume", "auto"}), 5, {"disk/terrace-", "was moved", "terrace ckpt copy"});
  EXPECT_EQ(before, everything({"disk"}));
  EXPECT_EQ(0, verify("moved").exit);
  // As the refusal suggests.
  ASSERT_EQ(0, terrace({"ckpt", "copy", "moved", "own"}).exit);
  ASSERT_EQ(0, terrace({"ckpt", "rm", "moved"}).exit);
  succeeded(train({"--nvme-path", "disk"}));
  const auto whole = train({"--out-dir", "whole", "--steps", "6"}), moved = succeeded(go_on("own", "6"));
  EXPECT_EQ(weights_of(whole), weights_of(moved));
}

// The store of another rank, or of an earlier layout, also belongs to the other run.
TEST_F(OwnStore, AnyStoreOfAMovedRunIsSeen) {
  const Words disk{"--nvme-path", "disk"};
  ASSERT_EQ(0, train(disk + Words{"--dp", "2", "--zero", "1"}).exit);
  const auto other = go_on("run", "6", disk + Words{"--dp", "1", "--grad-accumulation", "2"});  // one rank with a new store
  ASSERT_EQ(0, other.exit) << other.described;
  EXPECT_THAT(store_in("disk").string(), HasSubstr("-layout2"));
  fs::rename(at("run"), at("moved"));
  expect_refusal(train({"--nvme-path", "disk"}), 2, {"-layout2", "was moved", "terrace ckpt copy"});
  EXPECT_EQ(0, verify("moved").exit);
}

TEST_F(OwnStore, OfTwoCopiesOfARunTheStoreIsThatOfTheOneThatWentOn) {
  ASSERT_EQ(0, train({"--nvme-path", "disk", "--ckpt-interval", "2"}).exit);
  fs::copy(at("run"), at("copy"), fs::copy_options::recursive);
  EXPECT_EQ(0, verify("copy").exit) << "nothing was written since";
  ASSERT_EQ(0, go_on("run", "6").exit);
  const auto before = everything({"disk"});
  for (const auto& words :
       {Words{"ckpt", "verify", "copy"}, Words{"ckpt", "inspect", "copy"}, Words{"ckpt", "list", "copy"},
        Words{"ckpt", "copy", "copy", "new"}, Words{"ckpt", "export", "copy", "new"},
        Words{"generate", "copy", "--prompt", "The"}, Words{"eval", "copy", "--data", "corpus.txt"},
        tiny("train", {"--resume", "copy", "--steps", "8"}), tiny("train", {"--resume", "copy", "--steps", "8", "--force"})})
    expect_refusal(terrace(words), 5, {"belongs to another run", "the run in copy", "terrace ckpt copy"});
  EXPECT_FALSE(fs::exists(at("new")));
  const auto removed = succeeded(terrace({"ckpt", "rm", "copy"}));
  EXPECT_EQ(1U, removed.warnings("belongs to another run now, and stays")) << removed.described;
  EXPECT_EQ(before, everything({"disk"}));
  EXPECT_EQ(0, verify("run").exit);
  EXPECT_EQ(0, go_on("run", "8").exit);
}

// An older run.json of the same run, from a backup, needs only one edit to match again.
TEST_F(OwnStore, ARunFileOfABackupIsMendedAsItsRefusalSays) {
  ASSERT_EQ(0, train({}).exit);
  auto old = json_in("run/run.json");
  ASSERT_EQ(0, go_on("run", "6").exit);
  const auto now = json_in("run/run.json").at("run_id").get<std::string>();
  const auto put_back = [&] {
    for (const auto* const name : {"run/run.json", "run/run.copy.json"}) scratch_.write(name, old.dump());
  };
  put_back();
  expect_refusal(verify("run"), 5, {"belongs to another run", "write the run_id", now});
  old["run_id"] = now;
  put_back();
  EXPECT_EQ(0, go_on("run", "8").exit);
}

// Starts that are killed before they commit, and a commit of an earlier start before a damaged one.
TEST_F(OwnStore, TheRunKnowsEveryIdThatItsStoreMayHave) {
  ASSERT_EQ(0, train({"--ckpt-interval", "2"}).exit);
  for (int killed = 0; killed < 2; ++killed) {
    Child child(launch(tiny("train", {"--resume", "run", "--steps", "4000", "--json"})));
    child.read_lines(2);
    child.send(SIGKILL);
    ASSERT_EQ(SIGKILL, child.wait().signal);
    EXPECT_EQ(0, verify("run").exit);
  }
  const auto known = json_in("run/run.json");
  EXPECT_EQ(2U, known.at("former_run_ids").size()) << known;
  ASSERT_EQ(0, go_on("run", "5").exit);
  const auto finished = json_in("run/run.json");
  EXPECT_EQ(1U, finished.at("former_run_ids").size()) << "that of the commit before the last one: " << finished;
  for (const auto* const copy : {"run/store/commit.1", "run/store/commit.1.copy"}) scratch_.write(copy, "damaged");
  const auto back = succeeded(go_on("run", "6"));
  EXPECT_EQ(1U, back.warnings("going back to commit 2 (step 4)")) << back.described;
  EXPECT_EQ(weights_of(train({"--out-dir", "whole", "--steps", "6"})), weights_of(back));
}

TEST_F(OwnStore, ARunWithoutAnIdGoesOnAndGetsOne) {
  ASSERT_EQ(0, train({"--nvme-path", "disk", "--ckpt-interval", "2"}).exit);
  forget_ids("run", store_in("disk"));
  EXPECT_EQ(0, verify("run").exit);
  fs::copy(at("run"), at("copy"), fs::copy_options::recursive);
  const auto more = succeeded(go_on("run", "6"));
  EXPECT_EQ(weights_of(train({"--out-dir", "whole", "--steps", "6"})), weights_of(more));
  EXPECT_EQ(json_in("run/run.json").at("run_id"), record(store_in("disk") / "commit.1").commit.run_id);
  expect_refusal(verify("copy"), 5, {"belongs to another run", "no run_id"});
  EXPECT_EQ(0, verify("run").exit);
}

// After a restart, the same disk is mounted elsewhere.
TEST_F(OwnStore, AStoreOnADiskThatIsMountedElsewhereIsFound) {
  fs::create_directory(at("second"));
  ASSERT_EQ(0, train({"--nvme-path", "disk", "--nvme-path", "second", "--steps", "4"}).exit);
  fs::create_directory(at("mnt"));
  for (const auto* const disk : {"disk", "second"}) fs::rename(at(disk), at("mnt") / disk);
  expect_refusal(go_on("run", "6"), 5, {"the directory is missing", "--nvme-path"});
  const Words here{"--nvme-path", "mnt/disk", "--nvme-path", "mnt/second"};
  for (const auto& words : {Words{"ckpt", "verify", "run"}, Words{"generate", "run", "--prompt", "The", "--max-tokens", "2"}}) {
    succeeded(terrace(words + here));
  }
  const auto found = succeeded(go_on("run", "6", here));
  EXPECT_EQ(0, verify("run").exit) << "it is written down";
  EXPECT_EQ(weights_of(train({"--out-dir", "whole", "--steps", "6"})), weights_of(found));
  // Another disk at the same path need not contain the same store.
  fs::rename(at("mnt"), at("other"));
  fs::copy(at("run"), at("copy"), fs::copy_options::recursive);
  const Words there{"--nvme-path", "other/disk", "--nvme-path", "other/second"};
  ASSERT_EQ(0, go_on("run", "8", there).exit);
  expect_refusal(go_on("copy", "8", there), 5, {"the directory is missing"});
}

TEST_F(OwnStore, ARankThatIsAddedGoesToTheDiskThatIsThereNow) {
  ASSERT_EQ(0, train({"--nvme-path", "disk", "--steps", "4", "--grad-accumulation", "2"}).exit);
  fs::rename(at("disk"), at("moved"));
  succeeded(go_on("run", "6", {"--nvme-path", "moved", "--dp", "2", "--grad-accumulation", "1"}));
  EXPECT_FALSE(fs::exists(at("disk")));
  EXPECT_EQ(0, verify("run").exit);
}

// With so little memory that even keys and values go to the disk.
TEST_F(OwnStore, GenerateLeavesTheRunAsItIs) {
  const Words little{"--device-memory", "192KiB", "--host-memory", "64KiB"};
  for (const auto& ranks : {Words{}, Words{"--dp", "2", "--zero", "1"}}) {
    SCOPED_TRACE(ranks.size());
    fs::remove_all(at("run")), fs::remove_all(at("disk"));
    fs::create_directory(at("disk"));
    succeeded(train(Words{"--nvme-path", "disk", "--device-memory", "1MiB", "--host-memory", "1MiB"} + ranks));
    const auto before = everything({"run", "disk"});
    const Words words{"generate", "run", "--prompt", "The", "--max-tokens", "40", "--temperature", "0"};
    // Another reader is active at the same time.
    std::vector<files::FileHandle> locks;
    for (const auto& store : fs::directory_iterator(at("disk"))) {
      locks.emplace_back(::open((store.path() / "lock").c_str(), O_RDONLY | O_CLOEXEC));
      ASSERT_EQ(files::Locked::yes, files::try_lock(locks.back().get(), LOCK_SH));
    }
    const auto much = succeeded(terrace(words + Words{"--device-memory", "64MiB", "--host-memory", "64MiB"})),
               few = succeeded(terrace(words + little));
    EXPECT_EQ(much.out, few.out);
    EXPECT_EQ(before, everything({"run", "disk"}));
  }
}

}  // namespace
}  // namespace terrace::test
