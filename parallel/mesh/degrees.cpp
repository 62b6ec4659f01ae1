#include <terrace/parallel/mesh/degrees.h>

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace terrace {
namespace {

using Legal = std::function<bool(std::int64_t)>;

bool divides(std::int64_t d, std::int64_t n) { return n % d == 0; }
std::int64_t key_value_heads(const ModelShape& model) { return model.kv_heads == 0 ? model.heads : model.kv_heads; }

// "2 and 4": the nearest legal degree on each side of `degree`, up to `largest`.
std::string nearest(std::int64_t degree, std::int64_t largest, const Legal& legal) {
  std::vector<std::int64_t> found;
  for (auto d = std::min(degree - 1, largest); d >= 1; --d) {
    if (!legal(d)) continue;
    found.push_back(d);
    break;
  }
  for (auto d = std::max<std::int64_t>(degree + 1, 1); d <= largest; ++d) {
    if (!legal(d)) continue;
    found.push_back(d);
    break;
  }
  return found.empty() ? "no other degree is legal" : fmt::format("nearest legal: {}", fmt::join(found, " and "));
}

class Problems {
 public:
  // `several`: whether the run's other settings allow a degree above 1.
  void check(const std::string& setting, std::int64_t degree, std::int64_t largest, const std::string& rule, const Legal& legal,
             bool several = true) {
    if (degree >= 1 && legal(degree)) return;
    found.push_back(
        {setting, fmt::format("`{}` {}: {}", setting, degree, rule), nearest(degree, several ? largest : 1, legal)});
  }
  std::vector<SettingRefusal> found;
};

SettingRefusal depth_without_grids(int depth) {
  return {"tp-depth", fmt::format("`tp-depth` {}: only `tp-mode` 2.5d has a depth", depth),
          "give `tp-mode` 2.5d, or `tp-depth` 1"};
}

// Each rank of a grid has whole heads and key-value heads, and a block of every matrix.
void check_grid(Problems& problems, const Degrees& g, const ModelShape& model, bool several) {
  const auto kv = key_value_heads(model), attended = model.attended == 0 ? model.hidden : model.attended;
  const auto has_blocks = [&](std::int64_t t) {
    const auto grid = grid_of(g.tensor_mode, static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(g.tensor_depth));
    if (!grid) return false;
    const std::int64_t side = grid->side, inputs = grid->cube ? side * side : side;
    return divides(side, model.heads) && divides(side, kv) && divides(inputs, model.ffn) && divides(inputs, model.hidden) &&
           divides(inputs, attended);
  };
  const auto most = std::max(model.heads * model.heads * std::max(model.heads, std::int64_t{g.tensor_depth}), std::int64_t{1});
  const auto columns = attended == model.hidden ? fmt::format("{} columns", model.hidden)
                                                : fmt::format("{} columns, {} of attention", model.hidden, attended);
  const auto rest = fmt::format("whose side divides {} heads, {} key-value heads, {} and {} ffn columns", model.heads, kv,
                                columns, model.ffn);
  const auto rule = g.tensor_mode == TensorMode::square ? fmt::format("in 2D it must be a square {}", rest)
                    : g.tensor_mode == TensorMode::squares
                        ? fmt::format("in 2.5D it must be `tp-depth` {} × a square {}", g.tensor_depth, rest)
                        : fmt::format(
                              "in 3D it must be a cube whose side divides {} heads and {} "
                              "key-value heads, and its square {} and {} ffn columns",
                              model.heads, kv, columns, model.ffn);
  problems.check("tp", g.tp, most, rule, has_blocks, several);
}

// Each rank of a line has whole heads and, alone or together with its twins, whole key-value heads.
void check_line(Problems& problems, const Degrees& g, const ModelShape& model, bool several) {
  const auto kv = key_value_heads(model);
  const auto splits = [&](std::int64_t t) {
    return divides(t, model.heads) && divides(t, model.ffn) && (divides(t, kv) || divides(kv, t)) &&
           (!g.sequence_parallel || divides(t, model.seq_len));
  };
  problems.check(
      "tp", g.tp, model.heads,
      fmt::format("it must divide {} heads and {} ffn columns{}{}", model.heads, model.ffn,
                  kv == model.heads ? "" : fmt::format(", and divide {} key-value heads or be a multiple of them", kv),
                  g.sequence_parallel ? fmt::format(", and divide {} positions", model.seq_len) : ""),
      splits, several);
}

void check_context(Problems& problems, const Degrees& g, const ModelShape& model, bool several) {
  const std::int64_t s = model.seq_len;
  const bool rings = g.ring != 0;
  const auto grid = grid_of(g.tensor_mode, static_cast<std::uint32_t>(g.tp), static_cast<std::uint32_t>(g.tensor_depth));
  const std::int64_t ways = grid && grid->side > 1 ? grid->side : std::max(g.tp, 1);  // of the heads
  const auto in_rings = [&](auto c) {
    return !rings || (divides(g.ring, c) && c / g.ring <= std::max<std::int64_t>(model.heads / ways, 1));
  };
  const auto ring_of = [&](auto c) { return rings ? g.ring : c; };
  problems.check(
      "cp", g.cp, s,
      fmt::format(
          "it must divide {} positions{}{}", s,
          g.zigzag ? fmt::format(", and the {} twice, because each place in a ring has two parts of a sequence",
                                 rings ? "ranks of a ring" : "ranks")
                   : "",
          rings ? fmt::format(", and be a multiple of the {} ranks of a ring with at most a rank for a head", g.ring) : ""),
      [&](auto c) { return divides(c, s) && in_rings(c) && (!g.zigzag || c == 1 || divides(2 * ring_of(c), s)); }, several);
}

// The degrees of a place, whose rings demand_place() checks.
Degrees degrees_of(const ModelRank& place) {
  const auto tensor = place.tensor();
  const auto grids = tensor.grid.depth > 1 ? TensorMode::squares : TensorMode::square;
  return {.tp = static_cast<int>(tensor.ranks),
          .cp = static_cast<int>(place.mesh.context),
          .ep = static_cast<int>(place.mesh.expert),
          .tensor_mode = !tensor.is_grid()  ? TensorMode::line
                         : tensor.grid.cube ? TensorMode::cube
                                            : grids,
          .tensor_depth = tensor.is_grid() && !tensor.grid.cube ? static_cast<int>(tensor.grid.depth) : 1};
}

}  // namespace

Features features_of(const Degrees& g) {
  auto all = g.with;
  all.add_several(Feature::tensor_ranks, g.tp);
  all.add_if(g.tensor_mode != TensorMode::line && g.tp > 1, Feature::tensor_grid);
  all.add_several(Feature::context_ranks, g.cp);
  all.add_several(Feature::expert_ranks, g.ep);
  all.add_several(Feature::pipeline, g.pp);
  all.add_if(g.canonical_reduction, Feature::canonical);
  return all;
}

std::optional<TensorGrid> grid_of(TensorMode mode, std::uint32_t ranks, std::uint32_t depth) {
  const auto square = [](std::uint32_t ranks_of_it) -> std::optional<std::uint32_t> {
    for (std::uint32_t side = 1; side * side <= ranks_of_it; ++side)
      if (side * side == ranks_of_it) return side;
    return std::nullopt;
  };
  if (mode == TensorMode::line || ranks == 1) return TensorGrid{};
  if (mode == TensorMode::cube) {
    for (std::uint32_t side = 2; side * side * side <= ranks; ++side)
      if (side * side * side == ranks) return TensorGrid{.depth = side, .side = side, .cube = true};
    return std::nullopt;
  }
  const auto grids = mode == TensorMode::squares ? depth : 1;
  if (grids == 0 || ranks % grids != 0) return std::nullopt;
  const auto side = square(ranks / grids);
  if (!side || *side == 1) return std::nullopt;
  return TensorGrid{.depth = grids, .side = *side};
}

TensorGrid demand_grid(TensorMode mode, int ranks, int depth) {
  const auto has_grid = [&](std::int64_t t) {
    return grid_of(mode, static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(depth)).has_value();
  };
  Problems problems;
  problems.check("tp", ranks, std::max(4 * ranks, 4 * depth),
                 mode == TensorMode::square    ? "in 2D it must be a square"
                 : mode == TensorMode::squares ? fmt::format("in 2.5D it must be `tp-depth` {} × a square", depth)
                                               : "in 3D it must be a cube",
                 has_grid);
  if (mode != TensorMode::squares && depth != 1) problems.found.push_back(depth_without_grids(depth));
  demand_none(problems.found);
  return *grid_of(mode, static_cast<std::uint32_t>(ranks), static_cast<std::uint32_t>(depth));
}

Mesh mesh_of(const Degrees& g, std::int64_t kv_heads) {
  const auto u32 = [](std::int64_t degree) { return static_cast<std::uint32_t>(degree); };
  const auto shard = g.shard_group == 0 ? g.dp : g.shard_group;
  if (shard < 1 || g.dp % shard != 0)
    throw RefusedSetting("shard-group",
                         fmt::format("`shard-group` {} does not divide the {} data ranks\n  give a `shard-group` that divides "
                                     "`dp` {}",
                                     shard, g.dp, g.dp));
  const auto grid = demand_grid(g.tensor_mode, g.tp, g.tensor_depth);
  const bool in_line = grid.side == 1;
  const auto twins = in_line && kv_heads != 0 && g.tp % kv_heads == 0 ? u32(g.tp / kv_heads) : 1;
  return {.pp = u32(g.pp),
          .copy = u32(g.dp / shard),
          .shard = u32(shard),
          .expert = u32(g.ep),
          .context = u32(g.cp),
          .depth = grid.depth,
          .row = grid.side,
          .col = grid.side,
          .part = in_line ? u32(g.tp) / twins : 1,
          .twin = twins};
}

std::vector<SettingRefusal> problems(const Degrees& g, const ModelShape& model, int ranks) {
  const auto features = features_of(g);
  Problems problems{refusals(features)};
  const auto may_have = [&](Feature feature) { return !is_excluded(feature, features); };
  if (g.tensor_mode != TensorMode::squares && g.tensor_depth != 1)
    problems.found.push_back(depth_without_grids(g.tensor_depth));
  const auto check_tensor = g.tensor_mode == TensorMode::line ? check_line : check_grid;
  check_tensor(problems, g, model, may_have(Feature::tensor_ranks));
  check_context(problems, g, model, may_have(Feature::context_ranks));
  problems.check("pp", g.pp, model.layers, fmt::format("a stage needs a layer, and there are {}", model.layers),
                 [&](auto p) { return p <= model.layers; });
  problems.check(
      "ep", g.ep, std::max<std::int64_t>(model.experts, 1),
      model.experts > 0 ? fmt::format("it must divide {} experts", model.experts) : "the model has no experts",
      [&](auto e) { return model.experts > 0 ? divides(e, model.experts) : e == 1; }, may_have(Feature::expert_ranks));
  if (g.dp < 1) problems.found.push_back({"dp", fmt::format("`dp` {}: it must be at least 1", g.dp), ""});
  if (g.shard_group != 0 && g.dp >= 1) {
    problems.check("shard-group", g.shard_group, g.dp, fmt::format("it must divide {} data ranks", g.dp),
                   [&](auto f) { return divides(f, g.dp); });
  }
  if (g.canonical_reduction && g.dp >= 1) {
    problems.check(
        "dp", g.dp, g.micro_batches,
        fmt::format("`canonical-reduction` needs a `dp` that divides the {} global micro-batches of a step", g.micro_batches),
        [&](auto d) { return divides(d, g.micro_batches); });
  }
  const std::int64_t others = std::int64_t{1} * g.pp * g.tp * g.cp * g.ep;
  if (g.dp >= 1 && others >= 1 && others * g.dp != ranks) {
    auto what = fmt::format("`dp` {} × `pp` {}", g.dp, g.pp);
    for (const auto& [setting, degree] : {std::pair{"tp", g.tp}, {"cp", g.cp}, {"ep", g.ep}})
      if (degree != 1) what += fmt::format(" × `{}` {}", setting, degree);
    what += fmt::format(" is {} ranks, and {} started", others * g.dp, ranks);
    const auto dp = ranks / others;
    problems.found.push_back({"dp", what,
                              dp >= 1 && dp * others == ranks
                                  ? fmt::format("`dp` {} would fit", dp)
                                  : fmt::format("start {} or {} ranks", std::max<std::int64_t>(dp, 1) * others,
                                                (std::max<std::int64_t>(dp, 1) + 1) * others)});
  }
  return problems.found;
}

void demand_degrees(const Degrees& degrees, const ModelShape& model, int ranks) {
  demand_none(problems(degrees, model, ranks));
}

void demand_place(const ModelRank& place, ModelShape model, const Features& with) {
  const auto refuse = [](const std::string& why) { throw Error("model: " + why, ErrorKind::refused); };
  demand_mesh(place.mesh);
  if (place.rank >= place.mesh.size())
    refuse(fmt::format("there is no rank {} in a mesh of {}", place.rank, to_string(place.mesh)));
  const auto tensor = place.tensor();
  const auto [depth, side, cube] = tensor.grid;
  if (tensor.is_grid() && (tensor.ranks != depth * side * side || place.mesh.row != place.mesh.col || (cube && depth != side)))
    refuse(fmt::format("{} tensor ranks are not a grid of {} × {} × {}", tensor.ranks, depth, side, side));
  if (tensor.is_grid() && !tensor.sequence)
    refuse("tensor ranks in a grid share the rows of activations: give sequence parallelism, too");
  if (tensor.pieces < 1) refuse("tensor ranks exchange rows in at least one piece");
  const auto ranks = place.mesh.context;
  if (place.ring < 1 || ranks % place.ring != 0)
    refuse(fmt::format("rings of {} of {} context ranks; {}", place.ring, ranks,
                       nearest(place.ring, ranks, [&](auto r) { return divides(r, ranks); })));
  const auto head_ranks = place.context().head_ranks();
  if (const auto heads = model.heads / tensor.ways(); place.ring > 1 && head_ranks > heads)
    refuse(fmt::format("{} ranks of a place in a ring are more than {} heads: the nearest are rings of {}", head_ranks, heads,
                       ranks));
  if (place.two_rings && place.ring != ranks)
    refuse(fmt::format("two rings go round all {} context ranks, not {} of them: the nearest is a ring of {}", ranks,
                       place.ring, ranks));
  model.seq_len = 0;
  auto degrees = degrees_of(place);
  degrees.with = with;
  degrees.with.add(features_of(place));
  demand_degrees(degrees, model, degrees.tp * degrees.cp * degrees.ep);
  const auto twins = tensor.is_grid() ? 1 : std::max<std::int64_t>(1, tensor.ranks / key_value_heads(model));
  if (tensor.twins != twins)
    refuse(
        fmt::format("{} tensor ranks have {} key-value heads: their mesh needs part {} and twin {}, not part {} and twin {} "
                    "(mesh_of() makes it)",
                    tensor.ranks, model.kv_heads, tensor.ranks / twins, twins, place.mesh.part, tensor.twins));
}

}  // namespace terrace
