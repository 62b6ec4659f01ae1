// A fuzzer of meshes. Each case is a model drawn from a seed, trained by one rank and by ranks in drawn products of data,
// pipeline, tensor, context and expert parallelism, each under two ways of moving and sharing. What must hold:
//
//   - every drawn line is accepted, and trains what one rank trains: losses, gradient norms, held-out loss, generated text;
//   - both ways give the same bits on one mesh, move the planned bytes and reach the planned peaks;
//   - an illegal degree is refused with its flag and the nearest legal ones, and these are accepted.
//
//   TERRACE_MESHES_SEED   the first number of every draw
//   TERRACE_MESHES_LINES  cases are drawn until so many command lines of `terrace train` have run
//   TERRACE_MESHES_ONLY   only the case of this number
#include <chrono>
#include <csignal>
#include <limits>
#include <regex>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/tests/support/environment.h>

#include "drawn_mesh.h"
#include "on_ranks.h"
#include "run_promises.h"

namespace terrace::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr auto kHang = std::chrono::seconds(120);  // no drawn command takes a hundredth of it

class Meshes : public Ranks {
 protected:
  void check_case(std::uint64_t seed, std::uint64_t number);

  std::uint64_t trained_ = 0, without_room_ = 0;

 private:
  Outcome tell(const Words& words);
  Outcome train_line(const Words& words) {
    ++trained_;
    return tell(words);
  }
  [[nodiscard]] std::string greedy(const std::string& run);
  [[nodiscard]] Told told_by(const std::string& run) const {
    return {metrics(run), json_in(run + "/plan.json"), json_in(run + "/result.json")};
  }
  [[nodiscard]] Words budgets(const DrawnMesh& mesh, const Words& words);
  void check_mesh(const DrawnModel& model, const DrawnMesh& mesh, const std::string& run);
  void check_wrong(const DrawnModel& model);

  std::vector<std::string> commands_;  // of this case
  std::string text_;                   // of one rank
};

Outcome Meshes::tell(const Words& words) {
  commands_.push_back(fmt::format("terrace {}", fmt::join(words, " ")));
  Child child(launch(words));
  auto outcome = child.kill_after(kHang);
  if (outcome.signal == SIGKILL) ADD_FAILURE() << "hangs: " << outcome.described;
  commands_.back() += fmt::format("  # {}", outcome.signal ? -outcome.signal : outcome.exit);
  return outcome;
}

// Words that stand behind others replace them.
Words with(Words words, const Words& other) {
  for (std::size_t i = 0; i < other.size(); i += 2) {
    const auto at = std::ranges::find(words, other[i]);
    if (at == words.end())
      words = words + Words{other[i], other[i + 1]};
    else
      *(at + 1) = other[i + 1];
  }
  return words;
}

std::string Meshes::greedy(const std::string& run) {
  const auto outcome = tell({"generate", run, "--prompt", "the ", "--max-tokens", "12", "--temperature", "0"});
  EXPECT_EQ(0, outcome.exit) << outcome.described;
  return outcome.out;
}

Words Meshes::budgets(const DrawnMesh& mesh, const Words& words) {
  auto plan = words + Words{"--json", "--nvme-path", "none", "--device-memory", "unlimited", "--host-memory", "unlimited"};
  plan.front() = "plan";
  const auto outcome = tell(plan);
  EXPECT_EQ(0, outcome.exit) << outcome.described;
  if (outcome.exit != 0) return {};
  const auto needs = needs_of(json::parse(outcome.out));
  return {"--device-memory", std::to_string(Needs::between(needs.least_device, needs.device, 0.1 + mesh.device_share)),
          "--host-memory",   std::to_string(mesh.ranks * Needs::between(needs.least_host, needs.state, 0.2 + mesh.host_share)),
          "--nvme-path",     "disk"};
}

void Meshes::check_mesh(const DrawnModel& model, const DrawnMesh& mesh, const std::string& run) {
  const auto words = Words{"train", "--config", "tiny.toml"} + model.words + mesh.words;
  const auto outcome = train_line(words + Words{"--out-dir", run});
  ASSERT_EQ(0, outcome.exit) << outcome.described;
  SCOPED_TRACE(outcome.described);
  expect_near("one", run, model.fp64 ? 1e-9 : 5e-5);
  expect_moved_as_planned(told_by(run));
  EXPECT_EQ(text_, greedy(run));

  const auto other = with(words, mesh.other_way);
  const auto tight = budgets(mesh, other);
  if (tight.empty()) return;
  const auto again = train_line(other + tight + Words{"--out-dir", run + "-tight"});
  if (again.exit == 3) {
    ++without_room_;
    return expect_refusal(again, 3, {});
  }
  ASSERT_EQ(0, again.exit) << again.described;
  EXPECT_EQ(weights_of(outcome), weights_of(again)) << again.described;
  EXPECT_EQ(steps(run), steps(run + "-tight"));
  SCOPED_TRACE(again.described);
  expect_moved_as_planned(told_by(run + "-tight"));
  auto plan = other + tight + Words{"--json"};
  plan.front() = "plan";
  const auto asked = tell(plan);
  ASSERT_EQ(0, asked.exit) << asked.described;
  expect_planned_peaks(json::parse(asked.out), told_by(run + "-tight"));
}

void Meshes::check_wrong(const DrawnModel& model) {
  const auto words = Words{"train", "--config", "tiny.toml"} + model.words;
  const auto outcome = train_line(words + model.wrong + Words{"--out-dir", "wrong"});
  EXPECT_EQ(2, outcome.exit) << outcome.described;
  EXPECT_THAT(outcome.err, HasSubstr("error: ")) << outcome.described;
  EXPECT_THAT(outcome.err, HasSubstr(model.named)) << outcome.described;
  EXPECT_FALSE(fs::exists(at("wrong")));
  std::smatch found;
  if (!std::regex_search(outcome.err, found, std::regex(model.named + R"( [0-9]+:[^\n]*\n  nearest legal: ([0-9]+))"))) {
    EXPECT_THAT(outcome.err, HasSubstr("no other degree is legal")) << outcome.described;
    return;
  }
  const auto nearest = found[1].str();
  if (std::stoull(nearest) > 16) return;
  const auto taken = train_line(words + Words{model.named, nearest, "--out-dir", "nearest"});
  EXPECT_EQ(0, taken.exit) << "the nearest legal degree is refused\n" << outcome.described << taken.described;
}

void Meshes::check_case(std::uint64_t seed, std::uint64_t number) {
  SCOPED_TRACE(fmt::format("TERRACE_MESHES_SEED={} TERRACE_MESHES_ONLY={}", seed, number));
  const auto failures = [] { return testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count(); };
  const auto before = failures();
  commands_.clear();
  const auto model = draw_model(seed, number);
  const auto one = train_line(Words{"train", "--config", "tiny.toml"} + model.words +
                              Words{"--grad-accumulation", std::to_string(model.micro_batches), "--out-dir", "one"});
  EXPECT_EQ(0, one.exit) << one.described;
  if (one.exit == 0) {
    text_ = greedy("one");
    check_wrong(model);
    for (std::size_t m = 0; m < model.meshes.size() && failures() == before; ++m)
      check_mesh(model, model.meshes[m], fmt::format("mesh{}", m));
  }
  if (failures() != before) fmt::print("the commands of seed {}, case {}:\n  {}\n", seed, number, fmt::join(commands_, "\n  "));
}

TEST_F(Meshes, TrainWhatOneRankTrains) {
  const auto seed = number_from_environment("TERRACE_MESHES_SEED", 5),
             lines = number_from_environment("TERRACE_MESHES_LINES", 100);
  constexpr auto kAll = std::numeric_limits<std::uint64_t>::max();
  const auto only = number_from_environment("TERRACE_MESHES_ONLY", kAll);
  std::uint64_t number = only == kAll ? 0 : only;
  for (; trained_ < lines; ++number) {
    check_case(seed, number);
    if (only != kAll) break;
    for (const auto& entry : fs::directory_iterator(scratch_.path()))
      if (const auto name = entry.path().filename(); name != "corpus.txt" && name != "tiny.toml" && name != "cache")
        fs::remove_all(entry.path());
    fs::create_directory(at("disk"));
  }
  fmt::print("seed {}: {} models, {} command lines of train, {} budgets without room\n", seed, number, trained_, without_room_);
}

}  // namespace
}  // namespace terrace::test
