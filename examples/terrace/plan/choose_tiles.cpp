#include <terrace/examples/terrace/plan/choose_tiles.h>

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <vector>

#include <fmt/format.h>

#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/map/program_bytes.h>
#include <terrace/parallel/plan/programs.h>

namespace terrace::cli {
namespace {

// The largest phase on the device, with updates on the host, and the layer that has it.
struct Largest {
  std::uint64_t bytes = 0;
  enum class Of : std::uint8_t { vocab, mlp, attention } of = Of::vocab;
};

Largest largest_phase(RunConfig c) {
  c.parallel.pp = 1;  // so that all layers are looked at, each of which is on some rank
  c.parallel.schedule = RunConfig().parallel.schedule;
  const auto model = lm::make_model(model_config(c));
  auto request = plan_request(c);
  request.order = Order::horizontal;
  request.recompute = request.recompute.value_or(0);
  request.offload = request.offload.value_or(0);
  const StepMap map(model, map_options(model, request, machine_profile(c), request.update.value_or(Tier::host)));
  const auto programs = write_programs(map, request, 1);
  Largest largest;
  for (const auto* const program : programs.all()) {
    Action action;
    const auto bytes = largest_use(map, *program, Tier::device, &action);
    if (bytes <= largest.bytes) continue;
    const auto name = model.layers[action.layer]->name();
    using Of = Largest::Of;
    largest = {bytes, name.ends_with(".attention") ? Of::attention : name.ends_with(".mlp") ? Of::mlp : Of::vocab};
  }
  return largest;
}

// Whether the model can have these tiles: not every layer of every family has every kind, and a partly frozen layer has none.
bool is_model(const RunConfig& c) try {
  static_cast<void>(lm::make_model(model_config(c)));
  demand_freeze(c);
  return true;
} catch (const Error&) {
  return false;
}

// The next larger number of tiles; the same if there is none.
std::int64_t more_vocab_tiles(const RunConfig& c) {
  const std::int64_t tiles = c.model.vocab_tiles;
  return std::min(2 * tiles, std::max(tiles, layers::most_vocab_tiles(c.model.vocab, c.parallel.tp)));
}
std::int64_t more_mlp_tiles(const RunConfig& c) {
  constexpr std::int64_t kLeastFeatures = 64;  // of a tile: products with fewer run slowly
  const auto features = model_config(c).ffn / c.parallel.tp;
  for (auto tiles = std::int64_t{c.model.mlp_tiles} + 1; tiles * kLeastFeatures <= features; ++tiles)
    if (features % tiles == 0) return tiles;
  return c.model.mlp_tiles;
}
std::int64_t rows_of(const RunConfig& c) { return c.train.batch_size * c.model.seq_len / c.parallel.cp; }
std::int64_t more_mlp_row_tiles(const RunConfig& c) {
  constexpr std::int64_t kLeastRows = 64;  // of a tile
  const std::int64_t tiles = c.model.mlp_row_tiles;
  return 2 * tiles * kLeastRows <= rows_of(c) ? 2 * tiles : tiles;
}
std::int64_t more_attention_tiles(const RunConfig& c) {
  constexpr std::int64_t kLeastResults = 64;  // of q, in a tile
  const auto model = model_config(c);
  const auto q = model.heads * model.head_dim() / c.parallel.tp, kv = q / model.heads * model.kv_heads;
  for (auto tiles = std::int64_t{c.model.attention_tiles} + 1; tiles * kLeastResults <= q; ++tiles)
    if (q % tiles == 0 && kv % tiles == 0) return tiles;
  return c.model.attention_tiles;
}

struct TileKind {
  std::uint32_t lm::ModelConfig::*number;
  Largest::Of of;
  std::int64_t (*more)(const RunConfig&);
};
constexpr std::array kTiles{TileKind{&lm::ModelConfig::vocab_tiles, Largest::Of::vocab, more_vocab_tiles},
                            TileKind{&lm::ModelConfig::mlp_tiles, Largest::Of::mlp, more_mlp_tiles},
                            TileKind{&lm::ModelConfig::mlp_row_tiles, Largest::Of::mlp, more_mlp_row_tiles},
                            TileKind{&lm::ModelConfig::attention_tiles, Largest::Of::attention, more_attention_tiles}};

// Orders the tiles so that an MLP is first cut in the larger of its parts: activations, if there are more rows than columns,
// else matrices.
std::vector<const TileKind*> in_order(const RunConfig& c, std::span<const TileKind* const> open) {
  std::vector<const TileKind*> all(open.begin(), open.end());
  const bool rows_first = rows_of(c) / c.model.mlp_row_tiles > c.model.hidden;
  std::ranges::stable_sort(all, {},
                           [&](const TileKind* t) { return (t->number == &lm::ModelConfig::mlp_row_tiles) != rows_first; });
  return all;
}

// Adds tiles to the layer that has the largest phase. Returns false if no more tiles help.
bool add_tiles(RunConfig& c, Largest::Of of, std::span<const TileKind* const> open) {
  for (const auto* const tiles : in_order(c, open)) {
    if (tiles->of != of) continue;
    auto more = c;
    more.model.*tiles->number = static_cast<std::uint32_t>(tiles->more(c));
    if (more.model.*tiles->number == c.model.*tiles->number || !is_model(more)) continue;
    c = more;
    return true;
  }
  return false;
}

// Each slice of rows reads and writes the gradient of the whole table, and a GPU's products are at full speed from a few
// hundred rows on. With other slices a library may sum in another order, so a budget decides their size only where it must.
constexpr std::int64_t kMostHeadRows = 4096, kFastHeadRows = 512, kLeastHeadRows = 64;

// The rows of a micro-batch, within the limits.
std::int64_t most_head_rows(const RunConfig& c) {
  const auto rows = std::bit_ceil(static_cast<std::uint64_t>(rows_of(c)));
  return std::clamp(static_cast<std::int64_t>(rows), kFastHeadRows, kMostHeadRows);
}
// Halves the head's rows. Returns false if fewer do not help, or would be fewer than `least`.
bool halve_head_rows(RunConfig& c, std::int64_t least, std::uint64_t largest_phase_bytes) {
  auto fewer = c;
  fewer.model.head_rows /= 2;
  if (fewer.model.head_rows < least || largest_phase(fewer).bytes >= largest_phase_bytes) return false;
  c = fewer;
  return true;
}

// Whether a plan fits. In a pipeline it returns true, because the stages are not known yet.
bool fits(const RunConfig& c) {
  if (c.parallel.pp > 1) return true;
  auto request = plan_request(c);
  request.advises = false;
  return plan(lm::make_model(model_config(c)), request, machine_profile(c)).fits;
}

// Whether --tiles auto may choose the tiles, because none is given. A resumed run keeps its tiles.
bool leaves_tiles_open(RunConfig& c) {
  const bool given = std::ranges::any_of(kTiles, [&](const TileKind& tiles) { return c.model.*tiles.number != 1; });
  if (c.plan.tiles != Tiles::automatic || given || c.model.experts.count > 0 || c.parallel.tp_mode != TensorMode::line ||
      optimizer_of(c)->layer_unit())
    return false;
  if (run_resumed(c).empty()) return true;
  if (const auto then = settings_of_resumed(c))
    for (const auto& tiles : kTiles) c.model.*tiles.number = then->model.*tiles.number;
  return false;
}

constexpr double kMostOfBudget = 0.95;  // a plan needs a little more than its largest phase

// Compares a lower bound of what all ranks hold with their memory. Tiles help only if all of it fits, and only a model that is
// not too large can be walked.
bool has_room_for_all(const RunConfig& c) {
  constexpr double kBytes = 4, kMostElements = 2e11;  // above, plans are refused without a walk
  const auto model = model_config(c);
  const auto elements = static_cast<double>(model.layers) * static_cast<double>(model.hidden) *
                        (2.0 * static_cast<double>(model.hidden) + 2.0 * static_cast<double>(model.ffn));
  const auto b = budgets(c);
  const auto bytes = [](std::uint64_t some) { return some == kUnlimited ? 1e30 : static_cast<double>(some); };
  const auto room = bytes(b.device) + bytes(b.host) + bytes(b.disk);
  const auto all_ranks = room * static_cast<double>(std::max<std::int64_t>(1, c.parallel.ranks()));
  return elements < kMostElements && kBytes * elements <= all_ranks;
}

bool fits_whole(const RunConfig& c) {
  const auto budget = static_cast<double>(budgets(c).device), bytes = static_cast<double>(largest_phase(c).bytes);
  return bytes <= kMostOfBudget * budget || (bytes <= budget && fits(c));
}

// `share`: the part of the device budget that the largest phase may take.
RunConfig with_tiles_for(RunConfig c, double share) {
  std::vector<const TileKind*> open;
  for (const auto& tiles : kTiles)
    if (c.model.*tiles.number == 0) open.push_back(&tiles);
  const auto resumed = run_resumed(c);
  const bool no_rows = c.model.head_rows == 0 && c.on_gpu();
  if (open.empty() && !no_rows) return c;
  RunConfig then;
  if (!resumed.empty()) apply_file(then, resumed / kConfigFile);
  for (const auto* const tiles : open) c.model.*tiles->number = std::max(1U, then.model.*tiles->number);
  // A resumed run keeps its rows.
  const bool chooses_rows = no_rows && resumed.empty();
  if (no_rows) c.model.head_rows = chooses_rows ? most_head_rows(c) : then.model.head_rows;
  const auto budget = static_cast<std::uint64_t>(share * static_cast<double>(budgets(c).device));
  while (chooses_rows || !open.empty()) {
    const auto [bytes, of] = largest_phase(c);
    if (bytes <= budget) break;
    const auto halve = [&, most = bytes](std::int64_t least) { return chooses_rows && halve_head_rows(c, least, most); };
    if (!halve(kFastHeadRows) && !add_tiles(c, of, open) && !halve(kLeastHeadRows)) break;
  }
  return c;
}

}  // namespace

RunConfig with_chosen_tiles(RunConfig c) {
  const bool open = leaves_tiles_open(c);
  auto whole = with_tiles_for(c, kMostOfBudget);
  if (!open || fits_whole(whole) || !has_room_for_all(whole)) return whole;
  for (const auto& tiles : kTiles) c.model.*tiles.number = 0;
  auto few = with_tiles_for(c, kMostOfBudget);
  // A phase sometimes has much less room, because the phase before it still holds bytes.
  constexpr double kOfTightPlan = 0.6;
  return fits(few) ? few : with_tiles_for(c, kOfTightPlan);
}

void agree_on_tiles(RunConfig& c, const std::function<std::uint64_t(std::uint64_t)>& largest) {
  for (const auto& tiles : kTiles) c.model.*tiles.number = static_cast<std::uint32_t>(largest(c.model.*tiles.number));
  // The smallest number of head rows is found as the largest difference from the limit.
  const auto rest = largest(static_cast<std::uint64_t>(layers::kMostHeadRows - c.model.head_rows));
  c.model.head_rows = layers::kMostHeadRows - static_cast<std::int64_t>(rest);
}

std::string tiles_in_words(const RunConfig& c) {
  if (std::ranges::all_of(kTiles, [&](const TileKind& tiles) { return c.model.*tiles.number == 1; })) return "";
  const auto rows = c.model.mlp_row_tiles == 1 ? "" : fmt::format(" × {} of rows", c.model.mlp_row_tiles);
  const auto attention = c.model.attention_tiles == 1 ? "" : fmt::format(", attention {}", c.model.attention_tiles);
  return fmt::format(" in tiles (vocabulary {}, MLP {}{}{})", c.model.vocab_tiles, c.model.mlp_tiles, rows, attention);
}

}  // namespace terrace::cli
