#include <terrace/tests/cli/drawn/drawn_mesh.h>

#include <algorithm>
#include <functional>
#include <optional>

namespace terrace::test {
namespace {

constexpr std::uint64_t kMostRanks = 8;

std::string text(std::uint64_t n) { return std::to_string(n); }
bool divides(std::uint64_t d, std::uint64_t n) { return n % d == 0; }

struct Sizes {
  std::uint64_t blocks = 1, heads = 1, kv_heads = 1, ffn = 1, seq = 1, batch = 1, micro_batches = 1;
  std::uint64_t hidden = 8, vocab = 256, vocab_tiles = 1, experts = 0, window = 0;
  bool untied = false, skips = false, adapters = false;
  std::string optimizer;
  [[nodiscard]] std::uint64_t layers() const { return 2 * blocks + 2; }
};

std::vector<std::uint64_t> legal(std::uint64_t most, const std::function<bool(std::uint64_t)>& is) {
  std::vector<std::uint64_t> all;
  for (std::uint64_t d = 1; d <= most; ++d)
    if (is(d)) all.push_back(d);
  return all;
}

Words draw_sizes(Draw& draw, Sizes& s) {
  const bool llama = draw.one_in(2);
  s.blocks = draw.from(1, 4);
  s.heads = draw.of<std::uint64_t>({1, 2, 3, 4, 4, 5, 6, 7, 8, 8});
  const auto width = llama ? 2 * draw.from(1, 4) : draw.from(2, 8);
  const auto hidden = std::max<std::uint64_t>(8 / s.heads + 1, width) * s.heads;
  const auto even = llama && divides(2, hidden / s.heads) == false ? hidden + s.heads : hidden;
  s.kv_heads = llama ? draw.of(legal(s.heads, [&](auto h) { return divides(h, s.heads); })) : s.heads;
  s.ffn = draw.one_in(4) ? draw.from(1, 90) : s.heads * draw.from(1, 12);
  s.seq = draw.of<std::uint64_t>({8, 12, 16, 21, 24, 30, 32, 40, 48, 64});
  s.batch = draw.of<std::uint64_t>({1, 1, 2, 3, 4});
  s.micro_batches = draw.of<std::uint64_t>({1, 2, 2, 3, 4, 4, 6, 8});
  s.untied = draw.one_in(3);
  s.skips = s.blocks >= 3 && draw.one_in(5);
  s.vocab = draw.of<std::uint64_t>({256, 257, 259, 263, 300, 509});
  Words words{"--model",       llama ? "llama" : "gpt2",
              "--layers",      text(s.blocks),
              "--hidden",      text(s.hidden = even),
              "--heads",       text(s.heads),
              "--ffn",         text(s.ffn),
              "--vocab",       text(s.vocab),
              "--data-format", "bytes",
              "--seq-len",     text(s.seq),
              "--batch-size",  text(s.batch)};
  if (llama) words = words + Words{"--kv-heads", text(s.kv_heads)};
  if (s.untied) words.emplace_back("--untied");
  if (s.skips) words = words + Words{"--skips", "u"};
  if (draw.one_in(5)) s.window = draw.from(1, s.seq);
  if (s.window > 0) words = words + Words{"--window", text(s.window)};
  return words;
}

Words draw_numbers(Draw& draw, Sizes& s, bool fp64) {
  s.optimizer = draw.of<const char*>({"adamw", "adamw", "sgd", "sgd", "muon"});
  Words words{"--dtype",     fp64 ? "fp64" : "fp32",
              "--recipe",    "fp32",
              "--optimizer", s.optimizer,
              "--lr",        s.optimizer == "sgd" ? "0.1" : "1e-3",
              "--seed",      text(draw.from(1, 99)),
              "--grad-clip", draw.of<const char*>({"0", "0.3", "1"}),
              "--steps",     "3"};
  if (draw.one_in(4)) s.vocab_tiles = draw.from(2, 3);
  if (s.vocab_tiles > 1) words = words + Words{"--vocab-tiles", text(s.vocab_tiles)};
  if (draw.one_in(4)) {
    // With fp32, every token chooses all experts: a mesh rounds differently, so a router could choose other experts.
    const auto experts = s.experts = draw.from(1, 5);
    words = words + Words{"--experts",           text(experts),
                          "--experts-per-token", text(fp64 ? draw.from(1, experts) : experts),
                          "--router-aux-loss",   draw.of<const char*>({"0", "0.05"}),
                          "--router-z-loss",     "0.01"};
    if (draw.one_in(3)) words = words + Words{"--shared-experts", "1"};
  }
  if (!s.skips && draw.one_in(4)) {
    s.adapters = true;
    words = words + Words{"--lora-rank", text(draw.from(1, std::min({s.hidden, s.ffn, std::uint64_t{5}}))), "--lora-targets",
                          draw.of<const char*>({"all", "q,k,v", "o,down"})};
  }
  return words;
}

Words draw_schedule(Draw& draw, const Sizes& s, std::uint64_t pp, std::uint64_t micro_batches) {
  std::vector<std::string> all{"layerwise", "gpipe", "1f1b", "zb-h1"};
  if (2 * pp <= s.layers()) {
    all.insert(all.end(), {"interleaved", "zb-v"});
    if (micro_batches >= 2 * pp) all.emplace_back("dualpipe-v");
  }
  const auto name = draw.of(all);
  if (name == "interleaved") return {"--schedule", name, "--virtual-stages", "2"};
  return {"--schedule", name};
}

// Tensor ranks arranged in a grid.
struct Grid {
  std::uint64_t ranks, depth, side;
  const char* mode;
  [[nodiscard]] bool fits(const Sizes& s) const {
    const bool cube = std::string(mode) == "3d";
    const auto inputs = cube ? side * side : side;
    return divides(side, s.heads) && divides(side, s.kv_heads) && divides(inputs, s.ffn) && divides(inputs, s.hidden) &&
           divides(depth * side, s.batch) && divides(ranks, s.batch * s.seq);
  }
  [[nodiscard]] Words words() const {
    Words all{"--tp", text(ranks), "--tp-mode", mode};
    if (std::string(mode) == "2.5d") all = all + Words{"--tp-depth", text(depth)};
    return all;
  }
};
std::vector<Grid> grids_of(const Sizes& s, std::uint64_t most) {
  std::vector<Grid> all;
  for (const Grid& grid : {Grid{4, 1, 2, "2d"}, {4, 1, 2, "2.5d"}, {8, 2, 2, "2.5d"}, {8, 2, 2, "3d"}})
    if (grid.ranks <= most && grid.fits(s)) all.push_back(grid);
  return all;
}

// The --cp modes other than exchanging heads: keys and values move round one ring, or round rings of groups that exchange
// heads. Without a window, each place in a ring has two parts of a sequence.
std::vector<Words> ways_of_context(const Sizes& s, std::uint64_t cp, std::uint64_t tp) {
  std::vector<Words> all;
  if (cp == 1) return all;
  const auto parts = [&](std::uint64_t ring) { return s.window > 0 || divides(2 * ring, s.seq); };
  if (parts(cp)) all.push_back({"--cp-mode", "ring"});
  for (std::uint64_t ring = 2; ring < cp; ++ring)
    if (divides(ring, cp) && cp / ring <= s.heads / tp && parts(ring))
      all.push_back({"--cp-mode", "both", "--cp-ring", text(ring)});
  return all;
}

DrawnMesh draw_mesh(Draw& draw, const Sizes& s) {
  std::uint64_t left = kMostRanks, dp = 1, pp = 1, tp = 1, cp = 1, ep = 1;
  std::optional<Grid> grid;
  std::vector<std::function<void()>> axes{
      [&] {
        dp = draw.of(legal(left, [&](auto d) { return divides(d * ep, s.micro_batches); }));
        left /= dp;
      },
      [&] {
        pp = draw.of(legal(std::min<std::uint64_t>({left, s.layers(), 4}), [](auto) { return true; }));
        left /= pp;
      },
      [&] {
        if (s.optimizer == "muon" || s.skips) return;
        if (const auto grids = grids_of(s, left);
            cp == 1 && s.vocab_tiles == 1 && s.experts == 0 && !grids.empty() && draw.one_in(2)) {
          grid = draw.of(grids);
          tp = grid->ranks;
          left /= tp;
          return;
        }
        tp = draw.of(legal(left, [&](auto t) {
          const bool rows = s.vocab_tiles == 1 || s.vocab / t / 16 >= s.vocab_tiles;  // enough rows per tile
          return rows && divides(t, s.heads) && divides(t, s.ffn) && (divides(t, s.kv_heads) || divides(s.kv_heads, t));
        }));
        left /= tp;
      },
      [&] {
        if (grid) return;
        cp = draw.of(legal(left, [&](auto c) { return divides(c, s.seq); }));
        left /= cp;
      },
      [&] {
        if (s.experts < 2) return;
        ep = draw.of(legal(left, [&](auto e) { return divides(e, s.experts) && divides(dp * e, s.micro_batches); }));
        left /= ep;
      }};
  while (!axes.empty()) {
    const auto next = draw.below(axes.size());
    axes[next]();
    axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(next));
  }
  std::vector<std::uint64_t> tiles{1}, attention_tiles{1};
  const bool tiled = s.optimizer != "muon" && !grid && !s.adapters;
  if (tiled && s.experts == 0 && draw.one_in(4)) tiles = legal(s.ffn / tp, [&](auto t) { return divides(t, s.ffn / tp); });
  if (tiled && draw.one_in(s.skips ? 2 : 4)) {
    const auto keys = s.kv_heads / std::min(s.kv_heads, tp) * (s.hidden / s.heads);
    attention_tiles = legal(8, [&](auto t) { return divides(t, keys) && divides(t, s.hidden / tp) && divides(t, s.hidden); });
  }
  const auto each = s.micro_batches / (dp * ep);
  DrawnMesh mesh{.ranks = dp * pp * tp * cp * ep, .words = {"--grad-accumulation", text(each)}, .other_way = {}};
  const auto add = [&](const char* flag, std::uint64_t degree) {
    if (degree > 1 || draw.one_in(6)) mesh.words = mesh.words + Words{flag, text(degree)};
  };
  add("--dp", dp);
  add("--pp", pp);
  if (grid)
    mesh.words = mesh.words + grid->words() + Words{"--mlp-row-tiles", text(draw.from(1, 3))};
  else
    add("--tp", tp);
  add("--cp", cp);
  if (s.experts > 0) add("--ep", ep);
  if (const auto t = draw.of(tiles); t > 1) mesh.words = mesh.words + Words{"--mlp-tiles", text(t)};
  const auto of_attention = draw.of(attention_tiles);
  if (of_attention > 1) mesh.words = mesh.words + Words{"--attention-tiles", text(of_attention)};
  if (const auto ways = ways_of_context(s, cp, tp); !ways.empty() && draw.one_in(2)) mesh.words = mesh.words + draw.of(ways);
  if (pp > 1) mesh.words = mesh.words + draw_schedule(draw, s, pp, each);
  if (tp > 1 && !grid && divides(tp, s.batch * s.seq / cp) && draw.one_in(2)) {
    mesh.words.emplace_back("--sp");
    const auto rows = s.batch * s.seq / cp / tp;
    if (rows > 1 && of_attention == 1 && draw.one_in(2))
      mesh.words = mesh.words + Words{"--tp-overlap", text(draw.from(2, std::min<std::uint64_t>(rows, 5)))};
  }
  // ZeRO 0 and 1 reduce once per step, 2 and 3 once per micro-batch, so they round differently.
  const auto zero = draw.below(4);
  mesh.words = mesh.words + Words{"--zero", text(zero)};
  mesh.other_way = {"--zero",           text(zero / 2 * 2 + draw.below(2)),
                    "--recompute",      draw.of<const char*>({"none", "layer"}),
                    "--activations",    draw.of<const char*>({"keep", "offload"}),
                    "--prefetch-depth", draw.of<const char*>({"0", "1", "3"}),
                    "--threads",        text(draw.from(1, 3))};
  if (zero == 0) mesh.other_way[1] = text(draw.below(2));
  if (pp == 1 && draw.one_in(2)) mesh.other_way = mesh.other_way + Words{"--order", "vertical"};
  mesh.device_share = draw.share() * draw.share(), mesh.host_share = draw.share();
  return mesh;
}

// Draws a degree that the model does not allow.
void draw_wrong(Draw& draw, const Sizes& s, DrawnModel& model) {
  std::vector<std::string> flags{"--pp", "--cp"};
  if (s.vocab_tiles == 1) flags.emplace_back("--tp");
  if (s.experts > 1) flags.emplace_back("--ep");
  const auto flag = draw.of(flags);
  const auto wrong = [&](std::uint64_t d) {
    if (flag == "--pp") return d > s.layers();
    if (flag == "--ep") return !divides(d, s.experts);
    return flag == "--tp" ? !divides(d, s.heads) || !divides(d, s.ffn) : !divides(d, s.seq);
  };
  std::uint64_t degree = draw.from(2, 9);
  while (!wrong(degree)) ++degree;
  model.wrong = {flag, text(degree)};
  model.named = flag;
}

}  // namespace

DrawnModel draw_model(std::uint64_t seed, std::uint64_t number) {
  Draw draw(seed, number);
  DrawnModel model;
  Sizes s;
  model.fp64 = !draw.one_in(3);
  model.words = draw_sizes(draw, s);
  model.words = model.words + draw_numbers(draw, s, model.fp64);
  model.micro_batches = s.micro_batches;
  while (model.meshes.size() < 4) {
    auto mesh = draw_mesh(draw, s);
    if (mesh.ranks > 1 || draw.one_in(10)) model.meshes.push_back(std::move(mesh));
  }
  draw_wrong(draw, s, model);
  return model;
}

}  // namespace terrace::test
