// A build without the library of sentencepiece reports what it needs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/tests/examples/scratch_folder.h>

namespace terrace::lm {
namespace {

TEST(SentencePiece, IsRefusedWithTheNameOfItsPackage) {
  const ScratchFolder folder;
  EXPECT_FALSE(Tokenizer::reads_sentencepiece());
  try {
    static_cast<void>(Tokenizer::read(folder.write("tokenizer.model", "x")));
    FAIL() << "it was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(ErrorKind::refused, error.kind());
    EXPECT_THAT(error.what(), testing::HasSubstr("libsentencepiece-dev"));
  }
}

}  // namespace
}  // namespace terrace::lm
