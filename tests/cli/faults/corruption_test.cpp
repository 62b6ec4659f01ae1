// Stored state that differs from what was written is never used for training. The run exits with 5, names the place and changes
// nothing; or it goes back to an intact older commit with a warning.
#include <sys/syscall.h>

#include <cerrno>
#include <fstream>
#include <map>

#include <terrace/offload/store/store_index.h>

#include <terrace/tests/cli/cli_test.h>
#include <terrace/tests/cli/faults/forbidden_call.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;
class Corruption : public Cli {
 protected:
  // Two commits, after steps 2 and 4; the test later trains to step 6.
  void SetUp() override { succeeded(train({"--ckpt-interval", "2"})); }
  [[nodiscard]] Outcome go_on() const { return train({"--resume", "auto", "--steps", "6"}); }
  [[nodiscard]] Outcome verify() const { return terrace({"ckpt", "verify", "run"}); }
  // Flips one bit of the byte at `offset`; a negative offset counts from the end.
  void flip(const std::string& name, std::int64_t offset) const {
    std::fstream file(at(name), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset, offset < 0 ? std::ios::end : std::ios::beg);
    const auto position = file.tellg();
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(position);
    file.put(byte);
    ASSERT_TRUE(file.good()) << name;
  }
  void flip_copies(const std::string& name, std::int64_t offset) const {
    for (const auto* const copy : {"", ".copy"}) flip(name + copy, offset);
  }
  void expect_corrupt(const std::vector<std::string>& said) const {
    expect_refusal(verify(), 5, said);
    expect_refusal(go_on(), 5, said);
  }
};

TEST_F(Corruption, AFlippedBitInAnyChunkIsFound) {
  const auto chunks = json_in("run/store/index.2.json").at("chunks");
  ASSERT_GT(chunks.size(), 10U);
  for (const auto i : {std::size_t{0}, chunks.size() / 2, chunks.size() - 1}) {
    const auto& chunk = chunks.at(i);
    const auto offset = chunk.at("offset").get<std::int64_t>() + chunk.at("bytes").get<std::int64_t>() / 2;
    flip("run/store/data", offset);
    expect_corrupt({"chunk " + chunk.at("chunk").dump() + " (", "is not what was written", "run/store/data",
                    "offset " + chunk.at("offset").dump(), "expected " + chunk.at("xxh3").get<std::string>()});
    flip("run/store/data", offset);
  }
  EXPECT_EQ(0, verify().exit);
  EXPECT_EQ(0, go_on().exit);
}

TEST_F(Corruption, GenerationDoesNotReadIt) {
  const auto chunk = json_in("run/store/index.2.json").at("chunks").at(0);
  ASSERT_EQ(0, chunk.at("kind")) << "not a parameter";
  flip("run/store/data", chunk.at("offset"));
  expect_refusal(terrace({"generate", "run", "--prompt", "The"}), 5, {"is not what was written"});
}

TEST_F(Corruption, DataThatIsCutShortOrGone) {
  const auto bytes = scratch_.read("run/store/data");
  fs::resize_file(at("run/store/data"), 4096);
  expect_refusal(verify(), 5, {"run/store/data", "it has 4096 bytes"});
  scratch_.write("run/store/data", bytes);
  fs::remove(at("run/store/data"));
  expect_corrupt({"run/store/data", "the file is missing"});
}

TEST_F(Corruption, ADamagedNewestCommitGoesBackToTheOneBefore) {
  const auto whole = train({"--out-dir", "whole", "--steps", "6"});
  flip_copies("run/store/index.2.json", 100);
  const auto outcome = succeeded(go_on());
  EXPECT_EQ(1U, outcome.warnings("going back to commit 1 (step 2)")) << outcome.described;
  EXPECT_EQ(weights_of(whole), weights_of(outcome));
  EXPECT_EQ(steps("whole"), steps("run"));
}

// Every chunk has been overwritten since the first commit, so going back is impossible.
TEST_F(Corruption, AFlippedBitInTheNewestRecordOrIndexCostsNothing) {
  const auto whole = train({"--out-dir", "whole", "--steps", "6"});
  const std::vector<std::string> names{"commit.0", "commit.0.copy", "index.2.json", "index.2.json.copy"};
  for (const auto& name : names) {
    SCOPED_TRACE(name);
    fs::copy(at("run"), at("again"), fs::copy_options::recursive);
    flip("again/store/" + name, 100);
    expect_refusal(terrace({"ckpt", "verify", "again"}), 5, {"store/" + name + ": the", "is damaged", "0 of "});
    const auto outcome = succeeded(train({"--resume", "auto", "--steps", "6", "--out-dir", "again"}));
    EXPECT_EQ(1U, outcome.warnings("commit 2 (step 4) is intact")) << outcome.described;
    EXPECT_EQ(weights_of(whole), weights_of(outcome));
    EXPECT_EQ(steps("whole"), steps("again"));
    EXPECT_EQ(0, terrace({"ckpt", "verify", "again"}).exit) << "not repaired";
    fs::remove_all(at("again"));
  }
}

// A later version of terrace wrote the run: it counts as undamaged, and is not overwritten.
TEST_F(Corruption, ARunOfAnotherVersionIsRefusedUntouched) {
  const auto everything = [&] {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(at("run")))
      if (const auto path = entry.path().string(); entry.is_regular_file()) all[path] = scratch_.read(path);
    return all;
  };
  const auto later = [&](const std::string& name) {
    auto object = json_in(name);
    object.erase("xxh3");
    object["version"] = 3;
    scratch_.write(name, object.dump(2) + "\n");
  };
  const auto expect_refused = [&](const std::string& file) {
    SCOPED_TRACE(file);
    const auto before = everything();
    for (const auto& outcome :
         {go_on(), train({"--resume", "run", "--steps", "6", "--force"}), verify(), terrace({"ckpt", "inspect", "run"}),
          terrace({"ckpt", "copy", "run", "copy"}), terrace({"generate", "run", "--prompt", "The"})}) {
      expect_refusal(outcome, 2, {file, "has version 3, and this program reads version ", "version of terrace that wrote it"});
      EXPECT_THAT(outcome.err, Not(HasSubstr("check the disk")));
    }
    EXPECT_EQ(before, everything());
    EXPECT_FALSE(fs::exists(at("copy")));
  };
  const auto record = scratch_.read("run/store/commit.0");
  auto body = record.substr(record.find('\n') + 1);
  const std::string version = R"("version": )";
  body.replace(body.find(version), version.size() + 1, version + "3");
  scratch_.write("run/store/commit.0", store::with_checksum(body));
  expect_refused("run/store/commit.0");
  scratch_.write("run/store/commit.0", record);
  const auto run_file = scratch_.read("run/run.json");
  later("run/run.json");
  expect_refused("run/run.json");
  scratch_.write("run/run.json", run_file);
  later("run/result.json");
  const auto result = everything();
  expect_refusal(go_on(), 2, {"run/result.json", "has version 3"});
  EXPECT_EQ(result, everything());
  fs::remove(at("run/result.json"));
  const auto lines = scratch_.read("run/metrics.jsonl");
  scratch_.write("run/metrics.jsonl", R"({"step":1,"version":2})" + ("\n" + lines));
  expect_refusal(go_on(), 2, {"run/metrics.jsonl, line 1", "has version 2"});
}

// Its copy is intact, so the run does not depend on this one file.
TEST_F(Corruption, ARunFileThatCannotBeReadIsReplacedByItsCopy) {
  fs::remove(at("run/run.json"));
  fs::create_directory(at("run/run.json"));
  const auto outcome = succeeded(verify());
  EXPECT_EQ(1U, outcome.warnings("run.copy.json is used")) << outcome.described;
}

// oneDNN computes other bits with other instruction sets.
TEST_F(Corruption, AnotherProcessorIsNamed) {
  const auto go_on_with = [&](const std::string& run, const char* set, const char* steps) {
    auto launched = launch(tiny("train", {"--resume", "auto", "--out-dir", run, "--steps", steps}));
    launched.environment["DNNL_MAX_CPU_ISA"] = set;
    return terrace::test::run(launched);
  };
  EXPECT_EQ(0U, go_on().warnings("other bits"));
  const auto recorded = json_in("run/run.json").at("computed_with").get<std::string>();
  EXPECT_THAT(recorded, HasSubstr("fp32 products of oneDNN "));
  const auto other = succeeded(go_on_with("run", "SSE41", "7"));
  EXPECT_EQ(1U, other.warnings("computed with " + recorded + ", and continues with fp32 products of oneDNN"))
      << other.described;
  EXPECT_EQ(0U, go_on_with("run", "SSE41", "8").warnings("other bits"));
  // Its first steps cannot be compared here: the losses differ, but not because of offloading.
  expect_refusal(terrace(tiny("train", {"--resume", "auto", "--out-dir", "run", "--steps", "8", "--verify-resident"})), 2,
                 {"--verify-resident: the run in run was computed with", "another --out-dir"});
  auto run = json_in("run/run.json");  // from a version that recorded nothing
  run.erase("xxh3");
  run.erase("computed_with");
  scratch_.write("run/run.json", run.dump());
  EXPECT_EQ(0U, go_on_with("run", "", "9").warnings("other bits"));
}

TEST_F(Corruption, NoCommitThatIsWhole) {
  flip_copies("run/store/commit.0", 40);
  flip_copies("run/store/commit.1", 40);
  expect_corrupt({"run/store: there is no valid commit", "commit.0: the record is damaged",
                  "commit.0.copy: the record is damaged", "commit.1: the record is damaged"});
  EXPECT_EQ(0, terrace({"ckpt", "rm", "run"}).exit) << "a damaged store can be removed";
  EXPECT_FALSE(fs::exists(at("run/store")));
}

TEST_F(Corruption, AStoreThatIsGoneIsNotTakenForANewRun) {
  const auto kept = scratch_.read("run/metrics.jsonl");
  fs::rename(at("run/store"), at("elsewhere"));
  expect_corrupt({"run/store", "the directory is missing"});
  EXPECT_EQ(kept, scratch_.read("run/metrics.jsonl"));
  fs::rename(at("elsewhere"), at("run/store"));
  EXPECT_EQ(0, go_on().exit);
}

// Starting again would overwrite chunks that a user may still want.
TEST_F(Corruption, ALostCommitIsNotTakenForANewRun) {
  fs::remove(at("run/result.json"));
  for (const auto* const keep : {"index.2.json", ""}) {  // with the last index, and with no file of a commit at all
    for (const auto& entry : std::vector(fs::directory_iterator(at("run/store")), fs::directory_iterator()))
      if (const auto name = entry.path().filename().string();
          name.starts_with("commit.") || (name.starts_with("index.") && (*keep == 0 || !name.starts_with(keep))))
        fs::remove(entry);
    const auto data = scratch_.read("run/store/data");
    expect_refusal(verify(), 5, {"run/store"});
    expect_refusal(go_on(), 5, {"run/store has no commit any more", "ckpt rm run"});
    EXPECT_EQ(data, scratch_.read("run/store/data"));
  }
  ASSERT_EQ(0, terrace({"ckpt", "rm", "run"}).exit);
  EXPECT_EQ(0, go_on().exit) << "the word to start again";
}

// The same without run.json: an index after the first one proves that there was a commit.
TEST_F(Corruption, ALostRecordAndALostRunFileAreNotTakenForANewRun) {
  for (const auto* const name : {"commit.0", "commit.0.copy", "commit.1", "commit.1.copy", "../run.json", "../result.json"})
    ASSERT_TRUE(fs::remove(at("run/store") / name));
  expect_refusal(go_on(), 5, {"run/store has files of a commit", "run.json of that run is missing"});
}

// As after a power loss that removed the last files of the folder: the state is intact, and is not overwritten without a
// request.
TEST_F(Corruption, ACommitWhoseRunIsGoneIsKept) {
  fs::rename(at("run/run.json"), at("elsewhere"));
  fs::remove(at("run/result.json"));
  expect_refusal(go_on(), 5, {"run.json", "run/store", "start a new run"});
  fs::rename(at("elsewhere"), at("run/run.json"));
  const auto outcome = succeeded(go_on());
  EXPECT_THAT(outcome.out, HasSubstr("resumed after step"));
}

TEST_F(Corruption, AFolderInPlaceOfARunsFileIsNamed) {
  for (const auto* const name : {"result.json", "run.json", "config.toml", "metrics.jsonl", "plan.json"}) {
    std::filesystem::rename(at("run") / name, at("kept"));
    std::filesystem::create_directory(at("run") / name);
    SCOPED_TRACE(name);
    const auto outcome = go_on();
    EXPECT_NE(0, outcome.exit) << outcome.described;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(name), Not(HasSubstr("filesystem error")), Not(HasSubstr("filebuf"))));
    EXPECT_THAT(terrace({"report", "run"}).err, Not(HasSubstr("filebuf")));
    std::filesystem::remove_all(at("run") / name);
    std::filesystem::rename(at("kept"), at("run") / name);
  }
}

TEST_F(Corruption, TheRunsOwnFiles) {
  const auto run_file = scratch_.read("run/run.json");
  for (const auto* const text : {"", "{", "{}", "[]", R"({"fingerprint": {}, "store_paths": [], "store_name": "store"})"}) {
    for (const auto* const name : {"run/run.json", "run/run.copy.json"}) scratch_.write(name, text);
    expect_refusal(verify(), 5, {"is damaged", "start a new run"});
    expect_refusal(go_on(), 5, {"is damaged", "start a new run"});
  }
  scratch_.write("run/run.json", run_file);
  for (const auto* const text : {"", "[]", "{}"}) {
    scratch_.write("run/result.json", text);
    expect_refusal(go_on(), 5, {"result.json is damaged"});
  }
  fs::remove(at("run/result.json"));
  scratch_.write("run/metrics.jsonl", "x\n" + scratch_.read("run/metrics.jsonl"));
  expect_refusal(go_on(), 5, {"metrics.jsonl, line 1", "it is not JSON"});
}

// After flipping one bit in a number, the text is still valid JSON.
TEST_F(Corruption, AFlippedBitInARecordOfTheRunIsFound) {
  const auto whole = train({"--out-dir", "whole", "--steps", "6"});
  const auto change = [&](const std::string& name, const std::string& from, const std::string& to) {
    auto text = scratch_.read(name);
    const auto found = text.find(from);
    ASSERT_NE(std::string::npos, found) << name << ": " << text;
    scratch_.write(name, text.replace(found, from.size(), to));
  };
  change("run/result.json", R"("steps": 4)", R"("steps": 5)");
  expect_refusal(train({"--resume", "auto"}), 5, {"result.json is damaged", "remove it"});
  fs::remove(at("run/result.json"));
  const auto lines = scratch_.read("run/metrics.jsonl");
  change("run/metrics.jsonl", R"("loss":5)", R"("loss":4)");
  expect_refusal(go_on(), 5, {"metrics.jsonl, line 1: it does not match its checksum", "remove the file"});
  expect_refusal(terrace({"report", "run"}), 5, {"metrics.jsonl, line 1"});
  scratch_.write("run/metrics.jsonl", lines);
  change("run/run.json", R"("store_name": "store")", R"("store_name": "stnre")");
  const auto outcome = succeeded(go_on());
  EXPECT_EQ(1U, outcome.warnings("run.copy.json is used")) << outcome.described;
  EXPECT_EQ(weights_of(whole), weights_of(outcome));
  EXPECT_EQ(steps("whole"), steps("run"));
}

// Records as written by an older version, or by a user who edited them.
TEST_F(Corruption, RecordsWithoutAChecksumAreRead) {
  const auto whole = train({"--out-dir", "whole", "--steps", "6"});
  for (const auto* const name : {"run/run.json", "run/result.json"}) {
    scratch_.write(name, json_in(name).dump(2) + "\n");
  }
  fs::remove(at("run/run.copy.json"));
  std::string lines;
  for (const auto& line : metrics("run")) lines += line.dump() + "\n";
  scratch_.write("run/metrics.jsonl", lines);
  EXPECT_EQ(weights_of(whole), weights_of(go_on()));
  EXPECT_EQ(steps("whole"), steps("run"));
}

// As after a power loss, when metrics were not synced yet.
TEST_F(Corruption, MissingLinesOfMetricsAreNamedAndComparedByStep) {
  const auto all = scratch_.read("run/metrics.jsonl");
  const auto first = all.find('\n') + 1, second = all.find('\n', first) + 1;
  scratch_.write("run/metrics.jsonl", all.substr(0, first) + all.substr(second));
  const auto outcome = succeeded(train({"--resume", "auto", "--steps", "6", "--verify-resident"}));
  EXPECT_EQ(1U, outcome.warnings("has no line of step 2")) << outcome.described;
  EXPECT_EQ(1U, outcome.warnings("step 2 has no line")) << outcome.described;
  EXPECT_THAT(outcome.described, HasSubstr("4 of 4 losses are bit-identical"));
}

// Only metrics are synced with this system call.
TEST_F(Corruption, MetricsAreSyncedBeforeTheirCommit) {
  auto launched = launch(tiny("train", {"--out-dir", "next", "--ckpt-interval", "2"}));
  launched.in_child = [] { forbid_call(__NR_fdatasync, EIO); };
  const auto outcome = terrace::test::run(launched);
  if (outcome.exit == kNotPermitted) GTEST_SKIP() << "a seccomp filter is not permitted here";
  expect_refusal(outcome, 1, {"next/metrics.jsonl cannot be synced", "errno 5"});
  EXPECT_FALSE(fs::exists(at("next/store/commit.1"))) << "committed without the lines of its steps";
}

}  // namespace
}  // namespace terrace::test
