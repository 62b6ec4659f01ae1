#include <terrace/examples/terrace/plan/plan_search.h>

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/refused.h>
#include <terrace/examples/terrace/plan/device.h>

namespace terrace::cli {
namespace {

using Plans = std::vector<FoundPlan>;

std::int64_t count(const Plans& plans, Known known) { return std::ranges::count(plans, known, &FoundPlan::known); }

const char* name_of_known(Known known) {
  switch (known) {
    case Known::simulated: return "simulated";
    case Known::extrapolated: return "extrapolated";
    case Known::estimated: return "estimated";
    case Known::slower: return "slower";
    case Known::refused: return "refused";
    default: return "refused by arithmetic";
  }
}

nlohmann::json to_json(const FoundPlan& found, const RunConfig& c) {
  nlohmann::json j{{"flags", flags_of(c)},      {"dp", c.parallel.dp},
                   {"pp", c.parallel.pp},       {"tp", c.parallel.tp},
                   {"sp", c.parallel.sp},       {"tp_mode", word_of(c.parallel.tp_mode)},
                   {"cp", c.parallel.cp},       {"cp_mode", word_of(c.parallel.cp_mode)},
                   {"ep", c.parallel.ep},       {"zero", c.parallel.zero},
                   {"fits", found.step_s != 0}, {"known", name_of_known(found.known)}};
  if (found.estimate_s != 0) j["estimate_s"] = found.estimate_s;
  if (found.step_s == 0) {
    j["refusal"] = found.refusal;
    return j;
  }
  j["step_time_s"] = found.step_s;
  if (found.known != Known::simulated && found.known != Known::extrapolated) return j;
  j["step_time_is_least"] = found.at_least;
  j["binding"] = found.binding;
  for (const auto tier : kAllTiers) j["peak_bytes"][std::string(name_of(tier))] = found.peak[tier];
  return j;
}

std::string counts(const Plans& plans) {
  const auto simulated = count(plans, Known::simulated), extrapolated = count(plans, Known::extrapolated),
             refused = count(plans, Known::refused);
  auto text =
      fmt::format("{} ways are legal: {} cannot fit, by arithmetic; {} were planned, of which {} fit and were simulated",
                  plans.size(), count(plans, Known::too_large), simulated + extrapolated + refused, simulated + extrapolated);
  if (extrapolated > 0) text += fmt::format(" ({} of them (~) with fewer micro-batches, and extrapolated)", extrapolated);
  if (const auto slower = count(plans, Known::slower); slower > 0)
    text += fmt::format("; {} cannot be faster, because their computing alone takes longer", slower);
  return text + fmt::format("; {} are only estimated\n", count(plans, Known::estimated));
}

void print_table(const Plans& plans, const RunConfig& given, std::int64_t shown) {
  fmt::print("{:>10} {:>8} {:>11} {:>11} {:>11}  {:<20} {}\n", "step", "slower", "device", "host", "disk", "bound by", "flags");
  for (std::int64_t i = 0; i < std::min<std::int64_t>(shown, std::ssize(plans)); ++i) {
    const auto& f = plans[static_cast<std::size_t>(i)];
    if (f.known != Known::simulated && f.known != Known::extrapolated) break;
    const auto mark = f.at_least ? ">" : f.known == Known::extrapolated ? "~" : "";
    const auto slower = i == 0 ? std::string() : fmt::format("{:.1f} %", 100 * (f.step_s / plans.front().step_s - 1));
    fmt::print("{:>10} {:>8} {:>11} {:>11} {:>11}  {:<20} {}\n", fmt::format("{}{:.3g} s", mark, f.step_s), slower,
               format_bytes(f.peak[Tier::device]), format_bytes(f.peak[Tier::host]), format_bytes(f.peak[Tier::disk]),
               f.binding, flags_of(config_of(given, f.candidate)));
  }
}

// Prints the best estimates of what was not planned.
void print_estimates(const Plans& plans, const RunConfig& given, std::int64_t shown) {
  if (count(plans, Known::estimated) == 0) return;
  fmt::print("\nonly estimated, in the order of the estimates, which may be wrong:\n");
  for (const auto& f : plans) {
    if (f.known != Known::estimated) continue;
    if (shown-- == 0) return;
    fmt::print("{:>10}  {}\n", f.estimate_s > 1e20 ? "?" : fmt::format("{:.3g} s", f.estimate_s),
               flags_of(config_of(given, f.candidate)));
  }
}

void print_notes(const Plans& plans, const SearchLimits& limits) {
  if (std::ranges::any_of(plans, &FoundPlan::at_least))
    fmt::print("\n> a step takes at least so long: too long to simulate all ranks of the pipeline together\n");
  if (limits.seconds > 0 && count(plans, Known::estimated) > 0)
    fmt::print(
        "\nthe search ended after --search-seconds {:g}; a faster machine plans more of them. --search-seconds 0 plans all "
        "of them, --search-plans N the first N\n",
        limits.seconds);
}

}  // namespace

Exit plan_search(const RunConfig& given, const RanksOfSearch& ranks, const MachineProfile& profile, std::int64_t shown,
                 SearchLimits limits) {
  limits.wanted = given.run.json ? 0 : static_cast<std::size_t>(shown);
  auto pool = make_pool(given);
  const auto found = search_plans(searched_run(given, ranks, profile), profile, pool, limits);
  if (found.empty())
    throw base::Refused(
        fmt::format("no product of --dp, --pp, --tp and --cp is legal for {} ranks and {} sequences a step\n  give "
                    "another --batch-size or --grad-accumulation, so that more numbers of data ranks divide the sequences",
                    ranks.ranks, ranks.sequences));
  const auto lacking = count(found, Known::too_large) + count(found, Known::refused);
  const auto fitting = std::ssize(found) - lacking;  // or not known to fit
  if (given.run.json) {
    auto plans = nlohmann::json::array();
    for (const auto& f : found) plans.push_back(to_json(f, config_of(given, f.candidate)));
    fmt::print("{}\n", nlohmann::json{{"ranks", ranks.ranks}, {"sequences", ranks.sequences}, {"plans", plans}}.dump(2));
    return fitting == 0 ? Exit::does_not_fit : Exit::ok;
  }
  if (fitting == 0)
    throw Error(fmt::format("none of the {} legal products fits; the nearest lacks {}\n  {}", found.size(),
                            found.front().refusal, flags_of(config_of(given, found.front().candidate))),
                ErrorKind::does_not_fit);
  fmt::print("{} ranks, {} on each node, {} sequences of {} positions a step\n{}\n", ranks.ranks, ranks.ranks_per_node,
             ranks.sequences, given.model.seq_len, counts(found));
  print_table(found, given, shown);
  print_estimates(found, given, shown);
  if (lacking > 0) {
    const auto& nearest = found[static_cast<std::size_t>(fitting)];
    fmt::print("\nof those that do not fit, the nearest lacks {}: {}\n", nearest.refusal,
               flags_of(config_of(given, nearest.candidate)));
  }
  print_notes(found, limits);
  return Exit::ok;
}

}  // namespace terrace::cli
