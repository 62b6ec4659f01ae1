// A small transformer of your own, trained by the library: it learns which byte of a text comes next. Its weights, gradients
// and optimizer states move between a device, a host and a disk, each too small for all of them.
//
//   hello_trainer FILE
#include <fmt/format.h>

#include <terrace/core/base/text_file.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/parallel/layers/chain.h>
#include <terrace/parallel/train/initial_weights.h>
#include <terrace/parallel/train/trainer.h>

using namespace terrace;
constexpr std::int64_t kSeq = 32;

std::string read_text(const char* file) try {
  auto text = read_text_file(file);
  if (text.size() < 1000) throw Error("training needs at least 1000 bytes");
  return text;
} catch (const Error& error) {
  throw Error(fmt::format("{}: {}", file, error.what()), Exit::usage);
}

int main(int, char** argv) try {
  const auto text = read_text(argv[1] ? argv[1] : __FILE__);
  const Model model = layers::make_transformer(
      {.layers = 2, .hidden = 64, .heads = 4, .kv_heads = 2, .ffn = 192, .seq_len = kSeq, .vocab = 256});
  ThreadPool pool(2);
  const auto device = make_cpu_device(pool);
  const auto optimizer = make_optimizer("adamw", {});
  const PlanRequest request{
      .shape = {{4, kSeq}, 2}, .budget = {1536 * kKiB, 1536 * kKiB, 4 * kMiB}, .disk_tier = true, .steps = 200};
  const auto planned = plan(model, request, {});
  if (!planned.fits) throw Error(planned.refusal.why, Exit::does_not_fit);
  Engine engine(model, planned,
                {.device = device.get(), .store = {.paths = {"."}, .temporary = true}, .optimizer = optimizer.get()});
  engine.fill(random_weights(1));

  // The training reads from the first nine tenths of the text, the evaluation from the rest.
  const auto read = [&](Split split, auto sequences, auto tokens, auto targets) {
    const auto cut = text.size() / 10 * 9;
    const auto begin = split == Split::training ? 0 : cut, end = split == Split::training ? cut : text.size();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto at = begin + sequences[i / kSeq] * 7919 % (end - begin - kSeq) + i % kSeq;
      tokens[i] = static_cast<unsigned char>(text[at]);
      targets[i] = static_cast<unsigned char>(text[at + 1]);
    }
    return true;
  };
  Trainer trainer(engine, {.read = read, .rate = [](auto) { return 0.002; }, .greatest_norm = 1.0});
  const auto before = trainer.evaluate(8).value();
  while (trainer.done() < request.steps && trainer.read()) trainer.step();

  const auto moved = engine.moved();
  fmt::print("{:.3f} nats a byte, after {} steps {:.3f}; {} were moved, {} of them from and to the disk\n", before,
             trainer.done(), trainer.evaluate(8).value(),
             format_bytes(moved.upload + moved.download + moved.read + moved.write), format_bytes(moved.read + moved.write));
} catch (const Error& error) {
  fmt::print(stderr, "error: {}\n", error.what());
  return static_cast<int>(error.exit());
}
