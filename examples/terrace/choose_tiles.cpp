#include <terrace/examples/terrace/choose_tiles.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/examples/lm/model.h>
#include <terrace/examples/terrace/device.h>
#include <terrace/examples/terrace/options.h>
#include <terrace/examples/terrace/run_dir.h>
#include <terrace/examples/terrace/setup.h>
#include <terrace/parallel/layers/transformer.h>
#include <terrace/parallel/program_bytes.h>
#include <terrace/parallel/programs.h>

namespace terrace::cli {
namespace {

// The largest phase on the device, with updates on the host, and the layer that has it.
struct Largest {
  std::uint64_t bytes = 0;
  enum class Of : std::uint8_t { vocab, mlp, attention } of = Of::vocab;
};

Largest largest_phase(RunConfig c) {
  c.pp = 1;  // each layer is on some rank
  c.schedule = RunConfig().schedule;
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

// Norms of the blocks' results have no tiles yet.
bool has_tiles(const RunConfig& c) { return (*lm::family_named(c.model).tensors.attention_result_norm).empty(); }

// The next larger number of tiles; the same if there is none.
std::int64_t more_vocab_tiles(const RunConfig& c) {
  return std::min(2 * c.vocab_tiles, std::max(c.vocab_tiles, layers::most_vocab_tiles(c.vocab, c.tp)));
}
std::int64_t more_mlp_tiles(const RunConfig& c) {
  constexpr std::int64_t kLeastFeatures = 64;  // of a tile: products with fewer run slowly
  const auto features = has_tiles(c) ? model_config(c).ffn / c.tp : 0;
  for (auto tiles = c.mlp_tiles + 1; tiles * kLeastFeatures <= features; ++tiles)
    if (features % tiles == 0) return tiles;
  return c.mlp_tiles;
}
std::int64_t more_attention_tiles(const RunConfig& c) {
  constexpr std::int64_t kLeastResults = 64;  // of a tile, of q
  if (!has_tiles(c)) return c.attention_tiles;
  const auto model = model_config(c);
  const auto q = model.heads * model.head_dim() / c.tp, kv = q / model.heads * model.kv_heads;
  for (auto tiles = c.attention_tiles + 1; tiles * kLeastResults <= q; ++tiles)
    if (q % tiles == 0 && kv % tiles == 0) return tiles;
  return c.attention_tiles;
}

}  // namespace

RunConfig with_chosen_tiles(RunConfig c) {
  const bool of_vocab = c.vocab_tiles == 0, of_mlp = c.mlp_tiles == 0, of_attention = c.attention_tiles == 0;
  if (!of_vocab && !of_mlp && !of_attention) return c;
  if (of_vocab) c.vocab_tiles = 1;
  if (of_mlp) c.mlp_tiles = 1;
  if (of_attention) c.attention_tiles = 1;
  if (const auto dir = run_resumed(c); !dir.empty()) {
    RunConfig then;
    apply_file(then, dir / kConfigFile);
    if (of_vocab) c.vocab_tiles = std::max<std::int64_t>(1, then.vocab_tiles);
    if (of_mlp) c.mlp_tiles = std::max<std::int64_t>(1, then.mlp_tiles);
    if (of_attention) c.attention_tiles = std::max<std::int64_t>(1, then.attention_tiles);
  }
  // A plan needs a little more than its largest phase.
  const auto budget = budgets(c).device / 20 * 19;
  for (;;) {
    const auto [bytes, of] = largest_phase(c);
    if (bytes <= budget) return c;
    using Of = Largest::Of;
    const bool may = of == Of::vocab ? of_vocab : of == Of::mlp ? of_mlp : of_attention;
    auto& tiles = of == Of::vocab ? c.vocab_tiles : of == Of::mlp ? c.mlp_tiles : c.attention_tiles;
    const auto more = of == Of::vocab ? more_vocab_tiles(c) : of == Of::mlp ? more_mlp_tiles(c) : more_attention_tiles(c);
    if (!may || more == tiles) return c;
    tiles = more;
  }
}

std::string tiles_in_words(const RunConfig& c) {
  if (c.vocab_tiles == 1 && c.mlp_tiles == 1 && c.attention_tiles == 1) return "";
  const auto attention = c.attention_tiles == 1 ? "" : fmt::format(", attention {}", c.attention_tiles);
  return fmt::format(" in tiles (vocabulary {}, MLP {}{})", c.vocab_tiles, c.mlp_tiles, attention);
}

}  // namespace terrace::cli
