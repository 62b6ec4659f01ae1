// terrace generate RUN --prompt TEXT: generates one token after another with a run's committed weights. Each layer is read
// through the tiers.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>
#include <vector>

#include <terrace/core/philox.h>
#include <terrace/core/thread_pool.h>
#include <terrace/examples/lm/model.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/terrace/commands.h>
#include <terrace/examples/terrace/device.h>
#include <terrace/examples/terrace/options.h>
#include <terrace/examples/terrace/refusal.h>
#include <terrace/examples/terrace/run_dir.h>
#include <terrace/examples/terrace/setup.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/parallel/committed_state.h>
#include <terrace/parallel/engine.h>

namespace terrace::cli {
namespace {

constexpr std::uint64_t kSamplingStream = 0x73616d706c65;  // "sample"

std::vector<double> as_doubles(const TensorView& logits) {
  std::vector<double> out(static_cast<std::size_t>(logits.elements()));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = logits.dtype == DType::fp64   ? logits.as<double>()[i]
             : logits.dtype == DType::bf16 ? static_cast<double>(static_cast<float>(logits.as<bf16>()[i]))
             : logits.dtype == DType::fp16 ? static_cast<double>(static_cast<float>(logits.as<fp16>()[i]))
                                           : static_cast<double>(logits.as<float>()[i]);
  return out;
}

// Samples from the softmax of the top k logits at the temperature, by (seed, position): the same prompt and seed give the same
// text.
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

// Bytes for a run that was trained on text, tokens for one that was trained on ids.
class GeneratedText {
 public:
  GeneratedText(const GenerateOptions& options, const RunConfig& config, const std::string& run) {
    const bool of_bytes = config.data_format == "bytes";
    if (of_bytes && options.tokenizer.empty()) return;
    if (of_bytes)
      throw Error(fmt::format("the run in {} was trained on bytes, which need no --tokenizer\n  leave it out", run),
                  Exit::usage);
    if (options.tokenizer.empty())
      throw Error(
          fmt::format("the run in {} was trained on token ids (--data-format {}), but generate reads and writes bytes\n  "
                      "give the --tokenizer that made the ids",
                      run, config.data_format),
          Exit::usage);
    tokenizer_ = lm::Tokenizer::read(options.tokenizer);
    if (static_cast<std::int64_t>(tokenizer_->ids()) > config.vocab)
      throw Error(
          fmt::format("the tokenizer {} has {} ids, but the run has --vocab {}\n  give the --tokenizer that made the ids",
                      options.tokenizer.string(), tokenizer_->ids(), config.vocab),
          Exit::usage);
  }
  [[nodiscard]] std::vector<std::int32_t> tokens_of(const std::string& text) const {
    std::vector<std::int32_t> tokens;
    if (!tokenizer_)
      for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
    else
      for (const auto id : tokenizer_->encode(text)) tokens.push_back(static_cast<std::int32_t>(id));
    return tokens;
  }
  // What one more token adds to the text. An id that no token has adds nothing.
  std::string more(std::int32_t token) {
    if (!tokenizer_) return std::string(1, static_cast<char>(token));
    const auto id = static_cast<lm::TokenId>(token);
    if (!tokenizer_->has(id)) return {};
    const auto before = tokenizer_->decode(ids_).size();
    ids_.push_back(id);
    return tokenizer_->decode(ids_).substr(before);
  }
  [[nodiscard]] std::size_t tokens() const { return tokenizer_ ? tokenizer_->ids() : 256; }
  [[nodiscard]] const char* unit() const { return tokenizer_ ? "tokens" : "bytes"; }

 private:
  std::optional<lm::Tokenizer> tokenizer_;
  std::vector<lm::TokenId> ids_;  // generated so far
};

}  // namespace

Exit generate_command(const CommandLine& line) {
  const auto& options = line.generate;
  auto config = line.config;  // the configuration of the run, with the budgets of this call
  demand_device(config);
  GeneratedText texts(options, config, line.positional.at(0));
  auto store = store_of_run(line.positional.at(0));
  demand_settings_of_run(line.positional.at(0), config);
  // If each rank has a part of the weights, or if chunks are grouped by rank, the weights are gathered from the stores of all
  // ranks. Otherwise they are read in place.
  const bool in_parts = config.pp > 1 || config.tp > 1 || config.ep > 1 ||
                        (config.dp * config.cp > 1 && (config.zero > 0 || config.canonical_reduction));
  auto ranks = stores_of_ranks(store, static_cast<std::size_t>(config.ranks()));
  config.dp = config.pp = config.tp = config.cp = config.ep = 1;  // one rank has all budgets
  config.sp = false;
  config.tp_mode = "1d";
  config.tp_depth = config.tp_overlap = 1;
  if (options.prompt.empty())
    throw Error("generate needs --prompt, a text of at least one byte\n  see terrace generate --help", Exit::usage);
  const auto prompt = texts.tokens_of(options.prompt);
  const auto prompt_tokens = static_cast<std::int64_t>(prompt.size());
  if (prompt_tokens >= config.seq_len)
    throw Error(fmt::format("--prompt has {0} {1}, but the model has {2} positions\n  give a --prompt of at most {3} {1}",
                            prompt_tokens, texts.unit(), config.seq_len, config.seq_len - 1),
                Exit::usage);
  const auto positions = prompt_tokens + std::min(options.max_tokens, config.seq_len - prompt_tokens);

  const auto model = lm::make_model(model_config(config));
  PlanRequest request{
      .shape = {.batch = {1, 1}, .micro_batches = 1}, .budget = budgets(config), .recipe = config.recipe, .disk_tier = true};
  request.budget.disk = kUnlimited;
  request.decode_positions = positions;
  if (in_parts) {
    request.weights_given = true;
    request.states = {};
    request.commits = false;
    request.generations = 1;
    store.temporary = true;
  } else {
    set_optimizer(request, config);
    request.generations = store.generations;
    // Otherwise what exceeds the memory is written to the store's own disk, beside the committed bytes.
    store.read_only = ::access((store.paths.front() / store.name).c_str(), W_OK) != 0;
  }
  const auto p = plan(model, request, machine_profile(config));
  if (!p.fits) throw refusal_error(config, p);

  auto pool = make_pool(config);
  const auto device = make_device(config, pool);
  const auto optimizer =
      in_parts ? make_optimizer("sgd", {.momentum = 0}) : optimizer_of(config, *device);  // it updates nothing
  Engine engine(model, p, {.device = device.get(), .store = store, .resume = !in_parts, .optimizer = optimizer.get()});
  if (in_parts) {
    for (auto& rank : ranks) rank.read_only = true;
    CommittedState state(ranks);
    engine.fill([&](const ParamSpec& param, std::uint64_t first, TensorView range) { state.read(param, first, range); });
  }

  const auto memory = device->host_memory();
  const Slab logits = memory->allocate(static_cast<std::size_t>(config.vocab) * size_of(model.dtype));
  const TensorView view{logits.data(), model.dtype, {1, config.vocab}};
  std::string text;
  const auto say = [&](std::string_view bytes) {
    text += bytes;
    if (config.json) return;
    fmt::print("{}", bytes);
    std::fflush(stdout);
  };
  std::int32_t token = 0;
  for (std::int64_t position = 0; position < positions; ++position) {
    const auto at = static_cast<std::size_t>(position);
    if (at < prompt.size()) token = prompt[at];
    engine.decode({.tokens = {&token, 1}, .targets = {}, .update = {}, .weights = {}, .logits = view, .position = position});
    if (at + 1 < prompt.size()) continue;
    if (at + 1 == prompt.size()) say(options.prompt);  // printed only now, because the first positions may fail
    auto of_tokens = as_doubles(view);
    of_tokens.resize(texts.tokens());  // text does not train further rows of the vocabulary
    token = sample(of_tokens, options, at);
    if (position + 1 < positions) say(texts.more(token));
  }
  // Bytes need not be UTF-8, and JSON must be.
  const nlohmann::json object{{"prompt", options.prompt}, {"text", text}};
  fmt::print("{}\n", config.json ? object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) : "");
  return Exit::ok;
}

}  // namespace terrace::cli
