#include <terrace/examples/terrace/generator.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/thread_pool.h>
#include <terrace/examples/lm/model.h>
#include <terrace/examples/terrace/device.h>
#include <terrace/examples/terrace/refusal.h>
#include <terrace/examples/terrace/run_dir.h>
#include <terrace/examples/terrace/setup.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/parallel/committed_state.h>
#include <terrace/parallel/engine.h>

namespace terrace::cli {
namespace {

std::vector<double> as_doubles(const TensorView& logits) {
  std::vector<double> out(static_cast<std::size_t>(logits.elements()));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = logits.dtype == DType::fp64   ? logits.as<double>()[i]
             : logits.dtype == DType::bf16 ? static_cast<double>(static_cast<float>(logits.as<bf16>()[i]))
             : logits.dtype == DType::fp16 ? static_cast<double>(static_cast<float>(logits.as<fp16>()[i]))
                                           : static_cast<double>(logits.as<float>()[i]);
  return out;
}

// If each rank has a part of the weights, or if chunks are grouped by rank, the weights are gathered from the stores of all
// ranks. Otherwise they are read in place.
bool is_in_parts(const RunConfig& c) {
  return c.pp > 1 || c.tp > 1 || c.ep > 1 || (c.dp * c.cp > 1 && (c.zero > 0 || c.canonical_reduction));
}

// One rank has all budgets.
RunConfig on_one_rank(RunConfig c) {
  c.dp = c.pp = c.tp = c.cp = c.ep = 1;
  c.sp = false;
  c.tp_mode = "1d";
  c.tp_depth = c.tp_overlap = 1;
  return c;
}

}  // namespace

struct CommittedRun {
  RunConfig config;
  ChunkStore::Options store;
  std::vector<ChunkStore::Options> ranks;
  bool in_parts = false;
};

namespace {

CommittedRun committed_run(RunConfig config, const std::string& run) {
  demand_device(config);
  CommittedRun source;  // no list of its members: if one of them throws, g++ 12 destroys some that were not made
  source.ranks = stores_of_run(run, config.nvme_path);
  source.store = source.ranks.front();
  source.in_parts = is_in_parts(config);
  demand_settings_of_run(run, config);
  source.config = on_one_rank(std::move(config));
  return source;
}

bool can_be_written(const std::filesystem::path& folder) { return ::access(folder.c_str(), W_OK | X_OK) == 0; }

PlanRequest request_of(CommittedRun& source, std::int64_t positions) {
  PlanRequest request{.shape = {.batch = {1, 1}, .micro_batches = 1},
                      .budget = budgets(source.config),
                      .recipe = source.config.recipe,
                      .disk_tier = true};
  request.budget.disk = kUnlimited;
  request.decode_positions = positions;
  auto& store = source.store;
  if (source.in_parts) {
    request.weights_given = true;
    request.states = {};
    request.commits = false;
    request.generations = 1;
    store.temporary = true;
    store.name += fmt::format("-reader{}", ::getpid());
    if (!std::ranges::all_of(store.paths, can_be_written)) store.paths = {std::filesystem::temp_directory_path()};
  } else {
    set_optimizer(request, source.config);
    request.generations = store.generations;
    store.read_only = store.scratch = true;
  }
  return request;
}

Plan plan_of(const Model& model, const PlanRequest& request, const RunConfig& config) {
  auto p = plan(model, request, machine_profile(config));
  if (!p.fits) throw refusal_error(config, p);
  return p;
}

}  // namespace

struct Generator::Parts {
  Parts(CommittedRun of, std::int64_t of_positions)
      : source(std::move(of)),
        positions(of_positions),
        model(lm::make_model(model_config(source.config))),
        planned(plan_of(model, request_of(source, positions), source.config)),
        pool(make_pool(source.config)),
        device(make_device(source.config, pool)),
        optimizer(source.in_parts ? make_optimizer("sgd", {.momentum = 0})
                                  : optimizer_of(source.config, *device)),  // it updates nothing
        engine(model, planned,
               {.device = device.get(), .store = source.store, .resume = !source.in_parts, .optimizer = optimizer.get()}) {
    if (source.in_parts) {
      for (auto& rank : source.ranks) rank.read_only = true;
      CommittedState state(source.ranks);
      engine.fill([&](const ParamSpec& param, std::uint64_t first, TensorView range) { state.read(param, first, range); });
    }
    memory = device->host_memory();
    logits = memory->allocate(static_cast<std::size_t>(source.config.vocab) * size_of(model.dtype));
  }
  CommittedRun source;
  std::int64_t positions;
  Model model;
  Plan planned;
  ThreadPool pool;
  std::unique_ptr<Device> device;
  std::unique_ptr<Optimizer> optimizer;
  Engine engine;
  decltype(std::declval<Device&>().host_memory()) memory = nullptr;
  Slab logits;
};

Generator::Generator(RunConfig config, const std::string& run, std::int64_t positions)
    : parts_(std::make_unique<Parts>(committed_run(std::move(config), run), positions)) {}
Generator::~Generator() = default;
Generator::Generator(Generator&&) noexcept = default;
Generator& Generator::operator=(Generator&&) noexcept = default;

std::int64_t Generator::positions() const { return parts_->positions; }

std::vector<double> Generator::logits_behind(std::int32_t token) {
  const TensorView view{parts_->logits.data(), parts_->model.dtype, {1, parts_->source.config.vocab}};
  parts_->engine.decode({.tokens = {&token, 1},
                         .targets = {},
                         .update = {},
                         .weights = {},
                         .logits = view,
                         .position = static_cast<std::int64_t>(known_.size())});
  known_.push_back(token);
  return as_doubles(view);
}

Generator::End Generator::generate(std::vector<std::int32_t>& tokens, const RunText& text, const lm::Sampling& sampling,
                                   const Limits& limits, const std::function<void()>& ready,
                                   const std::function<void(std::string_view)>& take) {
  // What the known text has in common with this one need not be computed again; of a prompt at least the last token must be,
  // because its logits are not kept.
  const auto same = std::ranges::mismatch(known_, tokens).in1 - known_.begin();
  known_.resize(std::min(static_cast<std::size_t>(same), tokens.size() - 1));
  std::vector<double> logits;
  const auto interrupted = [&] { return limits.interrupted && limits.interrupted(); };
  while (known_.size() < tokens.size()) {
    if (interrupted()) return End::interrupted;
    logits = logits_behind(tokens[known_.size()]);
  }
  ready();
  auto decoded = text.stream();
  const auto end = [&](End why) {
    if (const auto rest = decoded.finish(); !rest.empty()) take(rest);
    return why;
  };
  for (std::int64_t made = 0;; ++made) {
    if (made == limits.most_tokens) return end(End::length);
    if (std::cmp_equal(tokens.size(), parts_->positions)) return end(End::full);
    if (interrupted()) return end(End::interrupted);
    if (made > 0) logits = logits_behind(tokens.back());
    logits.resize(std::min(logits.size(), text.tokens()));  // text does not train further rows of the vocabulary
    tokens.push_back(lm::sample(std::move(logits), sampling, tokens, tokens.size() - 1));
    if (text.ends(tokens.back())) return end(End::end_of_text);
    if (const auto more = decoded.add(tokens.back()); !more.empty()) take(more);
  }
}

const char* name_of(Generator::End end) {
  switch (end) {
    case Generator::End::end_of_text: return "end of text";
    case Generator::End::full: return "all positions";
    case Generator::End::length: return "max tokens";
    case Generator::End::interrupted: return "interrupted";
  }
  return "";
}

}  // namespace terrace::cli
