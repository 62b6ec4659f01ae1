#include <terrace/examples/terrace/config/usual_settings.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/models/adapters.h>
#include <terrace/examples/lm/models/family.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>

namespace terrace::cli {
namespace {

constexpr double kRateOfPublished = 1e-5, kRateOfAdapters = 2e-4;
constexpr double kFallsTo = 0.1;  // share of --lr, if --min-lr is not given with it

// With --init-adapter, the rank, alpha and targets come from the adapters.
void complete_adapters(RunConfig& c) {
  if (c.run.init_adapter.empty() || (c.train.lora_rank > 0 && c.is_given("lora-targets"))) return;
  const auto told = lm::adapter_settings(c.run.init_adapter, c.model.family.get(), c.model.experts.count > 0);
  if (c.train.lora_rank == 0) {
    c.train.lora_rank = told.rank;
    if (!c.is_given("lora-alpha")) c.train.lora_alpha = told.alpha;
    c.found.chosen.push_back(
        fmt::format("--lora-rank {} --lora-alpha {} (those of --init-adapter)", c.train.lora_rank, c.train.lora_alpha));
  }
  if (c.is_given("lora-targets")) return;
  c.train.lora_targets = told.targets;
  c.found.chosen.push_back(fmt::format("--lora-targets {} (those of --init-adapter)", c.train.lora_targets));
}

void complete_rates(RunConfig& c, bool of_model) {
  const bool chooses = of_model && !c.is_given("lr");
  if (chooses) {
    const bool adapters = c.train.lora_rank > 0;
    c.train.lr = adapters ? kRateOfAdapters : kRateOfPublished;
    c.found.chosen.push_back(
        fmt::format("--lr {} (usual for {})", c.train.lr, adapters ? "adapters" : "all weights of a published model"));
  }
  if (!c.is_given("min-lr") && (chooses || c.train.min_lr > c.train.lr)) c.train.min_lr = kFallsTo * c.train.lr;
}

void complete_vocabulary(RunConfig& c) {
  if (c.is_given("vocab") || c.data.tokenizer.empty() || c.data.format == DataFormat::bytes) return;
  c.model.vocab = static_cast<std::int64_t>(lm::Tokenizer::read(c.data.tokenizer).ids());
  c.found.chosen.push_back(fmt::format("--vocab {} (the tokenizer's)", c.model.vocab));
}

}  // namespace

void complete(RunConfig& c, bool of_model) {
  c.found.chooses_batch = of_model && !c.is_given("batch-size") && !c.is_given("grad-accumulation");
  complete_adapters(c);
  if (of_model && c.train.lora_rank > 0 && !c.is_given("lora-targets") && c.run.init_adapter.empty()) {
    c.train.lora_targets = "all";
    c.found.chosen.emplace_back("--lora-targets all (usual for a published model)");
  }
  complete_rates(c, of_model);
  complete_vocabulary(c);
}

void set_steps_of_epochs(RunConfig& c, std::uint64_t sequences) {
  if (c.train.epochs == 0) return;
  const auto a_step = static_cast<double>(c.train.batch_size * c.train.grad_accumulation * c.parallel.ep *
                                          std::max<std::int64_t>(1, c.parallel.dp));
  const auto steps = std::ceil(c.train.epochs * static_cast<double>(sequences) / a_step);
  constexpr double kMost = 1e15;  // as for --steps
  if (!(steps <= kMost)) throw base::Refused(fmt::format("--epochs {} are too many steps\n  give fewer", c.train.epochs));
  const auto whole = std::max<std::int64_t>(1, static_cast<std::int64_t>(steps));
  c.train.steps = (whole + c.parallel.sync_interval - 1) / c.parallel.sync_interval *
                  c.parallel.sync_interval;  // local SGD must end with an average
  c.found.chosen.push_back(fmt::format("--steps {} ({} epochs of {} sequences, {} a step)", c.train.steps, c.train.epochs,
                                       sequences, static_cast<std::int64_t>(a_step)));
}

}  // namespace terrace::cli
