// Replaces sentencepiece.cpp if its library is not installed.
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/tokenizer/tokenizer_model.h>

namespace terrace::lm {

bool sentencepiece_available() { return false; }

std::unique_ptr<const TokenizerModel> sentencepiece_model(std::string, SentencePieceSettings) {
  throw base::Refused(
      "it is a model of sentencepiece, which this build of terrace cannot read\n  install libsentencepiece-dev and build "
      "terrace again");
}

}  // namespace terrace::lm
