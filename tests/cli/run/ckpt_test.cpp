// `terrace ckpt`: verify finds every changed bit, wherever it is, and reports all of them at once; copy makes an independent
// run.
#include <fstream>
#include <random>

#include <fmt/format.h>

#include <terrace/tests/cli/cli_test.h>
#include <terrace/tests/cli/faults/private_mount.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

class Ckpt : public Cli {
 protected:
  void SetUp() override {
    succeeded(train({"--ckpt-interval", "2", "--nvme-path", "disk"}));
    for (const auto& entry : fs::directory_iterator(at("disk"))) store_ = entry.path();
  }
  static void flip(const fs::path& file, std::uint64_t byte, unsigned bit) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(byte));
    const auto flipped = static_cast<char>(stream.get() ^ (1 << bit));
    stream.seekp(static_cast<std::streamoff>(byte));
    stream.put(flipped);
    ASSERT_TRUE(stream.good()) << file << ", byte " << byte;
  }
  [[nodiscard]] Outcome verify() const { return terrace({"ckpt", "verify", "run"}); }
  [[nodiscard]] nlohmann::json chunks() const {
    return nlohmann::json::parse(std::ifstream(store_ / "index.2.json")).at("chunks");
  }

  fs::path store_;
};

TEST_F(Ckpt, VerifyFindsEveryFlippedBit) {
  ASSERT_EQ(0, verify().exit);
  const auto all = chunks();
  std::vector<std::string> places;
  for (const std::string name : {"index.1.json", "index.2.json", "commit.0", "commit.1"})
    places.insert(places.end(), {name, name + ".copy"});
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    std::mt19937_64 random(seed);
    fs::path file = store_ / "data";
    std::uint64_t byte = 0;
    std::string says;
    if (seed % 2 == 0) {
      const auto& chunk = all.at(random() % all.size());
      byte = chunk.at("offset").get<std::uint64_t>() + random() % chunk.at("bytes").get<std::uint64_t>();
      says = "chunk " + std::to_string(chunk.at("chunk").get<int>()) + " ";
    } else {
      says = places[random() % places.size()];
      file = store_ / says;
      byte = random() % fs::file_size(file);
    }
    const auto bit = static_cast<unsigned>(random() % 8);
    SCOPED_TRACE(fmt::format("seed {}: bit {} of byte {} of {}", seed, bit, byte, file.filename().string()));
    flip(file, byte, bit);
    expect_refusal(verify(), 5, {says, "damaged"});
    flip(file, byte, bit);
  }
  EXPECT_EQ(0, verify().exit) << "all flipped back";
}

TEST_F(Ckpt, VerifyTellsOfAllThatIsDamaged) {
  const auto all = chunks();
  std::vector<std::string> says{fmt::format("3 of {} chunks are damaged", all.size())};
  for (const auto i : {std::size_t{0}, all.size() / 2, all.size() - 1}) {
    flip(store_ / "data", all.at(i).at("offset").get<std::uint64_t>() + 17, 3);
    says.push_back(fmt::format("chunk {} (", all.at(i).at("chunk").get<int>()));
  }
  expect_refusal(verify(), 5, says);
}

// The state after a rank has died between the others' commit and its own.
TEST_F(Ckpt, OfRanksTheLastCommitThatAllHaveCounts) {
  const auto with = [&](const std::string& run, const char* steps) {
    return train({"--dp", "2", "--zero", "1", "--ckpt-interval", "1", "--out-dir", run, "--steps", steps, "--resume", "auto"});
  };
  ASSERT_EQ(0, with("ranks", "3").exit);
  fs::remove(at("ranks/result.json"));
  remove_copies(at("ranks/store-rank1/commit.1"));
  const auto looked = succeeded(terrace({"ckpt", "inspect", "ranks", "--json"}));
  EXPECT_EQ(2, nlohmann::json::parse(looked.out).at("step"));
  EXPECT_EQ(3, nlohmann::json::parse(looked.out).at("newest_step"));
  EXPECT_THAT(terrace({"ckpt", "inspect", "ranks"}).out, AllOf(HasSubstr("after step 2;"), HasSubstr("commit after step 3")));
  EXPECT_EQ(0, terrace({"ckpt", "verify", "ranks"}).exit);
  const auto copied = succeeded(terrace({"ckpt", "copy", "ranks", "copy"}));
  EXPECT_THAT(copied.out, HasSubstr("after step 2 to"));
  EXPECT_TRUE(fs::exists(at("ranks/store/commit.1"))) << "looking took a commit away";
  EXPECT_EQ(weights_of(with("ranks", "6")), weights_of(with("copy", "6")));
}

TEST_F(Ckpt, AMissingStoreOfARankIsNamed) {
  ASSERT_EQ(0, train({"--dp", "3", "--zero", "1", "--out-dir", "ranks"}).exit);
  fs::rename(at("ranks/store-rank1"), at("elsewhere"));
  for (const auto* const action : {"verify", "inspect"})
    expect_refusal(terrace({"ckpt", action, "ranks"}), 5,
                   {"the store of rank 1", "ranks/store-rank1: the directory is missing"});
  expect_refusal(terrace({"ckpt", "copy", "ranks", "copy"}), 5, {"the store of rank 1"});
  EXPECT_FALSE(fs::exists(at("copy")));
  succeeded(terrace({"ckpt", "rm", "ranks"}));
  for (const auto* const name : {"store", "store-rank1", "store-rank2", "run.json", "run.copy.json"})
    EXPECT_FALSE(fs::exists(at("ranks") / name)) << name;
}

TEST_F(Ckpt, RemovesNothingButAStore) {
  fs::create_directories(at("mine/folder"));
  scratch_.write("mine/thesis.txt", "years");
  scratch_.write("mine/data", "years");
  auto run = json_in("run/run.json");
  const auto whole = run;
  run["store_paths"] = {scratch_.path().string()}, run["store_name"] = "mine";
  scratch_.write("run/run.json", run.dump());
  fs::permissions(at("mine"), fs::perms(0755));
  for (const auto* const action : {"rm", "inspect", "verify"}) expect_refusal(terrace({"ckpt", action, "run"}), 5, {"mine"});
  EXPECT_EQ("years", scratch_.read("mine/thesis.txt"));
  EXPECT_EQ("years", scratch_.read("mine/data"));
  EXPECT_FALSE(fs::exists(at("mine/lock")));
  EXPECT_EQ(fs::perms(0755), fs::status(at("mine")).permissions());
  // Beside a store, only stores are removed.
  scratch_.write("run/run.json", whole.dump());
  const auto other = fs::path(store_).concat("-rank-notes");
  fs::create_directory(other);
  ASSERT_EQ(0, terrace({"ckpt", "rm", "run"}).exit);
  EXPECT_FALSE(fs::exists(store_));
  EXPECT_TRUE(fs::exists(other));
}

TEST_F(Ckpt, ReadsARunOnAReadOnlyFileSystem) {
  ASSERT_EQ(0, train({"--dp", "2", "--zero", "1", "--out-dir", "ranks"}).exit);
  ASSERT_EQ(0, train({"--out-dir", "one"}).exit);
  const auto text = terrace({"generate", "one", "--prompt", "The", "--max-tokens", "4"});
  for (const std::string run : {"one", "ranks"}) {
    PrivateMount mounted(at(run));
    if (!mounted.read_only()) GTEST_SKIP() << "no read-only mount here: " << mounted.why();
    for (const auto* const action : {"inspect", "verify"}) {
      succeeded(terrace({"ckpt", action, run}));
    }
    succeeded(terrace({"ckpt", "copy", run, "copy of " + run}));
    const auto generated = succeeded(terrace({"generate", run, "--prompt", "The", "--max-tokens", "4"}));
    if (run == "one") {
      EXPECT_EQ(text.out, generated.out);
    }
  }
}

TEST_F(Ckpt, ACopyIsARunOfItsOwn) {
  const auto whole = train({"--steps", "8", "--out-dir", "whole"});
  const auto copied = succeeded(terrace({"ckpt", "copy", "run", "copy"}));
  EXPECT_THAT(copied.out, HasSubstr("after step 4"));
  succeeded(terrace({"ckpt", "verify", "copy"}));
  // A change of one run does not affect the other.
  ASSERT_EQ(0, terrace({"ckpt", "rm", "run"}).exit);
  EXPECT_EQ(weights_of(whole), weights_of(train({"--steps", "8", "--resume", "copy"})));
  EXPECT_EQ(steps("whole"), steps("copy"));
}

TEST_F(Ckpt, ACopyOverwritesNothingAndOfDamageThereIsNone) {
  expect_refusal(terrace({"ckpt", "copy", "run", "run"}), 2, {"run is not empty"});
  expect_refusal(terrace({"ckpt", "copy", "run"}), 2, {"a second directory"});
  flip(store_ / "data", chunks().at(0).at("offset").get<std::uint64_t>(), 0);
  expect_refusal(terrace({"ckpt", "copy", "run", "copy"}), 5, {"is not what was written"});
  expect_refusal(terrace({"ckpt", "verify", "copy"}), 2, {"copy has no run"});
}

}  // namespace
}  // namespace terrace::test
