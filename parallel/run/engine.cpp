#include <terrace/parallel/run/engine.h>

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <map>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <terrace/memory/eviction.h>
#include <terrace/offload/move/tier_stack.h>
#include <terrace/offload/store/common_commit.h>
#include <terrace/parallel/comm/agree.h>
#include <terrace/parallel/map/collective.h>
#include <terrace/parallel/mesh/groups.h>
#include <terrace/parallel/model/param_tiles.h>
#include <terrace/parallel/run/weight_average.h>
#include <terrace/parallel/state/reshard.h>

namespace terrace {
namespace {

const StepMap::Options& demand_rank(const Plan& plan, const Communicator* communicator) {
  const auto ranks = plan.map.mesh.size(), rank = plan.map.rank;
  const int are = communicator ? communicator->size() : 1, is = communicator ? communicator->rank() : 0;
  if (are != static_cast<int>(ranks) || is != static_cast<int>(rank))
    throw std::logic_error(fmt::format("Engine: planned for rank {} of {}, but this is rank {} of {}", rank, ranks, is, are));
  return plan.map;
}

// Appends a run. Runs of equal length at equal distances in the whole tensor form one range.
void add_run(std::vector<TensorRange>& ranges, const std::string& tensor, std::uint64_t chunk_element,
             const model::SplitRun& run) {
  if (!ranges.empty()) {
    auto& last = ranges.back();
    const auto stride = last.rows == 1 ? run.in_whole - last.first_element : last.stride;
    const bool follows = last.tensor == tensor && last.elements == run.count && run.in_whole > last.first_element &&
                         run.in_whole - last.first_element == last.rows * stride &&
                         last.chunk_element + last.rows * last.elements == chunk_element;
    if (follows) {
      last.stride = stride;
      ++last.rows;
      return;
    }
  }
  ranges.push_back({tensor, run.in_whole, run.count, chunk_element});
}

// Adds elements [first, first + count) of a parameter, in this rank's stored order; they lie in a chunk from `chunk_element`
// on.
void add_elements(std::vector<TensorRange>& ranges, const StepMap& map, const ParamSpec& param, std::uint64_t first,
                  std::uint64_t count, std::uint64_t chunk_element) {
  model::each_stored_run(param, map.tensor(), first, count, [&](const model::SplitRun& run) {
    add_run(ranges, param.name, chunk_element + (run.in_part - first), run);
  });
}

// The ranges of a chunk that holds `numbers` numbers, from `first` on, of a layer's packed state on this rank. A row or a
// column of a matrix has one number. (Optimizers that pack rows refuse tensor ranks and tiles of their matrices: degrees.cpp,
// check_request.cpp.)
std::vector<TensorRange> packed_ranges(const StepMap& map, std::uint32_t layer, std::uint64_t first, std::uint64_t numbers) {
  std::vector<TensorRange> ranges;
  std::uint64_t at = 0;
  for (const auto& range : map.layer_needs(layer).packed) {
    const auto count = static_cast<std::uint64_t>(range.count);
    const auto from = std::max(at, first), end = std::min(at + count, first + numbers);
    if (from < end) {
      const auto tensor = static_cast<std::uint32_t>(range.tensor);
      const auto& param = map.layout().param_at(layer, tensor);
      const auto in_tensor = static_cast<std::uint64_t>(range.first) + (from - at);
      if (range.of == PackedRange::Of::elements) {
        add_elements(ranges, map, param, map.layout().place(layer, tensor).origin + in_tensor, end - from, from - first);
      } else {
        const auto* const which = range.of == PackedRange::Of::rows ? "rows" : "columns";
        ranges.push_back({fmt::format("{} of {}", which, param.name), in_tensor, end - from, from - first});
      }
    }
    at += count;
  }
  return ranges;
}

// Describes to the store the chunks of a commit.
std::vector<ChunkDescription> describe_state(const StepMap& map) {
  std::vector<ChunkDescription> all;
  const auto& recipe = map.options().recipe;
  for (std::uint32_t l = 0; l < map.layers(); ++l) {
    if (!map.pipeline().holds(l)) continue;
    for (const auto kind : recipe.kinds()) {
      if (kind == ChunkKind::gradient) continue;
      const auto format = recipe.format_of(kind);
      std::uint64_t numbers = 0;  // of a packed state, in the previous chunks
      for (const auto c : map.owned(kind, l)) {
        const auto chunk = map.state(kind, l, c);
        ChunkDescription d{.chunk = chunk,
                           .kind = kind,
                           .dtype = std::string(name_of(format)),
                           .bytes = map.chunks()[chunk].bytes,
                           .ranges = {},
                           .label = map.describe(chunk)};
        if (rules::is_packed(format)) {
          const auto here = d.bytes / rules::bytes_of(format, 1);
          d.ranges = packed_ranges(map, l, numbers, here);
          numbers += here;
        } else {
          for (const auto& s : map.layout().segments(l, c))
            add_elements(d.ranges, map, map.layout().param_at(l, s.tensor), s.tensor_element, s.elements, s.chunk_element);
        }
        all.push_back(std::move(d));
      }
    }
  }
  return all;
}

}  // namespace

// Members are destroyed in reverse order: first a commit under way ends, then the executor's streams, then the tiers' mover,
// then the things that these use.
struct Engine::Impl {
  Impl(const Model& model, const Plan& p, const Options& o)
      : plan(p),
        options(o),
        map(model, demand_rank(p, o.communicator)),
        residency(p.capacity, policy, p.generations),
        walk(map, residency, policy) {
    const auto& states = map.options().recipe.states;
    if (options.optimizer->states() != states)
      throw std::logic_error(
          fmt::format("Engine: {} does not have the {} states of the plan", options.optimizer->name(), states.size()));
    if (options.optimizer->layer_unit().has_value() != map.options().layer_unit.has_value())
      throw std::logic_error("Engine: the plan was made for an optimizer of whole layers and " + options.optimizer->name() +
                             " updates chunks, or the reverse");
    map.chunks().add_to(residency);
    for (std::uint32_t c = 0; c < map.chunks().size(); ++c)
      if (map.committed(ChunkId(c))) residency.reserve_on_disk(ChunkId(c));
    auto& device = *options.device;
    if (options.communicator) ranks.emplace(*options.communicator, device);
    if (options.communicator || map.data().reduces() || map.pipeline().asynchronous())
      groups.emplace(options.communicator, ranks ? &*ranks : nullptr, map.mesh(), map.rank(),
                     mapping::members_of(map, plan.programs.all()));

    options.store.capacity_bytes = plan.capacity.disk;
    options.store.generations = plan.generations;
    tiers.emplace(device, plan.capacity.device, plan.capacity.host);
    if (options.resume) {
      if (options.reshard_from.empty()) {
        open_common_commit();
      } else {
        reshard_in_turn();
      }
      adopt();
      store->trim(plan.capacity.disk);  // the earlier run may have had a larger capacity
    } else {
      store = ChunkStore::create(options.store);
    }
    for (auto& d : describe_state(map)) store->describe(std::move(d));
    for (std::uint32_t c = 0; c < map.chunks().size(); ++c) {
      const ChunkId chunk{c};
      const auto kind = map.chunks()[chunk].kind == ChunkKind::gradient ? ChunkKind::gradient : ChunkKind::activation;
      if (!map.committed(chunk)) store->describe({chunk, kind, "bytes", residency.bytes_of(chunk), {}, map.describe(chunk)});
    }

    tiers->start(
        std::move(store),
        {.trace = options.trace, .deadline = options.store.deadline, .io = options.store.io, .make_io = options.make_io});
    executor.emplace(running::Executor::Parts{.device = &device,
                                              .device_base = tiers->device_base(),
                                              .host_base = tiers->host_base(),
                                              .map = &map,
                                              .walk = &walk,
                                              .mover = &tiers->mover(),
                                              .lanes = &tiers->lanes(),
                                              .optimizer = options.optimizer,
                                              .groups = groups ? &*groups : nullptr,
                                              .trace = options.trace});
  }

  // Ranks do not commit at the same moment, so a rank that died may lack the last commit of the others. Then all resume from
  // the previous one.
  void open_common_commit() {
    store = ChunkStore::open(options.store);
    if (!ranks) return;
    const auto step = static_cast<double>(store->last_commit()->step);
    const auto common = ranks->min(step);
    if (ranks->max(step) == common) return;
    if (step != common) {
      store.reset();
      store = store::open_at_commit(options.store, static_cast<std::uint64_t>(common));
    }
    ranks->barrier();  // reopening a store takes long: it verifies everything again
  }

  // One rank after the other, because only one process at a time can open a store.
  void reshard_in_turn() {
    std::vector<state::PlacedChunk> chunks;
    for (auto& d : describe_state(map)) {
      const auto format = map.options().recipe.format_of(d.kind);
      const auto place = residency.offset_on_disk(d.chunk);
      chunks.push_back({std::move(d), format, place});
    }
    store = ChunkStore::create(options.store);
    const int all = ranks ? options.communicator->size() : 1, mine = ranks ? options.communicator->rank() : 0;
    for (int turn = 0; turn < all; ++turn) {
      if (turn == mine) state::reshard(options.reshard_from, chunks, *store);
      if (ranks) ranks->barrier();
    }
  }

  // The store's committed chunks become the state, in place: the layout depends on the model only, never on budgets.
  void adopt() {
    resumed = store->last_commit();
    std::map<std::uint32_t, ChunkDescription> ours;
    for (auto& d : describe_state(map)) ours.emplace(index(d.chunk), std::move(d));
    std::size_t adopted = 0;
    for (const auto& stored : store->committed()) {
      const auto at = ours.find(index(stored.description.chunk));
      const auto place = at == ours.end() ? 0 : residency.offset_on_disk(at->second.chunk);
      const bool in_place = at != ours.end() && means_the_same(at->second, stored.description) &&
                            (stored.offset == place || stored.offset == place + at->second.bytes);
      if (!in_place)
        throw Error(fmt::format("the stored state does not belong to this model: {} has another layout than in this run\n"
                                "  resume with the model, dtype, optimizer and recipe it was trained with",
                                stored.description.label),
                    ErrorKind::refused);
      residency.adopt_on_disk(at->second.chunk);
      ++adopted;
    }
    if (adopted == 0 && !ours.empty()) throw Error("the store's last commit holds no chunks", ErrorKind::corrupt);
  }

  // Announces the ranges of a fill, in the order in which Compute reads them.
  void announce(const WeightSource& weights) const {
    for (const auto& action : plan.programs.fill.actions) {
      if (action.op != Op::fill) continue;
      for (const auto chunk : map.data().updated_in(action.chunk))
        for (const auto& s : map.layout().segments(action.layer, chunk)) {
          const auto& param = map.layout().param_at(action.layer, s.tensor);
          model::each_stored_run(param, map.tensor(), s.tensor_element, s.elements,
                                 [&](const model::SplitRun& run) { weights.announce(param, run.in_whole, run.count); });
        }
    }
  }

  Plan plan;
  Options options;
  StepMap map;
  memory::Belady policy;
  memory::Residency residency;
  walk::Walk walk;
  std::optional<Agreement> ranks;      // empty if there is only one rank
  std::optional<mesh::Groups> groups;  // empty if nothing is exchanged
  std::optional<Commit> resumed;
  struct Pending {
    UpdateStep update;
    std::vector<double> group_scales;
  };
  std::optional<Pending> pending;
  // The last step's early updates: the update that they assumed; whether it had any; whether set_pending() has judged them, and
  // how. calm: the last known norm did not clip, so the next step updates early.
  UpdateStep assumed;
  bool updated_early = false, judged = true, calm = false;
  EarlyUpdates::Pending early = EarlyUpdates::Pending::none;
  [[nodiscard]] EarlyUpdates early_updates(bool begins) const { return {map.options().early, early, begins}; }
  // Of a step whose update is not applied.
  void take_back() {
    if (!std::exchange(updated_early, false)) return;
    executor->run(plan.programs.drain, {.update = {.step = UpdateStep::kNone},
                                        .early = {map.options().early, EarlyUpdates::Pending::restored, false}});
    judged = true;
    early = EarlyUpdates::Pending::none;
    walk.drop_gradients();
  }
  struct Span {
    std::int64_t begin_ns = 0, end_ns = 0;
  };
  std::optional<Span> evaluated;  // when the last evaluate() computed

  std::unique_ptr<ChunkStore> store;  // until the tiers have it
  std::optional<offload::TierStack> tiers;
  std::optional<running::Executor> executor;
  Event written;                 // the end of the writes that flush() began
  std::future<void> committing;  // not valid if no commit is under way
};

Engine::Engine(const Model& model, const Plan& plan, const Options& options)
    : impl_(std::make_unique<Impl>(model, plan, options)) {
  if (options.resume) impl_->executor->run(impl_->plan.programs.gather, {});
}
Engine::~Engine() = default;

void Engine::fill(const WeightSource& weights) {
  finish_commit();
  if (weights.announce) impl_->announce(weights);
  impl_->executor->run(impl_->plan.programs.fill, {.weights = weights.read});
}

running::StepResult Engine::step(const StepInput& input) {
  if (!impl_->judged) impl_->take_back();
  auto in = input;
  const auto& programs = impl_->plan.programs;
  const bool steady = !programs.leaves_pending() || impl_->pending.has_value();
  if (impl_->pending) {
    (programs.updates_before_use ? in.update : in.pending) = impl_->pending->update;
    in.group_scales = std::move(impl_->pending->group_scales);
  }
  in.deferred = programs.deferred;
  // A commit under way still reads the state.
  in.early = impl_->early_updates(impl_->calm && input.update.step != UpdateStep::kNone && !impl_->committing.valid());
  in.early_update = impl_->assumed = input.update;
  impl_->updated_early = in.early.begins && !in.early.layers.empty();
  impl_->judged = !impl_->updated_early;
  impl_->early = EarlyUpdates::Pending::none;
  impl_->pending.reset();
  if (steady || !programs.updates_before_use) finish_commit();  // this step updates the state
  auto result = impl_->executor->run(steady ? programs.steady : programs.first, in, Compute::Share::step);
  if (!programs.deferred.empty()) impl_->pending = {input.update, {}};
  return result;
}

void Engine::set_pending(const UpdateStep& update, std::vector<double> group_scales) {
  if (!impl_->plan.programs.updates_before_use) return;
  const auto& assumed = impl_->assumed;
  if (update.step != UpdateStep::kNone) {
    const auto is_assumed = [&](double scale) { return scale == assumed.gradient_scale; };
    impl_->calm = is_assumed(update.gradient_scale) && std::ranges::all_of(group_scales, is_assumed);
  }
  const bool held = impl_->calm && update.step == assumed.step && update.learning_rate == assumed.learning_rate &&
                    update.seed == assumed.seed;
  if (impl_->updated_early) impl_->early = held ? EarlyUpdates::Pending::held : EarlyUpdates::Pending::restored;
  impl_->judged = true;
  impl_->pending = {update, std::move(group_scales)};
}

void Engine::skip() {
  if (!impl_->plan.programs.updates_before_use) throw std::logic_error("Engine: skip() after an update in the backward");
  impl_->pending.reset();
  impl_->take_back();
  impl_->calm = false;
  impl_->walk.drop_gradients();
}

void Engine::average() {
  const auto& program = impl_->plan.programs.average;
  if (program.actions.empty()) throw std::logic_error("Engine: average() without a plan for local SGD");
  drain();
  finish_commit();
  running::WeightAverage mean(*impl_->options.communicator, *impl_->options.device, impl_->plan.map.data.sum_order());
  impl_->executor->run(program, {.weights = [&](const ParamSpec&, std::uint64_t, TensorView range) { mean.read(range); },
                                 .new_weights = [&](const ParamSpec&, std::uint64_t, TensorView range) { mean.write(range); }});
}

std::uint64_t Engine::average_every() const { return impl_->plan.average.every; }

void Engine::drain() {
  if (!impl_->judged) impl_->take_back();
  if (!impl_->pending) return;
  finish_commit();
  const StepInput input{.update = impl_->pending->update,
                        .early = impl_->early_updates(false),
                        .group_scales = std::move(impl_->pending->group_scales),
                        .weights = {}};
  impl_->pending.reset();
  impl_->early = EarlyUpdates::Pending::none;
  impl_->executor->run(impl_->plan.programs.drain, input);
}

std::vector<double> Engine::evaluate(const StepInput& micro_batches) {
  drain();
  const auto& program = impl_->plan.programs.evaluate;
  const auto tokens =
      std::uint64_t{program.micro_batches} * static_cast<std::uint64_t>(impl_->map.options().shape.batch.tokens());
  if (micro_batches.tokens.size() != tokens)
    throw std::logic_error(fmt::format("Engine: evaluate() takes exactly {} micro-batches", program.micro_batches));
  auto* const trace = impl_->options.trace;
  if (trace && impl_->evaluated) trace->forget_between(impl_->evaluated->begin_ns, impl_->evaluated->end_ns);
  const auto begin = now_ns();
  auto losses = impl_->executor->run(program, micro_batches, Compute::Share::evaluation).losses;
  impl_->evaluated = {begin, now_ns()};
  losses.resize(program.micro_batches);
  return losses;
}

std::uint32_t Engine::evaluated_at_once() const { return impl_->plan.programs.evaluate.micro_batches; }

void Engine::decode(const StepInput& one_position) { impl_->executor->run(impl_->plan.programs.decode, one_position); }

void Engine::visit(const WeightRange& weights) {
  drain();
  impl_->executor->run(impl_->plan.programs.visit, {.weights = weights});
}

void Engine::flush() {
  drain();
  if (!impl_->map.options().commits) throw std::logic_error("Engine: this run was planned without commits");
  impl_->written = impl_->executor->flush();
}

void Engine::begin_commit(std::uint64_t step, const std::string& payload) {
  finish_commit();
  flush();
  const auto publish = [store = impl_->tiers->store(), written = impl_->written, step, payload] {
    written.wait();
    store->commit(step, payload);
  };
  try {
    impl_->committing = std::async(std::launch::async, publish);
  } catch (const std::system_error&) {  // no thread is available: finish_commit() publishes it
    impl_->committing = std::async(std::launch::deferred, publish);
  }
}

void Engine::finish_commit() {
  if (!impl_->committing.valid()) return;
  impl_->committing.get();
  // No rank overwrites bytes of the previous commit until all ranks have this one.
  if (impl_->ranks) impl_->ranks->barrier();
}

void Engine::commit(std::uint64_t step, const std::string& payload) {
  begin_commit(step, payload);
  finish_commit();
}

std::optional<Commit> Engine::resumed() const { return impl_->resumed; }
bool Engine::knows_norms() const {
  const auto& programs = impl_->plan.programs;
  return programs.updates_before_use ||
         std::ranges::any_of(programs.steady.actions, [](const Action& a) { return a.op == Op::verdict; });
}
const StepMap& Engine::map() const { return impl_->map; }
const ChunkStore* Engine::store() const { return impl_->tiers->store(); }
void Engine::set_run_id(std::string id) {
  if (auto* const store = impl_->tiers->store()) store->set_run_id(std::move(id));
}

PerTier<std::uint64_t> Engine::peak_bytes() const {
  PerTier<std::uint64_t> peak{};
  for (const auto tier : kAllTiers) peak[tier] = impl_->residency.space(tier).peak_bytes();
  if (impl_->plan.capacity.commit_only) peak[Tier::disk] = 0;
  return peak;
}

PerTier<std::uint64_t> Engine::reserved_bytes() const {
  PerTier<std::uint64_t> now{};
  for (const auto tier : kAllTiers) now[tier] = impl_->residency.space(tier).reserved_bytes();
  return now;
}

memory::Traffic Engine::moved() const { return impl_->tiers->mover().moved(); }

}  // namespace terrace
