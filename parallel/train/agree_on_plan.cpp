#include <terrace/parallel/train/agree_on_plan.h>

#include <span>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/core/profile/profile_rates.h>
#include <terrace/offload/store/chunk_store.h>
#include <terrace/parallel/comm/machines.h>

namespace terrace {
namespace {

std::uint64_t least(Agreement& ranks, std::uint64_t mine) {  // kUnlimited stays kUnlimited
  const auto all = ranks.min(static_cast<double>(mine));
  return all >= static_cast<double>(kUnlimited) ? kUnlimited : static_cast<std::uint64_t>(all);
}

}  // namespace

void agree(Agreement& ranks, PlanRequest& request, MachineProfile& profile) {
  for (double* const rate : profile::rates_of(profile)) *rate = ranks.each(*rate).front();
  if (const auto& machines = ranks.communicator().machines(); machines.count() > 1)
    profile.links.ranks_per_node = static_cast<std::uint32_t>(machines.size(0));
  request.budget.device = least(ranks, request.budget.device);
  request.budget.host = least(ranks, request.budget.host);
  request.budget.disk = least(ranks, request.budget.disk);
  if (request.pipeline)
    for (auto& begin : request.pipeline->begins) begin = static_cast<std::uint32_t>(ranks.each(begin).front());
  request.rank = static_cast<std::uint32_t>(ranks.communicator().rank());
}

std::uint64_t steady_hash(const Plan& plan) {
  const auto steady = to_text(plan.programs.steady);
  return checksum_of(std::as_bytes(std::span(steady)));
}

std::optional<std::pair<std::uint32_t, std::uint32_t>> different_programs(Agreement& ranks, std::uint64_t steady_hash,
                                                                          const Mesh& mesh) {
  const auto hashes = ranks.each(static_cast<double>(steady_hash >> 11));  // a double holds 53 bits exactly
  const auto ranks_of_stage = mesh.size(kAllRanks - Axis::pp);
  for (std::uint32_t r = 0; r < hashes.size(); ++r)
    if (const auto first = r - r % ranks_of_stage; hashes[r] != hashes[first]) return std::pair{first, r};
  return std::nullopt;
}

void demand_same_program(Agreement& ranks, const Plan& plan, const Mesh& mesh) {
  if (const auto two = different_programs(ranks, steady_hash(plan), mesh))
    throw Error(fmt::format("ranks {} and {} have planned different steps\n  give all ranks the same settings", two->first,
                            two->second),
                ErrorKind::refused);
}

Plan plan_together(Agreement& ranks, const Model& model, PlanRequest& request, MachineProfile profile) {
  agree(ranks, request, profile);
  const auto first = plan(model, request, profile);
  if (!first.fits) throw Error(first.refusal.why, ErrorKind::does_not_fit);
  demand_same_program(ranks, first, request.mesh);
  return for_rank(first, model, request, profile);
}

}  // namespace terrace
