// What a run is trained and evaluated on.
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <terrace/examples/terrace/config/words.h>

namespace terrace::cli {

struct DataConfig {
  std::vector<std::filesystem::path> files;       // in a mixture, with the weights of their sources before them
  std::vector<std::filesystem::path> eval_files;  // as `files`; empty: a part of `files` is held out
  DataFormat format = DataFormat::automatic;      // automatic until the files have been looked at
  lm::BadLine on_bad_line = lm::BadLine::stop;    // of conversations
  std::string tokenizer;                          // empty: the one in the directory of --init-from
  std::string template_date;             // of conversations: the day that strftime_now gives in a chat template; empty: none
  std::int64_t document_separator = -1;  // a token that ends a document; -1: none, each sequence is one document
};

}  // namespace terrace::cli
