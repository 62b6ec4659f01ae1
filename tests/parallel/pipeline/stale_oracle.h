// The reference for asynchronous orders: one rank computes one micro-batch after another with the old weights that the order
// declares. It has layers, an optimizer and a list of versions, but no chunks, programs, ranks or messages. It rounds what
// would travel between ranks in fewer bits (RunOptions::data): each micro-batch's gradient, and every version of the weights.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include <terrace/core/math/block8.h>
#include <terrace/optimizers/schedule.h>
#include <terrace/optimizers/stored_weights.h>
#include <terrace/parallel/map/gradient_squares.h>
#include <terrace/tests/support/toy_run.h>

namespace terrace::toy {

class StaleOracle {
 public:
  // The number of updates, since the step began, in the weights of a layer that a micro-batch computes with.
  using Version = std::function<std::uint32_t(std::uint32_t layer, std::uint32_t micro_batch)>;
  struct Result {
    std::vector<double> losses, norms;  // of each update
    std::uint64_t hash = 0;
  };

  StaleOracle(const RunOptions& options, std::uint32_t update_every, Version version)
      : o_(options), every_(update_every), version_(std::move(version)) {
    for (const auto& layer : model_.layers) {
      auto& params = params_.emplace_back();
      for (const auto& spec : layer->params()) params.push_back(make(spec));
    }
  }

  Result run() {
    for (std::uint64_t step = 1; step <= o_.steps; ++step) run_step(step);
    result_.hash = hash();
    return result_;
  }

 private:
  struct Param {
    ParamSpec spec;
    std::int64_t elements = 0;
    Slab parameter, master, gradient;
    Slab contribution;  // a micro-batch's gradient, where it is rounded before it is added
    std::vector<Slab> states, versions;
  };

  Slab allocate(std::uint64_t bytes) { return memory_->allocate(round_up(std::max<std::uint64_t>(bytes, 1), kPageBytes)); }
  Stored stored(const Param& p, ChunkKind kind, const Slab& slab) const {
    return {slab.data(), recipe_.format_of(kind), p.elements};
  }
  Param make(const ParamSpec& spec) {
    Param p{.spec = spec,
            .elements = spec.shape.elements(),
            .parameter = {},
            .master = {},
            .gradient = {},
            .contribution = {},
            .states = {},
            .versions = {}};
    const auto of = [&](ChunkKind kind) {
      return allocate(
          recipe_.chunk_bytes(kind, round_up(static_cast<std::uint64_t>(p.elements), memory::Layout::kPageElements)));
    };
    p.parameter = of(ChunkKind::parameter);
    p.gradient = of(ChunkKind::gradient);
    if (rounds_gradients()) p.contribution = of(ChunkKind::gradient);
    if (recipe_.has_master()) p.master = of(ChunkKind::master);
    for (const auto kind : recipe_.states) p.states.push_back(of(kind));
    rules::write_weights(weights_of(p), 0, p.elements, [&](std::int64_t first, TensorView range) {
      initialise(p.spec, static_cast<std::uint64_t>(first), range);
    });
    return p;
  }
  rules::StoredWeights weights_of(const Param& p) const {
    rules::StoredWeights w{.parameter = stored(p, ChunkKind::parameter, p.parameter), .master = {}};
    if (recipe_.has_master()) w.master = stored(p, ChunkKind::master, p.master);
    return w;
  }
  void add_version(std::uint32_t l) {
    std::vector<TensorView> all;
    for (auto& p : params_[l]) {
      p.versions.push_back(allocate(p.parameter.bytes()));
      std::memcpy(p.versions.back().data(), p.parameter.data(), p.parameter.bytes());
      all.push_back({p.versions.back().data(), recipe_.compute, p.spec.shape});
    }
    round(l, all, o_.data.weights);
  }

  [[nodiscard]] bool rounds_gradients() const { return o_.data.gradients != Travel::whole; }
  // Rounds a whole layer as it arrives: blocks go through the layer's tensors one behind the other.
  void round(std::uint32_t l, const std::vector<TensorView>& tensors, Travel travel) const {
    if (travel == Travel::whole) return;
    const auto first = [&](std::size_t t) { return map_.layout().place(l, static_cast<std::uint32_t>(t)).first_element; };
    const auto behind = first(tensors.size() - 1) + static_cast<std::uint64_t>(tensors.back().shape.elements());
    std::vector<float> numbers(round_up(behind, math::kBlock8Elements));
    const auto at = [&](std::size_t t) -> TensorView {
      return {reinterpret_cast<std::byte*>(&numbers[first(t)]), DType::fp32, tensors[t].shape};
    };
    for (std::size_t t = 0; t < tensors.size(); ++t) device_->math().convert(*stream_, at(t), tensors[t]);
    stream_->synchronize();
    if (travel == Travel::bf16)
      for (auto& x : numbers) x = float(bf16(x));
    else
      for (auto block = numbers.begin(); block != numbers.end(); block += math::kBlock8Elements)
        round_block(std::span(block, math::kBlock8Elements));
    for (std::size_t t = 0; t < tensors.size(); ++t) device_->math().convert(*stream_, tensors[t], at(t));
    stream_->synchronize();
  }
  static void round_block(std::span<float> block) {
    float greatest = 0;
    for (const float x : block) greatest = std::max(greatest, std::abs(x));
    const auto [scale, factor] = math::block8_scale(std::bit_cast<std::uint32_t>(greatest));
    for (float& x : block) x = static_cast<float>(math::block8_code(x, factor)) * scale;
  }
  void add_contribution(std::uint32_t l, std::uint32_t m) {
    round(l, views(l, ChunkKind::gradient, m), o_.data.gradients);
    for (auto& p : params_[l]) {
      auto* const sum = reinterpret_cast<float*>(p.gradient.data());
      const auto* const more = reinterpret_cast<const float*>(p.contribution.data());
      for (std::int64_t i = 0; i < p.elements; ++i) sum[i] = m % every_ == 0 ? more[i] : sum[i] + more[i];
    }
  }

  void run_step(std::uint64_t step) {
    for (std::uint32_t l = 0; l < params_.size(); ++l) {
      for (auto& p : params_[l]) p.versions.clear();
      add_version(l);
    }
    const auto updates = o_.shape.micro_batches / every_;
    for (std::uint32_t m = 0; m < o_.shape.micro_batches; ++m) {
      if (m % every_ == 0) result_.losses.push_back(0);
      result_.losses.back() += micro_batch(step, m);
      if ((m + 1) % every_ == 0) update((step - 1) * updates + m / every_ + 1);
    }
  }

  std::vector<TensorView> views(std::uint32_t l, ChunkKind kind, std::uint32_t m) {
    std::vector<TensorView> all;
    for (auto& p : params_[l]) {
      auto* const gradient = rounds_gradients() ? p.contribution.data() : p.gradient.data();
      auto* const data = kind == ChunkKind::gradient ? gradient : p.versions.at(version_(l, m)).data();
      all.push_back({data, kind == ChunkKind::gradient ? recipe_.gradient : recipe_.compute, p.spec.shape});
    }
    return all;
  }

  double micro_batch(std::uint64_t step, std::uint32_t m) {
    const auto layers = static_cast<std::uint32_t>(model_.layers.size());
    const auto& shape = o_.shape.batch;
    const auto per = static_cast<std::size_t>(shape.tokens());
    const auto draw = [&](std::uint64_t i) {
      return static_cast<std::int32_t>(math::random_below(3, step, i, static_cast<std::uint64_t>(o_.sizes.vocab)));
    };
    std::vector<std::int32_t> tokens, targets;
    for (std::size_t i = m * per; i < (m + 1) * per; ++i) {
      tokens.push_back(draw(i));
      targets.push_back(i % 7 == 0 ? -1 : draw(i + 1));
    }
    const auto ids = [&](std::vector<std::int32_t>& all) -> TensorView {
      return {reinterpret_cast<std::byte*>(all.data()), DType::i32, {shape.tokens()}};
    };
    double loss = 0;
    std::vector<Slab> slabs;
    const auto take = [&](std::uint64_t bytes) { return slabs.emplace_back(allocate(bytes)).data(); };
    const auto row = [&] {
      const Shape of{shape.tokens(), o_.sizes.width};
      return TensorView{take(static_cast<std::uint64_t>(of.elements()) * size_of(o_.sizes.dtype)), o_.sizes.dtype, of};
    };
    std::vector<TensorView> x(layers), dx(layers), dskip(layers);
    std::vector<std::vector<TensorView>> saved;
    for (std::uint32_t l = 0; l < layers; ++l) {
      if (l > 0) x[l] = row(), dx[l] = row();
      if (const auto from = model_.layers[l]->facts().skips_from) dskip[*from] = row();
      const mapping::Pack pack(model_.layers[l]->facts(shape).saved);
      saved.push_back(pack.views(take(pack.bytes)));
    }
    const auto compute = [&](std::uint32_t l, bool backward) {
      const auto& layer = *model_.layers[l];
      const auto scratch_bytes = layer.described(backward ? LayerCall::backward : LayerCall::forward, shape).scratch_bytes();
      LayerContext ctx{
          .stream = *stream_,
          .math = device_->math(),
          .shape = shape,
          .tokens = ids(tokens),
          .targets = ids(targets),
          .loss_scale = 1.0 / static_cast<double>(per * every_),
          .loss = {reinterpret_cast<std::byte*>(&loss), DType::fp64, {1}},
          .scratch = {take(scratch_bytes), DType::i32, {static_cast<std::int64_t>(round_up(scratch_bytes, kPageBytes) / 4)}}};
      const mapping::Pack pack(layer.facts(shape).carried);
      const auto weights = views(l, ChunkKind::parameter, m), gradients = views(l, ChunkKind::gradient, m);
      const auto carried = pack.views(take(pack.bytes));
      LayerTensors t{
          .weights = weights, .gradients = {}, .x = x[l], .y = {}, .saved = saved[l], .dy = {}, .dx = {}, .carried = carried};
      const bool last = l + 1 == layers;
      const auto from = layer.facts().skips_from;
      if (from) ctx.skip = x[*from + 1];
      if (!backward) {
        t.y = x[l + 1];
        layer.forward(ctx, t);
      } else {
        t.gradients = gradients;
        t.accumulate = m % every_ == 0 || rounds_gradients() ? Accumulate::no : Accumulate::yes;
        if (!last) t.dy = dx[l + 1];
        t.dx = dx[l];
        if (from) t.dskip = dskip[*from];
        if (!dskip[l].empty()) ctx.math.add(ctx.stream, t.dy, t.dy, dskip[l]);
        layer.backward(ctx, t, Half::both);
      }
      stream_->synchronize();
      if (backward && rounds_gradients()) add_contribution(l, m);
    };
    for (std::uint32_t l = 0; l + 1 < layers; ++l) compute(l, false);
    for (std::uint32_t l = layers; l-- > 0;) compute(l, true);
    return loss;
  }

  void update(std::uint64_t number) {
    mapping::GradientSquares squares(map_.layout(), memory_);
    for (std::uint32_t l = 0; l < params_.size(); ++l)
      for (std::uint32_t t = 0; t < params_[l].size(); ++t) {
        const auto& p = params_[l][t];
        const auto blocks = squares.of(l, map_.layout().home(l, t).tensor, 0, static_cast<std::uint64_t>(p.elements));
        device_->math().sum_of_squares(*stream_, blocks.sums, {p.gradient.data(), recipe_.gradient, {p.elements}},
                                       blocks.first);
      }
    stream_->synchronize();
    const double norm = squares.norm([](std::uint32_t, std::uint32_t) { return true; });
    result_.norms.push_back(norm);
    const UpdateStep step{.step = number,
                          .learning_rate = 1e-2,
                          .gradient_scale = o_.before_use ? clip_factor(norm, kGreatestNorm) : 1,
                          .first = number == 1};
    for (std::uint32_t l = 0; l < params_.size(); ++l) {
      for (auto& p : params_[l]) {
        const std::vector<UpdatePart> parts{
            {.count = p.elements, .rate = p.spec.rate, .decay = p.spec.decay, .stream = math::stream_of(p.spec.name.c_str())}};
        const auto weights = weights_of(p);
        ChunkUpdate chunk{.parameter = weights.parameter,
                          .master = weights.master,
                          .gradient = stored(p, ChunkKind::gradient, p.gradient),
                          .parts = parts};
        for (std::size_t i = 0; i < recipe_.states.size(); ++i) chunk.states.at(i) = stored(p, recipe_.states[i], p.states[i]);
        optimizer_->enqueue(*stream_, step, chunk);
        stream_->synchronize();
      }
      add_version(l);
    }
  }

  [[nodiscard]] std::uint64_t hash() const {
    const std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> state(XXH64_createState(), &XXH64_freeState);
    XXH64_reset(state.get(), 0);
    for (const auto& layer : params_)
      for (const auto& p : layer)
        rules::read_weights(weights_of(p), 0, p.elements,
                            [&](std::int64_t, TensorView range) { XXH64_update(state.get(), range.data, range.bytes()); });
    return XXH64_digest(state.get());
  }

  const RunOptions o_;
  const std::uint32_t every_;
  const Version version_;
  ThreadPool pool_{1};
  const std::unique_ptr<Device> device_ = make_cpu_device(pool_);
  const std::unique_ptr<Stream> stream_ = device_->make_stream("oracle");
  const std::shared_ptr<MemoryResource> memory_ = device_->host_memory();
  const Model model_ = make_model(o_.sizes);
  const std::unique_ptr<Optimizer> optimizer_ = o_.make_optimizer();
  const rules::Recipe recipe_ = rules::Recipe::of(o_.sizes.dtype, o_.recipe, optimizer_->states());
  const StepMap map_{model_, {.recipe = recipe_, .shape = {o_.shape.batch, 1}}};
  std::vector<std::vector<Param>> params_;
  Result result_;
};

}  // namespace terrace::toy
