// A model of your own, trained by the library: which byte follows which in a text. Its weights, gradients and optimizer states
// move between a device, a host and a disk whose budgets hold a part of them each.      hello_trainer FILE
#include <fmt/format.h>

#include <terrace/core/text_file.h>
#include <terrace/core/thread_pool.h>
#include <terrace/parallel/train/initial_weights.h>
#include <terrace/parallel/train/trainer.h>

using namespace terrace;
constexpr std::int64_t kBytes = 256, kWidth = 64, kSeq = 32;

struct Plain : Layer {  // saves nothing between forward and backward but its input
  std::vector<TensorSpec> saved(BatchShape) const override { return {}; }
  std::vector<TensorSpec> carried(BatchShape) const override { return {}; }
  std::uint64_t scratch_bytes(BatchShape b) const override { return static_cast<std::uint64_t>(b.tokens()) * (kBytes * 4 + 8); }
  double forward_flops(BatchShape b) const override { return 2.0 * static_cast<double>(b.tokens() * kWidth * kBytes); }
};
struct Embed : Plain {
  std::string name() const override { return "embed"; }
  std::vector<ParamSpec> params() const override { return {{"table", {kBytes, kWidth}, {InitKind::normal, 0.1}}}; }
  void forward(LayerContext& c, const LayerTensors& t) const override {
    c.math.embed(c.stream, t.y, c.tokens, t.weights[0], {}, kSeq);
  }
  void backward(LayerContext& c, const LayerTensors& t, Half) const override {
    c.math.embed_grad(c.stream, t.gradients[0], {}, c.tokens, t.dy, kSeq, t.accumulate);
  }
};
struct Head : Plain {
  std::string name() const override { return "head"; }
  std::vector<ParamSpec> params() const override { return {{"out", {kBytes, kWidth}, {InitKind::normal, 0.1}}}; }
  void forward(LayerContext& c, const LayerTensors& t) const override { loss(c, t, {}); }
  void backward(LayerContext& c, const LayerTensors& t, Half) const override {
    const auto dlogits = loss(c, t, logits(c));
    c.math.matmul(c.stream, t.dx, dlogits, Transpose::no, t.weights[0], Transpose::no);
    c.math.matmul(c.stream, t.gradients[0], dlogits, Transpose::yes, t.x, Transpose::no, {}, t.accumulate);
  }
  static TensorView logits(LayerContext& c) {
    return {c.scratch.data + c.shape.tokens() * 8, DType::fp32, {c.shape.tokens(), kBytes}};
  }
  static TensorView loss(LayerContext& c, const LayerTensors& t, TensorView dlogits) {
    const TensorView losses{c.scratch.data, DType::fp64, {c.shape.tokens()}};
    c.math.matmul(c.stream, logits(c), t.x, Transpose::no, t.weights[0], Transpose::yes);
    c.math.cross_entropy(c.stream, losses, dlogits, logits(c), c.targets, c.loss_scale);
    c.math.sum(c.stream, c.loss, losses, Accumulate::no);
    return dlogits;
  }
};

int main(int, char** argv) try {
  const auto text = read_text_file(argv[1] ? argv[1] : __FILE__);
  Model model{.family = "bigram", .width = kWidth, .layers = {}};
  model.layers.push_back(std::make_unique<Embed>());
  model.layers.push_back(std::make_unique<Head>());
  ThreadPool pool(2);
  const auto device = make_cpu_device(pool);
  const auto optimizer = make_optimizer("adamw", {});
  const PlanRequest request{.shape = {{8, kSeq}, 2}, .budget = {640 * 1024, 320 * 1024, kMiB}, .disk_tier = true, .steps = 200};
  const auto planned = plan(model, request, {});
  if (!planned.fits) throw Error(planned.refusal.why, Exit::does_not_fit);
  Engine engine(model, planned,
                {.device = device.get(), .store = {.paths = {"."}, .temporary = true}, .optimizer = optimizer.get()});
  engine.fill(random_weights(1));
  const auto read = [&](Split, auto sequences, auto tokens, auto targets) {  // sequences are places of the text
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto at = (sequences[i / kSeq] * 7919 + i % kSeq) % (text.size() - 1);
      tokens[i] = static_cast<unsigned char>(text[at]), targets[i] = static_cast<unsigned char>(text[at + 1]);
    }
    return true;
  };
  Trainer trainer(engine, {.read = read, .rate = [](auto) { return 0.01; }, .greatest_norm = 1.0});
  const auto before = trainer.evaluate(8).value();
  while (trainer.done() < request.steps && trainer.read()) trainer.step();
  fmt::print("{:.3f} nats a byte, after {} steps {:.3f}; {} were moved\n", before, trainer.done(), trainer.evaluate(8).value(),
             format_bytes(engine.moved().upload + engine.moved().download + engine.moved().read + engine.moved().write));
} catch (const Error& error) {
  fmt::print(stderr, "error: {}\n", error.what());
  return static_cast<int>(error.exit());
}
