// What a run has beside plain training on one rank, and the one table of the features that exclude each other. The layers, the
// plan, the search and the command line all read it, so a pair becomes legal by removing its row.
//
// Owner:   values. Threads: any; pure.
// Errors:  refusals() returns them; demand_none() throws them as UsageErrors does.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/core/base/refused_setting.h>
#include <terrace/parallel/mesh/model_rank.h>

namespace terrace {

enum class Feature : std::uint8_t {
  // Ranks.
  tensor_ranks,
  tensor_grid,
  row_pieces,  // rows are exchanged in pieces
  context_ranks,
  expert_ranks,
  pipeline,
  two_directions,
  asynchronous,
  // How ranks share and exchange state.
  sharded_state,
  sharded_gradients,
  canonical,
  narrow_gradients,
  narrow_weights,
  local_sgd,
  // The model.
  fp16,
  float8_products,
  tied,
  skips,
  experts,
  expert_capacity,
  frozen,
  vocab_tiles,
  mlp_tiles,
  mlp_row_tiles,
  attention_tiles,
  // The optimizer.
  whole_matrices,
  clipped_groups,
  last,  // counts them
};

class Features {
 public:
  Features() = default;
  Features(std::initializer_list<Feature> all) {
    for (const auto feature : all) add(feature);
  }
  // `value`: the setting's, for messages.
  void add(Feature feature, std::int64_t value = 1) { values_[static_cast<std::size_t>(feature)] = value; }
  void add_if(bool is, Feature feature, std::int64_t value = 1) {
    if (is) add(feature, value);
  }
  // Adds a feature that a value above 1 means.
  void add_several(Feature feature, std::int64_t value) { add_if(value > 1, feature, value); }
  void add(const Features& others) {
    for (std::size_t i = 0; i < values_.size(); ++i)
      if (others.values_[i]) values_[i] = others.values_[i];
  }
  [[nodiscard]] bool has(Feature feature) const { return value(feature).has_value(); }
  [[nodiscard]] std::optional<std::int64_t> value(Feature feature) const { return values_[static_cast<std::size_t>(feature)]; }

 private:
  std::array<std::optional<std::int64_t>, static_cast<std::size_t>(Feature::last)> values_ = {};
};

// How a feature is named to users. Names of settings stand in backquotes (refused_setting.h).
struct FeatureWords {
  Feature feature;
  std::string_view setting;  // the one that gives it
  std::string_view words;    // "`tp` {}", with the setting's value
  bool many = false;         // the words are a plural
  std::string_view without;  // what to do to be without it: "leave out `tp`"
};
const FeatureWords& words_of(Feature feature);

struct Exclusion {
  Feature one, other;  // `other` is the one to change first
  std::string_view because;
};
std::span<const Exclusion> exclusions();

// The features of the ranks that a model is split over.
Features features_of(const ModelRank& place);
// A refusal for each two features that exclude each other.
std::vector<SettingRefusal> refusals(const Features& features);
// Whether a run with the other features cannot have this one.
bool is_excluded(Feature feature, const Features& others);
void demand_none(const std::vector<SettingRefusal>& refusals);

}  // namespace terrace
