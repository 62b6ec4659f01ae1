#include <terrace/bench/ranks/paced_setting.h>

#include <terrace/bench/ranks/paced_model.h>
#include <terrace/parallel/pipeline/orders.h>

namespace terrace::bench {

std::vector<Flag> PacedSetting::flags() {
  return {{"PATH", &path, "directory of the ranks' stores, which vanish with the run", 1, 1, {}, true},
          {"ranks", &ranks, "threads of this process", 1, 64},
          {"micro-batches", &micro_batches, "of a step", 1, 4096},
          {"virtual-stages", &virtual_stages, "stages a rank, of interleaved", 1, 64},
          {"unit-ms", &unit_ms, "a rank's forward of a micro-batch; each half of its backward takes as long", 1, 1000}};
}

pipeline::Pipeline PacedSetting::pipeline_of(std::string_view order) const {
  return paced_pipeline(pipeline::write_order(order, {.ranks = static_cast<std::uint32_t>(ranks),
                                                      .micro_batches = static_cast<std::uint32_t>(micro_batches),
                                                      .chunks = static_cast<std::uint32_t>(virtual_stages)}));
}

pipeline::StageCosts PacedSetting::costs_of(const pipeline::Pipeline& pipeline) const {
  const auto& placement = pipeline.schedule.placement;
  const double unit_s = 1e-3 * static_cast<double>(unit_ms) * placement.ranks / placement.stages;
  return {.forward = {unit_s}, .input = {unit_s}, .weight = {unit_s}};
}

std::vector<std::string> order_names() {
  std::vector<std::string> names;
  for (const auto& order : pipeline::all_orders())
    if (!order.asynchronous) names.emplace_back(order.name);  // with one update per step, these are the same as 1F1B
  return names;
}

}  // namespace terrace::bench
