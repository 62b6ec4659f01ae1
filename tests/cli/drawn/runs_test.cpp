// A fuzzer of whole runs. Each case is a run drawn from a seed, trained once with everything in memory and again with other
// budgets, tiers, durabilities, ranks and stops. All must end with the same weights, losses, held-out losses and text, move
// what was planned, and exit with a documented code; none may crash or hang.
//
//   TERRACE_RUNS_SEED   the first number of every draw
// TERRACE_RUNS_LINES  cases are drawn until this many command lines of `terrace train` have run
//   TERRACE_RUNS_ONLY   only the case of this number
#include <chrono>
#include <csignal>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/base/units.h>
#include <terrace/tests/support/environment.h>

#include <terrace/tests/cli/drawn/drawn_run.h>
#include <terrace/tests/cli/drawn/run_promises.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr auto kHang = std::chrono::seconds(120);  // no drawn command takes even a hundredth of it

struct Needs {  // bytes per rank
  std::uint64_t least_device = 1, device = 1, least_host = 1, host = 1, disk = 1;
};

class Runs : public Cli {
 protected:
  Runs() {
    EXPECT_EQ(0, terrace({"train-tokenizer", "corpus.txt", "--vocab", kTokenizerVocab, "--out", "tokenizer.json"}).exit);
    EXPECT_EQ(0, terrace({"tokenize", "corpus.txt", "--tokenizer", "tokenizer.json", "--out", "ids"}).exit);
    for (const auto& entry : fs::directory_iterator(scratch_.path())) kept_.insert(entry.path().filename());
    kept_.erase("disk");  // each case fills it
  }
  void check_case(std::uint64_t seed, std::uint64_t number);

  std::set<std::string> kept_;  // names of files that exist before each case
  std::uint64_t trained_ = 0, refused_ = 0, stopped_ = 0, resumed_ = 0, wrong_ = 0;

 private:
  Outcome tell(const Words& words, const Leg& leg = {}, std::uint64_t stopped_after_ms = 0);
  Outcome train_on(const Words& words, const Leg& leg);
  [[nodiscard]] Told told_by(const std::string& run) const {
    return {metrics(run), json_in(run + "/plan.json"), json_in(run + "/result.json")};
  }
  std::optional<Needs> needs_of(const Words& words, std::uint64_t ranks);
  Words with_budgets(const DrawnRun& drawn, const Leg& leg, const std::string& run);
  std::string at_the_edge(const Words& words, const std::string& flag, std::uint64_t least, std::uint64_t most);
  void train_reference(const DrawnRun& drawn);
  bool train_leg(const DrawnRun& drawn, const Leg& leg, const std::string& run, bool first, std::uint64_t done);
  void check_variant(const DrawnRun& drawn, const std::vector<Leg>& legs, const std::string& run);
  void check_wrong(const DrawnRun& drawn);
  void expect_kept(const std::string& run);
  std::string generated(const DrawnRun& drawn, const std::string& run, const Words& budgets);
  [[nodiscard]] std::set<std::string> files_in(const std::string& folder, const std::string& ending) const;

  std::vector<std::string> commands_;  // of the current case
  Told reference_;
  std::string text_;
};

Outcome Runs::tell(const Words& words, const Leg& leg, std::uint64_t stopped_after_ms) {
  auto started = launch(words);
  if (leg.io_threads) started.environment["TERRACE_IO_ENGINE"] = "threads";
  commands_.push_back(fmt::format("{}terrace {}", leg.io_threads ? "TERRACE_IO_ENGINE=threads " : "", fmt::join(words, " ")));
  Child child(started);
  if (stopped_after_ms != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(stopped_after_ms));
    child.send(SIGTERM);
    commands_.back() += fmt::format("  # SIGTERM after {} ms", stopped_after_ms);
  }
  auto outcome = child.kill_after(kHang);
  if (outcome.signal == SIGKILL) ADD_FAILURE() << "hangs: " << outcome.described;
  commands_.back() += fmt::format("  # {}", outcome.signal ? -outcome.signal : outcome.exit);
  return outcome;
}

Outcome Runs::train_on(const Words& words, const Leg& leg) {
  ++trained_;
#ifdef TERRACE_MPIRUN
  if (leg.processes)
    return tell(Words{"launch", "-n", std::to_string(leg.layout.ranks()), "--mpirun", TERRACE_MPIRUN, "--"} + words, leg);
#endif
  return tell(words, leg);
}

Words as_plan(Words words) {
  words.front() = "plan";
  std::erase(words, "--json");
  std::erase(words, "--verify-resident");
  words.emplace_back("--json");
  return words;
}

std::optional<Needs> Runs::needs_of(const Words& words, std::uint64_t ranks) {
  const auto outcome =
      tell(as_plan(words + Words{"--nvme-path", "none", "--device-memory", "unlimited", "--host-memory", "unlimited"}));
  if (outcome.exit != 0) {
    ADD_FAILURE() << "no plan without budgets: " << outcome.described;
    return std::nullopt;
  }
  const auto plan = json::parse(outcome.out);
  const auto of_ranks = plan.contains("ranks") ? plan.at("ranks") : json::array({plan});
  Needs n;
  const auto most = [](std::uint64_t& bytes, const json& of) { bytes = std::max(bytes, of.get<std::uint64_t>()); };
  for (const auto& p : of_ranks) {
    most(n.least_device, p.at("smallest_bytes").at("device"));
    most(n.device, p.at("peak_bytes").at("device"));
    most(n.least_host, p.at("smallest_bytes").at("host"));
    most(n.host, p.at("state_bytes"));
    most(n.disk, p.at("peak_bytes").at("nvme"));
    most(n.disk, p.at("state_bytes"));
  }
  // The ranks share the host and the disk of a machine.
  n.least_host *= ranks, n.host *= ranks, n.disk *= ranks;
  return n;
}

// The smallest value of the flag, exact to the byte, with which the plan fits.
std::string Runs::at_the_edge(const Words& words, const std::string& flag, std::uint64_t least, std::uint64_t most) {
  const auto fits = [&](std::uint64_t bytes) { return tell(as_plan(words + Words{flag, std::to_string(bytes)})).exit == 0; };
  auto low = least / 2, high = 2 * most;
  if (low == 0 || !fits(high)) return "unlimited";  // another budget is too small
  const auto kept = commands_.size();
  while (high - low > 1) {
    const auto middle = low + (high - low) / 2;
    (fits(middle) ? high : low) = middle;
  }
  commands_.resize(kept);
  return std::to_string(high);
}

Words Runs::with_budgets(const DrawnRun& drawn, const Leg& leg, const std::string& run) {
  auto words = words_of(drawn, leg);
  const auto ranks = leg.layout.ranks();
  const auto needs = needs_of(words, ranks);
  if (!needs) return {};
  for (std::uint64_t disk = 1; disk <= leg.disks; ++disk) {
    const auto folder = fmt::format("{}-disk{}", run, disk);
    std::filesystem::create_directory(at(folder));
    words = words + Words{"--nvme-path", folder};
  }
  if (leg.disk.given) words = words + Words{"--nvme-limit", test::text_of(leg.disk, needs->disk / 2, 3 * needs->disk)};
  if (leg.host.given && !leg.host.at_the_edge)
    words = words + Words{"--host-memory", test::text_of(leg.host, needs->least_host, needs->host)};
  if (leg.device.given && !leg.device.at_the_edge)
    words = words + Words{"--device-memory", test::text_of(leg.device, needs->least_device, needs->device)};
  if (leg.host.at_the_edge)
    words = words + Words{"--host-memory", at_the_edge(words, "--host-memory", needs->least_host, needs->host)};
  if (leg.device.at_the_edge)
    words = words + Words{"--device-memory", at_the_edge(words, "--device-memory", needs->least_device, needs->device)};
  return words;
}

std::uint64_t bytes_of(const Words& words, const std::string& flag) {
  const auto at = std::ranges::find(words, flag);
  return at == words.end() ? kUnlimited : parse_bytes(*(at + 1));
}

// `done`: the steps up to the run's last commit.
bool Runs::train_leg(const DrawnRun& drawn, const Leg& leg, const std::string& run, bool first, std::uint64_t done) {
  auto words = with_budgets(drawn, leg, run);
  if (words.empty()) return false;
  const bool edge = (leg.device.at_the_edge || leg.host.at_the_edge) && std::ranges::find(words, "unlimited") == words.end();
  words = words + Words{"--out-dir", run};
  if (leg.saves) words = words + Words{"--save", run + ".safetensors"};
  if (!first || leg.stopped_after_ms != 0) words = words + Words{"--resume", "auto"};
  bool stopped = false;
  if (leg.stopped_after_ms != 0) {
    ++trained_;
    const auto outcome = tell(words, leg, leg.stopped_after_ms);
    stopped = outcome.exit == 75;
    stopped_ += stopped;
    if (outcome.signal != SIGTERM && outcome.exit != 0 && outcome.exit != 3 && outcome.exit != 75) {
      ADD_FAILURE() << outcome.described;
      return false;
    }
  }
  auto outcome = train_on(words, leg);
  bool sure = edge && first;  // the plan said that it fits
  for (int tries = 0; outcome.exit == 3 && !sure && tries < 5; ++tries) {
    ++refused_;
    expect_refusal(outcome, 3, {});
    if (first) {
      EXPECT_FALSE(fs::exists(at(run))) << "a refused run left something\n" << outcome.described;
    }
    const auto next = suggested(words, outcome.err);
    if (!next) {
      ADD_FAILURE() << "no suggestion: " << outcome.described;
      return false;
    }
    words = next->words;
    sure = next->sure;
    outcome = train_on(words, leg);
  }
  if (outcome.exit != 0) {
    ADD_FAILURE() << (sure ? "what fits by the plan or its suggestion does not run: " : "") << outcome.described;
    return false;
  }
  SCOPED_TRACE(outcome.described);
  const auto told = told_by(run);
  expect_steps_of(reference_, told, leg.steps);
  const auto ranks = leg.layout.ranks();
  const bool anew = done == 0 && !stopped;
  if (!stopped)
    expect_within({.device = bytes_of(words, "--device-memory"),
                   .host = bytes_of(words, "--host-memory") / ranks,
                   .disk = bytes_of(words, "--nvme-limit") / ranks},
                  told, done);
  if (anew) {
    expect_moved_as_planned(told);
    const auto asked = tell(as_plan(words));
    if (asked.exit != 0) {
      ADD_FAILURE() << "the run fits, the plan does not: " << asked.described;
    } else {
      const auto plan = json::parse(asked.out);
      if (ranks == 1) {
        EXPECT_EQ(plan.at("bytes"), told.plan.at("bytes")) << asked.described;
      }
      SCOPED_TRACE(asked.described);
      expect_planned_peaks(plan, told);
    }
  }
  if (leg.saves && leg.steps == drawn.reference.steps) {
    EXPECT_TRUE(scratch_.read("reference.safetensors") == scratch_.read(run + ".safetensors")) << "--save";
  }
  if (!leg.commits) return true;
  const auto verified = tell({"ckpt", "verify", run});
  EXPECT_EQ(0, verified.exit) << verified.described;
  const auto inspected = tell({"ckpt", "inspect", run, "--json"});
  EXPECT_EQ(0, inspected.exit) << inspected.described;
  if (inspected.exit == 0) {
    EXPECT_EQ(leg.steps, json::parse(inspected.out).at("step")) << inspected.described;
  }
  if (std::ranges::find(words, "--ckpt-keep") != words.end()) expect_kept(run);
  return true;
}

// Every listed commit is intact.
void Runs::expect_kept(const std::string& run) {
  const auto listed = tell({"ckpt", "list", run, "--json"});
  ASSERT_EQ(0, listed.exit) << listed.described;
  for (const auto& commit : json::parse(listed.out)) {
    const auto verified = tell({"ckpt", "verify", run, "--step", commit.at("step").dump()});
    EXPECT_EQ(0, verified.exit) << verified.described;
  }
}

std::string Runs::generated(const DrawnRun& drawn, const std::string& run, const Words& budgets) {
  auto words = Words{"generate", run, "--prompt", drawn.prompt} + drawn.sampling + budgets;
  auto outcome = tell(words);
  for (int tries = 0; outcome.exit == 3 && tries < 5; ++tries) {
    const auto next = suggested(words, outcome.err);
    if (!next) break;
    words = next->words;
    outcome = tell(words);
    if (next->sure) break;
  }
  EXPECT_EQ(0, outcome.exit) << outcome.described;
  return outcome.out;
}

void Runs::train_reference(const DrawnRun& drawn) {
  const auto outcome =
      train_on(words_of(drawn, drawn.reference) +
                   flags("--device-memory unlimited --host-memory unlimited --out-dir reference --save reference.safetensors"),
               drawn.reference);
  ASSERT_EQ(0, outcome.exit) << outcome.described;
  reference_ = told_by("reference");
  expect_moved_as_planned(reference_);
  text_ = generated(drawn, "reference", {});
}

std::set<std::string> Runs::files_in(const std::string& folder, const std::string& ending) const {
  std::set<std::string> found;
  if (!fs::exists(at(folder))) return found;
  for (const auto& entry : fs::recursive_directory_iterator(at(folder)))
    if (const auto name = entry.path().lexically_relative(scratch_.path()).string();
        !entry.is_directory() && name.ends_with(ending))
      found.insert(name);
  return found;
}

void Runs::check_variant(const DrawnRun& drawn, const std::vector<Leg>& legs, const std::string& run) {
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < legs.size(); ++i) {
    if (!train_leg(drawn, legs[i], run, i == 0, done)) return;
    resumed_ += done != 0;
    if (legs[i].commits) done = legs[i].steps;
  }
  expect_result_of(reference_, told_by(run));
  for (const auto* const ending : {".tmp", ".new"}) EXPECT_EQ(std::set<std::string>(), files_in(run, ending));
  if (legs.back().commits) {
    EXPECT_EQ(text_, generated(drawn, run, {}));
    EXPECT_EQ(text_, generated(drawn, run, {"--device-memory", "70001", "--host-memory", "130001"}));
  }
  const auto removed = tell({"ckpt", "rm", run});
  EXPECT_EQ(0, removed.exit) << removed.described;
  if (!legs.front().commits) return;  // a run that starts again leaves an empty store in its old place
  for (int disk = 1; disk <= 3; ++disk)
    EXPECT_EQ(std::set<std::string>(), files_in(fmt::format("{}-disk{}", run, disk), "")) << "left on a disk";
  EXPECT_EQ(std::set<std::string>(), files_in(run, "data")) << "a store is left";
}

void Runs::check_wrong(const DrawnRun& drawn) {
  if (drawn.wrong.empty()) return;
  ++wrong_;
  const auto outcome = train_on(words_of(drawn, drawn.reference) + Words{"--out-dir", "wrong"} + drawn.wrong, {});
  EXPECT_EQ(2, outcome.exit) << outcome.described;
  EXPECT_THAT(outcome.err, HasSubstr("error: ")) << outcome.described;
  for (const auto& text : drawn.wrong_says) EXPECT_THAT(outcome.err, HasSubstr(text)) << outcome.described;
  EXPECT_FALSE(fs::exists(at("wrong")));
}

void Runs::check_case(std::uint64_t seed, std::uint64_t number) {
  SCOPED_TRACE(fmt::format("TERRACE_RUNS_SEED={} TERRACE_RUNS_ONLY={}", seed, number));
  const auto failures = [] { return testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count(); };
  const auto before = failures();
  commands_.clear();
  const auto drawn = draw_run(seed, number);
  train_reference(drawn);
  check_wrong(drawn);
  for (std::size_t v = 0; v < drawn.variants.size() && failures() == before; ++v)
    check_variant(drawn, drawn.variants[v], fmt::format("run{}", v));
  if (failures() != before) fmt::print("the commands of seed {}, case {}:\n  {}\n", seed, number, fmt::join(commands_, "\n  "));
}

TEST_F(Runs, EndAlikeHoweverTheyAreRun) {
  const auto seed = number_from_environment("TERRACE_RUNS_SEED", 21), lines = number_from_environment("TERRACE_RUNS_LINES", 40);
  constexpr auto kAll = std::numeric_limits<std::uint64_t>::max();
  const auto only = number_from_environment("TERRACE_RUNS_ONLY", kAll);
  std::uint64_t number = only == kAll ? 0 : only;
  std::uint64_t told = 0;
  for (; trained_ < lines; ++number) {
    check_case(seed, number);
    if (trained_ / 100 > told) {
      told = trained_ / 100;
      fmt::print("{} command lines, {} cases\n", trained_, number + 1);
      std::fflush(stdout);
    }
    if (only != kAll) break;
    for (const auto& entry : fs::directory_iterator(scratch_.path()))
      if (!kept_.contains(entry.path().filename())) fs::remove_all(entry.path());
    fs::create_directory(at("disk"));
  }
  fmt::print(
      "seed {}: {} cases, {} command lines of train: {} were refused with a suggestion that was then taken, {} for words that "
      "are wrong, {} were stopped, {} resumed a run\n",
      seed, number, trained_, refused_, wrong_, stopped_, resumed_);
}

}  // namespace
}  // namespace terrace::test
