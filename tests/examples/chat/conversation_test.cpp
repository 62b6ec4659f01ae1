// Lines of JSON as conversations, and what is said of lines that are none.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/core/error.h>
#include <terrace/examples/lm/chat/conversation.h>

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
        {R"({"prompt":"p","completion":""})", "nothing to learn"},
        {R"({"instruction":"i"})", "no \"output\""},
        {R"({"instruction":"i","input":3,"output":"o"})", "\"input\""}}) {
    try {
      parse_conversation(line);
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_EQ(Exit::usage, error.exit()) << line;
      EXPECT_THAT(error.what(), HasSubstr(why)) << line;
      EXPECT_THAT(error.what(), HasSubstr("\n  ")) << line;
    }
  }
}

// A chat template may write them; ChatML cannot.
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
