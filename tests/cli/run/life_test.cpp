// The whole life of a run: training with kept commits and a tokenizer, a copy, an export, a removal, and training that
// continues from the copy. After a kill or a power cut at any moment, everything that had ended before is present, and
// repeating the same command ends as if nothing had happened.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <map>
#include <random>

#include <fmt/format.h>

#include <terrace/core/base/files.h>
#include <terrace/tests/support/environment.h>

#include <terrace/tests/cli/cli_test.h>
#include <terrace/tests/cli/faults/private_mount.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::nanoseconds;

// An ext4 in a file of a btrfs. A btrfs snapshot of that file contains what was written to the disk, but nothing that the
// system still had in memory. So it equals a disk after a power cut.
class CutDisk {
 public:
  explicit CutDisk(const fs::path& scratch) : scratch_(scratch), outer_(scratch / "outer"), disk_(scratch / "disk") {
    fs::create_directory(scratch / "outer");
    fs::create_directory(scratch / "disk");
  }
  bool make() { return outer_.btrfs(scratch_ / "outer.img") && disk_.ext4(image(), 64 << 20); }
  void keep_this_moment() {
    const files::FileHandle from(::open(image().c_str(), O_RDONLY | O_CLOEXEC)),
        to(::open(moment().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ASSERT_EQ(0, ::ioctl(to.get(), FICLONE, from.get())) << std::strerror(errno);
  }
  // Turns the power on again.
  void restart() {
    ASSERT_TRUE(disk_.detach());
    fs::rename(moment(), image());
    ASSERT_TRUE(disk_.mount_image(image()));
  }

 private:
  [[nodiscard]] fs::path image() const { return scratch_ / "outer/disk.img"; }
  [[nodiscard]] fs::path moment() const { return scratch_ / "outer/moment.img"; }

  fs::path scratch_;
  PrivateMount outer_, disk_;
};

class Life : public Cli {
 protected:
  Life() {
    EXPECT_EQ(0, terrace({"train-tokenizer", "corpus.txt", "--vocab", "280", "--out", "tokenizer.json"}).exit);
    EXPECT_EQ(0, terrace({"tokenize", "corpus.txt", "--tokenizer", "tokenizer.json", "--out", "ids"}).exit);
    scratch_.write("tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
    for (const auto* const disk : {"first", "second"}) std::filesystem::create_directories(at("disk") / disk);
  }

  // All commands of a run's life, in order.
  static constexpr std::size_t kCommands = 5;
  [[nodiscard]] std::array<Words, kCommands> life(bool with_disks) const {
    const auto training = [&](const std::string& run, const std::string& steps) {
      Words words{"--data",    "ids", "--data-format",   "u16", "--vocab",     "280", "--tokenizer", "tokenizer.json",
                  "--steps",   steps, "--ckpt-interval", "1",   "--ckpt-keep", "3",   "--resume",    "auto",
                  "--out-dir", run};
      if (with_disks)
        words = words + flags("--nvme-path disk/first --nvme-path disk/second --device-memory 1MiB --host-memory 1MiB");
      return tiny("train", words);
    };
    return {training("disk/run", "6"),
            {"ckpt", "copy", "disk/run", "disk/copy", "--step", "5"},
            {"ckpt", "export", "disk/run", "disk/export"},
            {"ckpt", "rm", "disk/run", "--step", "4"},
            training("disk/copy", "7")};
  }

  struct End {
    std::string run, copy;  // hashes of weights
    std::string listed;
    std::map<std::string, std::string> exported;
    bool operator==(const End&) const = default;
  };
  [[nodiscard]] End end() const {
    End all{.run = weights("disk/run"), .copy = weights("disk/copy"), .listed = {}, .exported = {}};
    for (const auto* const run : {"disk/run", "disk/copy"}) {
      const auto listed = succeeded(terrace({"ckpt", "list", run, "--json"}));
      for (const auto& commit : nlohmann::json::parse(listed.out)) {
        const std::string step = commit.at("step").dump();
        succeeded(terrace({"ckpt", "verify", run, "--step", step}));
        all.listed += step + " ";
      }
    }
    for (const auto& entry : fs::recursive_directory_iterator(at("disk"))) {
      const auto name = entry.path().filename().string();
      EXPECT_EQ(std::string::npos, name.find("unfinished")) << entry.path() << " is left";
      EXPECT_FALSE(name.ends_with(".tmp") || name.ends_with(".partial")) << entry.path() << " is left";
      if (entry.path().parent_path() == at("disk/export")) all.exported[name] = scratch_.read("disk/export/" + name);
    }
    return all;
  }
  [[nodiscard]] std::string weights(const std::string& run) const {
    return json_in(run + "/result.json").at("weights_xxh64").get<std::string>();
  }

  // Runs lives in which `disturb` disturbs one command after a random time.
  template <class Disturb>
  void live(std::uint64_t lives, std::uint64_t first_seed, const Disturb& disturb);
};

template <class Disturb>
void Life::live(std::uint64_t lives, std::uint64_t first_seed, const Disturb& disturb) {
  std::array<std::array<nanoseconds, kCommands>, 2> takes{};
  std::array<End, 2> ends;
  const auto begin_again = [&] {
    for (const auto& entry : fs::directory_iterator(at("disk")))
      if (entry.path().filename() != "lost+found") fs::remove_all(entry.path());
    for (const auto* const folder : {"disk/first", "disk/second"}) fs::create_directory(at(folder));
    ::sync();  // otherwise a power cut could restore the previous life
  };
  for (const bool with_disks : {false, true}) {
    begin_again();
    const auto commands = life(with_disks);
    for (std::size_t i = 0; i < kCommands; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      const auto outcome = terrace(commands[i]);
      takes[with_disks][i] = std::chrono::steady_clock::now() - begin;
      ASSERT_EQ(0, outcome.exit) << outcome.described;
    }
    ends[with_disks] = end();
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_EQ(ends[0].run, ends[1].run);
  EXPECT_EQ("5 6 5 6 7 ", ends[0].listed);

  std::uint64_t again = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + lives; ++seed) {
    std::mt19937_64 random(seed);
    const bool with_disks = random() % 2 == 0;
    const auto commands = life(with_disks);
    const auto disturbed = seed % kCommands;
    SCOPED_TRACE(fmt::format("TERRACE_KILL_SEED={}: terrace {}", seed, fmt::join(commands[disturbed], " ")));
    begin_again();
    for (std::size_t i = 0; i < kCommands; ++i) {
      if (i == disturbed) {
        const auto at_most = static_cast<std::uint64_t>(takes[with_disks][i].count());
        again += disturb(commands[i], nanoseconds(random() % (at_most + at_most / 8)));
        ASSERT_FALSE(HasFailure());
      }
      const auto outcome = terrace(commands[i]);
      // The command may have ended before it was disturbed: making a copy again, or removing a commit again, is refused.
      const bool was_done = i == disturbed && outcome.exit == 2 && commands[i].front() == "ckpt";
      ASSERT_TRUE(outcome.exit == 0 || was_done) << outcome.described;
    }
    ASSERT_TRUE(ends[with_disks] == end());
    ASSERT_FALSE(HasFailure());
  }
  fmt::print("{} lives, of which {} were disturbed before their command had ended\n", lives, again);
}

TEST_F(Life, KillsAtRandomMomentsChangeNothing) {
  fs::create_directory(at("disk"));
  live(number_from_environment("TERRACE_KILLS", 5), number_from_environment("TERRACE_KILL_SEED", 1),
       [&](const Words& words, nanoseconds time) { return Child(launch(words)).kill_after(time).signal == SIGKILL; });
}

TEST_F(Life, PowerCutsAtRandomMomentsChangeNothing) {
  CutDisk disk(scratch_.path());
  if (!disk.make())
    GTEST_SKIP() << "no file system of its own can be mounted here (it needs btrfs-progs, e2fsprogs and loop devices)";
  live(number_from_environment("TERRACE_CUTS", 5), number_from_environment("TERRACE_KILL_SEED", 1),
       [&](const Words& words, nanoseconds time) {
         const auto outcome = Child(launch(words)).kill_after(time, [&] { disk.keep_this_moment(); });
         disk.restart();
         return outcome.signal == SIGKILL;
       });
}

}  // namespace
}  // namespace terrace::test
