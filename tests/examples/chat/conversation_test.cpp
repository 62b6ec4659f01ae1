// Lines of JSON as conversations, and the errors for lines that are not.
#include <string>

#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/chat/conversation.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

using testing::HasSubstr;

TEST(Conversation, HasThreeSpellings) {
  const auto messages = parse_conversation(
      R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"assistant","content":"é"}],"id":7})");
  ASSERT_EQ(3U, messages.messages.size());
  EXPECT_EQ("ab", messages.messages[1].content);
  EXPECT_EQ("é", messages.messages[2].content);
  const auto plain = parse_conversation(R"({"prompt":"p","completion":"c"})");
  EXPECT_TRUE(plain.messages.empty());
  EXPECT_EQ("p", plain.prompt);
  EXPECT_EQ("c", plain.completion);
  for (const auto& [line, question] : {std::pair{R"({"instruction":"i","input":"x","output":"o"})", "i\n\nx"},
                                       {R"({"instruction":"i","input":"","output":"o"})", "i"},
                                       {R"({"instruction":"i","output":"o"})", "i"}}) {
    const auto alpaca = parse_conversation(line);
    ASSERT_EQ(2U, alpaca.messages.size()) << line;
    EXPECT_EQ("user", alpaca.messages[0].role);
    EXPECT_EQ(question, alpaca.messages[0].content);
    EXPECT_EQ("assistant", alpaca.messages[1].role);
    EXPECT_EQ("o", alpaca.messages[1].content);
  }
}

TEST(Conversation, AlpacaHasASystemAndAHistory) {
  const auto whole =
      parse_conversation(R"({"system":"s","history":[["q","a"],["r","b"]],"instruction":"i","input":"x","output":"o"})");
  std::string spelled;
  for (const auto& m : whole.messages) spelled += m.role + ":" + m.content + (m.learned ? "!" : "") + "|";
  EXPECT_EQ("system:s|user:q|assistant:a!|user:r|assistant:b!|user:i\n\nx|assistant:o!|", spelled);
  EXPECT_EQ(2U, parse_conversation(R"({"system":"","history":[],"instruction":"i","output":"o"})").messages.size());
  EXPECT_EQ(2U, parse_conversation(R"({"system":null,"history":null,"instruction":"i","output":"o"})").messages.size());
}

TEST(Conversation, HasTheSpellingsOfOtherPrograms) {
  const auto spelled = [](const char* line) {
    std::string text;
    for (const auto& m : parse_conversation(line).messages) text += m.role + ":" + m.content + (m.learned ? "!" : "") + "|";
    return text;
  };
  for (
      const auto& [line, messages] :
      {std::pair{
           R"({"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"},{"from":"user","value":"r"},{"from":"assistant","value":"b"}]})",
           "user:q|assistant:a!|user:r|assistant:b!|"},
       {R"({"system":"s","conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a","weight":0},{"from":"gpt","value":"b"}]})",
        "system:s|user:q|assistant:a|assistant:b!|"},
       {R"({"conversations":[{"from":"system","value":"s"},{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})",
        "system:s|user:q|assistant:a!|"},
       {R"({"prompt":[{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"user","content":"r"}],"completion":[{"role":"assistant","content":"b"}]})",
        "user:q|assistant:a|user:r|assistant:b!|"},
       {R"({"prompt":"q","response":"a"})", "user:q|assistant:a!|"},
       {R"({"instruction":"i","context":"c","response":"a","category":"x"})", "user:i\n\nc|assistant:a!|"},
       {R"({"instruction":"i","context":"","response":"a"})", "user:i|assistant:a!|"}})
    EXPECT_EQ(messages, spelled(line)) << line;
}

TEST(Conversation, AnswersMaySayThatTheyAreNotLearned) {
  const auto learned = [](const std::string& mark) {
    const auto all =
        parse_conversation(R"({"messages":[{"role":"user","content":"q","weight":1},{"role":"assistant","content":"a",)" +
                           mark + R"(},{"role":"user","content":"r"},{"role":"assistant","content":"b"}]})")
            .messages;
    EXPECT_FALSE(all[0].learned || all[2].learned);
    EXPECT_TRUE(all[3].learned);
    return all[1].learned;
  };
  for (const auto* const no :
       {R"("weight":0)", R"("weight":0.0)", R"("train":false)", R"("training":false)", R"("trainable":0)", R"("learn":false)",
        R"("loss":false)", R"("loss_mask":0)", R"("step_loss_mask":0)", R"("masked":true)", R"("weight":1,"train":false)"})
    EXPECT_FALSE(learned(no)) << no;
  for (const auto* const yes :
       {R"("weight":1)", R"("weight":null)", R"("train":true)", R"("loss_mask":1)", R"("masked":false)"})
    EXPECT_TRUE(learned(yes)) << yes;
}

TEST(Conversation, WhatIsNoneIsRefusedWithAReasonAndAMend) {
  for (const auto& [line, why] :
       {std::pair{"{", "not JSON"},
        {"[1]", "no JSON object"},
        {"{}", "none of the keys"},
        {"\"\xff\"", "not UTF-8"},
        {R"({"messages":[]})", "no list with messages"},
        {R"({"messages":[7]})", "message 1 is no object"},
        {R"({"messages":[{"content":"a"}]})", "message 1 has no \"role\""},
        {R"({"messages":[{"role":"assistant","content":"a"}],"chat_template_kwargs":3})", "chat_template_kwargs"},
        {R"({"messages":[{"role":"user","content":"a"}]})", "nothing to learn"},
        {R"({"prompt":"p"})", "no \"completion\""},
        {R"({"prompt":[{"role":"user","content":"q"}]})", "no \"completion\""},
        {R"({"prompt":[{"role":"user","content":"q"}],"completion":"c"})", "\"completion\" is no list with messages"},
        {R"({"prompt":"p","chosen":"a","rejected":"b"})", "a preferred and a rejected answer"},
        {R"({"text":"t"})", "terrace tokenize"},
        {R"({"conversations":[]})", "\"conversations\" is no list"},
        {R"({"conversations":[{"from":"alien","value":"q"}]})", "from \"alien\""},
        {R"({"conversations":[{"from":"human","value":"q"}]})", "nothing to learn"},
        {R"({"conversations":[{"value":"q"}]})", "has no \"from\""},
        {R"({"instruction":"i","context":3,"response":"o"})", "\"context\""},
        {R"({"prompt":"p","completion":""})", "nothing to learn"},
        {R"({"messages":[{"role":"assistant","content":"a","weight":0}]})", "all answers are marked as not to be learned"},
        {R"({"messages":[{"role":"assistant","content":"a","weight":0.5}]})", "\"weight\" of message 1 is 0.5"},
        {R"({"messages":[{"role":"assistant","content":"a","loss_mask":[0,1]}]})", "\"loss_mask\" of message 1 is [0,1]"},
        {R"({"instruction":"i","output":"o","system":3})", "\"system\""},
        {R"({"instruction":"i","output":"o","history":[["q"]]})", "\"history\" is no list of pairs"},
        {R"({"instruction":"i"})", "no \"output\""},
        {R"({"instruction":"i","input":3,"output":"o"})", "\"input\""}}) {
    EXPECT_THAT(test::refusal_of([&] { parse_conversation(line); }), testing::AllOf(HasSubstr(why), HasSubstr("\n  "))) << line;
  }
}

// A chat template may write such messages; ChatML cannot.
TEST(Conversation, MessagesThatAreMoreThanATextSayWhy) {
  for (const auto& [line, why] :
       {std::pair{R"({"messages":[{"role":"assistant"}]})", "message 1 has no \"content\""},
        {R"({"messages":[{"role":"assistant","content":null}]})", "is no text"},
        {R"({"messages":[{"role":"assistant","content":"a","tool_calls":[]}]})", "message 1 calls tools"},
        {R"({"messages":[{"role":"assistant","content":[{"type":"image"}]}]})", "a part that is no text"}}) {
    const auto message = parse_conversation(line).messages.at(0);
    EXPECT_THAT(message.not_plain, HasSubstr(why)) << line;
    EXPECT_THAT(message.not_plain, HasSubstr("\n  ")) << line;
  }
  EXPECT_EQ(
      "",
      parse_conversation(R"({"messages":[{"role":"assistant","content":"a","tool_calls":null}]})").messages.at(0).not_plain);
}

}  // namespace
}  // namespace terrace::lm
