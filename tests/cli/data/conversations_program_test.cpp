// From conversations in JSON lines to a run: however the batch is split and packed, on several ranks, and resumed.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include <terrace/tests/cli/ranks/on_ranks.h>

namespace terrace::test {
namespace {

class Conversations : public Ranks {
 protected:
  Conversations() {
    scratch_.write("text.txt", "what is a tier and what is a chunk\nuser assistant answer\n");
    succeeded(terrace({"train-tokenizer", "text.txt", "--vocab", "280", "--out", "tokenizer.json"}));
    std::string lines;
    for (int i = 0; i < kLines; ++i)
      lines += R"({"instruction":"what is )" + std::to_string(i) + R"(","output":")" + std::string(1 + i % 5, 'a') + "\"}\n";
    scratch_.write("chat.jsonl", lines);
  }
  static constexpr int kLines = 9;  // one is held out
  // Standard input is read from a file.
  Launch with_input(Launch started, const std::string& said) const {
    scratch_.write("said", said);
    started.in_child = [file = at("said").string()] { ::dup2(::open(file.c_str(), O_RDONLY), STDIN_FILENO); };
    return started;
  }
  // With these --batch-size and --grad-accumulation, each step is one epoch.
  [[nodiscard]] Outcome learn(const std::string& run, const Words& more) const {
    return train(Words{"--data", "chat.jsonl", "--data-format", "jsonl", "--tokenizer", "tokenizer.json", "--vocab", "280",
                       "--dtype", "fp64", "--seq-len", "64", "--steps", "3", "--eval-batches", "1", "--out-dir", run} +
                 more);
  }
};

TEST_F(Conversations, TheLossDoesNotDependOnHowTheBatchIsCutOrPacked) {
  for (const auto& [run, more] : {std::pair<std::string, Words>{"whole", {"--batch-size", "8", "--grad-accumulation", "1"}},
                                  {"rows", {"--batch-size", "1", "--grad-accumulation", "8"}},
                                  {"packed", {"--seq-len", "520", "--batch-size", "1", "--grad-accumulation", "1"}},
                                  {"ranks", {"--batch-size", "2", "--grad-accumulation", "2", "--dp", "2", "--zero", "2"}}}) {
    const auto trained = succeeded(learn(run, more));
    const auto sequences = run == "packed" ? "1 sequences to train on" : "8 sequences to train on";
    EXPECT_THAT(trained.err + trained.out, HasSubstr(sequences));
    const auto one = steps("whole"), other = steps(run);
    ASSERT_EQ(3U, other.size());
    for (std::size_t s = 0; s < 3; ++s) {
      EXPECT_NEAR(one[s].loss, other[s].loss, 1e-11 * one[s].loss) << run << ", step " << s + 1;
      EXPECT_NEAR(one[s].gradient_norm, other[s].gradient_norm, 1e-9 * one[s].gradient_norm) << run;
    }
  }
}

TEST_F(Conversations, ARunGoesOnExactlyAndGenerates) {
  const auto whole = succeeded(learn("whole", {"--batch-size", "2", "--steps", "6"}));
  ASSERT_EQ(0, learn("run", {"--batch-size", "2", "--steps", "4"}).exit);
  const auto next = succeeded(learn("run", {"--batch-size", "2", "--steps", "6", "--resume", "auto", "--verify-resident"}));
  EXPECT_EQ(weights_of(whole), weights_of(next));

  succeeded(terrace({"train-tokenizer", "text.txt", "--vocab", "270", "--out", "tokenizer.json"}));
  expect_refusal(learn("run", {"--batch-size", "2", "--steps", "7", "--resume", "auto"}), 2, {"tokenizer", "checksum"});
}

TEST_F(Conversations, AreHeldOnStandardInputAndOutput) {
  ASSERT_EQ(0, learn("run", {"--batch-size", "2", "--seq-len", "1024", "--steps", "1"}).exit);
  const auto chat = [&](const std::string& said, const Words& more) {
    return with_input(launch(Words{"chat", "run", "--temperature", "3", "--json"} + more), said);
  };
  const auto one = succeeded(run(chat("hello\n", {"--max-tokens", "9"})));
  const auto two = succeeded(run(chat("hello\r\n \nmore", {"--max-tokens", "9"})));
  ASSERT_EQ(2U, two.lines().size()) << two.described;
  EXPECT_EQ(one.lines().at(0), two.lines().at(0));
  EXPECT_NE(one.out, run(chat("hello\n", {"--max-tokens", "9", "--system", "a tier"})).out);

  // Ctrl-C ends an answer, and the next message is answered.
  Child child(chat("a\nb\nc\nd\ne\nf\n", {"--max-tokens", "100", "--stop-token", "none"}));
  child.read_lines(1);
  child.send(SIGINT);
  const auto all = succeeded(child.wait());
  ASSERT_EQ(6U, all.lines().size()) << all.described;
  EXPECT_THAT(all.out, HasSubstr("interrupted"));
  EXPECT_THAT(all.lines().at(0), HasSubstr("max tokens"));

  const auto longer = succeeded(run(chat(std::string(2000, 'x') + "\n" + "hello\n", {"--max-tokens", "9"})));
  EXPECT_THAT(longer.err, HasSubstr("1024 positions"));
  EXPECT_EQ(one.out, longer.out);
  const auto forgets = run(chat(std::string(700, 'x') + "\n" + std::string(700, 'y') + "\n", {"--max-tokens", "1"}));
  EXPECT_THAT(forgets.err, HasSubstr("were forgotten"));
  EXPECT_EQ(2U, forgets.lines().size()) << forgets.described;

  ASSERT_EQ(0, train({"--out-dir", "bytes"}).exit);
  expect_refusal(terrace({"chat", "bytes"}), 2, {"trained on bytes", "--data-format jsonl"});
}

// A run directory is complete: it can be moved, copied and exported after its original files are gone.
TEST_F(Conversations, ARunKeepsItsTokenizer) {
  namespace fs = std::filesystem;
  scratch_.write("tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  fs::rename(at("tokenizer.json"), at("other-name.json"));
  ASSERT_EQ(0, learn("conversations", {"--tokenizer", "other-name.json", "--steps", "1"}).exit);
  ASSERT_EQ(0, terrace({"tokenize", "text.txt", "--tokenizer", "other-name.json", "--out", "ids"}).exit);
  const Words ids{"--data", "ids", "--data-format", "u16", "--vocab", "280", "--seq-len", "8", "--steps", "1"};
  expect_refusal(train(ids + Words{"--tokenizer", "other-name.json", "--vocab", "270", "--out-dir", "none"}), 2, {"280 ids"});
  ASSERT_EQ(0, train(ids + Words{"--out-dir", "older"}).exit);  // like runs of ids from before they could keep a tokenizer
  ASSERT_EQ(0, train(ids + Words{"--tokenizer", "other-name.json", "--out-dir", "ids-run"}).exit);
  const auto tokenizer = scratch_.read("other-name.json");
  fs::remove(at("other-name.json"));
  fs::remove(at("tokenizer_config.json"));
  for (const std::string run : {"conversations", "ids-run"}) {
    SCOPED_TRACE(run);
    EXPECT_EQ(tokenizer, scratch_.read(run + "/tokenizer/tokenizer.json"));
    ASSERT_EQ(0, terrace({"ckpt", "copy", run, run + "-copy"}).exit);
    fs::remove_all(at(run));
    succeeded(terrace({"generate", run + "-copy", "--prompt", "what", "--max-tokens", "3"}));
    succeeded(terrace({"ckpt", "export", run + "-copy", run + "-dir"}));
    EXPECT_EQ(tokenizer, scratch_.read(run + "-dir/tokenizer.json"));
    EXPECT_TRUE(fs::exists(at(run + "-dir/tokenizer_config.json")));
    // Conversations use the tokenizer in the model's directory.
    succeeded(train({"--model", run + "-dir", "--data", "chat.jsonl", "--data-format", "jsonl", "--eval-batches", "1",
                     "--eval-first", "--steps", "1", "--seq-len", "64", "--out-dir", run + "-next"}));
  }
  expect_refusal(terrace({"generate", "older", "--prompt", "what"}), 2, {"without a --tokenizer", "give the --tokenizer"});
  // A run of an older version has no copy and no checksums of it; the tokenizer is then read from the path in the flags.
  fs::remove_all(at("conversations-next/tokenizer"));
  expect_refusal(terrace({"generate", "conversations-next", "--prompt", "what"}), 5, {"tokenizer.json: the file is missing"});
  auto run_file = json_in("conversations-next/run.json");
  run_file.erase("tokenizer");
  scratch_.write("conversations-next/run.json", run_file.dump());
  succeeded(terrace({"generate", "conversations-next", "--prompt", "what", "--max-tokens", "3"}));
}

// A model directory with Llama 3's template: the run equals one with texts written by hand, and so do the answers.
TEST_F(Conversations, AreWrittenByTheModelsTemplate) {
  constexpr const char* kTemplate =
      "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | "
      "trim + "
      "'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% "
      "endif %}";
  Words words{"train-tokenizer", "text.txt", "--vocab", "280", "--out", "llama.json"};
  for (const auto* const special : {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"})
    words = words + Words{"--special", special};
  ASSERT_EQ(0, terrace(words).exit);
  ASSERT_EQ(0, train(flags("--data-format bytes --vocab 280 --dtype fp64 --seq-len 160 --steps 1 --out-dir base")).exit);
  ASSERT_EQ(0, terrace({"ckpt", "export", "base", "dir"}).exit);
  std::filesystem::copy_file(at("llama.json"), at("dir/tokenizer.json"));
  scratch_.write("dir/tokenizer_config.json", R"({"bos_token": "<|begin_of_text|>", "eos_token": {"content": "<|eot_id|>"}})");
  scratch_.write("dir/chat_template.jinja", kTemplate);

  const auto prompt = [](const std::string& question) {
    return "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n" + question +
           "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n";
  };
  std::string spelled;
  for (int i = 0; i < kLines; ++i)
    spelled +=
        nlohmann::json{{"prompt", prompt("what is " + std::to_string(i))}, {"completion", std::string(1 + i % 5, 'a')}}.dump() +
        "\n";
  scratch_.write("spelled.jsonl", spelled);
  const auto tuned = [&](const std::string& run, const std::string& data, const Words& more) {
    return train(Words{"--model", "dir", "--data", data, "--data-format", "jsonl", "--seq-len", "160", "--batch-size", "2",
                       "--steps", "3", "--eval-batches", "1", "--out-dir", run} +
                 more);
  };
  const auto by_template = succeeded(tuned("run", "chat.jsonl", {}));
  EXPECT_EQ(0U, by_template.warnings("chat template"));
  const auto by_hand = succeeded(tuned("by-hand", "spelled.jsonl", {}));
  EXPECT_EQ(steps("by-hand"), steps("run"));
  EXPECT_EQ(weights_of(by_hand), weights_of(by_template));

  const auto said =
      succeeded(run(with_input(launch({"chat", "run", "--temperature", "0", "--max-tokens", "9", "--json"}), "what is 7\n")));
  EXPECT_EQ(nlohmann::json::parse(succeeded(terrace({"generate", "run", "--prompt", prompt("what is 7"), "--temperature", "0",
                                                     "--max-tokens", "9", "--json"}))
                                      .out)["text"],
            prompt("what is 7") + nlohmann::json::parse(said.out)["answer"].get<std::string>());

  scratch_.write("dir/chat_template.jinja", "{{ strftime_now('%Y') }}" + std::string(kTemplate));
  expect_refusal(tuned("run", "chat.jsonl", {"--steps", "4", "--resume", "auto"}), 2, {"chat template"});
  expect_refusal(tuned("none", "chat.jsonl", {}), 2,
                 {"chat_template.jinja, line 1", "the same text each day", "--template-date"});
  succeeded(tuned("dated", "chat.jsonl", {"--template-date", "2026-11-26"}));
  expect_refusal(tuned("none", "chat.jsonl", {"--template-date", "2026-02-31"}), 2, {"--template-date", "is no day"});
  scratch_.write("dir/chat_template.jinja", "\n{% include 'x' %}");
  expect_refusal(tuned("none", "chat.jsonl", {}), 2,
                 {"chat_template.jinja, line 2", "'include' is not supported", "docs/guides/chat.md"});
  scratch_.write("run/tokenizer/chat_template.jinja", "\n{% include 'x' %}");
  expect_refusal(run(with_input(launch({"chat", "run"}), "a\n")), 5, {"chat_template.jinja: the file is damaged"});
}

// A step whose conversations have no answer left gives a warning and changes nothing.
TEST_F(Conversations, AStepWithoutTargetsSaysSoAndChangesNothing) {
  const auto asked = [](const std::string& question) {
    return R"({"instruction":")" + question + R"(","output":"yes"})" + "\n";
  };
  std::string lines;
  for (int i = 0; i < 12; ++i) lines += asked(i == 5 ? "short" : std::string(200, 'q') + std::to_string(i));
  scratch_.write("chat.jsonl", lines);
  const auto run = succeeded(
      learn("run", flags("--batch-size 1 --grad-accumulation 1 --steps 22 --eval-first --ckpt-interval 3 --verify-resident")));
  EXPECT_EQ(
      1U, run.warnings("--seq-len 64 cuts off 92 % of the tokens of the answers in chat.jsonl, and leaves nothing to learn of "
                       "11 of 12 conversations; raise --seq-len"));
  EXPECT_THAT(run.out, HasSubstr("  no targets"));
  EXPECT_THAT(run.out, Not(HasSubstr("was skipped")));
  std::size_t empty = 0;
  for (const auto& m : metrics("run")) {
    EXPECT_NE(m.contains("loss"), m.value("no_targets", false)) << m;
    empty += m.contains("loss") ? 0 : 1;
    EXPECT_FALSE(m.contains("eval_loss")) << "the held-out conversation has no answer left";
  }
  EXPECT_EQ(20U, empty) << "two epochs of eleven sequences";
  const auto result = json_in("run/result.json");
  EXPECT_FALSE(result.contains("eval_loss") || result.contains("first_eval_loss"));
  EXPECT_THAT(result.at("warnings").at(0).get<std::string>(), HasSubstr("cuts off"));
  EXPECT_THAT(scratch_.read("run/report.html"), HasSubstr("Warning: --seq-len 64 cuts off"));
  // The result equals a run of only the two steps with targets.
  scratch_.write("chat.jsonl", asked("short"));
  const auto alone = succeeded(learn("alone", {"--batch-size", "1", "--grad-accumulation", "1", "--steps", "2"}));
  EXPECT_THAT(alone.out + alone.err, HasSubstr("1 conversations: 1 sequences to train on, 0 held out"));
  std::vector<double> losses;
  for (const auto& m : metrics("run"))
    if (m.contains("loss")) losses.push_back(m.at("loss").get<double>());
  ASSERT_EQ(2U, losses.size());
  EXPECT_EQ(losses[0], metrics("alone").at(0).at("loss").get<double>());

  scratch_.write("chat.jsonl", lines);
  const auto plan = succeeded(terrace(
      tiny("plan", flags("--data chat.jsonl --data-format jsonl --tokenizer tokenizer.json --vocab 280 --seq-len 64"))));
  EXPECT_EQ(1U, plan.warnings("cuts off 92 %"));
}

// Changed marks of messages, in a file with as many bytes and tokens as before.
TEST_F(Conversations, AChangedFileIsNoticedAtAResume) {
  ASSERT_EQ(0, learn("run", {"--batch-size", "2", "--steps", "1"}).exit);
  auto lines = scratch_.read("chat.jsonl");
  lines[lines.find("what is 3")] = 'W';
  scratch_.write("chat.jsonl", lines);
  expect_refusal(learn("run", {"--batch-size", "2", "--steps", "2", "--resume", "auto"}), 2,
                 {"has changed since it began: chat.jsonl"});
}

TEST_F(Conversations, RefusalsSayWhatToDo) {
  expect_refusal(train({"--data", "chat.jsonl", "--data-format", "jsonl"}), 2, {"--tokenizer"});
  expect_refusal(train({"--tokenizer", "tokenizer.json", "--data-format", "bytes"}), 2, {"--tokenizer", "--data-format"});
  expect_refusal(learn("none", {"--vocab", "256"}), 2, {"280 ids", "--vocab 256"});
  expect_refusal(learn("none", {"--document-separator", "0"}), 2, {"--document-separator"});
  scratch_.write("chat.jsonl", "{\"instruction\":\"a\",\"output\":\"b\"}\n{\"instruction\":\"a\"}\n");
  expect_refusal(learn("none", {}), 2, {"chat.jsonl, line 2", "no \"output\""});
  scratch_.write("chat.jsonl", "");
  expect_refusal(learn("none", {}), 2, {"the data has no conversation"});
  EXPECT_FALSE(std::filesystem::exists(at("none")));
}

}  // namespace
}  // namespace terrace::test
