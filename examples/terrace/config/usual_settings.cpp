#include <terrace/examples/terrace/config/usual_settings.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/models/adapters.h>
#include <terrace/examples/lm/models/family.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>

namespace terrace::cli {
namespace {

constexpr double kRateOfPublished = 1e-5, kRateOfAdapters = 2e-4;
constexpr double kFallsTo = 0.1;  // share of --lr, if --min-lr is not given with it

// With --init-adapter, the rank, alpha and targets come from the adapters.
void complete_adapters(RunConfig& c) {
  if (c.init_adapter.empty() || (c.lora_rank > 0 && !c.lora_targets.empty())) return;
  const auto told = lm::adapter_settings(c.init_adapter, lm::family_named(c.model), c.experts > 0);
  if (c.lora_rank == 0) {
    c.lora_rank = told.rank;
    if (c.lora_alpha == 0) c.lora_alpha = told.alpha;
    c.chosen.push_back(fmt::format("--lora-rank {} --lora-alpha {} (those of --init-adapter)", c.lora_rank, c.lora_alpha));
  }
  if (!c.lora_targets.empty()) return;
  c.lora_targets = told.targets;
  c.chosen.push_back(fmt::format("--lora-targets {} (those of --init-adapter)", c.lora_targets));
}

void complete_rates(RunConfig& c, bool of_model) {
  const RunConfig usual;
  if (c.lr == 0) {
    const bool adapters = c.lora_rank > 0;
    c.lr = !of_model ? usual.lr : adapters ? kRateOfAdapters : kRateOfPublished;
    if (of_model) {
      c.chosen.push_back(
          fmt::format("--lr {} (usual for {})", c.lr, adapters ? "adapters" : "all weights of a published model"));
      if (c.min_lr < 0) c.min_lr = kFallsTo * c.lr;
    }
  }
  if (c.min_lr < 0) c.min_lr = usual.min_lr <= c.lr ? usual.min_lr : kFallsTo * c.lr;
}

void complete_vocabulary(RunConfig& c) {
  if (c.vocab != 0) return;
  c.vocab = RunConfig().vocab;
  if (c.tokenizer.empty() || c.data_format == "bytes") return;
  c.vocab = static_cast<std::int64_t>(lm::Tokenizer::read(c.tokenizer).ids());
  c.chosen.push_back(fmt::format("--vocab {} (the tokenizer's)", c.vocab));
}

}  // namespace

RunConfig nothing_given() {
  RunConfig c;
  c.seq_len = c.vocab = c.batch_size = c.grad_accumulation = 0;
  c.lr = 0;
  c.min_lr = -1;
  c.dtype.clear();
  c.lora_targets.clear();
  c.lora_alpha = 0;
  return c;
}

void complete(RunConfig& c, bool of_model) {
  const RunConfig usual;
  if (c.seq_len == 0) c.seq_len = usual.seq_len;
  c.chooses_batch = of_model && c.batch_size == 0 && c.grad_accumulation == 0;
  if (c.batch_size == 0) c.batch_size = usual.batch_size;
  if (c.grad_accumulation == 0) c.grad_accumulation = usual.grad_accumulation;
  if (c.dtype.empty()) c.dtype = usual.dtype;
  complete_adapters(c);
  if (c.lora_alpha == 0) c.lora_alpha = usual.lora_alpha;
  if (c.lora_targets.empty()) {
    const bool of_adapters = of_model && c.lora_rank > 0;
    c.lora_targets = of_adapters ? "all" : usual.lora_targets;
    if (of_adapters) c.chosen.emplace_back("--lora-targets all (usual for a published model)");
  }
  complete_rates(c, of_model);
  complete_vocabulary(c);
}

void set_steps_of_epochs(RunConfig& c, std::uint64_t sequences) {
  if (c.epochs == 0) return;
  const auto a_step = static_cast<double>(c.batch_size * c.grad_accumulation * c.ep * std::max<std::int64_t>(1, c.dp));
  const auto steps = std::ceil(c.epochs * static_cast<double>(sequences) / a_step);
  constexpr double kMost = 1e15;  // as for --steps
  if (!(steps <= kMost)) throw Error(fmt::format("--epochs {} are too many steps\n  give fewer", c.epochs), ErrorKind::refused);
  const auto whole = std::max<std::int64_t>(1, static_cast<std::int64_t>(steps));
  c.steps = (whole + c.sync_interval - 1) / c.sync_interval * c.sync_interval;  // local SGD must end with an average
  c.chosen.push_back(fmt::format("--steps {} ({} epochs of {} sequences, {} a step)", c.steps, c.epochs, sequences,
                                 static_cast<std::int64_t>(a_step)));
}

}  // namespace terrace::cli
