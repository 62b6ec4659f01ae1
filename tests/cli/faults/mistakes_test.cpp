// Typical mistakes of users of other programs, and the answers to them.
#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

class Mistakes : public Cli {};

TEST_F(Mistakes, AreAnsweredWithTheLineToType) {
  std::filesystem::create_directory(at("model"));
  for (const auto& [words, exit, said] : std::vector<std::tuple<Words, int, std::vector<std::string>>>{
           {{"--device-memory", "512"}, 3, {"--device-memory 512 is 512 bytes", "--device-memory 512MiB"}},
           {{"--host-memory", "24"}, 3, {"--host-memory 24 is 24 bytes", "--host-memory 24GiB"}},
           {{"--nvme-path", "nowhere"}, 4, {"--nvme-path nowhere does not exist", "mkdir -p nowhere"}},
           {{"--learning-rate", "1e-3"}, 2, {"unknown flag --learning-rate; terrace has --lr\n"}},
           {{"--gradient_accumulation_steps=4"}, 2, {"; terrace has --grad-accumulation\n"}},
           {{"--num_train_epochs", "2"}, 2, {"; terrace has --epochs\n"}},
           {{"--format", "u16"}, 2, {"; terrace has --data-format\n"}},
           {{"-o", "run"}, 2, {"; terrace has --out-dir\n"}},
           {{"--bf16"}, 2, {"; terrace has --dtype bf16\n"}},
           {{"--micro-batches", "4"}, 2, {"; terrace has --grad-accumulation\n"}},
           {{"--stepz", "4"}, 2, {"did you mean --steps?"}},
           {{"corpus.txt"}, 2, {"unexpected argument \"corpus.txt\"; give --data corpus.txt\n"}},
           {{"model"}, 2, {"unexpected argument \"model\"; give --model model\n"}},
           {{"other"}, 2, {"unexpected argument \"other\"\n"}},
           {{"--model", "someone/Llama-3.2-1B"},
            2,
            {"there is no directory someone/Llama-3.2-1B", "hf download someone/Llama-3.2-1B"}},
           {{"--lora-rank", "2", "--lora-targets", "qproj"}, 2, {"has no product \"qproj\"", "q, k, v"}}}) {
    SCOPED_TRACE(words.front());
    const auto outcome = train(words + Words{"--out-dir", "none"});
    expect_refusal(outcome, exit, said);
    EXPECT_FALSE(std::filesystem::exists(at("none")));
  }
  expect_refusal(terrace({"generate", "--learning-rate", "1"}), 2, {"unknown flag --learning-rate\n"});
}

// A plan for an absent machine can use a machine name that the program knows, from any folder.
TEST_F(Mistakes, APlanForACardThatIsNotHereNamesProfiles) {
  expect_refusal(terrace(tiny("plan", {"--device", "cuda:0"})), 4,
                 {"no GPU was found", "terrace plan --cluster-profile gpu-24gb"});
  double before = 0;
  for (const auto* const card : {"gpu-141gb", "gpu-80gb", "gpu-48gb", "gpu-32gb", "gpu-24gb"}) {
    const auto planned = succeeded(
        terrace(tiny("plan", {"--device",    "auto",  "--layers",      "32",   "--hidden",          "4096", "--heads", "32",
                              "--vocab",     "32000", "--data-format", "u16",  "--seq-len",         "512",  "--dtype", "bf16",
                              "--nvme-path", "disk",  "--tiles",       "auto", "--cluster-profile", card,   "--json"})));
    const double step_s = nlohmann::json::parse(planned.out).at("step_time_s");
    EXPECT_GT(step_s, before) << card << ", which is slower than the one before";
    before = step_s;
  }
  expect_refusal(terrace(tiny("plan", {"--cluster-profile", "gpu-23gb"})), 2, {"gpu-23gb", "one of", "gpu-24gb"});
}

TEST_F(Mistakes, ZeroOnOneRankIsNoted) {
  const auto outcome = succeeded(train({"--zero", "3"}));
  EXPECT_THAT(outcome.out, HasSubstr("--zero 3: there is one data rank, so nothing is sharded"));
}

TEST_F(Mistakes, ThatHaveOneMeaningAreTakenSo) {
  const auto trained = [&](const std::string& targets) {
    return weights_of(train({"--lora-rank", "2", "--lora-targets", targets, "--out-dir", "run " + targets}));
  };
  EXPECT_EQ(trained("q,down"), trained("q_proj, down_proj"));
  EXPECT_EQ(trained("all"), trained("all-linear"));
}

}  // namespace
}  // namespace terrace::test
