#include <terrace/parallel/plan/choose_tiles.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/parallel/layers/chain.h>
#include <terrace/parallel/map/program_bytes.h>
#include <terrace/parallel/model/freeze.h>
#include <terrace/parallel/plan/plan.h>
#include <terrace/parallel/plan/programs.h>

namespace terrace {
namespace {

enum class Part : std::uint8_t { vocab, mlp, attention };
Part part_of(std::string_view layer) {
  return layer.ends_with(".attention") ? Part::attention : layer.ends_with(".mlp") ? Part::mlp : Part::vocab;
}

// Slices of fewer rows are slower: each reads and writes the gradient of the whole table, and a GPU's products are at full
// speed from a few hundred rows on. With other slices a library may sum in another order, so a budget decides their size only
// where it must.
constexpr std::int64_t kMostHeadRows = 4096, kFastHeadRows = 512, kLeastHeadRows = 64;

constexpr double kMostOfBudget = 0.95;  // a plan needs a little more than its largest phase
// A phase sometimes has much less room, because the phase before it still holds bytes.
constexpr double kOfTightPlan = 0.6;

// The next larger number of tiles; the same if there is none.
std::int64_t more_vocab_tiles(const layers::Transformer& t, std::int64_t) {
  const std::int64_t tiles = t.vocab_tiles;
  return std::min(2 * tiles, std::max(tiles, layers::most_vocab_tiles(t.vocab, t.tensor().ranks)));
}
std::int64_t more_mlp_tiles(const layers::Transformer& t, std::int64_t) {
  constexpr std::int64_t kLeastFeatures = 64;  // of a tile: products with fewer run slowly
  const auto features = t.ffn / t.tensor().ranks;
  for (auto tiles = std::int64_t{t.mlp_tiles} + 1; tiles * kLeastFeatures <= features; ++tiles)
    if (features % tiles == 0) return tiles;
  return t.mlp_tiles;
}
std::int64_t more_mlp_row_tiles(const layers::Transformer& t, std::int64_t rows) {
  constexpr std::int64_t kLeastRows = 64;  // of a tile
  const std::int64_t tiles = t.mlp_row_tiles;
  return 2 * tiles * kLeastRows <= rows ? 2 * tiles : tiles;
}
std::int64_t more_attention_tiles(const layers::Transformer& t, std::int64_t) {
  constexpr std::int64_t kLeastResults = 64;  // of q, in a tile
  const auto q = t.attended() / t.tensor().ranks, kv = q / t.heads * t.kv_heads;
  for (auto tiles = std::int64_t{t.attention_tiles} + 1; tiles * kLeastResults <= q; ++tiles)
    if (q % tiles == 0 && kv % tiles == 0) return tiles;
  return t.attention_tiles;
}

struct TileKind {
  std::uint32_t Tiling::*number;
  Part part;
  std::int64_t (*more)(const layers::Transformer&, std::int64_t rows);
};
constexpr std::array kTileKinds{TileKind{&Tiling::vocab, Part::vocab, more_vocab_tiles},
                                TileKind{&Tiling::mlp, Part::mlp, more_mlp_tiles},
                                TileKind{&Tiling::mlp_rows, Part::mlp, more_mlp_row_tiles},
                                TileKind{&Tiling::attention, Part::attention, more_attention_tiles}};

class Choice {
 public:
  Choice(const layers::Transformer& transformer, const TiledRun& run)
      : transformer_(transformer), request_(run.request), profile_(run.profile), resumed_(run.resumed) {}

  // `share`: the part of the device budget that the largest phase may take.
  [[nodiscard]] Tiling with_fewest(Tiling t, double share) const {
    std::vector<const TileKind*> open;
    for (const auto& kind : kTileKinds)
      if (t.*kind.number == 0) open.push_back(&kind);
    const bool no_rows = t.head_rows == 0 && profile_.separate_device();
    if (open.empty() && !no_rows) return t;
    const auto least = resumed_ ? *resumed_ : Tiling{};
    for (const auto* const kind : open) t.*kind->number = std::max(1U, least.*kind->number);
    const bool chooses_rows = no_rows && !resumed_;
    if (no_rows) t.head_rows = chooses_rows ? most_head_rows() : least.head_rows;
    const auto budget = static_cast<std::uint64_t>(share * static_cast<double>(request_.budget.device));
    while (chooses_rows || !open.empty()) {
      const auto [bytes, part] = largest_phase(t);
      if (bytes <= budget) break;
      const auto halve = [&, most = bytes](std::int64_t rows) { return chooses_rows && halve_head_rows(t, rows, most); };
      if (!halve(kFastHeadRows) && !add_tiles(t, part, open) && !halve(kLeastHeadRows)) break;
    }
    return t;
  }

  [[nodiscard]] bool fits_whole(const Tiling& t) const {
    const auto budget = static_cast<double>(request_.budget.device), bytes = static_cast<double>(largest_phase(t).bytes);
    return bytes <= kMostOfBudget * budget || (bytes <= budget && fits(t));
  }
  // Whether a plan fits. In a pipeline it returns true, because the stages are not known yet.
  [[nodiscard]] bool fits(const Tiling& t) const {
    if (request_.mesh.pp > 1) return true;
    auto request = request_;
    request.advises = false;
    return plan(layers::make_transformer(in_tiles(transformer_, t)), request, profile_).fits;
  }
  // Compares a lower bound of what all ranks hold with their memory. Tiles help only if all of it fits, and only a model that
  // is not too large can be walked.
  [[nodiscard]] bool has_room_for_all() const {
    constexpr double kBytes = 4, kMostElements = 2e11;  // above, plans are refused without a walk
    const auto hidden = static_cast<double>(transformer_.hidden);
    const auto elements =
        static_cast<double>(transformer_.layers) * hidden * (2 * hidden + 2 * static_cast<double>(transformer_.ffn));
    const auto bytes = [](std::uint64_t some) { return some == kUnlimited ? 1e30 : static_cast<double>(some); };
    double room = 0;
    for (const auto tier : kAllTiers) room += bytes(request_.budget.of(tier));
    return elements < kMostElements && kBytes * elements <= room * static_cast<double>(request_.mesh.size());
  }
  [[nodiscard]] bool may_choose_tiles() const {
    return transformer_.experts.count == 0 && !transformer_.tensor().is_grid() && !request_.layer_unit && !resumed_;
  }

 private:
  // The largest phase on the device, with updates on the host, and the part of the model that has it.
  struct Largest {
    std::uint64_t bytes = 0;
    Part part = Part::vocab;
  };
  [[nodiscard]] Largest largest_phase(const Tiling& t) const {
    auto whole = in_tiles(transformer_, t);
    auto request = request_;
    whole.place.mesh.pp = request.mesh.pp = 1;  // so that all layers are looked at, each of which is on some rank
    request.order = Order::horizontal;
    request.recompute = request.recompute.value_or(0);
    request.offload = request.offload.value_or(0);
    const auto model = layers::make_transformer(whole);
    const StepMap map(model, planning::map_options(model, request, profile_, request.update.value_or(Tier::host)));
    const auto programs = planning::write_programs(map, request, 1);
    Largest largest;
    for (const auto* const program : programs.all()) {
      Action action;
      if (const auto bytes = mapping::largest_use(map, *program, Tier::device, &action); bytes > largest.bytes)
        largest = {bytes, part_of(model.layers[action.layer]->name())};
    }
    return largest;
  }

  // Whether the model can have these tiles: not every layer of every transformer has every kind, and a layer in tiles is frozen
  // whole or not at all.
  [[nodiscard]] bool is_model(const Tiling& t) const try {
    static_cast<void>(layers::make_transformer(in_tiles(transformer_, t)));
    if (request_.freeze.empty()) return true;
    const auto untiled = layers::make_transformer(in_tiles(transformer_, {}));
    std::vector<std::vector<ParamSpec>> params;
    for (const auto& layer : untiled.layers) params.push_back(layer->params());
    model::apply_freeze(request_.freeze, untiled, params);
    for (std::size_t l = 0; l < params.size(); ++l) {
      const auto frozen = std::ranges::count_if(params[l], &ParamSpec::frozen);
      if (frozen == 0 || frozen == std::ssize(params[l])) continue;
      for (const auto& kind : kTileKinds)
        if (kind.part == part_of(untiled.layers[l]->name()) && t.*kind.number > 1) return false;
    }
    return true;
  } catch (const Error&) {
    return false;
  }

  [[nodiscard]] std::int64_t rows() const { return request_.shape.batch.tokens(); }

  // Adds tiles to the part that has the largest phase. Returns false if no more tiles help. An MLP is first cut in the larger
  // of its parts: activations, if there are more rows than columns, else matrices.
  bool add_tiles(Tiling& t, Part part, std::vector<const TileKind*> open) const {
    const bool rows_first = rows() / t.mlp_rows > transformer_.hidden;
    std::ranges::stable_sort(open, {}, [&](const TileKind* kind) { return (kind->number == &Tiling::mlp_rows) != rows_first; });
    for (const auto* const kind : open) {
      if (kind->part != part) continue;
      auto more = t;
      more.*kind->number = static_cast<std::uint32_t>(kind->more(in_tiles(transformer_, t), rows()));
      if (more.*kind->number == t.*kind->number || !is_model(more)) continue;
      t = more;
      return true;
    }
    return false;
  }

  // The rows of a micro-batch, within the limits.
  [[nodiscard]] std::int64_t most_head_rows() const {
    const auto up = std::bit_ceil(static_cast<std::uint64_t>(rows()));
    return std::clamp(static_cast<std::int64_t>(up), kFastHeadRows, kMostHeadRows);
  }
  // Halves the head's rows. Returns false if fewer do not help, or would be fewer than `least`.
  bool halve_head_rows(Tiling& t, std::int64_t least, std::uint64_t largest_phase_bytes) const {
    auto fewer = t;
    fewer.head_rows /= 2;
    if (fewer.head_rows < least || largest_phase(fewer).bytes >= largest_phase_bytes) return false;
    t = fewer;
    return true;
  }

  const layers::Transformer& transformer_;
  const PlanRequest& request_;
  const MachineProfile& profile_;
  const Tiling* resumed_;
};

}  // namespace

layers::Transformer in_tiles(layers::Transformer t, const Tiling& tiling) {
  t.vocab_tiles = tiling.vocab;
  t.mlp_tiles = tiling.mlp;
  t.mlp_row_tiles = tiling.mlp_rows;
  t.attention_tiles = tiling.attention;
  t.head_rows = tiling.head_rows;
  return t;
}

Tiling choose_tiles(const layers::Transformer& transformer, Tiling given, const TiledRun& run) {
  return Choice(transformer, run).with_fewest(given, kMostOfBudget);
}

Tiling choose_tiles_if_needed(const layers::Transformer& transformer, Tiling given, const TiledRun& run) {
  const Choice choice(transformer, run);
  const auto whole = choice.with_fewest(given, kMostOfBudget);
  if (!choice.may_choose_tiles() || choice.fits_whole(whole) || !choice.has_room_for_all()) return whole;
  for (const auto& kind : kTileKinds) given.*kind.number = 0;
  const auto few = choice.with_fewest(given, kMostOfBudget);
  return choice.fits(few) ? few : choice.with_fewest(given, kOfTightPlan);
}

void agree_on_tiles(Tiling& tiling, const std::function<std::uint64_t(std::uint64_t)>& largest) {
  for (const auto& kind : kTileKinds) tiling.*kind.number = static_cast<std::uint32_t>(largest(tiling.*kind.number));
  // The smallest number of head rows is found as the largest difference from the limit.
  const auto rest = largest(static_cast<std::uint64_t>(layers::kMostHeadRows - tiling.head_rows));
  tiling.head_rows = layers::kMostHeadRows - static_cast<std::int64_t>(rest);
}

}  // namespace terrace
