// A small transformer of your own, trained by the library: it learns which byte of a text comes next. Its weights, gradients
// and optimizer states move between a device, a host and a disk, each too small for all of them.
//
//   hello_trainer FILE                       on one rank
//   hello_trainer FILE 2                     on two threads of this process: the same numbers, bit for bit
//   mpirun -n 2 hello_trainer FILE mpi       on two processes
#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/text_file.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/parallel/comm/mpi/mpi.h>
#include <terrace/parallel/comm/threads/run_ranks.h>
#include <terrace/parallel/layers/chain.h>
#include <terrace/parallel/train/agree_on_plan.h>
#include <terrace/parallel/train/initial_weights.h>
#include <terrace/parallel/train/trainer.h>

using namespace terrace;
constexpr std::int64_t kSeq = 32;
constexpr std::uint32_t kMicroBatches = 2;  // of a step, on all ranks together

std::string read_text(const char* file) try {
  auto text = read_text_file(file);
  if (text.size() < 1000) throw Error("training needs at least 1000 bytes");
  return text;
} catch (const Error& error) {
  throw Error(fmt::format("{}: {}", file, error.what()), ErrorKind::refused);
}

void train(const std::string& text, std::unique_ptr<Communicator> own) {
  ThreadPool pool(2);
  const auto device = make_cpu_device(pool);
  Agreement ranks(*own, *device);
  const auto count = static_cast<std::uint32_t>(own->size());
  if (kMicroBatches % count != 0)
    throw Error(fmt::format("{} ranks do not divide {} micro-batches", count, kMicroBatches), ErrorKind::refused);

  const Model model = layers::make_transformer(
      {.layers = 2, .hidden = 64, .heads = 4, .kv_heads = 2, .ffn = 192, .seq_len = kSeq, .vocab = 256});
  PlanRequest request{.shape = {{4, kSeq}, kMicroBatches / count},
                      .budget = {1536 * kKiB, 1536 * kKiB, 4 * kMiB},
                      .disk_tier = true,
                      .steps = 200,
                      .mesh = {.shard = count},
                      .data = {.zero = 2, .canonical = true}};
  const auto optimizer = make_optimizer("adamw", {});
  Engine engine(model, plan_together(ranks, model, request),
                {.device = device.get(),
                 .store = {.paths = {"."}, .name = fmt::format("hello-{}", own->rank()), .temporary = true},
                 .optimizer = optimizer.get(),
                 .communicator = own.get()});
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
  Trainer trainer(engine, {.read = read, .rate = [](auto) { return 0.002; }, .greatest_norm = 1.0, .ranks = &ranks});
  const auto before = trainer.evaluate(8).value();
  while (trainer.done() < request.steps && trainer.read()) trainer.step();
  const auto after = trainer.evaluate(8).value();

  const auto moved = engine.moved();
  if (own->rank() == 0)
    fmt::print("{:.3f} nats a byte, after {} steps {:.3f}; {} were moved, {} of them from and to the disk\n", before,
               trainer.done(), after, format_bytes(moved.upload + moved.download + moved.read + moved.write),
               format_bytes(moved.read + moved.write));
}

int main(int count, char** words) try {
  const auto text = read_text(count > 1 ? words[1] : __FILE__);
  const std::string ranks = count > 2 ? words[2] : "1";
  if (ranks == "mpi")
    train(text, make_mpi_communicator());
  else
    run_ranks(std::stoi(ranks), {}, [&](auto own) { train(text, std::move(own)); });
} catch (const std::exception& error) {
  fmt::print(stderr, "error: {}\n", error.what());
  return 1;
}
