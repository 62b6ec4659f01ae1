// Packed data in a build without the libraries for it: tests the sources that replace them.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/unpack/data_stream.h>
#include <terrace/tests/examples/scratch_folder.h>

namespace terrace::lm {
namespace {

TEST(AbsentUnpackers, NameThePackageAndTheLineThatUnpacks) {
  const ScratchFolder folder;
  for (const auto& [bytes, package, line] : {std::tuple{"\x1f\x8b\x08 and so on", "zlib1g-dev", "gunzip -k "},
                                             {"\x28\xb5\x2f\xfd and so on", "libzstd-dev", "unzstd -k "}}) {
    const auto file = folder.write("chat.jsonl", bytes);
    try {
      DataStream in(file);
      ADD_FAILURE() << package;
    } catch (const Error& error) {
      EXPECT_EQ(ErrorKind::refused, error.kind());
      EXPECT_THAT(error.what(), testing::HasSubstr(std::string("install ") + package + " and build terrace again"));
      EXPECT_THAT(error.what(), testing::HasSubstr(line + file.string()));
    }
  }
  EXPECT_EQ("plain", DataStream(folder.write("chat.jsonl", "plain")).peek(9));
}

}  // namespace
}  // namespace terrace::lm
