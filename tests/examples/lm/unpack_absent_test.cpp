// Packed data in a build without the libraries for it: tests the sources that replace them.
#include <string>

#include <gmock/gmock.h>

#include <terrace/examples/lm/unpack/data_stream.h>
#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

TEST(AbsentUnpackers, NameThePackageAndTheLineThatUnpacks) {
  const ScratchFolder folder;
  for (const auto& [bytes, package, line] : {std::tuple{"\x1f\x8b\x08 and so on", "zlib1g-dev", "gunzip -k "},
                                             {"\x28\xb5\x2f\xfd and so on", "libzstd-dev", "unzstd -k "}}) {
    const auto file = folder.write("chat.jsonl", bytes);
    EXPECT_THAT(test::refusal_of([&] { DataStream in(file); }),
                testing::AllOf(testing::HasSubstr(std::string("install ") + package + " and build terrace again"),
                               testing::HasSubstr(line + file.string())))
        << package;
  }
  EXPECT_EQ("plain", DataStream(folder.write("chat.jsonl", "plain")).peek(9));
}

}  // namespace
}  // namespace terrace::lm
