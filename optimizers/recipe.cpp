#include <terrace/optimizers/recipe.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include <terrace/core/base/error.h>
#include <terrace/core/base/refused_setting.h>
#include <terrace/core/base/units.h>

namespace terrace::rules {
namespace {

struct RecipeRow {
  RecipeName name;
  Format master;  // of bf16 weights; fp16 weights have an fp32 master, fp32 and fp64 weights are their own master
  Format moments;
  DType gradient;
  bool any_dtype;  // fp32 models may use it, too
};

constexpr std::array kRecipeTable{
    RecipeRow{{"fp32", "fp32 master weights, moments and gradients"}, Format::fp32, Format::fp32, DType::fp32, true},
    RecipeRow{{"bf16", "bf16 moments"}, Format::fp32, Format::bf16, DType::fp32, true},
    RecipeRow{{"8bit", "moments in 8 bits, block-wise"}, Format::fp32, Format::dynamic8, DType::fp32, true},
    RecipeRow{{"split", "the bf16 weight and its lower 16 bits are the fp32 master"},
              Format::low16,
              Format::fp32,
              DType::fp32,
              false},
    RecipeRow{{"split-8bit", "split, with 8-bit moments"}, Format::low16, Format::dynamic8, DType::fp32, false},
    RecipeRow{{"split24-8bit", "the bf16 weight and 8 bits below it, rounded stochastically; 8-bit moments, bf16 gradients"},
              Format::low8,
              Format::dynamic8,
              DType::bf16,
              false},
    RecipeRow{{"stochastic", "bf16 weights alone, rounded stochastically; bf16 moments"},
              Format::none,
              Format::bf16,
              DType::fp32,
              false},
    RecipeRow{{"all-bf16", "stochastic, with bf16 gradients"}, Format::none, Format::bf16, DType::bf16, false},
};
constexpr auto kRecipeNames = [] {
  std::array<RecipeName, kRecipeTable.size()> names{};
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kRecipeTable[i].name;
  return names;
}();

const RecipeRow& row_of(std::string_view name) {
  const auto at = std::ranges::find(kRecipeTable, name, [](const RecipeRow& row) { return row.name.name; });
  if (at != kRecipeTable.end()) return *at;
  std::vector<std::string_view> known;
  for (const auto& row : kRecipeTable) known.push_back(row.name.name);
  throw Error(fmt::format("unknown recipe \"{}\"\n  known are {}", name, fmt::join(known, ", ")), ErrorKind::refused);
}

}  // namespace

std::span<const RecipeName> recipes() { return kRecipeNames; }

Recipe Recipe::of(DType compute, std::string_view name, std::vector<ChunkKind> states) {
  const auto& row = row_of(name);
  Recipe r{.name = std::string(name),
           .compute = compute,
           .gradient = row.gradient,
           .master = Format::none,
           .first_moment = row.moments,
           .second_moment = row.moments == Format::dynamic8 ? Format::dynamic8_unsigned : row.moments,
           .states = std::move(states)};
  if (compute == DType::bf16) {
    r.master = row.master;
    return r;
  }
  if (!row.any_dtype)
    throw RefusedSetting(
        "dtype", fmt::format("recipe {} is for bf16 weights, but these are {}\n  give `dtype` bf16, or another `recipe`", name,
                             terrace::name_of(compute)));
  if (compute == DType::fp16) r.master = Format::fp32;
  if (compute == DType::fp64) {
    if (name != "fp32")
      throw RefusedSetting(
          "recipe",
          fmt::format("recipe {} does not support fp64 weights\n  give `recipe` fp32, which keeps everything in fp64", name));
    r.gradient = DType::fp64;
    r.first_moment = r.second_moment = Format::fp64;
  }
  return r;
}

Recipe Recipe::weights_alone() const {
  auto alone = *this;
  alone.master = Format::none;
  alone.states = {};
  return alone;
}

DType Recipe::weight_dtype() const { return has_master() ? DType::fp32 : compute; }

Format Recipe::format_of(ChunkKind kind) const {
  switch (kind) {
    case ChunkKind::parameter: return terrace::rules::format_of(compute);
    case ChunkKind::gradient: return terrace::rules::format_of(gradient);
    case ChunkKind::master: return master;
    case ChunkKind::first_moment: return first_moment;
    case ChunkKind::second_moment: return second_moment;
    case ChunkKind::activation: break;
  }
  throw std::logic_error("a recipe says nothing of activations");
}

std::vector<ChunkKind> Recipe::kinds() const {
  std::vector<ChunkKind> all;
  all.reserve(3 + states.size());
  all.push_back(ChunkKind::parameter);
  all.push_back(ChunkKind::gradient);
  if (has_master()) all.push_back(ChunkKind::master);
  all.insert(all.end(), states.begin(), states.end());
  return all;
}

std::uint64_t Recipe::chunk_bytes(ChunkKind kind, std::uint64_t elements) const {
  return round_up(bytes_of(format_of(kind), elements), kPageBytes);
}

}  // namespace terrace::rules
