// The form of training data is found from the files' names and first bytes.
#include <gmock/gmock.h>

#include <cstdint>
#include <random>
#include <string>

#include <terrace/examples/lm/data/data_form.h>
#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

using lm::DataForm;
using testing::HasSubstr;

template <class Id>
std::string ids(std::uint64_t vocabulary, std::size_t count) {
  std::mt19937_64 random(vocabulary);
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) {
    const auto id = static_cast<Id>(random() % vocabulary);
    bytes.append(reinterpret_cast<const char*>(&id), sizeof id);
  }
  return bytes;
}

class DataForms : public testing::Test {
 protected:
  DataForm form(const std::string& name, const std::string& bytes, std::int64_t vocabulary = 256) const {
    folder_.write(name, bytes);
    return lm::form_of_data(folder_ / name, vocabulary);
  }
  std::string refusal(const std::string& name, const std::string& bytes, std::int64_t vocabulary = 256) const {
    return refusal_of([&] { static_cast<void>(form(name, bytes, vocabulary)); });
  }

  ScratchFolder folder_;
};

TEST_F(DataForms, OfTextAndConversations) {
  const std::string line = R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})";
  for (const auto* const name : {"chat.jsonl", "chat.NDJSON", "chat.json", "chat.txt", "chat"})
    EXPECT_EQ(DataForm::conversations, form(name, "\n " + line + "\n" + line)) << name;
  EXPECT_EQ(DataForm::conversations, form("chat.json", " [\n" + line + ",\n" + line + "]"));
  EXPECT_EQ(DataForm::conversations, form("chat", R"({"text":")" + std::string(100'000, 'x') + "\"}\n"));
  EXPECT_EQ(DataForm::conversations, form("broken.jsonl", "not JSON"));  // the reader names the line
  EXPECT_EQ(DataForm::bytes, form("book", "{ it begins with a brace\n"));
  EXPECT_EQ(DataForm::bytes, form("book", std::string(200'000, '{')));
  EXPECT_EQ(DataForm::bytes, form("book", ""));
  // A character that crosses the end of the bytes that are looked at.
  for (int before = 0; before < 4; ++before) {
    std::string text(static_cast<std::size_t>(before), 'x');
    while (text.size() < 70'000) text += "𝄞";
    EXPECT_EQ(DataForm::bytes, form("book", text));
  }
}

TEST_F(DataForms, OfIds) {
  for (const std::uint64_t vocabulary : {300U, 4'000U, 32'000U, 50'257U, 65'536U}) {
    const auto v = static_cast<std::int64_t>(vocabulary);
    for (const std::size_t count : {1'001U, 2'000U, 100'000U})
      EXPECT_EQ(DataForm::u16, form("ids", ids<std::uint16_t>(vocabulary, count), v)) << vocabulary << ' ' << count;
    EXPECT_EQ(DataForm::u32, form("ids", ids<std::uint32_t>(vocabulary, 1'001), v)) << vocabulary;
  }
  for (const std::uint64_t vocabulary : {70'000U, 128'256U, 262'144U})
    EXPECT_EQ(DataForm::u32, form("ids", ids<std::uint32_t>(vocabulary, 50'000), static_cast<std::int64_t>(vocabulary)));
  EXPECT_EQ(DataForm::u16, form("ids", ids<std::uint16_t>(256, 1'001)));
  EXPECT_EQ(DataForm::bytes, form("binary", ids<std::uint16_t>(65'536, 1'000)));
  const std::uint32_t header[3] = {20240520, 1, 1000};
  std::string llm_c(1024, '\0');
  llm_c.replace(0, sizeof header, reinterpret_cast<const char*>(header), sizeof header);
  EXPECT_EQ(DataForm::llm_c, form("ids.bin", llm_c + ids<std::uint16_t>(50'257, 1000), 50'257));
  EXPECT_THAT(refusal("ids.bin", ids<std::uint16_t>(50'257, 1000), 300),
              HasSubstr("as ids of two bytes its first ones reach 50"));
}

TEST_F(DataForms, OthersAreNamedWithTheLineThatConvertsThem) {
  EXPECT_THAT(refusal("chat.jsonl.xz",
                      "\xfd"
                      "7zXZ and so on"),
              HasSubstr("unxz -k"));
  EXPECT_THAT(refusal("chat.jsonl.bz2", "BZh91AY and so on"), HasSubstr("bunzip2 -k"));
  EXPECT_THAT(refusal("rows.parquet", "PAR1 and so on"), HasSubstr("read_parquet"));
}

}  // namespace
}  // namespace terrace::test
