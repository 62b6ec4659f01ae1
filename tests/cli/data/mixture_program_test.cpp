// Weighted sources from a user's view: on every mesh, with documents and conversations, killed in a later epoch, and refused.
#include <csignal>

#include <terrace/tests/support/english_text.h>

#include <terrace/tests/cli/ranks/on_ranks.h>

namespace terrace::test {
namespace {

class MixtureProgram : public Ranks {
 protected:
  // The small source has nine sequences for training.
  MixtureProgram() {
    scratch_.write("web.txt", EnglishText(1).of(12'000));
    scratch_.write("code.txt", EnglishText(2).of(650));
  }
  [[nodiscard]] static Words mixed(const std::string& run, const Words& more) {
    return Words{"--data", "0.6", "web.txt", "0.4", "code.txt", "--out-dir", run} + more;
  }
};

TEST_F(MixtureProgram, EveryMeshTrainsWhatOneRankTrains) {
  for (const auto* const separator : {"-1", "46"}) {
    const auto suffix = std::string(separator);
    const Words common{"--grad-accumulation", "4", "--document-separator", separator};
    const auto one = succeeded(train(mixed("one" + suffix, common)));
    for (const auto& [name, more] :
         {std::pair<std::string, Words>{"disk", {"--nvme-path", ".", "--device-memory", "2MiB", "--host-memory", "8MB"}},
          {"dp2", {"--dp", "2", "--zero", "3", "--grad-accumulation", "2"}},
          {"pp2", {"--pp", "2", "--zero", "1"}},
          {"cp2-dp2", {"--cp", "2", "--dp", "2", "--grad-accumulation", "2"}}}) {
      const auto many = succeeded(train(mixed(name + suffix, common + more)));
      expect_near("one" + suffix, name + suffix);
      if (name == "disk") {
        EXPECT_EQ(weights_of(one), weights_of(many));
      }
    }
  }
}

TEST_F(MixtureProgram, OneSourceIsTheSameWithAWeight) {
  const auto plain = train({"--data", "web.txt", "code.txt", "--out-dir", "plain"});
  const auto weighted = train({"--data", "5", "web.txt", "code.txt", "--out-dir", "weighted"});
  ASSERT_EQ(0, plain.exit) << plain.described;
  EXPECT_EQ(weights_of(plain), weights_of(weighted)) << weighted.described;
  EXPECT_EQ(steps("plain"), steps("weighted"));
  EXPECT_FALSE(metrics("weighted").back().contains("epochs"));
}

// Each batch is two sequences: 100 batches contain eight more epochs of the small source.
TEST_F(MixtureProgram, AKilledRunGoesOnWithTheNextHundredBatches) {
  const auto wanted = [&](const std::string& run) {
    return mixed(run, {"--steps", "220", "--ckpt-interval", "10", "--resume", "auto", "--hidden", "32", "--layers", "1"});
  };
  const auto whole = succeeded(train(wanted("whole")));
  Child child(launch(tiny("train", wanted("run"))));
  child.read_lines(20);  // steps and notes: after the first commit and before the last
  child.send(SIGKILL);
  ASSERT_EQ(SIGKILL, child.wait().signal);
  const auto done = metrics("run").back();
  ASSERT_GT(done.at("epochs").at("code.txt").get<double>(), 1.0) << "killed in a later epoch";
  ASSERT_LE(done.at("step").get<int>(), 120);
  const auto next = succeeded(train(wanted("run")));
  EXPECT_THAT(next.out, HasSubstr("resumed after step"));
  EXPECT_EQ(weights_of(whole), weights_of(next));
  EXPECT_EQ(steps("whole"), steps("run"));
  const auto last = metrics("run").back();
  EXPECT_EQ(metrics("whole").back().at("epochs"), last.at("epochs"));
  EXPECT_NEAR(0.4 * 440 / 9, last.at("epochs").at("code.txt").get<double>(), 1.0 / 9);
}

TEST_F(MixtureProgram, TellsOfEachSource) {
  const auto run = succeeded(train(mixed("run", {"--eval-interval", "2", "--eval-first", "--eval-batches", "3"})));
  EXPECT_THAT(run.out + run.err, AllOf(HasSubstr("data web.txt: 60 % of the sequences"), HasSubstr("of code.txt")));
  const auto lines = metrics("run");
  EXPECT_EQ(2U, lines.back().at("held_out").size());
  EXPECT_FALSE(lines.front().contains("held_out"));
  const auto result = json_in("run/result.json");
  EXPECT_EQ(lines.back().at("held_out"), result.at("held_out"));
  // Both losses have the same number of targets, so the total is their mean with these weights.
  const double web = result.at("held_out").at("web.txt"), code = result.at("held_out").at("code.txt");
  EXPECT_NEAR(0.6 * web + 0.4 * code, result.at("eval_loss").get<double>(), 1e-12);
  EXPECT_THAT(scratch_.read("run/report.html"), AllOf(HasSubstr("Sources of the data"), HasSubstr("code.txt")));
  const auto planned = terrace(tiny("plan", mixed("run", {"--eval-batches", "3"})));
  EXPECT_THAT(planned.out, AllOf(HasSubstr("data web.txt: 60 % of the sequences"), HasSubstr("9 to train on, 0.3556 epochs")))
      << planned.described;
  // The planned bytes include those of the evaluations of both sources.
  succeeded(
      train(mixed("disk", {"--nvme-path", ".", "--device-memory", "1MiB", "--host-memory", "2MiB", "--eval-interval", "2"})));
  std::uint64_t read = 0;
  for (const auto& m : metrics("disk")) read += m.at("offload").at("read_bytes").get<std::uint64_t>();
  EXPECT_EQ(json_in("disk/plan.json").at("walked").at("bytes").at("read").get<std::uint64_t>(), read);
}

TEST_F(MixtureProgram, MixesConversations) {
  scratch_.write("text.txt", "what is a tier and what is a chunk\nuser assistant answer\n");
  ASSERT_EQ(0, terrace({"train-tokenizer", "text.txt", "--vocab", "280", "--out", "tokenizer.json"}).exit);
  for (const auto& [file, lines] : {std::pair{"asks.jsonl", 40}, {"tells.jsonl", 9}}) {
    std::string text;
    for (int i = 0; i < lines; ++i)
      text += R"({"instruction":"what is )" + std::to_string(i) + R"(","output":")" + std::string(1 + i % 5, file[0]) + "\"}\n";
    scratch_.write(file, text);
  }
  const auto learn = [&](const std::string& run, const Words& more) {
    return train(Words{"--data", "3", "asks.jsonl", "1", "tells.jsonl", "--data-format", "jsonl", "--tokenizer",
                       "tokenizer.json", "--vocab", "280", "--out-dir", run} +
                 more);
  };
  const auto whole = succeeded(learn("whole", {"--steps", "12"}));
  EXPECT_THAT(whole.out + whole.err, HasSubstr("data tells.jsonl: 25 % of the sequences; 9 conversations"));
  ASSERT_EQ(0, learn("run", {"--steps", "7"}).exit);
  EXPECT_EQ(weights_of(whole), weights_of(learn("run", {"--steps", "12", "--resume", "auto", "--verify-resident"})));
  succeeded(learn("ranks", {"--steps", "12", "--dp", "2", "--batch-size", "1"}));
  expect_near("whole", "ranks");
}

TEST_F(MixtureProgram, RefusesOtherWeightsAndSources) {
  const auto refused = [&](const Words& data, const std::vector<std::string>& said) {
    expect_refusal(train(Words{"--out-dir", "refused", "--data"} + data), 2, said);
    EXPECT_FALSE(std::filesystem::exists(at("refused")));
  };
  refused({"0", "web.txt", "1", "code.txt"}, {"weight 0", "positive"});
  refused({"nan", "web.txt", "1", "code.txt"}, {"weight nan", "positive"});
  refused({"inf", "web.txt", "1", "code.txt"}, {"weight inf", "positive"});
  refused({"0.3333333", "web.txt", "1", "code.txt"}, {"0.3333333", "digits"});
  refused({"1", "web.txt", "code.txt", "2"}, {"weight 2 has no files"});
  refused({"web.txt", "1", "code.txt"}, {"web.txt has no weight"});
  refused({"1", "web.txt", "2", "absent.txt"}, {"absent.txt", "does not exist"});
  scratch_.write("short.txt", "too short");
  refused({"1", "web.txt", "2", "short.txt"}, {"source short.txt", "9 tokens"});
  expect_refusal(terrace(tiny("train", {"--set", R"(data=["-1", "web.txt", "1", "code.txt"])"})), 2, {"weight -1", "positive"});
  // Files of another vocabulary.
  scratch_.write("small.u16", std::string(4000, '\1'));
  scratch_.write("large.u16", std::string(4000, '\2'));
  refused({"1", "small.u16", "2", "large.u16", "--data-format", "u16", "--vocab", "300"}, {"large.u16, token 0", "514", "300"});
  // A resumed run cannot change the weights of its sources.
  ASSERT_EQ(0, train(mixed("run", {"--steps", "1"})).exit);
  expect_refusal(train({"--data", "0.5", "web.txt", "0.5", "code.txt", "--out-dir", "run", "--steps", "2", "--resume", "auto"}),
                 2, {"data:", "weight 3", "weight 1"});
  EXPECT_EQ(0,
            train({"--data", "60", "web.txt", "40", "code.txt", "--out-dir", "run", "--steps", "2", "--resume", "auto"}).exit);
}

}  // namespace
}  // namespace terrace::test
