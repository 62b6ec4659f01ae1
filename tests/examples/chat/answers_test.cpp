// The tokens that the model learns from a conversation that a chat template writes: with {% generation %}, behind the
// template's prompt, and with a template that writes earlier answers in another way.
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/chat/chat_format.h>
#include <terrace/tests/examples/chat/encoded_data.h>
#include <terrace/tests/examples/chat/made_tokenizer.h>
#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

using testing::HasSubstr;
using Documents = std::vector<std::string>;

// Templates like those of Llama 3, of Phi-3, which ends the whole text with a token, and of Qwen 3, which leaves out the
// thoughts before the last question.
constexpr const char* kHeaders =
    "{% for m in messages %}{{ '<|h|>' + m.role + '<|/h|>\\n\\n' + (m.content | trim) + '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|h|>assistant<|/h|>\\n\\n' }}{% endif %}";
constexpr const char* kWholeEnd =
    "{% for m in messages %}{{ '<|h|>' + m.role + '\\n' + m.content + '<|eot|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|h|>assistant\\n' }}{% else %}{{ eos_token }}{% endif %}";
constexpr const char* kThoughts =
    "{% set ns = namespace(last=-1) %}{% for m in messages if m.role == 'user' %}{% set ns.last = messages.index(m) %}{% "
    "endfor %}"
    "{% for m in messages %}{{ '<|h|>' + m.role + '\\n' }}{% if m.role == 'assistant' and loop.index0 > ns.last %}"
    "{{ '<think>' + (m.reasoning_content or '') + '</think>' }}{% endif %}{{ m.content + '<|eot|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|h|>assistant\\n' }}{% endif %}";
constexpr const char* kMarked =
    "{% for m in messages %}{{ '<|h|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + "
    "'<|eot|>' }}"
    "{% endgeneration %}{% else %}{{ m.content + '<|eot|>' }}{% endif %}{% endfor %}";

constexpr const char* kTwoTurns =
    R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a","reasoning_content":"r"},{"role":"user","content":"p"},{"role":"assistant","content":"b","reasoning_content":"s"}]})";

class Answers : public testing::Test {
 protected:
  static TokenizerConfig config(const std::string& source) {
    TokenizerConfig out;
    out.chat_template = source;
    out.template_file = "the.jinja";
    out.eos = "<|end|>";
    out.tokens = {{"eos_token", "<|end|>"}};
    return out;
  }
  // The documents, with the learned parts in brackets.
  Documents documents(const std::string& source, const std::string& line) {
    const ChatFormat format(tokenizer_, config(source));
    Documents out;
    for (const auto& document : format.encode(parse_conversation(line), encoding_)) {
      auto& text = out.emplace_back();
      bool within = false;
      for (std::size_t i = 0; i < document.tokens.size(); ++i) {
        if (document.learned[i] != within) text += within ? "]" : "[";
        within = document.learned[i];
        text += tokenizer_.piece(document.tokens[i]);
      }
      if (within) text += "]";
    }
    return out;
  }
  void expect_refused(const std::string& source, const std::string& line, const std::string& why) {
    EXPECT_THAT(test::refusal_of([&] { documents(source, line); }), testing::AllOf(HasSubstr(why), HasSubstr("\n  ")))
        << source;
  }

  ScratchFolder folder_;
  Tokenizer tokenizer_ = tokenizer_of_bytes({"<|h|>", "<|/h|>", "<|eot|>", "<|end|>", "<|e|>"});
  Encoding encoding_;
};

TEST_F(Answers, StandBehindTheTemplatesPromptUpToTheTokenThatEndsThem) {
  EXPECT_EQ((Documents{"<|h|>user<|/h|>\n\nq<|eot|><|h|>assistant<|/h|>\n\n[a<|eot|>]<|h|>user<|/"
                       "h|>\n\np<|eot|><|h|>assistant<|/h|>\n\n[b<|eot|>]"}),
            documents(kHeaders, kTwoTurns));
  EXPECT_EQ(
      (Documents{"<|h|>user\nq<|eot|>\n<|h|>assistant\n[a<|eot|>]\n<|h|>user\np<|eot|>\n<|h|>assistant\n[b<|eot|>]\n<|end|>"}),
      documents(kWholeEnd, kTwoTurns))
      << "what stands behind an answer depends on what comes next";
  EXPECT_EQ(
      (Documents{"<|h|>assistant<|/h|>\n\nhello<|eot|><|h|>user<|/h|>\n\nq<|eot|><|h|>assistant<|/h|>\n\n[a<|eot|>]"}),
      documents(
          kHeaders,
          R"({"messages":[{"role":"assistant","content":"hello"},{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"user","content":"left out"}]})"))
      << "nothing asks for a first message";
}

TEST_F(Answers, ThatATemplateWritesInAnotherWayLaterAreDocumentsOfTheirOwn) {
  EXPECT_EQ(
      (Documents{
          "<|h|>user\nq<|eot|>\n<|h|>assistant\n[<think>r</think>a<|eot|>]\n",
          "<|h|>user\nq<|eot|>\n<|h|>assistant\na<|eot|>\n<|h|>user\np<|eot|>\n<|h|>assistant\n[<think>s</think>b<|eot|>]\n"}),
      documents(kThoughts, kTwoTurns));
  EXPECT_EQ(
      (Documents{"<|h|>user\nq<|eot|>\n<|h|>assistant\n[<think></"
                 "think>a<|eot|>]\n<|h|>tool\nt<|eot|>\n<|h|>assistant\n[<think></think>b<|eot|>]\n"}),
      documents(
          kThoughts,
          R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"tool","content":"t"},{"role":"assistant","content":"b"}]})"))
      << "answers to one question stay together";
}

TEST_F(Answers, AreWhatTheTemplateMarks) {
  EXPECT_EQ((Documents{"<|h|>user\nq<|eot|><|h|>assistant\n[a<|eot|>]<|h|>user\np<|eot|><|h|>assistant\n[b<|eot|>]"}),
            documents(kMarked, kTwoTurns));
  expect_refused("{% for m in messages %}{% generation %}{% endgeneration %}{{ m.content }}{% endfor %}", kTwoTurns,
                 "nothing to learn");
}

// A mark in the message overrides the template.
TEST_F(Answers, AreNotLearnedWhereTheirMessagesSaySo) {
  const auto marked = [](bool first, bool last) {
    auto line = nlohmann::ordered_json::parse(kTwoTurns);
    if (!first) line["messages"][1]["weight"] = 0;
    if (!last) line["messages"][3]["train"] = false;
    return line.dump();
  };
  EXPECT_EQ((Documents{"<|h|>user<|/h|>\n\nq<|eot|><|h|>assistant<|/h|>\n\na<|eot|><|h|>user<|/h|>\n\np<|eot|><|h|>assistant<|/"
                       "h|>\n\n[b<|eot|>]"}),
            documents(kHeaders, marked(false, true)));
  EXPECT_EQ((Documents{"<|h|>user<|/h|>\n\nq<|eot|><|h|>assistant<|/h|>\n\n[a<|eot|>]"}),
            documents(kHeaders, marked(true, false)));
  EXPECT_EQ((Documents{"<|h|>user\nq<|eot|>\n<|h|>assistant\na<|eot|>\n<|h|>user\np<|eot|>\n<|h|>assistant\n[<think>s</"
                       "think>b<|eot|>]\n"}),
            documents(kThoughts, marked(false, true)))
      << "no document for an answer that is not learned";
  EXPECT_EQ((Documents{"<|h|>user\nq<|eot|><|h|>assistant\na<|eot|><|h|>user\np<|eot|><|h|>assistant\n[b<|eot|>]"}),
            documents(kMarked, marked(false, true)));
  EXPECT_EQ((Documents{"<|h|>user\nq<|eot|><|h|>assistant\n[a<|eot|>]<|h|>user\np<|eot|><|h|>assistant\nb<|eot|>"}),
            documents(kMarked, marked(true, false)));
  expect_refused(
      "{% for m in messages %}{{ m.role }}{% if loop.last and loop.index0 % 2 %}{% generation %}{{ m.content }}{% "
      "endgeneration %}{% else %}{{ "
      "m.content }}{% endif %}{% endfor %}",
      marked(false, true), "does not say which {% generation %} blocks are those of message 2");
}

TEST_F(Answers, OfOtherTemplatesAreRefusedAndPlainTextsNeedNone) {
  // The prompt opens a thought that the text of the answer does not have.
  expect_refused(
      "{% for m in messages %}{{ '<|h|>' + m.content }}{% endfor %}{% if add_generation_prompt %}{{ '<|h|><think>' }}{% endif "
      "%}",
      kTwoTurns,
      "does not write message 2, an answer, behind its prompt for answers: the prompt goes on with \"<think>\", and the text "
      "with the "
      "answer with \"a\"");
  expect_refused("{{ raise_exception('no') }}", kTwoTurns, "it refuses the conversation: no");
  EXPECT_EQ((Documents{"p[c<|end|>]"}), documents(kHeaders, R"({"prompt":"p","completion":"c"})"));
}

TEST_F(Answers, EndWithTheTemplatesToken) {
  EXPECT_EQ("<|eot|>", ChatFormat(tokenizer_, config(kHeaders)).end());
  EXPECT_EQ("<|eot|>", ChatFormat(tokenizer_, config(kMarked)).end());
  const ChatFormat none(tokenizer_, config("{% for m in messages %}{{ m.content }}\n{% endfor %}"));
  EXPECT_EQ("", none.end());
  EXPECT_THAT(none.warning(), HasSubstr("no special token"));
  EXPECT_EQ("", ChatFormat(tokenizer_, config(kHeaders)).warning());
  EXPECT_EQ("<|h|>user<|/h|>\n\nq<|eot|><|h|>assistant<|/h|>\n\n",
            tokenizer_.decode(ChatFormat(tokenizer_, config(kHeaders)).encode_prompt({{"user", "q"}})));
}

TEST_F(Answers, ToolsAndVariablesReachTheTemplate) {
  constexpr const char* kTools =
      "{{ tools | tojson }}{{ style }}{% for m in messages %}{{ '<|h|>' + m.role }}{% for c in m.tool_calls or [] %}{{ "
      "c.function.name }}"
      "{{ c.function.arguments | tojson }}{% endfor %}{{ m.content }}<|eot|>{% endfor %}{% if add_generation_prompt %}{{ "
      "'<|h|>assistant' }}"
      "{% endif %}";
  constexpr const char* kLine =
      R"({"tools":[{"z":1,"a":2}],"chat_template_kwargs":{"style":"!"},"messages":[{"role":"user","content":[{"type":"text","text":"q"}]},{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"y":1,"x":2}}}]}]})";
  EXPECT_EQ(
      (Documents{
          R"([{"z": 1, "a": 2}]!<|h|>user[{'type': 'text', 'text': 'q'}]<|eot|><|h|>assistant[f{"y": 1, "x": 2}<|eot|>])"}),
      documents(kTools, kLine));
  const ChatFormat plain(tokenizer_, [] {
    TokenizerConfig named;
    named.eos = "<|end|>";
    return named;
  }());
  EXPECT_THROW((void)plain.encode(parse_conversation(kLine), encoding_), Error) << "without a template";
}

TEST_F(Answers, DocumentsOfALineAreHeldOutTogether) {
  std::string lines;
  for (int i = 0; i < 20; ++i) {
    auto line = std::string(kTwoTurns);
    line.replace(line.find(R"("q")"), 3, "\"q" + std::to_string(i) + "\"");
    lines += line + "\n";
  }
  const ChatFormat format(tokenizer_, config(kThoughts));
  auto data = encoded_data({folder_.write("a.jsonl", lines)}, format, 64, 1);
  EXPECT_EQ(20U, data.conversations());
  EXPECT_EQ(40U, data.documents());
  std::vector<std::int32_t> tokens(64), targets(64), numbers(64);
  std::string held_out, training;
  for (const auto split : {Split::held_out, Split::training})
    for (std::uint64_t s = 0; s < data.sequences(split); ++s) {
      data.fill(split, {&s, 1}, tokens, targets);
      std::string& text = split == Split::held_out ? held_out : training;
      for (const auto token : tokens) text += tokenizer_.piece(static_cast<TokenId>(token));
    }
  int both = 0;
  for (int i = 0; i < 20; ++i) {
    const auto name = "user\nq" + std::to_string(i) + "<|eot|>";
    const auto in = [&](const std::string& text) {
      int count = 0;
      for (auto at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) ++count;
      return count;
    };
    EXPECT_EQ(2, in(held_out) + in(training)) << i;
    if (in(held_out) == 2) ++both;
  }
  EXPECT_EQ(1, both);
}

}  // namespace
}  // namespace terrace::lm
