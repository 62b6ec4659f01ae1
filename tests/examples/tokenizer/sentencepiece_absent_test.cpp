// A build without the library of sentencepiece reports what it needs.
#include <gmock/gmock.h>

#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

TEST(SentencePiece, IsRefusedWithTheNameOfItsPackage) {
  const ScratchFolder folder;
  EXPECT_FALSE(Tokenizer::reads_sentencepiece());
  EXPECT_THAT(test::refusal_of([&] { static_cast<void>(Tokenizer::read(folder.write("tokenizer.model", "x"))); }),
              testing::HasSubstr("libsentencepiece-dev"));
}

}  // namespace
}  // namespace terrace::lm
