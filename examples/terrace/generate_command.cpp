// terrace generate RUN --prompt TEXT: one token after another from a run's committed weights, each layer read through the
// tiers.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

#include <terrace/core/philox.h>
#include <terrace/core/thread_pool.h>
#include <terrace/examples/lm/model.h>
#include <terrace/examples/terrace/commands.h>
#include <terrace/examples/terrace/options.h>
#include <terrace/examples/terrace/run_dir.h>
#include <terrace/examples/terrace/setup.h>
#include <terrace/parallel/engine.h>

namespace terrace::cli {
namespace {

constexpr std::uint64_t kSamplingStream = 0x73616d706c65;  // "sample"

std::vector<double> as_doubles(const TensorView& logits) {
  std::vector<double> out(static_cast<std::size_t>(logits.elements()));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = logits.dtype == DType::fp64   ? logits.as<double>()[i]
             : logits.dtype == DType::bf16 ? static_cast<double>(static_cast<float>(logits.as<bf16>()[i]))
                                           : static_cast<double>(logits.as<float>()[i]);
  return out;
}

// Softmax at the temperature over the top k, drawn by (seed, position): the same prompt and seed give the same text.
std::int32_t sample(std::vector<double> logits, const GenerateOptions& o, std::uint64_t position) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](auto a, auto b) { return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)]; });
  if (o.temperature <= 0) return order.front();
  if (o.top_k > 0 && static_cast<std::size_t>(o.top_k) < order.size()) order.resize(static_cast<std::size_t>(o.top_k));
  const double most = logits[static_cast<std::size_t>(order.front())];
  double total = 0;
  std::vector<double> weights;
  for (const auto token : order) {
    weights.push_back(std::exp((logits[static_cast<std::size_t>(token)] - most) / o.temperature));
    total += weights.back();
  }
  double draw = random_uniform(o.seed, kSamplingStream, position) * total;
  for (std::size_t i = 0; i < order.size(); ++i) {
    draw -= weights[i];
    if (draw < 0) return order[i];
  }
  return order.back();
}

}  // namespace

Exit generate_command(const CommandLine& line) {
  const auto& options = line.generate;
  auto config = line.config;  // the run's own, with this call's budgets
  demand_device(config);
  const auto run = read_run_dir(line.positional.at(0));
  if (options.prompt.empty()) throw Error("generate needs a --prompt of at least one byte", Exit::usage);
  const auto positions = static_cast<std::int64_t>(options.prompt.size()) + options.max_tokens;
  if (positions > config.seq_len)
    throw Error(fmt::format("prompt and text of {} tokens are longer than the model's {} positions: --max-tokens at most {}",
                            positions, config.seq_len, config.seq_len - static_cast<std::int64_t>(options.prompt.size())),
                Exit::usage);

  const auto model = lm::make_model(model_config(config));
  PlanRequest request{.shape = {.batch = {1, 1}, .micro_batches = 1}, .budget = budgets(config), .disk_tier = true};
  request.budget.disk = kUnlimited;
  request.decode_positions = positions;
  const auto p = plan(model, request, machine_profile(config));
  if (!p.fits) throw refusal_error(p);

  ThreadPool pool(static_cast<int>(config.threads));
  const auto device = make_cpu_device(pool);
  const auto optimizer = make_adamw({});
  Engine engine(model, p, {.device = device.get(), .store = run.store, .resume = true, .optimizer = optimizer.get()});

  std::vector<std::byte> logits(static_cast<std::size_t>(config.vocab) * size_of(model.dtype));
  const TensorView view{logits.data(), model.dtype, {1, config.vocab}};
  std::fputs(options.prompt.c_str(), stdout);
  std::int32_t token = 0;
  for (std::int64_t position = 0; position < positions; ++position) {
    const auto at = static_cast<std::size_t>(position);
    if (at < options.prompt.size()) token = static_cast<unsigned char>(options.prompt[at]);
    engine.decode({.tokens = {&token, 1}, .targets = {}, .update = {}, .weights = {}, .logits = view, .position = position});
    if (at + 1 < options.prompt.size()) continue;
    token = sample(as_doubles(view), options, at);
    if (position + 1 < positions) std::fputc(token & 0xff, stdout);
    std::fflush(stdout);
  }
  std::fputc('\n', stdout);
  return Exit::ok;
}

}  // namespace terrace::cli
