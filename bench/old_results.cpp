#include <terrace/bench/old_results.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/json_text.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>

namespace terrace::bench {
namespace {

using nlohmann::ordered_json;

// Keys that say what was measured; all others are figures.
constexpr std::array kTestKeys{
    "bench",       "op",          "path",    "policy",       "optimizer",   "recipe",    "dtype",         "model",
    "tier",        "schedule",    "n",       "host_memory",  "gpu",         "numa_node", "copy_bytes",    "array_bytes",
    "block_bytes", "queue_depth", "threads", "memory_bytes", "chunk_bytes", "ranks",     "micro_batches", "stages",
    "layers",      "params"};
// A result's main figure is the first of these that it has. Its spread is that of its runs.
constexpr std::array kFigures{"gb_per_s", "gflop_per_s", "params_per_s", "tokens_per_s", "latency_us", "hit_rate", "step_s"};
// Facts that say nothing about the machine.
constexpr std::array kPassingFacts{"seed", "profile"};

ordered_json test_of(const ordered_json& result) {
  auto test = ordered_json::object();
  for (const auto* const key : kTestKeys)
    if (result.contains(key) && result.at(key).is_primitive()) test[key] = result.at(key);
  return test;
}

double number(const ordered_json& of, const std::string& key) {
  return of.contains(key) && of.at(key).is_number() ? of.at(key).get<double>() : NAN;
}

ordered_json machine_differences(const ordered_json& old, const ordered_json& now) {
  auto differ = ordered_json::object();
  for (const auto& [key, value] : now.items()) {
    if (std::ranges::find(kPassingFacts, key) != kPassingFacts.end() || !old.contains(key)) continue;
    if (old.at(key) != value) differ[key] = {old.at(key), value};
  }
  return differ;
}

}  // namespace

ordered_json read_results(const std::filesystem::path& file, std::string_view mend) {
  const auto refuse = [&](const std::string& why) {
    throw base::Refused(fmt::format("{}: {}\n  {}", file.string(), why, mend));
  };
  ordered_json parsed;
  try {
    parsed = base::parse_json<ordered_json>(read_text_file(file));
  } catch (const Error& error) {
    refuse(error.what());
  }
  if (!parsed.is_object() || !parsed.contains("machine") || !parsed.contains("results") || !parsed.at("machine").is_object() ||
      !parsed.at("results").is_array())
    refuse("it is no result of terrace bench");
  for (const auto& r : parsed.at("results"))
    if (!r.is_object()) refuse("it is no result of terrace bench");
  if (parsed.at("results").empty()) refuse("it has no results");
  return parsed;
}

Comparison compare_results(const ordered_json& old, const ordered_json& now) {
  std::multimap<std::string, const ordered_json*> partners;
  for (const auto& r : old.at("results")) partners.emplace(test_of(r).dump(), &r);
  Comparison all{.rows = {}, .machine = machine_differences(old.at("machine"), now.at("machine"))};
  for (const auto& r : now.at("results")) {
    const auto test = test_of(r);
    const auto at = partners.lower_bound(test.dump());
    if (at == partners.end() || at->first != test.dump()) {
      ++all.only_new;
      continue;
    }
    const auto& before = *at->second;
    const auto* const figure =
        std::ranges::find_if(kFigures, [&](const char* key) { return number(r, key) > 0 && number(before, key) > 0; });
    if (figure != kFigures.end()) {
      ComparedResult one{.test = test, .figure = *figure, .old = number(before, *figure), .now = number(r, *figure)};
      const double noise = std::fmax(std::fmax(one.old * number(before, "spread"), one.now * number(r, "spread")), 0.0);
      one.beyond_spread = std::abs(one.now - one.old) > noise;
      all.rows.push_back(std::move(one));
    }
    partners.erase(at);
  }
  all.only_old = partners.size();
  return all;
}

}  // namespace terrace::bench
