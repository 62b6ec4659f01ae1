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
  if (c.init_adapter.empty() || (c.lora_rank > 0 && c.is_given("lora-targets"))) return;
  const auto told = lm::adapter_settings(c.init_adapter, lm::family_named(c.model), c.experts > 0);
  if (c.lora_rank == 0) {
    c.lora_rank = told.rank;
    if (!c.is_given("lora-alpha")) c.lora_alpha = told.alpha;
    c.chosen.push_back(fmt::format("--lora-rank {} --lora-alpha {} (those of --init-adapter)", c.lora_rank, c.lora_alpha));
  }
  if (c.is_given("lora-targets")) return;
  c.lora_targets = told.targets;
  c.chosen.push_back(fmt::format("--lora-targets {} (those of --init-adapter)", c.lora_targets));
}

void complete_rates(RunConfig& c, bool of_model) {
  const bool chooses = of_model && !c.is_given("lr");
  if (chooses) {
    const bool adapters = c.lora_rank > 0;
    c.lr = adapters ? kRateOfAdapters : kRateOfPublished;
    c.chosen.push_back(fmt::format("--lr {} (usual for {})", c.lr, adapters ? "adapters" : "all weights of a published model"));
  }
  if (!c.is_given("min-lr") && (chooses || c.min_lr > c.lr)) c.min_lr = kFallsTo * c.lr;
}

void complete_vocabulary(RunConfig& c) {
  if (c.is_given("vocab") || c.tokenizer.empty() || c.data_format == DataFormat::bytes) return;
  c.vocab = static_cast<std::int64_t>(lm::Tokenizer::read(c.tokenizer).ids());
  c.chosen.push_back(fmt::format("--vocab {} (the tokenizer's)", c.vocab));
}

}  // namespace

void complete(RunConfig& c, bool of_model) {
  c.chooses_batch = of_model && !c.is_given("batch-size") && !c.is_given("grad-accumulation");
  complete_adapters(c);
  if (of_model && c.lora_rank > 0 && !c.is_given("lora-targets") && c.init_adapter.empty()) {
    c.lora_targets = "all";
    c.chosen.emplace_back("--lora-targets all (usual for a published model)");
  }
  complete_rates(c, of_model);
  complete_vocabulary(c);
}

void set_steps_of_epochs(RunConfig& c, std::uint64_t sequences) {
  if (c.epochs == 0) return;
  const auto a_step = static_cast<double>(c.batch_size * c.grad_accumulation * c.ep * std::max<std::int64_t>(1, c.dp));
  const auto steps = std::ceil(c.epochs * static_cast<double>(sequences) / a_step);
  constexpr double kMost = 1e15;  // as for --steps
  if (!(steps <= kMost)) throw Error(fmt::format("--epochs {} are too many steps\n  give fewer", c.epochs), Exit::usage);
  const auto whole = std::max<std::int64_t>(1, static_cast<std::int64_t>(steps));
  c.steps = (whole + c.sync_interval - 1) / c.sync_interval * c.sync_interval;  // local SGD must end with an average
  c.chosen.push_back(fmt::format("--steps {} ({} epochs of {} sequences, {} a step)", c.steps, c.epochs, sequences,
                                 static_cast<std::int64_t>(a_step)));
}

}  // namespace terrace::cli
