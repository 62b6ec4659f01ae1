#include <terrace/parallel/mesh/features.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/core/base/usage_errors.h>

namespace terrace {
namespace {

using enum Feature;

constexpr bool kMany = true, kOne = false;

// In the order of Feature.
constexpr FeatureWords kWords[] = {
    {tensor_ranks, "tp", "`tp` {}", kOne, "leave out `tp`"},
    {tensor_grid, "tp-mode", "tensor ranks in a grid (`tp-mode` 2d, 2.5d or 3d)", kMany, "give `tp-mode` 1d"},
    {row_pieces, "tp-overlap", "`tp-overlap` {}", kOne, "leave out `tp-overlap`"},
    {context_ranks, "cp", "`cp` {}", kOne, "leave out `cp`"},
    {expert_ranks, "ep", "`ep` {}", kOne, "leave out `ep`"},
    {pipeline, "pp", "`pp` {}", kOne, "leave out `pp`"},
    {two_directions, "schedule", "a schedule with two directions", kOne, "give another schedule, such as `schedule` 1f1b"},
    {asynchronous, "schedule", "an asynchronous schedule", kOne, "give a synchronous one, such as `schedule` 1f1b"},
    {sharded_state, "zero", "`zero` {}", kOne, "leave out `zero`"},
    {sharded_gradients, "zero", "`zero` 2", kOne, "give `zero` 1 or 3"},
    {canonical, "canonical-reduction", "`canonical-reduction`", kOne, "leave out `canonical-reduction`"},
    {narrow_gradients, "compress-gradients", "`compress-gradients`", kOne, "leave out `compress-gradients`"},
    {narrow_weights, "compress-weights", "`compress-weights`", kOne, "leave out `compress-weights`"},
    {local_sgd, "sync-interval", "local SGD (`sync-interval` {})", kOne, "leave out `sync-interval`"},
    {fp16, "dtype", "fp16 activations", kMany, "give `dtype` bf16 or fp32"},
    {float8_products, "products", "`products` fp8", kOne, "leave out `products`"},
    {tied, "untied", "a head that reads the embedding's table", kOne, "give `untied`"},
    {skips, "skips", "skip connections", kMany, "leave out `skips`"},
    {experts, "experts", "a mixture of experts", kOne, "leave out `experts`"},
    {expert_capacity, "expert-capacity", "`expert-capacity`", kOne, "leave out `expert-capacity`"},
    {frozen, "freeze", "frozen parameters (`freeze`, `lora-rank`)", kMany, "train all parameters"},
    {vocab_tiles, "vocab-tiles", "`vocab-tiles` {}", kOne, "leave out `vocab-tiles`"},
    {mlp_tiles, "mlp-tiles", "`mlp-tiles` {}", kOne, "leave out `mlp-tiles`"},
    {mlp_row_tiles, "mlp-row-tiles", "`mlp-row-tiles` {}", kOne, "leave out `mlp-row-tiles`"},
    {attention_tiles, "attention-tiles", "`attention-tiles` {}", kOne, "leave out `attention-tiles`"},
    {whole_matrices, "optimizer", "an optimizer that needs whole matrices", kOne, "give `optimizer` adamw"},
    {clipped_groups, "param-groups", "groups of parameters that are clipped separately", kMany,
     "leave clip out of `param-groups`"},
};
static_assert(std::size(kWords) == static_cast<std::size_t>(last));
static_assert(std::ranges::is_sorted(kWords, {}, &FeatureWords::feature));

constexpr std::string_view kNotBuilt = "which is not built yet", kNoSums = "which sums no gradients within a step",
                           kDataRanksOnly = "which sums gradients over data ranks only";

constexpr Exclusion kExclusions[] = {
    {tensor_ranks, fp16, "because ranks do not add numbers of that dtype"},
    {tensor_ranks, skips, "because the gradient of a skip would be a sum over ranks"},
    {tensor_ranks, whole_matrices, "because each rank has blocks of the matrices"},
    {tensor_ranks, local_sgd, kNoSums},
    {tensor_ranks, two_directions, kDataRanksOnly},
    {tensor_grid, experts, "because the ranks of a grid have blocks of one MLP"},
    {tensor_grid, mlp_tiles, "because the ranks of a grid cut the features of an MLP in their own way"},
    {tensor_grid, attention_tiles, "because the ranks of a grid have blocks of the matrices"},
    {tensor_grid, float8_products, "because the ranks of a grid multiply blocks, each of which would have its own scale"},
    {tensor_grid, row_pieces, "because only ranks in a line exchange rows in pieces"},
    {context_ranks, canonical, "which adds the gradients of whole micro-batches in their order"},
    {context_ranks, expert_capacity, "because a rank's slice does not tell which tokens of a micro-batch come first"},
    {context_ranks, local_sgd, kNoSums},
    {context_ranks, two_directions, kDataRanksOnly},
    {expert_ranks, canonical, "because what expert ranks have in common is added once a step"},
    {expert_ranks, local_sgd, kNoSums},
    {expert_ranks, two_directions, kDataRanksOnly},
    {local_sgd, sharded_state, "because each rank updates its own copy of the weights, so nothing is sharded"},
    {local_sgd, canonical, "because gradients are not exchanged"},
    {local_sgd, narrow_gradients, "because gradients are not exchanged"},
    {local_sgd, narrow_weights, "because weights are averaged uncompressed"},
    {local_sgd, pipeline, "because the stages of a pipeline have no copies to average"},
    {two_directions, sharded_gradients, "because both ranks of a stage keep all of its gradient"},
    {two_directions, narrow_gradients, "because its two ranks add their gradients unrounded"},
    {asynchronous, clipped_groups, "because all its stages are clipped by one norm"},
    {asynchronous, tied, "because its stages read different versions of their weights"},
    {frozen, asynchronous, kNotBuilt},
    {experts, mlp_tiles, "because experts are used one at a time already"},
    {experts, mlp_row_tiles, "because experts have the rows that their router gives them"},
};

std::string named(Feature feature, std::int64_t value) { return fmt::format(fmt::runtime(words_of(feature).words), value); }

}  // namespace

const FeatureWords& words_of(Feature feature) { return kWords[static_cast<std::size_t>(feature)]; }

std::span<const Exclusion> exclusions() { return kExclusions; }

Features features_of(const ModelRank& place) {
  Features all;
  const auto tensor = place.tensor();
  all.add_several(tensor_ranks, tensor.ranks);
  all.add_if(tensor.is_grid(), tensor_grid);
  all.add_several(row_pieces, tensor.pieces);
  all.add_several(context_ranks, place.mesh.context);
  all.add_several(expert_ranks, place.mesh.expert);
  return all;
}

std::vector<SettingRefusal> refusals(const Features& features) {
  std::vector<SettingRefusal> all;
  for (const auto& [one, other, because] : kExclusions) {
    const auto first = features.value(one), second = features.value(other);
    if (!first || !second) continue;
    all.push_back({std::string(words_of(other).setting),
                   fmt::format("{} {} not work with {}, {}", named(one, *first), words_of(one).many ? "do" : "does",
                               named(other, *second), because),
                   fmt::format("{}, or {}", words_of(other).without, words_of(one).without)});
  }
  return all;
}

bool is_excluded(Feature feature, const Features& others) {
  return std::ranges::any_of(kExclusions, [&](const Exclusion& e) {
    return (e.one == feature && others.has(e.other)) || (e.other == feature && others.has(e.one));
  });
}

void demand_none(const std::vector<SettingRefusal>& refusals) {
  base::UsageErrors errors;
  for (const auto& refusal : refusals) errors.gather([&] { throw RefusedSetting(refusal); });
  errors.throw_if_any();
}

}  // namespace terrace
