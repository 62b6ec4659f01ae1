#include <terrace/tests/cli/drawn/drawn_run.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace terrace::test {
namespace {

std::string text(std::uint64_t n) { return std::to_string(n); }

// Which runs must have the same bits (docs/concepts/data-parallel.md, docs/concepts/pipeline.md).
enum class Same {
  on_all_ranks,  // --canonical-reduction: every layout that divides the micro-batches
  on_one,        // one data rank: every synchronous pipeline in one direction
  as_laid_out,   // sums in the ranks' own order: this layout only
  at_versions,   // an asynchronous schedule: this pipeline
  as_averaged,   // local SGD: this number of ranks
};

struct Bits {  // the properties on which other draws depend
  Same same = Same::on_one;
  std::string dtype = "fp32", optimizer = "adamw", recipe = "fp32";
  std::uint64_t layers = 1;  // including embedding and head
  std::uint64_t micro_batches = 1, steps = 2;
  std::uint64_t every = 1;  // --drain-interval or --sync-interval
  std::uint64_t keys = 1;   // outputs of an attention's keys, which tiles divide
  bool untied = false, constant_rate = true, narrow_weights = false, narrow_gradients = false, clips = false;
  bool skips_steps = false;
};

Words model_words(Draw& draw, Bits& b) {
  const bool llama = draw.one_in(2);
  const auto heads = draw.from(1, 6);
  std::uint64_t width = 0;
  do width = llama ? 2 * draw.from(1, 8) : draw.from(3, 16);
  while (heads * width > 96 || heads * width < 8);
  const auto blocks = draw.from(1, 6);
  b.layers = 2 * blocks + 2;
  b.untied = b.same == Same::at_versions || draw.one_in(3);
  Words words{"--model",      llama ? "llama" : "gpt2",
              "--layers",     text(blocks),
              "--hidden",     text(heads * width),
              "--heads",      text(heads),
              "--vocab",      draw.of<const char*>({"256", "257", "263", "300"}),
              "--seq-len",    text(draw.of<std::uint64_t>({8, 9, 13, 16, 24, 31, 32, 33, 64})),
              "--batch-size", text(draw.of<std::uint64_t>({1, 1, 2, 2, 3, 5}))};
  std::vector<std::uint64_t> divisors;
  for (std::uint64_t h = 1; h <= heads; ++h)
    if (heads % h == 0) divisors.push_back(h);
  const auto kv_heads = llama && draw.one_in(2) ? draw.of(divisors) : heads;
  if (kv_heads != heads) words = words + Words{"--kv-heads", text(kv_heads)};
  b.keys = kv_heads * width;
  if (draw.one_in(3)) words = words + Words{"--ffn", text(draw.from(1, 150))};
  if (b.untied) words.emplace_back("--untied");
  if (blocks >= 3 && draw.one_in(4)) words = words + Words{"--skips", "u"};
  return words;
}

Words number_words(Draw& draw, Bits& b) {
  b.dtype = draw.of<const char*>({"fp32", "fp32", "fp32", "bf16", "bf16", "fp16", "fp64"});
  b.optimizer =
      draw.of<const char*>({"adamw", "adamw", "adamw", "adam", "sgd", "lion", "adagrad", "lamb", "adafactor", "muon"});
  std::vector<std::string> recipes{"fp32"};
  if (b.dtype != "fp64") recipes.insert(recipes.end(), {"bf16", "8bit"});
  if (b.dtype == "bf16") recipes.insert(recipes.end(), {"split", "split-8bit", "stochastic"});
  const bool folds = b.same == Same::on_all_ranks || b.same == Same::at_versions;
  if (b.dtype == "bf16" && !folds) recipes.insert(recipes.end(), {"split24-8bit", "all-bf16"});
  b.recipe = draw.of(recipes);
  Words words{"--dtype", b.dtype, "--optimizer", b.optimizer, "--recipe", b.recipe};
  if (b.optimizer == "sgd" || b.optimizer == "muon") {
    words = words + Words{"--momentum", draw.of<const char*>({"0", "0.9"})};
    if (words.back() != "0" && draw.one_in(2)) words.emplace_back("--nesterov");
  }
  return words;
}

// Tiles of the table and of attention's matrices; optimizers that need whole matrices allow no tiles of hidden ones.
Words tile_words(Draw& draw, const Bits& b) {
  Words words;
  const bool all_whole = b.optimizer == "lamb" || b.optimizer == "adafactor";
  if (!all_whole && draw.one_in(5)) words = words + Words{"--vocab-tiles", text(draw.from(2, 3))};
  std::vector<std::uint64_t> tiles;
  for (std::uint64_t t = 2; t <= std::min<std::uint64_t>(b.keys, 8); ++t)
    if (b.keys % t == 0) tiles.push_back(t);
  if (!all_whole && b.optimizer != "muon" && !tiles.empty() && draw.one_in(4))
    words = words + Words{"--attention-tiles", text(draw.of(tiles))};
  return words;
}

Words step_words(Draw& draw, Bits& b) {
  b.every = b.same == Same::at_versions ? draw.from(1, 4) : b.same == Same::as_averaged ? draw.from(2, 3) : 1;
  b.steps = b.every * std::max<std::uint64_t>(2, draw.from(2, 9) / b.every);
  b.constant_rate = !draw.one_in(4);
  Words words{"--lr",          draw.of<const char*>({"1e-3", "3e-3"}),
              "--seed",        text(draw.from(1, 99)),
              "--lr-schedule", b.constant_rate ? "constant" : draw.of<const char*>({"linear", "cosine", "wsd"}),
              "--min-lr",      "1e-4",
              "--warmup",      text(draw.from(0, 3))};
  const bool async_clip = b.same == Same::at_versions;  // pipedream cannot clip: its layout turns it off
  b.clips = !draw.one_in(3);
  words = words + Words{"--grad-clip", b.clips ? draw.of<const char*>({"0.5", "1"}) : "0"};
  if (draw.one_in(4)) words = words + Words{"--weight-decay", "0"};
  if (!async_clip && draw.one_in(6))
    words = words + Words{"--param-groups", draw.of<const char*>({"wte|embed:rate=0.1", "mlp:rate=0.5,decay=2,clip=0.3"})};
  const bool never_skips = b.same == Same::at_versions || b.same == Same::as_averaged;
  if (never_skips)
    words = words + Words{"--loss-scale", draw.of<const char*>({"off", "1024"})};
  else if (draw.one_in(4))
    words = words + Words{"--loss-scale", draw.of<const char*>({"off", "64", "dynamic"})};
  if (!never_skips && draw.one_in(5)) words = words + Words{"--on-non-finite", "skip"};
  return words;
}

bool has(const Words& words, const std::string& word) { return std::ranges::find(words, word) != words.end(); }

// A synchronous schedule for `pp` ranks and `micro_batches` micro-batches; empty if none is possible.
Words schedule_words(Draw& draw, const Bits& b, std::uint64_t pp, std::uint64_t micro_batches, bool both_ways) {
  std::vector<std::string> all{"layerwise", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};
  if (micro_batches >= 2 * pp) all.insert(all.end(), {"dualpipe-v", "dualpipe-v"});
  if (both_ways && pp % 2 == 0 && micro_batches % 2 == 0 && !b.narrow_gradients) all.insert(all.end(), {"chimera", "chimera"});
  if (both_ways && pp <= 3 && draw.one_in(8)) all = {"auto"};
  const auto name = draw.of(all);
  Words words{"--schedule", name};
  std::uint64_t stages = pp;
  if (name == "zb-v" || name == "dualpipe-v") stages = 2 * pp;
  if (name == "interleaved") {
    const auto of_each = draw.from(2, 3);
    words = words + Words{"--virtual-stages", text(of_each)};
    stages = of_each * pp;
  }
  if (name == "auto" || (name == "chimera" && !b.untied) || stages > b.layers || !draw.one_in(2)) return words;
  // Draws very uneven stages, each with at least one layer.
  std::vector<std::uint64_t> layers(stages, 1);
  const auto heavy = draw.below(stages);
  for (auto left = b.layers - stages; left > 0; --left) ++layers[draw.one_in(2) ? heavy : draw.below(stages)];
  return words + Words{"--stage-layers", fmt::format("{}", fmt::join(layers, ","))};
}

constexpr std::uint64_t kMostRanks = 8;

void draw_data_ranks(Draw& draw, const Bits& b, Layout& l) {
  std::vector<std::uint64_t> degrees;
  for (std::uint64_t d = 1; d <= std::min<std::uint64_t>(7, b.micro_batches); ++d)
    if (b.micro_batches % d == 0 && !(b.narrow_weights && d == 1)) degrees.push_back(d);
  l.dp = draw.of(degrees);
  l.zero = b.narrow_weights ? 3 : draw.below(4);
  if (l.dp > 1 && l.zero > 0 && draw.one_in(3)) {
    std::vector<std::uint64_t> groups;
    for (std::uint64_t g = b.narrow_weights ? 2 : 1; g <= l.dp; ++g) {  // a group of one gathers nothing, as on a single rank
      const auto copies = l.dp / g;
      if (l.dp % g == 0 && (copies & (copies - 1)) == 0) groups.push_back(g);
    }
    l.shard_group = draw.of(groups);
  }
}

Layout draw_layout(Draw& draw, const Bits& b, const Layout& reference) {
  Layout l = reference;
  switch (b.same) {
    case Same::on_all_ranks: draw_data_ranks(draw, b, l); break;
    case Same::on_one: l.zero = draw.one_in(3) ? draw.below(4) : 0; break;  // shards nothing on one data rank
    case Same::as_laid_out:                                                 // a ZeRO stage with the same order of sums
      if (reference.shard_group == 0 && !has(l.pipeline, "chimera")) l.zero = reference.zero / 2 * 2 + draw.below(2);
      return l;
    case Same::at_versions:
      if (l.shard_group == 0) l.zero = draw.below(4);
      return l;
    case Same::as_averaged: return l;
  }
  if (b.same == Same::on_one && draw.one_in(2)) return l;
  if (b.same == Same::on_all_ranks && draw.one_in(2)) return l;
  const auto most = std::min(b.layers, kMostRanks / l.dp);
  if (most < 2) return l;
  l.pp = draw.from(2, most);
  const bool both_ways = b.same == Same::on_all_ranks;
  l.pipeline = schedule_words(draw, b, l.pp, b.micro_batches / l.dp, both_ways);
  if ((has(l.pipeline, "chimera") || has(l.pipeline, "auto")) && l.zero == 2) l.zero = 1;
  return l;
}

// The layout to which the others are compared. Also draws the micro-batches.
Layout draw_reference(Draw& draw, Bits& b) {
  Layout l;
  b.micro_batches = draw.of<std::uint64_t>({1, 2, 3, 4, 4, 5, 6, 6, 7, 8, 12});
  switch (b.same) {
    case Same::on_all_ranks:
      if (b.narrow_weights) {
        b.micro_batches = draw.of<std::uint64_t>({2, 3, 4, 6});
        l = {.dp = b.micro_batches, .zero = 3, .shard_group = 0, .pp = 1, .pipeline = {}};
      }
      break;
    case Same::on_one: break;
    case Same::as_laid_out: {
      l.dp = draw.of<std::uint64_t>({1, 2, 2, 3, 4, 5, 6, 7});
      const auto each = draw.from(1, 4);
      l.zero = draw.below(4);
      if (l.dp % 2 == 0 && l.zero > 0 && draw.one_in(3)) l.shard_group = draw.of<std::uint64_t>({1, 2, l.dp / 2, l.dp});
      if (l.shard_group != 0 && l.dp % l.shard_group != 0) l.shard_group = 0;
      b.micro_batches = l.dp * each;
      const auto most = std::min(b.layers, kMostRanks / l.dp);
      if (most >= 2 && (l.dp == 1 || draw.one_in(2))) {
        l.pp = draw.from(2, most);
        l.pipeline = schedule_words(draw, b, l.pp, each, true);
        if (has(l.pipeline, "auto")) l.pipeline = {"--schedule", "1f1b"};  // it may choose other sums with other budgets
        if (has(l.pipeline, "chimera") && l.zero == 2) l.zero = 1;
      }
      break;
    }
    case Same::at_versions: {
      l.dp = draw.of<std::uint64_t>({1, 1, 2, 3});
      l.zero = draw.below(4);
      l.pp = draw.from(2, std::min<std::uint64_t>(4, b.layers));
      const auto each = l.pp + draw.below(3);
      b.micro_batches = l.dp * each;
      l.pipeline = {"--schedule", b.clips || draw.one_in(2) ? "pipedream-2bw" : "pipedream", "--drain-interval", text(b.every)};
      break;
    }
    case Same::as_averaged:
      l.dp = draw.from(2, 5);
      b.micro_batches = l.dp * draw.from(1, 3);
      break;
  }
  return l;
}

Budget draw_budget(Draw& draw) {
  Budget b{.given = true,
           .share = std::pow(draw.share(), 3) * 1.1 - 0.02,
           .form = draw.below(6),
           .off_by = draw.of<std::int64_t>({-4096, -513, -1, 0, 0, 0, 1, 3, 7, 511, 4095})};
  return b;
}

std::string layers_or(Draw& draw, std::initializer_list<const char*> words) {
  return draw.one_in(4) ? text(draw.below(4)) : draw.of(words);
}

// Draws settings that change no bit.
Words draw_ways(Draw& draw, const Bits& b, bool two_generations, bool committed, Leg& leg) {
  Words w{"--threads", text(draw.from(1, 3))};
  const auto each = b.micro_batches / leg.layout.dp;
  if (draw.one_in(2)) w = w + Words{"--prefetch-depth", draw.of<const char*>({"0", "1", "2", "3", "7"})};
  if (leg.layout.pp == 1 && draw.one_in(2)) {
    const auto order = draw.of<const char*>({"horizontal", "vertical", "vertical"});
    w = w + Words{"--order", order};
    std::vector<std::uint64_t> groups{0};
    for (std::uint64_t g = 1; g <= each; ++g)
      if (each % g == 0) groups.push_back(g);
    if (std::string(order) == "vertical") w = w + Words{"--group", text(draw.of(groups))};
  }
  if (draw.one_in(2)) w = w + Words{"--recompute", layers_or(draw, {"none", "layer"})};
  if (draw.one_in(2)) w = w + Words{"--activations", layers_or(draw, {"keep", "offload"})};
  if (draw.one_in(3)) w = w + Words{"--update", draw.of<const char*>({"host", "device", "0.3", "0.77"})};
  const std::string durability = two_generations               ? draw.of<const char*>({"commit", "commit", "step"})
                                 : committed || draw.one_in(2) ? "off"
                                                               : "none";
  leg.commits = durability != "none";
  if (durability == "step" && b.same == Same::at_versions && b.every != 1)
    w = w + Words{"--durability", "commit", "--ckpt-interval", text(b.every)};
  else
    w = w + Words{"--durability", durability};
  if (durability == "commit" && draw.one_in(2))
    w = w + Words{"--ckpt-interval", text(draw.from(1, 3) * (b.same == Same::at_versions ? b.every : 1))};
  if (draw.one_in(3)) w = w + Words{"--eval-interval", text(draw.from(1, 3) * (b.same == Same::at_versions ? b.every : 1))};
  if (draw.one_in(5)) w.emplace_back("--json");
  return w;
}

Leg draw_leg(Draw& draw, const Bits& b, const Layout& layout, std::uint64_t steps, bool two_generations, bool committed) {
  Leg leg{.steps = steps, .layout = layout, .ways = {}, .device = {}, .host = {}, .disk = {}};
  leg.ways = draw_ways(draw, b, two_generations, committed, leg);
  if (!draw.one_in(6)) leg.device = draw_budget(draw);
  if (!draw.one_in(4)) leg.host = draw_budget(draw);
  leg.disks = draw.of<std::uint64_t>({0, 1, 1, 1, 2, 3});
  if (leg.disks > 0 && draw.one_in(3)) leg.disk = draw_budget(draw);
  if (leg.commits && !leg.disk.given && draw.one_in(4)) leg.ways = leg.ways + Words{"--ckpt-keep", text(draw.from(2, 3))};
  leg.device.at_the_edge = leg.device.given && draw.one_in(16);
  leg.host.at_the_edge = leg.host.given && !leg.device.at_the_edge && draw.one_in(16);
  leg.processes = leg.layout.ranks() > 1 && leg.layout.ranks() <= 4 && draw.one_in(30);
  leg.io_threads = draw.one_in(8);
  leg.saves = draw.one_in(3);
  if (leg.commits && !leg.processes && draw.one_in(6)) leg.stopped_after_ms = draw.from(1, 200);
  if (leg.layout.ranks() == 1 && draw.one_in(10)) leg.ways.emplace_back("--verify-resident");
  return leg;
}

std::vector<Leg> draw_variant(Draw& draw, const Bits& b, const Layout& reference) {
  std::vector<std::uint64_t> stops;
  const auto unit = b.every;
  // A learning rate that depends on the run's length, or an average at the end, needs the whole run.
  if (b.constant_rate && b.steps > unit)
    for (auto legs = draw.below(3); legs > 0; --legs) stops.push_back(unit * draw.from(1, b.steps / unit - 1));
  stops.push_back(b.steps);
  std::ranges::sort(stops);
  const auto repeated = std::ranges::unique(stops);
  stops.erase(repeated.begin(), repeated.end());
  std::vector<Leg> legs;
  const bool two_generations = !draw.one_in(4);  // fixed when a run begins
  auto layout = draw_layout(draw, b, reference);
  for (const auto steps : stops) {
    if (!legs.empty() && draw.one_in(2)) layout = draw_layout(draw, b, reference);
    const bool committed = std::ranges::any_of(legs, &Leg::commits);
    legs.push_back(draw_leg(draw, b, layout, steps, two_generations, committed));
  }
  return legs;
}

// Illegal settings, and the flags that the refusal must name.
std::pair<Words, Words> draw_wrong(Draw& draw, const Bits& b) {
  std::vector<std::pair<Words, Words>> all{
      {{"--zero", "4"}, {"--zero"}},
      {{"--device-memory", "0"}, {"--device-memory"}},
      {{"--host-memory", "-1MiB"}, {"--host-memory"}},
      {{"--vocab", "255"}, {"--vocab"}},
      {{"--hidden", "97", "--heads", "2"}, {"--heads", "--hidden"}},
      {{"--nvme-limit", "3MB"}, {"--nvme-limit", "--nvme-path"}},
      {{"--durability", "step", "--ckpt-interval", "2"}, {"--ckpt-interval", "--durability step"}},
      {{"--durability", "none", "--ckpt-interval", "1"}, {"--ckpt-interval", "--durability none"}},
      {{"--param-groups", "nowhere:rate=2"}, {"nowhere"}},
      {{"--grad-accumulation", "0"}, {"--grad-accumulation"}},
      {{"--data", "absent.txt"}, {"absent.txt"}},
      {{"--nvme-path", "disk", "--nvme-path", "./disk/"}, {"--nvme-path"}},
  };
  if (b.dtype != "bf16") all.push_back({{"--recipe", "stochastic"}, {"--recipe"}});
  if (b.same != Same::at_versions) {
    all.push_back({{"--pp", "2", "--schedule", "1f2b"}, {"--schedule"}});
    all.push_back({{"--pp", text(b.layers + 1)}, {"--pp"}});
  }
  return draw.of(all);
}

}  // namespace

std::string text_of_bytes(std::uint64_t bytes, std::uint64_t form) {
  const auto prime = [](std::uint64_t n) {
    for (std::uint64_t d = 2; d * d <= n; ++d)
      if (n % d == 0) return false;
    return true;
  };
  switch (form) {
    case 1: return text(bytes | 1);
    case 2:
      while (!prime(bytes)) ++bytes;
      return text(bytes);
    case 3: return fmt::format("{}KB", bytes / 1000 + 1);
    case 4: return fmt::format("{}.{:03}MB", bytes / 1'000'000, bytes / 1000 % 1000 + (bytes < 1000 ? 1 : 0));
    case 5: return fmt::format("{}KiB", bytes / 1024 + 1);
    default: return text(bytes);
  }
}

std::string text_of(const Budget& budget, std::uint64_t least, std::uint64_t most) {
  const auto between = static_cast<double>(std::max(most, least) - least) * budget.share;
  const auto bytes = static_cast<std::int64_t>(static_cast<double>(least) + between) + budget.off_by;
  return text_of_bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 1)), budget.form);
}

DrawnRun draw_run(std::uint64_t seed, std::uint64_t number) {
  Draw draw(seed, number);
  Bits b;
  const auto which = draw.below(100);
  b.same = which < 40   ? Same::on_all_ranks
           : which < 60 ? Same::on_one
           : which < 75 ? Same::as_laid_out
           : which < 90 ? Same::at_versions
                        : Same::as_averaged;
  DrawnRun run;
  run.bits = model_words(draw, b) + number_words(draw, b);
  run.bits = run.bits + tile_words(draw, b) + step_words(draw, b);
  run.canonical = b.same == Same::on_all_ranks;
  if (b.same == Same::on_all_ranks && draw.one_in(5)) {
    b.narrow_gradients = true;
    run.bits = run.bits + Words{"--compress-gradients", draw.of<const char*>({"bf16", "int8"})};
    if (b.dtype == "fp64") b.narrow_gradients = false, run.bits.resize(run.bits.size() - 2);
  }
  if (b.same == Same::on_all_ranks && (b.dtype == "fp32" || b.dtype == "bf16") && draw.one_in(8)) {
    b.narrow_weights = true;
    run.bits = run.bits + Words{"--compress-weights", "int8"};
  }
  const auto layout = draw_reference(draw, b);
  if (b.same == Same::at_versions) run.canonical = layout.dp > 1;
  if (run.canonical) run.bits.emplace_back("--canonical-reduction");
  if (b.same == Same::as_averaged) run.bits = run.bits + Words{"--sync-interval", text(b.every)};
  run.bits = run.bits + Words{"--eval-batches", text(draw.of<std::uint64_t>({0, 1, 2, 3, 5}))};
  if (draw.one_in(4)) run.bits.emplace_back("--eval-first");
  run.micro_batches = b.micro_batches;
  run.reference = {.steps = b.steps,
                   .layout = layout,
                   .ways = {"--threads", "1", "--prefetch-depth", "0", "--recompute", "none", "--activations", "keep"},
                   .device = {},
                   .host = {},
                   .disk = {}};
  for (auto variants = draw.from(2, 3); variants > 0; --variants) run.variants.push_back(draw_variant(draw, b, layout));
  if (draw.one_in(4)) std::tie(run.wrong, run.wrong_says) = draw_wrong(draw, b);
  run.prompt = std::string("The river").substr(0, draw.from(1, 7));
  run.sampling = {"--max-tokens", text(draw.from(1, 20)), "--temperature", draw.of<const char*>({"0", "0.8"})};
  run.tokenizer = draw.one_in(4);
  if (run.tokenizer) run.bits = run.bits + Words{"--vocab", kTokenizerVocab, "--tokenizer", "tokenizer.json"};
  return run;
}

Words words_of(const DrawnRun& run, const Leg& leg) {
  const auto& l = leg.layout;
  const auto data =
      run.tokenizer ? Words{"--data", "ids", "--data-format", "u16"} : Words{"--data", "corpus.txt", "--data-format", "bytes"};
  Words words = Words{"train", "--assumed-costs"} + data + run.bits +
                Words{"--steps", text(leg.steps), "--grad-accumulation", text(run.micro_batches / l.dp)};
  if (l.dp > 1) words = words + Words{"--dp", text(l.dp)};
  if (l.zero > 0) words = words + Words{"--zero", text(l.zero)};
  if (l.shard_group > 0) words = words + Words{"--shard-group", text(l.shard_group)};
  if (l.pp > 1) words = words + Words{"--pp", text(l.pp)};
  return words + l.pipeline + leg.ways;
}

}  // namespace terrace::test
