// Reads settings of a tokenizer.model that the sentencepiece library does not expose: the fields of its protocol buffer
// (sentencepiece_model.proto) that decide where a text can be cut and how it is decoded.
//
// Internal to the tokenizer. Threads: any; pure.
// Errors:  Error(ErrorKind::corrupt) with only the reason if the bytes are not such a message.
#pragma once

#include <string>
#include <string_view>

namespace terrace::lm {

struct SentencePieceFile {
  bool bpe = false;              // false: unigram or another type
  bool prefixes = true;          // add_dummy_prefix
  bool removes_spaces = true;    // remove_extra_whitespaces, also before a text
  bool escapes_spaces = true;    // escape_whitespaces
  bool spaces_behind = false;    // treat_whitespace_as_suffix
  bool maps_characters = false;  // it has a table that normalises texts
  bool maps_decoded = false;     // and a table for decoded texts
};

SentencePieceFile read_sentencepiece_file(std::string_view bytes);
// The same model without add_dummy_prefix: appends the field again, because readers use the last of several values.
std::string without_prefix(std::string bytes);

}  // namespace terrace::lm
