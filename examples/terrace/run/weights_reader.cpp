#include <terrace/examples/terrace/run/weights_reader.h>

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/notice.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/models/adapters.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/cli/refusal.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/run/init_from.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/parallel/state/committed_state.h>

namespace terrace::cli {

// Where weights are, and the store of the engine that reads them.
struct WeightsToRead {
  RunConfig config;
  ChunkStore::Options store;
  std::vector<ChunkStore::Options> ranks;  // the ranks' stores, if a run's weights are gathered from them
  bool given = false;  // the engine is filled from the ranks or a model's files; false: the store has the weights
};

namespace {

namespace fs = std::filesystem;

// If each rank has a part of the weights, or if chunks are grouped by rank, the weights are gathered from the stores of all
// ranks. Otherwise they are read in place.
bool is_in_parts(const RunConfig& c) {
  return c.parallel.pp > 1 || c.parallel.tp > 1 || c.parallel.ep > 1 ||
         (c.parallel.dp * c.parallel.cp > 1 && (c.parallel.zero > 0 || c.parallel.canonical_reduction));
}

// One rank, which has all budgets.
RunConfig on_one_rank(RunConfig c) {
  c.parallel.dp = c.parallel.pp = c.parallel.tp = c.parallel.cp = c.parallel.ep = 1;
  c.parallel.shard_group = 0;
  c.parallel.sp = false;
  c.parallel.tp_mode = TensorMode::line;
  c.parallel.tp_depth = c.parallel.tp_overlap = 1;
  return c;
}

bool can_be_written(const fs::path& folder) { return ::access(folder.c_str(), W_OK | X_OK) == 0; }

void make_temporary(ChunkStore::Options& store) {
  store.temporary = true;
  store.name += fmt::format("-reader{}", ::getpid());
  if (store.paths.empty() || !std::ranges::all_of(store.paths, can_be_written)) store.paths = {fs::temp_directory_path()};
}

WeightsToRead weights_of_run(const RunConfig& config, const std::string& run) {
  WeightsToRead weights;  // not brace-initialised: if a member throws, g++ 12 destroys some that were not made
  weights.ranks = stores_of_run(run, config.memory.nvme_path);
  weights.store = weights.ranks.front();
  weights.given = is_in_parts(config);
  demand_settings_of_run(run, config);
  weights.config = on_one_rank(config);
  if (weights.given)
    make_temporary(weights.store);
  else
    weights.store.read_only = weights.store.scratch = true;
  return weights;
}

WeightsToRead weights_of_model(const RunConfig& config) {
  WeightsToRead weights;
  weights.config = config;
  weights.given = true;
  weights.store.paths = config.memory.nvme_path;
  weights.store.name = "terrace";
  make_temporary(weights.store);
  return weights;
}

PlanRequest request_of(const WeightsToRead& weights, const ReadFor& use, bool of_run) {
  PlanRequest request{.shape = use.shape,
                      .budget = budgets(weights.config),
                      .recipe = weights.config.train.recipe,
                      .disk_tier = of_run || !weights.config.memory.nvme_path.empty()};
  request.decode_positions = use.decode_positions;
  request.evaluates_only = use.decode_positions == 0;
  if (of_run) request.budget.disk = kUnlimited;
  if (weights.given) {
    request.weights_given = true;
    request.states = {};
    request.commits = false;
    request.generations = 1;
  } else {
    set_optimizer(request, weights.config);
    request.generations = weights.store.generations;
  }
  return request;
}

Plan plan_of(const Model& model, const PlanRequest& request, const RunConfig& config) {
  if (const auto warning = warning_of_profile(config)) base::warn(*warning);
  auto p = plan(model, request, machine_profile(config));
  if (!p.fits) throw refusal_error(config, p);
  return p;
}

}  // namespace

bool is_run(const fs::path& directory) { return fs::exists(directory / kConfigFile); }

RunConfig settings_of_model(const fs::path& directory, const fs::path& adapter) {
  RunConfig config;
  config.run.model_dir = fs::absolute(directory).string();
  config.model.seq_len = std::numeric_limits<std::int64_t>::max();
  config.found.given.emplace("seq-len");
  apply_model_dir(config);
  if (!adapter.empty()) {
    const auto told = lm::adapter_settings(adapter, config.model.family.get(), config.model.experts.count > 0);
    config.run.init_adapter = adapter.string();
    config.train.lora_rank = told.rank;
    config.train.lora_alpha = told.alpha;
    config.train.lora_targets = told.targets;
  }
  config.data.format = DataFormat::u32;
  if (tokenizer_of(config).empty() && config.model.vocab == RunConfig().model.vocab) config.data.format = DataFormat::bytes;
  return config;
}

struct WeightsReader::Parts {
  Parts(WeightsToRead all, const ReadFor& use, bool of_run)
      : weights(std::move(all)),
        model(lm::make_model(model_config(weights.config))),
        planned(plan_of(model, request_of(weights, use, of_run), weights.config)),
        pool(make_pool(weights.config)),
        device(make_device(weights.config, pool)),
        optimizer(weights.given ? make_optimizer("sgd", {.momentum = 0})
                                : optimizer_of(weights.config, *device)),  // the engine updates nothing
        engine(model, planned,
               {.device = device.get(), .store = weights.store, .resume = !weights.given, .optimizer = optimizer.get()}) {
    if (!weights.given) return;
    if (weights.ranks.empty()) {
      engine.fill(first_weights(weights.config, model));
      return;
    }
    for (auto& rank : weights.ranks) rank.read_only = true;
    state::CommittedState state(weights.ranks);
    engine.fill([&](const ParamSpec& param, std::uint64_t first, TensorView range) { state.read(param, first, range); });
  }
  WeightsToRead weights;
  Model model;
  Plan planned;
  ThreadPool pool;
  std::unique_ptr<Device> device;
  std::unique_ptr<Optimizer> optimizer;
  Engine engine;
};

WeightsReader::WeightsReader(const RunConfig& config, const std::string& directory, const ReadFor& use) {
  demand_device(config);
  const bool of_run = is_run(directory);
  parts_ = std::make_unique<Parts>(of_run ? weights_of_run(config, directory) : weights_of_model(config), use, of_run);
}
WeightsReader::~WeightsReader() = default;
WeightsReader::WeightsReader(WeightsReader&&) noexcept = default;
WeightsReader& WeightsReader::operator=(WeightsReader&&) noexcept = default;

const RunConfig& WeightsReader::config() const { return parts_->weights.config; }
const Model& WeightsReader::model() const { return parts_->model; }
Engine& WeightsReader::engine() { return parts_->engine; }
Device& WeightsReader::device() { return *parts_->device; }

}  // namespace terrace::cli
