// Trains LoRA adapters of a published model on conversations, and writes them as Hugging Face's PEFT does.
//   hello_lora MODEL-DIRECTORY CONVERSATIONS.jsonl NEW-DIRECTORY [2 | mpi]      2: threads; mpi: the processes of mpirun
#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/chat/conversation_data.h>
#include <terrace/examples/lm/models/fine_tuning.h>
#include <terrace/parallel/comm/mpi/mpi.h>
#include <terrace/parallel/comm/threads/run_ranks.h>
#include <terrace/parallel/train/agree_on_plan.h>
#include <terrace/parallel/train/trainer.h>

using namespace terrace;

void train(const std::string& directory, const std::string& file, const std::string& to, std::unique_ptr<Communicator> own) {
  auto config = lm::read_model_dir(directory);
  config.seq_len = std::min<std::int64_t>(config.seq_len, 64);
  config.adapters = lm::adapters_of(config.family, config.experts.count > 0, 8, 16, "all");
  const Model model = lm::make_model(config);
  const auto tokenizer = lm::Tokenizer::read(lm::tokenizer_in(directory));
  const lm::ChatFormat format(tokenizer, lm::read_tokenizer_config(directory));
  const auto tokens = fmt::format("{}.tokens-{}", to, own->rank());
  lm::ConversationData data({lm::newly_encoded(file, tokens, format, config.seq_len)}, 1);
  ThreadPool pool(2);
  const auto device = make_cpu_device(pool);
  Agreement ranks(*own, *device);
  const auto count = static_cast<std::uint32_t>(own->size());
  if (4 % count != 0) throw Error("four micro-batches need one, two or four ranks", ErrorKind::refused);
  PlanRequest request{.shape = {{2, config.seq_len}, 4 / count}, .budget = {64 * kMiB, 256 * kMiB}};
  request.mesh.shard = count;
  request.data = {.zero = 2, .canonical = true};
  const auto optimizer = make_optimizer("adamw", {});
  Engine engine(model, plan_together(ranks, model, request),
                {.device = device.get(),
                 .store = {.paths = {"."}, .name = fmt::format("lora-{}", own->rank()), .temporary = true},
                 .optimizer = optimizer.get(),
                 .communicator = own.get()});
  engine.fill(lm::first_weights(directory, config, 1));
  Trainer trainer(engine, {.read = data.reader(),
                           .rate = [](auto) { return 0.004; },
                           .greatest_norm = 1.0,
                           .ranks = &ranks,
                           .documents = data.numbers()});
  const auto before = trainer.evaluate(4).value();
  while (trainer.done() < 30 && trainer.read()) trainer.step();
  const auto after = trainer.evaluate(4).value();
  lm::save_adapters(engine, to, config, directory, own->rank() == 0);
  std::filesystem::remove(tokens);
  if (own->rank() == 0) fmt::print("held-out loss {:.5f}, after {} steps {:.5f}\n", before, trainer.done(), after);
}

int main(int count, char** words) try {
  if (count < 4) throw Error("give a model's directory, a file of conversations and a new directory", ErrorKind::refused);
  const std::string ranks = count > 4 ? words[4] : "1";
  const auto run = [&](auto own) { train(words[1], words[2], words[3], std::move(own)); };
  ranks == "mpi" ? run(make_mpi_communicator()) : run_ranks(std::stoi(ranks), {}, run);
} catch (const std::exception& error) {
  fmt::print(stderr, "error: {}\n", error.what());
  return 1;
}
