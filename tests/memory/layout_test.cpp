#include <ostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <terrace/memory/layout.h>

namespace terrace {
namespace {

using Layers = std::vector<std::vector<memory::LayoutTensor>>;

Layers gpt2() {
  constexpr std::uint64_t d = 768;
  Layers layers{{{"wte", 50257 * d}, {"wpe", 1024 * d}}};
  for (int i = 0; i < 12; ++i) {
    layers.push_back({{"ln_1.weight", d},
                      {"ln_1.bias", d},
                      {"attn.c_attn.weight", d * 3 * d},
                      {"attn.c_attn.bias", 3 * d},
                      {"attn.c_proj.weight", d * d},
                      {"attn.c_proj.bias", d}});
    layers.push_back({{"ln_2.weight", d},
                      {"ln_2.bias", d},
                      {"mlp.c_fc.weight", d * 4 * d},
                      {"mlp.c_fc.bias", 4 * d},
                      {"mlp.c_proj.weight", 4 * d * d},
                      {"mlp.c_proj.bias", d}});
  }
  layers.push_back({{"ln_f.weight", d}, {"ln_f.bias", d}});  // the head is tied to wte
  return layers;
}

Layers llama_8b() {
  constexpr std::uint64_t d = 4096, kv = 1024, ffn = 14336, vocabulary = 128256;
  Layers layers{{{"embed_tokens", vocabulary * d}}};
  for (int i = 0; i < 32; ++i) {
    layers.push_back({{"input_layernorm", d}, {"q_proj", d * d}, {"k_proj", kv * d}, {"v_proj", kv * d}, {"o_proj", d * d}});
    layers.push_back({{"post_attention_layernorm", d}, {"gate_proj", ffn * d}, {"up_proj", ffn * d}, {"down_proj", ffn * d}});
  }
  layers.push_back({{"norm", d}, {"lm_head", vocabulary * d}});
  return layers;
}

Layers mixture() {
  constexpr std::uint64_t d = 8192, ffn = 4096, vocabulary = 256 * 1024;
  Layers layers{{{"embed_tokens", vocabulary * d}}};
  for (int i = 0; i < 16; ++i) {
    layers.push_back({{"norm", d}, {"q_proj", d * d}, {"k_proj", d * d / 8}, {"v_proj", d * d / 8}, {"o_proj", d * d}});
    layers.push_back({{"norm", d}, {"router", d * 8}});
    for (int e = 0; e < 8; ++e) {
      for (const char* name : {"gate", "up", "down"}) layers.back().push_back({fmt::format("experts.{}.{}", e, name), ffn * d});
    }
  }
  layers.push_back({{"norm", d}});
  return layers;
}

// Every element of every tensor is in exactly one segment, in order, inside its chunk, and segments do not overlap.
void expect_covered_once(const memory::Layout& layout, const Layers& layers) {
  std::uint32_t chunks = 0;
  for (std::uint32_t l = 0; l < layout.layers(); ++l) {
    ASSERT_EQ(layout.first_chunk(l), chunks);
    chunks += layout.chunks_of(l);
    std::vector<std::uint64_t> covered(layers[l].size(), 0);
    for (std::uint32_t c = 0; c < layout.chunks_of(l); ++c) {
      std::uint64_t position = 0;
      const auto segments = layout.segments(l, c);
      EXPECT_FALSE(segments.empty()) << "layer " << l << " has a chunk of padding only";
      for (const auto& segment : segments) {
        ASSERT_GT(segment.elements, 0u);
        ASSERT_GE(segment.chunk_element, position);
        position = segment.chunk_element + segment.elements;
        ASSERT_LE(position, layout.chunk_elements());
        ASSERT_EQ(segment.tensor_element, covered[segment.tensor]);
        covered[segment.tensor] += segment.elements;
        const auto& place = layout.place(l, segment.tensor);
        ASSERT_EQ(place.first_element % memory::Layout::kAlignElements, 0u);
        ASSERT_EQ(place.first_element + segment.tensor_element, c * layout.chunk_elements() + segment.chunk_element);
      }
    }
    for (std::size_t t = 0; t < layers[l].size(); ++t) EXPECT_EQ(covered[t], layers[l][t].elements) << layers[l][t].name;
  }
  EXPECT_EQ(layout.chunks(), chunks);
}

struct Model {
  const char* name;
  Layers (*layers)();
  friend void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }
};
class Models : public testing::TestWithParam<Model> {};
INSTANTIATE_TEST_SUITE_P(Layout, Models,
                         testing::Values(Model{"gpt2_124m", &gpt2}, Model{"llama_8b", &llama_8b}, Model{"mixture", &mixture}),
                         [](const auto& model) { return std::string(model.param.name); });

TEST_P(Models, WastesAtMostFivePercent) {
  const auto layers = GetParam().layers();
  constexpr std::uint64_t kLeast = 1 << 20, kMost = 64 << 20;
  const auto chunk = memory::Layout::search(layers, kLeast, kMost);
  EXPECT_GE(chunk, kLeast);
  EXPECT_LE(chunk, kMost);
  EXPECT_EQ(chunk % memory::Layout::kPageElements, 0u);
  const memory::Layout layout(layers, chunk);
  EXPECT_LE(layout.waste(), 0.05) << "chunk of " << chunk << " elements";
  RecordProperty("chunk_elements", static_cast<int>(chunk));
  RecordProperty("waste_per_mille", static_cast<int>(layout.waste() * 1000));
  expect_covered_once(layout, layers);
}

// A layer with units that are used separately: tensors of 3, 1, 2 and 5 Mi elements, the last in three tiles, and small tensors
// before two of them.
Layers with_units() {
  constexpr std::uint64_t kMi = 1 << 20;
  return {{{"norm", 1000},
           {"a", 3 * kMi - 17},
           {"b", kMi, 0, true},
           {"bias", 500, 0, true},
           {"c", 2 * kMi + 5},
           {"table", 2 * kMi, 0, true},
           {"table", 2 * kMi, 2 * kMi, true},
           {"table", kMi, 4 * kMi, true}},
          {{"small", 100}, {"unit", 200, 0, true}}};
}

TEST(Layout, LargeUnitsAreRunsOfTheirOwn) {
  const auto layers = with_units();
  const memory::Layout layout(layers, 100'000);
  // The bias is smaller than a unit, so it stays with the previous tensor. The same holds for the whole second layer.
  std::vector<std::uint32_t> first_tensor_of_run;
  for (const auto& run : layout.runs_of(0))
    for (std::uint32_t t = 0; t < layout.tensors_of(0); ++t)
      if (layout.place(0, t).first_element == run.first * layout.chunk_elements()) first_tensor_of_run.push_back(t);
  EXPECT_EQ(first_tensor_of_run, (std::vector<std::uint32_t>{0, 2, 3, 5, 6, 7}));
  EXPECT_EQ(layout.runs_of(1).size(), 1U);
  std::uint32_t chunks = 0;
  for (const auto& run : layout.runs_of(0)) {
    EXPECT_EQ(run.first, chunks);
    chunks += run.count;
  }
  EXPECT_EQ(chunks, layout.chunks_of(0));
  for (std::uint32_t t = 0; t < layout.tensors_of(0); ++t) {
    const auto& place = layout.place(0, t);
    const auto& run = layout.run_of(place);
    EXPECT_GE(place.first_element, run.first * layout.chunk_elements()) << t;
    EXPECT_LE(place.first_element + place.elements, (run.first + run.count) * layout.chunk_elements()) << t;
  }
}

// Segments of tiles count elements from the beginning of the whole tensor.
TEST(Layout, SegmentsOfTilesCountFromTheBeginningOfTheirTensor) {
  const memory::Layout layout(with_units(), 50'000);
  std::uint64_t next = 0;
  for (std::uint32_t c = 0; c < layout.chunks_of(0); ++c)
    for (const auto& s : layout.segments(0, c)) {
      if (s.tensor < 5) continue;
      EXPECT_EQ(s.tensor_element, next);
      next += s.elements;
    }
  EXPECT_EQ(next, std::uint64_t{5} << 20);
}

// The blocks of the norm's sums do not depend on the ranks that share the chunks, although fewer units then have their own
// runs.
TEST(Layout, TheBlocksOfTensorsDoNotDependOnTheGroup) {
  const auto layers = with_units();
  const memory::Layout alone(layers, 100'000);
  std::set<std::size_t> runs;
  for (const std::uint32_t group : {1U, 2U, 3U, 4U, 8U, 64U}) {
    const memory::Layout layout(layers, 100'000 / group, group);
    runs.insert(layout.runs_of(0).size());
    for (std::uint32_t l = 0; l < layout.layers(); ++l)
      for (std::uint32_t t = 0; t < layout.tensors_of(l); ++t)
        EXPECT_EQ(layout.place_in_run(layout.place(l, t)) % memory::Layout::kBlockElements,
                  alone.place_in_run(alone.place(l, t)) % memory::Layout::kBlockElements)
            << "layer " << l << ", tensor " << t << ", group " << group;
    for (const auto& run : layout.runs_of(0)) EXPECT_EQ(run.first % group, 0U);
    for (const auto& run : layout.runs_of(0)) EXPECT_EQ(run.count % group, 0U);
  }
  EXPECT_GE(runs.size(), 3U);
}

TEST(Layout, SearchIsWithinHalfAPercentOfTheBestAndLargestThere) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 50; ++i) {
    Layers layers(1 + random() % 6);
    for (auto& layer : layers) {
      for (std::size_t t = 1 + random() % 5; t > 0; --t) layer.push_back({"t", 1 + random() % 200'000});
    }
    const std::uint64_t least = 2048, most = 2048 * 100;
    const auto found = memory::Layout::search(layers, least, most);
    double best = 1e9;
    for (auto c = least; c <= most; c += memory::Layout::kPageElements)
      best = std::min(best, memory::Layout(layers, c).waste());
    EXPECT_LE(memory::Layout(layers, found).waste(), best + 0.00501) << "case " << i;
    for (auto c = found + memory::Layout::kPageElements; c <= most; c += memory::Layout::kPageElements) {
      EXPECT_GT(memory::Layout(layers, c).waste(), best + 0.00499) << "case " << i << ": a larger size is as good";
    }
  }
}

TEST(Layout, CoversEveryElementOnceForAnyChunkSize) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(i);
    Layers layers(1 + random() % 5);
    for (auto& layer : layers) {
      for (std::size_t t = 1 + random() % 8; t > 0; --t) layer.push_back({"t", 1 + random() % (random() % 2 ? 100 : 20'000)});
    }
    expect_covered_once(memory::Layout(layers, 1 + random() % 10'000), layers);
  }
}

TEST(Layout, RefusesEmptyAndNegativeTensors) {
  EXPECT_THROW(memory::Layout({{{"empty", 0}}}, 2048), std::logic_error);
  EXPECT_THROW(memory::Layout({{{"negative", static_cast<std::uint64_t>(-5)}}}, 2048), std::logic_error);
  EXPECT_THROW(memory::Layout::search({{{"empty", 0}}}, 2048, 4096), std::logic_error);
}

TEST(Layout, ChunkSizeIsWholePages) {
  EXPECT_EQ(memory::Layout({{{"t", 10}}}, 1).chunk_elements(), memory::Layout::kPageElements);
  EXPECT_EQ(memory::Layout::search({{{"t", 10}}}, 1, 1), memory::Layout::kPageElements);
}

}  // namespace
}  // namespace terrace
