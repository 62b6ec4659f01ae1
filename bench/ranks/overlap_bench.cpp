// Data-parallel ranks whose layers and collectives take given times: how much of the communication runs beside computing, in
// the run and in the simulation of its program.
#include <chrono>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <terrace/bench/disk/disk_file.h>
#include <terrace/bench/ranks/paced_model.h>
#include <terrace/bench/ranks/pipeline_bench.h>
#include <terrace/bench/ranks/pipeline_ranks.h>

namespace terrace::bench {
namespace {

constexpr std::int64_t kOverlapParameters = 1024;  // of a layer; so few that an update takes no time

class OverlapBench final : public Bench {
 public:
  std::string_view name() const override { return "overlap"; }
  std::string_view help() const override {
    return "how much of ZeRO's communication overlaps with computing, compared with the simulator; layers and links only take "
           "time";
  }
  std::vector<Flag> flags() override {
    return {{"PATH", &path_, "directory of the ranks' stores, which vanish with the run", 1, 1, {}, true},
            {"ranks", &ranks_, "threads of this process", 2, 64},
            {"layers", &layers_, "of the model", 1, 1024},
            {"micro-batches", &micro_batches_, "of a step and rank", 1, 4096},
            {"unit-ms", &unit_ms_, "a layer's forward of a micro-batch; each half of its backward takes as long", 1, 1000},
            {"link-ms", &link_ms_, "a gather or a reduction of a layer", 1, 1000},
            {"gather-ahead", &ahead_, "layer actions between a gather of ZeRO-3 and its use", 0, 2}};
  }
  void check() override { demand_directory(path_); }

  void run(Session& session) override {
    for (std::uint32_t zero = 0; zero <= 3; ++zero) {
      if (session.stopped()) return;
      session.progress(fmt::format("ZeRO-{} …", zero));
      measure(session, zero);
    }
  }

 private:
  void measure(Session& session, std::uint32_t zero) const {
    const auto layers = static_cast<std::uint32_t>(layers_);
    const double unit_s = 1e-3 * static_cast<double>(unit_ms_), link_s = 1e-3 * static_cast<double>(link_ms_);
    const pipeline::StageCosts costs{.forward = {unit_s}, .input = {unit_s}, .weight = {unit_s}};
    const auto model = paced_model(layers, costs, kOverlapParameters);
    RanksRun run{.directory = path_, .steps = static_cast<std::uint64_t>(session.runs()) + 1};
    run.faults.shortest_delay = run.faults.longest_delay = std::chrono::milliseconds(link_ms_);
    run.request = {.shape = {{1, 1}, static_cast<std::uint32_t>(micro_batches_)},
                   .generations = 1,
                   .commits = false,
                   .mesh = {.shard = static_cast<std::uint32_t>(ranks_)},
                   .data = {.zero = zero},
                   .gather_ahead = static_cast<std::uint32_t>(ahead_)};
    const auto all = run_ranks(model, run);

    auto simulated = all.front().plan;
    const StepMap map(model, simulated.map);
    const auto results_s = link_s * static_cast<double>(mapping::results_of(map, simulated.programs.steady).size());
    retime(simulated, model, run.request, run.profile, PacedCosts(layers, costs, {.each_s = link_s, .results_s = results_s}));
    Result row{{"op", fmt::format("zero-{}", zero)}, {"ranks", ranks_}, {"layers", layers_}, {"micro_batches", micro_batches_}};
    row.update(communication_beside(all, simulated));
    session.result(std::move(row));
  }

  std::filesystem::path path_;
  std::int64_t ranks_ = 2, layers_ = 6, micro_batches_ = 1, unit_ms_ = 20, link_ms_ = 10, ahead_ = 1;
};

}  // namespace

std::unique_ptr<Bench> make_overlap_bench() { return std::make_unique<OverlapBench>(); }

}  // namespace terrace::bench
