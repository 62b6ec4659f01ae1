// The store on disk: commits, generations and damage.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <set>

#include <terrace/offload/store/copy_store.h>

#include <terrace/tests/offload/chunk_store_run.h>
#include <terrace/tests/support/kernel_files.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

using test::ChunkStoreTest;
using test::description_of;
using test::fill_random;
using test::kChunkBytes;
using test::kPlaceBytes;
using test::Pages;
using testing::HasSubstr;

TEST_F(ChunkStoreTest, ACommitIsThereAfterOpeningAgain) {
  for (const int paths : {1, 3}) {
    SCOPED_TRACE(paths);
    {
      const auto store = ChunkStore::create(options(paths));
      EXPECT_FALSE(ChunkStore::has_commit(options(paths)));
      for (std::uint32_t id = 0; id < 3; ++id) write(*store, id, 10 + id);
      store->commit(7, R"({"loss": 1.5})");
      write(*store, 1, 99);  // after the commit, so not part of it
      expect_read(*store, 1, 99);
      expect_committed(*store, {10, 11, 12});
    }
    EXPECT_TRUE(ChunkStore::has_commit(options(paths)));
    const auto store = ChunkStore::open(options(paths));
    ASSERT_TRUE(store->last_commit());
    EXPECT_EQ(1U, store->last_commit()->number);
    EXPECT_EQ(7U, store->last_commit()->step);
    EXPECT_EQ(R"({"loss": 1.5})", store->last_commit()->payload);
    expect_committed(*store, {10, 11, 12});
    const auto d = store->committed()[1].description;
    EXPECT_EQ("fp32", d.dtype);
    EXPECT_EQ(ChunkKind::master, d.kind);
    EXPECT_EQ(description_of(1).ranges, d.ranges);
    EXPECT_EQ("master weight of layers.1.mlp", d.label);
  }
}

TEST_F(ChunkStoreTest, TheSameLayoutGoesOnInPlace) {
  {
    const auto store = ChunkStore::create(options());
    for (std::uint32_t id = 0; id < 3; ++id) write(*store, id, id);
    store->commit(1, "");
    write(*store, 2, 20);
    store->commit(2, "");  // chunk 2 is now in its second generation
  }
  const auto store = ChunkStore::open(options());
  for (std::uint32_t id = 0; id < 3; ++id) {
    EXPECT_TRUE(store->holds(description_of(id), id * kPlaceBytes));
    EXPECT_FALSE(store->holds(description_of(id), id * kPlaceBytes + kPageBytes));
    store->describe(description_of(id));
  }
  auto other = description_of(1);
  other.ranges[0].first_element += 1;
  EXPECT_FALSE(store->holds(other, kPlaceBytes));
  EXPECT_THROW(store->describe(other), std::logic_error);
  EXPECT_FALSE(store->holds(description_of(3), 3 * kPlaceBytes));
  expect_read(*store, 0, 0);
  expect_read(*store, 2, 20);
  write(*store, 2, 30);
  write(*store, 2, 31);
  expect_read(*store, 2, 31);
  expect_committed(*store, {0, 1, 20});
  store->commit(3, "");
  EXPECT_EQ(3U, store->last_commit()->number);
  expect_committed(*store, {0, 1, 31});
}

// The content cannot have changed, because only the run that wrote it continues in place.
TEST_F(ChunkStoreTest, PackedStateWithoutRangesGetsThemInPlace) {
  const auto described = [](std::vector<TensorRange> ranges) {
    return ChunkDescription{ChunkId{0},  ChunkKind::second_moment, "packed",
                            kChunkBytes, std::move(ranges),        "second moment of m"};
  };
  const std::vector<TensorRange> rows{{"rows of w", 0, 4, 0}}, others{{"rows of w", 4, 4, 0}};
  {
    const auto store = ChunkStore::create(options());
    const Pages bytes(kChunkBytes);
    store::write_chunk(*store, described({}), 0, bytes.span());
    store->commit(1, "");
  }
  const auto store = ChunkStore::open(options());
  EXPECT_TRUE(store->holds(described(rows), 0));
  store->describe(described(rows));
  EXPECT_FALSE(store->holds(described(others), 0));
  store->commit(2, "");
  EXPECT_EQ(rows, store->committed()[0].description.ranges);
}

// Random writes and commits compared with an oracle; at any point, a run that starts again finds exactly the last commit.
TEST_F(ChunkStoreTest, WhatIsNotCommittedNeverHurtsWhatIs) {
  constexpr std::uint32_t kChunks = 5;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    auto o = options(2);
    o.durable = false;
    auto store = ChunkStore::create(o);
    std::vector<std::uint64_t> now(kChunks), committed;
    for (std::uint32_t id = 0; id < kChunks; ++id) write(*store, id, now[id] = id);
    store->commit(0, "");
    committed = now;
    for (int operation = 0; operation < 60; ++operation) {
      const auto id = static_cast<std::uint32_t>(random() % kChunks);
      const auto kind = random() % 8;
      if (kind < 5) {
        write(*store, id, now[id] = random());
      } else if (kind < 7) {
        store->commit(static_cast<std::uint64_t>(operation), "");
        committed = now;
      } else {
        store.reset();
        store = ChunkStore::open(o);
        now = committed;
      }
      expect_read(*store, id, now[id]);
      expect_committed(*store, committed);
    }
  }
}

TEST_F(ChunkStoreTest, GradientsAndActivationsArePartOfNoCommit) {
  const auto store = ChunkStore::create(options());
  auto gradient = description_of(0);
  gradient.kind = ChunkKind::gradient;
  store->describe(gradient);
  EXPECT_EQ(0U, store->place_write(ChunkId{0}, 0, kChunkBytes));
  store->end_write(ChunkId{0}, 0, 1);
  store->commit(1, "");
  EXPECT_TRUE(store->committed().empty());
  EXPECT_EQ(0U, store->place_write(ChunkId{0}, 0, kChunkBytes));  // one generation: the same place again
}

// Residency reuses the disk place of dead content while its write is still running, and the chunk gets another place.
TEST_F(ChunkStoreTest, EachPlaceOfAnActivationHasItsOwnChecksum) {
  const auto store = ChunkStore::create(options());
  auto activation = description_of(0);
  activation.kind = ChunkKind::activation;
  store->describe(activation);
  Pages first(kChunkBytes), second(kChunkBytes);
  fill_random(first.span(), 1);
  fill_random(second.span(), 2);
  const auto place = [&](std::uint64_t slot) { return slot * kChunkBytes; };
  store->place_write(ChunkId{0}, place(1), kChunkBytes);
  store->place_write(ChunkId{0}, place(3), kChunkBytes);
  store->end_write(ChunkId{0}, place(3), checksum_of(second.span()));
  EXPECT_THROW(store->place_read(ChunkId{0}, place(1)), std::logic_error);
  store->end_write(ChunkId{0}, place(1), checksum_of(first.span()));
  EXPECT_EQ(place(1), store->place_read(ChunkId{0}, place(1)));
  EXPECT_EQ(place(3), store->place_read(ChunkId{0}, place(3)));
  store->verify_read(ChunkId{0}, place(1), first.span());
  store->verify_read(ChunkId{0}, place(3), second.span());
  EXPECT_THROW(store->verify_read(ChunkId{0}, place(1), second.span()), Error);
  store->place_write(ChunkId{0}, place(1) + kPageBytes, kChunkBytes);  // overlaps the first
  EXPECT_THROW(store->place_read(ChunkId{0}, place(1)), std::logic_error);
  EXPECT_EQ(place(3), store->place_read(ChunkId{0}, place(3)));
}

TEST_F(ChunkStoreTest, ADamagedChunkIsNamed) {
  std::uint64_t offset = 0;
  {
    const auto store = ChunkStore::create(options());
    for (std::uint32_t id = 0; id < 2; ++id) write(*store, id, id);
    store->commit(1, "");
    offset = store->committed()[1].offset;
  }
  for (const std::uint64_t at : {std::uint64_t{0}, kChunkBytes / 2, kChunkBytes - 1}) {
    flip_byte(file("data"), offset + at);
    const auto store = ChunkStore::open(options());
    std::vector<std::byte> bytes(kChunkBytes);
    const auto error = test::thrown_by([&] { store->read_committed(store->committed()[1], bytes); });
    EXPECT_EQ(ErrorKind::corrupt, error.kind());
    EXPECT_THAT(error.what(), HasSubstr("chunk 1 (master weight of layers.1.mlp)"));
    EXPECT_THAT(error.what(), HasSubstr(file("data").string()));
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("offset {}", offset)));
    EXPECT_EQ(file("data").string(), error.path());
    EXPECT_EQ("chunk 1", error.object());
    EXPECT_FALSE(error.code());
    store->describe(description_of(1));
    EXPECT_THROW(store->verify_read(ChunkId{1}, offset, bytes), Error);
    flip_byte(file("data"), offset + at);
  }
}

TEST_F(ChunkStoreTest, EveryDamagedByteOfTheOnlyCommitIsSeen) {
  commit_one(options(), "payload");
  auto reader = options();
  reader.read_only = true;  // makes no repairs
  std::string what;
  for (const std::string name : {"commit.1", "index.1.json"}) {
    const auto bytes = std::filesystem::file_size(file(name));
    for (std::uint64_t at = 0; at < bytes; ++at) {
      flip_byte(file(name), at);
      const auto damage = ChunkStore::open(reader)->damage();
      ASSERT_THAT(damage, HasSubstr(name + ": ")) << at;
      ASSERT_THAT(damage, HasSubstr("is damaged")) << at;
      flip_byte(copy_of(name), at);
      ASSERT_EQ(ErrorKind::corrupt, kind_of_open(reader, what)) << name << " at " << at;
      ASSERT_THAT(what, HasSubstr(name + ": "));
      ASSERT_THAT(what, HasSubstr(name + ".copy: "));
      flip_byte(file(name), at);
      ASSERT_THAT(ChunkStore::open(reader)->damage(), HasSubstr(name + ".copy: ")) << at;
      flip_byte(copy_of(name), at);
    }
    for (std::uint64_t length = 0; length < bytes; length += 1 + bytes / 40) {  // truncated
      const auto kept = directory_.path() / "kept";
      std::filesystem::copy_file(file(name), kept, std::filesystem::copy_options::overwrite_existing);
      for (const auto& copy : {file(name), copy_of(name)}) std::filesystem::resize_file(copy, length);
      ASSERT_EQ(ErrorKind::corrupt, kind_of_open(reader, what)) << name << " of length " << length;
      for (const auto& copy : {file(name), copy_of(name)})
        std::filesystem::copy_file(kept, copy, std::filesystem::copy_options::overwrite_existing);
    }
  }
  EXPECT_EQ(std::nullopt, kind_of_open(options(), what)) << what;
}

TEST_F(ChunkStoreTest, TheCommitBeforeADamagedOneIsTakenIfAllItsBytesAreThere) {
  for (const std::string name : {"commit.0", "index.2.json"}) {
    SCOPED_TRACE(name);
    {
      const auto store = ChunkStore::create(options());
      for (std::uint32_t id = 0; id < 2; ++id) write(*store, id, id);
      store->commit(1, "");
      write(*store, 0, 50);
      store->commit(2, "");
    }
    const auto flip_both = [&] {
      flip_byte(file(name), 20);
      flip_byte(copy_of(name), 20);
    };
    flip_both();
    {
      const auto store = ChunkStore::open(options());
      EXPECT_EQ(1U, store->last_commit()->number);
      expect_committed(*store, {0, 1});
    }
    flip_both();
    {
      const auto store = ChunkStore::open(options());  // undamaged again: the newest commit is found
      EXPECT_EQ(2U, store->last_commit()->number);
      store->describe(description_of(0));
      write(*store, 0, 51);  // overwrites the generation of commit 1
    }
    flip_both();
    std::string what;
    EXPECT_EQ(ErrorKind::corrupt, kind_of_open(options(), what));
    EXPECT_THAT(what, HasSubstr("chunk 0"));
  }
}

// Otherwise a disk that is large enough for the first two commits of a run could be full at the third.
TEST_F(ChunkStoreTest, ACommitTakesNoMoreRoomThanTheOneBefore) {
  class Names final : public test::KernelFiles {
   public:
    int create(int d, const std::string& n) override { return note(KernelFiles::create(d, n), n, ""); }
    int rename(int d, const std::string& a, const std::string& b) override { return note(KernelFiles::rename(d, a, b), b, a); }
    int remove(int d, const std::string& n) override { return note(KernelFiles::remove(d, n), "", n); }
    std::size_t most_indices = 0;

   private:
    int note(int result, const std::string& is_there, const std::string& is_gone) {
      names_.erase(is_gone);
      if (!is_there.empty()) names_.insert(is_there);
      most_indices = std::max<std::size_t>(most_indices, static_cast<std::size_t>(std::ranges::count_if(
                                                             names_, [](const auto& n) { return n.starts_with("index."); })));
      return result;
    }
    std::set<std::string> names_;
  };
  const auto names = std::make_shared<Names>();
  auto o = options();
  o.deadline = {};
  o.file_ops = names;
  const auto store = ChunkStore::create(o);
  for (std::uint64_t step = 1; step <= 5; ++step) {
    write(*store, 0, step);
    store->commit(step, "");
  }
  EXPECT_EQ(4U, names->most_indices);  // two indexes, each stored twice
}

// Going back to an earlier step removes the later commit, but only after all bytes of the earlier one were read and something
// is written.
TEST_F(ChunkStoreTest, ALaterCommitIsPassedOverOnlyForOneThatIsWhole) {
  std::uint64_t place = 0;
  {
    const auto store = ChunkStore::create(options());
    write(*store, 0, 1);
    store->commit(1, "");
    place = store->committed()[0].offset;
    write(*store, 0, 2);
    store->commit(2, "");
  }
  auto o = options();
  o.not_after_step = 1;
  std::string what;
  flip_byte(file("data"), place);
  EXPECT_EQ(ErrorKind::corrupt, kind_of_open(o, what));
  EXPECT_THAT(what, HasSubstr("chunk 0"));
  expect_committed(*ChunkStore::open(options()), {2});

  flip_byte(file("data"), place);  // restores the byte
  expect_committed(*ChunkStore::open(o), {1});
  expect_committed(*ChunkStore::open(options()), {2});
  write(*ChunkStore::open(o), 0, 3);
  expect_committed(*ChunkStore::open(options()), {1});
}

// It is neither opened nor replaced, and none of its bytes change.
TEST_F(ChunkStoreTest, AStoreOfAnotherRunIsRefused) {
  const auto with = [&](std::vector<std::string> ids) {
    auto o = options();
    o.run_ids = std::move(ids);
    return o;
  };
  {
    const auto store = ChunkStore::create(with({"first"}));
    write(*store, 0, 1);
    store->commit(1, "");
    store->set_run_id("second");
    write(*store, 0, 2);
    store->commit(2, "");
    EXPECT_EQ("second", store->last_commit()->run_id);
  }
  for (const std::vector<std::string>& ids : {std::vector<std::string>{"third"}, {"first"}, {""}}) {
    SCOPED_TRACE(ids.front());
    std::string what;
    EXPECT_EQ(ErrorKind::corrupt, kind_of_open(with(ids), what));
    EXPECT_THAT(what, HasSubstr("is the store of another run: commit 2 (step 2) was made by a run with the id second"));
    EXPECT_THROW(ChunkStore::create(with(ids)), Error);
    EXPECT_EQ("second", ChunkStore::commit_of_another(with(ids))->run_id);
  }
  for (const std::vector<std::string>& ids : {std::vector<std::string>{"second"}, {"third", "second"}, {}}) {
    expect_committed(*ChunkStore::open(with(ids)), {2});
    EXPECT_FALSE(ChunkStore::commit_of_another(with(ids)));
  }
  ChunkStore::create(with({"second"}));
  EXPECT_FALSE(ChunkStore::has_commit(options())) << "its own, it may replace";
  const auto unmarked = ChunkStore::create(with({""}));  // like a store of a version without ids
  write(*unmarked, 0, 1);
  unmarked->commit(1, "");
  EXPECT_EQ("", unmarked->last_commit()->run_id);
  EXPECT_TRUE(ChunkStore::commit_of_another(with({"first"})));
  EXPECT_FALSE(ChunkStore::commit_of_another(with({"first", ""})));
}

// What a reader cannot keep in memory goes to an unnamed file.
TEST_F(ChunkStoreTest, AReaderWritesBesideTheStore) {
  constexpr ChunkId kPassing{7};
  const auto folder_of = [&] {
    std::vector<std::pair<std::string, std::filesystem::file_time_type>> all;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path() / "nvme0" / "store"))
      all.emplace_back(entry.path().string(), entry.last_write_time());
    return all;
  };
  commit_one(options());
  const auto before = folder_of();
  auto o = options();
  o.read_only = o.scratch = true;
  const auto store = ChunkStore::open(o), other = ChunkStore::open(o);
  for (auto* const reader : {store.get(), other.get()}) {
    Pages bytes(kChunkBytes), read(kChunkBytes);
    fill_random(bytes.span(), reader == store.get() ? 5 : 6);
    reader->describe({kPassing, ChunkKind::activation, "bytes", kChunkBytes, {}, "keys"});
    const auto offset = reader->place_write(kPassing, 0, kChunkBytes);  // the place of chunk 0 in the store
    const auto pieces = reader->pieces(offset, kChunkBytes);
    ASSERT_EQ(1U, pieces.size());
    const auto file = reader->descriptors().at(static_cast<std::size_t>(pieces[0].file));
    ASSERT_EQ(static_cast<ssize_t>(kChunkBytes),
              ::pwrite(file, bytes.data(), kChunkBytes, static_cast<off_t>(pieces[0].offset)));
    reader->end_write(kPassing, offset, checksum_of(bytes.span()));
    EXPECT_EQ(offset, reader->place_read(kPassing, 0));
    ASSERT_EQ(static_cast<ssize_t>(kChunkBytes), ::pread(file, read.data(), kChunkBytes, static_cast<off_t>(pieces[0].offset)));
    reader->verify_read(kPassing, offset, read.span());
    EXPECT_THAT(reader->describe_place(kPassing, offset), HasSubstr("a file without a name in "));
    expect_read(*reader, 0, 1);
    EXPECT_THROW(reader->place_write(ChunkId{0}, 0, kChunkBytes), Error);
  }
  EXPECT_EQ(before, folder_of());
  EXPECT_EQ(1, std::distance(std::filesystem::directory_iterator(directory_.path() / "nvme0"), {})) << "only the store";
}

TEST_F(ChunkStoreTest, NothingCommittedIsCorrupt) {
  std::string what;
  ChunkStore::create(options());
  EXPECT_EQ(ErrorKind::corrupt, kind_of_open(options(), what));
}

TEST_F(ChunkStoreTest, ACommitWhileAChunkIsBeingWrittenIsRefused) {
  const auto store = ChunkStore::create(options());
  store->describe(description_of(0));
  store->place_write(ChunkId{0}, 0, kChunkBytes);
  EXPECT_THROW(store->commit(1, ""), std::logic_error);
  EXPECT_THROW(store->place_read(ChunkId{0}, 0), std::logic_error);
}

// Blocks of the right length, even of the right chunk, but from another place or time: a checksum stored beside the data would
// accept them; the checksum in the index does not.
TEST_F(ChunkStoreTest, AMisdirectedOrStaleBlockIsCaught) {
  std::vector<StoredChunk> all;
  std::uint64_t before = 0;
  {
    const auto store = ChunkStore::create(options());
    for (std::uint32_t id = 0; id < 3; ++id) write(*store, id, 10 + id);
    store->commit(1, "");
    before = store->committed()[1].offset;
    write(*store, 1, 99);
    store->commit(2, "");
    all = store->committed();
  }
  const auto copy_block = [&](std::uint64_t from, std::uint64_t to) {
    std::fstream data(file("data"), std::ios::in | std::ios::out | std::ios::binary);
    std::vector<char> block(kChunkBytes);
    data.seekg(static_cast<std::streamoff>(from));
    data.read(block.data(), static_cast<std::streamsize>(block.size()));
    std::vector<char> old(kChunkBytes);
    data.seekg(static_cast<std::streamoff>(to));
    data.read(old.data(), static_cast<std::streamsize>(old.size()));
    data.seekp(static_cast<std::streamoff>(to));
    data.write(block.data(), static_cast<std::streamsize>(block.size()));
    ASSERT_TRUE(data.good());
    EXPECT_NE(old, block);
  };
  ASSERT_NE(before, all[1].offset);
  std::vector<std::byte> bytes(kChunkBytes);
  const auto expect_caught = [&](const char* what) {
    const auto store = ChunkStore::open(options());
    EXPECT_THAT(test::error_of(ErrorKind::corrupt, [&] { store->read_committed(all[1], bytes); }),
                HasSubstr("chunk 1 (master weight of layers.1.mlp)"))
        << what;
  };
  copy_block(before, all[1].offset);
  expect_caught("the generation before");
  copy_block(all[2].offset, all[1].offset);
  expect_caught("another chunk");
  // The right bytes are accepted, wherever they came from.
  std::vector<std::byte> right(kChunkBytes);
  fill_random(right, 99);
  std::fstream data(file("data"), std::ios::in | std::ios::out | std::ios::binary);
  data.seekp(static_cast<std::streamoff>(all[1].offset));
  data.write(reinterpret_cast<const char*>(right.data()), static_cast<std::streamsize>(right.size()));
  data.close();
  EXPECT_NO_THROW(ChunkStore::open(options())->read_committed(all[1], bytes));
}

TEST_F(ChunkStoreTest, WhatAKillBetweenTwoCallsOfACommitLeftIsRemoved) {
  {
    const auto store = ChunkStore::create(options());
    write(*store, 0, 1);
    store->commit(1, "");
    store->commit(2, "");
  }
  for (const std::string name :
       {"index.3.json", "index.3.json.copy", "index.3.json.tmp", "commit.1.tmp", "commit.1.copy.tmp", "index.0.json"})
    std::ofstream(file(name)) << "x";
  std::ofstream(file("notes")) << "not ours";
  ChunkStore::open(options());
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(file("data").parent_path()))
    names.push_back(entry.path().filename());
  EXPECT_THAT(names,
              testing::UnorderedElementsAre("commit.0", "commit.0.copy", "commit.1", "commit.1.copy", "data", "index.1.json",
                                            "index.1.json.copy", "index.2.json", "index.2.json.copy", "lock", "notes"));
}

TEST_F(ChunkStoreTest, AfterAFailedCommitNothingIsWrittenAnyMore) {
  // Lets the last sync of a commit fail, after everything else has succeeded.
  class FailingSync final : public test::KernelFiles {
   public:
    int sync(int f) override { return left-- == 0 ? -EIO : KernelFiles::sync(f); }
    int left = -1;
  };
  auto o = options();
  o.deadline = {};
  const auto files = std::make_shared<FailingSync>();
  o.file_ops = files;
  {
    const auto store = ChunkStore::create(o);
    write(*store, 0, 1);
    store->commit(1, "");
    write(*store, 0, 2);
    files->left = 6;  // a commit syncs seven times
    const auto error = test::thrown_by([&] { store->commit(2, ""); });
    EXPECT_EQ(std::errc::io_error, error.code());
    EXPECT_EQ(file("data").parent_path().string(), std::filesystem::path(error.path()).parent_path().string());
    // Commit 2 is on disk. Its bytes must not be overwritten as if the commit did not exist.
    EXPECT_THROW(store->place_write(ChunkId{0}, 0, kChunkBytes), Error);
    EXPECT_THROW(store->commit(2, ""), Error);
  }
  const auto store = ChunkStore::open(options());
  EXPECT_EQ(2U, store->last_commit()->number);
  expect_committed(*store, {2});
}

}  // namespace
}  // namespace terrace
