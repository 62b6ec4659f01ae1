// Every pair of axes, with accumulation and a tied table. A run would not notice a gradient that is lost, counted twice or
// added in the wrong place, so losses, norms and all weights after some steps are compared with one rank's.
#include <gtest/gtest.h>

#include <functional>

#include <terrace/tests/parallel/tensor/tensor_run.h>

namespace terrace::test {
namespace {

struct Setting {
  const char* axis;
  const char* name;
  std::function<void(TensorRun&)> set;
};

TensorGrid square() { return {.side = 2}; }

// One setting per line.
std::vector<Setting> settings() {
  return {
      {"data", "dp 2", [](auto& o) { o.data = {.ranks = 2}; }},
      {"data", "ZeRO-1", [](auto& o) { o.data = {.ranks = 2, .zero = 1}; }},
      {"data", "ZeRO-2", [](auto& o) { o.data = {.ranks = 2, .zero = 2}; }},
      {"data", "ZeRO-3", [](auto& o) { o.data = {.ranks = 2, .zero = 3}; }},
      {"pipeline", "1f1b", [](auto& o) { o.schedule = "1f1b"; }},
      {"pipeline", "zb-h1", [](auto& o) { o.schedule = "zb-h1"; }},
      {"tensor", "tp 2", [](auto& o) { o.tensor_ranks = 2; }},
      {"tensor", "tp 2 sp", [](auto& o) { o.tensor_ranks = 2, o.sequence = true; }},
      {"tensor", "tp 2 sp in pieces", [](auto& o) { o.tensor_ranks = 2, o.sequence = true, o.pieces = 3; }},
      {"tensor", "2D", [](auto& o) { o.tensor_ranks = 4, o.sequence = true, o.grid = square(); }},
      {"context", "heads", [](auto& o) { o.context = 2; }},
      {"context", "ring", [](auto& o) { o.context = o.config.place.ring = 2; }},
      {"experts", "experts", [](auto& o) { o.config.experts = {.count = 4, .chosen = 2, .balance_loss = 0.05}; }},
      {"tiles", "tiles", [](auto& o) { o.config.vocab_tiles = 3, o.config.mlp_tiles = 2; }},
      {"activations", "recomputation", [](auto& o) { o.recompute = true; }},
      {"order", "vertical", [](auto& o) { o.order = Order::vertical; }},
      {"memory", "disk", [](auto& o) { o.squeezed = o.disk_tier = true; }},
  };
}

// True for the combinations that a run refuses.
bool is_refused(const TensorRun& o) {
  const bool grid = o.grid.side > 1, tiles = o.config.mlp_tiles > 1, experts = o.config.experts.count > 0;
  return (grid && (tiles || experts)) || (experts && tiles) || (!o.schedule.empty() && o.order == Order::vertical);
}

class AxisPairs : public TensorRuns {};

// The quantities that a plan computes with: the bytes of all chunks and the FLOPs of all products.
std::pair<std::vector<std::uint64_t>, std::vector<double>> reckoned(const TensorRun& o, std::uint32_t rank) {
  const auto model = model_of(config_of(o, rank));
  const auto optimizer = make_optimizer(o.optimizer, {});
  const auto request = request_of(o, *optimizer, rank);
  const StepMap map(model, planning::map_options(model, request, {}, Tier::host));
  std::pair<std::vector<std::uint64_t>, std::vector<double>> all;
  for (std::uint32_t c = 0; c < map.chunks().size(); ++c) all.first.push_back(map.chunks()[ChunkId(c)].bytes);
  for (const auto& layer : model.layers) {
    all.second.push_back(layer->facts(request.shape.batch).forward_flops);
    for (const auto call : {LayerCall::forward, LayerCall::backward})
      for (const auto& phase : layer->described(call, request.shape.batch).phases()) all.second.push_back(phase.flops);
  }
  return all;
}

// Ranks must take the same steps. Where a vocabulary or the heads do not divide evenly, all ranks therefore plan with the needs
// of the rank that has most.
TEST_F(AxisPairs, AllRanksReckonWithTheSameBytesAndProducts) {
  const std::vector<Setting> uneven{{"tensor", "tp 3",
                                     [](auto& o) {
                                       o.tensor_ranks = 3, o.batch = {3, 16};
                                     }},
                                    {"context", "4 ranks with 6 heads", [](auto& o) { o.context = 4; }}};
  auto all = settings();
  all.insert(all.end(), uneven.begin(), uneven.end());
  for (const auto& setting : all)
    for (const std::int64_t vocab : {256, 257, 263}) {
      TensorRun o{.config = llama(), .batch = {4, 16}};
      o.config.heads = setting.name == std::string_view("2D") ? 4 : 6;
      o.config.kv_heads = setting.name == std::string_view("2D") ? 2 : 6;
      o.config.vocab = vocab;
      setting.set(o);
      const auto first = reckoned(o, 0);
      for (std::uint32_t rank = 1; rank < o.ranks() / o.stages(); ++rank) {
        const auto [bytes, products] = reckoned(o, rank);
        EXPECT_EQ(first.first, bytes) << setting.name << ", vocabulary " << vocab << ", rank " << rank;
        EXPECT_EQ(first.second, products) << setting.name << ", vocabulary " << vocab << ", rank " << rank;
      }
    }
}

TEST_F(AxisPairs, TrainWhatOneRankTrainsWithAccumulationAndATiedTable) {
  const auto all = settings();
  std::map<std::tuple<std::string, std::uint32_t, std::int64_t>, TensorResult> references;
  int pairs = 0, refused = 0;
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = a + 1; b < all.size(); ++b) {
      if (std::string_view(all[a].axis) == all[b].axis) continue;
      TensorRun o{.config = pairs % 2 == 0 ? llama() : gpt2(), .batch = {2, 16}, .micro_batches = 3};
      o.config.hidden = 48;  // in both families, every axis then divides the heads
      o.config.ffn = 72;
      o.config.tied = true;
      all[a].set(o);
      all[b].set(o);
      if (is_refused(o)) {
        ++refused;
        continue;
      }
      if (pairs % 3 == 2) {
        const auto norms = with_norms("olmo2");
        o.config.family = norms.family, o.config.kv_heads = norms.kv_heads, o.config.vocab = norms.vocab;
      }
      const auto what = fmt::format("{}: {} with {}", *o.config.family.get().name, all[a].name, all[b].name);
      // One rank's run is the same for all settings that only move or share work.
      const auto key =
          std::tuple(std::string(*o.config.family.get().name), o.micro_batches * o.data.ranks, o.config.experts.count);
      auto one = references.find(key);
      if (one == references.end()) {
        auto plain = o;
        plain.recompute = false;
        plain.order = Order::horizontal;
        one = references.emplace(key, serial(plain)).first;
      }
      expect_equal(one->second, run(o), kFp64, what);
      ++pairs;
      if (HasFailure()) return;
    }
  EXPECT_EQ(122, pairs + refused);
  EXPECT_GT(pairs, 100);
}

}  // namespace
}  // namespace terrace::test
