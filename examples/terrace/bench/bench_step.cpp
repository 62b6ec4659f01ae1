// `terrace bench step`: the step of a model as it is planned, and as this machine runs it.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include <unistd.h>

#include <terrace/bench/statistics.h>
#include <terrace/core/base/notice.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/math/philox.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/terrace/base/environment.h>
#include <terrace/examples/terrace/bench/bench_models.h>
#include <terrace/examples/terrace/cli/refusal.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/plan/choose_tiles.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/run/init_from.h>
#include <terrace/parallel/train/trainer.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kWarmSteps = 2;  // the first one has no pending update and warms everything up

// A temporary directory for the commits of the run.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    auto name = (fs::temp_directory_path() / "terrace-bench-XXXXXX").string();
    if (!::mkdtemp(name.data()))
      throw Error(fmt::format("{}: the directory cannot be created: {}\n  set TMPDIR to a folder that can be written", name,
                              describe_errno(errno)));
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

class StepBench final : public bench::Bench {
 public:
  explicit StepBench(const RunConfig& config) : config_(config) {}
  std::string_view name() const override { return "step"; }
  std::string_view help() const override { return "a model's training step, as planned and as measured"; }
  void check() override {
    validate(config_);
    demand_device(config_);
  }

  void run(bench::Session& session) override {
    const auto config = with_chosen_tiles(config_);
    const auto model = lm::make_model(model_config(config));
    session.progress("planning …");
    // The plan walks as many steps as are measured, so that the last step moves exactly the bytes of the plan's last step.
    const auto steps = kWarmSteps + static_cast<std::uint64_t>(session.runs());
    auto request = plan_request(config);
    request.steps = steps;
    request.evaluate_every = request.evaluate_batches = request.commit_every = 0;
    if (const auto warning = warning_of_profile(config)) base::warn(*warning);
    const auto p = make_plan(config, model, request, machine_profile(config));
    if (!p.fits) throw refusal_error(config, p);
    std::vector<double> planned{p.times.seconds}, stalls;
    double stall_s = 0;
    for (const auto& [cause, seconds] : p.times.stall_s) stall_s += seconds;
    report(session, "planned", planned, stall_s, p.step_traffic.back());

    auto pool = make_pool(config);
    const auto device = make_device(config, pool);
    const auto optimizer = optimizer_of(config, *device);
    const TemporaryDirectory own;
    Engine engine(model, p,
                  {.device = device.get(),
                   .store = {.paths = config.memory.nvme_path.empty() ? std::vector{own.path()} : config.memory.nvme_path,
                             .name = fmt::format("terrace-bench-{}", ::getpid()),
                             .durable = false,
                             .temporary = true,
                             .io = io_of_environment()},
                   .optimizer = optimizer.get()});
    session.progress("filling the weights …");
    engine.fill(first_weights(config, model));
    // Nothing is clipped, scaled or skipped, so that every step runs the update of the step before it.
    Trainer trainer(engine, {.read =
                                 [this](Split, auto, auto tokens, auto targets) {
                                   draw(tokens);
                                   std::ranges::copy(tokens, targets.begin());
                                   return true;
                                 },
                             .rate = [lr = config.train.lr](std::uint64_t) { return lr; },
                             .greatest_norm = 0});
    std::vector<double> measured;
    memory::Traffic moved;
    while (trainer.done() < steps && !session.stopped()) {
      session.progress(fmt::format("step {} of {}", trainer.done() + 1, steps));
      trainer.read();
      const auto r = trainer.step().back().result;
      if (trainer.done() <= kWarmSteps) continue;
      measured.push_back(r.seconds);
      double waited_s = 0;
      for (const auto& [cause, seconds] : r.stall_s) waited_s += seconds;
      stalls.push_back(waited_s);
      moved = r.moved;
    }
    if (!measured.empty()) report(session, "measured", measured, bench::median(stalls), moved);
  }

 private:
  // The time of a step does not depend on the values of the tokens.
  void draw(std::span<std::int32_t> tokens) const {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int32_t>(math::random_below(config_.train.seed, math::stream_of("bench step"), i,
                                                               static_cast<std::uint64_t>(config_.model.vocab)));
  }

  void report(bench::Session& session, const char* op, const std::vector<double>& seconds, double stall_s,
              const memory::Traffic& moved) const {
    const auto tokens = static_cast<double>(config_.train.batch_size * config_.train.grad_accumulation * config_.model.seq_len);
    session.result({{"op", op},
                    {"model", *config_.model.family.get().name},
                    {"step_s", bench::median(seconds)},
                    {"tokens_per_s", tokens / bench::median(seconds)},
                    {"stall_s", stall_s},
                    {"read_bytes", moved.read},
                    {"write_bytes", moved.write},
                    {"upload_bytes", moved.upload},
                    {"download_bytes", moved.download},
                    {"runs", seconds.size()},
                    {"spread", bench::spread(seconds)}});
  }

  const RunConfig& config_;
};

}  // namespace

std::unique_ptr<bench::Bench> make_step_bench(const RunConfig& config) { return std::make_unique<StepBench>(config); }

}  // namespace terrace::cli
