// Layers over sequences of several documents: each document gets the rows that the layer computes for it as a sequence of its
// own, in every dtype, forward and backward.
#include <terrace/tests/examples/lm/layer_harness.h>

#include <fmt/format.h>

namespace terrace::test {
namespace {

struct Part {
  std::int64_t sequence, begin, count;
};
// Two sequences of 9 positions, with documents of one position, at both ends, and longer than half a sequence.
constexpr std::int64_t kSeq = 9;
const std::vector<Part> kParts{{0, 0, 1}, {0, 1, 5}, {0, 6, 3}, {1, 0, 8}, {1, 8, 1}};

std::vector<std::int32_t> begins() {
  std::vector<std::int32_t> all(2 * kSeq);
  for (const auto& part : kParts)
    for (std::int64_t i = 0; i < part.count; ++i)
      all[static_cast<std::size_t>(part.sequence * kSeq + part.begin + i)] = static_cast<std::int32_t>(part.begin);
  return all;
}

// The elements of a part's rows, from a tensor of all rows.
Values rows_of(const TensorView& all, const Part& part) {
  const auto values = get(all);
  const auto width = static_cast<std::int64_t>(values.size()) / (2 * kSeq), first = (part.sequence * kSeq + part.begin) * width;
  return {values.begin() + first, values.begin() + first + part.count * width};
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::fp64: return 1e-12;
    case DType::fp32: return 2e-5;
    default: return 2e-2;
  }
}

class DocumentsLayers : public testing::Test {
 protected:
  void SetUp() override {
    if (!test_skip_reason.empty()) GTEST_SKIP() << test_skip_reason;
  }
  Values normal(std::int64_t n) {
    std::normal_distribution<double> draw(0, 0.5);
    Values values(static_cast<std::size_t>(n));
    for (auto& value : values) value = draw(generator_);
    return values;
  }
  void expect_documents_alone(const lm::ModelConfig& config, std::size_t number);

  Machine machine_;
  std::mt19937_64 generator_{5};
};

void DocumentsLayers::expect_documents_alone(const lm::ModelConfig& config, std::size_t number) {
  const Model model = lm::make_model(config);
  const auto& layer = *model.layers[number];
  SCOPED_TRACE(fmt::format("{}, {}, window {}", layer.name(), name_of(config.dtype), to_string(config.window)));
  const auto make = [&](BatchShape shape) {
    return std::make_unique<LayerRun>(machine_, layer, config.dtype, config.hidden, shape, number == 0, false);
  };
  const auto all = make({2, kSeq});
  all->document_begins = begins();
  for (std::size_t p = 0; p < all->params.size(); ++p) set(all->weights.views[p], normal(all->params[p].shape.elements()));
  for (const auto* const tensor : {&all->x, &all->dy})
    for (const auto& view : tensor->views) set(view, normal(view.elements()));
  Values tokens(2 * kSeq);
  for (auto& token : tokens) token = static_cast<double>(generator_() % 256);
  set(all->tokens(), tokens);
  all->forward();
  all->backward(Half::both);

  std::vector<Values> sums(all->params.size());
  for (const auto& part : kParts) {
    const auto one = make({1, part.count});
    for (std::size_t p = 0; p < sums.size(); ++p) set(one->weights.views[p], get(all->weights.views[p]));
    if (number != 0) set(one->x.views[0], rows_of(all->x.views[0], part));
    set(one->dy.views[0], rows_of(all->dy.views[0], part));
    set(one->tokens(), rows_of(all->tokens(), part));
    one->forward();
    one->backward(Half::both);
    const auto what = fmt::format("sequence {} from {}", part.sequence, part.begin);
    expect_near(get(one->y.views[0]), rows_of(all->y.views[0], part), tolerance(config.dtype), "y of " + what);
    if (number != 0)
      expect_near(get(one->dx.views[0]), rows_of(all->dx.views[0], part), tolerance(config.dtype), "dx of " + what);
    for (std::size_t p = 0; p < sums.size(); ++p) {
      const auto gradient = get(one->gradients.views[p]);
      sums[p].resize(gradient.size());
      for (std::size_t i = 0; i < gradient.size(); ++i) sums[p][i] += gradient[i];
    }
  }
  for (std::size_t p = 0; p < sums.size(); ++p)
    expect_near(sums[p], get(all->gradients.views[p]), tolerance(config.dtype), all->params[p].name);
}

TEST_F(DocumentsLayers, ADocumentIsASequenceOfItsOwn) {
  for (const auto* const family : {"gpt2", "llama"})
    for (const std::int64_t window : {0, 3})
      for (const auto dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16}) {
        auto config = lm::complete({.family = lm::family_named(family),
                                    .layers = 1,
                                    .hidden = 64,
                                    .heads = 2,
                                    .ffn = 24,
                                    .seq_len = kSeq,
                                    .window = window,
                                    .vocab = 257,
                                    .dtype = dtype});
        for (const std::size_t number : {std::size_t{0}, std::size_t{1}}) expect_documents_alone(config, number);
        if (HasFatalFailure()) return;
      }
}

}  // namespace
}  // namespace terrace::test
