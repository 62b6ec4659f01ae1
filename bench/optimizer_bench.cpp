// Updates: each optimizer and recipe, in turns with a loop that moves the same bytes of the same memory and does next to
// nothing else. The share of that loop's speed is what an update reaches of its limit.
#include <algorithm>
#include <array>
#include <functional>

#include <fmt/format.h>

#include <terrace/bench/host_benches.h>
#include <terrace/bench/statistics.h>
#include <terrace/bench/stream_kernels.h>
#include <terrace/bench/thread_counts.h>
#include <terrace/bench/timing.h>
#include <terrace/core/memory_resource.h>
#include <terrace/core/thread_pool.h>
#include <terrace/core/units.h>
#include <terrace/optimizers/optimizer.h>

namespace terrace::bench {
namespace {

constexpr std::size_t kTaskElements = 65'536;  // as the updates themselves are cut

// What an update reads and writes beside the fp32 weight and two fp32 moments.
struct BenchRecipe {
  std::string_view name;
  bool bf16_gradient, bf16_copy;
};
constexpr std::array<BenchRecipe, 4> kRecipes{
    {{"fp32", false, false}, {"bf16", false, true}, {"fp32+bf16grad", true, false}, {"bf16+bf16grad", true, true}}};

// All arrays of an update in one block of memory.
class Arrays {
 public:
  Arrays(MemoryResource& memory, ThreadPool& pool, std::size_t elements)
      : elements_(round_up(elements, kTaskElements)), slab_(memory.allocate(elements_ * (4 * 4 + 2 * 2))) {
    // Numbers that stay of their size through thousands of updates: a denormal takes a hundred times as long.
    pool.parallel_for(static_cast<std::int64_t>(elements_ / kTaskElements), [this](std::int64_t task) {
      const auto begin = static_cast<std::size_t>(task) * kTaskElements;
      const auto x = stream();
      for (std::size_t i = begin; i < begin + kTaskElements; ++i) {
        x.a[i] = 0.5F;
        x.b[i] = 0.01F;
        x.c[i] = 0.01F;
        x.d[i] = 0.0001F;
        x.half_in[i] = 0x3C24;  // 0.01 in bf16
        x.half_out[i] = 0;
      }
    });
  }
  [[nodiscard]] StreamArrays stream() const {
    auto* const f = reinterpret_cast<float*>(slab_.data());
    auto* const h = reinterpret_cast<std::uint16_t*>(f + 4 * elements_);
    return {
        .a = f, .b = f + elements_, .c = f + 2 * elements_, .d = f + 3 * elements_, .half_in = h, .half_out = h + elements_};
  }
  [[nodiscard]] UpdateSpans spans(const BenchRecipe& recipe) const {
    const auto n = static_cast<std::int64_t>(elements_);
    const auto x = stream();
    const auto view = [n](auto* data, DType dtype) { return TensorView{reinterpret_cast<std::byte*>(data), dtype, {n}}; };
    return {.weight = view(x.a, DType::fp32),
            .compute = recipe.bf16_copy ? view(x.half_out, DType::bf16) : TensorView{},
            .gradient = recipe.bf16_gradient ? view(x.half_in, DType::bf16) : view(x.b, DType::fp32),
            .first_moment = view(x.c, DType::fp32),
            .second_moment = view(x.d, DType::fp32)};
  }
  [[nodiscard]] std::size_t elements() const { return elements_; }

 private:
  std::size_t elements_;
  Slab slab_;
};

class OptimizerBench final : public Bench {
 public:
  std::string_view name() const override { return "optimizer"; }
  std::string_view help() const override { return "updates by recipe and threads, as a share of the memory's speed"; }
  std::vector<Flag> flags() override {
    return {{"params", &params_, "parameters to update", 1, 100'000'000'000},
            {"threads", &threads_, "0: one, and then every core this process may use", 0, 1024}};
  }

  void run(Session& session) override {
    const auto optimizer = make_adamw({});
    for (const int threads : thread_counts(threads_)) {
      ThreadPool pool(threads);
      const auto memory = make_pinned_memory(pool);
      session.progress("taking memory …");
      const Arrays arrays(*memory, pool, static_cast<std::size_t>(params_));
      for (const auto& recipe : kRecipes)
        if (!session.stopped()) measure(session, pool, *optimizer, recipe, arrays);
    }
  }

 private:
  static void measure(Session& session, ThreadPool& pool, const Optimizer& optimizer, const BenchRecipe& recipe,
                      const Arrays& arrays) {
    const auto& stream = adamw_stream(recipe.bf16_gradient, recipe.bf16_copy);
    const auto x = arrays.stream();
    const auto spans = arrays.spans(recipe);
    const std::array<std::function<void()>, 2> works{
        [&] { optimizer.update(pool, {.step = 1000, .learning_rate = 1e-9}, spans); },
        [&] {
          pool.parallel_for(static_cast<std::int64_t>(arrays.elements() / kTaskElements), [&](std::int64_t task) {
            stream.run(x, static_cast<std::size_t>(task) * kTaskElements, kTaskElements);
          });
        }};
    const auto seconds =
        time_in_turns(session, fmt::format("{} {}, {} threads", optimizer.name(), recipe.name, pool.threads()), works);
    if (seconds[0].empty()) return;
    std::vector<double> fractions;
    for (std::size_t r = 0; r < seconds[0].size(); ++r) fractions.push_back(seconds[1][r] / seconds[0][r]);
    const auto elements = static_cast<double>(arrays.elements());
    const auto gb_per_s = rates(1e-9 * elements * (stream.read_bytes + stream.write_bytes), seconds[0]);
    session.result({{"optimizer", optimizer.name()},
                    {"recipe", recipe.name},
                    {"threads", pool.threads()},
                    {"gb_per_s", median(gb_per_s)},
                    {"fraction_of_stream", median(fractions)},
                    {"params_per_s", median(rates(elements, seconds[0]))},
                    {"runs", gb_per_s.size()},
                    {"spread", spread(gb_per_s)}});
  }

  std::int64_t params_ = 64'000'000, threads_ = 0;
};

}  // namespace

std::unique_ptr<Bench> make_optimizer_bench() { return std::make_unique<OptimizerBench>(); }

}  // namespace terrace::bench
