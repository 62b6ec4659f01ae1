// What a tokenizer.model says of itself that the library of sentencepiece does not tell: the fields of its protocol buffer
// (sentencepiece_model.proto) that decide where a text may be cut and how it is decoded.
//
// Internal to the tokenizer. Threads: any; pure.
// Errors:  Error(Exit::corrupt) with only the reason, for bytes that are no such message.
#pragma once

#include <string>
#include <string_view>

namespace terrace::lm {

struct SentencePieceFile {
  bool bpe = false;              // else unigram or another one
  bool prefixes = true;          // add_dummy_prefix
  bool removes_spaces = true;    // remove_extra_whitespaces: also those before a text
  bool escapes_spaces = true;    // escape_whitespaces
  bool spaces_behind = false;    // treat_whitespace_as_suffix
  bool maps_characters = false;  // it has a table by which texts are normalised
  bool maps_decoded = false;     // and one for decoded texts
};

SentencePieceFile read_sentencepiece_file(std::string_view bytes);
// The same model without add_dummy_prefix: of a field that stands twice, readers take the later one.
std::string without_prefix(std::string bytes);

}  // namespace terrace::lm
