// Headers that follow the specification, and headers that break it in every way.
#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/weights/safetensors_header.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

SafetensorsHeader parse(const std::string& text, std::uint64_t data_bytes) {
  return parse_safetensors_header(text, data_bytes, "x.safetensors");
}

TEST(SafetensorsHeader, SortsTensorsByTheirPlace) {
  const auto header = parse(R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[6,14]},"__metadata__":{"format":"pt","k":"v"},
      "a":{"data_offsets":[0,6],"shape":[3,1],"dtype":"BF16"}}   )",
                            14);
  ASSERT_EQ(header.entries.size(), 2U);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[0].type, FileType::BF16);
  EXPECT_THAT(header.entries[0].shape, testing::ElementsAre(3, 1));
  EXPECT_EQ(header.entries[1].offset, 6U);
  EXPECT_EQ(header.entries[1].elements, 2U);
  EXPECT_THAT(header.metadata, testing::ElementsAre(testing::Pair("format", "pt"), testing::Pair("k", "v")));
}
TEST(SafetensorsHeader, TakesScalarsAndEmptyTensors) {
  const auto header = parse(R"({"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"e":{"dtype":"I64","shape":[0,5],
      "data_offsets":[0,0]},"end":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}})",
                            8);
  ASSERT_EQ(header.entries.size(), 3U);
  EXPECT_EQ(header.entries[0].name, "e");
  EXPECT_EQ(header.entries[1].elements, 1U);
  EXPECT_TRUE(parse("{}", 0).entries.empty());
}
TEST(SafetensorsHeader, ComesBackFromItsText) {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}};
  header.entries = {{.name = "ä \"quoted\"", .type = FileType::F32, .shape = {2, 3}, .elements = 6, .offset = 0},
                    {.name = "scalar", .type = FileType::BF16, .shape = {}, .elements = 1, .offset = 24}};
  const auto text = format_safetensors_header(header);
  EXPECT_EQ(text.size() % 8, 0U);
  const auto again = parse(text, 26);
  ASSERT_EQ(again.entries.size(), 2U);
  EXPECT_EQ(again.entries[0].name, "ä \"quoted\"");
  EXPECT_THAT(again.entries[0].shape, testing::ElementsAre(2, 3));
  EXPECT_EQ(again.entries[1].offset, 24U);
  EXPECT_EQ(again.metadata, header.metadata);
}

struct Broken {
  const char* text;
  const char* words;
};
TEST(SafetensorsHeader, RefusesEveryBreach) {
  const Broken all[] = {
      {"", "does not begin with"},
      {"[]", "does not begin with"},
      {" {}", "does not begin with"},
      {"{", "not JSON"},
      {"{} x", "not JSON"},
      {R"({"a":1})", "a number where"},
      {R"({"a":"x"})", "a string where"},
      {R"({"a":null})", "a null"},
      {R"({"a":true})", "boolean"},
      {R"({"a":[]})", "a list where"},
      {R"({"a":{}})", "no dtype, shape or data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", "no dtype, shape or data_offsets"},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", "unknown dtype \"F31\""},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":"x"}})", "unexpected string for \"more\""},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "unexpected string"},
      {R"({"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}})", "unexpected list"},
      {R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", "a list where"},
      {R"({"a":{"dtype":"F32","shape":{"x":1},"data_offsets":[0,4]}})", "an object where"},
      {R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", "a string where"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "negative number -1"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "not a 64-bit whole number"},
      {R"({"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]}})", "not a 64-bit whole number"},
      {R"({"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,4]}})", "not JSON"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "1 data offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "backwards"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "a shape of 8 bytes but"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "overflows"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})", "overflows"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       "twice"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       "overlaps"},
      {R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[2,4]}})", "a hole of 2 bytes"},
      {R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})", "2 bytes after the last tensor"},
      {R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", "cut short"},
      {R"({"__metadata__":{"k":1}})", "a number where"},
      {R"({"__metadata__":{"k":"a","k":"b"}})", "metadata \"k\" occurs twice"},
      {R"({"__metadata__":{"k":{}}})", "an object where"},
      {R"({"__metadata__":"x"})", "a string where"},
      {"{\"\xff\":{}}", "not JSON"},
  };
  for (const auto& broken : all) {
    EXPECT_THAT(test::error_of(ErrorKind::corrupt, [&] { parse(broken.text, 4); }),
                testing::AllOf(testing::StartsWith("x.safetensors: "), testing::HasSubstr(broken.words)))
        << broken.text;
  }
}

TEST(SafetensorsHeader, TypesOfQuantisedWeightsAreNoDamage) {
  for (const std::string type : {"F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"}) {
    EXPECT_THAT(test::refusal_of([&] { parse(R"({"a":{"dtype":")" + type + R"(","shape":[2],"data_offsets":[0,1]}})", 1); }),
                testing::HasSubstr("tensor \"a\" is " + type))
        << type;
  }
}

TEST(SafetensorsHeader, DeepNestingCostsNothing) {
  EXPECT_THROW(parse("{\"a\":" + std::string(1 << 20, '['), 0), Error);
  EXPECT_THROW(parse("{\"a\":{\"shape\":" + std::string(1 << 20, '['), 0), Error);
}

}  // namespace
}  // namespace terrace::lm
