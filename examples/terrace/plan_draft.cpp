#include <terrace/examples/terrace/plan_draft.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/examples/terrace/layer_estimates.h>
#include <terrace/examples/terrace/setup.h>

namespace terrace::cli {
namespace {

constexpr std::int64_t kFewBlocks = 4;
constexpr std::int64_t kFewMicroBatches = 4;  // so that they can compute a layer together
constexpr std::uint64_t kSmallerChunks = 5;   // than those of the estimates, which fit short models badly
constexpr std::int64_t kCheaper = 4;          // times: a draft of a step that is hardly longer is no use

// What the model holds whatever its number of blocks: on the device beside the blocks, and in all tiers together.
struct Fixed {
  double device = 0, content = 0;
};

Fixed fixed_of(const LayerEstimates& all) {
  auto ends = all.layers.front();
  ends += all.layers.back();
  return {all.largest_action + ends.weights + ends.gradients, ends.content + ends.gradients};
}

// The room of a budget that is not fixed shrinks with the blocks. `times`: ranks that share what the flag names.
std::string shortened(std::uint64_t budget, double fixed, double share, std::uint64_t times) {
  if (budget == kUnlimited) return "unlimited";
  const auto bytes = static_cast<double>(budget);
  const double kept = std::min(fixed, bytes);
  return fmt::format("{}", static_cast<std::uint64_t>(kept + (bytes - kept) * share) * times);
}

RunConfig shortened(RunConfig c, const Fixed& fixed, std::int64_t blocks, std::int64_t micro_batches) {
  const auto budget = budgets(c);
  const double share = static_cast<double>(blocks) / static_cast<double>(c.layers);
  const auto sharers = ranks_of_machine(c);
  c.device_memory = shortened(budget.device, fixed.device, share, 1);
  c.host_memory = shortened(budget.host, fixed.content, share, sharers);
  if (!c.nvme_path.empty()) c.nvme_limit = shortened(budget.disk, fixed.content, share, sharers);
  c.layers = blocks;
  c.grad_accumulation = micro_batches;
  return c;
}

bool blocks_are_alike(const RunConfig& c) {
  const auto open = [](const std::string& text) { return text.find_first_of("0123456789") == std::string::npos; };
  return c.skips == "none" && open(c.recompute) && open(c.activations);
}

}  // namespace

std::optional<DraftSizes> draft_sizes(const RunConfig& c) {
  const DraftSizes sizes{kFewBlocks, std::min(kFewMicroBatches, c.grad_accumulation / 2)};
  const bool cheaper = kCheaper * 9 * sizes.blocks * sizes.micro_batches <= c.layers * c.grad_accumulation;
  return c.pp == 1 && sizes.micro_batches > 0 && cheaper && blocks_are_alike(c) ? std::optional(sizes) : std::nullopt;
}

double draft_step(const RunConfig& config, DraftSizes sizes, const MachineProfile& profile, const PlansShort& plans) {
  const auto all = estimate_layers(config, profile);
  const auto chunk_elements = all.chunk_elements / kSmallerChunks;
  const auto fixed = fixed_of(all);
  const auto further = [](std::int64_t whole, std::int64_t few) {
    return static_cast<double>(whole - 2 * few) / static_cast<double>(few);
  };
  // Of so many micro-batches and all blocks.
  const auto of_micro_batches = [&](std::int64_t m) {
    const double one = plans(shortened(config, fixed, sizes.blocks, m), chunk_elements);
    const double two = one == 0 ? 0 : plans(shortened(config, fixed, 2 * sizes.blocks, m), chunk_elements);
    return two == 0 ? 0 : two + further(config.layers, sizes.blocks) * std::max(0.0, two - one);
  };
  const double one = of_micro_batches(sizes.micro_batches);
  const double two = one == 0 ? 0 : of_micro_batches(2 * sizes.micro_batches);
  return two == 0 ? 0 : two + further(config.grad_accumulation, sizes.micro_batches) * std::max(0.0, two - one);
}

}  // namespace terrace::cli
