// `terrace bench residency` on a planned step: the accesses of its program to the tiers.
#include <terrace/bench/disk/residency_bench.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/terrace/bench/bench_models.h>
#include <terrace/examples/terrace/cli/refusal.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/plan/choose_tiles.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/parallel/map/step_map.h>

namespace terrace::cli {
namespace {

bench::AccessTrace accesses_of(const RunConfig& given) {
  validate(given);
  const auto config = with_chosen_tiles(given);
  const auto model = lm::make_model(model_config(config));
  const auto p = plan(model, plan_request(config), machine_profile(config));
  if (!p.fits) throw refusal_error(config, p);
  const StepMap map(model, p.map);
  bench::AccessTrace trace;
  for (std::uint32_t c = 0; c < map.chunks().size(); ++c) trace.chunk_bytes.push_back(map.chunks()[ChunkId{c}].bytes);
  for (const auto& action : p.programs.steady.actions) {
    if (action.op == Op::prefetch) continue;  // a hint, not an access
    trace.actions.push_back({map.places().tier_of(action), map.uses(action), map.dead_after(action)});
  }
  return trace;
}

}  // namespace

std::unique_ptr<bench::Bench> make_plan_residency_bench(const RunConfig& config) {
  return bench::make_residency_bench([&config] { return accesses_of(config); });
}

}  // namespace terrace::cli
