// Tensor ranks whose products and exchanges take given times: how much of the exchanges runs beside products, in the run and in
// the simulation of its program, for several numbers of pieces.
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <terrace/bench/disk/disk_file.h>
#include <terrace/bench/ranks/pipeline_bench.h>
#include <terrace/bench/ranks/pipeline_ranks.h>
#include <terrace/core/base/refused.h>
#include <terrace/parallel/layers/chain.h>

namespace terrace::bench {
namespace {

constexpr std::int64_t kHidden = 32, kPositions = 64;  // so small that computing takes no time beside the given times

// A layer that computes normally, and in each phase also sleeps for the given time of its products.
class SlowProducts final : public Layer {
 public:
  SlowProducts(std::unique_ptr<Layer> inner, double seconds_per_flop)
      : inner_(std::move(inner)), seconds_per_flop_(seconds_per_flop) {}
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] std::vector<ParamSpec> params() const override { return inner_->params(); }
  [[nodiscard]] LayerFacts facts(BatchShape shape) const override { return inner_->facts(shape); }
  void describe(CallSteps& steps, LayerCall call, BatchShape shape) const override {
    inner_->describe(steps, call, shape);
    for (auto& [phase, run] : steps.steps())
      if (run && phase.flops > 0)
        run = [inner = run, seconds = phase.flops * seconds_per_flop_](LayerContext& ctx, const LayerTensors& t) {
          inner(ctx, t);
          ctx.stream.submit([seconds] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
        };
  }

 private:
  std::unique_ptr<Layer> inner_;
  double seconds_per_flop_;
};

bool is_branch(const Layer& layer) { return layer.name().starts_with("layers."); }

// Products cost by their FLOPs, and each call between ranks costs the same number of seconds.
class Costs final : public walk::CostModel {
 public:
  Costs(const StepMap& map, double seconds_per_flop, double call_s)
      : map_(map), seconds_per_flop_(seconds_per_flop), call_s_(call_s) {}
  [[nodiscard]] double seconds(const Action& a) const override {
    if (const auto calls = mapping::collectives_of(map_, a).size(); calls > 0) return call_s_ * static_cast<double>(calls);
    if (!is_layer_action(a.op) || !is_branch(*map_.model().layers[a.layer])) return 0;
    return map_.phases().flops(a) * seconds_per_flop_;
  }
  [[nodiscard]] double seconds_of_results(const Program& step) const override {
    return call_s_ * static_cast<double>(mapping::results_of(map_, step).size());
  }

 private:
  const StepMap& map_;
  double seconds_per_flop_, call_s_;
};

class PiecesBench final : public Bench {
 public:
  [[nodiscard]] std::string_view name() const override { return "pieces"; }
  [[nodiscard]] std::string_view help() const override {
    return "how much of what tensor ranks exchange runs beside products (--tp-overlap), compared with the simulator; products "
           "and links only take time";
  }
  std::vector<Flag> flags() override {
    return {{"PATH", &path_, "directory of the ranks' stores, which vanish with the run", 1, 1, {}, true},
            {"ranks", &ranks_, "threads of this process", 2, 8},
            {"layers", &layers_, "blocks of the model", 1, 64},
            {"micro-batches", &micro_batches_, "of a step", 1, 64},
            {"product-ms", &product_ms_, "the first product of an attention, of all rows", 1, 10'000},
            {"link-ms", &link_ms_, "an exchange of all rows of an activation", 1, 10'000}};
  }
  void check() override {
    demand_directory(path_);
    if (kPositions % ranks_ != 0)
      throw base::Refused(fmt::format("--ranks {}: it must divide {} positions", ranks_, kPositions));
  }

  void run(Session& session) override {
    for (const std::uint32_t pieces : {1U, 2U, 4U, 8U}) {
      if (session.stopped()) return;
      session.progress(fmt::format("{} pieces …", pieces));
      measure(session, pieces);
    }
  }

 private:
  [[nodiscard]] layers::Transformer transformer(std::uint32_t rank, std::uint32_t pieces) const {
    return {.layers = layers_,
            .hidden = kHidden,
            .heads = 8,
            .kv_heads = 8,
            .ffn = 2 * kHidden,
            .seq_len = kPositions,
            .vocab = 256,
            .place = {.mesh = {.part = static_cast<std::uint32_t>(ranks_)}, .rank = rank, .sequence = true, .pieces = pieces}};
  }

  void measure(Session& session, std::uint32_t pieces) const {
    const double in_flops = 2.0 * kPositions * kHidden * 3 * kHidden / static_cast<double>(ranks_),
                 seconds_per_flop = 1e-3 * static_cast<double>(product_ms_) / in_flops;
    const auto call = std::chrono::microseconds(1000 * link_ms_ / pieces);
    std::vector<Model> models;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      models.push_back(layers::make_transformer(transformer(rank, pieces)));
      for (auto& layer : models.back().layers)
        if (is_branch(*layer)) layer = std::make_unique<SlowProducts>(std::move(layer), seconds_per_flop);
    }
    RanksRun run{.directory = path_, .steps = static_cast<std::uint64_t>(session.runs()) + 1};
    run.faults.shortest_delay = run.faults.longest_delay = call;
    run.request = {.shape = {{1, kPositions}, static_cast<std::uint32_t>(micro_batches_)},
                   .generations = 1,
                   .commits = false,
                   .mesh = {.part = static_cast<std::uint32_t>(ranks_)}};
    const auto all = run_ranks([&](std::uint32_t rank) -> const Model& { return models[rank]; }, run);

    auto simulated = all.front().plan;
    const StepMap map(models.front(), simulated.map);
    const Costs costs(map, seconds_per_flop, std::chrono::duration<double>(call).count());
    retime(simulated, models.front(), run.request, run.profile, costs);
    Result row{
        {"op", fmt::format("pieces-{}", pieces)}, {"ranks", ranks_}, {"layers", layers_}, {"micro_batches", micro_batches_}};
    row.update(communication_beside(all, simulated));
    session.result(std::move(row));
  }

  std::filesystem::path path_;
  std::int64_t ranks_ = 2, layers_ = 2, micro_batches_ = 1, product_ms_ = 60, link_ms_ = 40;
};

}  // namespace

std::unique_ptr<Bench> make_pieces_bench() { return std::make_unique<PiecesBench>(); }

}  // namespace terrace::bench
