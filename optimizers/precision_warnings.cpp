#include <terrace/optimizers/precision_warnings.h>

#include <fmt/format.h>

namespace terrace::rules {
namespace {

// Half a unit in the last place of a bf16 number is 1/512 to 1/256 of the number: a smaller change is rounded away.
constexpr double kLeastBf16Change = 1.0 / 256;
constexpr std::uint64_t kMostBf16Sums = 64;  // of similar gradients, the 64th is only 2 to 4 units of the sum

bool decays_by_beta2(std::string_view optimizer) {
  return optimizer == "adam" || optimizer == "adamw" || optimizer == "lamb" || optimizer == "lion";
}

}  // namespace

std::vector<std::string> precision_warnings(const Recipe& recipe, std::string_view optimizer, const OptimizerSettings& settings,
                                            std::uint64_t micro_batches) {
  std::vector<std::string> warnings;
  const auto moments = recipe.second_moment;
  if (decays_by_beta2(optimizer) && moments == Format::bf16 && 1 - settings.beta2 < kLeastBf16Change)
    warnings.push_back(fmt::format(
        "`beta2` {} changes a moment by a fraction of {:.2g} per step, which the bf16 moments of recipe {} round away, so they "
        "hardly decrease; give `beta2` 0.996 or less, or a `recipe` with fp32 moments",
        settings.beta2, 1 - settings.beta2, recipe.name));
  if (optimizer == "adagrad" && moments == Format::bf16)
    warnings.push_back(fmt::format(
        "adagrad's sum of squares in bf16 (recipe {}) stops growing after about 256 steps of similar gradients, so its "
        "steps stop shrinking; give a `recipe` with fp32 or 8-bit moments",
        recipe.name));
  if (recipe.gradient == DType::bf16 && micro_batches > kMostBf16Sums)
    warnings.push_back(fmt::format(
        "gradients of {} micro-batches are summed in bf16 (recipe {}), rounded after each: beyond about 256, further "
        "ones change nothing; give fewer and larger micro-batches, or `recipe` stochastic or split-8bit",
        micro_batches, recipe.name));
  return warnings;
}

}  // namespace terrace::rules
