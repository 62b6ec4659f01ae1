#include <terrace/tests/cli/drawn/run_promises.h>

#include <algorithm>
#include <regex>

namespace terrace::test {

using nlohmann::json;

namespace {

json member(const json& object, const char* key) { return object.contains(key) ? object.at(key) : json(); }

bool any_skipped(const Told& run) {
  return std::ranges::any_of(run.steps, [](const json& m) { return m.contains("skipped"); });
}

void give(Words& words, const std::string& flag, const std::string& value) {
  const auto at = std::ranges::find(words, flag);
  if (at == words.end())
    words.insert(words.end(), {flag, value});
  else
    *(at + 1) = value;
}

}  // namespace

void expect_steps_of(const Told& reference, const Told& run, std::uint64_t steps) {
  ASSERT_GE(reference.steps.size(), steps);
  ASSERT_EQ(steps, run.steps.size()) << "lines of metrics.jsonl";
  for (std::size_t i = 0; i < steps; ++i) {
    const auto &expected = reference.steps[i], &got = run.steps[i];
    for (const auto* const key : {"step", "loss", "grad_norm", "lr", "tokens", "skipped"})
      EXPECT_EQ(member(expected, key), member(got, key)) << key << " of step " << i + 1;
    if (expected.contains("eval_loss") && got.contains("eval_loss")) {
      EXPECT_EQ(expected.at("eval_loss"), got.at("eval_loss")) << "held-out loss after step " << i + 1;
    }
  }
}

void expect_result_of(const Told& reference, const Told& run) {
  for (const auto* const key : {"steps", "weights_xxh64", "eval_loss", "first_eval_loss", "skipped_steps", "loss_scale"})
    EXPECT_EQ(member(reference.result, key), member(run.result, key)) << key << " of result.json";
}

void expect_moved_as_planned(const Told& run) {
  const bool one = !run.plan.contains("ranks");
  const auto& peaks = run.plan.at("peak_bytes");
  for (const auto* const tier : {"device", "host", "nvme"})
    EXPECT_LE(run.result.at("peak_bytes").at(tier), peaks.at(tier)) << "peak of " << tier;
  if (any_skipped(run)) return;
  const auto steps = run.plan.at("walked").at("steps").get<std::size_t>();
  if (steps > run.steps.size()) return;
  EXPECT_EQ(peaks, run.result.at("peak_bytes"));
  if (!one && !run.plan.at("ranks").contains("walked_bytes")) return;
  const auto& planned = one ? run.plan.at("walked").at("bytes") : run.plan.at("ranks").at("walked_bytes");
  for (const auto& [edge, bytes] : planned.items()) {
    std::uint64_t moved = 0;
    for (std::size_t i = 0; i < steps; ++i) moved += run.steps[i].at("offload").at(edge + "_bytes").get<std::uint64_t>();
    EXPECT_EQ(bytes, moved) << edge << " in the first " << steps << " steps";
  }
}

void expect_planned_peaks(const json& plan, const Told& run) {
  for (const auto* const tier : {"device", "host", "nvme"}) {
    std::uint64_t most = 0;
    for (const auto& stage : plan.contains("ranks") ? plan.at("ranks") : json::array({plan}))
      most = std::max(most, stage.at("peak_bytes").at(tier).get<std::uint64_t>());
    EXPECT_EQ(most, run.plan.at("peak_bytes").at(tier)) << "peak of " << tier;
  }
}

void expect_within(const MostBytes& budget, const Told& run, std::uint64_t done) {
  std::vector<json> peaks;
  if (done == 0) peaks.push_back(run.result.at("peak_bytes"));
  for (const auto& m : run.steps) {
    if (m.at("step").get<std::uint64_t>() <= done) continue;
    const auto& mem = m.at("mem");
    peaks.push_back(
        {{"device", mem.at("device_peak_bytes")}, {"host", mem.at("host_peak_bytes")}, {"nvme", mem.at("nvme_peak_bytes")}});
  }
  for (const auto& peak : peaks) {
    EXPECT_LE(peak.at("device").get<std::uint64_t>(), budget.device);
    EXPECT_LE(peak.at("host").get<std::uint64_t>(), budget.host);
    EXPECT_LE(peak.at("nvme").get<std::uint64_t>(), budget.disk);
  }
}

std::optional<Suggested> suggested(const Words& words, const std::string& error) {
  const std::regex value("(--device-memory|--host-memory|--nvme-limit) ([0-9]+MiB)");
  const std::regex flag("--device-memory|--host-memory|--nvme-limit");
  Suggested out{.words = words};
  if (const auto end = error.find(" would fit"); end != std::string::npos) {
    const auto begin = error.rfind('\n', end) + 1;
    const auto line = error.substr(begin, end - begin);
    for (std::sregex_iterator at(line.begin(), line.end(), value), none; at != none; ++at) {
      give(out.words, at->str(1), at->str(2));
      out.sure = true;
    }
    if (out.sure) return out;
  }
  if (const auto begin = error.find("no value of "); begin != std::string::npos) {
    const auto line = error.substr(begin, error.find(", or lower", begin) - begin);
    for (std::sregex_iterator at(line.begin(), line.end(), flag), none; at != none; ++at)
      give(out.words, at->str(), "unlimited");
    return out;
  }
  return std::nullopt;
}

}  // namespace terrace::test
