// An unusable path is refused by name, with the reason and a remedy; existing files are not overwritten, and a failed start
// leaves nothing to clean up.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <linux/capability.h>
#include <linux/magic.h>
#include <sys/prctl.h>

#include <terrace/tests/cli/cli_test.h>
#include <terrace/tests/cli/faults/private_mount.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

const Words kSmall{"--device-memory", "1MiB", "--host-memory", "1MiB"};
Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class BadPath : public Cli {};

TEST_F(BadPath, AFolderThatIsNotEmptyIsNotTouched) {
  fs::create_directory(at("run"));
  scratch_.write("run/metrics.jsonl", "mine");
  expect_refusal(train({}), 2, {"run is not empty", "--resume auto", "--out-dir"});
  EXPECT_EQ("mine", scratch_.read("run/metrics.jsonl"));
  EXPECT_EQ(1, std::distance(fs::directory_iterator(at("run")), {}));
}

TEST_F(BadPath, AnOutDirThatCannotBe) {
  scratch_.write("file", "mine");
  expect_refusal(train({"--out-dir", "file"}), 2, {"--out-dir file is a file"});
  EXPECT_EQ("mine", scratch_.read("file"));
  expect_refusal(train({"--out-dir", "file/run"}), 1, {"file/run", "Not a directory (errno 20)"});
  expect_refusal(train({"--out-dir", "/proc/terrace"}), 1, {"/proc/terrace", "(errno 2)"});  // root may write elsewhere
  expect_refusal(train({"--resume", "nowhere"}), 2, {"--resume nowhere", "no run"});
}

TEST_F(BadPath, AnOutDirBehindALinkServes) {
  fs::create_directory(at("real"));
  fs::create_directory_symlink("real", at("run"));
  succeeded(train({}));
  EXPECT_TRUE(fs::exists(at("real/metrics.jsonl")));
}

TEST_F(BadPath, AnNvmePathThatCannotBe) {
  scratch_.write("file", "");
  expect_refusal(train({"--nvme-path", "file"}), 2, {"--nvme-path file is not a folder"});
  for (const auto* const again : {"disk", "./disk", "disk/", "./disk/."})
    expect_refusal(train({"--nvme-path", "disk", "--nvme-path", again}), 2, {"disk", "is given more than once"});
  expect_refusal(train({"--nvme-path", "/proc"}), 1, {"/proc/terrace-", "could not be made", "give a writable folder"});
  expect_refusal(train({"--nvme-path", "file/disk"}), 1, {"file/disk", "Not a directory (errno 20)"});
  // Once the path is corrected, the same run directory works immediately, without --resume.
  succeeded(train({"--nvme-path", "disk"}));
}

TEST_F(BadPath, ALinkToNothing) {
  fs::create_directory_symlink("nowhere", at("link"));
  expect_refusal(train({"--nvme-path", "link"}), 2, {"--nvme-path link is a link", "create the folder"});
  expect_refusal(train({"--out-dir", "link"}), 2, {"--out-dir link is a link", "create the folder"});
  fs::create_directory(at("nowhere"));
  EXPECT_EQ(0, train({"--nvme-path", "link"}).exit);
}

TEST_F(BadPath, APathThatCannotBeLookedInto) {
  const std::string long_name(300, 'x');
  expect_refusal(train({"--nvme-path", long_name}), 1, {long_name, "File name too long (errno 36)", "give another"});
  fs::create_directory(at("closed"));
  fs::permissions(at("closed"), fs::perms::none);
  const auto as_user = [&](const Words& words) {
    auto restricted = launch(words);
    restricted.in_child = [] {  // without this, root may do everything
      for (const int right : {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH})
        if (::geteuid() == 0 && ::prctl(PR_CAPBSET_DROP, right, 0, 0, 0) != 0) ::_exit(kNotPermitted);
    };
    return run(restricted);
  };
  const auto outcome = as_user(tiny("train", {"--nvme-path", "closed"}));
  if (outcome.exit == kNotPermitted) GTEST_SKIP() << "the right to write everywhere cannot be given up here";
  expect_refusal(outcome, 1, {"closed/terrace-", "Permission denied (errno 13)", "the permissions"});
  expect_refusal(as_user(tiny("train", {"--out-dir", "closed/run"})), 1, {"closed/run", "Permission denied (errno 13)"});
  expect_refusal(as_user(tiny("train", {"--resume", "closed/run"})), 1,
                 {"closed/run", "Permission denied (errno 13)", "permissions"});
  expect_refusal(as_user(tiny("train", {"--data", "closed/corpus.txt"})), 2,
                 {"closed/corpus.txt", "Permission denied (errno 13)"});
  expect_refusal(as_user(tiny("train", {"--save", "closed/w.safetensors"})), 2,
                 {"--save closed/w", "Permission denied (errno 13)"});
  EXPECT_FALSE(fs::exists(at("run/metrics.jsonl")));
  ASSERT_EQ(0, train({}).exit);
  expect_refusal(as_user({"ckpt", "copy", "run", "closed/copy"}), 1, {"closed/copy", "Permission denied (errno 13)"});
  expect_refusal(as_user({"ckpt", "verify", "closed/run"}), 1, {"closed/run", "Permission denied (errno 13)"});
}

TEST_F(BadPath, AReadOnlyNvmePath) {
  fs::create_directory(at("disk"));
  PrivateMount mount(at("disk"));
  if (!mount.read_only()) GTEST_SKIP() << "mounting is not permitted here: " << mount.why();
  expect_refusal(train({"--nvme-path", "disk"}), 1,
                 {"disk/terrace-", "Read-only file system (errno 30)", "give a writable folder"});
}

TEST_F(BadPath, MemoryAsNvmePathIsWarnedOfAndWorks) {
  struct statfs info {};
  if (::statfs("/dev/shm", &info) != 0 || info.f_type != TMPFS_MAGIC || ::access("/dev/shm", W_OK) != 0)
    GTEST_SKIP() << "/dev/shm is no tmpfs that can be written";
  const ScratchFolder memory("/dev/shm");
  const auto offloaded = succeeded(train(with(kSmall, {"--nvme-path", memory.path().string()})));
  // If the kernel refuses direct I/O on tmpfs, there is a second warning, about the page cache.
  EXPECT_EQ(1U, offloaded.warnings("is not on a disk but in memory; give a directory on the disk")) << offloaded.described;
  EXPECT_EQ(weights_of(train({"--out-dir", "resident"})), weights_of(offloaded));
}

// Direct I/O only bypasses the page cache if the file has no copy-on-write.
TEST_F(BadPath, OnBtrfsAStoreHasNoCopyOnWrite) {
  fs::create_directory(at("disk"));
  PrivateMount mount(at("disk"));
  if (!mount.btrfs(at("image"))) GTEST_SKIP() << "no btrfs can be mounted: " << mount.why();
  const auto offloaded = succeeded(train(with(kSmall, {"--nvme-path", "disk"})));
  EXPECT_EQ(0U, offloaded.warnings("copy-on-write")) << offloaded.described;
  const auto data = fs::directory_iterator(at("disk"))->path() / "data";
  constexpr unsigned long kGetFlags = _IOR('f', 1, long);  // from linux/fs.h, which conflicts with sys/mount.h
  constexpr unsigned kNoCopyOnWrite = 0x00800000;
  unsigned flags = 0;
  const int file = ::open(data.c_str(), O_RDONLY);
  ASSERT_EQ(0, ::ioctl(file, kGetFlags, &flags));
  ::close(file);
  EXPECT_NE(0U, flags & kNoCopyOnWrite);
  EXPECT_THAT(terrace({"doctor", "--nvme-path", "disk"}).out, HasSubstr("a store switches copy-on-write off for its files"));
  // As an earlier version left it: a file that is not empty keeps copy-on-write.
  fs::rename(data, data.string() + ".cow");
  fs::copy_file(data.string() + ".cow", data);
  fs::remove(data.string() + ".cow");
  const auto warned = succeeded(train(with(kSmall, {"--nvme-path", "disk", "--resume", "auto", "--steps", "6"})));
  EXPECT_EQ(1U, warned.warnings("data has copy-on-write, which cannot be switched off there")) << warned.described;
}

TEST_F(BadPath, AnOverlayAsNvmePathIsWarnedOfAndWorks) {
  for (const auto* const name : {"lower", "upper", "work", "disk"}) fs::create_directory(at(name));
  PrivateMount mount(at("disk"));
  if (!mount.overlay(at("lower"), at("upper"), at("work"))) GTEST_SKIP() << "no overlay can be mounted: " << mount.why();
  const auto offloaded = succeeded(train(with(kSmall, {"--nvme-path", "disk"})));
  EXPECT_EQ(1U, offloaded.warnings("is not on a disk but in a container's overlay; give a directory on the disk"))
      << offloaded.described;
  EXPECT_EQ(weights_of(train({"--out-dir", "resident"})), weights_of(offloaded));
}

TEST_F(BadPath, ADeviceThatIsNotThere) {
  for (const auto* const command : {"train", "plan"})
    expect_refusal(terrace(tiny(command, {"--device", "cuda:63"})), 4, {"cuda:63", "--device cpu"});
  EXPECT_FALSE(fs::exists(at("run")));
}

TEST_F(BadPath, FirstWeightsThatAreNotThisModels) {
  ASSERT_EQ(0, train({"--save", "good.safetensors"}).exit);
  const auto bytes = scratch_.read("good.safetensors");
  scratch_.write("header.safetensors", bytes.substr(0, 1000));
  scratch_.write("data.safetensors", bytes.substr(0, bytes.size() - 1));
  scratch_.write("nothing.safetensors", "");
  const auto from = [&](const std::string& file, const Words& more = {}) {
    const auto outcome = train(with({"--out-dir", "next", "--init-from", file}, more));
    EXPECT_FALSE(fs::exists(at("next/metrics.jsonl")));
    return outcome;
  };
  expect_refusal(from("nowhere.safetensors"), 2, {"nowhere.safetensors", "No such file or directory (errno 2)"});
  expect_refusal(from("header.safetensors"), 5, {"header.safetensors", "the file has 1000"});
  expect_refusal(from("data.safetensors"), 5, {"data.safetensors", "cut short"});
  expect_refusal(from("nothing.safetensors"), 5, {"nothing.safetensors", "0 bytes"});
  expect_refusal(from("corpus.txt"), 5, {"corpus.txt", "not a safetensors file"});
  expect_refusal(from("."), 2, {". has neither model.safetensors nor model.safetensors.index.json"});
  expect_refusal(from("good.safetensors", {"--hidden", "32"}), 2, {"good.safetensors", "[256, 64]", "[256, 32]"});
  expect_refusal(from("good.safetensors", {"--layers", "3"}), 2, {"good.safetensors", "layers.2"});
  expect_refusal(from("good.safetensors", {"--model", "gpt2"}), 2, {"good.safetensors", "wte.weight"});
  auto integers = bytes;  // same size as the numbers, but not floats
  const auto type = integers.find("F32");
  ASSERT_NE(std::string::npos, type);
  integers.replace(type, 3, "I32");
  scratch_.write("integers.safetensors", integers);
  expect_refusal(from("integers.safetensors"), 2, {"--init-from", "is of dtype I32", "F32, BF16, F16 and F64"});
  EXPECT_FALSE(fs::exists(at("next")));
  const auto good = succeeded(train({"--out-dir", "next", "--init-from", "good.safetensors"}));
  EXPECT_EQ(0U, good.warnings("--init-from")) << good.described;
  expect_refusal(train({"--out-dir", "shorter", "--init-from", "good.safetensors", "--layers", "1"}), 2,
                 {"the model does not have 9 of its tensors: \"model.layers.1.", "--layers"});
  EXPECT_FALSE(fs::exists(at("shorter")));

  // If a file has more positions than the model, the first ones are used.
  const Words gpt2{"--model", "gpt2", "--lr", "1e-30", "--min-lr", "1e-30", "--steps", "1", "--weight-decay", "0"};
  ASSERT_EQ(0, train(gpt2 + Words{"--out-dir", "gpt2", "--save", "gpt2.safetensors"}).exit);
  const auto cut = succeeded(train(
      gpt2 + Words{"--out-dir", "cut", "--init-from", "gpt2.safetensors", "--seq-len", "32", "--save", "cut.safetensors"}));
  EXPECT_EQ(1U, cut.warnings("gpt2.safetensors has 64 positions, and --seq-len is 32: the first 32 are used")) << cut.described;
  const auto rows_of = [&](const std::string& file) {
    const auto all = scratch_.read(file);
    const auto header = *reinterpret_cast<const std::uint64_t*>(all.data());
    const auto at =
        nlohmann::json::parse(all.substr(8, header)).at("transformer.wpe.weight").at("data_offsets").at(0).get<std::size_t>();
    return all.substr(8 + header + at, 32 * 64 * sizeof(float));
  };
  EXPECT_EQ(rows_of("gpt2.safetensors"), rows_of("cut.safetensors"));
  const auto longer = train(gpt2 + Words{"--out-dir", "longer", "--init-from", "gpt2.safetensors", "--seq-len", "128"});
  expect_refusal(longer, 2, {"gpt2.safetensors has 64 positions, and --seq-len is 128", "--seq-len"});
}

TEST_F(BadPath, WhereTheLastWeightsGoIsCheckedFirst) {
  expect_refusal(train({"--save", "nowhere/w.safetensors"}), 2, {"--save nowhere/w.safetensors", "create the folder first"});
  expect_refusal(train({"--save", "."}), 2, {"--save .", "is a folder"});
  expect_refusal(train({"--save", "/dev/null"}), 2, {"--save /dev/null", "is not a regular file"});
  EXPECT_FALSE(fs::exists(at("run")));
}

TEST_F(BadPath, ARunDoesNotReplaceItsData) {
  const auto before = scratch_.read("corpus.txt");
  std::filesystem::create_symlink("corpus.txt", at("link"));
  for (const auto* const flag : {"--save", "--prometheus"})
    for (const auto* const file : {"corpus.txt", "./corpus.txt", "link"})
      expect_refusal(train({flag, file}), 2, {std::string(flag) + " ", "a file of --data"});
  EXPECT_EQ(before, scratch_.read("corpus.txt"));
}

TEST_F(BadPath, NoInputHasTheNameOfAnOutputsTemporaryFile) {
  const auto expect_kept = [&](const std::string& name, const std::string& from, const Words& words,
                               const std::vector<std::string>& said) {
    SCOPED_TRACE(testing::PrintToString(words));
    fs::copy_file(at(from), at(name));
    const auto before = scratch_.read(name);
    expect_refusal(terrace(words), 2, said);
    EXPECT_EQ(before, scratch_.read(name));
    fs::remove(at(name));
  };
  ASSERT_EQ(0, train({"--steps", "1", "--save", "weights.st", "--out-dir", "first"}).exit);
  for (const std::string flag : {"--save", "--prometheus"}) {
    const std::vector<std::string> said{flag + " out: it is written as out.tmp, which is a file of --"};
    expect_kept("out.tmp", "corpus.txt", tiny("train", {"--data", "out.tmp", flag, "out"}), said);
    expect_kept("out.tmp", "tiny.toml", {"train", "--config", "out.tmp", flag, "out"}, said);
    expect_kept("out.tmp", "weights.st", tiny("train", {"--init-from", "./out.tmp", flag, "out"}), said);
    expect_kept("out.tmp", "corpus.txt",
                tiny("train", {"--tokenizer", "out.tmp", "--data-format", "u16", "--vocab", "256", flag, "out"}), said);
  }
  for (const std::string flag : {"--trace", "--timeline", "--write-schedule"})
    expect_kept("out.tmp", "tiny.toml", {"plan", "--config", "out.tmp", "--pp", "2", flag, "out"},
                {flag + " out: it is written as out.tmp, which is a file of --config"});
  expect_kept("config.toml", "tiny.toml", {"plan", "--config", "config.toml", "--trace", "config.toml"},
              {"--trace config.toml is a file of --config"});
  fs::create_directory(at("run"));
  expect_kept("run/metrics.jsonl.tmp", "corpus.txt", tiny("train", {"--data", "run/metrics.jsonl.tmp", "--resume", "auto"}),
              {"lies in the run directory run"});
}

TEST_F(BadPath, MachineProfilesThatAreNone) {
  expect_refusal(terrace(tiny("plan", {"--machine-profile", "nowhere.json"})), 2, {"nowhere.json", "measure"});
  expect_refusal(terrace(tiny("plan", {"--machine-profile", "corpus.txt"})), 2, {"corpus.txt", "it is not JSON"});
  expect_refusal(terrace(tiny("plan", {"--machine-profile", "."})), 2, {"not a regular file"});
}

TEST_F(BadPath, AProfileThatCannotBeSavedIsRefusedBeforeMeasuring) {
  std::filesystem::remove_all(at("cache"));
  std::ofstream(at("cache")) << "a file where the folder of caches should be";
  expect_refusal(terrace({"doctor", "--measure"}), 1,
                 {"cannot be created", "Not a directory", "give --machine-profile a file"});
}

TEST_F(BadPath, ASavedProfileOfAnotherVersionIsSaidOnce) {
  std::filesystem::create_directories(at("cache") / "terrace");
  std::ofstream(at("cache") / "terrace" / "machine.json") << "{}";
  for (const std::vector<std::string>& command : {tiny("plan", {}), tiny("plan", {"--tiles", "auto"}),
                                                  tiny("train", {"--steps", "1", "--out-dir", "run", "--tiles", "auto"})}) {
    const auto outcome = succeeded(terrace(command));
    const auto said = outcome.err.find("planning with assumed rates");
    ASSERT_NE(std::string::npos, said) << outcome.described;
    EXPECT_EQ(std::string::npos, outcome.err.find("planning with assumed rates", said + 1)) << outcome.described;
  }
}

}  // namespace
}  // namespace terrace::test
