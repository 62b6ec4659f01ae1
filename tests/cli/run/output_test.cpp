// Output for machines has exactly these keys and no other text around it, a run does what its plan says, and output that is not
// a terminal has no escape codes.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

using nlohmann::json;
using testing::IsSubsetOf;

const Words kOffloaded{"--nvme-path", "disk", "--device-memory", "1MiB", "--host-memory", "1MiB"};

std::vector<std::string> keys(const json& object) {
  std::vector<std::string> all;
  for (const auto& item : object.items()) all.push_back(item.key());
  return all;
}

class Output : public Cli {
 protected:
  [[nodiscard]] json plan(const Words& words, int exit = 0) const {
    const auto outcome = terrace(tiny("plan", words + Words{"--json"}));
    EXPECT_EQ(exit, outcome.exit) << outcome.described;
    return json::parse(outcome.out);
  }
};

TEST_F(Output, JsonOfATrainingRun) {
  const auto outcome = succeeded(train(kOffloaded + Words{"--json", "--eval-interval", "2"}));
  const auto lines = outcome.lines();
  ASSERT_EQ(5U, lines.size()) << outcome.described;
  const auto in_file = metrics("run");
  for (std::size_t i = 0; i < 4; ++i) {
    const auto step = json::parse(lines[i]);
    EXPECT_EQ(in_file[i], step) << "the screen and metrics.jsonl differ";
    EXPECT_THAT((std::vector<std::string>{"step", "loss", "grad_norm", "lr", "tokens", "step_time_s", "tokens_per_s", "mem",
                                          "offload"}),
                IsSubsetOf(keys(step)));
    EXPECT_THAT((std::vector<std::string>{"device_peak_bytes", "host_peak_bytes", "nvme_peak_bytes"}),
                IsSubsetOf(keys(step.at("mem"))));
    EXPECT_THAT((std::vector<std::string>{"read_bytes", "write_bytes", "h2d_bytes", "d2h_bytes", "stall_s"}),
                IsSubsetOf(keys(step.at("offload"))));
    EXPECT_EQ(i + 1, step.at("step"));
    EXPECT_EQ(2 * 64, step.at("tokens"));
    EXPECT_EQ(i % 2 == 1, step.contains("eval_loss")) << "evaluations are after steps 2 and 4";
  }
  EXPECT_EQ(16U, json::parse(lines[4]).at("weights_xxh64").get<std::string>().size());
  EXPECT_EQ(weights_of(outcome), json_in("run/result.json").at("weights_xxh64").get<std::string>());
}

// With --eval-first, the initial weights also have a held-out loss: it equals that of a run whose steps change nothing.
TEST_F(Output, AnEvaluationBeforeTheFirstStep) {
  succeeded(train({"--steps", "1", "--lr", "1e-30", "--min-lr", "1e-30", "--out-dir", "still"}));
  const auto first = json_in("still/result.json").at("eval_loss");
  const auto begun = succeeded(train(kOffloaded + Words{"--eval-first", "--steps", "2", "--lr-schedule", "constant"}));
  EXPECT_THAT(begun.out, HasSubstr("before the first step"));
  EXPECT_EQ(first, metrics("run").at(0).at("first_eval_loss"));
  EXPECT_FALSE(metrics("run").at(1).contains("first_eval_loss"));
  EXPECT_EQ(first, json_in("run/result.json").at("first_eval_loss"));
  const auto planned = json_in("run/plan.json"), result = json_in("run/result.json");
  EXPECT_EQ(planned.at("peak_bytes"), result.at("peak_bytes")) << "the plan walks this evaluation, too";
  // Neither a resumed nor a finished run evaluates them again, but both report the loss.
  for (const auto* const what : {"goes on", "is finished"}) {
    const auto next = succeeded(train(kOffloaded + Words{"--eval-first", "--lr-schedule", "constant", "--resume", "auto"}));
    EXPECT_EQ(first, json_in("run/result.json").at("first_eval_loss")) << what;
    EXPECT_EQ(std::string(what) == "is finished", next.out.find("before the first step") != std::string::npos)
        << next.described;
  }
  // Evaluating first changes no bit of the training.
  const auto without = train(kOffloaded + Words{"--lr-schedule", "constant", "--out-dir", "without"});
  EXPECT_EQ(json_in("run/result.json").at("weights_xxh64"), json_in("without/result.json").at("weights_xxh64"));
}

// Evaluations may have any number of micro-batches, but a trace is kept in memory.
TEST_F(Output, TheTraceHasOnlyTheLastMicroBatchesOfAnEvaluation) {
  const auto events_of = [&](const std::string& run, const std::string& eval_batches) {
    succeeded(train({"--steps", "2", "--out-dir", run, "--eval-batches", eval_batches}));
    return json_in(run + "/trace.json").at("traceEvents").size();
  };
  const auto one = events_of("one", "1");
  EXPECT_GT(one, 0U);
  EXPECT_EQ(one, events_of("many", "40"));
}

TEST_F(Output, NoEvaluationIsNoHeldOutLoss) {
  const auto outcome = succeeded(train({"--eval-batches", "0", "--eval-first", "--eval-interval", "2"}));
  EXPECT_THAT(outcome.out, Not(HasSubstr("held-out")));
  EXPECT_FALSE(json_in("run/result.json").contains("eval_loss"));
  for (const auto& step : metrics("run")) EXPECT_FALSE(step.contains("eval_loss")) << step;
}

TEST_F(Output, JsonOfAPlan) {
  const auto p = plan(kOffloaded);
  EXPECT_EQ(true, p.at("fits"));
  EXPECT_THAT((std::vector<std::string>{"step_time_s", "peak_bytes", "bytes", "stall_s", "floor_s", "binding"}),
              IsSubsetOf(keys(p)));
  EXPECT_EQ((std::vector<std::string>{"device", "host", "nvme"}), keys(p.at("peak_bytes")));
  EXPECT_EQ((std::vector<std::string>{"d2h", "h2d", "read", "write"}), keys(p.at("bytes")));
}

// The planner compares its choices in a coarse simulation, whose times would contradict the plan's.
TEST_F(Output, APlanHasOneStepTime) {
  const auto outcome = succeeded(terrace(tiny("plan", {"--device-memory", "1MiB", "--grad-accumulation", "4"})));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("compared in a coarse simulation"), HasSubstr("the next best: ")));
  std::size_t times = 0;
  for (const auto& line : outcome.lines()) {
    times += line.find("step time") != std::string::npos;
    if (line.starts_with("  chosen") || line.starts_with("  the ")) {
      EXPECT_FALSE(std::regex_search(line, std::regex("[0-9] s\\b"))) << line;
    }
  }
  EXPECT_EQ(1U, times) << outcome.out;
  const auto pipeline = succeeded(terrace(tiny("plan", {"--pp", "2", "--grad-accumulation", "4"})));
  EXPECT_THAT(pipeline.out, HasSubstr("\nstep time "));
  EXPECT_EQ(std::string::npos, pipeline.out.find("it takes")) << pipeline.out;
}

TEST_F(Output, WhatAPlanSaysIsWhatTheRunDoes) {
  const std::vector<Words> ways{
      {},
      {"--device-memory", "1MiB"},
      kOffloaded,
      kOffloaded + Words{"--grad-accumulation", "2", "--order", "vertical"},
      kOffloaded + Words{"--recompute", "layer", "--grad-clip", "0"},
      kOffloaded + Words{"--dtype", "bf16", "--ckpt-interval", "4"},
  };
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const auto words = ways[i] + Words{"--steps", "10"};
    const auto run = "run" + std::to_string(i);
    const auto p = plan(words);
    succeeded(train(words + Words{"--out-dir", run}));
    const auto last = metrics(run).back();
    SCOPED_TRACE(testing::PrintToString(words) + "\n" + p.dump(2) + "\n" + last.dump(2));
    EXPECT_EQ(p.at("bytes").at("read"), last.at("offload").at("read_bytes"));
    EXPECT_EQ(p.at("bytes").at("write"), last.at("offload").at("write_bytes"));
    EXPECT_EQ(p.at("bytes").at("h2d"), last.at("offload").at("h2d_bytes"));
    EXPECT_EQ(p.at("bytes").at("d2h"), last.at("offload").at("d2h_bytes"));
    EXPECT_EQ(p.at("peak_bytes"), json_in(run + "/result.json").at("peak_bytes"));
    // A step's line does not include the last commit, whose data is all that passes the host without a disk tier.
    const bool tiered = last.at("mem").at("nvme_peak_bytes") != 0;
    EXPECT_EQ(p.at("peak_bytes").at("device"), last.at("mem").at("device_peak_bytes"));
    EXPECT_EQ(p.at("peak_bytes").at("nvme"), last.at("mem").at("nvme_peak_bytes"));
    if (tiered) {
      EXPECT_EQ(p.at("peak_bytes").at("host"), last.at("mem").at("host_peak_bytes"));
    }
    EXPECT_EQ(p, json_in(run + "/plan.json"));
  }
}

TEST_F(Output, ARefusalsSuggestionFits) {
  const std::vector<std::pair<std::string, Words>> refused{
      {"device", {"--device-memory", "64KiB"}},
      {"device", {"--device-memory", "700KiB", "--nvme-path", "disk", "--batch-size", "4"}},
      {"host", {"--device-memory", "1MiB", "--host-memory", "4KiB", "--nvme-path", "disk"}},
      {"host", {"--device-memory", "1MiB", "--host-memory", "64KiB"}},
      {"disk", {"--device-memory", "1MiB", "--host-memory", "1MiB", "--nvme-path", "disk", "--nvme-limit", "8KiB"}},
  };
  for (const auto& [tier, words] : refused) {
    SCOPED_TRACE(testing::PrintToString(words));
    const auto p = plan(words, 3);
    EXPECT_EQ(false, p.at("fits"));
    EXPECT_EQ(tier, p.at("tier").get<std::string>());
    EXPECT_GT(p.at("missing_bytes").get<std::uint64_t>(), 0U);
    expect_refusal(train(words), 3, {tier + " tier", p.at("missing_bytes").dump(), p.at("suggestion")});
    EXPECT_FALSE(std::filesystem::exists(at("run")));
    // "--host-memory 2MiB would fit" means the same command with this flag in place of the refused one.
    const auto suggestion = p.at("suggestion").get<std::string>();
    const auto flag = suggestion.substr(0, suggestion.find(' '));
    const auto size = suggestion.substr(flag.size() + 1, suggestion.find(' ', flag.size() + 1) - flag.size() - 1);
    ASSERT_THAT(suggestion, HasSubstr(size + " would fit"));
    // Data that does not fit into the host may go to a disk, if the command has none yet.
    const bool diskless = std::ranges::find(words, "--nvme-path") == words.end();
    EXPECT_EQ(tier == "host" && diskless, suggestion.find("--nvme-path") != std::string::npos) << suggestion;
    auto followed = words;
    *std::next(std::ranges::find(followed, flag)) = size;
    EXPECT_EQ(true, plan(followed).at("fits")) << flag << ' ' << size;
  }
}

// With several ranks, a flag applies to each rank, or to the machine, whose ranks divide it; and every rank and stage must fit.
TEST_F(Output, ARefusalsSuggestionFitsEveryRank) {
  const std::vector<Words> layouts{{"--dp", "2", "--zero", "0"},
                                   {"--dp", "3", "--zero", "1"},
                                   {"--dp", "2", "--zero", "3"},
                                   {"--pp", "2"},
                                   {"--pp", "2", "--dp", "2"}};
  const std::vector<Words> budgets{{"--device-memory", "64KiB"},
                                   {"--device-memory", "1MiB", "--host-memory", "64KiB"},
                                   flags("--device-memory 1MiB --host-memory 60KB --nvme-path disk"),
                                   flags("--device-memory 2MiB --host-memory 4MiB --nvme-path disk --nvme-limit 8KiB")};
  for (const auto& layout : layouts)
    for (const auto& budget : budgets) {
      SCOPED_TRACE(testing::PrintToString(layout) + testing::PrintToString(budget));
      auto words = layout + budget;
      const auto refused = train(words);
      ASSERT_EQ(3, refused.exit) << refused.described;
      const auto end = refused.err.find(" would fit");
      ASSERT_NE(std::string::npos, end) << refused.described;
      // The flags and sizes before it replace the same flags of the command.
      std::istringstream flags(refused.err.substr(refused.err.rfind('\n', end) + 1, end - refused.err.rfind('\n', end) - 1));
      for (std::string flag, size; flags >> flag >> size;) {
        const auto at = std::ranges::find(words, flag);
        if (at == words.end())
          words.insert(words.end(), {flag, size});
        else
          *std::next(at) = size;
      }
      const auto followed = train(words);
      EXPECT_EQ(0, followed.exit) << testing::PrintToString(words) << followed.described;
      for (const auto* const folder : {"run", "disk"}) std::filesystem::remove_all(at(folder));
      std::filesystem::create_directory(at("disk"));
    }
}

TEST_F(Output, NoEscapeCodesWithoutATerminal) {
  auto coloured = launch(tiny("train"));
  coloured.environment["TERM"] = "xterm-256color";
  const auto outcome = succeeded(run(coloured));
  EXPECT_EQ(std::string::npos, (outcome.out + outcome.err).find('\x1b'));
  EXPECT_EQ(std::string::npos, outcome.out.find('\r'));
}

TEST_F(Output, ATerminalGetsColourUnlessNoColorIsSet) {
  for (const bool colour : {true, false}) {
    auto started = launch(tiny("train", {"--out-dir", colour ? "colour" : "plain"}));
    started.environment["TERM"] = "xterm-256color";
    started.environment["NO_COLOR"] = colour ? "" : "1";
    const auto shown = run_on_terminal(started, 100);
    if (!shown) GTEST_SKIP() << "no pseudo-terminal here";
    const auto& outcome = *shown;
    const auto& text = outcome.out;
    ASSERT_EQ(0, outcome.exit) << outcome.described << text;
    EXPECT_THAT(text, AllOf(HasSubstr("weights xxh64 "), HasSubstr("█"), HasSubstr("left")));
    EXPECT_EQ(colour, text.find('\x1b') != std::string::npos) << text;
  }
}

TEST_F(Output, TheOtherCommandsRun) {
  ASSERT_EQ(0, train(kOffloaded).exit);
  const auto expect_ok = [&](const Words& words, const std::vector<std::string>& said) {
    const auto outcome = succeeded(terrace(words));
    for (const auto& text : said) EXPECT_THAT(outcome.out, HasSubstr(text));
    return outcome;
  };
  expect_ok({"--help"}, {"train", "Exit codes:"});
  expect_ok({"--version"}, {"terrace "});
  expect_ok({"config", "--steps", "7"}, {"[train]", "steps = 7"});
  EXPECT_EQ(7, json::parse(expect_ok({"config", "--json", "--steps", "7"}, {}).out).at("train").at("steps"));
  expect_ok({"report", "run"}, {"run/report.html"});
  expect_ok({"ckpt", "verify", "run"}, {"all checksums are correct"});
  expect_ok({"ckpt", "inspect", "run"}, {"after step 4", "model.embed_tokens.weight"});
  const auto inspected = json::parse(expect_ok({"ckpt", "inspect", "run", "--json"}, {}).out);
  EXPECT_EQ(4, inspected.at("step"));
  EXPECT_EQ(256 * 64, inspected.at("tensors").at("model.embed_tokens.weight"));
  expect_ok({"doctor"}, {"processor", "memory", "io_uring"});
  expect_ok({"doctor", "--nvme-path", "disk"}, {"disk path disk"});
  EXPECT_EQ(true, json::parse(expect_ok({"doctor", "--json"}, {}).out).at("ok"));
  expect_ok(tiny("plan", kOffloaded), {"updates run on the", "smallest legal", "a step moves"});
  expect_ok(tiny("plan", kOffloaded + Words{"--program"}), {"forward"});

  // The page is self-contained.
  const auto page = scratch_.read("run/report.html");
  EXPECT_THAT(page, AllOf(HasSubstr("<svg"), Not(HasSubstr("src=\"http")), Not(HasSubstr("href=\"http"))));
}

// Half a plan in a file with exit code 0 would be taken for a valid one.
TEST_F(Output, AFullDiskBehindItIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  for (const auto& words : {Words{"config"}, {"--help"}, tiny("plan"), tiny("plan", {"--json"}), {"doctor"}}) {
    auto full = launch(words);
    full.in_child = [] { ::dup2(::open("/dev/full", O_WRONLY), STDOUT_FILENO); };
    const auto outcome = run(full);
    EXPECT_EQ(1, outcome.exit) << outcome.described;
    EXPECT_THAT(outcome.err, HasSubstr("No space left on device")) << outcome.described;
  }
}

// A supervisor may start a program without standard streams; then files opened next would get their numbers.
TEST_F(Output, WhatNobodyHearsIsNotWrittenIntoAStore) {
  auto deaf = launch(tiny("train", kOffloaded + Words{"--json"}));
  deaf.in_child = [] {
    for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(descriptor);
  };
  const auto outcome = run(deaf);
  EXPECT_EQ(1, outcome.exit) << outcome.described;
  EXPECT_EQ(steps("run").size(), json_in("run/result.json").at("steps"));
  std::size_t locks = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(at("disk")))
    if (entry.path().filename() == "lock") {
      ++locks;
      EXPECT_EQ(0U, entry.file_size()) << scratch_.read(std::filesystem::relative(entry.path(), scratch_.path()).string());
    }
  EXPECT_EQ(1U, locks);
  EXPECT_EQ(0, terrace({"ckpt", "verify", "run"}).exit);
}

TEST_F(Output, NotesAndWarningsThatNobodyHearsEndNothing) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  auto full = launch(tiny("train", {"--json"}));
  full.in_child = [] { ::dup2(::open("/dev/full", O_WRONLY), STDERR_FILENO); };
  full.environment["TERRACE_IO_ENGINE"] = "threads";
  const auto weights = weights_of(run(full));
  EXPECT_EQ(weights, json_in("run/result.json").at("weights_xxh64").get<std::string>());
  std::filesystem::create_directories(at("cache") / "terrace");
  std::ofstream(at("cache") / "terrace" / "machine.json") << "{}";  // causes a warning
  full.arguments = tiny("plan");
  EXPECT_EQ(0, run(full).exit);
  full.arguments = {"trian"};
  EXPECT_EQ(2, run(full).exit);
}

TEST_F(Output, GenerationIsOfBytes) {
  scratch_.write("ids.u16", std::string(2'000, '\1'));
  ASSERT_EQ(0, train({"--data", "ids.u16", "--data-format", "u16", "--vocab", "300"}).exit);
  expect_refusal(terrace({"generate", "run", "--prompt", "x"}), 2, {"--data-format u16", "--tokenizer"});
  ASSERT_EQ(0, train({"--vocab", "3000", "--data-format", "bytes", "--out-dir", "wide"}).exit);
  const auto text = succeeded(terrace({"generate", "wide", "--prompt", "The river", "--temperature", "3"}));
  EXPECT_EQ(64U + 1U, text.out.size());
}

TEST_F(Output, GenerationContinuesThePrompt) {
  ASSERT_EQ(0, train(kOffloaded).exit);
  const auto generate = [&](const Words& more) { return terrace(Words{"generate", "run"} + more); };
  const auto text = succeeded(generate({"--prompt", "The river"}));
  EXPECT_TRUE(text.out.starts_with("The river"));
  EXPECT_EQ(64U + 1U, text.out.size()) << "as many bytes as the model has positions, and a newline";
  EXPECT_EQ(text.out, generate({"--prompt", "The river", "--max-tokens", "9223372036854775807"}).out);
  EXPECT_EQ(text.out.substr(0, 12) + "\n", generate({"--prompt", "The river", "--max-tokens", "3"}).out);
  EXPECT_NE(text.out, generate({"--prompt", "The river", "--seed", "2"}).out);
  EXPECT_EQ(text.out, generate({"--prompt", "The river", "--device-memory", "512KiB", "--host-memory", "512KiB"}).out)
      << "budgets change what is generated";
  const auto letter = std::ranges::find_if(text.out.begin() + 9, text.out.end(), [](char c) { return c > ' ' && c < 127; });
  ASSERT_NE(letter, text.out.end()) << text.described;
  EXPECT_EQ(std::string(text.out.begin(), letter) + "\n", generate({"--prompt", "The river", "--stop-token", {*letter}}).out);
  const auto object = json::parse(generate({"--prompt", "The river", "--json"}).out);
  EXPECT_EQ("The river", object.at("prompt"));
  EXPECT_TRUE(object.at("text").get<std::string>().starts_with("The river"));

  expect_refusal(generate({}), 2, {"--prompt"});
  expect_refusal(generate({"--prompt", std::string(64, 'x')}), 2, {"64 bytes", "at most 63 bytes"});
  expect_refusal(generate({"--prompt", std::string(100'000, 'x')}), 2, {"100000 bytes", "at most 63 bytes"});
  expect_refusal(generate({"--prompt", "x", "--device-memory", "1KiB"}), 3, {"device tier", "would fit"});
  expect_refusal(terrace({"generate", "disk", "--prompt", "x"}), 2, {"is neither a run"});
  expect_refusal(terrace({"report", "disk"}), 2, {"metrics.jsonl"});
  expect_refusal(terrace({"ckpt", "verify", "disk"}), 2, {"has no run"});
  expect_refusal(terrace({"ckpt", "verify", "run", "disk"}), 2, {"unexpected argument \"disk\""});
}

}  // namespace
}  // namespace terrace::test
