#include <terrace/examples/terrace/cli/refusal.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/examples/terrace/plan/setup.h>

namespace terrace::cli {
namespace {

constexpr PerTier<const char*> kFlags{{"--device-memory", "--host-memory", "--nvme-limit"}};

// How many ranks divide the value of the tier's flag. A device budget is for each rank.
std::uint64_t sharing(const RunConfig& c, Tier tier) { return tier == Tier::device ? 1 : ranks_of_machine(c); }

// Rounds bytes up, in the unit that a person would type: "900MiB", "18.5GiB".
std::string sized(std::uint64_t bytes) {
  constexpr std::uint64_t kFromGiB = 10 * kGiB, kTenths = kGiB / 10;
  if (bytes < kFromGiB) return fmt::format("{}MiB", ceil_div(bytes, kMiB));
  const auto tenths = ceil_div(bytes, kTenths);
  return tenths % 10 == 0 ? fmt::format("{}GiB", tenths / 10) : fmt::format("{}.{}GiB", tenths / 10, tenths % 10);
}

// Advice for a number of bytes that was probably meant in MiB or GiB.
std::string without_unit(const RunConfig& c, Tier tier) {
  const auto& text = tier == Tier::device ? c.memory.device_memory
                     : tier == Tier::host ? c.memory.host_memory
                                          : c.memory.nvme_limit;
  if (text.empty() || text.size() > 5 || text.find_first_not_of("0123456789") != std::string::npos) return "";
  return fmt::format("\n  {0} {1} is {1} bytes; with a unit it is {0} {1}{2}", kFlags[tier], text,
                     text.size() > 2 ? "MiB" : "GiB");
}

std::string what_is_missing(const RunConfig& c, const Refusal& r) {
  return fmt::format("the plan does not fit into the {} tier: {} ({} bytes) are missing{}{}\n  {}", name_of(r.tier),
                     format_bytes(r.missing_bytes), r.missing_bytes, sharing(c, r.tier) > 1 ? " on each rank" : "",
                     without_unit(c, r.tier), r.why);
}

}  // namespace

std::string suggestion(const RunConfig& c, std::span<const Refusal> refusals) {
  const bool disk_helps =
      c.memory.nvme_path.empty() && std::ranges::any_of(refusals, [](const Refusal& of) { return of.tier == Tier::host; });
  const auto* const or_disk = disk_helps ? "; or give --nvme-path, a folder on a disk that can hold the rest" : "";
  if (const auto r = std::ranges::find_if(refusals, [](const Refusal& of) { return of.least_bytes != 0; }); r != refusals.end())
    return fmt::format("{} must be more than {}; for a model of this size no exact value is searched{}", kFlags[r->tier],
                       sized(r->least_bytes * sharing(c, r->tier)), or_disk);
  const auto alone = [](Tier tier) { return fmt::format("no value of {} alone is enough: ", kFlags[tier]); };
  if (const auto r = std::ranges::find(refusals, 0U, &Refusal::enough_bytes); r != refusals.end()) {
    std::vector<const char*> others;
    for (const auto tier : kAllTiers)
      if (tier != r->tier && (tier != Tier::disk || !c.memory.nvme_path.empty())) others.push_back(kFlags[tier]);
    return fmt::format("{}raise {} as well, or lower --batch-size or --seq-len{}", alone(r->tier), fmt::join(others, " or "),
                       or_disk);
  }
  const bool tiles_work =
      c.model.experts.count == 0 && c.parallel.tp_mode == TensorMode::line && !optimizer_of(c)->layer_unit();
  const bool tiles_help = tiles_work && c.model.vocab_tiles == 1 && c.model.mlp_tiles == 1 && c.model.mlp_row_tiles == 1 &&
                          c.model.attention_tiles == 1 &&
                          std::ranges::any_of(refusals, [](const Refusal& of) { return of.tier == Tier::device; });
  const auto* const or_tiles = tiles_help ? "; or give --vocab-tiles 0 --mlp-tiles 0 --mlp-row-tiles 0 --attention-tiles 0, "
                                            "which use large layers in tiles, as few as "
                                            "fit"
                                          : "";
  std::vector<std::string> flags;
  for (const auto tier : kAllTiers) {
    std::uint64_t enough = 0;
    for (const auto& r : refusals) {
      if (r.tier == tier) enough = std::max(enough, r.enough_bytes);
      if (r.other == tier) enough = std::max(enough, r.other_bytes);
    }
    if (enough != 0) flags.push_back(fmt::format("{} {}", kFlags[tier], sized(enough * sharing(c, tier))));
  }
  const auto pair = std::ranges::find_if(refusals, [](const Refusal& of) { return of.other_bytes != 0; });
  const auto together = pair != refusals.end();
  return fmt::format("{}{} would fit{}{}{}", together ? alone(pair->tier) : "", fmt::join(flags, " "),
                     together ? "; or lower --batch-size or --seq-len" : "", or_disk, or_tiles);
}

Error refusal_error(const RunConfig& c, const Plan& p) {
  return Error(what_is_missing(c, p.refusal) + "\n  " + suggestion(c, {&p.refusal, 1}), ErrorKind::does_not_fit);
}

Error refusal_error(const RunConfig& c, std::span<const Plan> ranks) {
  std::vector<Refusal> refusals;
  for (const auto& p : ranks)
    if (!p.fits) refusals.push_back(p.refusal);
  const auto first = std::ranges::find(ranks, false, &Plan::fits) - ranks.begin();
  return Error(
      fmt::format("rank {} of the pipeline: {}\n  {}", first, what_is_missing(c, refusals.front()), suggestion(c, refusals)),
      ErrorKind::does_not_fit);
}

}  // namespace terrace::cli
