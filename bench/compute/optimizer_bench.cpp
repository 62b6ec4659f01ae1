// Updates: each optimizer and recipe, in turns with a loop that has the traffic of AdamW in fp32 and almost no arithmetic. The
// reported share compares an update's bytes per second with that loop's, which is the limit.
#include <array>
#include <functional>

#include <fmt/format.h>

#include <terrace/bench/compute/stream_kernels.h>
#include <terrace/bench/compute/update_subject.h>
#include <terrace/bench/host_benches.h>
#include <terrace/bench/statistics.h>
#include <terrace/bench/thread_counts.h>
#include <terrace/bench/timing.h>
#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/memory_resource.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/recipe.h>

namespace terrace::bench {
namespace {

constexpr std::size_t kTaskElements = 65'536;  // the size of the updates' own tasks

// Numbers that stay in their range through thousands of turns: denormals would take a hundred times as long.
class StreamMemory {
 public:
  StreamMemory(MemoryResource& memory, ThreadPool& pool, std::size_t elements)
      : elements_(elements), slab_(memory.allocate(elements * (4 * 4 + 2 * 2))) {
    pool.parallel_for(static_cast<std::int64_t>(elements_ / kTaskElements), [this](std::int64_t task) {
      const auto begin = static_cast<std::size_t>(task) * kTaskElements;
      const auto x = arrays();
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
  [[nodiscard]] StreamArrays arrays() const {
    auto* const f = reinterpret_cast<float*>(slab_.data());
    auto* const h = reinterpret_cast<std::uint16_t*>(f + 4 * elements_);
    return {
        .a = f, .b = f + elements_, .c = f + 2 * elements_, .d = f + 3 * elements_, .half_in = h, .half_out = h + elements_};
  }
  [[nodiscard]] std::size_t elements() const { return elements_; }
  void run(ThreadPool& pool, const StreamKernel& kernel) const {
    pool.parallel_for(static_cast<std::int64_t>(elements_ / kTaskElements), [&](std::int64_t task) {
      kernel.run(arrays(), static_cast<std::size_t>(task) * kTaskElements, kTaskElements);
    });
  }

 private:
  std::size_t elements_;
  Slab slab_;
};

class OptimizerBench final : public Bench {
 public:
  OptimizerBench() {
    for (const auto& known : optimizers()) names_.emplace_back(known.name);
    for (const auto& known : rules::recipes()) recipe_names_.emplace_back(known.name);
    names_.emplace_back("all");
    recipe_names_.emplace_back("all");
  }
  std::string_view name() const override { return "optimizer"; }
  std::string_view help() const override { return "updates by recipe and threads, as a share of the memory's speed"; }
  std::vector<Flag> flags() override {
    return {{"optimizer", &optimizer_, "which", 1, 1, names_},
            {"recipe", &recipe_, "which", 1, 1, recipe_names_},
            {"dtype", &dtype_, "of the weights", 1, 1, {"fp32", "bf16", "fp16", "all"}},
            {"params", &params_, "parameters to update", 1, 100'000'000'000},
            {"threads", &threads_, "0: one thread, then all cores that this process may use", 0, 1024}};
  }

  void run(Session& session) override {
    const auto elements = round_up(static_cast<std::uint64_t>(params_), kTaskElements);
    if (recipe_ != "all" && dtype_ != "all")
      (void)rules::Recipe::of(parse_dtype(dtype_), recipe_);  // throws if they do not fit
    const auto dtypes = dtype_ == "all" ? std::vector{DType::fp32, DType::bf16, DType::fp16} : std::vector{parse_dtype(dtype_)};
    for (const int threads : thread_counts(threads_)) {
      ThreadPool pool(threads);
      const auto memory = make_pinned_memory(pool);
      session.progress("taking memory …");
      const StreamMemory stream(*memory, pool, elements);
      for (const auto& known : optimizers()) {
        if (optimizer_ != "all" && optimizer_ != known.name) continue;
        const auto optimizer = make_optimizer(known.name, {});
        for (const auto dtype : dtypes)
          for (const auto& recipe : rules::recipes()) {
            if (session.stopped()) return;
            if (recipe_ != "all" && recipe_ != recipe.name) continue;
            if (dtype != DType::bf16 && !goes_with_fp32(recipe.name)) continue;
            const auto r = rules::Recipe::of(dtype, recipe.name, optimizer->states());
            session.progress("taking memory …");
            const auto subject = make_update_subject(*memory, pool, *optimizer, r, static_cast<std::int64_t>(elements));
            measure(session, pool, *optimizer, r, *subject, stream);
          }
      }
    }
  }

 private:
  static bool goes_with_fp32(std::string_view recipe) {
    try {
      return rules::Recipe::of(DType::fp32, recipe).compute == DType::fp32;
    } catch (const Error&) {
      return false;
    }
  }

  static void measure(Session& session, ThreadPool& pool, const Optimizer& optimizer, const rules::Recipe& recipe,
                      const UpdateSubject& subject, const StreamMemory& stream) {
    const auto& kernel = adamw_stream(recipe.gradient == DType::bf16, recipe.copies_master());
    const std::array<std::function<void()>, 2> works{[&] { subject.update({.step = 1000, .learning_rate = 1e-9}); },
                                                     [&] { stream.run(pool, kernel); }};
    const auto seconds = time_in_turns(
        session,
        fmt::format("{} {} of {}, {} threads", optimizer.name(), recipe.name, terrace::name_of(recipe.compute), pool.threads()),
        works);
    if (seconds[0].empty()) return;
    const auto elements = static_cast<double>(subject.elements());
    const auto gb_per_s = rates(1e-9 * elements * subject.bytes_per_element(), seconds[0]);
    const auto stream_gb_per_s =
        rates(1e-9 * static_cast<double>(stream.elements()) * (kernel.read_bytes + kernel.write_bytes), seconds[1]);
    std::vector<double> fractions;
    for (std::size_t r = 0; r < gb_per_s.size(); ++r) fractions.push_back(gb_per_s[r] / stream_gb_per_s[r]);
    session.result({{"optimizer", optimizer.name()},
                    {"recipe", recipe.name},
                    {"dtype", terrace::name_of(recipe.compute)},
                    {"bytes_per_param", subject.bytes_per_element()},
                    {"threads", pool.threads()},
                    {"gb_per_s", median(gb_per_s)},
                    {"fraction_of_stream", median(fractions)},
                    {"params_per_s", median(rates(elements, seconds[0]))},
                    {"runs", gb_per_s.size()},
                    {"spread", spread(gb_per_s)}});
  }

  std::vector<std::string> names_, recipe_names_;
  std::string optimizer_ = "adamw", recipe_ = "all", dtype_ = "all";
  std::int64_t params_ = 64'000'000, threads_ = 0;
};

}  // namespace

std::unique_ptr<Bench> make_optimizer_bench() { return std::make_unique<OptimizerBench>(); }

}  // namespace terrace::bench
