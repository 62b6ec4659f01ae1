// Conversations as sequences: what is learned, what is packed, in which order, and the errors for changed or damaged files.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/chat/json_elements.h>
#include <terrace/offload/store/chunk_store.h>
#include <terrace/tests/examples/chat/encoded_data.h>
#include <terrace/tests/examples/chat/made_tokenizer.h>
#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

using testing::HasSubstr;
constexpr TokenId kBegin = 256, kEnd = 257, kEndOfText = 258;

class Data : public testing::Test {
 protected:
  // A conversation with `letters` letters in its answer; its question has the number.
  static std::string line(int number, int letters) {
    return R"({"messages":[{"role":"user","content":"q)" + std::to_string(number) + R"("},{"role":"assistant","content":")" +
           std::string(static_cast<std::size_t>(letters), 'x') + "\"}]}\n";
  }
  static std::string lines(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += line(i, 1 + i * 7 % 23) + (i % 5 == 0 ? "\n  \r\n" : "");
    return text;
  }
  struct Row {
    std::vector<std::int32_t> tokens, targets, numbers;
    friend bool operator==(const Row&, const Row&) = default;
  };
  static Row row(ConversationData& data, Split split, std::uint64_t sequence, std::size_t seq_len) {
    Row row{std::vector<std::int32_t>(seq_len), std::vector<std::int32_t>(seq_len), std::vector<std::int32_t>(seq_len)};
    data.fill(split, {&sequence, 1}, row.tokens, row.targets);
    data.number(split, {&sequence, 1}, row.tokens, row.numbers);
    return row;
  }
  // The documents of a row as texts, with special tokens written out.
  std::vector<std::string> documents(const Row& row) const {
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < row.tokens.size(); ++i) {
      if (i == 0 || row.numbers[i] != row.numbers[i - 1]) texts.emplace_back();
      texts.back() += tokenizer_.piece(static_cast<TokenId>(row.tokens[i]));
    }
    return texts;
  }

  ScratchFolder folder_;
  Tokenizer tokenizer_ = tokenizer_of_bytes({"<|im_start|>", "<|im_end|>", "<|endoftext|>"});
  ChatFormat format_{tokenizer_, {}};
};

TEST_F(Data, OnlyAnswersAreLearned) {
  Encoding encoding;
  const auto learned = [&](const char* text) {
    const auto encoded = format_.encode(parse_conversation(text), encoding).at(0);
    std::vector<TokenId> ids;
    for (std::size_t i = 0; i < encoded.tokens.size(); ++i)
      if (encoded.learned[i]) ids.push_back(encoded.tokens[i]);
    return std::pair(tokenizer_.decode(encoded.tokens), ids);
  };
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(
      std::pair(
          std::string("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nab<|im_end|>\n<|im_start|>user\nr<|im_end|>\n"
                      "<|im_start|>assistant\nc<|im_end|>\n"),
          Ids{'a', 'b', kEnd, 'c', kEnd}),
      learned(
          R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"ab"},{"role":"user","content":"r"},{"role":"assistant","content":"c"}]})"));
  EXPECT_EQ(
      std::pair(
          std::string("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nab<|im_end|>\n<|im_start|>user\nr<|im_end|>\n"
                      "<|im_start|>assistant\nc<|im_end|>\n"),
          Ids{'c', kEnd}),
      learned(
          R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"ab","weight":0},{"role":"user","content":"r"},{"role":"assistant","content":"c"}]})"));
  EXPECT_EQ(std::pair(std::string("pcd<|endoftext|>"), Ids{'c', 'd', kEndOfText}),
            learned(R"({"prompt":"p","completion":"cd"})"));
  EXPECT_EQ("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n",
            tokenizer_.decode(format_.encode_prompt({{"user", "q"}})));
}

TEST_F(Data, ATokenizerNeedsATokenThatEndsAnswers) {
  const auto none = tokenizer_of_bytes({"<other>"});
  EXPECT_THROW(ChatFormat(none, {}), Error);
  TokenizerConfig config;
  config.eos = "<other>";
  EXPECT_EQ("<other>", ChatFormat(none, config).end());
}

TEST_F(Data, EveryConversationIsInItsSplitOnceAnEpoch) {
  constexpr std::size_t kLength = 128;
  const std::vector<std::filesystem::path> files{folder_.write("a.jsonl", lines(70)),
                                                 folder_.write("b.jsonl", "\n" + line(70, 3) + line(71, 4))};
  auto data = encoded_data(files, format_, kLength, 5);
  ASSERT_EQ(72U, data.conversations());
  EXPECT_EQ(0U, data.cut());
  std::map<std::string, int> held_out;
  for (std::uint64_t s = 0; s < data.sequences(Split::held_out); ++s)
    for (const auto& text : documents(row(data, Split::held_out, s, kLength)))
      if (text[0] != '\0') ++held_out[text];
  EXPECT_EQ(3U, held_out.size());
  const auto epoch = data.sequences(Split::training);
  EXPECT_LT(epoch, 40U) << "several share a sequence";
  std::vector<std::map<std::string, int>> epochs(2);
  std::vector<std::vector<Row>> rows(2);
  for (std::uint64_t s = 0; s < 2 * epoch; ++s) {
    rows[s / epoch].push_back(row(data, Split::training, s, kLength));
    for (const auto& text : documents(rows[s / epoch].back()))
      if (text[0] != '\0') ++epochs[s / epoch][text];
  }
  EXPECT_EQ(epochs[0], epochs[1]);
  EXPECT_EQ(69U, epochs[0].size());
  for (const auto& [text, count] : epochs[0]) {
    EXPECT_EQ(1, count) << text;
    EXPECT_FALSE(held_out.contains(text)) << text;
  }
  EXPECT_NE(rows[0], rows[1]) << "each epoch has its own order";

  auto again = encoded_data(files, format_, kLength, 5), other = encoded_data(files, format_, kLength, 6);
  EXPECT_EQ(rows[1][3], row(again, Split::training, epoch + 3, kLength));
  bool differs = false;
  for (std::uint64_t s = 0; s < std::min(epoch, other.sequences(Split::training)); ++s)
    differs = differs || rows[0][s] != row(other, Split::training, s, kLength);
  EXPECT_TRUE(differs);
  for (std::uint64_t s = 0; s < other.sequences(Split::held_out); ++s) {
    for (const auto& text : documents(row(other, Split::held_out, s, kLength)))
      if (text[0] != '\0') {
        EXPECT_TRUE(held_out.contains(text)) << "the same are held out for every seed";
      }
  }
}

TEST_F(Data, TargetsAreTheAnswersAndPaddingHasNone) {
  auto data = encoded_data({folder_.write("a.jsonl", line(1, 5) + line(2, 6))}, format_, 100, 1);
  const auto one = row(data, Split::training, 0, 100);
  const auto text = documents(one).at(0);
  const auto letters = static_cast<std::size_t>(std::ranges::count(text, 'x'));
  std::vector<std::int32_t> targets;
  for (std::size_t i = 0; i < 100; ++i) {
    if (one.targets[i] < 0) continue;
    EXPECT_EQ(one.targets[i], one.tokens[i + 1]);
    targets.push_back(one.targets[i]);
  }
  std::vector<std::int32_t> expected(letters, 'x');
  expected.push_back(kEnd);
  EXPECT_EQ(expected, targets);
  EXPECT_EQ(kBegin, static_cast<TokenId>(one.tokens[0]));
  EXPECT_EQ(2U, documents(one).size()) << "a conversation and padding";
}

TEST_F(Data, WhatIsLongerThanASequenceIsCut) {
  auto data = encoded_data({folder_.write("a.jsonl", line(1, 500) + line(2, 500))}, format_, 64, 1);
  EXPECT_EQ(2U, data.cut());
  EXPECT_EQ(1U, data.sequences(Split::training));
  const auto one = row(data, Split::training, 0, 64);
  EXPECT_EQ(1U, documents(one).size());
  EXPECT_EQ(-1, one.targets.back());
  EXPECT_EQ('x', one.targets[62]);
}

TEST_F(Data, WhatIsLearnedMustStandWithinASequence) {
  const auto asked = [](const std::string& question) {
    return R"({"messages":[{"role":"user","content":")" + question + R"("},{"role":"assistant","content":"yes"}]})" + "\n";
  };
  const auto data = [&](const std::string& text) { return encoded_data({folder_.write("a.jsonl", text)}, format_, 64, 1); };
  const std::string endless = asked(std::string(500, 'q'));
  std::string some = asked("a");
  for (int i = 0; i < 9; ++i) some += endless + asked("b");
  EXPECT_EQ(9U, data(some).cut());
  EXPECT_EQ(9U, data(some).untaught());
  EXPECT_EQ(0U, data(asked("a") + asked("b")).untaught());
  EXPECT_TRUE(data(asked("a") + asked("b")).learns_held_out());
  // One of two lines is held out, always the same one.
  int refused = 0;
  for (const auto& text : {endless + asked("a"), asked("a") + endless}) try {
      EXPECT_FALSE(data(text).learns_held_out());
    } catch (const Error& error) {
      EXPECT_EQ(ErrorKind::refused, error.kind());
      EXPECT_THAT(error.what(), HasSubstr("nothing would be learned"));
      EXPECT_THAT(error.what(), HasSubstr("\n  raise --seq-len"));
      ++refused;
    }
  EXPECT_EQ(1, refused);
}

TEST_F(Data, SaysHowMuchOfTheAnswersIsCutOff) {
  const auto share = [&](const std::string& text) {
    return encoded_data({folder_.write("a.jsonl", text)}, format_, 64, 1).share_cut_off();
  };
  EXPECT_EQ(0, share(line(1, 5) + line(2, 6)));
  // Each answer has a thousand tokens, its end included; the 64 positions also hold the tokens before the answer.
  const auto data = encoded_data({folder_.write("a.jsonl", line(1, 999) + line(2, 999))}, format_, 64, 1);
  const auto before = tokenizer_.encode("<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\n").size();
  EXPECT_DOUBLE_EQ(1 - static_cast<double>(64 - before) / 1000, data.share_cut_off());
  EXPECT_EQ(0U, data.untaught());
}

TEST_F(Data, NothingIsHeldOutOfOneConversationOrWithoutEvaluations) {
  auto one = encoded_data({folder_.write("a.jsonl", line(1, 5))}, format_, 64, 1);
  EXPECT_EQ(1U, one.sequences(Split::training));
  EXPECT_EQ(0U, one.sequences(Split::held_out));
  EXPECT_EQ(1, std::ranges::count(row(one, Split::training, 0, 64).targets, static_cast<std::int32_t>(kEnd)));
  EXPECT_EQ(64, std::ranges::count(row(one, Split::held_out, 3, 64).targets, -1)) << "an evaluation finds no target";
  const auto file = folder_.write("b.jsonl", lines(40));
  auto all = encoded_data({file}, format_, 128, 5, false);
  EXPECT_EQ(0U, all.sequences(Split::held_out));
  std::set<std::string> seen;
  for (std::uint64_t s = 0; s < all.sequences(Split::training); ++s)
    for (const auto& text : documents(row(all, Split::training, s, 128)))
      if (text[0] != '\0') seen.insert(text);
  EXPECT_EQ(40U, seen.size());
}

TEST_F(Data, AnArrayIsReadAsItsElements) {
  // Elements over several lines, and strings that contain the characters that end elements.
  const std::string odd = R"({ "messages": [ {"role": "user", "content": "a ] } , \" [ {"},
    {"role": "assistant", "content": "\\"} ] })";
  std::string array = " [\n";
  const auto text = lines(40);
  for (std::size_t at = 0; at < text.size();) {
    const auto end = text.find('\n', at);
    if (const auto one = text.substr(at, end - at); one.starts_with('{')) array += one + " ,\n  ";
    at = end + 1;
  }
  array += odd + "\n]\n";
  auto in_one_line = odd;
  std::erase(in_one_line, '\n');
  const auto in_lines = text + in_one_line;
  auto of_array = encoded_data({folder_.write("a.json", array)}, format_, 128, 5);
  auto of_lines = encoded_data({folder_.write("b.jsonl", in_lines)}, format_, 128, 5);
  ASSERT_EQ(41U, of_array.conversations());
  ASSERT_EQ(of_lines.sequences(Split::training), of_array.sequences(Split::training));
  for (std::uint64_t s = 0; s < of_lines.sequences(Split::training); ++s)
    EXPECT_EQ(row(of_lines, Split::training, s, 128), row(of_array, Split::training, s, 128)) << s;
  for (const auto& [broken, why] : {std::pair{array.substr(0, array.size() / 2), "does not end"},
                                    {array + array, "something stands behind its array"},
                                    {std::string("[1, 2]"), "element 1: it is no JSON object"},
                                    {std::string("[") + line(1, 2) + ", {\"messages\": 3}]", "element 2: \"messages\""},
                                    {std::string("[]"), "no conversation"}})
    EXPECT_THAT(test::refusal_of([&] { encoded_data({folder_.write("bad.json", broken)}, format_, 128, 5); }), HasSubstr(why));
}

// Pieces may end anywhere.
TEST_F(Data, AnArrayIsCutAtItsElementsWhereverItsPiecesEnd) {
  const std::string array = R"({"a": "]\"}"}, [1, {"b": 2}] ,3,"x,y" , {}] , {"behind": 1})";
  std::vector<std::string> whole;
  for (std::size_t piece = array.size(); piece > 0; --piece) {
    std::vector<std::string> found;
    JsonElements elements;
    for (std::size_t at = 0; at < array.size(); at += piece)
      elements.read(std::string_view(array).substr(at, piece), [&](std::string_view element) { found.emplace_back(element); });
    EXPECT_TRUE(elements.closed() && elements.goes_on());
    if (whole.empty()) whole = found;
    EXPECT_EQ(whole, found) << piece;
  }
  EXPECT_EQ((std::vector<std::string>{R"({"a": "]\"}"})", R"([1, {"b": 2}])", "3", R"("x,y")", "{}"}), whole);
}

TEST_F(Data, BadLinesMayBeSkipped) {
  const auto bad = std::string("not JSON\n") + R"({"messages": 3})" + "\n";
  const auto good = folder_.write("good.jsonl", lines(30));
  auto without = encoded_data({good}, format_, 128, 5);
  const auto file = folder_.write("bad.jsonl", line(0, 1) + bad + lines(30).substr(line(0, 1).size()));
  auto with = encoded_data({file}, format_, 128, 5, true, BadLine::skip);
  EXPECT_EQ(2U, with.skipped());
  EXPECT_THAT(with.first_skipped(), HasSubstr("bad.jsonl, line 2: it is not JSON"));
  EXPECT_EQ(without.conversations(), with.conversations());
  for (std::uint64_t s = 0; s < without.sequences(Split::training); ++s)
    EXPECT_EQ(row(without, Split::training, s, 128), row(with, Split::training, s, 128));
  EXPECT_THROW(encoded_data({file}, format_, 128, 5), Error);
  EXPECT_THAT(
      test::thrown_by([&] { encoded_data({folder_.write("none.jsonl", bad)}, format_, 128, 5, true, BadLine::skip); }).what(),
      HasSubstr("all of its 2 lines were skipped, the first because of"));
}

TEST_F(Data, LongLinesAreReadWhole) {
  std::string text;
  for (int i = 0; i < 3; ++i) text += line(i, 1'200'000) + line(10 + i, 2);
  auto data = encoded_data({folder_.write("a.jsonl", text)}, format_, 256, 1);
  EXPECT_EQ(6U, data.conversations());
  EXPECT_EQ(3U, data.cut());
}

TEST_F(Data, MistakesNameFileAndLine) {
  const auto expect = [&](const std::string& text, const char* part, ErrorKind kind = ErrorKind::refused) {
    EXPECT_THAT(test::error_of(kind, [&] { encoded_data({folder_.write("bad.jsonl", text)}, format_, 64, 1); }),
                testing::AllOf(HasSubstr(part), HasSubstr("\n  ")));
  };
  expect(line(1, 2) + "\n" + line(2, 2) + "{\"messages\": 3}\n", "bad.jsonl, line 4: \"messages\"");
  expect(line(1, 2) + line(2, 2).substr(0, 30), "bad.jsonl, line 2: it is not JSON");
  expect("", "no conversation");
  expect("\n \n", "no conversation");
  EXPECT_THROW(encoded_data({folder_ / "absent"}, format_, 64, 1), Error);
}

// The tokens are kept in a file of their own: later changes of the data file do not matter, and changes of the tokens are
// noticed.
TEST_F(Data, TokensThatChangeAreNoticed) {
  const auto file = folder_.write("a.jsonl", line(1, 2) + line(2, 2));
  auto data = encoded_data({file}, format_, 64, 1);
  folder_.write("a.jsonl", "short");
  EXPECT_NO_THROW(row(data, Split::training, 0, 64));
  const auto kept = folder_.read("a.jsonl.talk");
  for (auto text : {kept.substr(0, 20), std::string(kept.size(), 'x'), std::string()}) {
    folder_.write("a.jsonl.talk", text);
    EXPECT_THROW(row(data, Split::training, 0, 64), Error);
  }
  folder_.write("a.jsonl.talk", kept);
  EXPECT_NO_THROW(row(data, Split::training, 0, 64));
  std::filesystem::remove(folder_ / "a.jsonl.talk");
  EXPECT_THROW(row(data, Split::training, 0, 64), Error);
}

TEST_F(Data, FilesHaveChecksumsOfAllTheirBytes) {
  const auto checksum = [&](const std::string& text) {
    return encoded_data({folder_.write("a.jsonl", text)}, format_, 64, 1).checksums().at(0);
  };
  const auto text = lines(60);
  const auto expected = checksum(text);
  EXPECT_EQ(expected, checksum(text));
  auto other = text;
  other[text.rfind("x")] = 'y';
  EXPECT_NE(expected, checksum(other));
  EXPECT_NE(expected, checksum(text + "\n"));
}

// Runs have recorded these checksums: over windows of 1 MiB that end with a line or, in an array, anywhere.
TEST_F(Data, ChecksumsStayAsTheyWere) {
  const auto joined = [](const std::vector<std::string>& windows) {
    std::uint64_t sum = 0;
    for (const auto& window : windows) {
      const std::array<std::uint64_t, 2> both{sum, checksum_of(std::as_bytes(std::span(window)))};
      sum = checksum_of(std::as_bytes(std::span(both)));
    }
    return sum;
  };
  const auto checksum = [&](const std::string& name, const std::string& text) {
    return encoded_data({folder_.write(name, text)}, format_, 64, 1).checksums().at(0);
  };
  constexpr std::size_t kWindow = 1 << 20;
  EXPECT_EQ(joined({lines(60)}), checksum("a.jsonl", lines(60)));
  std::string some;
  for (int i = 0; some.size() < kWindow; ++i) some += line(i, 100'000);
  const auto last = some.rfind('\n', some.size() - 2) + 1;
  EXPECT_EQ(joined({some.substr(0, last), some.substr(last) + lines(9)}), checksum("b.jsonl", some + lines(9)));
  const auto exact = line(1, 2) + line(2, static_cast<int>(kWindow - line(1, 2).size() - line(2, 0).size()));
  ASSERT_EQ(kWindow, exact.size());
  EXPECT_EQ(joined({exact}), checksum("c.jsonl", exact));
  const auto longer = line(3, 1'500'000);
  EXPECT_EQ(joined({line(1, 2), longer + line(2, 2)}), checksum("d.jsonl", line(1, 2) + longer + line(2, 2)));
  auto array = "[" + some;
  std::ranges::replace(array, '\n', ',');
  array.back() = ']';
  EXPECT_EQ(joined({array.substr(0, kWindow), array.substr(kWindow)}), checksum("e.json", array));
}

}  // namespace
}  // namespace terrace::lm
