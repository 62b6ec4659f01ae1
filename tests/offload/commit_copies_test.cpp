// A commit's record and index are stored twice, and one intact copy of each suffices. Also tested are files that are neither
// intact nor damaged: unreadable ones, and those of another version.
#include <gmock/gmock.h>

#include <array>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>

#include <terrace/offload/store/store_index.h>
#include <terrace/tests/support/faulty_files.h>

#include <terrace/tests/offload/chunk_store_run.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;
using test::FaultyFiles;
using testing::AllOf;
using testing::HasSubstr;

const std::vector<std::string> kOlder{"commit.1", "commit.1.copy", "index.1.json", "index.1.json.copy"};

class CommitCopies : public test::ChunkStoreTest {
 protected:
  // Two commits; the second one overwrites the chunk of the first, so going back is impossible.
  void SetUp() override {
    const auto store = ChunkStore::create(options());
    for (std::uint64_t number = 1; number <= 2; ++number) {
      write(*store, 0, number);
      store->commit(number, "");
    }
    write(*store, 0, 3);
  }
  [[nodiscard]] ChunkStore::Options reader() const {
    auto o = options();
    o.read_only = true;
    return o;
  }
  [[nodiscard]] static std::string text_of(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write_text(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
  [[nodiscard]] std::map<std::string, std::string> all_files() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::directory_iterator(file("data").parent_path()))
      all[entry.path().filename().string()] = text_of(entry.path());
    return all;
  }
};

TEST_F(CommitCopies, OneIntactCopyOfEachFileSuffices) {
  const auto whole = all_files();
  const auto damages = std::to_array<std::function<void(const fs::path&)>>({
      [](const fs::path& f) { flip_byte(f, 20); },
      [](const fs::path& f) { fs::resize_file(f, fs::file_size(f) / 2); },
      [](const fs::path& f) { fs::resize_file(f, 0); },
      [](const fs::path& f) { fs::remove(f); },
  });
  for (const auto* const record : {"commit.0", "commit.0.copy"})
    for (const auto* const index : {"index.2.json", "index.2.json.copy"})
      for (std::size_t d = 0; d < damages.size(); ++d) {
        SCOPED_TRACE(fmt::format("damage {} of {} and {}", d, record, index));
        damages[d](file(record));
        damages[d](file(index));
        const auto damaged = all_files();
        {
          const auto store = ChunkStore::open(reader());
          EXPECT_EQ(2U, store->last_commit()->number);
          expect_committed(*store, {2});
          // A missing copy does not count as damage: an older program writes none, and a power loss may remove it.
          const bool missing = d + 1 == damages.size();
          for (const std::string name : {record, index})
            EXPECT_EQ(!missing, store->damage().find(name + ": ") != std::string::npos) << store->damage();
        }
        EXPECT_EQ(damaged, all_files()) << "a reader changed something";
        expect_committed(*ChunkStore::open(options()), {2});
        EXPECT_EQ(whole, all_files()) << "not repaired";
      }
}

TEST_F(CommitCopies, BothCopiesDamagedAreADamagedCommit) {
  for (const std::string name : {"commit.0", "index.2.json"}) {
    for (const auto& copy : {file(name), copy_of(name)}) flip_byte(copy, 20);
    std::string what;
    EXPECT_EQ(ErrorKind::corrupt, kind_of_open(options(), what));  // chunk 0 of commit 1 is overwritten
    EXPECT_THAT(what, HasSubstr("chunk 0"));
    for (const auto& copy : {file(name), copy_of(name)}) flip_byte(copy, 20);
  }
}

// A program that does not know about copies leaves the copies of an earlier commit beside its own files.
TEST_F(CommitCopies, OfDifferentCommitsTheNewerCounts) {
  const auto earlier = text_of(file("commit.0"));
  {
    const auto store = ChunkStore::open(options());
    for (std::uint64_t number = 3; number <= 4; ++number) {
      write(*store, 0, number);
      store->commit(number, "");
    }
  }
  const auto whole = all_files();
  for (const auto* const stale : {"commit.0", "commit.0.copy"}) {
    SCOPED_TRACE(stale);
    write_text(file(stale), earlier);
    const auto store = ChunkStore::open(options());
    EXPECT_EQ(4U, store->last_commit()->number);
    EXPECT_EQ("", store->damage());
    EXPECT_EQ(whole, all_files());
  }
}

TEST_F(CommitCopies, AStoreWithoutCopiesIsReadAndGetsThem) {
  const auto whole = all_files();
  for (const auto* const name : {"commit.0", "commit.1", "index.1.json", "index.2.json"}) fs::remove(copy_of(name));
  {
    const auto store = ChunkStore::open(options());
    EXPECT_EQ("", store->damage());
    expect_committed(*store, {2});
    EXPECT_EQ(whole, all_files());
    write(*store, 0, 3);
    store->commit(3, "");
  }
  expect_committed(*ChunkStore::open(options()), {3});
}

// Reads are counted: each opened file is one read, in a fixed order.
TEST_F(CommitCopies, AReadErrorStopsOnlyWhatNeedsTheFile) {
  const auto counted = std::make_shared<FaultyFiles>();
  auto o = reader();
  o.file_ops = counted;
  expect_committed(*ChunkStore::open(o), {2});
  ASSERT_EQ(8U, counted->calls(FaultyFiles::Call::read));
  for (std::uint64_t at = 0; at < 8; ++at) {
    SCOPED_TRACE(at);
    o.file_ops = std::make_shared<FaultyFiles>(
        FaultyFiles::Fault{.call = FaultyFiles::Call::read, .at = at, .what = FaultyFiles::What::error});
    const auto store = ChunkStore::open(o);
    expect_committed(*store, {2});
    EXPECT_THAT(store->damage(), HasSubstr("read: Input/output error (errno 5)"));
  }
}

// A folder in place of a file can be opened but not read; here both copies are folders.
TEST_F(CommitCopies, AnOlderCommitThatCannotBeReadDoesNotMatter) {
  for (const std::string name : {"index.1.json", "commit.1"}) {
    SCOPED_TRACE(name);
    for (const auto& copy : {file(name), copy_of(name)}) {
      fs::remove(copy);
      fs::create_directory(copy);
    }
    const auto store = ChunkStore::open(options());
    EXPECT_EQ(2U, store->last_commit()->number);
    expect_committed(*store, {2});
    EXPECT_THAT(store->damage(), AllOf(HasSubstr(name + ": "), HasSubstr(name + ".copy: ")));
  }
}

// Going back would overwrite it, although a later attempt may be able to read it.
TEST_F(CommitCopies, ANewestCommitThatCannotBeReadIsNotPassedOver) {
  for (const std::string name : {"commit.0", "index.2.json"}) {
    SCOPED_TRACE(name);
    const auto text = text_of(file(name));
    for (const auto& copy : {file(name), copy_of(name)}) {
      fs::remove(copy);
      fs::create_directory(copy);
    }
    std::string what;
    EXPECT_EQ(ErrorKind::corrupt, kind_of_open(options(), what));
    EXPECT_THAT(what,
                AllOf(HasSubstr(name + ": it is not a regular file but a directory"), testing::Not(HasSubstr("is damaged"))));
    for (const auto& copy : {file(name), copy_of(name)}) {
      fs::remove(copy);
      write_text(copy, text);
    }
  }
  expect_committed(*ChunkStore::open(options()), {2});
}

TEST_F(CommitCopies, ADamagedOlderCommitIsNotTakenForTheNewest) {
  for (const auto& name : kOlder) flip_byte(file(name), 20);
  {
    const auto store = ChunkStore::open(options());
    EXPECT_EQ(2U, store->last_commit()->number);
    expect_committed(*store, {2});
    write(*store, 0, 3);
    store->commit(3, "");
  }
  const auto store = ChunkStore::open(reader());
  expect_committed(*store, {3});
  EXPECT_EQ("", store->damage());
}

// A store of a later version does not count as damaged: after going back to an older commit, the next one would overwrite it.
TEST_F(CommitCopies, AStoreOfAnotherVersionIsRefusedUntouched) {
  const auto whole = all_files();
  const auto later = [](std::string text) {
    const std::string version = R"("version": )";
    return text.replace(text.find(version), version.size() + 1, version + "3");
  };
  const auto later_record = [&](const std::string& text) {
    return store::with_checksum(later(text.substr(text.find('\n') + 1)));
  };
  const auto expect_refused = [&](const char* what_it_is) {
    SCOPED_TRACE(what_it_is);
    const auto before = all_files();
    for (const auto& o : {options(), reader()}) {
      std::string what;
      EXPECT_EQ(ErrorKind::refused, kind_of_open(o, what));
      EXPECT_THAT(what, HasSubstr("the store has version 3, and this program reads version 2"));
      EXPECT_THAT(what, testing::Not(HasSubstr("check the disk")));
    }
    EXPECT_EQ(before, all_files());
    for (const auto& [name, text] : whole) write_text(file(name), text);
  };
  for (const auto* const name : {"commit.0", "commit.0.copy"}) write_text(file(name), later_record(whole.at(name)));
  expect_refused("the newest record");
  write_text(file("commit.0.copy"), later_record(whole.at("commit.0")));
  expect_refused("one copy of it");
  for (const auto* const name : {"commit.1", "commit.1.copy"}) write_text(file(name), later_record(whole.at(name)));
  expect_refused("the older record");
  const auto index = later(whole.at("index.2.json"));
  auto record = *store::parse_record(whole.at("commit.0"));
  record.index_checksum = store::checksum_of_text(index);
  for (const auto* const name : {"commit.0", "commit.0.copy"}) write_text(file(name), store::write_record(record));
  for (const auto* const name : {"index.2.json", "index.2.json.copy"}) write_text(file(name), index);
  expect_refused("the index");
  expect_committed(*ChunkStore::open(options()), {2});
}

}  // namespace
}  // namespace terrace
