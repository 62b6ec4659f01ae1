#include <terrace/optimizers/state/optimizer_state.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/optimizers/recipe.h>
#include <terrace/optimizers/schedule.h>
#include <terrace/optimizers/settings.h>
#include <terrace/optimizers/state/committed_facts.h>
#include <terrace/optimizers/state/global_norm.h>
#include <terrace/optimizers/state/state_tensor.h>
#include <terrace/optimizers/state/state_tiers.h>
#include <terrace/optimizers/stored_weights.h>

namespace terrace {
namespace {

using rules::StatePiece;
using rules::StateTensor;

constexpr std::uint64_t kBlock = 4096;                    // of the norm's sums and, sixteen at a time, of 8-bit states
constexpr std::uint64_t kMostElements = 4 * 1024 * 1024;  // 16 MiB of fp32: larger chunks make a disk no faster
// The host's bytes a chunk's element: a piece of AdamW in fp32 has two chunks, so eight pieces are in memory at once.
constexpr std::uint64_t kHostBytesPerElement = 64;

std::uint64_t chunk_elements_of(const OptimizerStateOptions& options) {
  if (options.chunk_elements % kBlock != 0)
    throw Error(fmt::format("chunk_elements is {}\n  give a multiple of {}, or 0", options.chunk_elements, kBlock),
                ErrorKind::refused);
  if (options.chunk_elements != 0) return options.chunk_elements;
  return std::clamp(options.tiers.host_bytes / kHostBytesPerElement / kBlock * kBlock, kBlock, kMostElements);
}

// Exactly: the masters of narrow weights begin as the weights themselves.
void widen(const TensorView& to, const std::byte* from, DType dtype) {
  const auto each = [&](const auto* numbers) {
    std::transform(numbers, numbers + to.elements(), to.as<float>(), [](auto x) { return static_cast<float>(x); });
  };
  dtype == DType::fp16 ? each(reinterpret_cast<const fp16*>(from)) : each(reinterpret_cast<const bf16*>(from));
}

// A chunk's bytes depend on its numbers alone: those behind them are zero.
void clear_rest(std::byte* place, std::uint64_t bytes) { std::memset(place + bytes, 0, round_up(bytes, kPageBytes) - bytes); }

}  // namespace

// `tiers` is destroyed before `stream`, whose operations it waits for, and both before the device.
struct OptimizerState::Impl {
  explicit Impl(const OptimizerStateOptions& given)
      : options(given),
        own(given.tiers.device ? nullptr : std::make_unique<OwnDevice>(given.tiers.threads, given.tiers.io.log)),
        device(given.tiers.device ? *given.tiers.device : *own->device),
        tier(device.computes_on_host() ? Tier::host : Tier::device),
        optimizer(make_optimizer_for(device, given.optimizer, given.settings)),
        unit(optimizer->layer_unit()),
        facts{.optimizer = given.optimizer,
              .recipe = given.recipe,
              .chunk_elements = chunk_elements_of(given),
              .updates = 0,
              .seed = given.seed},
        stream(device.make_stream("optimizer")),
        tiers(given.tiers, device),
        norm(device) {
    demand_recipe();
    if (const auto commit = tiers.last_commit()) facts = rules::resumed_facts(facts, commit->payload, tiers.folder(), payload);
  }

  void demand_recipe() const {
    const auto known = [&](const auto& recipe) { return recipe.name == options.recipe; };
    if (std::ranges::none_of(rules::recipes(), known)) (void)rules::Recipe::of(DType::bf16, options.recipe);  // throws
  }
  void add(const std::string& name, const TensorView& weight, const TensorView& gradient, const OptimizerTensor& set);
  // Makes the memory at least this large; operations use it in the order of the stream.
  void demand_bytes(Slab& slab, std::uint64_t bytes, MemoryResource& memory) const {
    if (slab.bytes() >= bytes) return;
    tiers.wait();  // for operations that use the old one
    slab = memory.allocate(round_up(bytes, kPageBytes));
  }
  void demand_whole(const StateTensor& tensor) const;
  void demand_room(const StateTensor& tensor, const StatePiece& piece) const;
  void restore_weights(const StateTensor& tensor);
  void demand_all_added() const;
  [[nodiscard]] Result step(const Step& step, Stream& on);
  void sweep(Stream& on, const UpdateStep& step);
  void begin_master(Stream& on, const StateTensor& tensor, const StatePiece& piece);
  void update(Stream& on, const UpdateStep& step, const StateTensor& tensor, const StatePiece& piece);
  void update_tensor(Stream& on, const UpdateStep& step, const StateTensor& tensor, ChunkUpdate& chunk) const;
  void commit(std::uint64_t n, const std::string& text);

  const OptimizerStateOptions options;
  struct OwnDevice {
    OwnDevice(int threads, const Log& log) : pool(threads), device(make_cpu_device(pool, log)) {}
    ThreadPool pool;
    const std::unique_ptr<Device> device;
  };
  const std::unique_ptr<OwnDevice> own;
  Device& device;
  const Tier tier;  // where updates run
  const std::unique_ptr<Optimizer> optimizer;
  const std::optional<LayerUnit> unit;
  rules::CommittedFacts facts;
  std::string payload;  // of the last commit
  std::vector<StateTensor> tensors;
  const std::shared_ptr<MemoryResource> host_memory = device.host_memory();
  Slab scratch;  // of an optimizer of whole tensors
  Slab staging;  // weights of a device, whose masters are made on the host
  const std::unique_ptr<Stream> stream;
  rules::StateTiers tiers;
  rules::GlobalNorm norm;
};

void OptimizerState::Impl::add(const std::string& name, const TensorView& weight, const TensorView& gradient,
                               const OptimizerTensor& set) {
  tensors.push_back(rules::make_state_tensor(*optimizer, facts.recipe, facts.chunk_elements, name, weight, gradient, set,
                                             tiers.lasts(),
                                             [&](ChunkDescription description) { return tiers.add(std::move(description)); }));
  const auto& tensor = tensors.back();
  for (const auto& piece : tensor.pieces) demand_room(tensor, piece);
  demand_whole(tensor);
  if (unit && weight.elements() > 0)
    demand_bytes(scratch, unit->needs(tensor.layer_shape()).scratch_bytes,
                 device.computes_on_host() ? *host_memory : device.memory());
  restore_weights(tensor);
}

// A commit has the weights of all pieces; a tensor that has grown by whole chunks since has only some of them.
void OptimizerState::Impl::demand_whole(const StateTensor& tensor) const {
  const auto is_there = [&](const StatePiece& piece) { return piece.weights && tiers.has_content(*piece.weights); };
  const auto there = static_cast<std::size_t>(std::ranges::count_if(tensor.pieces, is_there));
  if (there == 0 || there == tensor.pieces.size()) return;
  throw Error(
      fmt::format("tensor {} has {} elements, but fewer in the last commit of {}\n  add it as it was, or give another store",
                  base::printable(tensor.name), tensor.weight.elements(), tiers.folder()),
      ErrorKind::refused, {.path = tiers.folder(), .object = tensor.name});
}

// Now, not in the middle of a step.
void OptimizerState::Impl::demand_room(const StateTensor& tensor, const StatePiece& piece) const {
  const auto bytes = piece.state_bytes(), room = tiers.budget().of(tier);
  if (bytes <= room) return;
  throw memory::DoesNotFit(
      tier, bytes - room,
      fmt::format("tensor {}: {} of its states are updated at once, but the {} tier has {}\n  raise {}_bytes by {} bytes{}",
                  base::printable(tensor.name), format_bytes(bytes), name_of(tier), format_bytes(room), name_of(tier),
                  bytes - room, unit ? "" : ", or lower chunk_elements"));
}

void OptimizerState::Impl::restore_weights(const StateTensor& tensor) {
  for (const auto& piece : tensor.pieces) {
    if (!piece.weights || !tiers.has_content(*piece.weights)) continue;
    const Use use{*piece.weights, Access::read};
    tiers.run(*stream, std::span(&use, 1), Tier::host, [&](std::span<std::byte* const> at) {
      stream->copy(piece.begin_in(tensor.weight), at[0], piece.bytes_in(tensor.weight));
    });
  }
  tiers.wait();
}

void OptimizerState::Impl::demand_all_added() const {
  const auto missing = tiers.left_out();
  if (missing.empty()) return;
  throw Error(fmt::format("the store {} has states that were not added: {}{}\n  add all of its tensors, or give another store",
                          tiers.folder(), base::printable(fmt::format("{}", fmt::join(missing, "; ")), 300),
                          missing.size() < 3 ? "" : " …"),
              ErrorKind::refused, {.path = tiers.folder(), .object = missing.front()});
}

OptimizerState::Result OptimizerState::Impl::step(const Step& step, Stream& on) {
  demand_all_added();
  rules::require_rate(optimizer->name().c_str(), "the learning rate", step.rate);
  rules::require_rate(optimizer->name().c_str(), "the greatest norm", step.clip);
  if (!std::isfinite(step.gradient_scale)) rules::refuse(optimizer->name().c_str(), "the gradient scale is not finite");
  Result result;
  UpdateStep update{.step = facts.updates + 1,
                    .learning_rate = step.rate,
                    .gradient_scale = step.gradient_scale,
                    .seed = facts.seed,
                    .first = false};
  if (step.clip > 0) {
    std::vector<TensorView> gradients;
    for (const auto& tensor : tensors)
      if (tensor.gradient.elements() > 0) gradients.push_back(tensor.gradient);
    result.norm = norm.of(on, gradients) * std::abs(step.gradient_scale);
    result.applied = std::isfinite(*result.norm);
    if (!result.applied) return result;
    update.gradient_scale *= clip_factor(*result.norm, step.clip);
  }
  sweep(on, update);
  ++facts.updates;
  return result;
}

void OptimizerState::Impl::sweep(Stream& on, const UpdateStep& step) {
  // Every second step goes backwards: it begins with what the step before has left in memory.
  const auto each = [forwards = step.step % 2 == 1](auto& all, const auto& visit) {
    forwards ? std::for_each(all.begin(), all.end(), visit) : std::for_each(all.rbegin(), all.rend(), visit);
  };
  each(tensors, [&](auto& tensor) { each(tensor.pieces, [&](const auto& piece) { update(on, step, tensor, piece); }); });
}

// On the host, also for a device: the codecs that split weights run there.
void OptimizerState::Impl::begin_master(Stream& on, const StateTensor& tensor, const StatePiece& piece) {
  const Use use{piece.master->chunk, Access::overwrite};
  tiers.run(on, std::span(&use, 1), Tier::host, [&](std::span<std::byte* const> at) {
    auto* from = piece.begin_in(tensor.weight);
    if (!device.computes_on_host()) {
      const auto bytes = piece.bytes_in(tensor.weight);
      demand_bytes(staging, bytes, *host_memory);
      on.copy(staging.data(), from, bytes);
      from = staging.data();
    }
    on.submit([from, place = at[0], dtype = tensor.weight.dtype, array = *piece.master] {
      const rules::StoredWeights weights{.parameter = {from, rules::format_of(dtype), array.elements},
                                         .master = {place, array.format, array.elements}};
      rules::write_weights(weights, 0, array.elements, [&](std::int64_t offset, const TensorView& range) {
        widen(range, from + static_cast<std::uint64_t>(offset) * size_of(dtype), dtype);
      });
      clear_rest(place, array.bytes());
    });
  });
}

void OptimizerState::Impl::update(Stream& on, const UpdateStep& step, const StateTensor& tensor, const StatePiece& piece) {
  if (piece.master && !tiers.has_content(piece.master->chunk)) begin_master(on, tensor, piece);
  auto now = step;
  now.first = std::ranges::any_of(piece.states, [&](const auto& state) { return !tiers.has_content(state.chunk); });
  std::vector<Use> uses;
  for (const auto& state : piece.states) uses.push_back({state.chunk, now.first ? Access::overwrite : Access::update});
  if (piece.master) uses.push_back({piece.master->chunk, Access::update});

  tiers.run(on, uses, tier, [&](std::span<std::byte* const> at) {
    const auto whole = [&](const TensorView& view) {
      return Stored{piece.begin_in(view), rules::format_of(view.dtype), piece.count};
    };
    ChunkUpdate chunk{.parameter = whole(tensor.weight), .master = {}, .gradient = whole(tensor.gradient)};
    if (piece.master) chunk.master = {at.back(), piece.master->format, piece.count};
    for (std::size_t i = 0; i < piece.states.size(); ++i) {
      const auto& state = piece.states[i];
      chunk.states.at(i) = {at[i], state.format, state.elements};
      if (now.first && device.computes_on_host())
        on.submit([place = at[i], bytes = state.bytes()] { clear_rest(place, bytes); });
    }
    if (unit) return update_tensor(on, now, tensor, chunk);
    const UpdatePart part{.first = 0,
                          .count = piece.count,
                          .rate = tensor.set.rate,
                          .decay = tensor.set.decay,
                          .gradient_scale = 1,
                          .stream = tensor.stream,
                          .tensor_element = static_cast<std::uint64_t>(piece.first)};
    chunk.parts = std::span(&part, 1);
    optimizer->enqueue(on, now, chunk);
  });
}

void OptimizerState::Impl::update_tensor(Stream& on, const UpdateStep& step, const StateTensor& tensor,
                                         ChunkUpdate& chunk) const {
  std::vector<Stored> packed;
  for (auto& state : chunk.states)
    if (rules::is_packed(state.format)) packed.push_back(std::exchange(state, {}));
  const auto layer = tensor.as_layer();
  optimizer->enqueue_layer(on, step,
                           {.chunks = std::span(&chunk, 1),
                            .packed = packed,
                            .tensors = std::span(&layer, 1),
                            .scratch = scratch.data(),
                            .share = {},
                            .half = UpdateHalf::both});
}

void OptimizerState::Impl::commit(std::uint64_t n, const std::string& text) {
  if (!tiers.lasts())
    throw Error("commit needs a store that lasts\n  give OptimizerStateOptions::tiers.store", ErrorKind::refused);
  demand_all_added();
  for (const auto& tensor : tensors)
    for (const auto& piece : tensor.pieces) {
      const Use use{*piece.weights, Access::overwrite};
      tiers.run(*stream, std::span(&use, 1), Tier::host, [&](std::span<std::byte* const> at) {
        const auto bytes = piece.bytes_in(tensor.weight);
        stream->copy(at[0], piece.begin_in(tensor.weight), bytes);
        stream->submit([place = at[0], bytes] { clear_rest(place, bytes); });
      });
    }
  tiers.commit(n, rules::with_facts(facts, text));
  payload = text;
}

OptimizerState::OptimizerState(const OptimizerStateOptions& options) : impl_(std::make_unique<Impl>(options)) {}
OptimizerState::~OptimizerState() = default;

void OptimizerState::add(const std::string& name, TensorView weight, TensorView gradient, const OptimizerTensor& tensor) {
  impl_->add(name, weight, gradient, tensor);
}

OptimizerState::Result OptimizerState::step(const Step& step) {
  const auto result = impl_->step(step, *impl_->stream);
  impl_->tiers.wait();
  return result;
}
OptimizerState::Result OptimizerState::step(const Step& step, Stream& stream) { return impl_->step(step, stream); }
std::uint64_t OptimizerState::updates() const { return impl_->facts.updates; }

void OptimizerState::commit(std::uint64_t n, const std::string& payload) { impl_->commit(n, payload); }
std::uint64_t OptimizerState::committed_step() const {
  const auto commit = impl_->tiers.last_commit();
  return commit ? commit->step : 0;
}
std::string OptimizerState::payload() const { return impl_->payload; }

memory::Traffic OptimizerState::traffic() const { return impl_->tiers.traffic(); }
void OptimizerState::finish_writes() { impl_->tiers.finish_writes(); }
PerTier<std::uint64_t> OptimizerState::peak_bytes() const { return impl_->tiers.peak_bytes(); }

}  // namespace terrace
