#include <terrace/examples/terrace/plan/choose_tiles.h>

#include <optional>

#include <fmt/format.h>

#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/run/run_dir.h>

namespace terrace::cli {
namespace {

void set_tiling(lm::ModelConfig& model, const Tiling& tiling) {
  model.vocab_tiles = tiling.vocab;
  model.mlp_tiles = tiling.mlp;
  model.mlp_row_tiles = tiling.mlp_rows;
  model.attention_tiles = tiling.attention;
  model.head_rows = tiling.head_rows;
}

}  // namespace

Tiling tiling_of(const lm::ModelConfig& model) {
  return {model.vocab_tiles, model.mlp_tiles, model.mlp_row_tiles, model.attention_tiles, model.head_rows};
}

RunConfig with_chosen_tiles(RunConfig c) {
  auto given = tiling_of(c.model);
  bool open = c.plan.tiles == Tiles::automatic && given.is_whole();
  std::optional<Tiling> resumed;
  if (const auto dir = run_resumed(c); !dir.empty()) {
    const auto then = settings_of_resumed(c);
    resumed = then ? tiling_of(then->model) : Tiling();
    if (open) given = {resumed->vocab, resumed->mlp, resumed->mlp_rows, resumed->attention, given.head_rows};
    open = false;
  }
  auto whole = c;
  set_tiling(whole.model, {});
  const auto transformer = lm::transformer_of(model_config(whole));
  const auto request = plan_request(c);
  const auto profile = machine_profile(c);
  const TiledRun run{request, profile, resumed ? &*resumed : nullptr};
  set_tiling(c.model, open ? choose_tiles_if_needed(transformer, given, run) : choose_tiles(transformer, given, run));
  return c;
}

void agree_on_tiles(RunConfig& c, const std::function<std::uint64_t(std::uint64_t)>& largest) {
  auto tiling = tiling_of(c.model);
  terrace::agree_on_tiles(tiling, largest);
  set_tiling(c.model, tiling);
}

std::string tiles_in_words(const RunConfig& c) {
  if (tiling_of(c.model).is_whole()) return "";
  const auto rows = c.model.mlp_row_tiles == 1 ? "" : fmt::format(" × {} of rows", c.model.mlp_row_tiles);
  const auto attention = c.model.attention_tiles == 1 ? "" : fmt::format(", attention {}", c.model.attention_tiles);
  return fmt::format(" in tiles (vocabulary {}, MLP {}{}{})", c.model.vocab_tiles, c.model.mlp_tiles, rows, attention);
}

}  // namespace terrace::cli
